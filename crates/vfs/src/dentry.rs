//! The private dentry table: names that were looked up, present ones and absent ones.
//!
//! Hashed by (directory, name) into shards of one lock each. A shard is a slab of slots, chained
//! from buckets; a full shard reuses the slot that CLOCK picks. A positive entry keeps its inode
//! alive, so this table is also the LRU of unused inodes.
//!
//! # Invariants
//!
//! - An entry says what the libservice would say, because every change of a directory changes the
//!   table while it holds the lock of the directory's entries.
//! - Directories are named by `Inode::id`, which is never used again: entries of a directory that
//!   went away are never found and age out.
//! - No inode is dropped while a shard is locked: that calls the libservice.

use std::hash::Hasher;

use rustc_hash::FxHasher;

use polylane_base::sync::Mutex;

use crate::inode::Node;
use crate::name::Name;

const SHARDS: usize = 16;

/// Names kept in all. A slot takes 64 bytes, an inode some 300.
pub(crate) const DENTRIES_MAX: usize = 1 << 16;

const SLOTS_MAX: usize = DENTRIES_MAX / SHARDS;

/// End of a chain.
const NONE: u32 = u32::MAX;

/// What the table knows of a name.
pub(crate) enum Cached {
    /// Nothing.
    Miss,
    /// It does not exist.
    Negative,
    /// It names this inode.
    Positive(Node),
}

struct Slot {
    hash: u32,
    next: u32,
    dir: u64,
    node: Option<Node>,
    name: Name,
    /// Used since the CLOCK hand passed.
    hot: bool,
    /// In a chain, not in the free list.
    live: bool,
}

const _: () = assert!(size_of::<Slot>() <= 64);

struct Shard {
    slots: Vec<Slot>,
    buckets: Vec<u32>,
    free: u32,
    hand: usize,
    live: usize,
    /// Names asked for and known. Counted here because the shard is locked anyway.
    hits: u64,
    /// Names asked for and not known.
    misses: u64,
}

impl Default for Shard {
    fn default() -> Self {
        Shard {
            slots: Vec::new(),
            buckets: vec![NONE; 16],
            free: NONE,
            hand: 0,
            live: 0,
            hits: 0,
            misses: 0,
        }
    }
}

#[derive(Default)]
#[repr(align(128))]
struct Aligned(Mutex<Shard>);

/// Names by (directory, name).
#[derive(Default)]
pub(crate) struct DentryTable {
    shards: [Aligned; SHARDS],
}

fn hash(dir: u64, name: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write_u64(dir);
    hasher.write(name);
    hasher.finish()
}

impl DentryTable {
    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        &self.shards[(hash >> 60) as usize % SHARDS].0
    }

    /// What is known of `name` in `dir`.
    pub(crate) fn get(&self, dir: u64, name: &[u8]) -> Cached {
        let hash = hash(dir, name);
        let mut shard = self.shard(hash).lock();
        let Some(at) = shard.find(hash as u32, dir, name) else {
            shard.misses += 1;
            return Cached::Miss;
        };
        shard.hits += 1;
        let slot = &mut shard.slots[at];
        slot.hot = true;
        slot.node.as_ref().map_or(Cached::Negative, |node| Cached::Positive(node.clone()))
    }

    /// Keeps what `name` in `dir` names: an inode, or nothing.
    pub(crate) fn put(&self, dir: u64, name: &[u8], node: Option<&Node>) {
        let hash = hash(dir, name);
        let former = self.shard(hash).lock().put(hash as u32, dir, name, node.cloned());
        drop(former);
    }

    /// Knows nothing of `name` in `dir` from now on.
    pub(crate) fn remove(&self, dir: u64, name: &[u8]) {
        let hash = hash(dir, name);
        let former = self.shard(hash).lock().remove(hash as u32, dir, name);
        drop(former);
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let former = std::mem::take(&mut *shard.0.lock());
            drop(former);
        }
    }

    /// Sums over all shards: (entries now, hits, misses).
    pub(crate) fn totals(&self) -> (u64, u64, u64) {
        self.shards.iter().fold((0, 0, 0), |(live, hits, misses), shard| {
            let shard = shard.0.lock();
            (live + shard.live as u64, hits + shard.hits, misses + shard.misses)
        })
    }
}

impl Shard {
    fn bucket(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    fn find(&self, hash: u32, dir: u64, name: &[u8]) -> Option<usize> {
        let mut at = self.buckets[self.bucket(hash)];
        while at != NONE {
            let slot = &self.slots[at as usize];
            if slot.hash == hash && slot.dir == dir && *slot.name == *name {
                return Some(at as usize);
            }
            at = slot.next;
        }
        None
    }

    /// Returns what must be dropped once the shard is unlocked.
    fn put(&mut self, hash: u32, dir: u64, name: &[u8], node: Option<Node>) -> Option<Node> {
        if let Some(at) = self.find(hash, dir, name) {
            self.slots[at].hot = true;
            return std::mem::replace(&mut self.slots[at].node, node);
        }
        let evicted =
            if self.free == NONE && self.slots.len() >= SLOTS_MAX { self.evict() } else { None };
        let slot =
            Slot { hash, next: NONE, dir, node, name: Name::new(name), hot: true, live: true };
        let at = self.place(slot);
        let bucket = self.bucket(hash);
        self.slots[at].next = self.buckets[bucket];
        self.buckets[bucket] = at as u32;
        self.live += 1;
        evicted
    }

    fn place(&mut self, slot: Slot) -> usize {
        if self.free != NONE {
            let at = self.free as usize;
            self.free = self.slots[at].next;
            self.slots[at] = slot;
            return at;
        }
        self.slots.push(slot);
        if self.slots.len() > self.buckets.len() {
            self.grow();
        }
        self.slots.len() - 1
    }

    fn grow(&mut self) {
        let count = self.buckets.len() * 2;
        self.buckets.clear();
        self.buckets.resize(count, NONE);
        // The newest slot is chained by its maker.
        for at in 0..self.slots.len() - 1 {
            if self.slots[at].live {
                let bucket = self.bucket(self.slots[at].hash);
                self.slots[at].next = self.buckets[bucket];
                self.buckets[bucket] = at as u32;
            }
        }
    }

    fn remove(&mut self, hash: u32, dir: u64, name: &[u8]) -> Option<Node> {
        let at = self.find(hash, dir, name)?;
        self.unchain(at)
    }

    /// Frees the slot at `at`.
    fn unchain(&mut self, at: usize) -> Option<Node> {
        let bucket = self.bucket(self.slots[at].hash);
        let next = self.slots[at].next;
        if self.buckets[bucket] == at as u32 {
            self.buckets[bucket] = next;
        } else {
            let mut before = self.buckets[bucket] as usize;
            while self.slots[before].next != at as u32 {
                before = self.slots[before].next as usize;
            }
            self.slots[before].next = next;
        }
        let slot = &mut self.slots[at];
        slot.live = false;
        slot.next = self.free;
        self.free = at as u32;
        self.live -= 1;
        self.slots[at].node.take()
    }

    /// Frees one slot of a full shard: the first that was not used since the hand last passed it.
    fn evict(&mut self) -> Option<Node> {
        loop {
            let at = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            let slot = &mut self.slots[at];
            if slot.hot {
                slot.hot = false;
            } else if slot.live {
                return self.unchain(at);
            }
        }
    }
}
