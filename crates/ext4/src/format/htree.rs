//! The index nodes of a hashed directory, which pretend to be directory entries.
//!
//! ```text
//! root  block: "." 12 bytes, ".." rest of block; at 0x18: reserved u32, hash version u8,
//!              info length 8, levels u8, flags u8; entries from 0x20
//! node  block: an empty entry of the whole block, 8 bytes; entries from 0x08
//! entries:     {limit u16, count u16, first block u32}, then {hash u32, block u32} sorted by hash
//! checksum:    8 bytes behind the last possible entry: reserved u32, sum u32; the sum covers the
//!              block up to the last used entry, the reserved word, and a zero word
//! ```
//! A set bit 0 of a hash says that entries of equal hash go on from the block before.

use std::mem::size_of;

use polylane_base::record;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

use super::FileBlock;
use super::checksum::crc;
use super::dirent::{DOT_DOT_AT, EntryRecord, put_entry, put_first};

polylane_base::record! {
    /// `struct dx_root`, before the entries.
    struct RootRecord: 32 {
        0x00 dot: [u8; DOT_DOT_AT],
        0x0c dot_dot: [u8; DOT_DOT_AT],
        0x18 reserved_zero: U32,
        0x1c hash_version: u8,
        0x1d info_length: u8,
        0x1e indirect_levels: u8,
        0x1f unused_flags: u8,
    }

    /// `struct dx_countlimit`, in the place of the first entry's hash.
    struct CountRecord: 4 {
        0x00 limit: U16,
        0x02 count: U16,
    }

    /// `struct dx_entry`.
    struct IndexRecord: 8 {
        0x00 hash: U32,
        0x04 block: U32,
    }

    /// `struct dx_tail`.
    struct TailRecord: 8 {
        0x00 reserved: U32,
        0x04 checksum: U32,
    }
}

const ENTRY_BYTES: usize = size_of::<IndexRecord>();
const TAIL_BYTES: usize = size_of::<TailRecord>();
/// `info_length`: bytes from the reserved word on.
const INFO_BYTES: u8 = 8;
/// The bits of an entry's block number that count.
const BLOCK_MASK: u32 = 0x0fff_ffff;

/// Which of the two shapes a node has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Block 0 of the directory.
    Root,
    /// Any other index block.
    Node,
}

impl Place {
    /// Offset of the entries.
    fn at(self) -> usize {
        match self {
            Place::Root => size_of::<RootRecord>(),
            Place::Node => size_of::<EntryRecord>(),
        }
    }

    /// Entries that fit, with or without a checksum tail.
    pub fn limit(self, block_bytes: usize, has_tail: bool) -> usize {
        let tail = if has_tail { TAIL_BYTES } else { 0 };
        (block_bytes - self.at() - tail) / ENTRY_BYTES
    }
}

/// One entry: names from `hash` on are below `block`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexEntry {
    /// Smallest hash below; 0 for the first entry, which does not store it.
    pub hash: u32,
    /// The child.
    pub block: FileBlock,
}

/// What a root says beside its entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RootInfo {
    /// Hash function on disk.
    pub hash_version: u8,
    /// Index levels below the root: 0 or 1, with `large_dir` up to 2.
    pub levels: u8,
}

/// Reads the fixed part of a root that may have `levels_max` levels below it.
///
/// # Errors
/// The broken rule.
pub fn root_info(block: &[u8], levels_max: u8) -> Result<RootInfo, &'static str> {
    let root: &RootRecord = record::at(block, 0);
    let levels = root.indirect_levels;
    match () {
        () if root.reserved_zero.get() != 0 => Err("dx_root reserved word"),
        () if root.info_length != INFO_BYTES => Err("dx_root info_length"),
        () if levels > levels_max => Err("dx_root indirect_levels"),
        () => Ok(RootInfo { hash_version: root.hash_version, levels }),
    }
}

/// Reads the entries of a node. Checks limit, count, order and that children lie below `blocks`.
///
/// # Errors
/// The broken rule.
pub fn entries(
    block: &[u8],
    place: Place,
    has_tail: bool,
    blocks: u32,
) -> Result<Vec<IndexEntry>, &'static str> {
    let at = place.at();
    let head: &CountRecord = record::at(block, at);
    let (limit, count) = (usize::from(head.limit.get()), usize::from(head.count.get()));
    if limit != place.limit(block.len(), has_tail) {
        return Err("dx limit");
    }
    if count == 0 || count > limit {
        return Err("dx count");
    }
    let mut found: Vec<IndexEntry> = Vec::with_capacity(count);
    for (index, stored) in record::slice::<IndexRecord>(block, at, count).iter().enumerate() {
        let hash = if index == 0 { 0 } else { stored.hash.get() };
        let entry = IndexEntry { hash, block: FileBlock(stored.block.get() & BLOCK_MASK) };
        if entry.block.0 == 0 || entry.block.0 >= blocks {
            return Err("dx block");
        }
        if found.last().is_some_and(|last| last.hash > entry.hash) {
            return Err("dx order");
        }
        found.push(entry);
    }
    Ok(found)
}

