//! vhost-user-blk: a block device for a virtual machine, on memory that the machine shares.
//!
//! ```text
//! session (one thread)   messages on the socket: features, memory, rings
//!   └ ring (one thread each)   avail ─► chain ─► request ─► Work ─► device
//!                              used ◄─ status ◄─ completion ◄─┘
//! ```
//!
//! | file | what |
//! |---|---|
//! | `session.rs` | accepts a frontend, reads messages, ends |
//! | `handler.rs`, `locked.rs` | what the messages do |
//! | `config.rs` | features and the configuration space |
//! | `memory.rs` | the guest's memory, and the frontend's addresses in it |
//! | `ring.rs` | one queue's thread |
//! | `chain.rs` | a descriptor chain, walked and checked |
//! | `request.rs` | from a chain to a job, from a completion to a status |
//! | `inflight.rs` | requests under way, in memory that outlives this process |
//! | [`driver`] | the other side, for benches and tests |
//!
//! # Trust
//!
//! Guest and frontend are hostile. Every address goes through `vm-memory`, which checks it against
//! the mapped regions; a descriptor is read once; a chain has at most as many descriptors as its
//! table; requests are bounded in bytes, and so are those under way per queue. What cannot be
//! answered stops its ring, never the process. One thing is beyond a process's means: a frontend
//! that truncates the memory it shared ends its own engine (SIGBUS).
//!
//! # Locking
//!
//! `handler` belongs to the session's thread but for [`Server::end`], which takes nothing. A ring's
//! descriptor for interrupts has a lock of its own, held for a write to it.

mod chain;
mod config;
pub mod driver;
mod handler;
mod inflight;
mod locked;
mod memory;
mod request;
mod ring;
mod session;

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use polylane_base::sync::{Arc, Mutex, thread};
use polylane_block::BlockDevice;
use polylane_sys::event;

use crate::export::{Bell, Serving};

/// Queues that a frontend may use, at most.
pub const QUEUES_MAX: u16 = 16;

/// What is served.
#[derive(Clone)]
pub struct Export {
    /// The device's serial number; 20 bytes of it are told.
    pub serial: String,
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Queues that are offered, 1 to [`QUEUES_MAX`].
    pub queues: u16,
}

/// What the session's thread and the owner share.
struct Shared {
    export: Export,
    stop: Bell,
    /// The device has grown: an eventfd.
    grown: OwnedFd,
    /// The socket of the frontend that is connected, to be shut down at the end.
    connected: Mutex<Option<UnixStream>>,
}

/// The front end at work. Dropping it leaves the thread alone; [`Serving::end`] ends it.
pub struct Server {
    shared: Arc<Shared>,
    thread: thread::JoinHandle<()>,
}

/// Serves one frontend after the other at a listening UNIX stream socket.
///
/// # Errors
/// The host has no more descriptors or threads.
pub fn serve(listener: OwnedFd, export: Export) -> io::Result<Server> {
    let listener = UnixListener::from(listener);
    listener.set_nonblocking(true)?;
    let shared = Arc::new(Shared {
        export,
        stop: Bell::new()?,
        grown: event::eventfd()?,
        connected: Mutex::default(),
    });
    let thread = {
        let shared = shared.clone();
        thread::Builder::new()
            .name("vhost-user".into())
            .spawn(move || session::run(&listener, &shared))?
    };
    Ok(Server { shared, thread })
}

impl Serving for Server {
    fn grown(&self) {
        event::notify(self.shared.grown.as_fd());
    }

    fn end(self: Box<Self>) {
        self.shared.stop.ring();
        if let Some(socket) = &*self.shared.connected.lock() {
            // The thread may be in the middle of a message that never ends.
            let _ = socket.shutdown(Shutdown::Both);
        }
        let _ = self.thread.join();
    }
}
