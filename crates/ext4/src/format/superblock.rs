//! The superblock: geometry, features, counters.

use polylane_base::{Gid, Uid};

use super::checksum::crc;
pub use super::error_note::ErrorNote;
use super::error_note::ErrorPlaces;
pub use super::features::{compat, incompat, ro_compat};
use super::{GroupIndex, le16, le32, le32_pair, put16, put32};
use crate::error::{Corrupt, Error, Result, Structure};

/// Where it lies on the device, in bytes, and how long it is.
pub const OFFSET: u64 = 1024;
/// Bytes of a superblock.
pub const BYTES: usize = 1024;

const MAGIC: u16 = 0xef53;
/// Largest blocks, by the binary logarithm of their KiB: ours ...
const LOG_BLOCK_MAX: u32 = 2;
/// ... and Linux'.
const LINUX_LOG_BLOCK_MAX: u32 = 6;
/// `s_state`: unmounted cleanly.
pub const STATE_VALID: u16 = 1;
/// `s_state`: errors were found.
pub const STATE_ERROR: u16 = 2;

const INCOMPAT_KNOWN: u32 = incompat::FILETYPE
    | incompat::RECOVER
    | incompat::EXTENTS
    | incompat::SIXTY_FOUR_BIT
    | incompat::FLEX_BG
    | incompat::META_BG
    | incompat::LARGE_DIR
    | incompat::INLINE_DATA
    | incompat::EA_INODE
    | incompat::CSUM_SEED;

const RO_COMPAT_KNOWN: u32 = ro_compat::SPARSE_SUPER
    | ro_compat::LARGE_FILE
    | ro_compat::HUGE_FILE
    | ro_compat::GDT_CSUM
    | ro_compat::DIR_NLINK
    | ro_compat::EXTRA_ISIZE
    | ro_compat::METADATA_CSUM
    | ro_compat::ORPHAN_PRESENT;

/// The superblock as it lies on disk, with its geometry decoded and validated once.
#[derive(Clone)]
pub struct Superblock {
    raw: Box<[u8; BYTES]>,
    /// Geometry; never changes while open.
    pub geometry: Geometry,
}

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

fn corrupt(field: &'static str) -> Error {
    Corrupt::new(Structure::Superblock, 0, field).into()
}

impl Superblock {
    /// Reads and checks a superblock.
    ///
    /// # Errors
    /// [`Error::Incompatible`] with the names of what we lack and without which an image cannot
    /// even be read; [`Error::Corrupt`] names the field.
    pub fn decode(bytes: &[u8; BYTES]) -> Result<Self> {
        if le16(bytes, 0x38) != MAGIC {
            return Err(corrupt("magic number"));
        }
        let has_sums = le32(bytes, 0x64) & ro_compat::METADATA_CSUM != 0;
        if has_sums && le32(bytes, 0x3fc) != crc(!0, &bytes[..0x3fc]) {
            return Err(corrupt("checksum"));
        }
        // Before the geometry: what we do not know may have another one.
        let names = lacking(bytes);
        if !names.is_empty() {
            return Err(Error::Incompatible(names));
        }
        Ok(Superblock { geometry: decode_geometry(bytes)?, raw: Box::new(*bytes) })
    }

    /// The bytes for the disk, with a fresh checksum.
    pub fn encode(&self) -> [u8; BYTES] {
        let mut bytes = *self.raw;
        if self.has_checksums() {
            let sum = crc(!0, &bytes[..0x3fc]);
            put32(&mut bytes, 0x3fc, sum);
        }
        bytes
    }

    /// The same with no more groups than lead to the journal's inode, on a device of `blocks`
    /// blocks: what finding the journal takes.
    pub fn up_to_journal(&self, blocks: u64) -> Superblock {
        let mut part = self.clone();
        let last = self.journal_inode().saturating_sub(1) / self.geometry.inodes_per_group;
        part.geometry.group_count = self.geometry.group_count.min(last + 1);
        part.geometry.block_count = blocks;
        part
    }

