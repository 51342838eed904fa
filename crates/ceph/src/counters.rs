//! What the calls of a client came to, and whether calls of a kind wait for the cluster just now.
//!
//! libcephfs counts for its admin socket, which a confined service has not, and gives its counters
//! to no caller before Ceph 18. So calls are counted and timed here, around the library.

use std::time::Instant;

use polylane_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use polylane_vfs::fs::Work;

/// What a call is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Data that is read.
    Read,
    /// Data that is written.
    Write,
    /// What is made durable.
    Sync,
    /// Names and states that are asked for.
    Look,
    /// Names and states that change, and files that are opened.
    Change,
}

impl Kind {
    /// All, as they are stored.
    pub const ALL: [Kind; 5] = [Kind::Read, Kind::Write, Kind::Sync, Kind::Look, Kind::Change];

    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "reads",
            Kind::Write => "writes",
            Kind::Sync => "syncs",
            Kind::Look => "looks",
            Kind::Change => "changes",
        }
    }
}

/// What calls of a kind came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// How many have ended.
    pub count: u64,
    /// Nanoseconds of all of them.
    pub total_ns: u64,
    /// Nanoseconds of the longest.
    pub longest_ns: u64,
    /// How many took longer than [`SLOW_NS`].
    pub slow: u64,
}

/// A call that takes longer has waited for the cluster: the library's own work takes a tenth.
pub const SLOW_NS: u64 = 100_000;

/// What a slow call adds to a kind's score, from which a quick one takes 1; and the most of it.
const SLOW_SCORE: u32 = 2;
const SCORE_MAX: u32 = 8;

/// From this score on calls of the kind are taken for waiting: of two slow ones in a row, or where
/// a third of them is. A single one may have lost its CPU, and to be taken for waiting costs more
/// than a quick call does.
const SCORE_WAITS: u32 = 4;

#[derive(Default)]
struct Counter {
    count: AtomicU64,
    total_ns: AtomicU64,
    longest_ns: AtomicU64,
    slow: AtomicU64,
    /// See [`SCORE_WAITS`].
    score: AtomicU32,
}

/// See the module header. Thread-safe.
#[derive(Default)]
pub(crate) struct Counters {
    kinds: [Counter; Kind::ALL.len()],
    /// Bytes that were written and that no sync of everything has covered since.
    unsynced_bytes: AtomicU64,
    /// References to inodes, and open handles.
    pub(crate) inodes: AtomicU64,
    pub(crate) handles: AtomicU64,
}

impl Counters {
    /// Makes a call, and counts it.
    pub(crate) fn timed<T>(&self, kind: Kind, call: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = call();
        let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.kinds[kind as usize].add(took);
        result
    }

    /// So many bytes were written.
    pub(crate) fn wrote(&self, bytes: usize) {
        self.unsynced_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Syncs everything by `sync`: what was written before it is not counted as unsynced after it.
    pub(crate) fn synced<T, E>(&self, sync: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let before = self.unsynced_bytes.load(Ordering::Relaxed);
        let done = self.timed(Kind::Sync, sync)?;
        // Of two at a time both cover the same bytes.
        let less = |bytes: u64| Some(bytes.saturating_sub(before));
        let _ = self.unsynced_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        Ok(done)
    }

    /// What calls of a kind came to.
    pub(crate) fn totals(&self, kind: Kind) -> Totals {
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let counter = &self.kinds[kind as usize];
        Totals {
            count: of(&counter.count),
            total_ns: of(&counter.total_ns),
            longest_ns: of(&counter.longest_ns),
            slow: of(&counter.slow),
        }
    }

    /// References to inodes, and open handles.
    pub(crate) fn held(&self) -> (u64, u64) {
        (self.inodes.load(Ordering::Relaxed), self.handles.load(Ordering::Relaxed))
    }

    /// Bytes that may not be on the cluster yet.
    pub(crate) fn unsynced_bytes(&self) -> u64 {
        self.unsynced_bytes.load(Ordering::Relaxed)
    }

    /// Whether calls for this work wait for the cluster, by the ones before.
    pub(crate) fn is_slow(&self, work: Work) -> bool {
        let kind = match work {
            Work::Read => Kind::Read,
            Work::Write => Kind::Write,
            Work::Look => Kind::Look,
            Work::Change => Kind::Change,
        };
        self.kinds[kind as usize].score.load(Ordering::Relaxed) >= SCORE_WAITS
    }
}

impl Counter {
    fn add(&self, took_ns: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(took_ns, Ordering::Relaxed);
        if self.longest_ns.load(Ordering::Relaxed) < took_ns {
            self.longest_ns.fetch_max(took_ns, Ordering::Relaxed);
        }
        // Threads that change the score at the same time may lose a change, which only delays it.
        let score = self.score.load(Ordering::Relaxed);
        if took_ns > SLOW_NS {
            self.slow.fetch_add(1, Ordering::Relaxed);
            self.score.store((score + SLOW_SCORE).min(SCORE_MAX), Ordering::Relaxed);
        } else if score > 0 {
            self.score.store(score - 1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_taken_for_waiting_after_two_slow_ones_until_enough_are_quick() {
        let counters = Counters::default();
        let reads = &counters.kinds[Kind::Read as usize];
        assert!(!counters.is_slow(Work::Read));
        reads.add(SLOW_NS + 1);
        assert!(!counters.is_slow(Work::Read), "one may have lost its CPU");
        reads.add(SLOW_NS + 2);
        assert!(counters.is_slow(Work::Read) && !counters.is_slow(Work::Write));
        reads.add(5);
        assert!(!counters.is_slow(Work::Read));
        for _ in 0..100 {
            reads.add(SLOW_NS + 1);
        }
        for _ in 0..=SCORE_MAX - SCORE_WAITS {
            assert!(counters.is_slow(Work::Read));
            reads.add(5);
        }
        assert!(!counters.is_slow(Work::Read));
        (0..SCORE_MAX).for_each(|_| reads.add(5));
        // One in a hundred is not enough.
        for number in 0..1000 {
            reads.add(if number % 100 == 0 { SLOW_NS + 1 } else { 5 });
            assert!(!counters.is_slow(Work::Read), "{number}");
        }
        let totals = counters.totals(Kind::Read);
        let expected = (103 + 5 + 8 + 1000, 102 + 10, SLOW_NS + 2);
        assert_eq!((totals.count, totals.slow, totals.longest_ns), expected);
    }

    #[test]
    fn what_was_written_during_a_sync_is_not_covered_by_it() {
        let counters = Counters::default();
        counters.wrote(100);
        let written_meanwhile = || {
            counters.wrote(7);
            Ok::<_, ()>(())
        };
        counters.synced(written_meanwhile).expect("a sync");
        assert_eq!(counters.unsynced_bytes(), 7);
        counters.synced(|| Err::<(), _>(())).expect_err("no sync");
        assert_eq!(counters.unsynced_bytes(), 7);
        assert_eq!(counters.totals(Kind::Sync).count, 2);
    }
}
