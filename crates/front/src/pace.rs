//! How long something usually takes: a running median, one atomic word.

use std::time::{Duration, Instant};

use polylane_base::sync::atomic::{AtomicU32, Ordering::Relaxed};
use polylane_sys::sched;

/// Up to this a worker does it itself: what a sleeping helper costs to wake, twice.
const QUICK_US: u32 = 60;

/// Up to this it does so where nobody else waits meanwhile.
const SHORT_US: u32 = 250;

/// Syncs that are left to helpers after one for which others waited.
const AWAY: u32 = 512;

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
    /// Whether it usually takes at most so many microseconds.
    fn takes_at_most(&self, micros: u32) -> bool {
        self.0.load(Relaxed) <= micros
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

/// The syncs of a lane's files, and who does them: a worker, or a helper for it.
///
/// Whoever is woken for one comes late by as long as that takes, a quarter of an fsync on a fast
/// disk. But who waits for the disk serves nobody. So a worker does what is usually over sooner
/// than a helper wakes, and what takes a little longer as long as it finds nobody waiting
/// afterwards.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
    pace: Pace,
    /// Of those that take a little longer, the next ones that are a helper's.
    away: AtomicU32,
}

impl Syncs {
    /// Whether the next one is for the worker that has it in hand.
    pub(crate) fn is_for_worker(&self) -> bool {
        if self.pace.takes_at_most(QUICK_US) {
            return true;
        }
        let away = self.away.load(Relaxed);
        self.away.store(away.saturating_sub(1), Relaxed);
        away == 0 && self.pace.takes_at_most(SHORT_US)
    }

    /// While a worker did one itself others waited for it.
    pub(crate) fn kept_waiting(&self) {
        self.away.store(AWAY, Relaxed);
    }

    /// Does one, and learns from it if it has something to write: how soon the others are over says
    /// nothing of it.
    pub(crate) fn of<T>(&self, writes: bool, sync: impl FnOnce() -> T) -> T {
        if writes { self.pace.of(sync) } else { sync() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Pace {
        fn is_quick(&self) -> bool {
            self.takes_at_most(QUICK_US)
        }
    }

    #[test]
    fn a_worker_syncs_what_takes_a_little_longer_until_others_wait_for_it() {
        let syncs = Syncs::default();
        assert!(!syncs.is_for_worker(), "slow until seen");
        (0..60).for_each(|_| syncs.pace.took(Duration::from_micros(150)));
        assert!((0..100).all(|_| syncs.is_for_worker()));
        syncs.kept_waiting();
        assert!(!(0..AWAY).any(|_| syncs.is_for_worker()) && syncs.is_for_worker());
        syncs.kept_waiting();
        (0..60).for_each(|_| syncs.pace.took(Duration::from_micros(20)));
        assert!(syncs.is_for_worker(), "no helper is as quick");
        (0..60).for_each(|_| syncs.pace.took(Duration::from_micros(400)));
        assert!(!(0..100).any(|_| syncs.is_for_worker()));
    }

    #[test]
    fn syncs_with_nothing_to_write_say_nothing() {
        let syncs = Syncs::default();
        (0..60).for_each(|_| syncs.of(false, || ()));
        assert!(!syncs.is_for_worker());
        (0..60).for_each(|_| syncs.of(true, || ()));
        assert!(syncs.is_for_worker());
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
