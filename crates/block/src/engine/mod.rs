//! The engine: a volume as a device. One function decides what becomes of a request.
//!
//! ```text
//!  submit ─► qos: its turn?    ─ no ──► held until then
//!         ─► map: where is it? ─ empty ► zeros, or nothing to discard: answered at once
//!                              ─ being made ──► held until it is
//!         ─► medium
//!  a stream of small writes ─► space ahead of it is asked for
//! ```
//!
//! A cache is a device on top of the engine; a copy-on-write overlay too.
//!
//! # Invariants
//!
//! - A request is answered once, by [`Channel::submit`] or [`Channel::poll`].
//! - A change enters its chunks of the map before it goes to the medium and leaves them after it
//!   came back, however that ended.
//! - The hot path takes no lock and allocates nothing: what is held and in flight lives in slots.
//!
//! # Locking
//!
//! None of its own; see `map`.

mod ahead;
mod channel;
mod events;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::device::{Allocation, BlockDevice, Channel, Error, SECTOR_BYTES, Sector};
use crate::map::{Lane, Map, Unit, Work};
use crate::medium::Medium;
use crate::qos::Admission;

/// How a volume is used.
#[derive(Clone)]
pub struct Options {
    /// Unit of what is known and made, a power of two.
    pub chunk_bytes: u64,
    /// How far ahead of a stream its space is made; 0: never.
    pub ahead_bytes: u64,
    /// Make it however long that takes; else where it takes far less than the stream took to come
    /// along without.
    pub ahead_always: bool,
    /// What one look at the host's map takes in.
    pub prefetch_bytes: u64,
    /// Host space that is left alone: below it nothing is made ahead.
    pub reserve_bytes: u64,
    /// Requests wait until it is known where they lie, as they must where the medium is not a file.
    pub must_translate: bool,
    /// Whose turn it is.
    pub admission: Option<Arc<dyn Admission>>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            chunk_bytes: 1 << 20,
            ahead_bytes: 16 << 20,
            ahead_always: false,
            prefetch_bytes: 64 << 20,
            reserve_bytes: 256 << 20,
            must_translate: false,
            admission: None,
        }
    }
}

/// What an engine did beside passing requests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Looks at the host's map.
    pub translations: u64,
    /// Chunks that were made ahead.
    pub made_ahead: u64,
}

/// A volume. See the [module](self).
pub struct Engine {
    lane: Arc<Lane>,
    /// Works on its map; `None`: nothing is ever known, every request goes to the medium.
    unit: Option<Arc<Unit>>,
    ahead_sectors: u64,
    ahead_always: bool,
    must_translate: bool,
    admission: Option<Arc<dyn Admission>>,
}

impl Engine {
    /// A volume on `medium`, whose map `unit` works on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for chunks that are no power of two of 4 KiB or more.
    pub fn open(
        medium: Arc<dyn Medium>,
        unit: Option<Arc<Unit>>,
        options: &Options,
    ) -> Result<Arc<Engine>, Error> {
        let chunk_sectors = options.chunk_bytes / SECTOR_BYTES as u64;
        if !options.chunk_bytes.is_power_of_two() || options.chunk_bytes < 4096 {
            return Err(Error::OutOfRange);
        }
        let ahead_sectors = match medium.read_only() {
            true => 0,
            false => options.ahead_bytes / SECTOR_BYTES as u64,
        };
        let map = Map::new(medium.sector_count(), chunk_sectors.trailing_zeros());
        let prefetch = (options.prefetch_bytes / options.chunk_bytes).max(1);
        let lane = Arc::new(Lane::new(map, medium, prefetch, options.reserve_bytes));
        if let Some(unit) = unit.as_ref().filter(|_| !options.must_translate) {
            lane.ask(unit, Work::Survey, 0, false);
        }
        let (must_translate, admission) = (options.must_translate, options.admission.clone());
        let ahead_always = options.ahead_always;
        Ok(Arc::new(Engine { lane, unit, ahead_sectors, ahead_always, must_translate, admission }))
    }

    /// What it did so far.
    pub fn totals(&self) -> Totals {
        let counts = &self.lane.counts;
        Totals {
            translations: counts.translations.load(Ordering::Relaxed),
            made_ahead: counts.allocations.load(Ordering::Relaxed),
        }
    }

    /// Forgets what is known about where the volume lies; to be called when it was moved or cut by
    /// somebody else.
    pub fn forget(&self) {
        self.lane.map.forget();
    }

    /// Ends all work on the map until [`resume`](Engine::resume), and gives space back that was
    /// made ahead and not written to: the file may be written to without this engine from now on.
    /// No request is in flight.
    pub fn pause(&self) {
        // What fails stays allocated, as `info` will say.
        let _ = self.lane.close();
    }

    /// Goes on after [`pause`](Engine::pause); the file has not changed meanwhile.
    pub fn resume(&self) {
        self.lane.open();
        if let Some(unit) = self.unit.as_ref().filter(|_| !self.must_translate) {
            self.lane.ask(unit, Work::Survey, 0, false);
        }
    }

    /// Asks for the space of these sectors, which a stream is about to reach.
    #[cold]
    fn make(&self, sectors: &Range<u64>) {
        let end = sectors.end.min(self.sector_count());
        let Some(unit) = self.unit.as_ref().filter(|_| sectors.start < end) else { return };
        for chunk in self.lane.map.chunks(&(sectors.start..end)) {
            self.lane.ask(unit, Work::Allocate, chunk, true);
        }
    }
}

impl Drop for Engine {
    /// Space that was made ahead in vain goes back; what fails stays allocated, as `info` will say.
    fn drop(&mut self) {
        let _ = self.lane.close();
    }
}

impl BlockDevice for Engine {
    fn sector_count(&self) -> u64 {
        self.lane.medium.sector_count().min(self.lane.map.sectors_max())
    }

    fn read_only(&self) -> bool {
        self.lane.medium.read_only()
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        let below = self.lane.medium.clone().channel();
        Box::new(channel::EngineChannel::new(self, below))
    }

    fn waiting_channel(self: Arc<Self>) -> Box<dyn Channel> {
        let below = self.lane.medium.clone().waiting_channel();
        Box::new(channel::EngineChannel::new(self, below))
    }

    fn allocation(&self, sector: Sector, count: u64) -> (Allocation, u64) {
        self.lane.medium.allocation(sector, count)
    }

    /// A change of the map like a write: what is reserved is no space that was made ahead, which
    /// goes back unused. Where a translation thread is at work only a write waits for it.
    fn reserve(&self, sector: Sector, count: u64) -> Result<(), Error> {
        let map = &self.lane.map;
        let end = sector.0.checked_add(count).filter(|end| *end <= map.sectors_max());
        let Some(end) = end.filter(|end| *end > sector.0) else { return Err(Error::OutOfRange) };
        let chunks = map.chunks(&(sector.0..end));
        if !map.enter(chunks.clone(), true) {
            return Err(Error::Unsupported);
        }
        let reserved = self.lane.medium.reserve(sector, count);
        map.leave(chunks);
        reserved
    }

    fn forget(&self, sector: Sector, count: u64) {
        self.lane.medium.forget(sector, count);
    }
}
