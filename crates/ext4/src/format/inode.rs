//! Inodes as they lie in the inode table: bytes with accessors.
//!
//! 128 bytes of ext2, then `i_extra_isize` bytes of later fields (checksum high, nanoseconds,
//! epochs, creation time), then room for extended attributes.

use std::mem::{offset_of, size_of};
use std::ops::Range;

use polylane_base::{Time, record};
use zerocopy::little_endian::{U16, U32};

use super::checksum::{crc, inode_seed};
use super::extent::ROOT_BYTES;

polylane_base::record! {
    /// What every inode has: `struct ext4_inode` up to `i_extra_isize`.
    struct InodeRecord: 128 {
        0x00 mode: U16,
        0x02 uid: U16,
        0x04 size_lo: U32,
        0x08 atime: U32,
        0x0c ctime: U32,
        0x10 mtime: U32,
        0x14 dtime: U32,
        0x18 gid: U16,
        0x1a links_count: U16,
        0x1c blocks_lo: U32,
        0x20 flags: U32,
        0x24 version: U32,
        0x28 block: [u8; ROOT_BYTES],
        0x64 generation: U32,
        0x68 file_acl_lo: U32,
        0x6c size_high: U32,
        0x70 obso_faddr: U32,
        0x74 blocks_high: U16,
        0x76 file_acl_high: U16,
        0x78 uid_high: U16,
        0x7a gid_high: U16,
        0x7c checksum_lo: U16,
        0x7e reserved: U16,
    }

    /// What follows in larger inodes: the later fields, as far as `i_extra_isize` says.
    struct LaterRecord: 32 {
        0x00 extra_isize: U16,
        0x02 checksum_hi: U16,
        0x04 ctime_extra: U32,
        0x08 mtime_extra: U32,
        0x0c atime_extra: U32,
        0x10 crtime: U32,
        0x14 crtime_extra: U32,
        0x18 version_hi: U32,
        0x1c projid: U32,
    }

    /// A device's number, in `i_block`: one of the two is 0.
    struct DeviceRecord: 8 {
        0x00 old: U32,
        0x04 new: U32,
    }
}

bitflags::bitflags! {
    /// `i_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct InodeFlags: u32 {
        /// Encrypted; unsupported.
        const ENCRYPT = 0x800;
        /// The directory has a hash tree.
        const INDEX = 0x1000;
        /// `i_blocks` counts file-system blocks.
        const HUGE_FILE = 0x4_0000;
        /// The inode's `i_block` is an extent tree.
        const EXTENTS = 0x8_0000;
        /// The value of an extended attribute.
        const EA_INODE = 0x20_0000;
        /// Data lies in the inode.
        const INLINE_DATA = 0x1000_0000;
        /// What is made in the directory belongs to its project.
        const PROJECT_INHERIT = 0x2000_0000;
        // What others mean is no affair of the format's: `polylane_vfs::flags`.
        const _ = !0;
    }
}

impl InodeFlags {
    /// Flags that programs see (`EXT4_FL_USER_VISIBLE`).
    pub const VISIBLE: InodeFlags = InodeFlags::from_bits_retain(0x725b_dfff);
}

/// Bytes of the original inode.
pub const CLASSIC_BYTES: usize = size_of::<InodeRecord>();
/// Where `i_block` lies.
pub const BLOCK: Range<usize> =
    offset_of!(InodeRecord, block)..offset_of!(InodeRecord, block) + ROOT_BYTES;
/// Where the halves of the checksum lie.
const CHECKSUM_LOW: usize = offset_of!(InodeRecord, checksum_lo);
const CHECKSUM_HIGH: usize = CLASSIC_BYTES + offset_of!(LaterRecord, checksum_hi);
/// Bytes of later fields up to the end of the upper half, and of `i_crtime`.
const CHECKSUM_END: usize = offset_of!(LaterRecord, ctime_extra);
const BIRTH_END: usize = offset_of!(LaterRecord, crtime_extra);

/// The generation that an inode's bytes tell; `None`: they are too few.
pub fn generation(bytes: &[u8]) -> Option<u32> {
    record::get::<InodeRecord>(bytes, 0).map(|inode| inode.generation.get())
}

/// One inode's bytes. Unknown fields and attributes survive a rewrite.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawInode {
    bytes: Box<[u8]>,
}

