//! Free blocks and inodes: one lock per group, free extents indexed in memory.
//!
//! A group's bitmaps are read when the group is first used. The block bitmap on disk and the free
//! extents in memory differ on purpose: a freed block is clear on disk as of the freeing
//! transaction, but joins the free extents only when that transaction has committed, so that it is
//! never used again before its former owner's removal is durable.
//!
//! # Locking
//!
//! `journal handle → group → bitmap block`. One group at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};

use polylane_base::Errno;
use polylane_base::sync::{Arc, Mutex, MutexGuard};
use rustc_hash::FxHashSet;

use crate::cache::{BlockCache, MetaBlock, Seal};
use crate::error::{Corrupt, Error, Result, Structure};
use crate::format::group::{BLOCK_UNINIT, GroupDescriptor, INODE_UNINIT, descriptor_place};
use crate::format::superblock::{Geometry, Superblock};
use crate::format::{DeviceBlock, GroupIndex, bitmap, checksum};
use crate::io::BlockIo;
use crate::journal::{Freed, Handle};

/// The allocator of one file system.
pub struct Allocator {
    io: Arc<BlockIo>,
    cache: Arc<BlockCache>,
    geometry: Geometry,
    layout: Layout,
    groups: Vec<Mutex<Group>>,
    free_blocks: AtomicI64,
    free_inodes: AtomicI64,
    reserved_blocks: AtomicI64,
}

/// What the allocator needs of the superblock beside its geometry.
struct Layout {
    superblock: Superblock,
    seed: u32,
    has_sums: bool,
}

/// Blocks set aside for one writer, all in one group.
#[derive(Debug)]
pub struct Claim {
    /// First block.
    pub start: DeviceBlock,
    /// Blocks, at least one.
    pub count: u32,
}

struct Group {
    index: GroupIndex,
    descriptor: GroupDescriptor,
    blocks: Option<BlockMap>,
    inodes: Option<Arc<MetaBlock>>,
}

struct BlockMap {
    bitmap: Arc<MetaBlock>,
    free: FreeExtents,
}

/// Free extents of a group: by position and by size.
#[derive(Default)]
struct FreeExtents {
    by_start: BTreeMap<u32, u32>,
    by_size: BTreeSet<(u32, u32)>,
}

impl FreeExtents {
    fn from_bitmap(bits: &[u8], blocks: u32) -> Self {
        let mut free = FreeExtents::default();
        let mut at = 0;
        while let Some(start) = bitmap::first_clear(bits, at, blocks) {
            let end = bitmap::first_set(bits, start, blocks).unwrap_or(blocks);
            free.put(start, end - start);
            at = end;
        }
        free
    }

    fn put(&mut self, start: u32, count: u32) {
        self.by_start.insert(start, count);
        self.by_size.insert((count, start));
    }

    fn drop_extent(&mut self, start: u32, count: u32) {
        self.by_start.remove(&start);
        self.by_size.remove(&(count, start));
    }

    /// Adds a freed run and joins it with its neighbours.
    fn add(&mut self, mut start: u32, mut count: u32) {
        if let Some((left, length)) = self.by_start.range(..start).next_back().map(|e| (*e.0, *e.1))
            && left + length == start
        {
            self.drop_extent(left, length);
            (start, count) = (left, count + length);
        }
        if let Some(length) = self.by_start.get(&(start + count)).copied() {
            self.drop_extent(start + count, length);
            count += length;
        }
        self.put(start, count);
    }

    /// Takes up to `want` blocks: at `goal` if it is free, else behind it if a run is long enough,
    /// else the smallest run that is, else the longest there is (if at least `least`).
    fn take(&mut self, goal: u32, want: u32, least: u32) -> Option<(u32, u32)> {
        let (start, length, from) = self.pick(goal, want, least)?;
        let count = want.min(length - (from - start));
        self.drop_extent(start, length);
        if from > start {
            self.put(start, from - start);
        }
        let (end, taken_end) = (start + length, from + count);
        if taken_end < end {
            self.put(taken_end, end - taken_end);
        }
        Some((from, count))
    }

