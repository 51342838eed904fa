//! NBD: a device for every program that speaks the Network Block Device protocol, over a UNIX
//! socket.
//!
//! Fixed newstyle negotiation, structured replies, `base:allocation`, several connections. The
//! protocol is <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>; what of it is
//! served stands in `docs/design/attach.md`. Peers are hostile: what they send is checked once, and
//! whatever does not fit ends in an error reply or in the end of their connection.
//!
//! | file | what |
//! |---|---|
//! | `protocol.rs` | numbers |
//! | `handshake.rs` | options, until client and server agree |
//! | `client.rs` | the same from the other side, for the kernel's client |
//! | `request.rs` | bytes to commands, checked once |
//! | `reply.rs` | results to bytes, the way to the client |
//! | `session.rs` | one connection after the handshake |
//! | `mod.rs` | the socket, a thread per connection |
//!
//! # Locking
//!
//! `Shared::connections` is a leaf.

pub mod client;
mod handshake;
mod protocol;
mod reply;
mod request;
mod session;

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use polylane_base::sync::{Arc, Mutex, thread};
use polylane_block::BlockDevice;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::export::{Bell, Serving};

/// Connections that are past the handshake. One more is closed.
const CONNECTIONS_MAX: usize = 64;

/// Connections in the handshake. One more ends the oldest of them, so that clients that say nothing
/// keep no other one out.
const HANDSHAKES_MAX: usize = 64;

/// All connections, those included whose threads are about to end.
const THREADS_MAX: usize = CONNECTIONS_MAX + 2 * HANDSHAKES_MAX;

/// How often it is looked whether one of them has ended.
const ROOM_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// How long a client may take over the whole handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);

/// What is served.
#[derive(Clone)]
pub struct Export {
    /// Its name, besides the empty one which every client may ask for.
    pub name: String,
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Nobody comes once the last client has said that it leaves: then it is over.
    pub ends: bool,
}

/// A server at work.
pub struct Server {
    shared: Arc<Shared>,
    acceptor: thread::JoinHandle<()>,
}

struct Shared {
    export: Export,
    stop: Bell,
    ended: Bell,
    /// Open connections by number, to be shut down, and the threads that serve them.
    connections: Mutex<HashMap<u64, Connection>>,
}

struct Connection {
    stream: UnixStream,
    phase: Phase,
    thread: thread::JoinHandle<()>,
}

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Handshake,
    /// Its requests are served.
    Transmission,
    /// It was shut down, and its thread is about to end.
    Ending,
}

/// A stream during the handshake: reads and writes fail once its time is over.
struct Limited<'a> {
    stream: &'a UnixStream,
    end: Instant,
}

impl Limited<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(io::ErrorKind::TimedOut.into()),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Limited<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl Write for Limited<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Serves `export` to whoever connects to `listener`, a UNIX stream socket.
///
/// # Errors
/// The host's: no more threads or descriptors.
pub fn serve(listener: OwnedFd, export: Export) -> io::Result<Server> {
    let listener = UnixListener::from(listener);
    listener.set_nonblocking(true)?;
    let shared = Arc::new(Shared {
        export,
        stop: Bell::new().map_err(io::Error::from)?,
        ended: Bell::new().map_err(io::Error::from)?,
        connections: Mutex::default(),
    });
    let accepting = shared.clone();
    let acceptor = thread::Builder::new()
        .name("nbd".to_string())
        .spawn(move || accepting.accept(&listener))?;
    Ok(Server { shared, acceptor })
}

impl Serving for Server {
    /// Clients that connect from now on see the new size; the protocol has no way to tell others.
    fn grown(&self) {}

    fn ended(&self) -> Option<BorrowedFd<'_>> {
        self.shared.export.ends.then(|| self.shared.ended.as_fd())
    }

    fn end(self: Box<Self>) {
        self.shared.stop.ring();
        let _panicked = self.acceptor.join();
        let connections: Vec<_> = self.shared.connections.lock().drain().collect();
        for (_, connection) in &connections {
            let _ = match connection.phase {
                Phase::Transmission => connection.stream.shutdown(Shutdown::Read),
                Phase::Handshake | Phase::Ending => connection.stream.shutdown(Shutdown::Both),
            };
        }
        for (_, connection) in connections {
            let _panicked = connection.thread.join();
        }
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &UnixListener) {
        let mut number = 0;
        loop {
            let mut fds = [
                PollFd::new(&self.stop, PollFlags::IN),
                PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) if !fds[0].revents().is_empty() => return,
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
            match listener.accept() {
                Ok((stream, _)) => {
                    if !self.wait_for_room() {
                        return;
                    }
                    number += 1;
                    // Without a thread or descriptor for it, it is closed: that is its answer.
                    let _refused = self.begin(number, stream);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Out of descriptors: they come back as connections end.
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Waits until there are fewer threads than there may be: those of connections that were ended
    /// are about to end. False: the server is to end.
    fn wait_for_room(&self) -> bool {
        while self.connections.lock().len() >= THREADS_MAX {
            let mut fds = [PollFd::new(&self.stop, PollFlags::IN)];
            match poll(&mut fds, Some(&ROOM_PAUSE)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                _ => return false,
            }
        }
        true
    }

    fn begin(self: &Arc<Self>, number: u64, stream: UnixStream) -> io::Result<()> {
        let mut connections = self.connections.lock();
        make_room(&mut connections);
        stream.set_nonblocking(false)?;
        let kept = stream.try_clone()?;
        let shared = self.clone();
        let thread = thread::Builder::new().name(format!("nbd-{number}")).spawn(move || {
            // However it ended, the connection is over, and the client sees that.
            let left = shared.converse(number, &stream).unwrap_or(false);
            let _ = stream.shutdown(Shutdown::Both);
            let mut connections = shared.connections.lock();
            connections.remove(&number);
            if left && connections.is_empty() {
                shared.ended.ring();
            }
        })?;
        let connection = Connection { stream: kept, phase: Phase::Handshake, thread };
        connections.insert(number, connection);
        Ok(())
    }

    /// Serves a client; whether it said that it leaves.
    fn converse(&self, number: u64, stream: &UnixStream) -> io::Result<bool> {
        let mut limited = Limited { stream, end: Instant::now() + HANDSHAKE_TIME_MAX };
        let Some(agreed) = handshake::negotiate(&mut limited, &self.export)? else {
            return Ok(false);
        };
        if !self.enter(number) {
            return Ok(false);
        }
        session::transmit(stream, &self.export.device, agreed, &self.stop)
    }

    /// Has a connection go on from the handshake to its requests, if there is room and it was not
    /// ended meanwhile.
    fn enter(&self, number: u64) -> bool {
        let mut connections = self.connections.lock();
        let served = count(&connections, Phase::Transmission);
        match connections.get_mut(&number) {
            Some(connection)
                if connection.phase == Phase::Handshake && served < CONNECTIONS_MAX =>
            {
                connection.phase = Phase::Transmission;
                true
            }
            _ => false,
        }
    }
}

fn count(connections: &HashMap<u64, Connection>, phase: Phase) -> usize {
    connections.values().filter(|connection| connection.phase == phase).count()
}

/// Ends the oldest handshake, if there are as many as there may be.
fn make_room(connections: &mut HashMap<u64, Connection>) {
    if count(connections, Phase::Handshake) < HANDSHAKES_MAX {
        return;
    }
    let in_handshake =
        connections.iter_mut().filter(|(_, connection)| connection.phase == Phase::Handshake);
    if let Some((_, oldest)) = in_handshake.min_by_key(|(number, _)| **number) {
        oldest.phase = Phase::Ending;
        let _ = oldest.stream.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests;
