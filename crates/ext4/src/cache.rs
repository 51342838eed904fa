//! Metadata blocks in memory, one per device block.
//!
//! A block is read once, checked once, and then shared. It changes only under a journal handle
//! ([`crate::journal::Handle::modify`]). Its checksum is computed when the journal copies it out,
//! once per transaction, by the block's [`Seal`].
//!
//! # Locking
//!
//! `shard → nothing`: a shard's lock is held for table operations only, never across I/O. Two
//! threads that miss the same block read it both; the first to insert wins, and both then share
//! that one.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use polylane_base::sync::{Arc, Mutex, RwLock, RwLockReadGuard};
use polylane_sys::buffer::Buffer;
use rustc_hash::FxHashMap;

use crate::error::Result;
use crate::format::inode::RawInode;
use crate::format::{DeviceBlock, dirent, extent, htree, xattr};
use crate::io::BlockIo;
use crate::orphan;

/// How a block's own checksum is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seal {
    /// None in the block, or made elsewhere (bitmaps, inodes, descriptors).
    None,
    /// A directory's linear block, by the directory's seed.
    Directory(u32),
    /// A directory's index node.
    Index(htree::Place, u32),
    /// An extent tree node.
    Extent(u32),
    /// Extended attributes, by the file system's seed and the block's place.
    Xattr(u32, DeviceBlock),
    /// The orphan file's, by its seed and the block's place.
    Orphans(u32, DeviceBlock),
    /// A part of the inode table, by the file system's seed, the first inode's number and the bytes
    /// of each: those that were stored get their sums, see [`MetaBlock::note_stored`].
    Inodes(u32, u32, usize),
}

impl Seal {
    /// Stores the checksum.
    pub fn apply(self, block: &mut [u8]) {
        match self {
            Seal::None | Seal::Inodes(..) => {}
            Seal::Directory(seed) => dirent::put_checksum(block, seed),
            Seal::Index(place, seed) => htree::put_checksum(block, place, seed),
            Seal::Extent(seed) => extent::put_checksum(block, seed),
            Seal::Xattr(seed, home) => xattr::put_checksum(block, seed, home.0),
            Seal::Orphans(seed, home) => orphan::put_checksum(block, seed, home),
        }
    }

    /// Whether the stored checksum is right.
    pub fn verify(self, block: &[u8]) -> bool {
        match self {
            Seal::None | Seal::Inodes(..) => true,
            Seal::Directory(seed) => dirent::checksum_ok(block, seed),
            Seal::Index(place, seed) => htree::checksum_ok(block, place, seed),
            Seal::Extent(seed) => extent::checksum_ok(block, seed),
            Seal::Xattr(seed, home) => xattr::checksum_ok(block, seed, home.0),
            Seal::Orphans(seed, home) => orphan::checksum_ok(block, seed, home),
        }
    }
}

/// A metadata block.
pub struct MetaBlock {
    /// Its home on the device.
    pub home: DeviceBlock,
    pub(crate) data: RwLock<Buffer>,
    pub(crate) seal: Mutex<Seal>,
    /// The running transaction that has it on its list, 0 for none.
    pub(crate) dirty_in: AtomicU64,
    /// The journal holds a newer version than the home: it must not be read from there.
    pub(crate) home_is_old: AtomicBool,
    /// Closed transactions that hold a version of it and have not committed.
    pub(crate) closed_in: AtomicU32,
    used: AtomicBool,
    /// Inodes whose checksums have not been made yet, a bit for each.
    stored: AtomicU32,
}

impl MetaBlock {
    fn new(home: DeviceBlock, data: Buffer, seal: Seal) -> Arc<Self> {
        Arc::new(MetaBlock {
            home,
            data: RwLock::new(data),
            seal: Mutex::new(seal),
            dirty_in: AtomicU64::new(0),
            home_is_old: AtomicBool::new(false),
            closed_in: AtomicU32::new(0),
            used: AtomicBool::new(true),
            stored: AtomicU32::new(0),
        })
    }

    /// One that is in no cache and has no place on the device: what would be a block if it had one.
    pub fn apart(data: Buffer) -> Arc<Self> {
        MetaBlock::new(DeviceBlock(0), data, Seal::None)
    }

    /// A block of a file, which only the journal's log has beside its home.
    pub(crate) fn of_data(home: DeviceBlock, data: Buffer) -> Arc<Self> {
        MetaBlock::new(home, data, Seal::None)
    }

    /// Whether the journal holds a version of it that its home may not have.
    pub(crate) fn is_live(&self) -> bool {
        !self.is_clean()
    }

