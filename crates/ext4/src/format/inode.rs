//! Inodes as they lie in the inode table: bytes with accessors.
//!
//! 128 bytes of ext2, then `i_extra_isize` bytes of later fields (checksum high, nanoseconds,
//! epochs, creation time), then room for extended attributes.

use polylane_base::Time;

use super::checksum::{crc, inode_seed};
use super::extent::ROOT_BYTES;
use super::{le16, le32, put16, put32};

/// Flag: the inode's `i_block` is an extent tree.
pub const EXTENTS: u32 = 0x8_0000;
/// Flag: the directory has a hash tree.
pub const INDEX: u32 = 0x1000;
/// Flag: `i_blocks` counts file-system blocks.
pub const HUGE_FILE: u32 = 0x4_0000;
/// Flag: data lies in the inode; unsupported.
pub const INLINE_DATA: u32 = 0x1000_0000;
/// Flag: encrypted; unsupported.
pub const ENCRYPT: u32 = 0x800;
/// Flag: the value of an extended attribute; unsupported.
pub const EA_INODE: u32 = 0x20_0000;

/// Flags that programs see (`EXT4_FL_USER_VISIBLE`). What many of them mean is no affair of the
/// format's: `polylane_vfs::flags`.
pub const VISIBLE: u32 = 0x725b_dfff;

