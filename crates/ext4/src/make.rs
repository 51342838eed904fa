//! A new, empty file system: what is written to a device that reads as zeros.
//!
//! The layout is that of `mke2fs -t ext4` with blocks of 4 KiB, so that every tool knows it:
//!
//! ```text
//!  group 0, 16, 32 …   copy of superblock and descriptors, room for more of these │ block
//!                      bitmaps, inode bitmaps, inode tables of 16 groups │ (group 0: root
//!                      directory, and the journal where it fits) │ free
//!  1, 3ⁿ, 5ⁿ, 7ⁿ       copy of superblock and descriptors, room │ free
//!  in the middle       the journal of a large one: whole groups
//! ```
//!
//! Bitmaps that a reader can work out (`BLOCK_UNINIT`, `INODE_UNINIT`) and tables, which are zeros,
//! are not written. There is no `lost+found`: a new lane is empty, and e2fsck makes one when it
//! needs it. Nor is there an orphan file: e2fsck before 1.47 would refuse to check the volume.

use std::collections::BTreeMap;

use polylane_base::Time;
use polylane_sys::buffer::Buffer;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use crate::error::Result;
use crate::format::checksum::{crc, inode_seed};
use crate::format::extent::{Entries, Extent, Node, ROOT_BYTES, WRITTEN_BLOCKS_MAX};
use crate::format::group::{GroupDescriptor, GroupFlags};
use crate::format::inode::{BLOCK, InodeFlags, RawInode, Stamp};
use crate::format::journal::JournalSuperblock;
use crate::format::superblock::fresh::{
    BLOCK_BYTES, EXTRA_BYTES, FIRST_INODE, GROUP_BLOCKS, Identity, JOURNAL_INODE,
};
use crate::format::superblock::{BYTES, OFFSET, Superblock};
use crate::format::{DeviceBlock, FileBlock, GroupIndex, bitmap, dirent};

const BLOCK_SIZE: usize = BLOCK_BYTES as usize;
/// Block numbers in a block.
const NUMBERS: u32 = BLOCK_BYTES / 4;

const ROOT_INODE: u32 = 2;
/// Holds the room that the table of descriptors may grow into (`EXT4_RESIZE_INO`).
const RESIZE_INODE: u32 = 7;
/// Of `i_block`, the block of numbers of blocks of numbers; the direct ones are before it.
const DOUBLE_INDIRECT: usize = 13;
const DIRECT: u64 = 12;

const REGULAR: u16 = 0o100_600;
const DIRECTORY: u16 = 0o040_755;

/// The least that a last group has beside its metadata, in blocks; a shorter one is left out.
const LAST_GROUP_MIN: u32 = 50;

/// Largest journal: the extents that an inode holds.
const JOURNAL_BLOCKS_MAX: u32 = 4 * WRITTEN_BLOCKS_MAX;

/// A new file system.
#[derive(Clone, Copy, Debug)]
pub struct NewFs {
    /// Bytes of the device.
    pub bytes: u64,
    /// What is its own.
    pub identity: Identity,
    /// Whose the root directory is: user and group.
    pub owner: (u32, u32),
}

/// The blocks of a new file system that are not zeros, by their place, each run in one piece.
///
/// # Errors
/// Too few bytes, or too many.
pub fn make(new: &NewFs) -> Result<Vec<(DeviceBlock, Buffer)>> {
    let mut layout = Layout::of(new)?;
    layout.place_metadata();
    let root = layout.take(1);
    let resize = (layout.growth() > 0).then(|| layout.take(1));
    let journal = layout.place_journal();
    layout.write_root(root);
    if let Some(resize) = resize {
        layout.write_resize(resize);
    }
    layout.write_journal(journal);
    layout.write_inodes();
    layout.write_bitmaps();
    layout.write_superblocks();
    Ok(layout.writes)
}

/// Blocks of the journal of so large a file system, as mke2fs has it.
fn journal_blocks(blocks: u64) -> u32 {
    let most = match blocks >> 10 {
        0..32 => 1024,
        32..256 => 4096,
        256..512 => 8192,
        512..4096 => 16384,
        4096..8192 => 32768,
        8192..16384 => 65536,
        _ => JOURNAL_BLOCKS_MAX,
    };
    most.min(JOURNAL_BLOCKS_MAX)
}

