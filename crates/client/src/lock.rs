//! A small lock for an open file's offset.
//!
//! A handler that interrupted the holder and uses the same file must not wait for itself: it goes on
//! without the lock, as if its call had come a moment earlier or later.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::thread;

const FREE: u32 = 0;
const HELD: u32 = 1;
const WAITED_FOR: u32 = 2;

/// Turns of spinning before sleeping: a holder is usually one short request away from done.
const SPINS: u32 = 200;

/// All zero is a free lock.
pub(crate) struct OffsetLock {
    word: AtomicU32,
    owner: AtomicU64,
}

impl OffsetLock {
    pub(crate) const fn new() -> Self {
        OffsetLock { word: AtomicU32::new(FREE), owner: AtomicU64::new(0) }
    }

    /// Waits for the lock. Async-signal-safe.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_> {
        let me = thread::token();
        let taken = self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_err() {
            // Only this thread can have stored its own token, so the comparison cannot race.
            if self.owner.load(Ordering::Relaxed) == me {
                return Guard(None);
            }
            self.wait();
        }
        self.owner.store(me, Ordering::Relaxed);
        Guard(Some(self))
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..SPINS {
            std::hint::spin_loop();
            let free = self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
            if free.is_ok() {
                return;
            }
        }
        while self.word.swap(WAITED_FOR, Ordering::Acquire) != FREE {
            polylane_sys::futex::wait(&self.word, WAITED_FOR, None);
        }
    }
}

/// Holds the lock, or nothing when the thread held it already.
pub(crate) struct Guard<'a>(Option<&'a OffsetLock>);

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        let Some(lock) = self.0 else { return };
        lock.owner.store(0, Ordering::Relaxed);
        if lock.word.swap(FREE, Ordering::Release) == WAITED_FOR {
            polylane_sys::futex::wake(&lock.word, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_exclude_each_other_and_a_nested_call_passes() {
        let lock = OffsetLock::new();
        // Load and store apart: the count is only right when increments exclude each other.
        let counter = AtomicU64::new(0);
        let (lock_ref, count) = (&lock, &counter);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        let _guard = lock_ref.lock();
                        let _nested = lock_ref.lock();
                        let seen = count.load(Ordering::Relaxed);
                        count.store(seen + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 40_000);
        assert_eq!(lock.word.load(Ordering::Relaxed), FREE);
    }
}
