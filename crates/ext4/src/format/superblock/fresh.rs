//! The superblock of a file system that is made.

use zerocopy::little_endian::U32;
use zerocopy::{FromZeros, IntoBytes};

use super::{BYTES, Compat, Incompat, MAGIC, RoCompat, State, Superblock, SuperblockRecord};
use crate::error::Result;
use crate::format::checksum::crc;
use crate::format::extent::ROOT_BYTES;
use crate::format::halves;

/// Bytes in a block.
pub const BLOCK_BYTES: u32 = 4096;
/// The binary logarithm of their KiB.
const LOG_BLOCK: u32 = 2;
/// Blocks in a group: as many as a bitmap has bits.
pub const GROUP_BLOCKS: u32 = 8 * BLOCK_BYTES;
/// Groups whose bitmaps and tables lie together, as a binary logarithm.
const LOG_FLEX: u8 = 4;
const INODE_BYTES: u16 = 256;
const DESCRIPTOR_BYTES: u16 = 64;
/// Later fields of inodes (`i_extra_isize`).
pub const EXTRA_BYTES: u16 = 32;
/// The journal's inode (`EXT4_JOURNAL_INO`).
pub const JOURNAL_INODE: u32 = 8;
/// The first that is nobody's (`EXT4_GOOD_OLD_FIRST_INO`).
pub const FIRST_INODE: u32 = 11;
/// What mke2fs has: `user_xattr`, `acl`.
const MOUNT_OPTIONS: u32 = 0xc;
/// Names are hashed as signed characters.
const SIGNED_HASH: u32 = 1;
const HALF_MD4: u8 = 1;
const CRC32C: u8 = 1;
/// `EXT4_ERRORS_CONTINUE`, and the check that is never due by a count.
const CONTINUE: u16 = 1;
const NEVER: u16 = u16::MAX;
/// A copy of the journal inode's map follows (`EXT3_JNL_BACKUP_BLOCKS`).
const JOURNAL_BLOCKS: u8 = 1;

/// Bytes for each inode that there is room for, by bytes of the file system: as mke2fs has it.
fn bytes_per_inode(bytes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    match bytes / MIB {
        0..512 => 4096,
        512..0x40_0000 => 16 << 10,
        0x40_0000..0x100_0000 => 32 << 10,
        _ => 64 << 10,
    }
}

/// A file system may grow to so many times its size before its tables have to be moved.
const GROWTH: u64 = 16;

/// Blocks of descriptors that it may grow by at least and at most: what one block of numbers holds.
const GROWTH_BLOCKS: std::ops::RangeInclusive<u64> = 16..=1024;

/// What is chosen for each file system anew.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Key of the directory hash.
    pub hash_seed: [u32; 4],
    /// When it is made, in seconds.
    pub now: u32,
}