/// Writes the entries of a node, at most [`Place::limit`] of them, at least one.
///
/// # Panics
/// There are more than the block has room for: the caller's mistake.
pub fn put_entries(block: &mut [u8], place: Place, has_tail: bool, entries: &[IndexEntry]) {
    let at = place.at();
    let (limit, count) = (place.limit(block.len(), has_tail) as u16, entries.len() as u16);
    let slots = record::slice_mut::<IndexRecord>(block, at, entries.len());
    for (to, entry) in slots.iter_mut().zip(entries) {
        *to = IndexRecord { hash: entry.hash.into(), block: entry.block.0.into() };
    }
    *record::at_mut(block, at) = CountRecord { limit: limit.into(), count: count.into() };
}

/// Writes the fixed part of a root; `.` and `..` keep their inodes and types.
pub fn put_root(block: &mut [u8], info: RootInfo, own: u32, parent: u32) {
    put_first(block, false, own, parent);
    let root: &mut RootRecord = record::at_mut(block, 0);
    (root.hash_version, root.info_length) = (info.hash_version, INFO_BYTES);
    root.indirect_levels = info.levels;
}

/// Counts one more level below a root.
pub fn add_level(block: &mut [u8]) {
    record::at_mut::<RootRecord>(block, 0).indirect_levels += 1;
}

/// Writes the fixed part of an inner node.
pub fn put_node(block: &mut [u8]) {
    block.fill(0);
    let length = block.len();
    put_entry(block, 0, length, 0, 0, b"");
}

fn tail(block: &[u8], place: Place) -> (usize, usize) {
    let at = place.at();
    let head: &CountRecord = record::at(block, at);
    let used = at + usize::from(head.count.get()) * ENTRY_BYTES;
    let tail = at + place.limit(block.len(), true) * ENTRY_BYTES;
    (used, tail)
}

fn checksum(block: &[u8], place: Place, inode_seed: u32) -> u32 {
    let (used, tail) = tail(block, place);
    let sum = crc(inode_seed, &block[..used.min(tail)]);
    // The tail with no sum.
    let reserved = record::at::<TailRecord>(block, tail).reserved;
    crc(sum, TailRecord { reserved, checksum: U32::ZERO }.as_bytes())
}

/// Whether a node's checksum is right.
pub fn checksum_ok(block: &[u8], place: Place, inode_seed: u32) -> bool {
    let tail: &TailRecord = record::at(block, tail(block, place).1);
    tail.checksum.get() == checksum(block, place, inode_seed)
}

/// Stores a node's checksum.
pub fn put_checksum(block: &mut [u8], place: Place, inode_seed: u32) {
    let sum = checksum(block, place, inode_seed);
    let at = tail(block, place).1;
    record::at_mut::<TailRecord>(block, at).checksum.set(sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_come_back_full() {
        for (place, has_tail) in [(Place::Root, true), (Place::Node, true), (Place::Node, false)] {
            let count = place.limit(4096, has_tail) as u32;
            let make = |n| IndexEntry { hash: n * 4, block: FileBlock(n + 1) };
            let wanted: Vec<_> = (0..count).map(make).collect();
            let mut block = vec![0; 4096];
            match place {
                Place::Root => put_root(&mut block, RootInfo { hash_version: 1, levels: 1 }, 2, 2),
                Place::Node => put_node(&mut block),
            }
            put_entries(&mut block, place, has_tail, &wanted);
            assert_eq!(entries(&block, place, has_tail, count + 1), Ok(wanted));
            assert_eq!(entries(&block, place, has_tail, count), Err("dx block"));
            if has_tail {
                put_checksum(&mut block, place, 42);
                assert!(checksum_ok(&block, place, 42) && !checksum_ok(&block, place, 43));
            }
        }
        assert_eq!((Place::Root.limit(4096, true), Place::Node.limit(4096, true)), (507, 510));
    }
}
