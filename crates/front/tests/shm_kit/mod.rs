//! A service on a memory file system, and a client of its fast lane that speaks the wire directly.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod file;
pub mod hostile;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polylane_base::sync::Arc;
use polylane_base::sync::atomic::{AtomicU32, Ordering};
use polylane_base::{Errno, Gid, SystemClock, TestClock, Uid};
use polylane_front::Lane;
use polylane_front::lane::slots::{Access, Slot, Token};
use polylane_front::shm::{Config, Server};
use polylane_ipc::channel::client::Trusting;
use polylane_ipc::handshake::{Hello, WELCOME_BYTES_MAX, Welcome};
use polylane_ipc::message::{LockFlags, Message, NO_SLOT, Op, Reply, STREAMED, Status, WireAttr};
use polylane_ipc::{ClientChannel, MailboxIndex};
use polylane_sys::scm;
use polylane_testkit::fault::Faulty;
use polylane_vfs::fs::FileSystem;
use polylane_vfs::memfs::MemFs;
use polylane_vfs::{OpCtx, Options, SetAttr, Vfs};

/// A lane in memory with a server, reachable at `socket`.
pub struct House {
    pub lane: Arc<Lane>,
    pub server: Server,
    pub socket: PathBuf,
}

impl House {
    pub fn new() -> House {
        House::with(Config::default())
    }

    pub fn with(config: Config) -> House {
        House::over(lane(), config)
    }

    pub fn over(lane: Arc<Lane>, config: Config) -> House {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("polylane-shm-{}-{number}", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let listener = scm::listen(&socket, 64).unwrap();
        let server = Server::start(lane.clone(), listener, config).unwrap();
        House { lane, server, socket }
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.socket).unwrap()
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.server.stop();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// A memory lane of 1 GiB, mounted at /lane as far as links are concerned.
pub fn lane() -> Arc<Lane> {
    lane_on(MemFs::new(1 << 30, 1 << 20, Arc::new(TestClock::default())))
}

/// The same behind the page cache, as file systems on volumes are.
pub fn cached_lane() -> Arc<Lane> {
    lane_of(cached())
}

/// The same, where nothing is written back by itself while a test runs.
pub fn unhurried_lane() -> Arc<Lane> {
    lane_flushed(cached(), Duration::from_secs(3600))
}

fn cached() -> Arc<Faulty> {
    let fs = Arc::new(MemFs::new(1 << 30, 1 << 20, Arc::new(TestClock::default())));
    let mut character = fs.character();
    character.cache_data = true;
    Faulty::with_character(fs, character)
}

/// The same on a file system that sets room aside for data, as those on volumes do.
pub fn roomy_lane() -> Arc<Lane> {
    let fs = Arc::new(MemFs::new(1 << 30, 1 << 20, Arc::new(TestClock::default())));
    let mut character = fs.character();
    character.cache_data = true;
    lane_of(Faulty::with_room(fs, character))
}

/// The same on a memory file system of the test's own.
pub fn lane_on(fs: MemFs) -> Arc<Lane> {
    lane_of(Arc::new(fs))
}

/// The same on any file system.
pub fn lane_of(fs: Arc<dyn FileSystem>) -> Arc<Lane> {
    lane_flushed(fs, Duration::from_secs(5))
}

fn lane_flushed(fs: Arc<dyn FileSystem>, flush_interval: Duration) -> Arc<Lane> {
    let options = Options {
        clock: Arc::new(SystemClock),
        cache_bytes_limit: 64 << 20,
        dirty_bytes_limit: 16 << 20,
        flush_interval,
        mount_path: b"/lane".to_vec(),
        covered: vec![b".polylane".to_vec()],
    };
    let vfs = Vfs::new(fs, options).unwrap();
    // The tests may run as anybody.
    let open = SetAttr { perm: Some(0o777), ..SetAttr::default() };
    vfs.setattr(&OpCtx::service(), &vfs.root(), &open).unwrap();
    Lane::new(vfs, 0)
}

static PANICS: AtomicU32 = AtomicU32::new(0);

/// Counts panics of the service's threads from now on; those of the test end the test anyway.
pub fn count_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if std::thread::current().name().is_some_and(|name| name.starts_with("shm-")) {
            PANICS.fetch_add(1, Ordering::Relaxed);
        }
        before(info);
    }));
}