    fn pick(&self, goal: u32, want: u32, least: u32) -> Option<(u32, u32, u32)> {
        let around = self.by_start.range(..=goal).next_back().map(|(s, l)| (*s, *l));
        if let Some((start, length)) = around.filter(|(s, l)| s + l > goal)
            && start + length - goal >= want.min(length)
        {
            return Some((start, length, goal));
        }
        let behind = self.by_start.range(goal..).take(16).find(|(_, length)| **length >= want);
        if let Some((start, length)) = behind {
            return Some((*start, *length, *start));
        }
        let fit = self.by_size.range((want, 0)..).next().or_else(|| self.by_size.last());
        fit.filter(|(length, _)| *length >= least).map(|(length, start)| (*start, *length, *start))
    }
}

impl Allocator {
    /// Reads all group descriptors.
    ///
    /// # Errors
    /// The device failed or a descriptor is corrupt.
    pub fn open(
        io: Arc<BlockIo>,
        cache: Arc<BlockCache>,
        superblock: &Superblock,
    ) -> Result<Allocator> {
        let geometry = superblock.geometry;
        let mut groups = Vec::with_capacity(geometry.group_count as usize);
        for index in (0..geometry.group_count).map(GroupIndex) {
            let (block, offset) = descriptor_place(&geometry, index);
            let block = cache.get(&io, block, Seal::None, |_| Ok(()))?;
            let descriptor = GroupDescriptor::decode(superblock, index, &block.read()[offset..])?;
            groups.push(Group { index, descriptor, blocks: None, inodes: None });
        }
        let sum = |count: fn(&GroupDescriptor) -> u32| -> i64 {
            groups.iter().map(|group| i64::from(count(&group.descriptor))).sum()
        };
        let free_blocks = sum(GroupDescriptor::free_blocks);
        let free_inodes = sum(GroupDescriptor::free_inodes);
        let layout = Layout {
            seed: superblock.checksum_seed(),
            has_sums: superblock.has_checksums(),
            superblock: superblock.clone(),
        };
        Ok(Allocator {
            io,
            cache,
            geometry,
            layout,
            groups: groups.into_iter().map(Mutex::new).collect(),
            free_blocks: AtomicI64::new(free_blocks),
            free_inodes: AtomicI64::new(free_inodes),
            reserved_blocks: AtomicI64::new(0),
        })
    }

    /// Free blocks that nobody reserved.
    pub fn available_blocks(&self) -> u64 {
        let free = self.free_blocks.load(Ordering::Relaxed);
        (free - self.reserved_blocks.load(Ordering::Relaxed)).max(0) as u64
    }

    /// Free inodes.
    pub fn free_inodes(&self) -> u32 {
        self.free_inodes.load(Ordering::Relaxed).max(0) as u32
    }

