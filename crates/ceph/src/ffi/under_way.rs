//! Which calls of the client libraries are under way.
//!
//! A call waits for as long as its cluster is away, which is no fault of the thread in it. A
//! watchdog, which judges threads by whether they go on, asks first whether one is in a call, and
//! whether that lasts.
//!
//! Calls are counted in two generations. New ones are of the present one; the other one has those
//! that began before it became the present one, and when the last of them has ended, the two change
//! their places as that is asked.

use std::ops::Deref;

use polylane_base::sync::atomic::{AtomicUsize, Ordering};

/// Calls of this process.
static CALLS: Generations = Generations::new();

/// Calls that are under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnderWay {
    /// There is none.
    None,
    /// All began since this was last asked.
    Short,
    /// One is at least as old as the last time that this was asked.
    Long,
}

/// How many calls of the client libraries, of all clients of this process, have not ended: calls of
/// threads, and requests to images that were not completed yet.
pub fn calls_under_way() -> usize {
    CALLS.count()
}

/// The same by how long they last. Asked by one thread, now and then.
pub fn ask_calls() -> UnderWay {
    CALLS.ask()
}

struct Generations {
    /// The number of the present one.
    present: AtomicUsize,
    counts: [AtomicUsize; 2],
}

impl Generations {
    const fn new() -> Generations {
        Generations {
            present: AtomicUsize::new(0),
            counts: [AtomicUsize::new(0), AtomicUsize::new(0)],
        }
    }

    fn count(&self) -> usize {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn ask(&self) -> UnderWay {
        let present = self.present.load(Ordering::Relaxed);
        let former = 1 - present;
        if self.counts[former].load(Ordering::Relaxed) > 0 {
            return UnderWay::Long;
        }
        self.present.store(former, Ordering::Relaxed);
        match self.counts[present].load(Ordering::Relaxed) {
            0 => UnderWay::None,
            _ => UnderWay::Short,
        }
    }

    fn begin(&self) -> &AtomicUsize {
        let count = &self.counts[self.present.load(Ordering::Relaxed)];
        count.fetch_add(1, Ordering::Relaxed);
        count
    }
}

/// A call that is under way until this is dropped; dereferenced, what it is made with.
pub(super) struct Call<T> {
    with: T,
    count: &'static AtomicUsize,
}

impl<T> Call<T> {
    pub(super) fn new(with: T) -> Call<T> {
        Call { with, count: CALLS.begin() }
    }
}

impl<T> Deref for Call<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.with
    }
}

impl<T> Drop for Call<T> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_counts_until_it_is_dropped() {
        let first = Call::new(7);
        let second = Call::new(());
        assert_eq!((*first, calls_under_way()), (7, 2));
        drop(first);
        assert_eq!(calls_under_way(), 1);
        drop(second);
        assert_eq!(calls_under_way(), 0);
    }

    /// However many begin and end beside it.
    #[test]
    fn a_call_that_lasts_is_told_from_short_ones() {
        let calls = Generations::new();
        let end = |count: &AtomicUsize| {
            count.fetch_sub(1, Ordering::Relaxed);
        };
        assert_eq!(calls.ask(), UnderWay::None);
        for round in 0..4 {
            let short = calls.begin();
            assert_eq!(calls.ask(), UnderWay::Short, "round {round}");
            let next = calls.begin();
            end(short);
            assert_eq!(calls.ask(), UnderWay::Short, "round {round}: always another one");
            let long = calls.begin();
            end(next);
            assert_eq!(calls.ask(), UnderWay::Short, "round {round}");
            for _ in 0..3 {
                let beside = calls.begin();
                assert_eq!(calls.ask(), UnderWay::Long, "round {round}");
                end(beside);
            }
            end(long);
            assert_eq!((calls.ask(), calls.count()), (UnderWay::None, 0), "round {round}");
        }
    }
}
