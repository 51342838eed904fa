//! Group descriptors: where a group's bitmaps and inode table are, and its counters.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromZeros, IntoBytes};

use super::checksum::{crc, crc16};
use super::superblock::{Geometry, Superblock};
use super::{DeviceBlock, GroupIndex, halves};
use crate::error::{Corrupt, Result, Structure};

polylane_base::record! {
    /// `struct ext4_group_desc`: all that has a meaning.
    struct DescriptorRecord: 64 {
        0x00 block_bitmap_lo: U32,
        0x04 inode_bitmap_lo: U32,
        0x08 inode_table_lo: U32,
        0x0c free_blocks_count_lo: U16,
        0x0e free_inodes_count_lo: U16,
        0x10 used_dirs_count_lo: U16,
        0x12 flags: U16,
        0x14 exclude_bitmap_lo: U32,
        0x18 block_bitmap_csum_lo: U16,
        0x1a inode_bitmap_csum_lo: U16,
        0x1c itable_unused_lo: U16,
        0x1e checksum: U16,
        0x20 block_bitmap_hi: U32,
        0x24 inode_bitmap_hi: U32,
        0x28 inode_table_hi: U32,
        0x2c free_blocks_count_hi: U16,
        0x2e free_inodes_count_hi: U16,
        0x30 used_dirs_count_hi: U16,
        0x32 itable_unused_hi: U16,
        0x34 exclude_bitmap_hi: U32,
        0x38 block_bitmap_csum_hi: U16,
        0x3a inode_bitmap_csum_hi: U16,
        0x3c reserved: U32,
    }
}

bitflags::bitflags! {
    /// `bg_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct GroupFlags: u16 {
        /// The inode bitmap and table were never initialised.
        const INODE_UNINIT = 1;
        /// The block bitmap was never initialised.
        const BLOCK_UNINIT = 2;
        /// The inode table is zeroed.
        const ITABLE_ZEROED = 4;
        const _ = !0;
    }
}

/// Most bytes that have a meaning.
const BYTES_MAX: usize = size_of::<DescriptorRecord>();
/// Bytes of a descriptor with the upper halves of numbers.
const WIDE_BYTES: usize = 64;
/// The bytes before the checksum, and the offset of those behind it.
const CHECKSUM: (usize, usize) =
    (offset_of!(DescriptorRecord, checksum), offset_of!(DescriptorRecord, block_bitmap_hi));

/// A group descriptor: its bytes, with accessors. 32 or 64 bytes are in use; what a longer one has
/// behind them stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupDescriptor {
    raw: DescriptorRecord,
    len: usize,
}

impl GroupDescriptor {
    /// Takes the descriptor of `group` from `bytes` and checks its checksum and block numbers.
    ///
    /// # Errors
    /// [`Corrupt`] of [`Structure::Group`].
    pub fn decode(superblock: &Superblock, group: GroupIndex, bytes: &[u8]) -> Result<Self> {
        let geometry = &superblock.geometry;
        let len = usize::from(geometry.descriptor_bytes);
        let corrupt = |field| Corrupt::new(Structure::Group, group.0.into(), field);
        let source = bytes.get(..len).ok_or(corrupt("length"))?;
        let (source, rest) = source.split_at(len.min(BYTES_MAX));
        let len = source.len();
        let mut raw = DescriptorRecord::new_zeroed();
        raw.as_mut_bytes()[..len].copy_from_slice(source);
        let mut descriptor = GroupDescriptor { raw, len };
        let sum = descriptor.checksum(superblock, group, rest);
        if sum.is_some_and(|sum| sum != raw.checksum.get()) {
            return Err(corrupt("checksum").into());
        }
        descriptor.check_places(geometry).map_err(corrupt)?;
        if !superblock.has_group_checksums() {
            // Nobody keeps them right then: what is on the device counts.
            let unknown = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
            descriptor.set_flags(descriptor.flags() & !unknown);
        }
        Ok(descriptor)
    }