    /// What keeps the image from being written, for the message; nothing when it may be.
    pub fn read_only_reasons(&self) -> Vec<String> {
        let mut names = ro_compat::names(self.ro_compat() & !RO_COMPAT_KNOWN);
        let clean = self.state() & STATE_VALID != 0;
        let needs_replay = self.has_incompat(incompat::RECOVER);
        match (self.has_compat(compat::HAS_JOURNAL), self.journal_inode()) {
            (false, _) if needs_replay => names.push("no journal, and a replay is wanted".into()),
            (false, _) if !clean => {
                names.push("no journal, and not unmounted cleanly: run e2fsck".into());
            }
            (false, _) | (true, 1..) => {}
            (true, 0) => names.push("its journal is on another device".into()),
        }
        names
    }

    /// `s_feature_compat`.
    pub fn compat(&self) -> u32 {
        le32(&*self.raw, 0x5c)
    }

    /// `s_feature_incompat`.
    pub fn incompat(&self) -> u32 {
        le32(&*self.raw, 0x60)
    }

    /// `s_feature_ro_compat`.
    pub fn ro_compat(&self) -> u32 {
        le32(&*self.raw, 0x64)
    }

    /// Whether all bits of `feature` are set.
    pub fn has_compat(&self, feature: u32) -> bool {
        self.compat() & feature == feature
    }

    /// Whether all bits of `feature` are set.
    pub fn has_incompat(&self, feature: u32) -> bool {
        self.incompat() & feature == feature
    }

    /// Whether all bits of `feature` are set.
    pub fn has_ro_compat(&self, feature: u32) -> bool {
        self.ro_compat() & feature == feature
    }

    /// Whether metadata carries checksums.
    pub fn has_checksums(&self) -> bool {
        self.has_ro_compat(ro_compat::METADATA_CSUM)
    }

    /// Whether group descriptors carry checksums, all there are with `gdt_csum`. Only then do their
    /// flags say what was never initialised.
    pub fn has_group_checksums(&self) -> bool {
        self.has_checksums() || self.has_ro_compat(ro_compat::GDT_CSUM)
    }

    /// Sets or clears [`incompat::RECOVER`]: the journal holds something to replay.
    pub fn set_recover(&mut self, needed: bool) {
        self.set_bits(0x60, incompat::RECOVER, needed);
    }

    /// Sets or clears [`ro_compat::ORPHAN_PRESENT`]: the orphan file may hold entries.
    pub fn set_orphan_present(&mut self, present: bool) {
        self.set_bits(0x64, ro_compat::ORPHAN_PRESENT, present);
    }

    /// Sets [`ro_compat::LARGE_FILE`]: there are files past 2 GiB.
    pub fn set_large_file(&mut self) {
        self.set_bits(0x64, ro_compat::LARGE_FILE, true);
    }

    /// Sets [`compat::EXT_ATTR`]: there are extended attributes.
    pub fn set_ext_attr(&mut self) {
        self.set_bits(0x5c, compat::EXT_ATTR, true);
    }

    /// Whether a new file gets its directory's group (`s_default_mount_opts`, `bsdgroups`).
    pub fn wants_bsd_groups(&self) -> bool {
        le32(&*self.raw, 0x100) & 0x2 != 0
    }

    fn set_bits(&mut self, at: usize, bits: u32, on: bool) {
        let old = le32(&*self.raw, at);
        put32(&mut *self.raw, at, if on { old | bits } else { old & !bits });
    }

    /// Seed of all checksums but this structure's own.
    pub fn checksum_seed(&self) -> u32 {
        match self.has_incompat(incompat::CSUM_SEED) {
            true => le32(&*self.raw, 0x270),
            false => crc(!0, &self.raw[0x68..0x78]),
        }
    }

    /// Free blocks, as last written: a hint after an unclean stop.
    pub fn free_blocks(&self) -> u64 {
        self.wide(0x0c, 0x158)
    }

    /// A number of blocks, the upper half of which is there with `64bit` alone.
    fn wide(&self, low: usize, high: usize) -> u64 {
        match self.has_incompat(incompat::SIXTY_FOUR_BIT) {
            true => le32_pair(&*self.raw, low, high),
            false => u64::from(le32(&*self.raw, low)),
        }
    }

