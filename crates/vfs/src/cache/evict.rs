//! Eviction: keeps the number of pages within the limit.
//!
//! CLOCK over files, in the order of their ids, and in each file over its pages: a page that was
//! used since the last look is spared once.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use polylane_base::sync::Weak;

use super::{FilePages, PageCache};
use crate::core::Core;
use crate::inode::{Inode, Node};
use crate::stats::Count;

/// Part of a file's pages looked at before the hand goes on to the next file. The same part of
/// each, so that the hand passes every page equally often, whether its file is small or large.
const PART_PER_VISIT: usize = 8;

/// Most pages looked at in one visit: the file is locked meanwhile.
const PAGES_PER_VISIT_MAX: usize = 1024;

/// Visits in one attempt to make room. An attempt that finds only pages in use gives up: the limit
/// is then passed by what is inserted until the next attempt finds that they were not used again.
const VISITS_MAX: usize = 256;

/// The files that have pages.
#[derive(Default)]
pub(super) struct Clock {
    files: BTreeMap<u64, Weak<Inode>>,
    hand: u64,
}

impl Clock {
    pub(super) fn add(&mut self, id: u64, inode: Weak<Inode>) {
        self.files.insert(id, inode);
    }

    pub(super) fn remove(&mut self, id: u64) {
        self.files.remove(&id);
    }

    fn next(&mut self) -> Option<Node> {
        let after = self.files.range((Excluded(self.hand), Unbounded)).next();
        let (id, inode) = after.or_else(|| self.files.first_key_value())?;
        self.hand = *id;
        inode.upgrade()
    }
}

impl PageCache {
    /// Pages beyond the limit.
    fn excess(&self) -> u64 {
        self.pages().saturating_sub(self.pages_max)
    }
}

impl FilePages {
    /// One visit: evicts at most `wanted` pages. Returns how many.
    fn visit(&self, wanted: u64) -> u64 {
        let part = self.counts().pages as usize / PART_PER_VISIT;
        self.evict(part.clamp(1, PAGES_PER_VISIT_MAX), wanted)
    }
}

impl Core {
    /// Evicts pages until the limit is kept. Call without any lock of the cache.
    pub(super) fn make_room(&self) {
        let cache = &self.cache;
        for _ in 0..VISITS_MAX {
            let excess = cache.excess();
            if excess == 0 {
                return;
            }
            let next = cache.clock.lock().next();
            let Some(node) = next else { continue };
            let Some(pages) = node.pages_used() else { continue };
            let evicted = pages.visit(excess);
            cache.removed(super::Delta { pages: evicted, dirty: 0 });
            self.counters.add(Count::Evictions, evicted);
        }
        // Perhaps because too much is dirty.
        cache.flusher.kick();
    }
}
