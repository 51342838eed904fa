//! What a volume's cache keeps, and where.
//!
//! ```text
//! request ─► mode: durable at once?  rule: a journal's? ─► store ─► medium
//! ```
//!
//! | module | what it decides |
//! |---|---|
//! | [`mode`] | the modes by their names: which store, whether writes wait for the medium |
//! | [`device`] | the decorator: asks the rule, makes writes durable, counts |
//! | [`host`] | a store: the host's page cache, journals past it by O_DIRECT, or dropped from it |
//! | [`own`] | a store: memory of the pool's own, S3-FIFO, a bounded number of dirty blocks |
//! | [`pdc`] | which writes are a journal's, so that they bypass the cache (pollution defence) |
//!
//! Both stores stand behind the [`Store`] trait and keep the contract of [`crate::device`]: a flush
//! and a durable write mean the medium, whatever is cached.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::device::{Allocation, Completion, Error, Request, Sector, Submitted};

mod bell;
pub mod device;
pub mod host;
pub mod mode;
pub mod own;
pub mod pdc;

pub use device::{Cached, Totals};
pub use mode::{Mode, StoreKind};
use pdc::Admission;

/// Where a cache keeps what it keeps. Shared by all threads.
pub trait Store: Send + Sync {
    /// Sectors of the device below.
    fn sector_count(&self) -> u64;

    /// Whether the device below refuses changes.
    fn read_only(&self) -> bool;

    /// As [`crate::device::BlockDevice::allocation`]; cached writes count as data.
    fn allocation(&self, sector: Sector, count: u64) -> (Allocation, u64);

    /// As [`crate::device::BlockDevice::reserve`].
    ///
    /// # Errors
    /// The device's below.
    fn reserve(&self, sector: Sector, count: u64) -> Result<(), Error>;

    /// As [`crate::device::BlockDevice::keeps_writes`].
    fn keeps_writes(&self) -> bool {
        false
    }

    /// One thread's road to it; `waits`: for one request at a time, whose sender waits for it.
    fn road(self: Arc<Self>, waits: bool) -> Box<dyn Road>;

    /// Sectors that reads found in the cache and did not find. `None`: this store cannot say.
    fn hits_and_misses(&self) -> Option<(u64, u64)>;

    /// Bytes of journals that went through the cache beside data, and were dropped behind the
    /// flush.
    fn forgotten_bytes(&self) -> u64 {
        0
    }
}

/// One thread's road to a store: a [`crate::device::Channel`] that is told how to take each write.
pub trait Road: Send {
    /// Whether [`submit`](Road::submit) takes one more.
    fn has_room(&self) -> bool;

    /// Starts a request that was found valid, when there is room: never answers `Busy`. What
    /// [`Admission`] says of a read is whether its data shall be kept.
    fn submit(&mut self, request: Request, admission: Admission) -> Submitted;

    /// Moves finished requests to `done`.
    fn poll(&mut self, done: &mut Vec<Completion>);

    /// Sleeps until `poll` will yield something, or nothing is in flight.
    fn park(&mut self);

    /// As [`crate::device::Channel::event`].
    fn event(&self) -> Option<BorrowedFd<'_>>;

    /// As [`crate::device::Channel::watch`].
    fn watch(&mut self, _inputs: &[BorrowedFd<'_>]) -> bool {
        false
    }

    /// As [`crate::device::Channel::rest`].
    fn rest(&mut self) -> bool {
        false
    }
}