    /// Stores the number of free blocks.
    pub fn set_free_blocks(&mut self, count: u64) {
        put32(&mut *self.raw, 0x0c, count as u32);
        if self.has_incompat(incompat::SIXTY_FOUR_BIT) {
            put32(&mut *self.raw, 0x158, (count >> 32) as u32);
        }
    }

    /// Blocks that only the superuser may take.
    pub fn reserved_blocks(&self) -> u64 {
        self.wide(0x08, 0x154)
    }

    /// The user and the group that may take them beside root: `s_def_resuid` and `s_def_resgid`.
    pub fn blocks_kept_for(&self) -> (Uid, Gid) {
        let id = |at| u32::from(le16(&*self.raw, at));
        (Uid(id(0x50)), Gid(id(0x52)))
    }

    /// Free inodes, as last written.
    pub fn free_inodes(&self) -> u32 {
        le32(&*self.raw, 0x10)
    }

    /// Stores the number of free inodes.
    pub fn set_free_inodes(&mut self, count: u32) {
        put32(&mut *self.raw, 0x10, count);
    }

    /// `s_state`.
    pub fn state(&self) -> u16 {
        le16(&*self.raw, 0x3a)
    }

    /// Stores `s_state`.
    pub fn set_state(&mut self, state: u16) {
        put16(&mut *self.raw, 0x3a, state);
    }

    /// Notes a mount at `now` (seconds): mount time and count.
    pub fn note_mount(&mut self, now: u32) {
        put32(&mut *self.raw, 0x2c, now);
        let count = le16(&*self.raw, 0x34).saturating_add(1);
        put16(&mut *self.raw, 0x34, count);
    }

    /// Notes an error: the first one is kept, the last one replaced, all are counted.
    pub fn note_error(&mut self, note: &ErrorNote) {
        let count = le32(&*self.raw, 0x194).saturating_add(1);
        put32(&mut *self.raw, 0x194, count);
        if count == 1 {
            self.put_error(&ErrorPlaces::FIRST, note);
        }
        self.put_error(&ErrorPlaces::LAST, note);
    }

    fn put_error(&mut self, places: &ErrorPlaces, note: &ErrorNote) {
        put32(&mut *self.raw, places.time, note.now as u32);
        self.raw[places.time_high] = (note.now >> 32) as u8;
        put32(&mut *self.raw, places.ino, note.ino);
        self.raw[places.block..places.block + 8].fill(0);
        let what = &mut self.raw[places.function..places.function + 32];
        what.fill(0);
        let length = note.what.len().min(31);
        what[..length].copy_from_slice(&note.what.as_bytes()[..length]);
        put32(&mut *self.raw, places.line, 0);
        self.raw[places.code] = note.code;
    }

    /// Errors found since the last e2fsck.
    pub fn error_count(&self) -> u32 {
        le32(&*self.raw, 0x194)
    }

    /// Notes a write at `now` (seconds).
    pub fn note_write(&mut self, now: u32) {
        put32(&mut *self.raw, 0x30, now);
    }

    /// Adds to the lifetime count of written KiB.
    pub fn add_kib_written(&mut self, kib: u64) {
        let total = le32_pair(&*self.raw, 0x178, 0x17c).saturating_add(kib);
        put32(&mut *self.raw, 0x178, total as u32);
        put32(&mut *self.raw, 0x17c, (total >> 32) as u32);
    }

    /// The first inode that is not reserved.
    pub fn first_inode(&self) -> u32 {
        if le32(&*self.raw, 0x4c) == 0 { 11 } else { le32(&*self.raw, 0x54) }
    }

    /// The journal's inode, 0 for none.
    pub fn journal_inode(&self) -> u32 {
        le32(&*self.raw, 0xe0)
    }

    /// Head of the list of orphans, 0 when empty.
    pub fn last_orphan(&self) -> u32 {
        le32(&*self.raw, 0xe8)
    }

    /// Stores the head of the list of orphans.
    pub fn set_last_orphan(&mut self, ino: u32) {
        put32(&mut *self.raw, 0xe8, ino);
    }

    /// The orphan file's inode, 0 for none.
    pub fn orphan_file_inode(&self) -> u32 {
        le32(&*self.raw, 0x280)
    }

