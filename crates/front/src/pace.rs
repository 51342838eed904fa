//! How long something usually takes: a running median, one atomic word.

use std::time::{Duration, Instant};

use polylane_base::sync::atomic::{AtomicU32, Ordering::Relaxed};
use polylane_sys::sched;

/// Up to this nobody else is woken for it: what a sleeping thread costs to wake, twice.
const QUICK_US: u32 = 60;

/// What is believed before anything was seen: slow.
const UNKNOWN_US: u32 = 1000;

/// A running median of durations in microseconds. A single late one, because the thread was
/// preempted, moves it no more than any other does. Updates that race may be lost.
#[derive(Debug)]
pub(crate) struct Pace(AtomicU32);

impl Default for Pace {
    fn default() -> Self {
        Pace(AtomicU32::new(UNKNOWN_US))
    }
}

impl Pace {
    /// Whether it usually takes less than waking another thread.
    fn is_quick(&self) -> bool {
        self.0.load(Relaxed) <= QUICK_US
    }

    /// Does it, and learns from it. Time in which the CPU was another's says nothing of it: on a
    /// busy host it would be the more, the more threads share the work.
    pub(crate) fn of<T>(&self, work: impl FnOnce() -> T) -> T {
        let (start, before) = (Instant::now(), sched::usage());
        let result = work();
        let after = sched::usage();
        self.took(match after.waits == before.waits {
            true => after.cpu.saturating_sub(before.cpu),
            false => start.elapsed(),
        });
        result
    }

    /// It took this long.
    fn took(&self, time: Duration) {
        let now = self.0.load(Relaxed);
        let step = now / 8 + 1;
        let next = match time.as_micros() > u128::from(now) {
            true => now.saturating_add(step).min(UNKNOWN_US),
            false => now.saturating_sub(step),
        };
        self.0.store(next, Relaxed);
    }
}

/// The syncs of a lane's files.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
    pace: Pace,
    under_way: AtomicU32,
}

/// Counts a sync, until it is dropped.
struct UnderWay<'a>(&'a AtomicU32);

impl<'a> UnderWay<'a> {
    fn new(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Relaxed);
        UnderWay(count)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Syncs {
    /// Whether one is usually over sooner than another thread is woken, which would serve others
    /// meanwhile. While one is under way the next may wait for its commit, however large.
    pub(crate) fn are_quick(&self) -> bool {
        self.pace.is_quick() && self.under_way.load(Relaxed) == 0
    }

    /// Does one, and learns from it if it has something to write: how soon the others are over says
    /// nothing of it.
    pub(crate) fn of<T>(&self, writes: bool, sync: impl FnOnce() -> T) -> T {
        let _under_way = UnderWay::new(&self.under_way);
        if writes { self.pace.of(sync) } else { sync() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syncs_with_nothing_to_write_say_nothing() {
        let syncs = Syncs::default();
        (0..60).for_each(|_| syncs.of(false, || ()));
        assert!(!syncs.are_quick());
        (0..60).for_each(|_| syncs.of(true, || ()));
        assert!(syncs.are_quick());
    }

    #[test]
    fn none_is_quick_beside_another() {
        let syncs = Syncs::default();
        (0..60).for_each(|_| syncs.of(true, || ()));
        syncs.of(false, || assert!(!syncs.are_quick()));
        assert!(syncs.are_quick());
        let panics = std::panic::AssertUnwindSafe(|| syncs.of(false, || panic!("on purpose")));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(syncs.are_quick(), "one that ended badly is no longer under way");
    }

    #[test]
    fn what_waits_for_nothing_but_a_cpu_is_quick() {
        let pace = Pace::default();
        (0..60).for_each(|_| pace.of(|| ()));
        assert!(pace.is_quick());
        (0..60).for_each(|_| pace.of(|| std::thread::sleep(Duration::from_micros(300))));
        assert!(!pace.is_quick());
    }

    #[test]
    fn it_follows_what_is_usual_and_not_what_is_rare() {
        let pace = Pace::default();
        let quick = Duration::from_micros(20);
        assert!(!pace.is_quick());
        (0..40).for_each(|_| pace.took(quick));
        assert!(pace.is_quick());
        for _ in 0..50 {
            pace.took(Duration::from_millis(4));
            (0..9).for_each(|_| pace.took(quick));
            assert!(pace.is_quick());
        }
        (0..20).for_each(|_| pace.took(Duration::from_micros(150)));
        assert!(!pace.is_quick());
    }
}
