//! Memory of the pool's own as a store: 4 KiB blocks, S3-FIFO, a bounded number of them dirty.
//!
//! ```text
//! write ─► room? ─► block, dirty ─► answered          flush ─► dirty blocks of before ─► medium
//!          no room, or durable ─► medium ─► block               ─► flush of the medium ─► answered
//! journal's write ─► small: as any write, in a block that goes next; large or durable ─► medium
//! read  ─► blocks that are there ─► answered; the rest from the medium, and kept
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | `state` | which sectors of which blocks are there, dirty, on their way; all under one lock |
//! | `queues` | S3-FIFO: which block goes next |
//! | `road` | one thread's requests, and what became of their parts |
//! | `sweep` | the thread that writes dirty blocks back before a flush has to |
//!
//! # What is kept
//!
//! A block knows for each of its eight sectors whether it is there and whether it is dirty, so no
//! write has to read first. Memory is what was asked for: when every block is dirty or in use, or
//! half of them are dirty, writes go to the medium themselves.
//!
//! # Failures
//!
//! A block stays dirty until its write has succeeded, and is made dirty again when a flush fails
//! after it: what was acknowledged can be read as long as the service lives. The medium has stopped
//! by then ([`crate::device`]).
//!
//! # Locking
//!
//! `state` is held to look blocks up and to copy them, never for I/O. One lock per volume: a tenant
//! meets only itself.

mod queues;
mod road;
mod state;
mod sweep;

use std::sync::Arc;

use polylane_base::sync::Mutex;

use super::{Road, Store};
use crate::device::{Allocation, BlockDevice, Error, Sector};
use state::State;

/// Memory of a cache that was given no limit.
pub const BYTES_DEFAULT: u64 = 64 << 20;

/// The least that a cache makes sense with.
pub const BYTES_MIN: u64 = 1 << 20;

/// The store. See the [module](self).
pub struct OwnStore {
    inner: Arc<dyn BlockDevice>,
    state: Arc<Mutex<State>>,
    sweeper: sweep::Sweeper,
}

impl OwnStore {
    /// A store of at most `bytes` bytes of data, at least [`BYTES_MIN`], in front of `inner`.
    pub fn new(inner: Arc<dyn BlockDevice>, bytes: u64) -> Arc<OwnStore> {
        let state = Arc::new(Mutex::new(State::new(bytes.max(BYTES_MIN))));
        let sweeper = sweep::Sweeper::start(inner.clone(), state.clone());
        Arc::new(OwnStore { inner, state, sweeper })
    }
}

impl Store for OwnStore {
    fn sector_count(&self) -> u64 {
        self.inner.sector_count()
    }

    fn read_only(&self) -> bool {
        self.inner.read_only()
    }

    fn allocation(&self, sector: Sector, count: u64) -> (Allocation, u64) {
        // First the cache: what leaves it meanwhile is on the medium before. What is here and was
        // given up, or only read, tells nothing of the medium.
        let unwritten = self.state.lock().first_unwritten(&(sector.0..sector.0 + count));
        match unwritten {
            Some(run) if run.start == sector.0 => (Allocation::Data, run.end - run.start),
            Some(run) => self.inner.allocation(sector, run.start - sector.0),
            None => self.inner.allocation(sector, count),
        }
    }

    fn reserve(&self, sector: Sector, count: u64) -> Result<(), Error> {
        self.inner.reserve(sector, count)
    }

    fn keeps_writes(&self) -> bool {
        true
    }

    fn road(self: Arc<Self>, waits: bool) -> Box<dyn Road> {
        Box::new(road::OwnRoad::new(self, waits))
    }

    fn hits_and_misses(&self) -> Option<(u64, u64)> {
        Some(self.state.lock().hits_and_misses())
    }
}

impl Drop for OwnStore {
    /// What is dirty goes to the medium: a service that ends in good order loses nothing.
    fn drop(&mut self) {
        self.sweeper.finish();
    }
}
