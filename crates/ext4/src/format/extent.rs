//! Extent tree nodes: the root in the inode (60 bytes), the rest one block each.
//!
//! ```text
//! header 12 bytes: magic 0xf30a, entries, capacity, depth, generation
//! depth 0: extents  {first file block u32, length u16, start high u16, start low u32}
//! depth n: indexes  {first file block u32, child low u32, child high u16, unused u16}
//! blocks only: a checksum over everything up to it right behind the last possible entry
//! ```
//! A length above 32768 means an unwritten extent of length − 32768.

use super::checksum::crc;
use super::{DeviceBlock, FileBlock, le16, le32, put16, put32};

/// Bytes of the root node in an inode.
pub const ROOT_BYTES: usize = 60;
/// Longest written extent in blocks; unwritten ones end one earlier.
pub const WRITTEN_BLOCKS_MAX: u32 = 32768;
/// Longest unwritten extent in blocks.
pub const UNWRITTEN_BLOCKS_MAX: u32 = 32767;
/// Deepest tree that the format allows.
pub const DEPTH_MAX: u16 = 5;

const MAGIC: u16 = 0xf30a;
const ENTRY_BYTES: usize = 12;

/// A run of file blocks on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First block in the file.
    pub first: FileBlock,
    /// Blocks: 1..=[`WRITTEN_BLOCKS_MAX`], one less for unwritten ones.
    pub count: u32,
    /// First block on the device.
    pub start: DeviceBlock,
    /// Allocated but never written: reads as zeros.
    pub unwritten: bool,
}

impl Extent {
    /// The file block after the last one; 2^32 fits.
    pub fn end(&self) -> u64 {
        u64::from(self.first.0) + u64::from(self.count)
    }

    /// The device block of `block`, which must lie inside.
    pub fn device_block(&self, block: FileBlock) -> DeviceBlock {
        DeviceBlock(self.start.0 + u64::from(block.0 - self.first.0))
    }

    /// Whether `next` continues this extent in the file, on the device and in kind, within the
    /// limit.
    pub fn continues_with(&self, next: &Extent) -> bool {
        let limit = if self.unwritten { UNWRITTEN_BLOCKS_MAX } else { WRITTEN_BLOCKS_MAX };
        self.unwritten == next.unwritten
            && self.end() == u64::from(next.first.0)
            && self.start.0 + u64::from(self.count) == next.start.0
            && self.count + next.count <= limit
    }
}

/// A pointer to a child node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Index {
    /// The first file block that the child may cover.
    pub first: FileBlock,
    /// Where the child is.
    pub child: DeviceBlock,
}

/// What the entries of a node are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entries {
    /// Depth 0.
    Leaf(Vec<Extent>),
    /// Depth 1 and more.
    Inner(Vec<Index>),
}

/// A decoded node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// 0 for a leaf.
    pub depth: u16,
    /// Sorted, without overlap.
    pub entries: Entries,
}

/// The depth that a node's header says; the header is not checked.
pub fn depth(bytes: &[u8]) -> u16 {
    le16(bytes, 6)
}

/// How many entries fit into a node of `bytes` bytes, checksum tail left out.
pub fn capacity(bytes: usize) -> usize {
    (bytes - ENTRY_BYTES) / ENTRY_BYTES
}

impl Node {
    /// Reads a node of any place. `depth` is what the parent promises, `None` for a root. Checks
    /// magic, sizes, order, overlap and that device blocks lie below `block_count`.
    ///
    /// # Errors
    /// The broken rule.
    pub fn decode(
        bytes: &[u8],
        depth: Option<u16>,
        block_count: u64,
    ) -> Result<Node, &'static str> {
        let own_depth = check_header(bytes, depth)?;
        let entries = le16(bytes, 2);
        let raw = bytes[ENTRY_BYTES..].chunks_exact(ENTRY_BYTES).take(entries.into());
        let entries = match own_depth {
            0 => Entries::Leaf(decode_leaf(raw, block_count)?),
            _ => Entries::Inner(decode_inner(raw, block_count)?),
        };
        Ok(Node { depth: own_depth, entries })
    }

    /// Entries in the node.
    pub fn len(&self) -> usize {
        match &self.entries {
            Entries::Leaf(extents) => extents.len(),
            Entries::Inner(indexes) => indexes.len(),
        }
    }

    /// Whether the node has no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the node. `bytes` is the whole block, or the 60 bytes of a root; what lies behind the
    /// entries is zeroed.
    pub fn encode(&self, bytes: &mut [u8]) {
        let generation = le32(bytes, 8);
        bytes.fill(0);
        put16(bytes, 0, MAGIC);
        put16(bytes, 2, self.len() as u16);
        put16(bytes, 4, capacity(bytes.len()) as u16);
        put16(bytes, 6, self.depth);
        put32(bytes, 8, generation);
        let slots = bytes[ENTRY_BYTES..].chunks_exact_mut(ENTRY_BYTES);
        match &self.entries {
            Entries::Leaf(extents) => slots.zip(extents).for_each(|(to, e)| encode_extent(e, to)),
            Entries::Inner(indexes) => slots.zip(indexes).for_each(|(to, i)| encode_index(i, to)),
        }
    }
}

