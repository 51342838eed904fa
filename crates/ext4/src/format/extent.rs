//! Extent tree nodes: the root in the inode (60 bytes), the rest one block each.
//!
//! ```text
//! header 12 bytes: magic 0xf30a, entries, capacity, depth, generation
//! depth 0: extents  {first file block u32, length u16, start high u16, start low u32}
//! depth n: indexes  {first file block u32, child low u32, child high u16, unused u16}
//! blocks only: a checksum over everything up to it right behind the last possible entry
//! ```
//! A length above 32768 means an unwritten extent of length − 32768.

use std::mem::size_of;

use polylane_base::record::{self, Record};
use zerocopy::little_endian::{U16, U32};

use super::checksum::crc;
use super::{DeviceBlock, FileBlock};

polylane_base::record! {
    /// `struct ext4_extent_header`: begins a node.
    struct HeaderRecord: 12 {
        0x00 magic: U16,
        0x02 entries: U16,
        0x04 max: U16,
        0x06 depth: U16,
        0x08 generation: U32,
    }

    /// `struct ext4_extent`: an entry of a leaf. The key of both kinds lies at the same place.
    pub(super) struct ExtentRecord: 12 {
        0x00 block: U32,
        0x04 len: U16,
        0x06 start_hi: U16,
        0x08 start_lo: U32,
    }

    /// `struct ext4_extent_idx`: an entry of an inner node.
    struct IndexRecord: 12 {
        0x00 block: U32,
        0x04 leaf_lo: U32,
        0x08 leaf_hi: U16,
        0x0a unused: U16,
    }
}

/// Bytes of the root node in an inode.
pub const ROOT_BYTES: usize = 60;
/// Longest written extent in blocks; unwritten ones end one earlier.
pub const WRITTEN_BLOCKS_MAX: u32 = 32768;
/// Longest unwritten extent in blocks.
pub const UNWRITTEN_BLOCKS_MAX: u32 = 32767;
/// Deepest tree that the format allows.
pub const DEPTH_MAX: u16 = 5;

const MAGIC: u16 = 0xf30a;
const HEADER_BYTES: usize = size_of::<HeaderRecord>();
const ENTRY_BYTES: usize = size_of::<ExtentRecord>();

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
    header(bytes).depth.get()
}

fn header(bytes: &[u8]) -> &HeaderRecord {
    record::at(bytes, 0)
}

/// The entries in use of a node whose header is checked.
fn entries<T: Record>(bytes: &[u8]) -> &[T] {
    record::slice(bytes, HEADER_BYTES, header(bytes).entries.get().into())
}

