//! How many calls of the client libraries are under way.
//!
//! A call waits for as long as its cluster is away, which is no fault of the thread in it. A
//! watchdog, which judges threads by whether they go on, asks first whether one is in a call.

use std::ops::Deref;

use polylane_base::sync::atomic::{AtomicUsize, Ordering};

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// How many calls of the client libraries, of all clients of this process, have not ended: calls of
/// threads, and requests to images that were not completed yet.
pub fn calls_under_way() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// A call that is under way until this is dropped; dereferenced, what it is made with.
pub(super) struct UnderWay<T>(T);

impl<T> UnderWay<T> {
    pub(super) fn new(with: T) -> UnderWay<T> {
        COUNT.fetch_add(1, Ordering::Relaxed);
        UnderWay(with)
    }
}

impl<T> Deref for UnderWay<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Drop for UnderWay<T> {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_counts_until_it_is_dropped() {
        let first = UnderWay::new(7);
        let second = UnderWay::new(());
        assert_eq!((*first, calls_under_way()), (7, 2));
        drop(first);
        assert_eq!(calls_under_way(), 1);
        drop(second);
        assert_eq!(calls_under_way(), 0);
    }
}