/// Where a search in one node leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Search {
    /// A leaf: the extent that holds the block, or else the first block of the one behind it.
    Leaf(Option<Extent>, Option<FileBlock>),
    /// An inner node: the child to go on in, its depth, and the first block of the one behind it.
    Inner(DeviceBlock, u16, Option<FileBlock>),
}

/// Looks for `target` in a node without decoding all of it. Never out of bounds, whatever `bytes`
/// are; [`Node::decode`] checks what is not looked at here.
///
/// # Errors
/// The broken rule.
pub fn search(
    bytes: &[u8],
    depth: Option<u16>,
    block_count: u64,
    target: FileBlock,
) -> Result<Search, &'static str> {
    let own_depth = check_header(bytes, depth)?;
    let slots = &bytes[ENTRY_BYTES..][..usize::from(le16(bytes, 2)) * ENTRY_BYTES];
    let key = |at: usize| FileBlock(le32(slots, at * ENTRY_BYTES));
    let count = slots.len() / ENTRY_BYTES;
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = usize::midpoint(low, high);
        if key(middle) <= target { low = middle + 1 } else { high = middle }
    }
    let next = (low < count).then(|| key(low));
    let Some(at) = low.checked_sub(1) else {
        // An inner node's first child covers what lies before its key too.
        return match own_depth {
            0 => Ok(Search::Leaf(None, next)),
            _ => {
                let first = decode_inner(slots.chunks_exact(ENTRY_BYTES).take(1), block_count)?;
                let first = first.first().ok_or("empty inner node")?;
                Ok(Search::Inner(first.child, own_depth - 1, (count > 1).then(|| key(1))))
            }
        };
    };
    let one = slots[at * ENTRY_BYTES..].chunks_exact(ENTRY_BYTES).take(1);
    if own_depth > 0 {
        let found = decode_inner(one, block_count)?;
        return Ok(Search::Inner(found[0].child, own_depth - 1, next));
    }
    let found = decode_leaf(one, block_count)?[0];
    Ok(Search::Leaf(Some(found).filter(|extent| extent.end() > u64::from(target.0)), next))
}

/// Checks a node's header; returns its depth.
fn check_header(bytes: &[u8], depth: Option<u16>) -> Result<u16, &'static str> {
    let (entries, own_depth) = (le16(bytes, 2), le16(bytes, 6));
    match () {
        () if le16(bytes, 0) != MAGIC => Err("eh_magic"),
        () if usize::from(le16(bytes, 4)) > capacity(bytes.len()) => Err("eh_max"),
        () if entries > le16(bytes, 4) => Err("eh_entries"),
        () if own_depth > DEPTH_MAX || depth.is_some_and(|d| d != own_depth) => Err("eh_depth"),
        () if depth.is_some() && entries == 0 => Err("empty node below the root"),
        () => Ok(own_depth),
    }
}

type Raw<'a> = std::iter::Take<std::slice::ChunksExact<'a, u8>>;

