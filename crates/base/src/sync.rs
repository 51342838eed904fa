//! The only door to locks and threads, so that a test build can swap in a scheduler that repeats.
//!
//! A poisoned lock means that a thread panicked while it held it. The service's rule is that
//! hostile input never panics, so poison is a bug of ours; the guard is taken all the same and the
//! caller's own invariants decide.

pub use std::sync::{Arc, Weak, atomic};
pub use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
pub use std::thread;
use std::time::Duration;

/// A mutual-exclusion lock whose `lock` cannot fail.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A new, free lock.
    pub const fn new(value: T) -> Self {
        Mutex(std::sync::Mutex::new(value))
    }

    /// The value, when nobody else can hold the lock any more.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(|poison| poison.into_inner())
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// The lock if it is free now.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// The value through an exclusive reference, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(|poison| poison.into_inner())
    }
}

/// A readers-writer lock whose `read` and `write` cannot fail.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// A new, free lock.
    pub const fn new(value: T) -> Self {
        RwLock(std::sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits for a shared hold.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(|poison| poison.into_inner())
    }

    /// A shared hold, if it is to be had without waiting.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        match self.0.try_read() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// The exclusive hold, if it is to be had without waiting.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        match self.0.try_write() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for the exclusive hold.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(|poison| poison.into_inner())
    }
}

/// A condition variable whose waits cannot fail. Threads that wait at the same time wait with the
/// same lock. Thread-safe.
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// One that nobody waits at.
    pub const fn new() -> Self {
        Condvar(std::sync::Condvar::new())
    }

    /// Frees the lock, sleeps until it is notified, or for no reason, and takes the lock again.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(|poison| poison.into_inner())
    }

    /// As [`wait`](Self::wait), for `limit` at most.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> MutexGuard<'a, T> {
        let waited = self.0.wait_timeout(guard, limit);
        waited.unwrap_or_else(|poison| poison.into_inner()).0
    }

    /// Sleeps as long as `is_so` says of what is locked, for `limit` at most. The lock, and whether
    /// it still was so when `limit` was over.
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        is_so: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        let waited = self.0.wait_timeout_while(guard, limit, is_so);
        let (guard, timeout) = waited.unwrap_or_else(|poison| poison.into_inner());
        (guard, timeout.timed_out())
    }

    /// Wakes one that waits, if there is one.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lock that a thread panicked with, holding 7.
    fn poisoned() -> Mutex<u32> {
        let lock = Mutex::new(7);
        let panicked = thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _guard = lock.lock();
                // Not by the macro's message: the hook need not print anything for this test.
                std::panic::resume_unwind(Box::new(()));
            });
            holder.join().is_err()
        });
        assert!(panicked);
        lock
    }

    #[test]
    fn who_waits_with_a_poisoned_lock_gets_it_all_the_same() {
        let (lock, bell) = (poisoned(), Condvar::new());
        let limit = Duration::from_millis(1);
        assert_eq!(*bell.wait_timeout(lock.lock(), limit), 7);
        let (guard, over) = bell.wait_timeout_while(lock.lock(), limit, |value| *value == 7);
        assert_eq!((*guard, over), (7, true));
        drop(guard);
        let (_guard, over) = bell.wait_timeout_while(lock.lock(), limit, |value| *value == 8);
        assert!(!over);
    }

    #[test]
    fn who_is_notified_goes_on() {
        let (lock, bell) = (poisoned(), Condvar::new());
        thread::scope(|scope| {
            scope.spawn(|| {
                *lock.lock() = 8;
                bell.notify_all();
            });
            let mut guard = lock.lock();
            while *guard == 7 {
                guard = bell.wait(guard);
            }
            assert_eq!(*guard, 8);
        });
    }
}
