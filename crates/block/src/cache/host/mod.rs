//! The host's page cache as a store: a descriptor without O_DIRECT for what is cached, one with it
//! for what goes past.
//!
//! A journal's write goes past the cache when nothing else waits for a flush, or when it is durable
//! by itself; beside dirty data it goes with that, and is dropped from the cache behind the flush
//! (`ways`).
//!
//! The kernel keeps the two coherent: before a direct write it writes cached pages of the range
//! back, after it drops them, so that a read returns the newest data. What it does not order are
//! a cached and a direct write *in flight together* to parts of one folio: the cached one brings
//! the rest in as it was before the direct write, and the kernel cannot drop what is dirty.
//!
//! # Invariants
//!
//! - No cached change and no direct write that touch a common folio are in flight together: a
//!   change claims its folios for its way, and waits for those who have them for the other way.
//! - Flushes go to the cached device alone: fdatasync covers both ways.
//! - A journal's write that went through the cache is forgotten behind a flush that began after
//!   it. That is a hint: the kernel keeps what is dirty, so nothing can be lost by it.
//!
//! # Locking
//!
//! `shared` is held for a look at the changes in flight. Without a rule nothing goes past the cache
//! and no claims are made.

mod ways;

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use polylane_base::sync::Mutex;

use super::bell::{Bell, nap, ring_all};
use super::pdc::{Admission, Region};
use super::{Road, Store};
use crate::device::{
    Allocation, BlockDevice, Channel, Completion, Error, Op, Request, SECTOR_BYTES, Sector,
    Submitted,
};
use ways::{Change, Claim, Flush, Way, Ways};

/// Requests under way per road.
const DEPTH: usize = 64;

#[derive(Default)]
struct Shared {
    ways: Ways,
    /// Bells of those who wait for folios.
    waiting: Vec<Arc<OwnedFd>>,
}

/// The store. See the [module](self).
pub struct HostStore {
    cached: Arc<dyn BlockDevice>,
    direct: Arc<dyn BlockDevice>,
    shared: Option<Mutex<Shared>>,
    forgotten: AtomicU64,
}

impl HostStore {
    /// A store on a file that `cached` reaches through the page cache and `direct` past it.
    /// `bypass`: whether anything will go past it.
    pub fn new(
        cached: Arc<dyn BlockDevice>,
        direct: Arc<dyn BlockDevice>,
        bypass: bool,
    ) -> Arc<HostStore> {
        let shared = bypass.then(Mutex::default);
        Arc::new(HostStore { cached, direct, shared, forgotten: AtomicU64::new(0) })
    }

    /// Begins a change: its way, and its folios on it. If somebody has one of them for the other
    /// way, rings `bell` when that changes.
    fn take(shared: &Mutex<Shared>, change: Change, bell: &Bell) -> Option<Claim> {
        let mut shared = shared.lock();
        let claim = shared.ways.take(change);
        if claim.is_none() {
            bell.join(&mut shared.waiting);
        }
        claim
    }

    fn release(&self, claim: Claim) {
        let Some(shared) = &self.shared else { return };
        let mut shared = shared.lock();
        shared.ways.release(claim);
        ring_all(&mut shared.waiting);
    }

    fn end_flush(&self, flush: Flush, done: bool) {
        let Some(shared) = &self.shared else { return };
        let forgotten = shared.lock().ways.end_flush(flush, done);
        self.forget(&forgotten);
    }

