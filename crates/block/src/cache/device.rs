//! The decorator: a device whose requests go through a store as its mode says.
//!
//! # Locking
//!
//! `rule` is held while the rule looks at one request, 30 to 60 ns; in the modes without a rule
//! nothing is shared between channels here. Nothing else is taken under it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use polylane_base::sync::{Mutex, RwLock};

use super::pdc::{Access, Admission, FlushSolo, Opening, Region, Rule};
use super::{Mode, Road, Store};
use crate::device::{
    Allocation, BlockDevice, Channel, Completion, Error, Op, Request, SECTOR_BYTES, Sector,
    Submitted,
};

/// Ranges that are called a journal, at most: every request is compared with them. A journal in
/// more pieces is left to the rule.
const TOLD_MAX: usize = 64;

/// What a cache did since it was made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Bytes written that the cache did not keep because they are a journal's: they went past it,
    /// or left it behind the flush that brought them to the medium.
    pub bypassed_bytes: u64,
    /// Of these, what left the host's page cache so.
    pub forgotten_bytes: u64,
    /// Bytes written to the cache's cold end.
    pub cold_bytes: u64,
    /// All bytes written.
    pub written_bytes: u64,
    /// Sectors that reads found in the cache and did not find, where the store can say.
    pub hits_and_misses: Option<(u64, u64)>,
    /// What is taken for a journal now.
    pub regions: Vec<Region>,
}

#[derive(Debug, Default)]
struct Counts {
    bypassed: AtomicU64,
    cold: AtomicU64,
    written: AtomicU64,
}

/// A device behind a cache. See the [module](self).
pub struct Cached {
    store: Arc<dyn Store>,
    durable: bool,
    rule: Option<Mutex<FlushSolo>>,
    /// Ranges that their owner called a journal. Changed at mount and never again, as a rule.
    told: RwLock<Vec<Region>>,
    began: Instant,
    counts: Counts,
}

impl Cached {
    /// A device on `store`; what `mode` says of the store's place is decided by the caller.
    pub fn new(store: Arc<dyn Store>, mode: Mode) -> Arc<Cached> {
        let rule = (mode == Mode::Pdc).then(|| Mutex::new(FlushSolo::default()));
        Arc::new(Cached {
            store,
            durable: mode.is_durable(),
            rule,
            told: RwLock::default(),
            began: Instant::now(),
            counts: Counts::default(),
        })
    }

    /// Begins with the ranges that were taken for journals when the volume was used last. Called
    /// before the first request; does nothing in modes without a rule.
    pub fn remember(&self, known: &[Region]) {
        if let Some(rule) = &self.rule {
            *rule.lock() = FlushSolo::with_regions(known);
        }
    }

    /// What its rule takes for journals now, for the next use of the volume.
    pub fn found(&self) -> Vec<Region> {
        self.rule.as_ref().map_or_else(Vec::new, |rule| rule.lock().regions())
    }

    /// What it did.
    pub fn totals(&self) -> Totals {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut regions = self.told.read().clone();
        let new = |region: &Region| !regions.iter().any(|told| told.overlaps(region));
        let new: Vec<Region> = self.found().into_iter().filter(new).collect();
        regions.extend(new);
        Totals {
            bypassed_bytes: load(&self.counts.bypassed),
            forgotten_bytes: self.store.forgotten_bytes(),
            cold_bytes: load(&self.counts.cold),
            written_bytes: load(&self.counts.written),
            hits_and_misses: self.store.hits_and_misses(),
            regions,
        }
    }

    /// How the store shall take a request.
    fn admit(&self, request: &Request) -> Admission {
        let Some(rule) = &self.rule else { return Admission::Normal };
        let offset = request.sector.byte().unwrap_or(u64::MAX);
        let range = Region::at(offset, request.count * SECTOR_BYTES as u64);
        let access = match request.op {
            Op::Read => Access::Read,
            Op::Write { fua } => {
                let first = request.data.first().map_or(&[][..], |buffer| &buffer[..]);
                Access::Write { fua: fua || self.durable, opening: Opening::of(first) }
            }
            Op::Discard | Op::WriteZeroes { .. } => Access::Discard,
            Op::Flush => Access::Flush,
        };
        let now_us = self.began.elapsed().as_micros() as u64;
        let found = rule.lock().observe(now_us, access, range);
        let told = self.told.read().iter().any(|region| {
            region.first <= range.first && range.end <= region.end && request.op != Op::Flush
        });
        if told { Admission::Bypass } else { found }
    }

    fn count(&self, request: &Request, admission: Admission) {
        if !matches!(request.op, Op::Write { .. }) {
            return;
        }
        let bytes = request.count * SECTOR_BYTES as u64;
        self.counts.written.fetch_add(bytes, Ordering::Relaxed);
        match admission {
            Admission::Bypass => self.counts.bypassed.fetch_add(bytes, Ordering::Relaxed),
            Admission::Cold => self.counts.cold.fetch_add(bytes, Ordering::Relaxed),
            Admission::Normal => 0,
        };
    }
}

impl BlockDevice for Cached {
    fn sector_count(&self) -> u64 {
        self.store.sector_count()
    }

    fn read_only(&self) -> bool {
        self.store.read_only()
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        Box::new(CachedChannel { road: self.store.clone().road(false), device: self })
    }

    fn waiting_channel(self: Arc<Self>) -> Box<dyn Channel> {
        Box::new(CachedChannel { road: self.store.clone().road(true), device: self })
    }

    fn allocation(&self, sector: Sector, count: u64) -> (Allocation, u64) {
        self.store.allocation(sector, count)
    }

    fn reserve(&self, sector: Sector, count: u64) -> Result<(), Error> {
        self.store.reserve(sector, count)
    }

    fn keeps_writes(&self) -> bool {
        self.store.keeps_writes()
    }

    fn mark_journal(&self, sector: Sector, count: u64) {
        let bytes = count.saturating_mul(SECTOR_BYTES as u64);
        let region = Region::at(sector.byte().unwrap_or(u64::MAX), bytes);
        let mut told = self.told.write();
        if self.rule.is_some() && told.len() < TOLD_MAX {
            told.push(region);
        }
    }
}

struct CachedChannel {
    road: Box<dyn Road>,
    device: Arc<Cached>,
}

impl Channel for CachedChannel {
    fn submit(&mut self, mut request: Request) -> Submitted {
        if let Err(error) = request.validate(self.device.sector_count()) {
            return Submitted::Done(request.complete(Err(error)));
        }
        if !self.road.has_room() {
            return Submitted::Busy(request);
        }
        match &mut request.op {
            Op::Write { fua } | Op::WriteZeroes { fua, .. } => *fua |= self.device.durable,
            Op::Read | Op::Discard | Op::Flush => {}
        }
        let admission = self.device.admit(&request);
        self.device.count(&request, admission);
        self.road.submit(request, admission)
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.road.poll(done);
    }

    fn park(&mut self) {
        self.road.park();
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.road.event()
    }

    fn watch(&mut self, inputs: &[BorrowedFd<'_>]) -> bool {
        self.road.watch(inputs)
    }

    fn rest(&mut self) -> bool {
        self.road.rest()
    }
}
