//! The client's doorbells: eventfds that wake the service's workers, on numbers that the program
//! may one day want for something else.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use polylane_sys::event;

/// How long a ring that is under way is waited for. Only one that this thread's own signal handler
/// interrupted takes that long, or that of a thread which gets no CPU.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause between looks whether it is over.
const PAUSE: Duration = Duration::from_micros(20);

/// One per core group. Thread-safe.
#[derive(Debug)]
pub(super) struct Doorbells {
    bells: Vec<OwnedFd>,
    /// Rings under way.
    ringing: AtomicU32,
    silent: AtomicBool,
}

impl Doorbells {
    pub(super) fn new(bells: Vec<OwnedFd>) -> Doorbells {
        Doorbells { bells, ringing: AtomicU32::new(0), silent: AtomicBool::new(false) }
    }

    pub(super) fn all(&self) -> &[OwnedFd] {
        &self.bells
    }

    /// Wakes the worker of a core group.
    pub(super) fn ring(&self, group: usize) {
        self.ringing.fetch_add(1, Ordering::SeqCst);
        // Either this sees that they are silent, or whoever silenced them sees this ring.
        if !self.silent.load(Ordering::SeqCst) {
            event::notify(&self.bells[group]);
        }
        self.ringing.fetch_sub(1, Ordering::Release);
    }

    /// None rings from here on: their numbers may come to mean something else.
    pub(super) fn silence(&self) {
        self.silent.store(true, Ordering::SeqCst);
        let start = Instant::now();
        while self.ringing.load(Ordering::SeqCst) > 0 && start.elapsed() < PATIENCE {
            polylane_sys::sched::pause(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_to_the_numbers_of_silent_bells() {
        let bell = event::eventfd().unwrap();
        let bells = Doorbells::new(vec![bell.try_clone().unwrap()]);
        bells.ring(0);
        assert_eq!(event::drain(&bell), 1);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..2000).for_each(|_| bells.ring(0)));
            }
            bells.silence();
            event::drain(&bell);
            for _ in 0..100 {
                assert_eq!(event::drain(&bell), 0);
                std::thread::yield_now();
            }
        });
    }
}
