//! `limits`: a user who takes all that a user may have of a service, and wants more.
//!
//! Sessions, open files, locks, silent connections and connections that show something until each
//! is refused, then requests from every mailbox of every session, and writes whose bytes do not
//! come. It speaks the wire itself.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use polylane_ipc::channel::client::Trusting;
use polylane_ipc::handshake::{Hello, WELCOME_BYTES_MAX, Welcome};
use polylane_ipc::message::{Message, NO_SLOT, Op, Reply, Status};
use polylane_ipc::{ClientChannel, MailboxIndex};
use polylane_sys::scm;

use super::Length;
use crate::histogram::Histogram;

/// Its name among the loads, of which it is none: it reports nothing.
pub(crate) const LOAD: &str = "limits";

/// More than a user may have of each.
const SESSIONS: usize = 300;
const FILES: usize = 70_000;
const LOCKS: u64 = 17_000;
const SILENT: usize = 80;

/// A session without the library.
pub(crate) struct Client {
    channel: ClientChannel,
    mailbox: MailboxIndex,
    _socket: OwnedFd,
}

impl Client {
    /// Connects to the service whose lane is at `at`.
    ///
    /// # Errors
    /// It lets no more in.
    pub(crate) fn connect(socket: &Path, at: &Path) -> Result<Client> {
        let socket = scm::connect(socket)?;
        scm::send(&socket, &hello(at), &[])?;
        let mut bytes = vec![0; WELCOME_BYTES_MAX];
        let mut got = scm::receive(&socket, &mut bytes)?;
        let welcome = Welcome::from_bytes(&bytes[..got.count])?;
        ensure!(welcome.status == 0 && !got.fds.is_empty(), "refused: {}", welcome.status);
        let memory = got.fds.remove(0);
        let channel = ClientChannel::attach(memory, got.fds, welcome.geometry, welcome.plan)?;
        let mailbox = channel.claim().context("a mailbox")?;
        Ok(Client { channel, mailbox, _socket: socket })
    }

    fn call(&self, message: &Message) -> Result<Reply> {
        let reply = self.channel.call(self.mailbox, message, &Trusting);
        reply.map_err(|error| anyhow!("the service is gone: {error:?}"))
    }

    /// How long empty requests take, one after the other.
    ///
    /// # Errors
    /// The service is gone.
    pub(crate) fn pings(&self, time: Duration) -> Result<Histogram> {
        let (mut histogram, begin) = (Histogram::default(), Instant::now());
        let mut before = begin;
        while before - begin < time {
            self.call(&Message::new(Op::Ping))?;
            let now = Instant::now();
            histogram.record((now - before).as_nanos() as u64, 1);
            before = now;
        }
        Ok(histogram)
    }

    /// Opens the file `f`; `None`: it may have no more.
    fn open(&self) -> Result<Option<u64>> {
        let mut message = Message::new(Op::Open);
        message.flags = libc::O_RDWR as u32;
        message.path_len = 1;
        message.arg[0] = NO_SLOT;
        self.channel.settle(self.mailbox, &Trusting).map_err(|_| anyhow!("the service is gone"))?;
        self.channel.payload_put(self.mailbox, 0, b"f");
        let reply = self.call(&message)?;
        Ok(matches!(reply.status, Status::Done(_)).then_some(reply.handle))
    }

    /// Locks a byte of an open file; whether that may be.
    fn lock(&self, handle: u64, at: u64) -> Result<bool> {
        let mut message = Message { handle, offset: 2 * at, length: 1, ..Message::new(Op::Lock) };
        message.mode = libc::F_WRLCK as u32;
        Ok(matches!(self.call(&message)?.status, Status::Done(_)))
    }
}

fn hello(at: &Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    Hello { queue: None, key: 1 }.at(at.as_os_str().as_bytes())
}

/// The user with everything, in the lane at `at`, until the length is over.
///
/// # Errors
/// Not even one session can be had.
pub(super) fn work(at: &Path, length: Length) -> Result<()> {
    let Length::Seconds(seconds) = length else { bail!("give seconds") };
    let socket = PathBuf::from(std::env::var_os("LIMITS_SOCKET").context("LIMITS_SOCKET")?);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let files = rustix::process::Resource::Nofile;
    let limit = rustix::process::getrlimit(files);
    let most = rustix::process::Rlimit { current: limit.maximum, ..limit };
    let _ = rustix::process::setrlimit(files, most);
    let first = Client::connect(&socket, at)?;
    let mut handles = Vec::new();
    while handles.len() < FILES
        && let Some(handle) = first.open()?
    {
        handles.push(handle);
    }
    let file = *handles.first().context("no file can be opened")?;
    let mut locks = 0;
    while locks < LOCKS && first.lock(file, locks)? {
        locks += 1;
    }
    let mut sessions = vec![first];
    while sessions.len() < SESSIONS
        && let Ok(more) = Client::connect(&socket, at)
    {
        sessions.push(more);
    }
    println!("{} sessions, {} open files, {locks} locks", sessions.len(), handles.len());
    std::io::stdout().flush()?;
    let (hello, root) = (hello(at), std::fs::File::open(at)?);
    let mut silent = Vec::new();
    let boxes: Vec<Vec<MailboxIndex>> = sessions.iter().map(all_boxes).collect();
    let mut turn = 0_u64;
    while Instant::now() < end {
        for (session, boxes) in sessions.iter().zip(&boxes) {
            for mailbox in boxes.iter().filter(|mailbox| session.channel.is_free(**mailbox)) {
                turn += 1;
                let _ = session.channel.post(*mailbox, &request(turn, file), &Trusting);
            }
        }
        // In between, what only connects, and what shows something.
        silent.truncate(SILENT);
        if let Ok(connection) = scm::connect_now(&socket) {
            if turn.is_multiple_of(2) {
                let _ = scm::send(&connection, &hello, &[root.as_fd()]);
            }
            silent.insert(0, connection);
        }
    }
    Ok(())
}

fn all_boxes(session: &Client) -> Vec<MailboxIndex> {
    std::iter::from_fn(|| session.channel.claim()).collect()
}

/// Nothing, a lock beyond the limit, or a write whose bytes do not come.
fn request(turn: u64, handle: u64) -> Message {
    match turn % 4 {
        0 => Message { handle, length: 256 << 10, ..Message::new(Op::Write) },
        1 => {
            let mode = libc::F_WRLCK as u32;
            Message { handle, offset: 2 * turn, length: 1, mode, ..Message::new(Op::Lock) }
        }
        _ => Message::new(Op::Ping),
    }
}
