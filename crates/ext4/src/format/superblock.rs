//! The superblock: geometry, features, counters.

pub mod fresh;
mod geometry;
mod record;

use std::mem::offset_of;

use polylane_base::{Gid, Uid};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

pub use self::geometry::Geometry;
use self::geometry::wide;
pub use self::record::SuperblockRecord;
use self::record::{FirstError, LastError};
use super::GroupIndex;
use super::checksum::crc;
pub use super::features::{Compat, Incompat, RoCompat};
use super::quota::QuotaKind;
use crate::error::{Corrupt, Error, Result, Structure};

/// Where it lies on the device, in bytes, and how long it is.
pub const OFFSET: u64 = 1024;
/// Bytes of a superblock.
pub const BYTES: usize = 1024;

/// `s_magic`.
pub const MAGIC: u16 = 0xef53;
/// Largest blocks, by the binary logarithm of their KiB: ours ...
const LOG_BLOCK_MAX: u32 = 2;
/// ... and Linux'.
const LINUX_LOG_BLOCK_MAX: u32 = 6;
/// Bytes of a superblock that its checksum covers.
const SUMMED_BYTES: usize = offset_of!(SuperblockRecord, checksum);

bitflags::bitflags! {
    /// `s_state`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct State: u16 {
        /// Unmounted cleanly.
        const VALID = 1;
        /// Errors were found.
        const ERROR = 2;
        const _ = !0;
    }

    /// `s_default_mount_opts`.
    struct MountOptions: u32 {
        /// A new file gets its directory's group.
        const BSD_GROUPS = 0x2;
        /// Freed blocks are discarded.
        const DISCARD = 0x400;
        const _ = !0;
    }

    /// `s_flags`.
    struct Flags: u32 {
        /// Names are hashed as unsigned characters.
        const UNSIGNED_HASH = 2;
        const _ = !0;
    }
}

/// What the superblock keeps of an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErrorNote {
    /// When, in seconds.
    pub now: u64,
    /// The inode that it was found at, 0 for none.
    pub ino: u32,
    /// What is wrong; the first 31 bytes are kept, where Linux keeps the name of a function.
    pub what: &'static str,
    /// The kind, as Linux numbers them.
    pub code: u8,
}

impl ErrorNote {
    fn function(&self) -> [u8; 32] {
        let mut function = [0; 32];
        let length = self.what.len().min(31);
        function[..length].copy_from_slice(&self.what.as_bytes()[..length]);
        function
    }
}

const INCOMPAT_KNOWN: Incompat = Incompat::FILETYPE
    .union(Incompat::RECOVER)
    .union(Incompat::EXTENTS)
    .union(Incompat::SIXTY_FOUR_BIT)
    .union(Incompat::FLEX_BG)
    .union(Incompat::META_BG)
    .union(Incompat::LARGE_DIR)
    .union(Incompat::INLINE_DATA)
    .union(Incompat::EA_INODE)
    .union(Incompat::CSUM_SEED);

const RO_COMPAT_KNOWN: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::QUOTA)
    .union(RoCompat::PROJECT)
    .union(RoCompat::ORPHAN_PRESENT);

