//! Bytes on disk: codecs and checksums, without I/O, locks or policy.
//!
//! Everything is little-endian except the journal, which is big-endian. A type here either *is* the
//! bytes with accessors (so that fields we do not know survive a rewrite) or a decoded, validated
//! value. Offsets are those of Documentation/filesystems/ext4.

pub mod acl;
pub mod bitmap;
pub mod checksum;
pub mod dirent;
pub mod extent;
pub mod fast;
pub mod features;
pub mod group;
pub mod hash;
pub mod htree;
pub mod inode;
pub mod journal;
pub mod superblock;
pub mod xattr;

/// A block of the device, counted from its start, in file-system blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DeviceBlock(pub u64);

/// A block of a file, counted from the file's start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FileBlock(pub u32);

/// A block group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct GroupIndex(pub u32);

/// The little-endian 16-bit word at `at`. Callers pass offsets within fixed-size structures.
pub(crate) fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The little-endian 32-bit word at `at`.
pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}