    /// Key of the directory hash.
    pub fn hash_seed(&self) -> [u32; 4] {
        std::array::from_fn(|word| le32(&*self.raw, 0xec + 4 * word))
    }

    /// `s_def_hash_version`.
    pub fn default_hash_version(&self) -> u8 {
        self.raw[0xfc]
    }

    /// Whether the image is to be opened with online discard (`s_default_mount_opts`).
    pub fn wants_discard(&self) -> bool {
        le32(&*self.raw, 0x100) & 0x400 != 0
    }

    /// Whether names are hashed as unsigned characters (`EXT2_FLAGS_UNSIGNED_HASH`).
    pub fn unsigned_hash(&self) -> bool {
        le32(&*self.raw, 0x160) & 2 != 0
    }

    /// Extra inode bytes that every new inode has room for (`s_want_extra_isize`).
    pub fn want_extra_isize(&self) -> u16 {
        le16(&*self.raw, 0x15e)
    }

    /// Blocks kept after the descriptor table for growth, in groups with a superblock copy.
    pub fn reserved_descriptor_blocks(&self) -> u16 {
        le16(&*self.raw, 0xce)
    }

    /// The volume's UUID.
    pub fn uuid(&self) -> [u8; 16] {
        std::array::from_fn(|index| self.raw[0x68 + index])
    }

    /// Whether `group` holds a copy of the superblock and the descriptors.
    pub fn has_copy(&self, group: GroupIndex) -> bool {
        if self.has_compat(compat::SPARSE_SUPER2) {
            // 0: there is none.
            return [0, le32(&*self.raw, 0x24c), le32(&*self.raw, 0x250)].contains(&group.0);
        }
        if !self.has_ro_compat(ro_compat::SPARSE_SUPER) || group.0 <= 1 {
            return true;
        }
        let power_of = |base: u32| {
            let mut value = base;
            while value < group.0 && value <= u32::MAX / base {
                value *= base;
            }
            value == group.0
        };
        power_of(3) || power_of(5) || power_of(7)
    }

    /// Blocks at the start of `group` that are copies: of the superblock, of the descriptors, and
    /// the room that they may grow into. With `meta_bg` a block of descriptors is in the first, the
    /// second and the last of the groups that it describes.
    pub fn copy_blocks(&self, group: GroupIndex) -> u32 {
        let (geometry, has_copy) = (&self.geometry, self.has_copy(group));
        let per_block = geometry.descriptors_per_block();
        if group.0 / per_block >= geometry.first_meta_bg {
            let within = group.0 % per_block;
            let described = within <= 1 || within == per_block - 1;
            return u32::from(has_copy) + u32::from(described);
        }
        let descriptors = geometry.group_count.div_ceil(per_block).min(geometry.first_meta_bg);
        let copy = 1 + descriptors + u32::from(self.reserved_descriptor_blocks());
        if has_copy { copy } else { 0 }
    }

    /// Blocks that are no file's from the beginning: copies, bitmaps, inode tables. The journal,
    /// which is a file, is not counted.
    pub fn overhead_blocks(&self) -> u64 {
        let geometry = &self.geometry;
        let groups = (0..geometry.group_count).map(GroupIndex);
        let copies: u64 = groups.map(|group| u64::from(self.copy_blocks(group))).sum();
        let own = 2 + u64::from(geometry.inode_table_blocks());
        u64::from(geometry.first_data_block) + copies + u64::from(geometry.group_count) * own
    }
}

/// What an image has that we cannot even read.
fn lacking(bytes: &[u8; BYTES]) -> Vec<String> {
    let (features, log) = (le32(bytes, 0x60), le32(bytes, 0x18));
    let mut names = incompat::names(features & !INCOMPAT_KNOWN);
    if features & (incompat::FILETYPE | incompat::JOURNAL_DEV) == 0 {
        names.push("directories without file types".into());
    }
    // What moves out of an inode, and what holds a value of an attribute, gets a tree.
    let with_trees = features & (incompat::INLINE_DATA | incompat::EA_INODE);
    if features & incompat::EXTENTS == 0 {
        let without = |name: String| format!("{name} without extents");
        names.extend(incompat::names(with_trees).into_iter().map(without));
    }
    if (LOG_BLOCK_MAX + 1..=LINUX_LOG_BLOCK_MAX).contains(&log) {
        names.push(format!("blocks of {} KiB", 1 << log));
    }
    // Its blocks are counted from another place than those of all others.
    if log == 0 && le32(bytes, 0x64) & ro_compat::BIGALLOC != 0 {
        names.push("bigalloc with blocks of 1 KiB".into());
    }
    names
}