/// The superblock as it lies on disk, with its geometry decoded and validated once.
#[derive(Clone)]
pub struct Superblock {
    raw: Box<SuperblockRecord>,
    /// Geometry; never changes while open.
    pub geometry: Geometry,
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
        let raw: &SuperblockRecord = zerocopy::transmute_ref!(bytes);
        if raw.magic.get() != MAGIC {
            return Err(corrupt("magic number"));
        }
        let has_sums = raw.ro_compat().contains(RoCompat::METADATA_CSUM);
        if has_sums && raw.checksum.get() != raw.sum() {
            return Err(corrupt("checksum"));
        }
        // Before the geometry: what we do not know may have another one.
        let names = lacking(raw);
        if !names.is_empty() {
            return Err(Error::Incompatible(names));
        }
        Ok(Superblock { geometry: geometry::decode(raw)?, raw: Box::new(*raw) })
    }

    /// The bytes for the disk, with a fresh checksum.
    pub fn encode(&self) -> [u8; BYTES] {
        let mut record = *self.raw;
        if self.has_checksums() {
            record.checksum.set(record.sum());
        }
        zerocopy::transmute!(record)
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
        let mut names = (self.ro_compat() & !RO_COMPAT_KNOWN).names();
        let clean = self.state().contains(State::VALID);
        let needs_replay = self.has_incompat(Incompat::RECOVER);
        match (self.has_compat(Compat::HAS_JOURNAL), self.journal_inode()) {
            (false, _) if needs_replay => names.push("no journal, and a replay is wanted".into()),
            (false, _) if !clean => {
                names.push("no journal, and not unmounted cleanly: run e2fsck".into());
            }
            (false, _) | (true, 1..) => {}
            (true, 0) => names.push("its journal is on another device".into()),
        }
        names.extend(self.quota_reasons().map(String::from));
        names
    }

    /// What of quotas keeps the image from being written.
    fn quota_reasons(&self) -> impl Iterator<Item = &'static str> {
        let has_quota = self.has_ro_compat(RoCompat::QUOTA);
        let asks = QuotaKind::ALL.into_iter().any(|kind| self.asks_for_limits(kind));
        let in_files = self.mount_option_names().any(is_quota_file);
        [(!has_quota && (asks || in_files), "its mount options ask for quotas in files")]
            .into_iter()
            .filter_map(|(is, reason)| is.then_some(reason))
    }

    /// The options that the image has of its own (`s_mount_opts`).
    fn mount_option_names(&self) -> impl Iterator<Item = &[u8]> {
        let options = self.raw.mount_opts.split(|byte| *byte == 0).next().unwrap_or_default();
        options.split(|byte| *byte == b',')
    }

    /// Whether its own mount options have limits of a kind enforced.
    pub fn asks_for_limits(&self, kind: QuotaKind) -> bool {
        let names: &[&[u8]] = match kind {
            QuotaKind::User => &[b"usrquota", b"quota"],
            QuotaKind::Group => &[b"grpquota"],
            QuotaKind::Project => &[b"prjquota"],
        };
        self.mount_option_names().any(|name| names.contains(&name))
    }

    /// The inode that holds quotas of a kind, 0 for none (`s_usr_quota_inum` and others).
    pub fn quota_inode(&self, kind: QuotaKind) -> u32 {
        if !self.has_ro_compat(RoCompat::QUOTA) {
            return 0;
        }
        match kind {
            QuotaKind::User => self.raw.usr_quota_inum.get(),
            QuotaKind::Group => self.raw.grp_quota_inum.get(),
            QuotaKind::Project => self.raw.prj_quota_inum.get(),
        }
    }

    /// `s_feature_compat`.
    pub fn compat(&self) -> Compat {
        self.raw.compat()
    }

    /// `s_feature_incompat`.
    pub fn incompat(&self) -> Incompat {
        self.raw.incompat()
    }

    /// `s_feature_ro_compat`.
    pub fn ro_compat(&self) -> RoCompat {
        self.raw.ro_compat()
    }

    /// Whether all bits of `feature` are set.
    pub fn has_compat(&self, feature: Compat) -> bool {
        self.compat().contains(feature)
    }

    /// Whether all bits of `feature` are set.
    pub fn has_incompat(&self, feature: Incompat) -> bool {
        self.incompat().contains(feature)
    }

    /// Whether all bits of `feature` are set.
    pub fn has_ro_compat(&self, feature: RoCompat) -> bool {
        self.ro_compat().contains(feature)
    }

    /// Whether metadata carries checksums.
    pub fn has_checksums(&self) -> bool {
        self.has_ro_compat(RoCompat::METADATA_CSUM)
    }

    /// Whether group descriptors carry checksums, all there are with `gdt_csum`. Only then do their
    /// flags say what was never initialised.
    pub fn has_group_checksums(&self) -> bool {
        self.has_checksums() || self.has_ro_compat(RoCompat::GDT_CSUM)
    }

    /// Sets or clears [`Incompat::RECOVER`]: the journal holds something to replay.
    pub fn set_recover(&mut self, needed: bool) {
        let mut features = self.incompat();
        features.set(Incompat::RECOVER, needed);
        self.raw.feature_incompat.set(features.bits());
    }

    /// Sets or clears [`RoCompat::ORPHAN_PRESENT`]: the orphan file may hold entries.
    pub fn set_orphan_present(&mut self, present: bool) {
        self.set_ro_compat(RoCompat::ORPHAN_PRESENT, present);
    }

    /// Sets [`RoCompat::LARGE_FILE`]: there are files past 2 GiB.
    pub fn set_large_file(&mut self) {
        self.set_ro_compat(RoCompat::LARGE_FILE, true);
    }

    fn set_ro_compat(&mut self, feature: RoCompat, on: bool) {
        let mut features = self.ro_compat();
        features.set(feature, on);
        self.raw.feature_ro_compat.set(features.bits());
    }

    /// Sets [`Compat::EXT_ATTR`]: there are extended attributes.
    pub fn set_ext_attr(&mut self) {
        self.raw.feature_compat.set((self.compat() | Compat::EXT_ATTR).bits());
    }

    /// Whether a new file gets its directory's group (`s_default_mount_opts`, `bsdgroups`).
    pub fn wants_bsd_groups(&self) -> bool {
        self.mount_options().contains(MountOptions::BSD_GROUPS)
    }

    fn mount_options(&self) -> MountOptions {
        MountOptions::from_bits_retain(self.raw.default_mount_opts.get())
    }

    /// Seed of all checksums but this structure's own.
    pub fn checksum_seed(&self) -> u32 {
        match self.has_incompat(Incompat::CSUM_SEED) {
            true => self.raw.checksum_seed.get(),
            false => crc(!0, &self.raw.uuid),
        }
    }

    /// Free blocks, as last written: a hint after an unclean stop.
    pub fn free_blocks(&self) -> u64 {
        self.wide(self.raw.free_blocks_count_lo, self.raw.free_blocks_count_hi)
    }

    /// A number of blocks, the upper half of which is there with `64bit` alone.
    fn wide(&self, low: U32, high: U32) -> u64 {
        wide(self.has_incompat(Incompat::SIXTY_FOUR_BIT), low, high)
    }

    /// Stores the number of free blocks.
    pub fn set_free_blocks(&mut self, count: u64) {
        self.raw.free_blocks_count_lo.set(count as u32);
        if self.has_incompat(Incompat::SIXTY_FOUR_BIT) {
            self.raw.free_blocks_count_hi.set((count >> 32) as u32);
        }
    }

    /// Blocks that only the superuser may take.
    pub fn reserved_blocks(&self) -> u64 {
        self.wide(self.raw.r_blocks_count_lo, self.raw.r_blocks_count_hi)
    }

    /// The user and the group that may take them beside root: `s_def_resuid` and `s_def_resgid`.
    pub fn blocks_kept_for(&self) -> (Uid, Gid) {
        (Uid(self.raw.def_resuid.get().into()), Gid(self.raw.def_resgid.get().into()))
    }

    /// Free inodes, as last written.
    pub fn free_inodes(&self) -> u32 {
        self.raw.free_inodes_count.get()
    }

    /// Stores the number of free inodes.
    pub fn set_free_inodes(&mut self, count: u32) {
        self.raw.free_inodes_count.set(count);
    }

    /// `s_state`.
    pub fn state(&self) -> State {
        State::from_bits_retain(self.raw.state.get())
    }

    /// Stores `s_state`.
    pub fn set_state(&mut self, state: State) {
        self.raw.state.set(state.bits());
    }

    /// Notes a mount at `now` (seconds): mount time and count.
    pub fn note_mount(&mut self, now: u32) {
        self.raw.mtime.set(now);
        self.raw.mnt_count.set(self.raw.mnt_count.get().saturating_add(1));
    }

    /// Notes an error: the first one is kept, the last one replaced, all are counted.
    pub fn note_error(&mut self, note: &ErrorNote) {
        let (raw, function) = (&mut *self.raw, note.function());
        raw.error_count.set(raw.error_count.get().saturating_add(1));
        let (time, time_high) = ((note.now as u32).into(), (note.now >> 32) as u8);
        let (ino, line, block) = (note.ino.into(), 0.into(), 0.into());
        if raw.error_count.get() == 1 {
            raw.first_error = FirstError { time, ino, block, func: function, line };
            (raw.first_error_time_hi, raw.first_error_errcode) = (time_high, note.code);
        }
        raw.last_error = LastError { time, ino, line, block, func: function };
        (raw.last_error_time_hi, raw.last_error_errcode) = (time_high, note.code);
    }

    /// Errors found since the last e2fsck.
    pub fn error_count(&self) -> u32 {
        self.raw.error_count.get()
    }

    /// Notes a write at `now` (seconds).
    pub fn note_write(&mut self, now: u32) {
        self.raw.wtime.set(now);
    }

    /// The first inode that is not reserved.
    pub fn first_inode(&self) -> u32 {
        if self.raw.rev_level.get() == 0 { 11 } else { self.raw.first_ino.get() }
    }

    /// The journal's inode, 0 for none.
    pub fn journal_inode(&self) -> u32 {
        self.raw.journal_inum.get()
    }

    /// Head of the list of orphans, 0 when empty.
    pub fn last_orphan(&self) -> u32 {
        self.raw.last_orphan.get()
    }

    /// Stores the head of the list of orphans.
    pub fn set_last_orphan(&mut self, ino: u32) {
        self.raw.last_orphan.set(ino);
    }

    /// The orphan file's inode, 0 for none.
    pub fn orphan_file_inode(&self) -> u32 {
        self.raw.orphan_file_inum.get()
    }

    /// Key of the directory hash.
    pub fn hash_seed(&self) -> [u32; 4] {
        self.raw.hash_seed.map(U32::get)
    }

    /// `s_def_hash_version`.
    pub fn default_hash_version(&self) -> u8 {
        self.raw.def_hash_version
    }

    /// Whether the image is to be opened with online discard (`s_default_mount_opts`).
    pub fn wants_discard(&self) -> bool {
        self.mount_options().contains(MountOptions::DISCARD)
    }

    /// Whether names are hashed as unsigned characters (`EXT2_FLAGS_UNSIGNED_HASH`).
    pub fn unsigned_hash(&self) -> bool {
        Flags::from_bits_retain(self.raw.flags.get()).contains(Flags::UNSIGNED_HASH)
    }

    /// Extra inode bytes that every new inode has room for (`s_want_extra_isize`).
    pub fn want_extra_isize(&self) -> u16 {
        self.raw.want_extra_isize.get()
    }

    /// Blocks kept after the descriptor table for growth, in groups with a superblock copy.
    pub fn reserved_descriptor_blocks(&self) -> u16 {
        self.raw.reserved_gdt_blocks.get()
    }

    /// The volume's UUID.
    pub fn uuid(&self) -> [u8; 16] {
        self.raw.uuid
    }

    /// Whether `group` holds a copy of the superblock and the descriptors.
    pub fn has_copy(&self, group: GroupIndex) -> bool {
        if self.has_compat(Compat::SPARSE_SUPER2) {
            // 0: there is none.
            return group.0 == 0 || self.raw.backup_bgs.contains(&group.0.into());
        }
        if !self.has_ro_compat(RoCompat::SPARSE_SUPER) || group.0 <= 1 {
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

impl SuperblockRecord {
    fn compat(&self) -> Compat {
        Compat::from_bits_retain(self.feature_compat.get())
    }

    fn incompat(&self) -> Incompat {
        Incompat::from_bits_retain(self.feature_incompat.get())
    }

    fn ro_compat(&self) -> RoCompat {
        RoCompat::from_bits_retain(self.feature_ro_compat.get())
    }

    fn sum(&self) -> u32 {
        crc(!0, &self.as_bytes()[..SUMMED_BYTES])
    }
}

/// What an image has that we cannot even read.
fn lacking(raw: &SuperblockRecord) -> Vec<String> {
    let (features, log) = (raw.incompat(), raw.log_block_size.get());
    let mut names = (features & !INCOMPAT_KNOWN).names();
    if !features.intersects(Incompat::FILETYPE | Incompat::JOURNAL_DEV) {
        names.push("directories without file types".into());
    }
    // What moves out of an inode, and what holds a value of an attribute, gets a tree.
    let with_trees = features & (Incompat::INLINE_DATA | Incompat::EA_INODE);
    if !features.contains(Incompat::EXTENTS) {
        let without = |name: String| format!("{name} without extents");
        names.extend(with_trees.names().into_iter().map(without));
    }
    if (LOG_BLOCK_MAX + 1..=LINUX_LOG_BLOCK_MAX).contains(&log) {
        names.push(format!("blocks of {} KiB", 1 << log));
    }
    // Its blocks are counted from another place than those of all others.
    if log == 0 && raw.ro_compat().contains(RoCompat::BIGALLOC) {
        names.push("bigalloc with blocks of 1 KiB".into());
    }
    names
}
/// Whether a mount option names a file of quotas.
fn is_quota_file(option: &[u8]) -> bool {
    let has_file = |prefix: &[u8]| option.strip_prefix(prefix).is_some_and(|file| !file.is_empty());
    has_file(b"usrjquota=") || has_file(b"grpjquota=")
}
