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

use super::checksum::crc;
use super::dirent::put_entry;
use super::{FileBlock, le16, le32, put16, put32};

/// Offset of the entries in a root.
pub const ROOT_AT: usize = 0x20;
/// Offset of the entries in any other node.
pub const NODE_AT: usize = 0x08;
/// Offset in a root of the number of levels below it.
pub const LEVELS_AT: usize = 0x1e;
const ENTRY_BYTES: usize = 8;
const TAIL_BYTES: usize = 8;

/// Which of the two shapes a node has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Block 0 of the directory.
    Root,
    /// Any other index block.
    Node,
}

impl Place {
    fn at(self) -> usize {
        match self {
            Place::Root => ROOT_AT,
            Place::Node => NODE_AT,
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
    match () {
        () if le32(block, 0x18) != 0 => Err("dx_root reserved word"),
        () if block[0x1d] != 8 => Err("dx_root info_length"),
        () if block[LEVELS_AT] > levels_max => Err("dx_root indirect_levels"),
        () => Ok(RootInfo { hash_version: block[0x1c], levels: block[LEVELS_AT] }),
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
    let (limit, count) = (usize::from(le16(block, at)), usize::from(le16(block, at + 2)));
    if limit != place.limit(block.len(), has_tail) {
        return Err("dx limit");
    }
    if count == 0 || count > limit {
        return Err("dx count");
    }
    let mut found: Vec<IndexEntry> = Vec::with_capacity(count);
    for index in 0..count {
        let from = at + index * ENTRY_BYTES;
        let hash = if index == 0 { 0 } else { le32(block, from) };
        let entry = IndexEntry { hash, block: FileBlock(le32(block, from + 4) & 0x0fff_ffff) };
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
pub fn put_entries(block: &mut [u8], place: Place, has_tail: bool, entries: &[IndexEntry]) {
    let at = place.at();
    put16(block, at, place.limit(block.len(), has_tail) as u16);
    put16(block, at + 2, entries.len() as u16);
    for (index, entry) in entries.iter().enumerate() {
        let to = at + index * ENTRY_BYTES;
        if index > 0 {
            put32(block, to, entry.hash);
        }
        put32(block, to + 4, entry.block.0);
    }
}

/// Writes the fixed part of a root; `.` and `..` keep their inodes and types.
pub fn put_root(block: &mut [u8], info: RootInfo, own: u32, parent: u32) {
    block.fill(0);
    put_entry(block, 0, 12, own, 2, b".");
    let rest = block.len() - 12;
    put_entry(block, 12, rest, parent, 2, b"..");
    block[0x1c] = info.hash_version;
    block[0x1d] = 8;
    block[LEVELS_AT] = info.levels;
}

/// Writes the fixed part of an inner node.
pub fn put_node(block: &mut [u8]) {
    block.fill(0);
    let length = block.len();
    put_entry(block, 0, length, 0, 0, b"");
}

fn tail(block: &[u8], place: Place) -> (usize, usize) {
    let at = place.at();
    let used = at + usize::from(le16(block, at + 2)) * ENTRY_BYTES;
    let tail = at + place.limit(block.len(), true) * ENTRY_BYTES;
    (used, tail)
}

fn checksum(block: &[u8], place: Place, inode_seed: u32) -> u32 {
    let (used, tail) = tail(block, place);
    let sum = crc(inode_seed, &block[..used.min(tail)]);
    crc(crc(sum, &block[tail..tail + 4]), &[0; 4])
}

/// Whether a node's checksum is right.
pub fn checksum_ok(block: &[u8], place: Place, inode_seed: u32) -> bool {
    le32(block, tail(block, place).1 + 4) == checksum(block, place, inode_seed)
}

/// Stores a node's checksum.
pub fn put_checksum(block: &mut [u8], place: Place, inode_seed: u32) {
    let sum = checksum(block, place, inode_seed);
    let at = tail(block, place).1;
    put32(block, at + 4, sum);
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
