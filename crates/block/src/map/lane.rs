//! What one volume's engine and the translation threads share: map, medium, and who waits.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polylane_base::sync::{Condvar, Mutex, RwLock};
use polylane_sys::event;

use super::{Job, Map, State, Unit, Work, Worked};
use crate::device::{Allocation, Error, Sector};
use crate::medium::{Medium, Run, Space};

/// A volume as the translation threads see it.
pub(crate) struct Lane {
    pub(crate) map: Map,
    pub(crate) medium: Arc<dyn Medium>,
    /// Chunks that one look takes in.
    pub(crate) prefetch: u64,
    /// Host space below which nothing is made ahead.
    pub(crate) reserve_bytes: u64,
    pub(crate) gate: Gate,
    pub(crate) counts: Counts,
    /// Making space is of use here, for all that is known.
    fills: AtomicBool,
    /// Held by every job while it is at work; true once the volume is closed.
    pub(crate) closed: RwLock<bool>,
}

/// What the translation threads did for a lane.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) translations: AtomicU64,
    pub(crate) allocations: AtomicU64,
    /// Picoseconds per sector that making space took, a mean that forgets; 0: not known.
    cost: AtomicU64,
}

impl Counts {
    /// What making space takes, in picoseconds per sector, once some was made.
    pub(crate) fn cost(&self) -> Option<u64> {
        Some(self.cost.load(Ordering::Relaxed)).filter(|cost| *cost > 0)
    }

    fn note_cost(&self, took: Duration, sectors: u64) {
        let new = (took.as_nanos() as u64).saturating_mul(1000) / sectors.max(1);
        let mean = self.cost().map_or(new, |old| (old * 3 + new) / 4);
        // One thread's note may be lost to another's: it is a mean.
        self.cost.store(mean.max(1), Ordering::Relaxed);
    }
}

impl Lane {
    pub(crate) fn new(map: Map, medium: Arc<dyn Medium>, prefetch: u64, reserve: u64) -> Lane {
        Lane {
            map,
            medium,
            prefetch,
            reserve_bytes: reserve,
            gate: Gate::new(),
            counts: Counts::default(),
            fills: AtomicBool::new(true),
            closed: RwLock::new(false),
        }
    }

    fn sectors_end(&self) -> u64 {
        self.medium.sector_count().min(self.map.sectors_max())
    }

    fn sectors(&self, chunk: u64) -> Range<u64> {
        let sectors = self.map.sectors(chunk);
        sectors.start..sectors.end.min(self.sectors_end())
    }

    /// Queues a job, unless one for this chunk is queued that does as well.
    pub(crate) fn ask(self: &Arc<Self>, unit: &Unit, work: Work, chunk: u64, awaited: bool) {
        if self.map.at(chunk).queue(awaited) {
            unit.push(Job { lane: self.clone(), work, chunk }, awaited);
        }
    }

    /// Finds out where a chunk lies, and all others of its region: a second job for the region
    /// finds nothing left to do. The first chunk after it; `None` where the medium does not tell.
    fn translate(&self, chunk: u64) -> Option<u64> {
        let start = self.map.sectors(chunk / self.prefetch * self.prefetch).start;
        let end = (start + (self.prefetch << self.map.shift)).min(self.sectors_end());
        if start >= end {
            return None;
        }
        let chunks = self.map.chunks(&(start..end));
        let sights: Vec<_> = chunks.clone().map(|chunk| self.map.at(chunk).before_look()).collect();
        let after = chunks.end;
        if sights.iter().all(Option::is_none) {
            return Some(after);
        }
        let runs = self.medium.runs(start..end).ok()?;
        self.counts.translations.fetch_add(1, Ordering::Relaxed);
        let mut rest = &runs[..];
        for (chunk, sight) in chunks.zip(sights) {
            let sectors = self.sectors(chunk);
            let skip = rest.iter().take_while(|run| run.sectors.end <= sectors.start).count();
            rest = &rest[skip..];
            let here = rest.iter().take_while(|run| run.sectors.start < sectors.end).count();
            if let Some(sight) = sight {
                self.map.at(chunk).publish(sight, state_of(&rest[..here]));
            }
        }
        Some(after)
    }

    /// The first chunk from `chunk` on that may have data. A hole is found out about when somebody
    /// comes there: a new volume is little else.
    fn with_data_from(&self, chunk: u64) -> Option<u64> {
        let start = self.map.sectors(chunk).start;
        let left = self.sectors_end().checked_sub(start).filter(|left| *left > 0)?;
        match self.medium.allocation(Sector(start), left) {
            (Allocation::Hole, count) if count >= left => None,
            (Allocation::Hole, count) => Some((start + count) >> self.map.shift),
            (Allocation::Data | Allocation::Base, _) => Some(chunk),
        }
    }