    fn check_places(&self, geometry: &Geometry) -> Result<(), &'static str> {
        let within = |block: DeviceBlock, count: u64| {
            let end = block.0.checked_add(count);
            block.0 > u64::from(geometry.first_data_block)
                && end.is_some_and(|end| end <= geometry.block_count)
        };
        match () {
            () if !within(self.block_bitmap(), 1) => Err("bg_block_bitmap"),
            () if !within(self.inode_bitmap(), 1) => Err("bg_inode_bitmap"),
            () if !within(self.inode_table(), geometry.inode_table_blocks().into()) => {
                Err("bg_inode_table")
            }
            () => Ok(()),
        }
    }

    /// The bytes for the disk, with a fresh checksum where the image has them. `into` begins with
    /// the descriptor as it is there.
    pub fn encode(&self, superblock: &Superblock, group: GroupIndex, into: &mut [u8]) {
        let (own, rest) =
            into[..superblock.geometry.descriptor_bytes.into()].split_at_mut(self.len);
        let mut copy = *self;
        if let Some(sum) = self.checksum(superblock, group, rest) {
            copy.raw.checksum.set(sum);
        }
        own.copy_from_slice(&copy.raw.as_bytes()[..self.len]);
    }

    /// The checksum that the image wants, with the `rest` of a long descriptor; the older kind
    /// passes over its own field, the other takes it for zero.
    fn checksum(&self, superblock: &Superblock, group: GroupIndex, rest: &[u8]) -> Option<u16> {
        let number = U32::new(group.0);
        let number = number.as_bytes();
        if superblock.has_checksums() {
            let mut raw = self.raw;
            raw.checksum.set(0);
            let seed = crc(superblock.checksum_seed(), number);
            return Some(crc(crc(seed, &raw.as_bytes()[..self.len]), rest) as u16);
        }
        let seed = crc16(crc16(!0, &superblock.uuid()), number);
        let raw = &self.raw.as_bytes()[..self.len];
        let own = || crc16(crc16(seed, &raw[..CHECKSUM.0]), &raw[CHECKSUM.1..]);
        let sum = || crc16(own(), rest);
        superblock.has_group_checksums().then(sum)
    }

    /// One of a new file system: nothing of the group was ever used, and its table is zeros.
    pub fn fresh(bitmaps: (DeviceBlock, DeviceBlock), table: DeviceBlock, inodes: u32) -> Self {
        let mut raw = DescriptorRecord::new_zeroed();
        (raw.block_bitmap_lo, raw.block_bitmap_hi) = halves(bitmaps.0.0);
        (raw.inode_bitmap_lo, raw.inode_bitmap_hi) = halves(bitmaps.1.0);
        (raw.inode_table_lo, raw.inode_table_hi) = halves(table.0);
        let mut descriptor = GroupDescriptor { raw, len: WIDE_BYTES };
        descriptor.set_free_inodes(inodes);
        descriptor.set_unused_inodes(inodes);
        let never = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
        descriptor.set_flags(never | GroupFlags::ITABLE_ZEROED);
        descriptor
    }

    fn wide(&self) -> bool {
        self.len >= WIDE_BYTES
    }

    fn block(&self, low: U32, high: U32) -> DeviceBlock {
        let upper = if self.wide() { high.get() } else { 0 };
        DeviceBlock(u64::from(low.get()) | u64::from(upper) << 32)
    }

    fn count(&self, low: U16, high: U16) -> u32 {
        let upper = if self.wide() { high.get() } else { 0 };
        u32::from(low.get()) | u32::from(upper) << 16
    }

    /// The halves of a number, the upper one as it was where there is no room for it.
    fn halves(&self, value: u32, high: U16) -> (U16, U16) {
        let upper = if self.wide() { ((value >> 16) as u16).into() } else { high };
        ((value as u16).into(), upper)
    }

    /// Where the block bitmap is.
    pub fn block_bitmap(&self) -> DeviceBlock {
        self.block(self.raw.block_bitmap_lo, self.raw.block_bitmap_hi)
    }

    /// Where the inode bitmap is.
    pub fn inode_bitmap(&self) -> DeviceBlock {
        self.block(self.raw.inode_bitmap_lo, self.raw.inode_bitmap_hi)
    }

    /// Where the inode table begins.
    pub fn inode_table(&self) -> DeviceBlock {
        self.block(self.raw.inode_table_lo, self.raw.inode_table_hi)
    }

    /// Free blocks in the group.
    pub fn free_blocks(&self) -> u32 {
        self.count(self.raw.free_blocks_count_lo, self.raw.free_blocks_count_hi)
    }

    /// Stores the number of free blocks.
    pub fn set_free_blocks(&mut self, count: u32) {
        let halves = self.halves(count, self.raw.free_blocks_count_hi);
        (self.raw.free_blocks_count_lo, self.raw.free_blocks_count_hi) = halves;
    }

    /// Free inodes in the group.
    pub fn free_inodes(&self) -> u32 {
        self.count(self.raw.free_inodes_count_lo, self.raw.free_inodes_count_hi)
    }

    /// Stores the number of free inodes.
    pub fn set_free_inodes(&mut self, count: u32) {
        let halves = self.halves(count, self.raw.free_inodes_count_hi);
        (self.raw.free_inodes_count_lo, self.raw.free_inodes_count_hi) = halves;
    }

    /// Directories in the group.
    pub fn directories(&self) -> u32 {
        self.count(self.raw.used_dirs_count_lo, self.raw.used_dirs_count_hi)
    }

    /// Stores the number of directories.
    pub fn set_directories(&mut self, count: u32) {
        let halves = self.halves(count, self.raw.used_dirs_count_hi);
        (self.raw.used_dirs_count_lo, self.raw.used_dirs_count_hi) = halves;
    }

    /// `bg_flags`.
    pub fn flags(&self) -> GroupFlags {
        GroupFlags::from_bits_retain(self.raw.flags.get())
    }

    /// Stores the flags.
    pub fn set_flags(&mut self, flags: GroupFlags) {
        self.raw.flags.set(flags.bits());
    }

    /// Inodes at the end of the table that were never used.
    pub fn unused_inodes(&self) -> u32 {
        self.count(self.raw.itable_unused_lo, self.raw.itable_unused_hi)
    }

    /// Stores the number of never-used inodes.
    pub fn set_unused_inodes(&mut self, count: u32) {
        let halves = self.halves(count, self.raw.itable_unused_hi);
        (self.raw.itable_unused_lo, self.raw.itable_unused_hi) = halves;
    }

    /// Stored checksum of the block bitmap: 32 bits, or 16 in short descriptors.
    pub fn block_bitmap_checksum(&self) -> u32 {
        self.count(self.raw.block_bitmap_csum_lo, self.raw.block_bitmap_csum_hi)
    }

    /// Stores the checksum of the block bitmap.
    pub fn set_block_bitmap_checksum(&mut self, sum: u32) {
        let halves = self.halves(sum, self.raw.block_bitmap_csum_hi);
        (self.raw.block_bitmap_csum_lo, self.raw.block_bitmap_csum_hi) = halves;
    }

    /// Stored checksum of the inode bitmap.
    pub fn inode_bitmap_checksum(&self) -> u32 {
        self.count(self.raw.inode_bitmap_csum_lo, self.raw.inode_bitmap_csum_hi)
    }

    /// Stores the checksum of the inode bitmap.
    pub fn set_inode_bitmap_checksum(&mut self, sum: u32) {
        let halves = self.halves(sum, self.raw.inode_bitmap_csum_hi);
        (self.raw.inode_bitmap_csum_lo, self.raw.inode_bitmap_csum_hi) = halves;
    }

    /// Whether `sum` is the stored one, as far as the descriptor has room for it.
    pub fn checksum_matches(&self, stored: u32, sum: u32) -> bool {
        if self.wide() { stored == sum } else { stored == sum & 0xffff }
    }
}

