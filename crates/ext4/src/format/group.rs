//! Group descriptors: where a group's bitmaps and inode table are, and its counters.

use super::checksum::{crc, crc16};
use super::superblock::{Geometry, Superblock};
use super::{DeviceBlock, GroupIndex, le16, le32, put16};
use crate::error::{Corrupt, Result, Structure};

/// Flag: the inode bitmap and table were never initialised.
pub const INODE_UNINIT: u16 = 1;
/// Flag: the block bitmap was never initialised.
pub const BLOCK_UNINIT: u16 = 2;
/// Flag: the inode table is zeroed.
pub const ITABLE_ZEROED: u16 = 4;

/// Most bytes that have a meaning.
const BYTES_MAX: usize = 64;

/// A group descriptor: its bytes, with accessors. 32 or 64 bytes are in use; what a longer one has
/// behind them stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupDescriptor {
    raw: [u8; BYTES_MAX],
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
        let mut raw = [0; BYTES_MAX];
        raw[..len].copy_from_slice(source);
        let mut descriptor = GroupDescriptor { raw, len };
        if descriptor.checksum(superblock, group, rest).is_some_and(|sum| sum != le16(&raw, 0x1e)) {
            return Err(corrupt("checksum").into());
        }
        descriptor.check_places(geometry).map_err(corrupt)?;
        if !superblock.has_group_checksums() {
            // Nobody keeps them right then: what is on the device counts.
            descriptor.set_flags(descriptor.flags() & !(INODE_UNINIT | BLOCK_UNINIT));
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
            put16(&mut copy.raw, 0x1e, sum);
        }
        own.copy_from_slice(&copy.raw[..self.len]);
    }

    /// The checksum that the image wants, with the `rest` of a long descriptor; the older kind
    /// passes over its own field, the other takes it for zero.
    fn checksum(&self, superblock: &Superblock, group: GroupIndex, rest: &[u8]) -> Option<u16> {
        let number = group.0.to_le_bytes();
        if superblock.has_checksums() {
            let mut raw = self.raw;
            put16(&mut raw, 0x1e, 0);
            let seed = crc(superblock.checksum_seed(), &number);
            return Some(crc(crc(seed, &raw[..self.len]), rest) as u16);
        }
        let seed = crc16(crc16(!0, &superblock.uuid()), &number);
        let own = || crc16(crc16(seed, &self.raw[..0x1e]), &self.raw[0x20..self.len]);
        let sum = || crc16(own(), rest);
        superblock.has_group_checksums().then(sum)
    }

    fn wide(&self) -> bool {
        self.len >= 64
    }

    fn block_at(&self, low: usize, high: usize) -> DeviceBlock {
        let upper = if self.wide() { le32(&self.raw, high) } else { 0 };
        DeviceBlock(u64::from(le32(&self.raw, low)) | u64::from(upper) << 32)
    }

    fn count_at(&self, low: usize, high: usize) -> u32 {
        let upper = if self.wide() { le16(&self.raw, high) } else { 0 };
        u32::from(le16(&self.raw, low)) | u32::from(upper) << 16
    }

    fn put_count(&mut self, low: usize, high: usize, value: u32) {
        put16(&mut self.raw, low, value as u16);
        if self.wide() {
            put16(&mut self.raw, high, (value >> 16) as u16);
        }
    }

    /// Where the block bitmap is.
    pub fn block_bitmap(&self) -> DeviceBlock {
        self.block_at(0x00, 0x20)
    }

    /// Where the inode bitmap is.
    pub fn inode_bitmap(&self) -> DeviceBlock {
        self.block_at(0x04, 0x24)
    }

    /// Where the inode table begins.
    pub fn inode_table(&self) -> DeviceBlock {
        self.block_at(0x08, 0x28)
    }

    /// Free blocks in the group.
    pub fn free_blocks(&self) -> u32 {
        self.count_at(0x0c, 0x2c)
    }

    /// Stores the number of free blocks.
    pub fn set_free_blocks(&mut self, count: u32) {
        self.put_count(0x0c, 0x2c, count);
    }

    /// Free inodes in the group.
    pub fn free_inodes(&self) -> u32 {
        self.count_at(0x0e, 0x2e)
    }

    /// Stores the number of free inodes.
    pub fn set_free_inodes(&mut self, count: u32) {
        self.put_count(0x0e, 0x2e, count);
    }

    /// Directories in the group.
    pub fn directories(&self) -> u32 {
        self.count_at(0x10, 0x30)
    }

    /// Stores the number of directories.
    pub fn set_directories(&mut self, count: u32) {
        self.put_count(0x10, 0x30, count);
    }

    /// Flags: [`INODE_UNINIT`], [`BLOCK_UNINIT`], [`ITABLE_ZEROED`].
    pub fn flags(&self) -> u16 {
        le16(&self.raw, 0x12)
    }

    /// Stores the flags.
    pub fn set_flags(&mut self, flags: u16) {
        put16(&mut self.raw, 0x12, flags);
    }

    /// Inodes at the end of the table that were never used.
    pub fn unused_inodes(&self) -> u32 {
        self.count_at(0x1c, 0x32)
    }

    /// Stores the number of never-used inodes.
    pub fn set_unused_inodes(&mut self, count: u32) {
        self.put_count(0x1c, 0x32, count);
    }

    /// Stored checksum of the block bitmap: 32 bits, or 16 in short descriptors.
    pub fn block_bitmap_checksum(&self) -> u32 {
        self.count_at(0x18, 0x38)
    }

    /// Stores the checksum of the block bitmap.
    pub fn set_block_bitmap_checksum(&mut self, sum: u32) {
        self.put_count(0x18, 0x38, sum);
    }

    /// Stored checksum of the inode bitmap.
    pub fn inode_bitmap_checksum(&self) -> u32 {
        self.count_at(0x1a, 0x3a)
    }

    /// Stores the checksum of the inode bitmap.
    pub fn set_inode_bitmap_checksum(&mut self, sum: u32) {
        self.put_count(0x1a, 0x3a, sum);
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
    use super::super::put32;
    use super::*;

    #[test]
    fn counters_use_both_halves() {
        let mut descriptor = GroupDescriptor { raw: [0; BYTES_MAX], len: 64 };
        descriptor.set_free_blocks(0x1_2345);
        descriptor.set_block_bitmap_checksum(0xdead_beef);
        assert_eq!(descriptor.free_blocks(), 0x1_2345);
        assert!(descriptor.checksum_matches(descriptor.block_bitmap_checksum(), 0xdead_beef));
        put32(&mut descriptor.raw, 0x20, 1);
        assert_eq!(descriptor.block_bitmap(), DeviceBlock(1 << 32));
    }
}
