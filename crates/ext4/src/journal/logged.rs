//! Blocks of files whose newest version the journal holds.
//!
//! The data of a small sync is logged, as metadata is ([`super::form`]). Such a block is *live*
//! until a checkpoint has written it home and the log is known, durably, to begin behind it. While
//! it is live
//!
//! - it is read from here, not from its home;
//! - it is not written in place: a replay would bring the older bytes of the log back. It is logged
//!   again;
//! - the change that frees it revokes it.
//!
//! # Locking
//!
//! `cell → handle → blocks → nothing`. Whether a block is live may change from yes to no at any
//! time; from no to yes only under the lock of its file's cell.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use polylane_base::sync::{Arc, RwLock};
use polylane_sys::buffer::Buffer;

use crate::cache::MetaBlock;
use crate::format::DeviceBlock;

/// So many of them bring a checkpoint about, however little of the log is used: each takes its own
/// size in memory, twice.
pub(super) const LOGGED_MAX: usize = 2048;

/// From so many on commits wait for the checkpoint.
pub(super) const LOGGED_FULL: usize = 4 * LOGGED_MAX;

/// Blocks of files in the log. Thread-safe.
#[derive(Default)]
pub struct Logged {
    blocks: RwLock<BTreeMap<DeviceBlock, Arc<MetaBlock>>>,
    /// How many there are.
    count: AtomicUsize,
}

impl Logged {
    /// Entries, live or not.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Whether there are none; costs next to nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many of `count` blocks from `start` on are all live, or all not, and which.
    pub fn run(&self, start: DeviceBlock, count: u32) -> (bool, u32) {
        if self.is_empty() {
            return (false, count);
        }
        let blocks = self.blocks.read();
        let end = start.0 + u64::from(count);
        let mut live = blocks.range(start..DeviceBlock(end)).filter(|(_, block)| block.is_live());
        match live.next() {
            None => (false, count),
            Some((first, _)) if *first != start => (false, (first.0 - start.0) as u32),
            Some(_) => {
                let next = |count: &u64| DeviceBlock(start.0 + count);
                let all = live.zip(1u64..).take_while(|((home, _), at)| **home == next(at));
                (true, 1 + all.count() as u32)
            }
        }
    }

    /// The live ones of `count` blocks from `start` on. What is not live any more may have been
    /// written in place since.
    pub fn find(&self, start: DeviceBlock, count: u32) -> Vec<Arc<MetaBlock>> {
        if self.is_empty() {
            return Vec::new();
        }
        let end = DeviceBlock(start.0 + u64::from(count));
        let blocks = self.blocks.read();
        let live = blocks.range(start..end).filter(|(_, block)| block.is_live());
        live.map(|(_, block)| block.clone()).collect()
    }

    /// The block at `home`, to be changed under a handle.
    pub(super) fn enter(&self, home: DeviceBlock, block_bytes: usize) -> Arc<MetaBlock> {
        let mut blocks = self.blocks.write();
        let block = blocks
            .entry(home)
            .or_insert_with(|| MetaBlock::of_data(home, Buffer::zeroed(block_bytes)))
            .clone();
        self.count.store(blocks.len(), Ordering::Release);
        block
    }

    /// Takes `count` blocks from `start` on out: they are freed. Returns the live ones.
    pub(super) fn take(&self, start: DeviceBlock, count: u32) -> Vec<DeviceBlock> {
        if self.is_empty() {
            return Vec::new();
        }
        let range = start..DeviceBlock(start.0 + u64::from(count));
        let mut blocks = self.blocks.write();
        let found: Vec<_> = blocks.range(range).map(|(home, _)| *home).collect();
        let taken = found.into_iter().filter_map(|home| blocks.remove(&home));
        let live = taken.filter(|block| block.is_live()).map(|block| block.home).collect();
        self.count.store(blocks.len(), Ordering::Release);
        live
    }

    /// Forgets those that are not live any more.
    pub(super) fn sweep(&self) {
        if self.is_empty() {
            return;
        }
        let mut blocks = self.blocks.write();
        // One that a handle is about to change is held by it.
        blocks.retain(|_, block| block.is_live() || Arc::strong_count(block) > 1);
        self.count.store(blocks.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap as Model;

    use polylane_base::rng::Rng;

    use super::*;

    const BLOCKS: u64 = 60;

    fn agree(logged: &Logged, model: &Model<u64, bool>) {
        let live = |at: u64| model.get(&at) == Some(&true);
        for start in 0..BLOCKS {
            let (first, count) = (live(start), (BLOCKS - start) as u32);
            let same = (start..BLOCKS).take_while(|at| live(*at) == first).count();
            assert_eq!(logged.run(DeviceBlock(start), count), (first, same as u32));
            let found = logged.find(DeviceBlock(start), count);
            let found: Vec<u64> = found.iter().map(|block| block.home.0).collect();
            let all: Vec<u64> = (start..BLOCKS).filter(|at| live(*at)).collect();
            assert_eq!(found, all);
        }
        assert_eq!(logged.is_empty(), model.is_empty());
    }

    /// Live or not is told as a map of flags does.
    #[test]
    fn blocks_agree_with_a_map() {
        let mut rng = Rng::new(27);
        let (logged, mut model) = (Logged::default(), Model::new());
        for _ in 0..if cfg!(miri) { 20 } else { 600 } {
            let (start, count) = (rng.below(BLOCKS), 1 + rng.below(8) as u32);
            let end = (start + u64::from(count)).min(BLOCKS);
            match rng.below(4) {
                0 | 1 => (start..end).for_each(|at| {
                    let block = logged.enter(DeviceBlock(at), 512);
                    block.dirty_in.store(1, Ordering::Release);
                    model.insert(at, true);
                }),
                2 => model.range_mut(start..end).for_each(|(at, live)| {
                    logged.enter(DeviceBlock(*at), 512).dirty_in.store(0, Ordering::Release);
                    *live = false;
                }),
                _ if rng.percent(40) => {
                    logged.sweep();
                    model.retain(|_, live| *live);
                }
                _ => {
                    let taken = logged.take(DeviceBlock(start), (end - start) as u32);
                    let live = (start..end).filter(|at| model.get(at) == Some(&true));
                    assert!(taken.into_iter().map(|home| home.0).eq(live));
                    model.retain(|at, _| !(start..end).contains(at));
                }
            }
            agree(&logged, &model);
        }
    }
}