/// How many entries fit into a node of `bytes` bytes, checksum tail left out.
pub fn capacity(bytes: usize) -> usize {
    (bytes - HEADER_BYTES) / ENTRY_BYTES
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
        let entries = match own_depth {
            0 => Entries::Leaf(decode_leaf(entries(bytes), block_count)?),
            _ => Entries::Inner(decode_inner(entries(bytes), block_count)?),
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
    ///
    /// # Panics
    /// The node has more entries than the [`capacity`] of `bytes`: the caller's mistake.
    pub fn encode(&self, bytes: &mut [u8]) {
        let (generation, max) = (header(bytes).generation, capacity(bytes.len()) as u16);
        bytes.fill(0);
        let (entries, depth) = ((self.len() as u16).into(), self.depth.into());
        let magic = MAGIC.into();
        *record::at_mut(bytes, 0) =
            HeaderRecord { magic, entries, max: max.into(), depth, generation };
        match &self.entries {
            Entries::Leaf(extents) => {
                let slots = record::slice_mut::<ExtentRecord>(bytes, HEADER_BYTES, extents.len());
                slots.iter_mut().zip(extents).for_each(|(to, extent)| *to = extent.record());
            }
            Entries::Inner(indexes) => {
                let slots = record::slice_mut::<IndexRecord>(bytes, HEADER_BYTES, indexes.len());
                slots.iter_mut().zip(indexes).for_each(|(to, index)| *to = index.record());
            }
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
    let leaves: &[ExtentRecord] = entries(bytes);
    let key = |at: usize| FileBlock(leaves[at].block.get());
    let count = leaves.len();
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = usize::midpoint(low, high);
        if key(middle) <= target { low = middle + 1 } else { high = middle }
    }
    if own_depth > 0 {
        // The first child covers what lies before its key too.
        let at = low.saturating_sub(1);
        let index = entries::<IndexRecord>(bytes).get(at).ok_or("empty inner node")?;
        let next = (at + 1 < count).then(|| key(at + 1));
        return Ok(Search::Inner(index.decode(None, block_count)?.child, own_depth - 1, next));
    }
    let next = (low < count).then(|| key(low));
    let Some(at) = low.checked_sub(1) else { return Ok(Search::Leaf(None, next)) };
    let found = leaves[at].decode(0, block_count)?;
    Ok(Search::Leaf(Some(found).filter(|extent| extent.end() > u64::from(target.0)), next))
}

/// Checks a node's header; returns its depth.
fn check_header(bytes: &[u8], depth: Option<u16>) -> Result<u16, &'static str> {
    let header = header(bytes);
    let (entries, max) = (header.entries.get(), header.max.get());
    let own_depth = header.depth.get();
    match () {
        () if header.magic.get() != MAGIC => Err("eh_magic"),
        () if usize::from(max) > capacity(bytes.len()) => Err("eh_max"),
        () if entries > max => Err("eh_entries"),
        () if own_depth > DEPTH_MAX || depth.is_some_and(|d| d != own_depth) => Err("eh_depth"),
        () if depth.is_some() && entries == 0 => Err("empty node below the root"),
        () => Ok(own_depth),
    }
}

fn decode_leaf(records: &[ExtentRecord], block_count: u64) -> Result<Vec<Extent>, &'static str> {
    let mut extents: Vec<Extent> = Vec::with_capacity(records.len());
    for record in records {
        let after = extents.last().map_or(0, Extent::end);
        extents.push(record.decode(after, block_count)?);
    }
    Ok(extents)
}

fn decode_inner(records: &[IndexRecord], block_count: u64) -> Result<Vec<Index>, &'static str> {
    let mut indexes: Vec<Index> = Vec::with_capacity(records.len());
    for record in records {
        let before = indexes.last().map(|last| last.first);
        indexes.push(record.decode(before, block_count)?);
    }
    Ok(indexes)
}

impl ExtentRecord {
    /// The extent, as its fields say.
    pub(super) fn extent(&self) -> Extent {
        let length = u32::from(self.len.get());
        let unwritten = length > WRITTEN_BLOCKS_MAX;
        let (low, high) = (u64::from(self.start_lo.get()), u64::from(self.start_hi.get()));
        Extent {
            first: FileBlock(self.block.get()),
            count: if unwritten { length - WRITTEN_BLOCKS_MAX } else { length },
            start: DeviceBlock(low | high << 32),
            unwritten,
        }
    }

    /// The extent, checked; it begins at the file's block `after` or behind it.
    fn decode(&self, after: u64, block_count: u64) -> Result<Extent, &'static str> {
        let extent = self.extent();
        match () {
            () if extent.count == 0 => Err("ee_len"),
            () if u64::from(extent.first.0) < after => Err("ee_block: order"),
            () if extent.end() > u64::from(u32::MAX) => Err("ee_block: range"),
            () if extent.start.0 == 0 => Err("ee_start"),
            () if extent.start.0 + u64::from(extent.count) > block_count => Err("ee_start"),
            () => Ok(extent),
        }
    }
}

impl IndexRecord {
    /// The pointer, checked; its key lies behind `before`.
    fn decode(&self, before: Option<FileBlock>, block_count: u64) -> Result<Index, &'static str> {
        let (low, high) = (u64::from(self.leaf_lo.get()), u64::from(self.leaf_hi.get()));
        let child = DeviceBlock(low | high << 32);
        let index = Index { first: FileBlock(self.block.get()), child };
        match () {
            () if before.is_some_and(|before| before >= index.first) => Err("ei_block: order"),
            () if child.0 == 0 || child.0 >= block_count => Err("ei_leaf"),
            () => Ok(index),
        }
    }
}

