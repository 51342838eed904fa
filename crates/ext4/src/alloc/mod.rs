//! Free blocks and inodes: one lock per group, free extents indexed in memory.
//!
//! A group's bitmaps are read when the group is first used. The block bitmap on disk and the free
//! extents in memory differ on purpose: a freed block is clear on disk as of the freeing
//! transaction, but joins the free extents only when that transaction has committed, so that it is
//! never used again before its former owner's removal is durable.
//!
//! # Locking
//!
//! `journal handle → group → bitmap block`. One group at a time. A thread that looks for room and
//! finds a group's lock taken tries the groups nearby before it waits for any, as XFS does: cores
//! that allocate at the same time so come to groups of their own, and go on there, since what
//! follows is allocated near what was there before.

mod aside;
mod free;
mod inodes;
mod trim;

use std::sync::atomic::{AtomicI64, Ordering};

use polylane_base::Errno;
use polylane_base::sync::{Arc, Mutex, MutexGuard};
use rustc_hash::FxHashSet;

use crate::cache::{BlockCache, MetaBlock, Seal};
use crate::error::{Corrupt, Error, Result, Structure};
use crate::format::group::{GroupDescriptor, GroupFlags, descriptor_place};
use crate::format::superblock::{Geometry, Incompat, Superblock};
use crate::format::{DeviceBlock, GroupIndex, bitmap, checksum};
use crate::io::BlockIo;
use crate::journal::{Freed, Handle};
use free::FreeExtents;

/// Groups that are tried before one whose lock is taken is waited for: mke2fs' flex group.
const GROUPS_NEARBY: usize = 16;

/// The allocator of one file system.
pub struct Allocator {
    io: Arc<BlockIo>,
    cache: Arc<BlockCache>,
    geometry: Geometry,
    layout: Layout,
    groups: Vec<Mutex<Group>>,
    /// Where each group's inode table begins; it never moves.
    inode_tables: Vec<DeviceBlock>,
    free_blocks: AtomicI64,
    free_inodes: AtomicI64,
    /// Free inodes that somebody has been promised.
    promised_inodes: AtomicI64,
    /// Free blocks that somebody has been promised.
    promised_blocks: AtomicI64,
    /// Free blocks that only metadata may take, so that names can be removed and files cut when
    /// the file system is full: 0 where new files have block maps.
    pool_blocks: i64,
    /// Free blocks beside those that are kept for privileged users.
    kept_blocks: i64,
    aside: aside::Aside,
}

/// Free blocks kept for one operation's metadata. Dropping it gives back what was not used.
#[must_use]
pub struct Promise<'a> {
    allocator: &'a Allocator,
    count: u64,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.allocator.unreserve(self.count);
    }
}

/// What the allocator needs of the superblock beside its geometry.
struct Layout {
    superblock: Superblock,
    seed: u32,
    has_sums: bool,
}

/// Which free blocks may be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocks {
    /// Those that are not kept for privileged users.
    Common,
    /// All.
    Kept,
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
    /// The block of the descriptor table that holds it, and where in it.
    place: (Arc<MetaBlock>, usize),
    blocks: Option<BlockMap>,
    inodes: Option<Arc<MetaBlock>>,
    /// No inode below this one is free.
    first_free_inode: u32,
    /// The transaction that knows of a change here.
    touched_in: u64,
}

