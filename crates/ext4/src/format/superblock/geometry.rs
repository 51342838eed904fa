//! A volume's geometry: where things are, checked.

use zerocopy::little_endian::U32;

use super::record::SuperblockRecord;
use super::{Incompat, LOG_BLOCK_MAX, RoCompat, corrupt};
use crate::error::Result;
use crate::format::GroupIndex;

/// Where things are. All values are in range of each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Bytes in a block: 1024, 2048 or 4096.
    pub block_bytes: u32,
    /// Blocks on the device.
    pub block_count: u64,
    /// The block that holds the superblock's group 0 start: 1 with 1 KiB blocks, else 0.
    pub first_data_block: u32,
    /// Blocks in a group; the last group may be shorter.
    pub blocks_per_group: u32,
    /// Inodes in a group.
    pub inodes_per_group: u32,
    /// Inodes in all.
    pub inode_count: u32,
    /// Bytes in an inode on disk: a power of two from 128.
    pub inode_bytes: u16,
    /// Bytes in a group descriptor: 32, or a power of two from 64 to a block's.
    pub descriptor_bytes: u16,
    /// Groups.
    pub group_count: u32,
    /// Groups in a flex group; 1 without flex_bg.
    pub flex_group_size: u32,
    /// Largest size of a file, in bytes.
    pub file_bytes_max: u64,
    /// From this block of the table of descriptors on, each lies in the groups that it describes
    /// (`meta_bg`); `u32::MAX`: none.
    pub first_meta_bg: u32,
    /// Inodes may hold contents (`inline_data`).
    pub inline_data: bool,
}

impl Geometry {
    /// Blocks of `group`; the last one may be shorter than the others.
    pub fn blocks_in(&self, group: GroupIndex) -> u32 {
        let start = u64::from(group.0) * u64::from(self.blocks_per_group);
        let rest = self.block_count - u64::from(self.first_data_block) - start;
        rest.min(u64::from(self.blocks_per_group)) as u32
    }

    /// First block of `group`.
    pub fn first_block(&self, group: GroupIndex) -> u64 {
        u64::from(self.first_data_block) + u64::from(group.0) * u64::from(self.blocks_per_group)
    }

    /// Blocks that the inode table of each group takes.
    pub fn inode_table_blocks(&self) -> u32 {
        let bytes = u64::from(self.inodes_per_group) * u64::from(self.inode_bytes);
        bytes.div_ceil(u64::from(self.block_bytes)) as u32
    }

    /// Group descriptors in a block.
    pub fn descriptors_per_block(&self) -> u32 {
        self.block_bytes / u32::from(self.descriptor_bytes)
    }
}

/// Reads and checks the geometry.
///
/// # Errors
/// [`Error::Corrupt`](crate::error::Error::Corrupt) names the field.
pub(super) fn decode(raw: &SuperblockRecord) -> Result<Geometry> {
    let features = raw.incompat();
    let is_wide = features.contains(Incompat::SIXTY_FOUR_BIT);
    let block_bytes = match raw.log_block_size.get() {
        log @ 0..=LOG_BLOCK_MAX => 1024 << log,
        _ => return Err(corrupt("s_log_block_size")),
    };
    let block_count = wide(is_wide, raw.blocks_count_lo, raw.blocks_count_hi);
    let first_data_block = raw.first_data_block.get();
    if first_data_block != u32::from(block_bytes == 1024) {
        return Err(corrupt("s_first_data_block"));
    }
    let blocks_per_group = raw.blocks_per_group.get();
    if blocks_per_group == 0
        || blocks_per_group > blocks_per_group_max(raw, block_bytes)
        || !blocks_per_group.is_multiple_of(8)
    {
        return Err(corrupt("s_blocks_per_group"));
    }
    let inode_bytes = if raw.rev_level.get() == 0 { 128 } else { raw.inode_size.get() };
    if !inode_bytes.is_power_of_two() || !(128..=block_bytes).contains(&u32::from(inode_bytes)) {
        return Err(corrupt("s_inode_size"));
    }
    let inodes_per_group = raw.inodes_per_group.get();
    let per_block = block_bytes / u32::from(inode_bytes);
    if inodes_per_group == 0
        || inodes_per_group > block_bytes * 8
        || !inodes_per_group.is_multiple_of(per_block.min(8))
    {
        return Err(corrupt("s_inodes_per_group"));
    }
    let data = block_count.checked_sub(u64::from(first_data_block)).filter(|count| *count > 0);
    let groups = data.ok_or(corrupt("s_blocks_count"))?.div_ceil(u64::from(blocks_per_group));
    let group_count = u32::try_from(groups).map_err(|_| corrupt("s_blocks_count"))?;
    let inode_count = raw.inodes_count.get();
    if u64::from(group_count) * u64::from(inodes_per_group) != u64::from(inode_count) {
        return Err(corrupt("s_inodes_count"));
    }
    if raw.rev_level.get() != 0 && !(11..=inode_count).contains(&raw.first_ino.get()) {
        return Err(corrupt("s_first_ino"));
    }
    let flex_group_size = match (features.contains(Incompat::FLEX_BG), raw.log_groups_per_flex) {
        (true, log @ 0..=31) => 1 << log,
        (true, _) => return Err(corrupt("s_log_groups_per_flex")),
        (false, _) => 1,
    };
    Ok(Geometry {
        block_bytes,
        block_count,
        first_data_block,
        blocks_per_group,
        inodes_per_group,
        inode_count,
        inode_bytes,
        descriptor_bytes: descriptor_bytes(raw, block_bytes, is_wide)?,
        group_count,
        flex_group_size,
        file_bytes_max: file_bytes_max(block_bytes, raw.ro_compat()),
        first_meta_bg: match features.contains(Incompat::META_BG) {
            true => raw.first_meta_bg.get(),
            false => u32::MAX,
        },
        inline_data: features.contains(Incompat::INLINE_DATA),
    })
}

/// Bytes of a group descriptor: 64 or more only with `64bit`.
fn descriptor_bytes(raw: &SuperblockRecord, block_bytes: u32, is_wide: bool) -> Result<u16> {
    let size = raw.desc_size.get();
    match is_wide {
        false => Ok(32),
        true if size.is_power_of_two() && (64..=block_bytes).contains(&u32::from(size)) => Ok(size),
        true => Err(corrupt("s_desc_size")),
    }
}

/// A bitmap is one block: a bit for each block, or for each cluster of them (`bigalloc`).
fn blocks_per_group_max(raw: &SuperblockRecord, block_bytes: u32) -> u32 {
    let shift = raw.log_cluster_size.get().saturating_sub(raw.log_block_size.get()).min(12);
    let clusters = if raw.ro_compat().contains(RoCompat::BIGALLOC) { shift } else { 0 };
    (block_bytes * 8) << clusters
}

/// The largest size of a file: what an extent tree can map, and without `huge_file` what 32 bits
/// of `i_blocks` can count, which is in units of 512 bytes then.
fn file_bytes_max(block_bytes: u32, features: RoCompat) -> u64 {
    let most = u64::from(u32::MAX);
    let blocks = match features.contains(RoCompat::HUGE_FILE) {
        true => most,
        false => most / u64::from(block_bytes / 512),
    };
    blocks * u64::from(block_bytes)
}

/// A number of blocks, the upper half of which is there with `64bit` alone.
pub(super) fn wide(is_wide: bool, low: U32, high: U32) -> u64 {
    u64::from(low.get()) | if is_wide { u64::from(high.get()) << 32 } else { 0 }
}
