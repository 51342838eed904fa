//! Time as an argument: rooms take a [`Clock`], so tests and simulations decide what time it is.

use std::sync::atomic::{AtomicI64, Ordering};

use rustix::time::{ClockId, clock_gettime};

/// A file time stamp: seconds and nanoseconds since 1970-01-01 UTC, as in `struct timespec`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
pub struct Time {
    /// Seconds, negative before 1970.
    pub sec: i64,
    /// Nanoseconds, 0..=999_999_999.
    pub nsec: u32,
}

/// A source of wall-clock time. Thread-safe; never goes through a lock.
pub trait Clock: Send + Sync {
    /// Now. Coarse (a few milliseconds) is fine: the kernel's own file times are coarse too.
    fn now(&self) -> Time;
}

/// The host's wall clock, as coarse as the kernel's own file times (a timer tick): it is read
/// several times in each change of a name, and the exact clock costs four times as much.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Time {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        Time { sec: now.tv_sec, nsec: u32::try_from(now.tv_nsec).unwrap_or_default() }
    }
}

/// A clock that ticks one microsecond at every reading, so that successive stamps differ and a
/// test run repeats exactly.
#[derive(Debug, Default)]
pub struct TestClock(AtomicI64);

impl Clock for TestClock {
    fn now(&self) -> Time {
        let us = self.0.fetch_add(1, Ordering::Relaxed);
        Time { sec: 1_000_000_000 + us / 1_000_000, nsec: (us % 1_000_000) as u32 * 1000 }
    }
}
