//! Counters of one VFS.
//!
//! Each counter is striped over a few cache lines, so that threads on different cores do not pass
//! one line around at every operation. A thread's stripe comes from the address of its stack: free,
//! and without any state of its own.

use polylane_base::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What [`Vfs::stats`](crate::Vfs::stats) reports. Sums of relaxed counters: each is exact once the
/// VFS is quiet, and off by the operations in flight otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Operations begun: names, attributes, paths, opens, reads and writes.
    pub ops: u64,
    /// Names answered by the dentry table.
    pub dentry_hits: u64,
    /// Names that it did not know, so that the libservice was asked. Both are 0 for volatile file
    /// systems, which are always asked.
    pub dentry_misses: u64,
    /// Names in the dentry table now, negative ones included.
    pub dentries: u64,
    /// Inodes alive now.
    pub inodes: u64,
    /// Pages answered by the page cache.
    pub page_hits: u64,
    /// Pages read from the libservice.
    pub page_misses: u64,
    /// Pages in the page cache now.
    pub pages: u64,
    /// Bytes changed and not written back yet.
    pub dirty_bytes: u64,
    /// Bytes written back so far.
    pub written_back_bytes: u64,
    /// Pages thrown out to stay within the limit.
    pub evictions: u64,
    /// Writers that had to wait because of the dirty limit.
    pub throttled: u64,
}

/// Counters that only grow.
#[derive(Clone, Copy)]
pub(crate) enum Count {
    Ops,
    PageHits,
    PageMisses,
    WrittenBack,
    Evictions,
    Throttled,
}

const COUNTS: usize = Count::Throttled as usize + 1;
const STRIPES: usize = 8;

/// Thread stacks lie at least this far apart (2^21: the standard library's default stack size).
const STACK_SHIFT: u32 = 21;

/// Aligned to two cache lines: the adjacent-line prefetcher pairs them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe([AtomicU64; COUNTS]);

/// The counters of one VFS.
#[derive(Debug, Default)]
pub(crate) struct Counters([Stripe; STRIPES]);

impl Counters {
    /// Adds `n` to a counter.
    pub(crate) fn add(&self, count: Count, n: u64) {
        let here = 0u8;
        let stripe = (std::ptr::from_ref(&here).addr() >> STACK_SHIFT) % STRIPES;
        self.0[stripe].0[count as usize].fetch_add(n, Relaxed);
    }

    /// Sum of a counter.
    pub(crate) fn get(&self, count: Count) -> u64 {
        self.0.iter().map(|stripe| stripe.0[count as usize].load(Relaxed)).sum()
    }
}