struct BlockMap {
    bitmap: Arc<MetaBlock>,
    free: FreeExtents,
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
        let mut inode_tables = Vec::with_capacity(geometry.group_count as usize);
        for index in (0..geometry.group_count).map(GroupIndex) {
            let (block, offset) = descriptor_place(superblock, index);
            let block = cache.get(&io, block, Seal::None, |_| Ok(()))?;
            let descriptor = GroupDescriptor::decode(superblock, index, &block.read()[offset..])?;
            inode_tables.push(descriptor.inode_table());
            groups.push(Group {
                index,
                descriptor,
                place: (block, offset),
                blocks: None,
                inodes: None,
                first_free_inode: 0,
                touched_in: 0,
            });
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
            promised_inodes: AtomicI64::new(0),
            promised_blocks: AtomicI64::new(0),
            pool_blocks: pool_blocks(superblock),
            kept_blocks: superblock.reserved_blocks().min(1 << 48) as i64,
            inode_tables,
            aside: aside::Aside::default(),
        })
    }

    /// Free blocks that nobody was promised.
    pub fn available_blocks(&self) -> u64 {
        let free = self.free_blocks.load(Ordering::Relaxed);
        (free - self.promised_blocks.load(Ordering::Relaxed)).max(0) as u64
    }

    /// Of those, what only metadata may take.
    pub fn pool_blocks(&self) -> u64 {
        self.pool_blocks as u64
    }

    /// Free inodes.
    pub fn free_inodes(&self) -> u32 {
        self.free_inodes.load(Ordering::Relaxed).max(0) as u32
    }

    /// Free inodes that nobody was promised.
    pub fn available_inodes(&self) -> u32 {
        let free = self.free_inodes.load(Ordering::Relaxed);
        (free - self.promised_inodes.load(Ordering::Relaxed)).max(0) as u32
    }

    /// Promises `count` blocks for data.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub fn reserve(&self, count: u64, from: Blocks) -> Result<()> {
        let kept = if from == Blocks::Kept { 0 } else { self.kept_blocks };
        self.promise_above(count, self.pool_blocks + kept)
    }

    /// Promises `count` blocks for metadata, to privileged users from the pool if need be.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub fn promise(&self, count: u64, from: Blocks) -> Result<Promise<'_>> {
        match from {
            Blocks::Kept => self.promise_above(count, 0)?,
            Blocks::Common => self.reserve(count, from)?,
        }
        Ok(Promise { allocator: self, count })
    }

    fn promise_above(&self, count: u64, floor: i64) -> Result<()> {
        // Not added first and taken back: what somebody is refused must not be missing elsewhere.
        let with = |promised: i64| {
            let promised = promised + count as i64;
            (promised + floor <= self.free_blocks.load(Ordering::Acquire)).then_some(promised)
        };
        if count == 0 {
            return Ok(());
        }
        let kept = self.promised_blocks.fetch_update(Ordering::AcqRel, Ordering::Acquire, with);
        kept.map(drop).map_err(|_| Errno::ENOSPC.into())
    }

    /// Promises `count` inodes.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub fn reserve_inodes(&self, count: u32) -> Result<()> {
        let with = |promised: i64| {
            let promised = promised + i64::from(count);
            (promised <= self.free_inodes.load(Ordering::Acquire)).then_some(promised)
        };
        let kept = self.promised_inodes.fetch_update(Ordering::AcqRel, Ordering::Acquire, with);
        kept.map(drop).map_err(|_| Errno::ENOSPC.into())
    }

    /// Takes a promise of inodes back.
    pub fn unreserve_inodes(&self, count: u32) {
        self.promised_inodes.fetch_sub(i64::from(count), Ordering::AcqRel);
    }

    /// Takes one of the free inodes that nobody was promised; which one is to be found.
    fn take_inode(&self) -> Result<()> {
        let unpromised = |free: i64| {
            let left = free - self.promised_inodes.load(Ordering::Acquire);
            (left > 0).then_some(free - 1)
        };
        let taken = self.free_inodes.fetch_update(Ordering::AcqRel, Ordering::Acquire, unpromised);
        taken.map(drop).map_err(|_| Errno::ENOSPC.into())
    }

    /// Promises blocks for data again that were claimed and are about to be given back.
    pub fn renew(&self, count: u64) {
        self.promised_blocks.fetch_add(count as i64, Ordering::AcqRel);
    }

    /// Takes a promise back: the blocks were allocated, or are not needed.
    pub fn unreserve(&self, count: u64) {
        self.promised_blocks.fetch_sub(count as i64, Ordering::AcqRel);
    }

    /// Claims up to `want` adjacent blocks for data, as many as are not promised to others.
    ///
    /// # Errors
    /// As [`Allocator::claim`].
    pub fn claim_data(&self, goal: DeviceBlock, want: u32, from: Blocks) -> Result<Claim> {
        let mut want = want;
        while let Err(error) = self.reserve(want.into(), from) {
            if want == 1 {
                return Err(error);
            }
            want /= 2;
        }
        let claim = self.claim(goal, want);
        self.unreserve(want.into());
        claim
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

    /// Groups to look for room in, locked: `first` and those nearby that nobody is in, then all in
    /// turn.
    fn candidates(&self, first: GroupIndex) -> impl Iterator<Item = MutexGuard<'_, Group>> {
        let near = self.ring(first).take(GROUPS_NEARBY);
        let idle = near.filter_map(|index| self.groups[index.0 as usize].try_lock());
        idle.chain(self.ring(first).map(|index| self.group(index)))
    }

    /// Allocates one metadata block near `goal`.
    ///
    /// # Errors
    /// As [`Allocator::claim`].
    pub fn allocate(&self, handle: &Handle<'_>, goal: DeviceBlock) -> Result<DeviceBlock> {
        let claim = self.claim(goal, 1)?;
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
        match self.find(goal, want) {
            Err(Error::Errno(Errno::ENOSPC)) if self.end_aside() => self.find(goal, want),
            found => found,
        }
    }

    fn find(&self, goal: DeviceBlock, want: u32) -> Result<Claim> {
        let (first, within) = self.split(goal);
        // First look for a run of the whole length, then for anything.
        for least in [want, 1] {
            for mut group in self.candidates(first) {
                let index = group.index;
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

    /// Sets those of `count` blocks from `start` on aside that are free, in memory only. Each claim
    /// is of one group.
    ///
    /// # Errors
    /// The device's, or a corrupt bitmap.
    pub fn claim_free(&self, start: DeviceBlock, count: u32) -> Result<Vec<Claim>> {
        let mut claims: Vec<Claim> = Vec::new();
        self.each_part(start, count, |group, at, within, part| {
            self.load_blocks(group)?;
            let Some(blocks) = &mut group.blocks else { return Ok(()) };
            for step in (0..part).filter(|step| blocks.free.take_exactly(within + step, 1)) {
                self.free_blocks.fetch_sub(1, Ordering::AcqRel);
                let start = DeviceBlock(at.0 + u64::from(step));
                match claims.last_mut() {
                    Some(last) if step > 0 && last.start.0 + u64::from(last.count) == start.0 => {
                        last.count += 1;
                    }
                    _ => claims.push(Claim { start, count: 1 }),
                }
            }
            Ok(())
        })?;
        Ok(claims)
    }

    /// Whether `block` is marked in use.
    ///
    /// # Errors
    /// The device's, or a corrupt bitmap.
    pub fn block_in_use(&self, block: DeviceBlock) -> Result<bool> {
        let (index, within) = self.split(block);
        let mut group = self.group(index);
        self.load_blocks(&mut group)?;
        let bits = group.blocks.as_ref().map(|blocks| blocks.bitmap.read());
        Ok(bits.is_some_and(|bits| bitmap::get(&bits, within)))
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
        descriptor.set_flags(descriptor.flags() & !GroupFlags::BLOCK_UNINIT);
        group.touch(handle);
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
        self.each_part(start, count, |group, at, within, part| {
            self.load_blocks(group)?;
            group.clear(handle, within, part)?;
            handle.free(at, part);
            Ok(())
        })
    }

    /// Runs `with` on the parts of a run of blocks, one group each: the group, the part's first
    /// block, its number in the group, its length.
    fn each_part(
        &self,
        start: DeviceBlock,
        count: u32,
        mut with: impl FnMut(&mut Group, DeviceBlock, u32, u32) -> Result<()>,
    ) -> Result<()> {
        let (mut at, mut left) = (start, count);
        while left > 0 {
            let (index, within) = self.split(at);
            let part = left.min(self.geometry.blocks_in(index).saturating_sub(within));
            if part == 0 {
                let field = "freed block is outside";
                return Err(Corrupt::new(Structure::BlockBitmap, index.0.into(), field).into());
            }
            with(&mut self.group(index), at, within, part)?;
            (at, left) = (DeviceBlock(at.0 + u64::from(part)), left - part);
        }
        Ok(())
    }

    /// The groups that a run of blocks lies in: first and last.
    pub fn groups_of(&self, start: DeviceBlock, count: u32) -> (GroupIndex, GroupIndex) {
        let last = DeviceBlock(start.0 + u64::from(count.max(1)) - 1);
        (self.split(start).0, self.split(last).0)
    }

    /// Frees adjacent metadata blocks, with revokes: older versions of them in the log must not be
    /// replayed.
    ///
    /// # Errors
    /// As [`Allocator::free`].
    pub fn free_metadata(&self, handle: &Handle<'_>, start: DeviceBlock, count: u32) -> Result<()> {
        self.each_part(start, count, |group, at, within, part| {
            self.load_blocks(group)?;
            group.clear(handle, within, part)?;
            handle.free_metadata(&self.cache, at, part);
            Ok(())
        })
    }

    /// Gives blocks freed by a committed transaction back to allocation.
    pub fn release(&self, freed: &[Freed]) {
        for run in freed {
            self.put_back(run.start, run.count);
            self.free_blocks.fetch_add(run.count.into(), Ordering::AcqRel);
        }
    }

    /// Has blocks of one group be among its free extents again.
    fn put_back(&self, start: DeviceBlock, count: u32) {
        let (index, within) = self.split(start);
        if let Some(blocks) = &mut self.group(index).blocks {
            blocks.free.add(within, count);
        }
    }

    fn load_blocks(&self, group: &mut Group) -> Result<()> {
        if group.blocks.is_some() {
            return Ok(());
        }
        let blocks = self.geometry.blocks_in(group.index);
        let home = group.descriptor.block_bitmap();
        let bitmap = if group.descriptor.flags().contains(GroupFlags::BLOCK_UNINIT) {
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
        bitmap::set(bits, 0, self.layout.superblock.copy_blocks(group.index).min(blocks));
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

    /// Brings bitmap checksums and descriptors into their blocks, when a transaction is closed.
    pub fn seal(&self, handle: &Handle<'_>, touched: &FxHashSet<GroupIndex>) {
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
            let superblock = &self.layout.superblock;
            let (block, offset) = group.place.clone();
            let mut bytes = handle.modify(&block);
            group.descriptor.encode(superblock, *index, &mut bytes[offset..]);
        }
    }
}

/// As many as Linux keeps (`ext4_calculate_resv_clusters`): 2 %, at most 4096, and none where new
/// files have block maps, whose blocks of numbers are made with the promise of what they name.
fn pool_blocks(superblock: &Superblock) -> i64 {
    match superblock.has_incompat(Incompat::EXTENTS) {
        true => (superblock.geometry.block_count / 50).min(4096) as i64,
        false => 0,
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
        drop(bits);
        self.touch(handle);
        Ok(())
    }

    /// Tells the transaction that bitmaps or counters changed.
    fn touch(&mut self, handle: &Handle<'_>) {
        if std::mem::replace(&mut self.touched_in, handle.tid().0) != handle.tid().0 {
            handle.touch_group(self.index);
        }
    }
}

#[cfg(test)]
mod tests {

    use polylane_base::TestClock;
    use polylane_testkit::sim::{SimDisk, SimOptions};

    use super::*;
    use crate::{Ext4, Options};

    /// An image of `groups` groups of 8 MiB. `None`, and said so, without mke2fs.
    fn open(groups: u64) -> Option<Ext4> {
        let image = crate::fresh::image(groups * (8 << 20), &["-b", "4096", "-g", "2048"])?;
        let disk = SimDisk::new(image, SimOptions::default());
        Some(Ext4::open(disk, Arc::new(TestClock::default()), &Options::default()).expect("opens"))
    }

    #[test]
    fn who_finds_a_group_taken_goes_to_the_next_one_and_comes_back() {
        let Some(fs) = open(4) else { return };
        let alloc = &fs.volume.alloc;
        let goal = |group: u32| DeviceBlock(u64::from(group) * 2048 + 1000);
        let group_of = |claim: &Claim| alloc.split(claim.start).0.0;
        let others = alloc.group(GroupIndex(2));
        let away = alloc.claim(goal(2), 8).expect("room");
        assert_eq!(group_of(&away), 3, "not waited for");
        drop(others);
        let home = alloc.claim(goal(2), 8).expect("room");
        assert_eq!(group_of(&home), 2, "nobody is there any more");
        // Where all are taken the first one is waited for.
        let waited = std::thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|n| alloc.group(GroupIndex(n))).collect();
            let claim = scope.spawn(|| alloc.claim(goal(2), 8).expect("room"));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!claim.is_finished(), "all are taken");
            drop(all);
            claim.join().expect("no panic")
        });
        assert_eq!(group_of(&waited), 2);
        for claim in [away, home, waited] {
            alloc.unclaim(claim);
        }
        fs.close().expect("closes");
    }
}