impl Extent {
    fn record(&self) -> ExtentRecord {
        let mark = if self.unwritten { WRITTEN_BLOCKS_MAX } else { 0 };
        ExtentRecord {
            block: self.first.0.into(),
            len: ((self.count + mark) as u16).into(),
            start_hi: ((self.start.0 >> 32) as u16).into(),
            start_lo: (self.start.0 as u32).into(),
        }
    }
}

impl Index {
    fn record(&self) -> IndexRecord {
        IndexRecord {
            block: self.first.0.into(),
            leaf_lo: (self.child.0 as u32).into(),
            leaf_hi: ((self.child.0 >> 32) as u16).into(),
            unused: 0.into(),
        }
    }
}

/// Where the checksum of a node block lies: behind the last possible entry.
fn tail(bytes: &[u8]) -> usize {
    HEADER_BYTES + capacity(bytes.len()) * ENTRY_BYTES
}

/// Whether the checksum of a node block is right for the inode's seed.
pub fn checksum_ok(bytes: &[u8], inode_seed: u32) -> bool {
    let at = tail(bytes);
    let stored = record::get::<U32>(bytes, at);
    stored.is_none_or(|stored| stored.get() == crc(inode_seed, &bytes[..at]))
}

/// Stores the checksum of a node block.
pub fn put_checksum(bytes: &mut [u8], inode_seed: u32) {
    let at = tail(bytes);
    let sum = crc(inode_seed, &bytes[..at]);
    record::at_mut::<U32>(bytes, at).set(sum);
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
    fn searches_lead_where_the_decoded_node_does() {
        let keys = [10, 20, 30];
        let child = |first| Index { first: FileBlock(first), child: DeviceBlock(u64::from(first)) };
        let leaf = keys.map(|first| extent(first, 5, 100 + u64::from(first), false));
        for kept in 0..=keys.len() {
            let inner = Entries::Inner(keys[..kept].iter().map(|first| child(*first)).collect());
            let leaf = &leaf[..kept];
            let (mut inner_bytes, mut leaf_bytes) = ([0; ROOT_BYTES], [0; ROOT_BYTES]);
            Node { depth: 2, entries: inner }.encode(&mut inner_bytes);
            Node { depth: 0, entries: Entries::Leaf(leaf.to_vec()) }.encode(&mut leaf_bytes);
            for target in (0..40).map(FileBlock) {
                let next = keys[..kept].iter().find(|key| **key > target.0).copied();
                let at =
                    leaf.iter().find(|one| one.first <= target && u64::from(target.0) < one.end());
                let wanted = Search::Leaf(at.copied(), next.map(FileBlock));
                assert_eq!(search(&leaf_bytes, None, 1000, target), Ok(wanted), "{target:?}");
                // The first child covers what lies before its key, too.
                let below = keys[..kept].iter().rfind(|key| **key <= target.0);
                let wanted = below.or(keys[..kept].first()).map(|below| {
                    let next = keys[..kept].iter().find(|key| *key > below).copied();
                    Search::Inner(DeviceBlock((*below).into()), 1, next.map(FileBlock))
                });
                let wanted = wanted.ok_or("empty inner node");
                assert_eq!(search(&inner_bytes, None, 1000, target), wanted, "{target:?}");
            }
        }
    }

    #[test]
    fn broken_nodes_are_named() {
        let entries = vec![extent(5, 10, 100, false), extent(14, 1, 200, false)];
        let mut bytes = [0; ROOT_BYTES];
        Node { depth: 0, entries: Entries::Leaf(entries) }.encode(&mut bytes);
        assert_eq!(Node::decode(&bytes, None, 1000), Err("ee_block: order"));
        record::slice_mut::<ExtentRecord>(&mut bytes, HEADER_BYTES, 2)[1].block.set(15);
        assert!(Node::decode(&bytes, None, 1000).is_ok());
        assert_eq!(Node::decode(&bytes, None, 200), Err("ee_start"));
        assert_eq!(Node::decode(&bytes, Some(1), 1000), Err("eh_depth"));
        record::at_mut::<HeaderRecord>(&mut bytes, 0).entries.set(5);
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
