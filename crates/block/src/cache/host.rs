//! The host's page cache as a store: a descriptor without O_DIRECT for what is cached, one with it
//! for what goes past.
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
//!
//! # Locking
//!
//! `claims` is held for a look at the changes in flight. Without a rule nothing goes past the cache
//! and no claims are made.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use polylane_base::sync::Mutex;

use super::bell::{Bell, nap, ring_all};
use super::pdc::Admission;
use super::{Road, Store};
use crate::device::{
    Allocation, BlockDevice, Channel, Completion, Error, Op, Request, Sector, Submitted,
};

/// Requests under way per road.
const DEPTH: usize = 64;

/// Sectors in the largest folio of the page cache (2 MiB): the kernel drops whole folios, and none
/// that somebody makes dirty at the same time.
const FOLIO_SECTORS: u64 = 4096;

/// The two ways to the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Cached,
    Direct,
}

/// Folios that a change in flight has for its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Claim {
    way: Way,
    first: u64,
    end: u64,
}

#[derive(Default)]
struct Claims {
    taken: Vec<Claim>,
    /// Bells of those who wait.
    waiting: Vec<Arc<OwnedFd>>,
}

/// The store. See the [module](self).
pub struct HostStore {
    cached: Arc<dyn BlockDevice>,
    direct: Arc<dyn BlockDevice>,
    claims: Option<Mutex<Claims>>,
}

impl HostStore {
    /// A store on a file that `cached` reaches through the page cache and `direct` past it.
    /// `bypass`: whether anything will go past it.
    pub fn new(
        cached: Arc<dyn BlockDevice>,
        direct: Arc<dyn BlockDevice>,
        bypass: bool,
    ) -> Arc<HostStore> {
        Arc::new(HostStore { cached, direct, claims: bypass.then(Mutex::default) })
    }

    /// Claims folios; if somebody has one of them for the other way, rings `bell` when that
    /// changes.
    fn take(&self, claim: Claim, bell: &Bell) -> bool {
        let Some(claims) = &self.claims else { return true };
        let mut claims = claims.lock();
        let clash = |taken: &Claim| {
            taken.way != claim.way && taken.first < claim.end && claim.first < taken.end
        };
        let free = !claims.taken.iter().any(clash);
        match free {
            true => claims.taken.push(claim),
            false => bell.join(&mut claims.waiting),
        }
        free
    }

    fn release(&self, claim: Claim) {
        let Some(claims) = &self.claims else { return };
        let mut claims = claims.lock();
        if let Some(at) = claims.taken.iter().position(|taken| *taken == claim) {
            claims.taken.swap_remove(at);
        }
        ring_all(&mut claims.waiting);
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

    fn road(self: Arc<Self>, waits: bool) -> Box<dyn Road> {
        let channel = |device: &Arc<dyn BlockDevice>| match waits {
            true => device.clone().waiting_channel(),
            false => device.clone().channel(),
        };
        let cached = channel(&self.cached);
        let direct = self.claims.as_ref().map(|_| channel(&self.direct));
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
}

/// A request under way.
struct Job {
    /// Its maker's number for it.
    tag: u64,
    way: Way,
    claim: Option<Claim>,
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
        if request.is_change() && job.claim.is_none() && self.store.claims.is_some() {
            let first = request.sector.0 / FOLIO_SECTORS;
            let end = (request.sector.0 + request.count).div_ceil(FOLIO_SECTORS);
            let claim = Claim { way: job.way, first, end };
            if !self.store.take(claim, &self.bell) {
                self.listens = true;
                return Err(request);
            }
            job.claim = Some(claim);
        }
        let channel = match (job.way, &mut self.direct) {
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
            self.free.push(index);
        }
        completion
    }

    fn in_flight(&self, way: Way) -> bool {
        self.jobs.iter().flatten().any(|job| job.way == way)
    }
}

impl Road for HostRoad {
    fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    fn submit(&mut self, mut request: Request, admission: Admission) -> Submitted {
        let Some(index) = self.free.pop() else { return Submitted::Busy(request) };
        let past = admission == Admission::Bypass && matches!(request.op, Op::Write { .. });
        let way = if past { Way::Direct } else { Way::Cached };
        self.jobs[index] = Some(Job { tag: request.tag, way, claim: None });
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
