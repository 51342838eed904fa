//! What the front ends of the block door share: a device goes in, a protocol comes out.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | what every such front end is to its owner |
//! | `file/` | a device as one file of a FUSE mount |
//! | `work.rs` | the requests that one thread has under way, and its buffers |

pub mod file;
pub(crate) mod work;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use polylane_base::Result;
use polylane_base::sync::Arc;
use polylane_base::sync::atomic::{AtomicBool, Ordering};
use polylane_sys::event;

/// A front end at work, on threads of its own.
pub trait Serving: Send {
    /// Tells it that its device has grown.
    fn grown(&self) {}

    /// Readable once it has ended by itself, because its other side is gone for good. `None`: that
    /// does not happen.
    fn ended(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Ends it: what was taken in is answered, no thread of it lives on return. Nothing is flushed.
    fn end(self: Box<Self>);
}

/// An event that stays: readable from the first [`ring`](Bell::ring) on. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Bell(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    fd: OwnedFd,
    rung: AtomicBool,
}

impl Bell {
    /// One that was not rung yet.
    ///
    /// # Errors
    /// The host's: no more descriptors.
    pub fn new() -> Result<Bell> {
        Ok(Bell(Arc::new(Inner { fd: event::eventfd()?, rung: AtomicBool::new(false) })))
    }

    /// Rings it, for good.
    pub fn ring(&self) {
        self.0.rung.store(true, Ordering::Release);
        event::notify(&self.0.fd);
    }

    /// Whether it was rung, without asking the kernel.
    pub fn is_rung(&self) -> bool {
        self.0.rung.load(Ordering::Acquire)
    }
}

/// Rings when it is dropped.
pub(crate) struct RingAtEnd(pub(crate) Bell);

impl Drop for RingAtEnd {
    fn drop(&mut self) {
        self.0.ring();
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}
