//! A made-up kernel: the other end of a socket that a session takes for /dev/fuse.

use std::os::fd::OwnedFd;
use std::time::Duration;

use polylane_base::sync::{Arc, thread};
use polylane_base::{Errno, SystemClock};
use polylane_front::Lane;
use polylane_front::fuse::{Ended, InitFlags, Params, ServeOptions, Stop, serve};
use polylane_vfs::fs::FileSystem;
use polylane_vfs::memfs::MemFs;
use polylane_vfs::{Options, Vfs};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

pub const ROOT: u64 = 1;
/// The process that asks, if nothing else is said.
pub const PID: u32 = 4711;
/// `FUSE_SETXATTR_EXT` and `FUSE_DIRECT_IO_ALLOW_MMAP`: the flags that change what is said later.
pub const FLAGS: u64 = 1 << 29 | 1 << 36;

pub fn vfs() -> Arc<Vfs> {
    vfs_on(memfs())
}

pub fn memfs() -> Arc<MemFs> {
    Arc::new(MemFs::new(64 << 20, 4096, Arc::new(SystemClock)))
}

pub fn vfs_on(fs: Arc<dyn FileSystem>) -> Arc<Vfs> {
    let options = Options {
        clock: Arc::new(SystemClock),
        cache_bytes_limit: 1 << 20,
        dirty_bytes_limit: 1 << 20,
        flush_interval: Duration::from_secs(5),
        mount_path: b"/lane".to_vec(),
        covered: vec![],
    };
    Vfs::new(fs, options).expect("an empty file system opens")
}

/// What came back for a request: an errno, or a body.
pub type Answer = Result<Vec<u8>, Errno>;

/// One message from the session: a reply, or with `unique` 0 a notification and its code.
#[derive(Debug)]
pub struct Message {
    pub unique: u64,
    pub error: i32,
    pub body: Vec<u8>,
}

pub struct Kernel {
    pub lane: Arc<Lane>,
    socket: OwnedFd,
    stop: Stop,
    server: Option<thread::JoinHandle<std::io::Result<Ended>>>,
    unique: u64,
    pub uid: u32,
    /// The thread that asks.
    pub pid: u32,
    /// Where messages are received.
    room: Vec<u8>,
}

impl Kernel {
    pub fn new() -> Kernel {
        Kernel::on(Lane::new(vfs(), 0), 0)
    }

    pub fn on(lane: Arc<Lane>, incarnation: u16) -> Kernel {
        Kernel::with(lane, incarnation, FLAGS)
    }

    /// Another one than [`on`](Self::on), by what it agreed on with the session.
    pub fn with(lane: Arc<Lane>, incarnation: u16, flags: u64) -> Kernel {
        let (socket, device) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("a socket pair");
        let stop = Stop::new().expect("an eventfd");
        let params = Some(Params { minor: 45, flags: InitFlags::from_bits_retain(flags) });
        let options = ServeOptions { params, incarnation, threads: 2, in_flight: None };
        let (served, stopped) = (lane.clone(), stop.clone());
        let server = thread::spawn(move || serve(device, served, options, &stopped));
        Kernel {
            lane,
            socket,
            stop,
            server: Some(server),
            unique: 2,
            uid: 0,
            pid: PID,
            room: vec![0; 2 << 20],
        }
    }

    /// Sends a request; its unique number.
    pub fn send(&mut self, opcode: u32, node: u64, args: &[u8]) -> u64 {
        self.unique += 2;
        let length = 40 + args.len() as u32;
        let mut message = Bytes::new();
        message.u32(length).u32(opcode).u64(self.unique).u64(node);
        message.u32(self.uid).u32(self.uid).u32(self.pid).u32(0).raw(args);
        self.send_raw(&message.0);
        self.unique
    }

    /// A number for a request that is not sent by [`send`](Kernel::send).
    #[allow(dead_code, reason = "each test binary uses its part")]
    pub fn next_unique(&mut self) -> u64 {
        self.unique += 2;
        self.unique
    }

    pub fn send_raw(&mut self, message: &[u8]) {
        rustix::io::write(&self.socket, message).expect("the session takes messages");
    }

    /// The next message from the session; `None` after `ms` milliseconds without one.
    pub fn receive(&mut self, ms: i64) -> Option<Message> {
        let timeout = Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
        let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
        // A fuzzer's own signals come now and then.
        let count = loop {
            match poll(&mut ready, Some(&timeout)) {
                Err(rustix::io::Errno::INTR) => {}
                done => break done.expect("poll"),
            }
        };
        if count == 0 {
            return None;
        }
        let count = rustix::io::read(&self.socket, &mut self.room).expect("a message");
        let mut fields = Fields(&self.room[..count]);
        assert_eq!(fields.u32() as usize, count, "the length of a message is its own");
        let (error, unique) = (fields.u32() as i32, fields.u64());
        Some(Message { unique, error, body: fields.0.to_vec() })
    }

    /// Sends a request and waits for its reply; there must be no other.
    pub fn ask(&mut self, opcode: u32, node: u64, args: &[u8]) -> Answer {
        let unique = self.send(opcode, node, args);
        let message = self.receive(5000).expect("every request is answered");
        assert_eq!(message.unique, unique, "{message:?}");
        match message.error {
            0 => Ok(message.body),
            error => Err(Errno(-error)),
        }
    }

    pub fn end(mut self) -> Ended {
        self.stop.request();
        let server = self.server.take().expect("not ended yet");
        server.join().expect("no panic").expect("no failure")
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.stop.request();
        if let Some(server) = self.server.take() {
            let ended = server.join();
            assert!(thread::panicking() || matches!(ended, Ok(Ok(_))), "{ended:?}");
        }
    }
}

/// Arguments of a request, built up.
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    pub fn new() -> Self {
        Bytes(Vec::new())
    }
    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_ne_bytes())
    }
    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_ne_bytes())
    }
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }
    pub fn name(&mut self, name: &str) -> &mut Self {
        self.raw(name.as_bytes()).raw(&[0])
    }
}

/// A reply's body, taken apart.
pub struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    pub fn u32(&mut self) -> u32 {
        let (head, tail) = self.0.split_first_chunk().expect("four more bytes");
        self.0 = tail;
        u32::from_ne_bytes(*head)
    }
    pub fn u64(&mut self) -> u64 {
        let (head, tail) = self.0.split_first_chunk().expect("eight more bytes");
        self.0 = tail;
        u64::from_ne_bytes(*head)
    }
    pub fn skip(&mut self, count: usize) -> &mut Self {
        self.0 = &self.0[count..];
        self
    }
}
