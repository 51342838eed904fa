//! How often each of a few kinds was seen.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted: a plain `enum`, whose kinds are numbered from 0.
pub trait Counted: Copy {
    /// Its number, below the count of kinds.
    fn number(self) -> usize;
}

/// Counts of `N` kinds. Thread-safe.
pub struct Counts<K, const N: usize>([AtomicU64; N], PhantomData<K>);

impl<K: Counted, const N: usize> Counts<K, N> {
    pub(crate) fn count(&self, kind: K) {
        self.0[kind.number()].fetch_add(1, Ordering::Relaxed);
    }

    /// So far.
    pub fn get(&self, kind: K) -> u64 {
        self.0[kind.number()].load(Ordering::Relaxed)
    }
}

impl<K, const N: usize> Default for Counts<K, N> {
    fn default() -> Self {
        Counts([const { AtomicU64::new(0) }; N], PhantomData)
    }
}

impl<K, const N: usize> fmt::Debug for Counts<K, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}