/// The block that holds the descriptor of `group` in the primary table, and the offset in it.
pub fn descriptor_place(superblock: &Superblock, group: GroupIndex) -> (DeviceBlock, usize) {
    let geometry = &superblock.geometry;
    let per_block = geometry.descriptors_per_block();
    let index = group.0 / per_block;
    let block = if index < geometry.first_meta_bg {
        u64::from(geometry.first_data_block) + 1 + u64::from(index)
    } else {
        let first = GroupIndex(index * per_block);
        geometry.first_block(first) + u64::from(superblock.has_copy(first))
    };
    let offset = (group.0 % per_block) as usize * usize::from(geometry.descriptor_bytes);
    (DeviceBlock(block), offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_use_both_halves() {
        let mut descriptor = GroupDescriptor { raw: DescriptorRecord::new_zeroed(), len: 64 };
        descriptor.set_free_blocks(0x1_2345);
        descriptor.set_block_bitmap_checksum(0xdead_beef);
        assert_eq!(descriptor.free_blocks(), 0x1_2345);
        assert!(descriptor.checksum_matches(descriptor.block_bitmap_checksum(), 0xdead_beef));
        descriptor.raw.block_bitmap_hi.set(1);
        assert_eq!(descriptor.block_bitmap(), DeviceBlock(1 << 32));
    }
}