    /// The bytes, for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, Buffer> {
        self.data.read()
    }

    /// Changes how the block is sealed: a leaf that becomes an index node, say.
    pub fn set_seal(&self, seal: Seal) {
        *self.seal.lock() = seal;
    }

    /// Notes that the inode at `index` of the block was stored without a checksum. For the holder
    /// of the block's lock for writing.
    pub fn note_stored(&self, index: usize) {
        self.stored.fetch_or(1 << index, Ordering::AcqRel);
    }

    /// Whether the inode at `index` waits for its checksum. For a holder of the block's lock.
    pub fn is_stored(&self, index: usize) -> bool {
        self.stored.load(Ordering::Acquire) & 1 << index != 0
    }

    /// Makes the checksums of `data`, which is this block's.
    pub fn seal(&self, data: &mut [u8]) {
        let seal = *self.seal.lock();
        seal.apply(data);
        let Seal::Inodes(seed, first, bytes) = seal else { return };
        let mut stored = self.stored.swap(0, Ordering::AcqRel);
        while stored != 0 {
            let index = stored.trailing_zeros();
            stored &= stored - 1;
            let place = &mut data[index as usize * bytes..][..bytes];
            let mut raw = RawInode::from_bytes(place);
            raw.put_checksum(seed, first + index);
            place.copy_from_slice(raw.bytes());
        }
    }

    fn is_clean(&self) -> bool {
        self.dirty_in.load(Ordering::Acquire) == 0 && !self.home_is_old.load(Ordering::Acquire)
    }
}

const SHARDS: usize = 64;

/// All cached metadata blocks of one file system.
pub struct BlockCache {
    shards: Vec<Mutex<FxHashMap<DeviceBlock, Arc<MetaBlock>>>>,
    count: AtomicUsize,
    limit: usize,
}

impl BlockCache {
    /// A cache that evicts clean blocks above `limit` of them.
    pub fn new(limit: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        BlockCache { shards, count: AtomicUsize::new(0), limit: limit.max(SHARDS) }
    }

    fn shard(&self, home: DeviceBlock) -> &Mutex<FxHashMap<DeviceBlock, Arc<MetaBlock>>> {
        // Adjacent blocks go to different shards.
        &self.shards[home.0 as usize % SHARDS]
    }

    /// The block at `home`, read from the device if need be and then passed to `check` once.
    ///
    /// # Errors
    /// The device's or the check's.
    pub fn get(
        &self,
        io: &BlockIo,
        home: DeviceBlock,
        seal: Seal,
        check: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<Arc<MetaBlock>> {
        if let Some(block) = self.peek(home) {
            return Ok(block);
        }
        let data = io.read(home)?;
        check(&data)?;
        Ok(self.insert(MetaBlock::new(home, data, seal)))
    }

    /// The block at `home` if it is cached.
    pub fn peek(&self, home: DeviceBlock) -> Option<Arc<MetaBlock>> {
        let block = self.shard(home).lock().get(&home).cloned()?;
        block.used.store(true, Ordering::Relaxed);
        Some(block)
    }

    /// A block that was just allocated: zeros, whatever the device holds.
    pub fn create(&self, io: &BlockIo, home: DeviceBlock, seal: Seal) -> Arc<MetaBlock> {
        let block = MetaBlock::new(home, Buffer::zeroed(io.block_bytes()), seal);
        if self.shard(home).lock().insert(home, block.clone()).is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        block
    }

    fn insert(&self, block: Arc<MetaBlock>) -> Arc<MetaBlock> {
        let kept = {
            let mut shard = self.shard(block.home).lock();
            let entry = shard.entry(block.home);
            if matches!(entry, std::collections::hash_map::Entry::Vacant(_)) {
                self.count.fetch_add(1, Ordering::Relaxed);
            }
            entry.or_insert(block).clone()
        };
        if self.count.load(Ordering::Relaxed) > self.limit {
            self.evict(kept.home);
        }
        kept
    }

    /// Forgets a block that was freed: its content means nothing any more.
    pub fn forget(&self, home: DeviceBlock) {
        if self.shard(home).lock().remove(&home).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// One sweep over the shard of `near`: clean blocks that nobody holds and nobody used since the
    /// last sweep go.
    fn evict(&self, near: DeviceBlock) {
        let mut shard = self.shard(near).lock();
        let before = shard.len();
        shard.retain(|home, block| {
            let idle = Arc::strong_count(block) == 1 && block.is_clean() && *home != near;
            !idle || block.used.swap(false, Ordering::Relaxed)
        });
        self.count.fetch_sub(before - shard.len(), Ordering::Relaxed);
    }

    /// Blocks cached.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use polylane_block::ram::RamDevice;

    use super::*;

    /// However much is read, what is kept is what was allowed, and one sweep of a shard more.
    #[test]
    fn the_limit_is_kept() {
        const BLOCKS: u64 = if cfg!(miri) { 700 } else { 20_000 };
        let io = BlockIo::new(std::sync::Arc::new(RamDevice::new(BLOCKS * 8)), 4096, BLOCKS);
        let cache = BlockCache::new(256);
        let held: Vec<_> = (0..40)
            .map(|n| cache.get(&io, DeviceBlock(n * 5), Seal::None, |_| Ok(())).expect("read"))
            .collect();
        let mut most = 0;
        for step in 0..3 * BLOCKS {
            let home = DeviceBlock(step * 7919 % BLOCKS);
            cache.get(&io, home, Seal::None, |_| Ok(())).expect("read");
            most = most.max(cache.len());
        }
        assert!(most <= 256 + 2 * SHARDS + held.len(), "{most} blocks");
        assert!(held.iter().all(|block| cache.peek(block.home).is_some()), "what is used stays");
    }
}
