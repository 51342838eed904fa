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
pub mod quota;
pub mod superblock;
pub mod xattr;

use zerocopy::little_endian::U32;

/// A number as two fields hold it: the lower half, then the upper one.
fn halves(value: u64) -> (U32, U32) {
    ((value as u32).into(), ((value >> 32) as u32).into())
}

/// A block of the device, counted from its start, in file-system blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DeviceBlock(pub u64);

/// A block of a file, counted from the file's start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct FileBlock(pub u32);

/// A block group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct GroupIndex(pub u32);
