//! ublk: a device for the kernel's block driver of that name, a thread per queue.
//!
//! Whoever makes the device starts it; here its requests are served, by a process without
//! privileges. Data is copied between the requests' pages and buffers of ours, so that a cache may
//! keep it and a base may be under it.
//!
//! | request | on the device |
//! |---|---|
//! | READ, WRITE (FUA) | the same |
//! | FLUSH | flush |
//! | DISCARD | discard |
//! | WRITE_ZEROES (FUA, NOUNMAP) | write-zeroes; unmap unless NOUNMAP |
//!
//! A session can begin in the middle of a device's life: what a killed predecessor had taken and
//! not answered comes again.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | threads |
//! | `session.rs` | one queue: take, start, answer |

mod session;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc;

use polylane_base::sync::{Arc, thread};
use polylane_block::BlockDevice;
use polylane_sys::ublk::{Geometry, Queue};

use crate::export::{Bell, RingAtEnd, Serving};

/// Requests of a queue at a time.
const DEPTH: u16 = 64;

/// Largest transfer: with all requests that large, a queue takes 32 MiB.
const TRANSFER_BYTES_MAX: u32 = 512 << 10;

/// How a device with so many queues is served.
pub fn geometry(queues: u16) -> Geometry {
    Geometry { queues, depth: DEPTH, transfer_bytes: TRANSFER_BYTES_MAX }
}

/// A device at work.
pub struct Server {
    stop: Bell,
    ended: Bell,
    threads: Vec<thread::JoinHandle<()>>,
}

/// Serves the device behind `fd`, `/dev/ublkcN`, which was made with `geometry`. On return the
/// driver has all commands of all queues: the device can be started.
///
/// # Errors
/// The host's: no more threads or descriptors; the driver's.
pub fn serve(fd: OwnedFd, device: &Arc<dyn BlockDevice>, geometry: Geometry) -> io::Result<Server> {
    let (stop, ended) = (Bell::new()?, Bell::new()?);
    let mut server = Server { stop, ended, threads: Vec::new() };
    // All are made before the first begins: the driver sees some queues without the others for as
    // short a time as can be.
    let queues: io::Result<Vec<_>> =
        (0..geometry.queues).map(|number| Ok(Queue::new(&fd, number, geometry)?)).collect();
    let (begun, answers) = mpsc::channel();
    for (number, queue) in queues?.into_iter().enumerate() {
        let mut session = session::Session::new(queue, device);
        let (stop, ended, begun) = (server.stop.clone(), server.ended.clone(), begun.clone());
        let thread = thread::Builder::new().name(format!("ublk-{number}")).spawn(move || {
            // However it ends: a queue that nobody serves would keep requests for ever.
            let _end = RingAtEnd(ended);
            let result = session.begin();
            let begins = result.is_ok();
            let _ = begun.send(result);
            drop(begun);
            if begins {
                session.run(&stop);
            }
        })?;
        server.threads.push(thread);
    }
    drop(begun);
    // Ends with the last thread's answer, or its panic.
    let refused = answers.iter().find_map(|result| result.err());
    match refused {
        None => Ok(server),
        Some(errno) => {
            Box::new(server).end();
            Err(errno.into())
        }
    }
}

impl Serving for Server {
    fn ended(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ended.as_fd())
    }

    fn end(self: Box<Self>) {
        self.stop.ring();
        for thread in self.threads {
            let _panicked = thread.join();
        }
    }
}