    /// Gives a chunk the space that it lacks, and writes zeros to what is only reserved, if nobody
    /// is in it and the host has room left for others.
    fn allocate(&self, chunk: u64) {
        if self.map.state(chunk) == State::Unknown {
            self.translate(chunk);
        }
        let sectors = self.sectors(chunk);
        let bytes = (sectors.end - sectors.start) * crate::device::SECTOR_BYTES as u64;
        let wanted = self.reserve_bytes.saturating_add(bytes);
        let has_room = || self.medium.free_bytes().is_none_or(|free| free >= wanted);
        if sectors.is_empty() || !self.fills.load(Ordering::Relaxed) || !has_room() {
            return;
        }
        let Some(from) = self.map.at(chunk).claim() else { return };
        let (start, count) = (Instant::now(), sectors.end - sectors.start);
        let made = self.fill(sectors);
        if made == Err(Error::Unsupported) {
            self.fills.store(false, Ordering::Relaxed);
        }
        if let Ok(made @ 1..) = made {
            self.counts.note_cost(start.elapsed(), made);
            self.counts.allocations.fetch_add(1, Ordering::Relaxed);
        }
        // Only what took no space at all can go back unused.
        let unused = from == State::Empty && made == Ok(count);
        self.map.at(chunk).end_claim(made.is_ok(), unused);
    }

    /// Writes zeros to all of an exclusive chunk that is not written; how many sectors that were.
    fn fill(&self, sectors: Range<u64>) -> Result<u64, Error> {
        let mut made = 0;
        for run in self.medium.runs(sectors)? {
            if run.space != Space::Written {
                made += run.sectors.end - run.sectors.start;
                self.medium.allocate(run.sectors)?;
            }
        }
        Ok(made)
    }

    /// Ends all work for this lane and gives space back that was made ahead and never written to.
    /// No request is in flight.
    pub(crate) fn close(&self) -> Result<(), Error> {
        *self.closed.write() = true;
        let chunks = self.map.take_ahead();
        if chunks.is_empty() {
            return Ok(());
        }
        let waiter = crate::wait::Waiter::new(self.medium.clone());
        for chunk in chunks {
            let sectors = self.sectors(chunk);
            self.map.at(chunk).forget();
            waiter.discard(Sector(sectors.start), sectors.end - sectors.start)?;
        }
        Ok(())
    }

    /// Takes jobs again after [`close`](Lane::close).
    pub(crate) fn open(&self) {
        *self.closed.write() = false;
    }
}

impl Worked for Lane {
    fn run(&self, work: Work, chunk: u64) -> Option<u64> {
        let closed = self.closed.read();
        self.map.at(chunk).dequeue();
        if *closed {
            return None;
        }
        let next = match work {
            Work::Translate => {
                self.translate(chunk);
                None
            }
            Work::Survey => {
                let next = self.translate(chunk)?;
                self.with_data_from(next)
            }
            Work::Allocate => {
                self.allocate(chunk);
                None
            }
        };
        self.gate.open();
        next
    }
}

fn state_of(runs: &[Run]) -> State {
    let all = |space| runs.iter().all(|run| run.space == space);
    match runs {
        [] => State::Unknown,
        _ if all(Space::Hole) => State::Empty,
        _ if all(Space::Written) => State::Whole,
        _ => State::Partial,
    }
}

/// How long somebody sleeps at the gate at most.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Where those wait whose chunk a job is about.
pub(crate) struct Gate {
    opened: AtomicU64,
    sleepers: Mutex<()>,
    wake: Condvar,
    /// For those who wait for more than this.
    event: Option<OwnedFd>,
}

impl Gate {
    pub(crate) fn new() -> Gate {
        let event = event::eventfd().ok();
        Gate { opened: AtomicU64::new(0), sleepers: Mutex::default(), wake: Condvar::new(), event }
    }

    /// Written to whenever the gate opens, never read: for edge-triggered epoll.
    pub(crate) fn event(&self) -> Option<&OwnedFd> {
        self.event.as_ref()
    }

    /// How often it opened; to be read before a request is tried.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::SeqCst)
    }

    fn open(&self) {
        // The event first: who takes it because of the count finds it there.
        if let Some(event) = &self.event {
            event::notify(event);
        }
        self.opened.fetch_add(1, Ordering::SeqCst);
        drop(self.sleepers.lock());
        self.wake.notify_all();
    }

    /// Sleeps until it has opened since `seen`, `limit` at most.
    pub(crate) fn wait(&self, seen: u64, limit: Option<Duration>) {
        let sleepers = self.sleepers.lock();
        let closed = |_: &mut ()| self.opened() == seen;
        let limit = limit.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN);
        drop(self.wake.wait_timeout_while(sleepers, limit, closed));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::device::BlockDevice;
    use crate::file::{FileDevice, Way};
    use crate::image;

    /// A survey of a new volume costs what is in it, not what it may hold.
    #[test]
    fn a_survey_passes_over_holes() {
        let path = tempfile::NamedTempFile::new().expect("file").into_temp_path();
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
        file.set_len(64 << 30).expect("size");
        file.write_all_at(&[7; 4096], 40 << 30).expect("write");
        let medium =
            FileDevice::open(image::open(&path).expect("open"), Way::Calls).expect("device");
        // Chunks of 1 MiB, 64 in a look.
        let lane = Lane::new(Map::new(medium.sector_count(), 11), medium, 64, 0);
        let surveyed: Vec<u64> =
            std::iter::successors(Some(0), |chunk| lane.run(Work::Survey, *chunk)).collect();
        assert_eq!(surveyed, [0, 40 << 10]);
        assert_eq!(lane.map.state(40 << 10), State::Partial);
        assert_eq!(lane.map.state(1 << 10), State::Unknown, "nobody has come there");
    }
}
