//! The private inode table: which inodes are alive.
//!
//! # Invariants
//!
//! - An entry is made when an inode begins to live and removed *after* the libservice forgot it. A
//!   lookup that finds an entry which cannot be upgraded met an inode that is being forgotten: its
//!   result may be void, it must ask again.
//! - A lookup that finds no entry checks that no inode was removed since it began (`epoch`): else
//!   the forgetting may have fallen between its question and its entry.
//! - `forget` is called exactly once per entry: by the drop of the last reference.

use rustc_hash::FxHashMap;

use polylane_base::Ino;
use polylane_base::sync::atomic::{AtomicU64, Ordering};
use polylane_base::sync::{Arc, Mutex, Weak};

use crate::inode::{Inode, Node};

const SHARDS: usize = 16;

struct Entry {
    /// `Inode::id`: tells an entry from a later one of the same number.
    id: u64,
    inode: Weak<Inode>,
}

#[derive(Default)]
#[repr(align(128))]
struct Shard(Mutex<FxHashMap<Ino, Entry>>);

/// Inodes by number.
#[derive(Default)]
pub(crate) struct InodeTable {
    shards: [Shard; SHARDS],
    epoch: AtomicU64,
}

impl InodeTable {
    fn shard(&self, ino: Ino) -> &Mutex<FxHashMap<Ino, Entry>> {
        // Fibonacci hashing: numbers given out in sequence spread over all shards.
        let spread = ino.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60;
        &self.shards[spread as usize % SHARDS].0
    }

    /// To be read before the libservice is asked.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Enters a new inode. A former one of this number may still be on its way out.
    pub(crate) fn insert(&self, node: &Node) {
        let entry = Entry { id: node.id, inode: Arc::downgrade(node) };
        let former = self.shard(node.ino()).lock().insert(node.ino(), entry);
        drop(former);
    }

    /// The inode of that number, built if it is not alive. `None`: ask the libservice again.
    pub(crate) fn find_or_insert(
        &self,
        ino: Ino,
        generation: u64,
        epoch: u64,
        build: impl FnOnce() -> Node,
    ) -> Option<Node> {
        let mut shard = self.shard(ino).lock();
        let former = match shard.get(&ino) {
            Some(entry) => Some(entry.inode.upgrade()?),
            None if self.epoch() != epoch => return None,
            None => None,
        };
        if let Some(node) = former.as_ref().filter(|node| node.generation() == generation) {
            return Some(node.clone());
        }
        let node = build();
        shard.insert(ino, Entry { id: node.id, inode: Arc::downgrade(&node) });
        // `former`, if any, may be the last reference: it must not be dropped under the lock.
        drop(shard);
        drop(former);
        Some(node)
    }

    /// The inode of that number, if it is alive. To be dropped without locks.
    pub(crate) fn live(&self, ino: Ino) -> Option<Node> {
        self.shard(ino).lock().get(&ino)?.inode.upgrade()
    }

    /// Removes an inode that the libservice has forgotten.
    pub(crate) fn remove(&self, inode: &Inode) {
        let mut shard = self.shard(inode.ino()).lock();
        if shard.get(&inode.ino()).is_some_and(|entry| entry.id == inode.id) {
            shard.remove(&inode.ino());
        }
        // An inode without links cannot be the result of a lookup that is under way.
        if inode.nlink() != 0 {
            self.epoch.fetch_add(1, Ordering::Release);
        }
    }

    /// Inodes alive.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().len()).sum()
    }
}