/// How many there were.
pub fn panics() -> u32 {
    PANICS.load(Ordering::Relaxed)
}

/// A slot, as the kernel's CREATE would make it.
pub fn make_slot(house: &House, token: Token, number: u32) -> Result<Arc<Slot>, Errno> {
    let nobody = (Uid(65_534), Gid(65_534));
    house.lane.slots.create(token, number, Access::ReadWrite, nobody)
}

/// Waits until `done` says so; panics with `what` after half a minute.
pub fn wait_for(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One connection and one mailbox of it.
pub struct Client {
    pub socket: OwnedFd,
    pub welcome: Welcome,
    pub channel: Arc<ClientChannel>,
    pub mailbox: MailboxIndex,
}

pub fn connect_raw(path: &Path) -> Result<(OwnedFd, Welcome, Vec<OwnedFd>), Errno> {
    connect_as(path, "/lane", &[])
}

/// As a process that has the lane at `mount`; with its root among `shown`, by an attachment of its
/// own.
pub fn connect_as(
    path: &Path,
    mount: &str,
    shown: &[BorrowedFd<'_>],
) -> Result<(OwnedFd, Welcome, Vec<OwnedFd>), Errno> {
    let socket = scm::connect(path)?;
    let hello = Hello { queue: None, key: 0 }.at(mount.as_bytes());
    scm::send(&socket, &hello, shown)?;
    let mut bytes = vec![0; WELCOME_BYTES_MAX];
    let received = scm::receive(&socket, &mut bytes)?;
    let welcome = Welcome::from_bytes(&bytes[..received.count])?;
    match welcome.status {
        0 => Ok((socket, welcome, received.fds)),
        error => Err(Errno(error)),
    }
}

impl Client {
    pub fn connect(path: &Path) -> Result<Client, Errno> {
        Client::of(connect_raw(path)?)
    }

    /// With an attachment at `mount`, by what it shows.
    pub fn attach(path: &Path, mount: &str, shown: &[BorrowedFd<'_>]) -> Result<Client, Errno> {
        let (socket, welcome, mut fds) = connect_as(path, mount, shown)?;
        assert!(welcome.attached && fds.pop().is_some(), "the page comes last");
        Client::of((socket, welcome, fds))
    }

    fn of((socket, welcome, mut fds): (OwnedFd, Welcome, Vec<OwnedFd>)) -> Result<Client, Errno> {
        let memfd = fds.remove(0);
        let channel = ClientChannel::attach(memfd, fds, welcome.geometry, welcome.plan)?;
        let mailbox = channel.claim().unwrap();
        Ok(Client { socket, welcome, channel: Arc::new(channel), mailbox })
    }

    /// Another mailbox of the same session, as another thread has it.
    pub fn thread(&self) -> Thread {
        let channel = self.channel.clone();
        let mailbox = channel.claim().unwrap();
        Thread { channel, mailbox }
    }

    pub fn call(&self, message: &Message) -> Result<Reply, Errno> {
        outcome(self.channel.call(self.mailbox, message, &Trusting).unwrap())
    }

    /// Whether the entry at a position of the stream was applied, not refused.
    pub fn was_done(&self, mailbox: MailboxIndex, position: u32) -> bool {
        let arg = [position.into(), 0, 0, 0];
        let asked = Message { flags: STREAMED, arg, ..Message::new(Op::Ping) };
        let reply = outcome(self.channel.call(mailbox, &asked, &Trusting).unwrap());
        reply.unwrap().value[0] == 0
    }

    /// A request with paths.
    pub fn call_at(
        &self,
        mut message: Message,
        path: &[u8],
        second: &[u8],
    ) -> Result<Reply, Errno> {
        message.path_len = path.len() as u32;
        message.path2_len = second.len() as u32;
        self.channel.settle(self.mailbox, &Trusting).unwrap();
        self.channel.payload_put(self.mailbox, 0, path);
        self.channel.payload_put(self.mailbox, path.len(), second);
        self.call(&message)
    }

    pub fn open(&self, path: &str, flags: i32) -> Result<(u64, WireAttr), Errno> {
        self.open_slot(path, flags, NO_SLOT)
    }

    pub fn open_slot(&self, path: &str, flags: i32, slot: u64) -> Result<(u64, WireAttr), Errno> {
        let mut message = Message { flags: flags as u32, mode: 0o644, ..Message::new(Op::Open) };
        message.arg[0] = slot;
        let reply = self.call_at(message, path.as_bytes(), b"")?;
        let state = self.call(&Message { handle: reply.handle, ..Message::new(Op::Fstat) })?;
        Ok((reply.handle, state.attr.expect("an open file has an attr")))
    }

    pub fn create(&self, path: &str) -> u64 {
        self.open(path, libc::O_CREAT | libc::O_RDWR).unwrap().0
    }

    pub fn close(&self, handle: u64) -> Result<Reply, Errno> {
        self.call(&Message { handle, ..Message::new(Op::Close) })
    }

    pub fn write(&self, handle: u64, offset: u64, data: &[u8]) -> Result<usize, Errno> {
        let mut message = Message { handle, offset, ..Message::new(Op::Write) };
        message.length = data.len() as u64;
        let overlap = data.len() >= 64 << 10;
        let reply =
            self.channel.call_write(self.mailbox, &message, (0, data), overlap, &Trusting).unwrap();
        outcome(reply).map(|reply| count(&reply))
    }

    pub fn read(&self, handle: u64, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let mut message = Message { handle, offset, ..Message::new(Op::Read) };
        message.length = len as u64;
        let mut data = vec![0; len];
        let reply = self.channel.call_read(self.mailbox, &message, &mut data, &Trusting).unwrap();
        let count = outcome(reply).map(|reply| count(&reply))?;
        data.truncate(count);
        Ok(data)
    }

    /// Bytes that the reply left in the buffer.
    pub fn payload(&self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.channel.payload_get(self.mailbox, 0, &mut bytes);
        bytes
    }

    pub fn stat(&self, path: &str) -> Result<WireAttr, Errno> {
        let reply = self.call_at(Message::new(Op::Stat), path.as_bytes(), b"")?;
        Ok(reply.attr.expect("stat has an attr"))
    }

    pub fn op_at(&self, op: Op, path: &str) -> Result<Reply, Errno> {
        self.call_at(Message { mode: 0o755, ..Message::new(op) }, path.as_bytes(), b"")
    }

    pub fn lock(&self, handle: u64, flags: LockFlags, kind: i32) -> Result<Reply, Errno> {
        self.call(&lock_message(handle, flags, kind))
    }
}

/// A second thread's mailbox.
pub struct Thread {
    pub channel: Arc<ClientChannel>,
    pub mailbox: MailboxIndex,
}

impl Thread {
    pub fn call(&self, message: &Message) -> Result<Reply, Errno> {
        outcome(self.channel.call(self.mailbox, message, &Trusting).unwrap())
    }
}

pub fn lock_message(handle: u64, flags: LockFlags, kind: i32) -> Message {
    let flags = flags.bits();
    Message { handle, flags, mode: kind as u32, ..Message::new(Op::Lock) }
}

/// Requests of one kind so far.
pub fn requests_of(house: &House, op: Op) -> u64 {
    let of = |&(counted, count): &(Op, u64)| (counted == op).then_some(count);
    house.server.totals().by_op.iter().find_map(of).unwrap()
}

/// `UseKernel` shows as `ENOSYS`, which nothing else in here says.
pub const USE_KERNEL: Errno = Errno::ENOSYS;

pub fn outcome(reply: Reply) -> Result<Reply, Errno> {
    match reply.status {
        Status::Done(_) => Ok(reply),
        Status::Failed(errno) => Err(Errno(errno)),
        Status::UseKernel => Err(USE_KERNEL),
    }
}

pub fn count(reply: &Reply) -> usize {
    match reply.status {
        Status::Done(count) => count as usize,
        other => panic!("{other:?}"),
    }
}
