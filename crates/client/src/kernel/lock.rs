//! A small lock for an open file's offset.
//!
//! A handler that interrupted the holder and uses the same file must not wait for itself: it goes
//! on without the lock, as if its call had come a moment earlier or later. Who holds it is
//! therefore the lock word itself: a handler may come between any two instructions, and finds no
//! moment at which the lock is taken and its holder is not known.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::kernel::thread;

const FREE: u32 = 0;
/// Beside the holder's number: somebody sleeps, or did when the holder came.
const WAITED_FOR: u32 = 1 << 31;

/// Turns of spinning before sleeping: a holder is usually one short request away from done.
const SPINS: u32 = 200;

/// All zero is a free lock.
pub(crate) struct OffsetLock(AtomicU32);

impl OffsetLock {
    pub(crate) const fn new() -> Self {
        OffsetLock(AtomicU32::new(FREE))
    }

    /// Waits for the lock. Async-signal-safe.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_> {
        let me = thread::number();
        match self.take(me) {
            Ok(()) => Guard(Some(self)),
            Err(word) if word & !WAITED_FOR == me => Guard(None),
            Err(_) => {
                self.wait(me);
                Guard(Some(self))
            }
        }
    }

    #[inline]
    fn take(&self, word: u32) -> Result<(), u32> {
        let (done, else_) = (Ordering::Acquire, Ordering::Relaxed);
        self.0.compare_exchange(FREE, word, done, else_).map(|_| ())
    }

    #[cold]
    fn wait(&self, me: u32) {
        for _ in 0..SPINS {
            std::hint::spin_loop();
            if self.take(me).is_ok() {
                return;
            }
        }
        // Others may sleep too, so whoever has slept leaves the mark for them.
        while let Err(word) = self.take(me | WAITED_FOR) {
            let marked = word | WAITED_FOR;
            let (done, else_) = (Ordering::Relaxed, Ordering::Relaxed);
            if word == marked || self.0.compare_exchange(word, marked, done, else_).is_ok() {
                polylane_sys::futex::wait(&self.0, marked, None);
            }
        }
    }
}

/// Holds the lock, or nothing when the thread held it already.
pub(crate) struct Guard<'a>(Option<&'a OffsetLock>);

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        let Some(lock) = self.0 else { return };
        if lock.0.swap(FREE, Ordering::Release) & WAITED_FOR != 0 {
            polylane_sys::futex::wake(&lock.0, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn threads_exclude_each_other_and_a_nested_call_passes() {
        let lock = OffsetLock::new();
        // Load and store apart: the count is only right when increments exclude each other.
        let counter = AtomicU64::new(0);
        let rounds = if cfg!(miri) { 50 } else { 10_000 };
        let (lock_ref, count) = (&lock, &counter);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    for _ in 0..rounds {
                        let _guard = lock_ref.lock();
                        let _nested = lock_ref.lock();
                        let seen = count.load(Ordering::Relaxed);
                        count.store(seen + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 4 * rounds);
        assert_eq!(lock.0.load(Ordering::Relaxed), FREE);
    }
}
