//! Eviction: keeps the number of pages within the limit.
//!
//! CLOCK over files, in the order of their ids, and in each file over its pages: a page that was used
//! since the last look is spared once.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use polylane_base::sync::Weak;

use super::PageCache;
use crate::core::Core;
use crate::inode::{Inode, Node};
use crate::stats::Count;

/// Pages looked at in one file before the hand goes on to the next.
const PAGES_PER_VISIT: usize = 64;

/// Visits in one attempt to make room. An attempt that finds only pages in use gives up: the limit is
/// then passed by what is inserted until the next attempt finds that they were not used again.
const VISITS_MAX: usize = 64;

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
    fn is_full(&self) -> bool {
        self.pages() > self.pages_max
    }
}

impl Core {
    /// Evicts pages until the limit is kept. Call without any lock of the cache.
    pub(super) fn make_room(&self) {
        let cache = &self.cache;
        for _ in 0..VISITS_MAX {
            if !cache.is_full() {
                return;
            }
            let next = cache.clock.lock().next();
            let Some(node) = next else { continue };
            let Some(pages) = node.pages_used() else { continue };
            let evicted = pages.evict(PAGES_PER_VISIT);
            cache.removed(super::Delta { pages: evicted, dirty: 0 });
            self.counters.add(Count::Evictions, evicted);
        }
        // Perhaps because too much is dirty.
        cache.flusher.kick();
    }
}