    /// Promises `count` blocks to delayed writes.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub fn reserve(&self, count: u64) -> Result<()> {
        let before = self.reserved_blocks.fetch_add(count as i64, Ordering::AcqRel);
        if before + count as i64 > self.free_blocks.load(Ordering::Acquire) {
            self.unreserve(count);
            return Err(Errno::ENOSPC.into());
        }
        Ok(())
    }

    /// Takes a promise back: the blocks were allocated, or are not needed.
    pub fn unreserve(&self, count: u64) {
        self.reserved_blocks.fetch_sub(count as i64, Ordering::AcqRel);
    }

    /// The group of `block`, and its number in it.
    fn split(&self, block: DeviceBlock) -> (GroupIndex, u32) {
        let offset = block.0.saturating_sub(self.geometry.first_data_block.into());
        let per_group = u64::from(self.geometry.blocks_per_group);
        let group = (offset / per_group).min(u64::from(self.geometry.group_count) - 1);
        (GroupIndex(group as u32), (offset % per_group) as u32)
    }

    fn group(&self, index: GroupIndex) -> MutexGuard<'_, Group> {
        self.groups[index.0 as usize].lock()
    }

    /// All groups, `first` first.
    fn ring(&self, first: GroupIndex) -> impl Iterator<Item = GroupIndex> {
        let count = self.geometry.group_count;
        (0..count).map(move |step| GroupIndex((first.0 + step) % count))
    }

    /// Allocates one metadata block near `goal`.
    ///
    /// # Errors
    /// As [`Allocator::claim`].
    pub fn allocate(&self, handle: &Handle<'_>, goal: DeviceBlock) -> Result<DeviceBlock> {
        let claim = self.claim(goal, 1)?;
        handle.claim_metadata(claim.start);
        let block = claim.start;
        self.mark(handle, claim);
        Ok(block)
    }

    /// Sets 1 to `want` adjacent blocks near `goal` aside, in memory only: data can be written to
    /// them before any transaction says that they are in use.
    ///
    /// # Errors
    /// `ENOSPC`, the device's, or a corrupt bitmap.
    pub fn claim(&self, goal: DeviceBlock, want: u32) -> Result<Claim> {
        let (first, within) = self.split(goal);
        // First look for a run of the whole length, then for anything.
        for least in [want, 1] {
            for index in self.ring(first) {
                let mut group = self.group(index);
                if group.descriptor.free_blocks() < least {
                    continue;
                }
                self.load_blocks(&mut group)?;
                let goal = if index == first { within } else { 0 };
                let taken = group.blocks.as_mut().and_then(|b| b.free.take(goal, want, least));
                if let Some((start, count)) = taken {
                    self.free_blocks.fetch_sub(count.into(), Ordering::AcqRel);
                    let start = self.geometry.first_block(index) + u64::from(start);
                    return Ok(Claim { start: DeviceBlock(start), count });
                }
            }
            if want == 1 {
                break;
            }
        }
        Err(Errno::ENOSPC.into())
    }

    /// Marks claimed blocks in use, as part of the handle's transaction.
    pub fn mark(&self, handle: &Handle<'_>, claim: Claim) {
        let (index, start) = self.split(claim.start);
        let mut group = self.group(index);
        if let Some(blocks) = &group.blocks {
            bitmap::set(&mut handle.modify(&blocks.bitmap), start, claim.count);
        }
        let descriptor = &mut group.descriptor;
        descriptor.set_free_blocks(descriptor.free_blocks().saturating_sub(claim.count));
        descriptor.set_flags(descriptor.flags() & !BLOCK_UNINIT);
        handle.touch_group(index);
    }

    /// Gives claimed blocks back that were never marked.
    pub fn unclaim(&self, claim: Claim) {
        self.release(&[Freed { start: claim.start, count: claim.count }]);
    }

    /// Frees adjacent blocks of any groups; they are used again after the handle's transaction.
    ///
    /// # Errors
    /// The device's, or a bitmap that says they are free already.
    pub fn free(&self, handle: &Handle<'_>, start: DeviceBlock, count: u32) -> Result<()> {
        let (mut at, mut left) = (start, count);
        while left > 0 {
            let (index, within) = self.split(at);
            let part = left.min(self.geometry.blocks_in(index).saturating_sub(within));
            let mut group = self.group(index);
            self.load_blocks(&mut group)?;
            group.clear(handle, within, part)?;
            drop(group);
            handle.free(at, part);
            (at, left) = (DeviceBlock(at.0 + u64::from(part)), left - part);
        }
        Ok(())
    }

    /// Frees one metadata block, with a revoke: older versions in the log must not be replayed.
    ///
    /// # Errors
    /// As [`Allocator::free`].
    pub fn free_metadata(&self, handle: &Handle<'_>, home: DeviceBlock) -> Result<()> {
        let (index, within) = self.split(home);
        let mut group = self.group(index);
        self.load_blocks(&mut group)?;
        group.clear(handle, within, 1)?;
        drop(group);
        handle.free_metadata(&self.cache, home);
        Ok(())
    }

    /// Gives blocks freed by a committed transaction back to allocation.
    pub fn release(&self, freed: &[Freed]) {
        for run in freed {
            let (index, within) = self.split(run.start);
            if let Some(blocks) = &mut self.group(index).blocks {
                blocks.free.add(within, run.count);
            }
            self.free_blocks.fetch_add(run.count.into(), Ordering::AcqRel);
        }
    }

    fn load_blocks(&self, group: &mut Group) -> Result<()> {
        if group.blocks.is_some() {
            return Ok(());
        }
        let blocks = self.geometry.blocks_in(group.index);
        let home = group.descriptor.block_bitmap();
        let bitmap = if group.descriptor.flags() & BLOCK_UNINIT != 0 {
            let block = self.cache.create(&self.io, home, Seal::None);
            self.initial_bitmap(group, &mut block.data.write());
            block
        } else {
            let corrupt = |field| Corrupt::new(Structure::BlockBitmap, group.index.0.into(), field);
            let block = self.cache.get(&self.io, home, Seal::None, |bits| {
                let sum = self.blocks_sum(bits);
                let stored = group.descriptor.block_bitmap_checksum();
                match !self.layout.has_sums || group.descriptor.checksum_matches(stored, sum) {
                    true => Ok(()),
                    false => Err(Error::from(corrupt("checksum"))),
                }
            })?;
            if bitmap::count_clear(&block.read(), blocks) != group.descriptor.free_blocks() {
                return Err(corrupt("free count differs from the descriptor's").into());
            }
            block
        };
        let free = FreeExtents::from_bitmap(&bitmap.read(), blocks);
        group.blocks = Some(BlockMap { bitmap, free });
        Ok(())
    }

    /// The bitmap of a group that was never used: its own metadata is all that is taken.
    fn initial_bitmap(&self, group: &Group, bits: &mut [u8]) {
        let geometry = &self.geometry;
        let blocks = geometry.blocks_in(group.index);
        let first = geometry.first_block(group.index);
        bitmap::set(bits, blocks, bits.len() as u32 * 8 - blocks);
        if self.layout.superblock.has_copy(group.index) {
            let table = geometry.group_count.div_ceil(geometry.descriptors_per_block());
            let reserved = u32::from(self.layout.superblock.reserved_descriptor_blocks());
            bitmap::set(bits, 0, (1 + table + reserved).min(blocks));
        }
        let own = [
            (group.descriptor.block_bitmap(), 1),
            (group.descriptor.inode_bitmap(), 1),
            (group.descriptor.inode_table(), geometry.inode_table_blocks()),
        ];
        for (start, count) in own {
            if (first..first + u64::from(blocks)).contains(&start.0) {
                let at = (start.0 - first) as u32;
                bitmap::set(bits, at, count.min(blocks - at));
            }
        }
    }

    fn blocks_sum(&self, bits: &[u8]) -> u32 {
        checksum::crc(self.layout.seed, &bits[..self.geometry.blocks_per_group as usize / 8])
    }

    fn inodes_sum(&self, bits: &[u8]) -> u32 {
        checksum::crc(self.layout.seed, &bits[..self.geometry.inodes_per_group as usize / 8])
    }

    /// Allocates an inode near `parent`; directories at the top are spread over the groups,
    /// everything else stays in its directory's group if that has room.
    ///
    /// # Errors
    /// `ENOSPC`, the device's, or a corrupt bitmap.
    pub fn allocate_inode(
        &self,
        handle: &Handle<'_>,
        parent: u32,
        is_dir: bool,
        spread: bool,
    ) -> Result<u32> {
        let near = GroupIndex((parent - 1) / self.geometry.inodes_per_group);
        let first = if is_dir && spread { self.emptiest() } else { near };
        for index in self.ring(first) {
            let mut group = self.group(index);
            if group.descriptor.free_inodes() == 0 {
                continue;
            }
            let bits = self.load_inodes(&mut group)?;
            let floor = if index.0 == 0 { self.layout.superblock.first_inode() - 1 } else { 0 };
            let limit = self.geometry.inodes_per_group;
            let found = bitmap::first_clear(&bits.read(), floor, limit);
            let Some(bit) = found else { continue };
            bitmap::set(&mut handle.modify(&bits), bit, 1);
            let descriptor = &mut group.descriptor;
            descriptor.set_free_inodes(descriptor.free_inodes() - 1);
            descriptor.set_directories(descriptor.directories() + u32::from(is_dir));
            descriptor.set_unused_inodes(descriptor.unused_inodes().min(limit - bit - 1));
            descriptor.set_flags(descriptor.flags() & !INODE_UNINIT);
            handle.touch_group(index);
            self.free_inodes.fetch_sub(1, Ordering::Relaxed);
            return Ok(index.0 * limit + bit + 1);
        }
        Err(Errno::ENOSPC.into())
    }

    /// Frees an inode.
    ///
    /// # Errors
    /// The device's, or a bitmap that says it is free already.
    pub fn free_inode(&self, handle: &Handle<'_>, ino: u32, is_dir: bool) -> Result<()> {
        let per_group = self.geometry.inodes_per_group;
        let (index, bit) = (GroupIndex((ino - 1) / per_group), (ino - 1) % per_group);
        let mut group = self.group(index);
        let bits = self.load_inodes(&mut group)?;
        if !bitmap::get(&bits.read(), bit) {
            let field = "freed inode is free already";
            return Err(Corrupt::new(Structure::InodeBitmap, index.0.into(), field).into());
        }
        bitmap::clear(&mut handle.modify(&bits), bit, 1);
        let descriptor = &mut group.descriptor;
        descriptor.set_free_inodes(descriptor.free_inodes() + 1);
        let directories = descriptor.directories().saturating_sub(is_dir.into());
        descriptor.set_directories(directories);
        handle.touch_group(index);
        self.free_inodes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn emptiest(&self) -> GroupIndex {
        let free = |index: &GroupIndex| {
            let group = self.group(*index);
            (group.descriptor.free_inodes(), std::cmp::Reverse(group.descriptor.directories()))
        };
        let all = (0..self.geometry.group_count).map(GroupIndex);
        all.max_by_key(free).unwrap_or_default()
    }

    fn load_inodes(&self, group: &mut Group) -> Result<Arc<MetaBlock>> {
        if let Some(bits) = &group.inodes {
            return Ok(bits.clone());
        }
        let home = group.descriptor.inode_bitmap();
        let per_group = self.geometry.inodes_per_group;
        let block = if group.descriptor.flags() & INODE_UNINIT != 0 {
            let block = self.cache.create(&self.io, home, Seal::None);
            let mut bits = block.data.write();
            let end = bits.len() as u32 * 8;
            bitmap::set(&mut bits, per_group, end - per_group);
            drop(bits);
            block
        } else {
            self.cache.get(&self.io, home, Seal::None, |bits| {
                let sum = self.inodes_sum(bits);
                let stored = group.descriptor.inode_bitmap_checksum();
                match !self.layout.has_sums || group.descriptor.checksum_matches(stored, sum) {
                    true => Ok(()),
                    false => {
                        let object = group.index.0.into();
                        Err(Corrupt::new(Structure::InodeBitmap, object, "checksum").into())
                    }
                }
            })?
        };
        group.inodes = Some(block.clone());
        Ok(block)
    }

    /// Whether `ino` is marked in use.
    ///
    /// # Errors
    /// The device's, or a corrupt bitmap.
    pub fn inode_in_use(&self, ino: u32) -> Result<bool> {
        let per_group = self.geometry.inodes_per_group;
        let mut group = self.group(GroupIndex((ino - 1) / per_group));
        let bits = self.load_inodes(&mut group)?;
        let used = bitmap::get(&bits.read(), (ino - 1) % per_group);
        Ok(used)
    }

    /// Where `ino` lies: the block of the inode table and the offset in it.
    pub fn inode_place(&self, ino: u32) -> (DeviceBlock, usize) {
        let per_group = self.geometry.inodes_per_group;
        let table = self.group(GroupIndex((ino - 1) / per_group)).descriptor.inode_table();
        let byte = u64::from((ino - 1) % per_group) * u64::from(self.geometry.inode_bytes);
        let block_bytes = u64::from(self.geometry.block_bytes);
        (DeviceBlock(table.0 + byte / block_bytes), (byte % block_bytes) as usize)
    }

    /// Brings bitmap checksums and descriptors into the descriptor table's blocks.
    ///
    /// # Errors
    /// The device's.
    pub fn close_groups(&self, touched: &FxHashSet<GroupIndex>) -> Result<Vec<Arc<MetaBlock>>> {
        let mut changed: Vec<Arc<MetaBlock>> = Vec::new();
        for index in touched {
            let mut group = self.group(*index);
            if let Some(blocks) = &group.blocks {
                let sum = self.blocks_sum(&blocks.bitmap.read());
                group.descriptor.set_block_bitmap_checksum(sum);
            }
            if let Some(bits) = &group.inodes {
                let sum = self.inodes_sum(&bits.read());
                group.descriptor.set_inode_bitmap_checksum(sum);
            }
            let (home, offset) = descriptor_place(&self.geometry, *index);
            let block = self.cache.get(&self.io, home, Seal::None, |_| Ok(()))?;
            let superblock = &self.layout.superblock;
            group.descriptor.encode(superblock, *index, &mut block.data.write()[offset..]);
            if !changed.iter().any(|known| known.home == block.home) {
                changed.push(block);
            }
        }
        Ok(changed)
    }
}