fn decode_leaf(raw: Raw<'_>, block_count: u64) -> Result<Vec<Extent>, &'static str> {
    let mut extents: Vec<Extent> = Vec::with_capacity(raw.len());
    for bytes in raw {
        let length = u32::from(le16(bytes, 4));
        let unwritten = length > WRITTEN_BLOCKS_MAX;
        let extent = Extent {
            first: FileBlock(le32(bytes, 0)),
            count: if unwritten { length - WRITTEN_BLOCKS_MAX } else { length },
            start: DeviceBlock(u64::from(le32(bytes, 8)) | u64::from(le16(bytes, 6)) << 32),
            unwritten,
        };
        let after = extents.last().map_or(0, Extent::end);
        match () {
            () if extent.count == 0 => return Err("ee_len"),
            () if u64::from(extent.first.0) < after => return Err("ee_block: order"),
            () if extent.end() > u64::from(u32::MAX) => return Err("ee_block: range"),
            () if extent.start.0 == 0 => return Err("ee_start"),
            () if extent.start.0 + u64::from(extent.count) > block_count => return Err("ee_start"),
            () => extents.push(extent),
        }
    }
    Ok(extents)
}

fn decode_inner(raw: Raw<'_>, block_count: u64) -> Result<Vec<Index>, &'static str> {
    let mut indexes: Vec<Index> = Vec::with_capacity(raw.len());
    for bytes in raw {
        let child = DeviceBlock(u64::from(le32(bytes, 4)) | u64::from(le16(bytes, 8)) << 32);
        let index = Index { first: FileBlock(le32(bytes, 0)), child };
        match () {
            () if indexes.last().is_some_and(|last| last.first >= index.first) => {
                return Err("ei_block: order");
            }
            () if child.0 == 0 || child.0 >= block_count => return Err("ei_leaf"),
            () => indexes.push(index),
        }
    }
    Ok(indexes)
}

fn encode_extent(extent: &Extent, bytes: &mut [u8]) {
    let mark = if extent.unwritten { WRITTEN_BLOCKS_MAX } else { 0 };
    put32(bytes, 0, extent.first.0);
    put16(bytes, 4, (extent.count + mark) as u16);
    put16(bytes, 6, (extent.start.0 >> 32) as u16);
    put32(bytes, 8, extent.start.0 as u32);
}

fn encode_index(index: &Index, bytes: &mut [u8]) {
    put32(bytes, 0, index.first.0);
    put32(bytes, 4, index.child.0 as u32);
    put16(bytes, 8, (index.child.0 >> 32) as u16);
}

/// Where the checksum of a node block lies: behind the last possible entry.
fn tail(bytes: &[u8]) -> usize {
    ENTRY_BYTES + capacity(bytes.len()) * ENTRY_BYTES
}

/// Whether the checksum of a node block is right for the inode's seed.
pub fn checksum_ok(bytes: &[u8], inode_seed: u32) -> bool {
    let at = tail(bytes);
    at + 4 > bytes.len() || le32(bytes, at) == crc(inode_seed, &bytes[..at])
}

/// Stores the checksum of a node block.
pub fn put_checksum(bytes: &mut [u8], inode_seed: u32) {
    let at = tail(bytes);
    let sum = crc(inode_seed, &bytes[..at]);
    put32(bytes, at, sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(first: u32, count: u32, start: u64, unwritten: bool) -> Extent {
        Extent { first: FileBlock(first), count, start: DeviceBlock(start), unwritten }
    }

    #[test]
    fn nodes_come_back() {
        let leaf = Node {
            depth: 0,
            entries: Entries::Leaf(vec![
                extent(0, WRITTEN_BLOCKS_MAX, 1 << 33, false),
                extent(40_000, UNWRITTEN_BLOCKS_MAX, 77, true),
            ]),
        };
        let child = Index { first: FileBlock(9), child: DeviceBlock(1 << 40) };
        let inner = Node { depth: 2, entries: Entries::Inner(vec![child]) };
        for node in [leaf, inner] {
            for len in [ROOT_BYTES, 4096] {
                let mut bytes = vec![0; len];
                node.encode(&mut bytes);
                assert_eq!(Node::decode(&bytes, Some(node.depth), 1 << 45), Ok(node.clone()));
            }
        }
    }

    #[test]
    fn broken_nodes_are_named() {
        let entries = vec![extent(5, 10, 100, false), extent(14, 1, 200, false)];
        let mut bytes = [0; ROOT_BYTES];
        Node { depth: 0, entries: Entries::Leaf(entries) }.encode(&mut bytes);
        assert_eq!(Node::decode(&bytes, None, 1000), Err("ee_block: order"));
        put32(&mut bytes, 24, 15);
        assert!(Node::decode(&bytes, None, 1000).is_ok());
        assert_eq!(Node::decode(&bytes, None, 200), Err("ee_start"));
        assert_eq!(Node::decode(&bytes, Some(1), 1000), Err("eh_depth"));
        put16(&mut bytes, 2, 5);
        assert_eq!(Node::decode(&bytes, None, 1000), Err("eh_entries"));
    }

    #[test]
    fn extents_join_only_in_step() {
        let left = extent(0, 10, 100, false);
        assert!(left.continues_with(&extent(10, 5, 110, false)));
        assert!(!left.continues_with(&extent(10, 5, 111, false)));
        assert!(!left.continues_with(&extent(11, 5, 110, false)));
        assert!(!left.continues_with(&extent(10, 5, 110, true)));
        assert!(!left.continues_with(&extent(10, WRITTEN_BLOCKS_MAX, 110, false)));
    }
}