    fn forget(&self, ranges: &[Region]) {
        for range in ranges {
            let (first, bytes) = (range.first / SECTOR_BYTES as u64, range.bytes());
            self.cached.forget(Sector(first), bytes / SECTOR_BYTES as u64);
            self.forgotten.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for HostStore {
    fn drop(&mut self) {
        let rest = self.shared.as_ref().map(|shared| shared.lock().ways.rest());
        self.forget(&rest.unwrap_or_default());
    }
}

impl Store for HostStore {
    fn sector_count(&self) -> u64 {
        self.cached.sector_count().min(self.direct.sector_count())
    }

    fn read_only(&self) -> bool {
        self.cached.read_only()
    }

    fn allocation(&self, sector: Sector, count: u64) -> (Allocation, u64) {
        self.cached.allocation(sector, count)
    }

    fn reserve(&self, sector: Sector, count: u64) -> Result<(), Error> {
        self.cached.reserve(sector, count)
    }

    fn keeps_writes(&self) -> bool {
        self.cached.keeps_writes()
    }

    fn road(self: Arc<Self>, waits: bool) -> Box<dyn Road> {
        let channel = |device: &Arc<dyn BlockDevice>| match waits {
            true => device.clone().waiting_channel(),
            false => device.clone().channel(),
        };
        let cached = channel(&self.cached);
        let direct = self.shared.as_ref().map(|_| channel(&self.direct));
        let events = [Some(cached.event()), direct.as_ref().map(|direct| direct.event())];
        let bell = Bell::new(&events.into_iter().flatten().collect::<Vec<_>>());
        Box::new(HostRoad {
            cached,
            direct,
            bell,
            jobs: (0..DEPTH).map(|_| None).collect(),
            free: (0..DEPTH).rev().collect(),
            waiting: VecDeque::new(),
            arrived: Vec::new(),
            listens: false,
            store: self,
        })
    }

    fn hits_and_misses(&self) -> Option<(u64, u64)> {
        self.cached.page_cache_hits()
    }

    fn forgotten_bytes(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }
}

/// A request under way.
struct Job {
    /// Its maker's number for it.
    tag: u64,
    /// Whether it is a journal's write.
    journal: bool,
    /// A change that has begun, where there are two ways.
    claim: Option<Claim>,
    /// A flush that has begun, where there are two ways.
    flush: Option<Flush>,
}

impl Job {
    fn way(&self) -> Way {
        self.claim.map_or(Way::Cached, |claim| claim.way)
    }
}

fn change(request: &Request, journal: bool) -> Change {
    let durable = match request.op {
        Op::Write { fua } | Op::WriteZeroes { fua, .. } => fua,
        Op::Read | Op::Discard | Op::Flush => false,
    };
    let first = request.sector.byte().unwrap_or(u64::MAX);
    let range = Region::at(first, request.count.saturating_mul(SECTOR_BYTES as u64));
    Change { range, journal, durable }
}

struct HostRoad {
    // Before `store`: the channels end what is in flight when they are dropped.
    cached: Box<dyn Channel>,
    direct: Option<Box<dyn Channel>>,
    store: Arc<HostStore>,
    bell: Bell,
    jobs: Vec<Option<Job>>,
    free: Vec<usize>,
    /// Requests that wait for a claim (not yet in their job) or for room in a channel.
    waiting: VecDeque<Request>,
    arrived: Vec<Completion>,
    /// A claim was refused once, so the bell may ring.
    listens: bool,
}

impl HostRoad {
    /// Sends a request whose tag is its job's number; gives it back when it has to wait.
    fn start(&mut self, request: Request) -> Result<Option<Completion>, Request> {
        let Some(job) = &mut self.jobs[request.tag as usize] else {
            return Ok(Some(request.complete(Err(Error::Unsupported))));
        };
        if let Some(shared) = &self.store.shared {
            if request.is_change() && job.claim.is_none() {
                job.claim = HostStore::take(shared, change(&request, job.journal), &self.bell);
                if job.claim.is_none() {
                    self.listens = true;
                    return Err(request);
                }
            } else if request.op == Op::Flush && job.flush.is_none() {
                job.flush = Some(shared.lock().ways.begin_flush());
            }
        }
        let channel = match (job.way(), &mut self.direct) {
            (Way::Direct, Some(direct)) => direct,
            _ => &mut self.cached,
        };
        match channel.submit(request) {
            Submitted::Done(completion) => Ok(Some(completion)),
            Submitted::Pending => Ok(None),
            Submitted::Busy(request) => Err(request),
        }
    }

    /// Gives the completion its maker's number back.
    fn finish(&mut self, mut completion: Completion) -> Completion {
        let index = completion.tag as usize;
        if let Some(job) = self.jobs.get_mut(index).and_then(Option::take) {
            completion.tag = job.tag;
            if let Some(claim) = job.claim {
                self.store.release(claim);
            }
            if let Some(flush) = job.flush {
                self.store.end_flush(flush, completion.result.is_ok());
            }
            self.free.push(index);
        }
        completion
    }

    fn in_flight(&self, way: Way) -> bool {
        self.jobs.iter().flatten().any(|job| job.way() == way)
    }
}

impl Road for HostRoad {
    fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    fn submit(&mut self, mut request: Request, admission: Admission) -> Submitted {
        let Some(index) = self.free.pop() else { return Submitted::Busy(request) };
        let journal = admission == Admission::Bypass && matches!(request.op, Op::Write { .. });
        self.jobs[index] = Some(Job { tag: request.tag, journal, claim: None, flush: None });
        request.tag = index as u64;
        match self.start(request) {
            Ok(Some(completion)) => Submitted::Done(self.finish(completion)),
            Ok(None) => Submitted::Pending,
            Err(request) => {
                self.waiting.push_back(request);
                Submitted::Pending
            }
        }
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.listens {
            self.bell.silence();
        }
        let mut arrived = std::mem::take(&mut self.arrived);
        for _ in 0..self.waiting.len() {
            let Some(request) = self.waiting.pop_front() else { break };
            match self.start(request) {
                Ok(completion) => arrived.extend(completion),
                Err(request) => self.waiting.push_back(request),
            }
        }
        self.cached.poll(&mut arrived);
        if let Some(direct) = &mut self.direct {
            direct.poll(&mut arrived);
        }
        done.extend(arrived.drain(..).map(|completion| self.finish(completion)));
        self.arrived = arrived;
    }

    fn park(&mut self) {
        if self.free.len() == DEPTH {
            return;
        }
        self.cached.poll(&mut self.arrived);
        if let Some(direct) = &mut self.direct {
            direct.poll(&mut self.arrived);
        }
        if !self.arrived.is_empty() || self.bell.wait() {
            return;
        }
        match (self.in_flight(Way::Cached), &mut self.direct) {
            (true, _) => self.cached.park(),
            (false, Some(direct)) => direct.park(),
            (false, None) => {}
        }
        if !self.waiting.is_empty() {
            nap();
        }
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.bell.fd()
    }

    fn watch(&mut self, inputs: &[BorrowedFd<'_>]) -> bool {
        self.cached.watch(inputs)
    }

    /// Where all that is under way goes through the page cache.
    fn rest(&mut self) -> bool {
        let alone = self.waiting.is_empty() && self.arrived.is_empty();
        alone && !self.in_flight(Way::Direct) && self.cached.rest()
    }
}