/// Which time stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stamp {
    /// Last access.
    Access,
    /// Last change of the inode.
    Change,
    /// Last change of the data.
    Modify,
    /// Creation.
    Birth,
}

impl Stamp {
    /// Bytes of later fields up to the end of the word with its fraction.
    const fn extra_end(self) -> usize {
        match self {
            Stamp::Change => offset_of!(LaterRecord, mtime_extra),
            Stamp::Modify => offset_of!(LaterRecord, atime_extra),
            Stamp::Access => offset_of!(LaterRecord, crtime),
            Stamp::Birth => offset_of!(LaterRecord, version_hi),
        }
    }
}

impl RawInode {
    /// The inode in `bytes`, as long as the image's inodes are.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        RawInode { bytes: bytes.into() }
    }

    /// A zeroed inode of `bytes` bytes with room for `extra` bytes of later fields.
    pub fn new(bytes: usize, extra: u16) -> Self {
        let mut inode = RawInode { bytes: vec![0; bytes].into() };
        if let Some(later) = record::get_mut::<LaterRecord>(&mut inode.bytes, CLASSIC_BYTES) {
            later.extra_isize.set(extra.min((bytes - CLASSIC_BYTES) as u16));
        }
        inode
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn record(&self) -> &InodeRecord {
        record::at(&self.bytes, 0)
    }

    fn record_mut(&mut self) -> &mut InodeRecord {
        record::at_mut(&mut self.bytes, 0)
    }

    /// The later fields, where they reach up to `end`.
    fn later(&self, end: usize) -> Option<&LaterRecord> {
        let later = record::get::<LaterRecord>(&self.bytes, CLASSIC_BYTES)?;
        (self.extra_isize() >= end).then_some(later)
    }

    /// The same, to be written.
    fn later_mut(&mut self, end: usize) -> Option<&mut LaterRecord> {
        self.later(end)?;
        record::get_mut(&mut self.bytes, CLASSIC_BYTES)
    }

    /// Whether the checksum is right, by the file system's seed.
    pub fn checksum_ok(&self, seed: u32, ino: u32) -> bool {
        let (low, high) = self.checksum(seed, ino);
        let later = self.later(CHECKSUM_END);
        self.record().checksum_lo == low && later.is_none_or(|later| later.checksum_hi == high)
    }

    /// Stores the checksum, by the file system's seed.
    pub fn put_checksum(&mut self, seed: u32, ino: u32) {
        let (low, high) = self.checksum(seed, ino);
        self.record_mut().checksum_lo = low;
        if let Some(later) = self.later_mut(CHECKSUM_END) {
            later.checksum_hi = high;
        }
    }

    fn checksum(&self, seed: u32, ino: u32) -> (U16, U16) {
        let zero = [0; size_of::<U16>()];
        let (classic, later) = self.bytes.split_at(CLASSIC_BYTES);
        let mut sum = inode_seed(seed, ino, self.generation());
        sum = crc(crc(sum, &classic[..CHECKSUM_LOW]), &zero);
        sum = crc(sum, &classic[CHECKSUM_LOW + zero.len()..]);
        if !later.is_empty() {
            let (before, from) = later.split_at(CHECKSUM_HIGH - CLASSIC_BYTES);
            sum = crc(sum, before);
            sum = match self.later(CHECKSUM_END) {
                Some(_) => crc(crc(sum, &zero), &from[zero.len()..]),
                None => crc(sum, from),
            };
        }
        ((sum as u16).into(), ((sum >> 16) as u16).into())
    }

    /// `i_extra_isize` as it is stored; `None`: the inode has no later fields.
    fn stored_extra_isize(&self) -> Option<usize> {
        let later = record::get::<LaterRecord>(&self.bytes, CLASSIC_BYTES)?;
        Some(later.extra_isize.get().into())
    }

    /// Whether the inode has room for a project.
    pub fn has_project(&self) -> bool {
        self.later(size_of::<LaterRecord>()).is_some()
    }

    /// The project (`i_projid`); 0 where the inode has no room for it.
    pub fn project(&self) -> u32 {
        self.later(size_of::<LaterRecord>()).map_or(0, |later| later.projid.get())
    }

    /// Stores the project, where there is room for it.
    pub fn set_project(&mut self, project: u32) {
        if let Some(later) = self.later_mut(size_of::<LaterRecord>()) {
            later.projid.set(project);
        }
    }

    /// `i_extra_isize`, clipped to what the inode has room for.
    pub fn extra_isize(&self) -> usize {
        self.stored_extra_isize().map_or(0, |stored| stored.min(self.bytes.len() - CLASSIC_BYTES))
    }

    /// Whether `i_extra_isize` is a value that the format allows.
    pub fn extra_isize_ok(&self) -> bool {
        let room = self.bytes.len() - CLASSIC_BYTES;
        let is_ok = |stored: usize| stored <= room && stored.is_multiple_of(4);
        self.stored_extra_isize().is_none_or(is_ok)
    }

    /// The room for attributes in the inode: behind the later fields.
    pub fn xattr_area(&self) -> &[u8] {
        match self.bytes.len() {
            CLASSIC_BYTES => &[],
            _ => &self.bytes[CLASSIC_BYTES + self.extra_isize()..],
        }
    }

    /// The same, to be written.
    pub fn xattr_area_mut(&mut self) -> &mut [u8] {
        match self.bytes.len() {
            CLASSIC_BYTES => &mut [],
            _ => {
                let start = CLASSIC_BYTES + self.extra_isize();
                &mut self.bytes[start..]
            }
        }
    }

    /// Attributes whose value this inode holds: the low half of `i_version`, and above it
    /// `i_ctime`.
    pub fn value_references(&self) -> u64 {
        let inode = self.record();
        u64::from(inode.ctime.get()) << 32 | u64::from(inode.version.get())
    }

    /// Stores the number of them.
    pub fn set_value_references(&mut self, count: u64) {
        let inode = self.record_mut();
        inode.version.set(count as u32);
        inode.ctime.set((count >> 32) as u32);
    }

    /// The checksum of the value that this inode holds: `i_atime`.
    pub fn value_sum(&self) -> u32 {
        self.record().atime.get()
    }

    /// Stores it.
    pub fn set_value_sum(&mut self, sum: u32) {
        self.record_mut().atime.set(sum);
    }

    /// `i_mode`: kind and permission bits.
    pub fn mode(&self) -> u16 {
        self.record().mode.get()
    }

    /// Stores `i_mode`.
    pub fn set_mode(&mut self, mode: u16) {
        self.record_mut().mode.set(mode);
    }

    /// Stores the permission bits of `i_mode`, the low 12.
    pub fn set_perm(&mut self, perm: u32) {
        self.set_mode(self.mode() & 0xf000 | (perm & 0o7777) as u16);
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        let inode = self.record();
        u32::from(inode.uid.get()) | u32::from(inode.uid_high.get()) << 16
    }

    /// Stores the owner.
    pub fn set_uid(&mut self, uid: u32) {
        let inode = self.record_mut();
        inode.uid.set(uid as u16);
        inode.uid_high.set((uid >> 16) as u16);
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        let inode = self.record();
        u32::from(inode.gid.get()) | u32::from(inode.gid_high.get()) << 16
    }

    /// Stores the group.
    pub fn set_gid(&mut self, gid: u32) {
        let inode = self.record_mut();
        inode.gid.set(gid as u16);
        inode.gid_high.set((gid >> 16) as u16);
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        let inode = self.record();
        u64::from(inode.size_lo.get()) | u64::from(inode.size_high.get()) << 32
    }

    /// Stores the size.
    pub fn set_size(&mut self, size: u64) {
        let inode = self.record_mut();
        inode.size_lo.set(size as u32);
        inode.size_high.set((size >> 32) as u32);
    }

    /// `i_links_count`; 1 for a directory with more links than it can count.
    pub fn links(&self) -> u16 {
        self.record().links_count.get()
    }

    /// Stores the link count.
    pub fn set_links(&mut self, links: u16) {
        self.record_mut().links_count.set(links);
    }

    /// 512-byte units taken, [`InodeFlags::HUGE_FILE`] resolved.
    pub fn sectors(&self, block_bytes: u32) -> u64 {
        let inode = self.record();
        let count = u64::from(inode.blocks_lo.get()) | u64::from(inode.blocks_high.get()) << 32;
        if self.has_flag(InodeFlags::HUGE_FILE) {
            count * u64::from(block_bytes / 512)
        } else {
            count
        }
    }

    /// Stores the 512-byte units taken; above 2^48 they are counted in blocks.
    pub fn set_sectors(&mut self, sectors: u64, block_bytes: u32) {
        let huge = sectors >= 1 << 48;
        let count = if huge { sectors / u64::from(block_bytes / 512) } else { sectors };
        let inode = self.record_mut();
        inode.blocks_lo.set(count as u32);
        inode.blocks_high.set((count >> 32) as u16);
        self.set_flag(InodeFlags::HUGE_FILE, huge);
    }

    /// `i_flags`.
    pub fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.record().flags.get())
    }

    /// Stores `i_flags`.
    pub fn set_flags(&mut self, flags: InodeFlags) {
        self.record_mut().flags.set(flags.bits());
    }

    /// Whether one of `flags` is set.
    pub fn has_flag(&self, flags: InodeFlags) -> bool {
        self.flags().intersects(flags)
    }

    /// Sets or clears `flag`.
    pub fn set_flag(&mut self, flag: InodeFlags, on: bool) {
        let mut flags = self.flags();
        flags.set(flag, on);
        self.set_flags(flags);
    }

    /// Tells a reused inode number from its former owner.
    pub fn generation(&self) -> u32 {
        self.record().generation.get()
    }

    /// Stores the generation.
    pub fn set_generation(&mut self, generation: u32) {
        self.record_mut().generation.set(generation);
    }

    /// Deletion time, or the next orphan of the list.
    pub fn dtime(&self) -> u32 {
        self.record().dtime.get()
    }

    /// Stores the deletion time.
    pub fn set_dtime(&mut self, dtime: u32) {
        self.record_mut().dtime.set(dtime);
    }

    /// Block of the external attributes, 0 for none.
    pub fn xattr_block(&self) -> u64 {
        let inode = self.record();
        u64::from(inode.file_acl_lo.get()) | u64::from(inode.file_acl_high.get()) << 32
    }

    /// Stores the block of the external attributes.
    pub fn set_xattr_block(&mut self, block: u64) {
        let inode = self.record_mut();
        inode.file_acl_lo.set(block as u32);
        inode.file_acl_high.set((block >> 32) as u16);
    }

    /// `i_block`: extent root, block map, short symbolic link or device number.
    pub fn block(&self) -> &[u8] {
        &self.record().block
    }

    /// The same, to be written.
    pub fn block_mut(&mut self) -> &mut [u8] {
        &mut self.record_mut().block
    }

    /// A device's number, old or new encoding, as `makedev`.
    pub fn rdev(&self) -> u64 {
        let device: &DeviceRecord = record::at(self.block(), 0);
        let new = device.new.get();
        let (major, minor) = match device.old.get() {
            0 => ((new >> 8) & 0xfff, (new & 0xff) | (new >> 12 & 0xf_ff00)),
            old => (old >> 8 & 0xff, old & 0xff),
        };
        let (major, minor) = (u64::from(major), u64::from(minor));
        (major & 0xfff) << 8 | (minor & 0xff) | (minor & !0xff) << 12 | (major & !0xfff) << 32
    }

    /// Stores a device's number.
    pub fn set_rdev(&mut self, rdev: u64) {
        let major = (rdev >> 8 & 0xfff) | (rdev >> 32 & !0xfff);
        let minor = (rdev & 0xff) | (rdev >> 12 & !0xff);
        let (major, minor) = (major as u32, minor as u32);
        let old = major < 256 && minor < 256;
        let device: &mut DeviceRecord = record::at_mut(self.block_mut(), 0);
        device.old.set(if old { major << 8 | minor } else { 0 });
        let new = (minor & 0xff) | major << 8 | (minor & !0xff) << 12;
        device.new.set(if old { 0 } else { new });
    }

    /// The word with a stamp's seconds, if the inode has it.
    fn seconds_mut(&mut self, stamp: Stamp) -> Option<&mut U32> {
        Some(match stamp {
            Stamp::Access => &mut self.record_mut().atime,
            Stamp::Change => &mut self.record_mut().ctime,
            Stamp::Modify => &mut self.record_mut().mtime,
            Stamp::Birth => &mut self.later_mut(BIRTH_END)?.crtime,
        })
    }

    /// The word with a stamp's fraction, if the inode has it.
    fn extra_mut(&mut self, stamp: Stamp) -> Option<&mut U32> {
        let later = self.later_mut(stamp.extra_end())?;
        Some(match stamp {
            Stamp::Access => &mut later.atime_extra,
            Stamp::Change => &mut later.ctime_extra,
            Stamp::Modify => &mut later.mtime_extra,
            Stamp::Birth => &mut later.crtime_extra,
        })
    }

    /// A time stamp: 34 bits of seconds and nanoseconds where the inode has room, else 32 signed
    /// bits.
    pub fn time(&self, stamp: Stamp) -> Time {
        let (inode, later) = (self.record(), self.later(stamp.extra_end()));
        let (seconds, extra) = match stamp {
            Stamp::Access => (inode.atime, later.map(|later| later.atime_extra)),
            Stamp::Change => (inode.ctime, later.map(|later| later.ctime_extra)),
            Stamp::Modify => (inode.mtime, later.map(|later| later.mtime_extra)),
            Stamp::Birth => {
                let seconds = self.later(BIRTH_END).map_or(U32::ZERO, |later| later.crtime);
                (seconds, later.map(|later| later.crtime_extra))
            }
        };
        let (seconds, extra) = (i64::from(seconds.get() as i32), extra.map_or(0, U32::get));
        Time { sec: seconds + (i64::from(extra & 3) << 32), nsec: (extra >> 2).min(999_999_999) }
    }

    /// Stores a time stamp, clipped to what the inode can hold; the first and the last second have
    /// no fraction, as for Linux.
    pub fn set_time(&mut self, stamp: Stamp, time: Time) {
        let low = i64::from(i32::MIN);
        let has_extra = self.later(stamp.extra_end()).is_some();
        let high = i64::from(i32::MAX) + if has_extra { 3 << 32 } else { 0 };
        let seconds = time.sec.clamp(low, high);
        if let Some(word) = self.seconds_mut(stamp) {
            word.set(seconds as u32);
        }
        let epoch = (seconds - i64::from(seconds as i32)) >> 32;
        let nsec = if seconds == low || seconds == high { 0 } else { time.nsec };
        if let Some(word) = self.extra_mut(stamp) {
            word.set(nsec << 2 | (epoch as u32 & 3));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_reach_from_1901_to_2446() {
        const LAST: i64 = i32::MAX as i64 + (3 << 32);
        let mut inode = RawInode::new(256, 32);
        let ends = [i64::from(i32::MIN), -1, 0, i64::from(i32::MAX), 1 << 31, 1 << 33];
        for sec in ends.into_iter().chain([LAST]) {
            for stamp in [Stamp::Access, Stamp::Change, Stamp::Modify, Stamp::Birth] {
                inode.set_time(stamp, Time { sec, nsec: 123_456_789 });
                let nsec = if sec == ends[0] || sec == LAST { 0 } else { 123_456_789 };
                assert_eq!(inode.time(stamp), Time { sec, nsec }, "{stamp:?}");
            }
        }
        let mut small = RawInode::new(128, 0);
        small.set_time(Stamp::Modify, Time { sec: 1 << 40, nsec: 5 });
        assert_eq!(small.time(Stamp::Modify), Time { sec: i32::MAX.into(), nsec: 0 });
        assert_eq!(small.time(Stamp::Birth), Time::default());
    }

    #[test]
    fn device_numbers_come_back() {
        let mut inode = RawInode::new(256, 32);
        for (major, minor) in [(8u64, 1u64), (10, 229), (259, 3), (1, 70_000), (4095, 0xf_ffff)] {
            let rdev = major << 8 | (minor & 0xff) | (minor & !0xff) << 12;
            inode.set_rdev(rdev);
            assert_eq!(inode.rdev(), rdev, "{major}:{minor}");
        }
    }

    #[test]
    fn wide_numbers_use_both_halves() {
        let mut inode = RawInode::new(256, 32);
        inode.set_uid(0x12_3456);
        inode.set_gid(0x65_4321);
        inode.set_size(1 << 40 | 5);
        inode.set_xattr_block(1 << 35);
        inode.set_sectors(1 << 47, 4096);
        assert_eq!((inode.uid(), inode.gid()), (0x12_3456, 0x65_4321));
        assert_eq!((inode.size(), inode.xattr_block()), (1 << 40 | 5, 1 << 35));
        assert_eq!(inode.sectors(4096), 1 << 47);
        inode.set_sectors(1 << 50, 4096);
        assert!(inode.has_flag(InodeFlags::HUGE_FILE));
        assert_eq!(inode.sectors(4096), 1 << 50);
    }
}