/// Bytes of the original inode.
pub const CLASSIC_BYTES: usize = 128;
/// Where `i_block` lies.
const BLOCK_AT: usize = 0x28;

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
    /// Offsets of the seconds and of the extra word.
    const fn places(self) -> (usize, usize) {
        match self {
            Stamp::Access => (0x08, 0x8c),
            Stamp::Change => (0x0c, 0x84),
            Stamp::Modify => (0x10, 0x88),
            Stamp::Birth => (0x90, 0x94),
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
        if bytes > CLASSIC_BYTES {
            put16(&mut inode.bytes, 0x80, extra.min((bytes - CLASSIC_BYTES) as u16));
        }
        inode
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether the checksum is right, by the file system's seed.
    pub fn checksum_ok(&self, seed: u32, ino: u32) -> bool {
        let (low, high) = self.checksum(seed, ino);
        le16(&self.bytes, 0x7c) == low && (!self.has_extra(0x84) || le16(&self.bytes, 0x82) == high)
    }

    /// Stores the checksum, by the file system's seed.
    pub fn put_checksum(&mut self, seed: u32, ino: u32) {
        let (low, high) = self.checksum(seed, ino);
        put16(&mut self.bytes, 0x7c, low);
        if self.has_extra(0x84) {
            put16(&mut self.bytes, 0x82, high);
        }
    }

    fn checksum(&self, seed: u32, ino: u32) -> (u16, u16) {
        let mut sum = inode_seed(seed, ino, self.generation());
        let zero = [0; 2];
        sum = crc(crc(sum, &self.bytes[..0x7c]), &zero);
        sum = crc(sum, &self.bytes[0x7e..CLASSIC_BYTES]);
        if self.bytes.len() > CLASSIC_BYTES {
            sum = crc(sum, &self.bytes[CLASSIC_BYTES..0x82]);
            let rest = if self.has_extra(0x84) {
                sum = crc(sum, &zero);
                0x84
            } else {
                0x82
            };
            sum = crc(sum, &self.bytes[rest..]);
        }
        (sum as u16, (sum >> 16) as u16)
    }

    /// `i_extra_isize`, clipped to what the inode has room for.
    pub fn extra_isize(&self) -> usize {
        match self.bytes.len() {
            CLASSIC_BYTES => 0,
            len => usize::from(le16(&self.bytes, 0x80)).min(len - CLASSIC_BYTES),
        }
    }

    /// Whether `i_extra_isize` is a value that the format allows.
    pub fn extra_isize_ok(&self) -> bool {
        self.bytes.len() == CLASSIC_BYTES || {
            let stored = usize::from(le16(&self.bytes, 0x80));
            stored <= self.bytes.len() - CLASSIC_BYTES && stored.is_multiple_of(4)
        }
    }

    /// Whether the later fields reach up to offset `end`.
    fn has_extra(&self, end: usize) -> bool {
        CLASSIC_BYTES + self.extra_isize() >= end
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
        u64::from(le32(&self.bytes, 0x0c)) << 32 | u64::from(le32(&self.bytes, 0x24))
    }

    /// Stores the number of them.
    pub fn set_value_references(&mut self, count: u64) {
        put32(&mut self.bytes, 0x24, count as u32);
        put32(&mut self.bytes, 0x0c, (count >> 32) as u32);
    }

    /// The checksum of the value that this inode holds: `i_atime`.
    pub fn value_sum(&self) -> u32 {
        le32(&self.bytes, 0x08)
    }

    /// Stores it.
    pub fn set_value_sum(&mut self, sum: u32) {
        put32(&mut self.bytes, 0x08, sum);
    }

    /// `i_mode`: kind and permission bits.
    pub fn mode(&self) -> u16 {
        le16(&self.bytes, 0x00)
    }

    /// Stores `i_mode`.
    pub fn set_mode(&mut self, mode: u16) {
        put16(&mut self.bytes, 0x00, mode);
    }

    /// Stores the permission bits of `i_mode`, the low 12.
    pub fn set_perm(&mut self, perm: u32) {
        self.set_mode(self.mode() & 0xf000 | (perm & 0o7777) as u16);
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        u32::from(le16(&self.bytes, 0x02)) | u32::from(le16(&self.bytes, 0x78)) << 16
    }

    /// Stores the owner.
    pub fn set_uid(&mut self, uid: u32) {
        put16(&mut self.bytes, 0x02, uid as u16);
        put16(&mut self.bytes, 0x78, (uid >> 16) as u16);
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        u32::from(le16(&self.bytes, 0x18)) | u32::from(le16(&self.bytes, 0x7a)) << 16
    }

    /// Stores the group.
    pub fn set_gid(&mut self, gid: u32) {
        put16(&mut self.bytes, 0x18, gid as u16);
        put16(&mut self.bytes, 0x7a, (gid >> 16) as u16);
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        u64::from(le32(&self.bytes, 0x04)) | u64::from(le32(&self.bytes, 0x6c)) << 32
    }

    /// Stores the size.
    pub fn set_size(&mut self, size: u64) {
        put32(&mut self.bytes, 0x04, size as u32);
        put32(&mut self.bytes, 0x6c, (size >> 32) as u32);
    }

    /// `i_links_count`; 1 for a directory with more links than it can count.
    pub fn links(&self) -> u16 {
        le16(&self.bytes, 0x1a)
    }

    /// Stores the link count.
    pub fn set_links(&mut self, links: u16) {
        put16(&mut self.bytes, 0x1a, links);
    }

    /// 512-byte units taken, [`HUGE_FILE`] resolved.
    pub fn sectors(&self, block_bytes: u32) -> u64 {
        let count = u64::from(le32(&self.bytes, 0x1c)) | u64::from(le16(&self.bytes, 0x74)) << 32;
        if self.has_flag(HUGE_FILE) { count * u64::from(block_bytes / 512) } else { count }
    }

    /// Stores the 512-byte units taken; above 2^48 they are counted in blocks.
    pub fn set_sectors(&mut self, sectors: u64, block_bytes: u32) {
        let huge = sectors >= 1 << 48;
        let count = if huge { sectors / u64::from(block_bytes / 512) } else { sectors };
        put32(&mut self.bytes, 0x1c, count as u32);
        put16(&mut self.bytes, 0x74, (count >> 32) as u16);
        self.set_flag(HUGE_FILE, huge);
    }

    /// `i_flags`.
    pub fn flags(&self) -> u32 {
        le32(&self.bytes, 0x20)
    }

    /// Stores `i_flags`.
    pub fn set_flags(&mut self, flags: u32) {
        put32(&mut self.bytes, 0x20, flags);
    }

    /// Whether `flag` is set.
    pub fn has_flag(&self, flag: u32) -> bool {
        self.flags() & flag != 0
    }

    /// Sets or clears `flag`.
    pub fn set_flag(&mut self, flag: u32, on: bool) {
        let flags = self.flags();
        self.set_flags(if on { flags | flag } else { flags & !flag });
    }

    /// Tells a reused inode number from its former owner.
    pub fn generation(&self) -> u32 {
        le32(&self.bytes, 0x64)
    }

    /// Stores the generation.
    pub fn set_generation(&mut self, generation: u32) {
        put32(&mut self.bytes, 0x64, generation);
    }

    /// Deletion time, or the next orphan of the list.
    pub fn dtime(&self) -> u32 {
        le32(&self.bytes, 0x14)
    }

    /// Stores the deletion time.
    pub fn set_dtime(&mut self, dtime: u32) {
        put32(&mut self.bytes, 0x14, dtime);
    }

    /// Block of the external attributes, 0 for none.
    pub fn xattr_block(&self) -> u64 {
        u64::from(le32(&self.bytes, 0x68)) | u64::from(le16(&self.bytes, 0x76)) << 32
    }

    /// Stores the block of the external attributes.
    pub fn set_xattr_block(&mut self, block: u64) {
        put32(&mut self.bytes, 0x68, block as u32);
        put16(&mut self.bytes, 0x76, (block >> 32) as u16);
    }

    /// `i_block`: extent root, block map, short symbolic link or device number.
    pub fn block(&self) -> &[u8] {
        &self.bytes[BLOCK_AT..BLOCK_AT + ROOT_BYTES]
    }

    /// The same, to be written.
    pub fn block_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[BLOCK_AT..BLOCK_AT + ROOT_BYTES]
    }

    /// A device's number, old or new encoding, as `makedev`.
    pub fn rdev(&self) -> u64 {
        let (old, new) = (le32(self.block(), 0), le32(self.block(), 4));
        let (major, minor) = match old {
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
        let block = self.block_mut();
        put32(block, 0, if old { major << 8 | minor } else { 0 });
        let new = (minor & 0xff) | major << 8 | (minor & !0xff) << 12;
        put32(block, 4, if old { 0 } else { new });
    }

    /// A time stamp: 34 bits of seconds and nanoseconds where the inode has room, else 32 signed
    /// bits.
    pub fn time(&self, stamp: Stamp) -> Time {
        let (at, extra_at) = stamp.places();
        if stamp == Stamp::Birth && !self.has_extra(at + 4) {
            return Time::default();
        }
        let seconds = i64::from(le32(&self.bytes, at) as i32);
        if !self.has_extra(extra_at + 4) {
            return Time { sec: seconds, nsec: 0 };
        }
        let extra = le32(&self.bytes, extra_at);
        Time { sec: seconds + (i64::from(extra & 3) << 32), nsec: (extra >> 2).min(999_999_999) }
    }

    /// Stores a time stamp, clipped to what the inode can hold; the first and the last second have
    /// no fraction, as for Linux.
    pub fn set_time(&mut self, stamp: Stamp, time: Time) {
        let (at, extra_at) = stamp.places();
        if stamp == Stamp::Birth && !self.has_extra(at + 4) {
            return;
        }
        let low = i64::from(i32::MIN);
        if !self.has_extra(extra_at + 4) {
            put32(&mut self.bytes, at, time.sec.clamp(low, i32::MAX.into()) as i32 as u32);
            return;
        }
        let high = i64::from(i32::MAX) + (3 << 32);
        let seconds = time.sec.clamp(low, high);
        let epoch = (seconds - i64::from(seconds as i32)) >> 32;
        put32(&mut self.bytes, at, seconds as u32);
        let nsec = if seconds == low || seconds == high { 0 } else { time.nsec };
        put32(&mut self.bytes, extra_at, nsec << 2 | (epoch as u32 & 3));
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
        assert!(inode.has_flag(HUGE_FILE));
        assert_eq!(inode.sectors(4096), 1 << 50);
    }
}