fn decode_geometry(bytes: &[u8]) -> Result<Geometry> {
    let features = (le32(bytes, 0x60), le32(bytes, 0x64));
    let wide = features.0 & incompat::SIXTY_FOUR_BIT != 0;
    let block_bytes = match le32(bytes, 0x18) {
        log @ 0..=LOG_BLOCK_MAX => 1024 << log,
        _ => return Err(corrupt("s_log_block_size")),
    };
    let block_count =
        if wide { le32_pair(bytes, 0x04, 0x150) } else { u64::from(le32(bytes, 0x04)) };
    let first_data_block = le32(bytes, 0x14);
    if first_data_block != u32::from(block_bytes == 1024) {
        return Err(corrupt("s_first_data_block"));
    }
    let blocks_per_group = le32(bytes, 0x20);
    if blocks_per_group == 0
        || blocks_per_group > blocks_per_group_max(bytes, block_bytes, features.1)
        || !blocks_per_group.is_multiple_of(8)
    {
        return Err(corrupt("s_blocks_per_group"));
    }
    let inode_bytes = if le32(bytes, 0x4c) == 0 { 128 } else { le16(bytes, 0x58) };
    if !inode_bytes.is_power_of_two() || !(128..=block_bytes).contains(&u32::from(inode_bytes)) {
        return Err(corrupt("s_inode_size"));
    }
    let inodes_per_group = le32(bytes, 0x28);
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
    let inode_count = le32(bytes, 0x00);
    if u64::from(group_count) * u64::from(inodes_per_group) != u64::from(inode_count) {
        return Err(corrupt("s_inodes_count"));
    }
    if le32(bytes, 0x4c) != 0 && !(11..=inode_count).contains(&le32(bytes, 0x54)) {
        return Err(corrupt("s_first_ino"));
    }
    let flex_group_size = match (features.0 & incompat::FLEX_BG != 0, bytes[0x174]) {
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
        descriptor_bytes: descriptor_bytes(bytes, block_bytes, wide)?,
        group_count,
        flex_group_size,
        file_bytes_max: file_bytes_max(block_bytes, features.1),
        first_meta_bg: match features.0 & incompat::META_BG != 0 {
            true => le32(bytes, 0x104),
            false => u32::MAX,
        },
        inline_data: features.0 & incompat::INLINE_DATA != 0,
    })
}

/// Bytes of a group descriptor: 64 or more only with `64bit`.
fn descriptor_bytes(bytes: &[u8], block_bytes: u32, wide: bool) -> Result<u16> {
    let size = le16(bytes, 0xfe);
    match wide {
        false => Ok(32),
        true if size.is_power_of_two() && (64..=block_bytes).contains(&u32::from(size)) => Ok(size),
        true => Err(corrupt("s_desc_size")),
    }
}

/// A bitmap is one block: a bit for each block, or for each cluster of them (`bigalloc`).
fn blocks_per_group_max(bytes: &[u8], block_bytes: u32, ro_compat: u32) -> u32 {
    let shift = le32(bytes, 0x1c).saturating_sub(le32(bytes, 0x18)).min(12);
    let clusters = if ro_compat & ro_compat::BIGALLOC != 0 { shift } else { 0 };
    (block_bytes * 8) << clusters
}

/// The largest size of a file: what an extent tree can map, and without `huge_file` what 32 bits
/// of `i_blocks` can count, which is in units of 512 bytes then.
fn file_bytes_max(block_bytes: u32, ro_compat: u32) -> u64 {
    let most = u64::from(u32::MAX);
    let blocks = match ro_compat & ro_compat::HUGE_FILE != 0 {
        true => most,
        false => most / u64::from(block_bytes / 512),
    };
    blocks * u64::from(block_bytes)
}