/// A file system that takes shape.
struct Layout<'a> {
    new: &'a NewFs,
    superblock: Superblock,
    descriptors: Vec<GroupDescriptor>,
    /// Block bitmaps of groups whose own copies and end are not all that is in use.
    bitmaps: BTreeMap<u32, Vec<u8>>,
    inodes: BTreeMap<u32, RawInode>,
    /// Where group 0 is free.
    next: u32,
    writes: Vec<(DeviceBlock, Buffer)>,
}

impl<'a> Layout<'a> {
    fn of(new: &'a NewFs) -> Result<Layout<'a>> {
        let mut blocks = new.bytes / u64::from(BLOCK_BYTES);
        let mut superblock = Superblock::fresh(blocks, &new.identity)?;
        let last = superblock.geometry.group_count - 1;
        let (has, needs) =
            (superblock.geometry.blocks_in(GroupIndex(last)), needs(&superblock, last));
        if last > 0 && has < needs + LAST_GROUP_MIN {
            blocks -= u64::from(has);
            superblock = Superblock::fresh(blocks, &new.identity)?;
        }
        Ok(Layout {
            new,
            superblock,
            descriptors: Vec::new(),
            bitmaps: BTreeMap::new(),
            inodes: BTreeMap::new(),
            next: 0,
            writes: Vec::new(),
        })
    }

    fn groups(&self) -> u32 {
        self.superblock.geometry.group_count
    }

    fn blocks_in(&self, group: u32) -> u32 {
        self.superblock.geometry.blocks_in(GroupIndex(group))
    }

    fn first_block(&self, group: u32) -> u64 {
        self.superblock.geometry.first_block(GroupIndex(group))
    }

    fn growth(&self) -> u32 {
        self.superblock.reserved_descriptor_blocks().into()
    }

    /// Blocks of the table of descriptors.
    fn table_blocks(&self) -> u32 {
        self.groups().div_ceil(self.superblock.geometry.descriptors_per_block())
    }

    /// Marks `count` blocks from `at` on in a group as in use.
    fn mark(&mut self, group: u32, at: u32, count: u32) {
        let (copies, blocks) =
            (self.superblock.copy_blocks(GroupIndex(group)), self.blocks_in(group));
        let bits = self.bitmaps.entry(group).or_insert_with(|| {
            let mut bits = vec![0; BLOCK_SIZE];
            bitmap::set(&mut bits, 0, copies);
            bitmap::set(&mut bits, blocks, GROUP_BLOCKS - blocks);
            bits
        });
        bitmap::set(bits, at, count);
    }

    /// The next `count` free blocks of group 0.
    fn take(&mut self, count: u32) -> DeviceBlock {
        let at = self.next;
        self.mark(0, at, count);
        self.next += count;
        DeviceBlock(at.into())
    }

    /// Bitmaps and tables: those of 16 groups in the first of them.
    fn place_metadata(&mut self) {
        let geometry = self.superblock.geometry;
        for first in (0..self.groups()).step_by(geometry.flex_group_size as usize) {
            let count = geometry.flex_group_size.min(self.groups() - first);
            let at = self.superblock.copy_blocks(GroupIndex(first));
            let (table, start) = (geometry.inode_table_blocks(), self.first_block(first));
            let block = |at: u32| DeviceBlock(start + u64::from(at));
            for index in 0..count {
                let bitmaps = (block(at + index), block(at + count + index));
                let table = block(at + 2 * count + index * table);
                let inodes = geometry.inodes_per_group;
                self.descriptors.push(GroupDescriptor::fresh(bitmaps, table, inodes));
            }
            self.mark(first, at, count * (2 + table));
            if first == 0 {
                self.next = at + count * (2 + table);
            }
        }
        // Its end is no multiple of what readers take for granted.
        self.mark(self.groups() - 1, 0, 0);
    }

    /// Where the journal is, and its blocks: behind what is in group 0, or in groups of its own,
    /// which have nothing else, from the middle on.
    fn place_journal(&mut self) -> (DeviceBlock, u32) {
        let mut count = journal_blocks(self.superblock.geometry.block_count);
        loop {
            if self.next + count <= self.blocks_in(0) {
                return (self.take(count), count);
            }
            let (whole, groups) = (count / GROUP_BLOCKS, self.groups());
            let is_bare = |group: u32| {
                let is_first = group.is_multiple_of(self.superblock.geometry.flex_group_size);
                let is_full = self.blocks_in(group) == GROUP_BLOCKS;
                !is_first && is_full && !self.superblock.has_copy(GroupIndex(group))
            };
            let mut places = (groups / 2..groups).filter(|_| whole > 0);
            let fits = |first: &u32| (*first..first + whole).all(|it| it < groups && is_bare(it));
            if let Some(first) = places.find(fits) {
                (first..first + whole).for_each(|group| self.mark(group, 0, GROUP_BLOCKS));
                return (DeviceBlock(self.first_block(first)), count);
            }
            count /= 2;
        }
    }

    /// An inode of the file system's own, of `bytes` bytes on so many blocks.
    fn inode(&self, mode: u16, bytes: u64, blocks: u64) -> RawInode {
        let size = self.superblock.geometry.inode_bytes;
        let mut inode = RawInode::new(size.into(), EXTRA_BYTES);
        inode.set_mode(mode);
        inode.set_links(1);
        inode.set_size(bytes);
        inode.set_sectors(blocks * u64::from(BLOCK_BYTES / 512), BLOCK_BYTES);
        let now = Time { sec: self.new.identity.now.into(), nsec: 0 };
        for stamp in [Stamp::Access, Stamp::Change, Stamp::Modify, Stamp::Birth] {
            inode.set_time(stamp, now);
        }
        inode
    }

    /// The same, of a file of `count` blocks side by side.
    fn file(&self, mode: u16, start: DeviceBlock, count: u32) -> RawInode {
        let bytes = u64::from(count) * u64::from(BLOCK_BYTES);
        let mut inode = self.inode(mode, bytes, count.into());
        inode.set_flags(InodeFlags::EXTENTS);
        let extent = |first: u32| Extent {
            first: FileBlock(first),
            count: WRITTEN_BLOCKS_MAX.min(count - first),
            start: DeviceBlock(start.0 + u64::from(first)),
            unwritten: false,
        };
        let extents = (0..count).step_by(WRITTEN_BLOCKS_MAX as usize).map(extent).collect();
        Node { depth: 0, entries: Entries::Leaf(extents) }.encode(inode.block_mut());
        inode
    }

    fn seed(&self, ino: u32) -> u32 {
        inode_seed(self.superblock.checksum_seed(), ino, 0)
    }

    fn write_root(&mut self, block: DeviceBlock) {
        let mut inode = self.file(DIRECTORY, block, 1);
        inode.set_links(2);
        inode.set_uid(self.new.owner.0);
        inode.set_gid(self.new.owner.1);
        let mut data = Buffer::zeroed(BLOCK_SIZE);
        dirent::put_first(&mut data, true, ROOT_INODE, ROOT_INODE);
        dirent::put_checksum(&mut data, self.seed(ROOT_INODE));
        self.inodes.insert(ROOT_INODE, inode);
        self.writes.push((block, data));
    }

    /// The room behind the descriptors of group 0, each block of it with the numbers of those in
    /// the copies; `block` has their own.
    fn write_resize(&mut self, block: DeviceBlock) {
        let copies: Vec<u64> = (1..self.groups())
            .filter(|group| self.superblock.has_copy(GroupIndex(*group)))
            .map(|group| self.first_block(group))
            .collect();
        let (table, growth) = (self.table_blocks(), self.growth());
        let mut double = Buffer::zeroed(BLOCK_SIZE);
        let put = |data: &mut Buffer, index: u32, block: u64| {
            let at = index as usize * size_of::<U32>();
            data[at..][..size_of::<U32>()].copy_from_slice(U32::new(block as u32).as_bytes());
        };
        let mut singles = Buffer::zeroed(growth as usize * BLOCK_SIZE);
        for index in 0..growth {
            let at = 1 + table + index;
            put(&mut double, (table + index) % NUMBERS, at.into());
            for (copy, start) in (0..).zip(&copies) {
                put(&mut singles, index * NUMBERS + copy, start + u64::from(at));
            }
        }
        let numbers = u64::from(NUMBERS);
        let size = (numbers * numbers + numbers + DIRECT) * u64::from(BLOCK_BYTES);
        let blocks = 1 + u64::from(growth) * (1 + copies.len() as u64);
        let mut inode = self.inode(REGULAR, size, blocks);
        let at = DOUBLE_INDIRECT * size_of::<U32>();
        inode.block_mut()[at..][..size_of::<U32>()]
            .copy_from_slice(U32::new(block.0 as u32).as_bytes());
        self.inodes.insert(RESIZE_INODE, inode);
        self.writes.push((DeviceBlock(u64::from(1 + table)), singles));
        self.writes.push((block, double));
    }

    fn write_journal(&mut self, (start, count): (DeviceBlock, u32)) {
        let inode = self.file(REGULAR, start, count);
        let mut map = [0; ROOT_BYTES];
        map.copy_from_slice(&inode.bytes()[BLOCK]);
        self.superblock.set_journal_copy(&map, inode.size());
        let geometry = self.superblock.geometry;
        let tables = u64::from(geometry.group_count) * u64::from(2 + geometry.inode_table_blocks());
        let copies = (0..self.groups()).map(|group| self.superblock.copy_blocks(GroupIndex(group)));
        let copies: u64 = copies.map(u64::from).sum();
        self.superblock.set_overhead(tables + copies + u64::from(count));
        let journal = JournalSuperblock::fresh(BLOCK_BYTES, count, self.new.identity.uuid);
        let mut data = Buffer::zeroed(BLOCK_SIZE);
        data[..BYTES].copy_from_slice(&journal.encode());
        self.inodes.insert(JOURNAL_INODE, inode);
        self.writes.push((start, data));
    }

    /// The first block of group 0's table, and its bitmap.
    fn write_inodes(&mut self) {
        let seed = self.superblock.checksum_seed();
        let size = usize::from(self.superblock.geometry.inode_bytes);
        let mut table = Buffer::zeroed(BLOCK_SIZE);
        for (ino, mut inode) in std::mem::take(&mut self.inodes) {
            inode.put_checksum(seed, ino);
            table[(ino as usize - 1) * size..][..size].copy_from_slice(inode.bytes());
        }
        let per_group = self.superblock.geometry.inodes_per_group;
        let used = FIRST_INODE - 1;
        let mut bits = Buffer::zeroed(BLOCK_SIZE);
        bitmap::set(&mut bits, 0, used);
        bitmap::set(&mut bits, per_group, GROUP_BLOCKS - per_group);
        let group = &mut self.descriptors[0];
        group.set_free_inodes(per_group - used);
        group.set_unused_inodes(per_group - used);
        group.set_directories(1);
        group.set_inode_bitmap_checksum(crc(seed, &bits[..per_group as usize / 8]));
        group.set_flags(group.flags() & !GroupFlags::INODE_UNINIT);
        self.writes.push((group.inode_table(), table));
        self.writes.push((group.inode_bitmap(), bits));
    }

    fn write_bitmaps(&mut self) {
        let seed = self.superblock.checksum_seed();
        for index in 0..self.groups() {
            let free = match self.bitmaps.get(&index) {
                Some(bits) => bitmap::count_clear(bits, GROUP_BLOCKS),
                None => GROUP_BLOCKS - self.superblock.copy_blocks(GroupIndex(index)),
            };
            let group = &mut self.descriptors[index as usize];
            group.set_free_blocks(free);
            if let Some(bits) = self.bitmaps.get(&index) {
                group.set_block_bitmap_checksum(crc(seed, bits));
                group.set_flags(group.flags() & !GroupFlags::BLOCK_UNINIT);
                self.writes.push((group.block_bitmap(), Buffer::copy_of(bits)));
            }
        }
    }

    /// The superblock and the descriptors, and their copies.
    fn write_superblocks(&mut self) {
        let free = self.descriptors.iter().map(|group| u64::from(group.free_blocks())).sum();
        let inodes = self.descriptors.iter().map(GroupDescriptor::free_inodes).sum();
        self.superblock.set_free_blocks(free);
        self.superblock.set_free_inodes(inodes);
        let size = usize::from(self.superblock.geometry.descriptor_bytes);
        let mut table = vec![0; self.table_blocks() as usize * BLOCK_SIZE];
        for (group, into) in self.descriptors.iter().zip(0..).zip(table.chunks_mut(size)) {
            group.0.encode(&self.superblock, GroupIndex(group.1), into);
        }
        for group in (0..self.groups()).filter(|it| self.superblock.has_copy(GroupIndex(*it))) {
            let mut data = Buffer::zeroed(BLOCK_SIZE + table.len());
            let (at, superblock) = match group {
                0 => (OFFSET as usize, self.superblock.encode()),
                _ => (0, self.superblock.copy_for(group)),
            };
            data[at..at + BYTES].copy_from_slice(&superblock);
            data[BLOCK_SIZE..].copy_from_slice(&table);
            self.writes.push((DeviceBlock(self.first_block(group)), data));
        }
    }
}

/// Blocks of metadata that a group needs when it is the last one.
fn needs(superblock: &Superblock, group: u32) -> u32 {
    let geometry = &superblock.geometry;
    let own = match group.is_multiple_of(geometry.flex_group_size) {
        true => 2 + geometry.inode_table_blocks(),
        false => 0,
    };
    superblock.copy_blocks(GroupIndex(group)) + own
}
