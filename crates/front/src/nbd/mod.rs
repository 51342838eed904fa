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
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use polylane_base::sync::{Arc, Mutex, thread};
use polylane_block::BlockDevice;
use rustix::event::{PollFd, PollFlags, poll};

use crate::export::{Bell, Serving};

/// Connections at a time. One more is closed at once.
const CONNECTIONS_MAX: usize = 64;

/// How long a client may take over one step of the handshake.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(60);

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
    /// `None` until it runs.
    thread: Option<thread::JoinHandle<()>>,
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
        for (_, connection) in connections {
            let _ = connection.stream.shutdown(Shutdown::Read);
            // A client that takes no replies would keep its thread for ever.
            let _ = connection.stream.set_write_timeout(Some(Duration::from_secs(5)));
            if let Some(thread) = connection.thread {
                let _panicked = thread.join();
            }
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

    fn begin(self: &Arc<Self>, number: u64, stream: UnixStream) -> io::Result<()> {
        let mut connections = self.connections.lock();
        if connections.len() >= CONNECTIONS_MAX {
            return Ok(());
        }
        stream.set_nonblocking(false)?;
        let kept = stream.try_clone()?;
        let shared = self.clone();
        let thread = thread::Builder::new().name(format!("nbd-{number}")).spawn(move || {
            // However it ended, the connection is over, and the client sees that.
            let left = shared.converse(&stream).unwrap_or(false);
            let _ = stream.shutdown(Shutdown::Both);
            let mut connections = shared.connections.lock();
            connections.remove(&number);
            if left && connections.is_empty() {
                shared.ended.ring();
            }
        })?;
        connections.insert(number, Connection { stream: kept, thread: Some(thread) });
        Ok(())
    }

    /// Serves a client; whether it said that it leaves.
    fn converse(&self, stream: &UnixStream) -> io::Result<bool> {
        stream.set_read_timeout(Some(HANDSHAKE_TIME_MAX))?;
        stream.set_write_timeout(Some(HANDSHAKE_TIME_MAX))?;
        let Some(agreed) = handshake::negotiate(&mut &*stream, &self.export)? else {
            return Ok(false);
        };
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        session::transmit(stream, &self.export.device, agreed, &self.stop)
    }
}

#[cfg(test)]
mod tests;