impl Superblock {
    /// One for `blocks` blocks, in which nothing is counted yet.
    ///
    /// # Errors
    /// Too few blocks, or too many.
    pub fn fresh(blocks: u64, identity: &Identity) -> Result<Superblock> {
        let groups = blocks.div_ceil(GROUP_BLOCKS.into());
        let bytes = blocks.saturating_mul(BLOCK_BYTES.into());
        let inodes = (bytes / bytes_per_inode(bytes)).div_ceil(groups.max(1));
        let per_group = inodes.next_multiple_of((BLOCK_BYTES / u32::from(INODE_BYTES)).into());
        let tables =
            |groups: u64| (groups * u64::from(DESCRIPTOR_BYTES)).div_ceil(BLOCK_BYTES.into());
        let growth = (tables(groups * GROWTH) - tables(groups))
            .clamp(*GROWTH_BLOCKS.start(), *GROWTH_BLOCKS.end());
        // The inode that holds the room to grow into has numbers of 32 bits.
        let growth = if blocks <= u32::MAX.into() { growth } else { 0 };
        let mut raw = SuperblockRecord::new_zeroed();
        raw.inodes_count.set((groups * per_group).try_into().unwrap_or(0));
        (raw.blocks_count_lo, raw.blocks_count_hi) = halves(blocks);
        (raw.log_block_size, raw.log_cluster_size) = (LOG_BLOCK.into(), LOG_BLOCK.into());
        raw.blocks_per_group.set(GROUP_BLOCKS);
        raw.clusters_per_group.set(GROUP_BLOCKS);
        raw.inodes_per_group.set(per_group as u32);
        raw.magic.set(MAGIC);
        raw.state.set(State::VALID.bits());
        (raw.errors, raw.max_mnt_count) = (CONTINUE.into(), NEVER.into());
        raw.rev_level.set(1);
        raw.first_ino.set(FIRST_INODE);
        (raw.inode_size, raw.desc_size) = (INODE_BYTES.into(), DESCRIPTOR_BYTES.into());
        raw.reserved_gdt_blocks.set(growth as u16);
        raw.journal_inum.set(JOURNAL_INODE);
        (raw.def_hash_version, raw.flags) = (HALF_MD4, SIGNED_HASH.into());
        raw.default_mount_opts.set(MOUNT_OPTIONS);
        raw.min_extra_isize.set(EXTRA_BYTES);
        raw.want_extra_isize.set(EXTRA_BYTES);
        (raw.log_groups_per_flex, raw.checksum_type) = (LOG_FLEX, CRC32C);
        raw.put_features(growth > 0);
        raw.put_identity(identity);
        raw.checksum.set(raw.sum());
        Superblock::decode(&zerocopy::transmute!(raw))
    }

    /// Keeps a copy of the journal inode's map and size, as mke2fs does.
    pub fn set_journal_copy(&mut self, map: &[u8; ROOT_BYTES], bytes: u64) {
        self.raw.jnl_backup_type = JOURNAL_BLOCKS;
        self.raw.jnl_blocks.as_mut_bytes()[..ROOT_BYTES].copy_from_slice(map);
        let (low, high) = halves(bytes);
        (self.raw.jnl_blocks[15], self.raw.jnl_blocks[16]) = (high, low);
    }

    /// Stores the number of blocks that are no file's from the beginning, and the journal's.
    pub fn set_overhead(&mut self, blocks: u64) {
        self.raw.overhead_blocks.set(blocks.try_into().unwrap_or(0));
    }

    /// The copy that lies in `group`: it does not say that the file system is clean.
    pub fn copy_for(&self, group: u32) -> [u8; BYTES] {
        let mut copy = self.clone();
        copy.raw.block_group_nr.set(group as u16);
        copy.raw.state.set(0);
        copy.encode()
    }
}

impl SuperblockRecord {
    fn put_features(&mut self, grows: bool) {
        let mut compat = Compat::HAS_JOURNAL | Compat::EXT_ATTR | Compat::DIR_INDEX;
        compat.set(Compat::RESIZE_INODE, grows);
        let incompat = Incompat::FILETYPE
            | Incompat::EXTENTS
            | Incompat::SIXTY_FOUR_BIT
            | Incompat::FLEX_BG
            | Incompat::CSUM_SEED;
        let ro_compat = RoCompat::SPARSE_SUPER
            | RoCompat::LARGE_FILE
            | RoCompat::HUGE_FILE
            | RoCompat::DIR_NLINK
            | RoCompat::EXTRA_ISIZE
            | RoCompat::METADATA_CSUM;
        self.feature_compat.set(compat.bits());
        self.feature_incompat.set(incompat.bits());
        self.feature_ro_compat.set(ro_compat.bits());
    }

    fn put_identity(&mut self, identity: &Identity) {
        let now = identity.now.into();
        (self.wtime, self.lastcheck, self.mkfs_time) = (now, now, now);
        self.uuid = identity.uuid;
        self.hash_seed = identity.hash_seed.map(U32::new);
        self.checksum_seed.set(crc(!0, &identity.uuid));
    }
}
