//! Shared futexes: sleeping on a word of a [`Region`](crate::Region) that another process wakes.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::thread::futex::{self, Flags, Timespec};

/// Why [`wait`] returned. The word may have changed in any case: look again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// A wake-up, a spurious one, or the word did not hold the expected value.
    Changed,
    /// The time is over.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// Sleeps while `word` holds `expected`, at most for `timeout`. Async-signal-safe.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Woken {
    let timeout = timeout.map(|time| Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    match futex::wait(word, Flags::empty(), expected, timeout.as_ref()) {
        Err(rustix::io::Errno::TIMEDOUT) => Woken::TimedOut,
        Err(rustix::io::Errno::INTR) => Woken::Interrupted,
        _ => Woken::Changed,
    }
}

/// Wakes at most `count` sleepers on `word`. Async-signal-safe.
pub fn wake(word: &AtomicU32, count: u32) {
    // Only a bad address can fail here, and a reference is none.
    let _ = futex::wake(word, Flags::empty(), count);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_sleeper_is_woken() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    wait(&word, 0, None);
                }
            });
            std::thread::sleep(Duration::from_millis(5));
            word.store(1, Ordering::Release);
            wake(&word, 1);
        });
    }

    #[test]
    fn time_runs_out_and_other_values_return_at_once() {
        let word = AtomicU32::new(3);
        assert_eq!(wait(&word, 3, Some(Duration::from_millis(1))), Woken::TimedOut);
        assert_eq!(wait(&word, 4, None), Woken::Changed);
    }
}