impl Group {
    fn clear(&mut self, handle: &Handle<'_>, start: u32, count: u32) -> Result<()> {
        let Some(blocks) = &self.blocks else { return Ok(()) };
        let mut bits = handle.modify(&blocks.bitmap);
        if count == 0 || !bitmap::all_set(&bits, start, count) {
            let field = "freed block is free already";
            return Err(Corrupt::new(Structure::BlockBitmap, self.index.0.into(), field).into());
        }
        bitmap::clear(&mut bits, start, count);
        self.descriptor.set_free_blocks(self.descriptor.free_blocks() + count);
        handle.touch_group(self.index);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_base::rng::Rng;

    #[test]
    fn free_extents_agree_with_a_bitmap() {
        const BLOCKS: u32 = 1000;
        let mut rng = Rng::new(11);
        let mut bits = [0u8; 125];
        let mut free = FreeExtents::from_bitmap(&bits, BLOCKS);
        let mut taken: Vec<(u32, u32)> = Vec::new();
        for _ in 0..5000 {
            if rng.percent(55) {
                let (goal, want) = (rng.below(1000) as u32, 1 + rng.below(60) as u32);
                match free.take(goal, want, 1) {
                    Some((start, count)) => {
                        assert!(count <= want && bitmap::all_clear(&bits, start, count));
                        bitmap::set(&mut bits, start, count);
                        taken.push((start, count));
                    }
                    None => assert_eq!(bitmap::count_clear(&bits, BLOCKS), 0),
                }
            } else if !taken.is_empty() {
                let (start, count) = taken.swap_remove(rng.below(taken.len() as u64) as usize);
                bitmap::clear(&mut bits, start, count);
                free.add(start, count);
            }
            let fresh = FreeExtents::from_bitmap(&bits, BLOCKS);
            assert_eq!(free.by_start, fresh.by_start);
            assert_eq!(free.by_size, fresh.by_size);
        }
    }

    #[test]
    fn a_long_enough_run_is_found_when_there_is_one() {
        let mut free = FreeExtents::default();
        for (start, count) in [(0, 3), (10, 8), (30, 20)] {
            free.put(start, count);
        }
        assert_eq!(free.take(12, 4, 1), Some((12, 4)), "at the goal");
        assert_eq!(free.take(5, 15, 15), Some((30, 15)), "behind the goal");
        assert_eq!(free.take(100, 9, 9), None);
        assert_eq!(free.take(100, 9, 1), Some((45, 5)), "the longest there is");
    }
}
