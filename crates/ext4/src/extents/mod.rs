//! Extent trees: finding, adding and removing runs of a file's blocks.
//!
//! A change decodes the nodes on the way from the root to one leaf, edits the leaf's entries in
//! memory, and stores what changed (`store`), which keeps the tree balanced. Index keys always
//! equal the first key below them, which e2fsck insists on.
//!
//! Files with a block map ([`blockmap`]) come through the same door: [`map`], [`insert`] and
//! [`remove`] serve both.

mod store;
#[cfg(test)]
mod tests;

use polylane_base::Errno;
use polylane_base::sync::Arc;

use crate::blockmap;
use crate::cache::{MetaBlock, Seal};
use crate::error::{Corrupt, Error, Result, Structure};
use crate::format::extent::{
    DEPTH_MAX, Entries, Extent, Index, Node, ROOT_BYTES, Search, checksum_ok, depth, search,
};
use crate::format::inode::InodeFlags;
use crate::format::{DeviceBlock, FileBlock};
use crate::inline;
use crate::inode::{Cell, Core};
use crate::journal::Handle;
use crate::volume::Volume;
use store::{END, store};

/// What lies at a block of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mapping {
    /// Nothing, for this many blocks at least (2^32 at the end of the file).
    Hole(u64),
    /// The rest of an extent, from the block that was asked for.
    Data(Extent),
}

/// A node on the way down.
struct Step {
    /// Its block; `None` for the root.
    block: Option<Arc<MetaBlock>>,
    node: Node,
    /// The entry that leads on, or the position found in the leaf.
    at: usize,
    /// The smallest key to the right of this node's range; 2^32 for none.
    limit: u64,
}

type Path = Vec<Step>;

/// Groups whose blocks one removal frees, give or take one extent.
pub const GROUPS_PER_REMOVAL: usize = 8;

fn corrupt(cell: &Cell, field: &'static str) -> Error {
    Corrupt::new(Structure::ExtentTree, cell.ino.into(), field).into()
}

impl Step {
    fn extents(&mut self) -> &mut Vec<Extent> {
        match &mut self.node.entries {
            Entries::Leaf(extents) => extents,
            Entries::Inner(_) => unreachable!("the last step of a path is a leaf"),
        }
    }

    fn indexes(&mut self) -> &mut Vec<Index> {
        match &mut self.node.entries {
            Entries::Inner(indexes) => indexes,
            Entries::Leaf(_) => unreachable!("steps above the last are inner nodes"),
        }
    }
}

/// A new, empty tree in an inode, or an empty block map.
pub fn init(core: &mut Core) {
    match is_tree(core) {
        true => Node { depth: 0, entries: Entries::Leaf(Vec::new()) }.encode(core.raw.block_mut()),
        false => core.raw.block_mut().fill(0),
    }
}

/// Whether the inode has an extent tree; else it has a block map, or no blocks at all.
pub fn is_tree(core: &Core) -> bool {
    core.raw.has_flag(InodeFlags::EXTENTS)
}

/// Whether `i_block` is a map, of either kind: not a device's number, a short link's target, or
/// inline data.
pub fn has_map(core: &Core) -> bool {
    match core.raw.mode() >> 12 {
        _ if inline::is(core) => false,
        4 | 8 => true,
        10 => is_tree(core) || core.raw.size() >= ROOT_BYTES as u64,
        _ => false,
    }
}

/// Metadata blocks that one change of a file's map touches at most. A tree: on each level below the
/// root a node, its neighbour, and a new node or one that goes, with bitmap and descriptor; and a
/// new node below the root. A map: see [`blockmap::CREDITS`].
pub fn credits(core: &Core) -> usize {
    match is_tree(core) {
        true => 3 + 5 * usize::from(depth(core.raw.block()).min(DEPTH_MAX)),
        false => blockmap::CREDITS,
    }
}

/// A node's block, checked when it comes from the device.
fn node_block(
    volume: &Volume,
    cell: &Cell,
    child: DeviceBlock,
    depth: u16,
) -> Result<Arc<MetaBlock>> {
    let has_sums = volume.has_sums;
    let seal = if has_sums { Seal::Extent(cell.seed) } else { Seal::None };
    volume.cache.get(&volume.io, child, seal, |bytes| {
        if has_sums && !checksum_ok(bytes, cell.seed) {
            return Err(corrupt(cell, "checksum"));
        }
        let decoded = Node::decode(bytes, Some(depth), volume.geometry.block_count);
        decoded.map(drop).map_err(|field| corrupt(cell, field))
    })
}

fn load(volume: &Volume, cell: &Cell, index: Index, depth: u16) -> Result<(Arc<MetaBlock>, Node)> {
    let block = node_block(volume, cell, index.child, depth)?;
    let decoded = Node::decode(&block.read(), Some(depth), volume.geometry.block_count);
    let node = decoded.map_err(|field| corrupt(cell, field))?;
    Ok((block, node))
}

/// The way to the leaf that holds `target` or the place where it belongs.
fn find(volume: &Volume, cell: &Cell, core: &Core, target: FileBlock) -> Result<Path> {
    if !is_tree(core) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let root = Node::decode(core.raw.block(), None, volume.geometry.block_count);
    let root = root.map_err(|field| corrupt(cell, field))?;
    let mut path = vec![Step { block: None, node: root, at: 0, limit: END }];
    loop {
        let last = path.last_mut().expect("never empty");
        let limit = last.limit;
        let (index, depth) = match &last.node.entries {
            Entries::Leaf(extents) => {
                last.at = extents.partition_point(|e| e.end() <= u64::from(target.0));
                return Ok(path);
            }
            Entries::Inner(indexes) => {
                let at = indexes.partition_point(|index| index.first <= target).saturating_sub(1);
                let index = *indexes.get(at).ok_or_else(|| corrupt(cell, "inner node is empty"))?;
                last.at = at;
                (index, last.node.depth - 1)
            }
        };
        let next_key = match &last.node.entries {
            Entries::Inner(indexes) => indexes.get(last.at + 1).map(|i| u64::from(i.first.0)),
            Entries::Leaf(_) => None,
        };
        let (block, node) = load(volume, cell, index, depth)?;
        let limit = next_key.unwrap_or(limit).min(limit);
        path.push(Step { block: Some(block), node, at: 0, limit });
    }
}

/// What lies at `target`.
///
/// # Errors
/// The device's, or a corrupt tree.
pub fn map(volume: &Volume, cell: &Cell, core: &Core, target: FileBlock) -> Result<Mapping> {
    if inline::is(core) {
        return Ok(Mapping::Hole((1 << 32) - u64::from(target.0)));
    }
    if !is_tree(core) {
        return blockmap::map(volume, cell, core, target);
    }
    let blocks = volume.geometry.block_count;
    let root = search(core.raw.block(), None, blocks, target);
    let mut found = root.map_err(|field| corrupt(cell, field))?;
    let mut limit = 1 << 32;
    let key = |next: Option<FileBlock>| next.map_or(1 << 32, |next| u64::from(next.0));
    loop {
        match found {
            Search::Inner(child, depth, next) => {
                limit = key(next).min(limit);
                let node = node_block(volume, cell, child, depth)?;
                let below = search(&node.read(), Some(depth), blocks, target);
                found = below.map_err(|field| corrupt(cell, field))?;
            }
            Search::Leaf(Some(extent), _) => {
                let skip = target.0 - extent.first.0;
                return Ok(Mapping::Data(Extent {
                    first: target,
                    count: extent.count - skip,
                    start: DeviceBlock(extent.start.0 + u64::from(skip)),
                    unwritten: extent.unwritten,
                }));
            }
            Search::Leaf(None, next) => {
                return Ok(Mapping::Hole(key(next).min(limit).saturating_sub(target.0.into())));
            }
        }
    }
}

/// Adds an extent where there is a hole. Joins it with its neighbours where possible.
///
/// # Errors
/// The device's, no space for a tree node, or a corrupt tree.
pub fn insert(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    new: Extent,
) -> Result<()> {
    if inline::is(core) {
        return Err(corrupt(cell, "blocks beside inline data"));
    }
    if !is_tree(core) {
        return blockmap::insert(volume, handle, cell, core, new);
    }
    let mut path = find(volume, cell, core, new.first)?;
    let leaf = path.last_mut().expect("never empty");
    let at = leaf.at;
    let extents = leaf.extents();
    if extents.get(at).is_some_and(|next| u64::from(next.first.0) < new.end()) {
        return Err(corrupt(cell, "overlapping extents"));
    }
    let joins_left = at > 0 && extents[at - 1].continues_with(&new);
    if joins_left {
        extents[at - 1].count += new.count;
        if extents.get(at).is_some_and(|next| extents[at - 1].continues_with(next)) {
            extents[at - 1].count += extents[at].count;
            extents.remove(at);
        }
    } else if extents.get(at).is_some_and(|next| new.continues_with(next)) {
        let count = new.count + extents[at].count;
        extents[at] = Extent { count, ..new };
    } else {
        extents.insert(at, new);
    }
    store(volume, handle, cell, core, path)
}

/// Removes blocks of `from..to` and frees them: those of one leaf, and of a few groups. Returns
/// where to go on, or `None` when all is done.
///
/// # Errors
/// The device's, no space for a tree node (a hole in the middle of an extent), or a corrupt tree.
pub fn remove(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    from: FileBlock,
    to: u64,
) -> Result<Option<FileBlock>> {
    if inline::is(core) {
        return Ok(None);
    }
    if !is_tree(core) {
        return blockmap::remove(volume, handle, cell, core, from, to);
    }
    let (gone, next) = take_out(volume, handle, cell, core, from, to)?;
    for run in gone {
        free(volume, handle, core, run.start, run.count)?;
    }
    Ok(next)
}

/// Takes `from..to` out of a tree without freeing the blocks: those of one leaf, and of a few
/// groups. Returns them, and where to go on, or `None` when all is done.
///
/// # Errors
/// As [`remove`].
pub(crate) fn take_out(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    from: FileBlock,
    to: u64,
) -> Result<(Vec<Extent>, Option<FileBlock>)> {
    let mut path = find(volume, cell, core, from)?;
    let leaf = path.last_mut().expect("never empty");
    let limit = leaf.limit;
    let upto = within_groups(volume, leaf.extents(), from, to);
    let gone = cut(leaf.extents(), from, upto);
    if !gone.is_empty() {
        store(volume, handle, cell, core, path)?;
    }
    let next = if upto < to { upto } else { limit };
    Ok((gone, (next < to.min(1 << 32)).then_some(FileBlock(next as u32))))
}

/// Blocks that a tree names, and those that its nodes take.
///
/// # Errors
/// The device's, or a corrupt tree.
pub(crate) fn count(volume: &Volume, cell: &Cell, core: &Core) -> Result<u64> {
    let root = Node::decode(core.raw.block(), None, volume.geometry.block_count);
    let mut nodes = vec![root.map_err(|field| corrupt(cell, field))?];
    let mut count = 0;
    while let Some(node) = nodes.pop() {
        match &node.entries {
            Entries::Leaf(extents) => {
                count += extents.iter().map(|extent| u64::from(extent.count)).sum::<u64>();
            }
            Entries::Inner(indexes) => {
                for index in indexes {
                    count += 1;
                    nodes.push(load(volume, cell, *index, node.depth - 1)?.1);
                }
            }
        }
    }
    Ok(count)
}

/// Frees blocks that the file's map does not name any more. Those of directories, links and values
/// of attributes are metadata.
///
/// # Errors
/// The device's, or a bitmap that says they are free already.
pub fn free(
    volume: &Volume,
    handle: &Handle<'_>,
    core: &mut Core,
    start: DeviceBlock,
    count: u32,
) -> Result<()> {
    match core.raw.mode() >> 12 {
        8 if !core.raw.has_flag(InodeFlags::EA_INODE) => volume.alloc.free(handle, start, count)?,
        _ => volume.alloc.free_metadata(handle, start, count)?,
    }
    core.add_blocks(-i64::from(count), volume.geometry.block_bytes);
    Ok(())
}

/// How far `from..to` can be removed with one handle: each group costs a bitmap.
fn within_groups(volume: &Volume, extents: &[Extent], from: FileBlock, to: u64) -> u64 {
    let (mut groups, mut last) = (0, None);
    let inside = |e: &&Extent| e.end() > u64::from(from.0) && u64::from(e.first.0) < to;
    for extent in extents.iter().filter(inside) {
        let (first, end) = volume.alloc.groups_of(extent.start, extent.count);
        groups += usize::from(last != Some(first)) + (end.0 - first.0) as usize;
        last = Some(end);
        if groups > GROUPS_PER_REMOVAL {
            return extent.first.0.max(from.0 + 1).into();
        }
    }
    to
}

/// Makes an extent that lies on both sides of `at` two.
///
/// # Errors
/// The device's, no space for a tree node, or a corrupt tree.
pub fn split_at(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    at: FileBlock,
) -> Result<()> {
    let mut path = find(volume, cell, core, at)?;
    let leaf = path.last_mut().expect("never empty");
    let place = leaf.at;
    let Some(whole) = leaf.extents().get(place).copied().filter(|extent| extent.first < at) else {
        return Ok(());
    };
    let count = at.0 - whole.first.0;
    let rest = Extent {
        first: at,
        count: whole.count - count,
        start: whole.device_block(at),
        unwritten: whole.unwritten,
    };
    leaf.extents()[place].count = count;
    leaf.extents().insert(place + 1, rest);
    store(volume, handle, cell, core, path)
}

/// Moves the extents of one leaf, from `from` on, `by` blocks towards the file's beginning, where
/// there is a hole of that length. Returns where to go on, or `None` when all have moved.
///
/// # Errors
/// The device's, or a corrupt tree.
pub fn shift_down(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    from: FileBlock,
    by: u32,
) -> Result<Option<FileBlock>> {
    let mut path = find(volume, cell, core, from)?;
    let leaf = path.last_mut().expect("never empty");
    let (limit, old) = (leaf.limit, std::mem::take(leaf.extents()));
    for mut extent in old {
        if extent.first >= from {
            extent.first.0 -= by;
        }
        push_joined(leaf.extents(), extent);
    }
    store(volume, handle, cell, core, path)?;
    Ok((limit < END).then_some(FileBlock(limit as u32)))
}

/// Moves the extents of one leaf that begin in `from..upto` by `by` blocks towards the file's end,
/// the last leaf's first: what lies behind them has moved. Returns the next `upto`, or `None` when
/// all have moved.
///
/// # Errors
/// The device's, or a corrupt tree.
pub fn shift_up(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    (from, upto): (FileBlock, u64),
    by: u32,
) -> Result<Option<u64>> {
    let mut path = find(volume, cell, core, FileBlock(upto.saturating_sub(1) as u32))?;
    let extents = path.last_mut().expect("never empty").extents();
    let is_first = extents.first().is_none_or(|first| first.first <= from);
    let range = |extent: &&mut Extent| extent.first >= from && u64::from(extent.first.0) < upto;
    let mut next = None;
    for extent in extents.iter_mut().filter(range) {
        next = next.or(Some(u64::from(extent.first.0)));
        extent.first.0 += by;
    }
    if next.is_some() {
        store(volume, handle, cell, core, path)?;
    }
    Ok(next.filter(|_| !is_first))
}

/// The file block behind the last one that has a block.
///
/// # Errors
/// The device's, or a corrupt tree.
pub fn end(volume: &Volume, cell: &Cell, core: &Core) -> Result<u64> {
    let mut path = find(volume, cell, core, FileBlock(u32::MAX))?;
    let leaf = path.last_mut().expect("never empty");
    Ok(leaf.extents().last().map_or(0, Extent::end))
}

/// Cuts `from..to` out of a leaf's extents; returns the pieces that went.
fn cut(extents: &mut Vec<Extent>, from: FileBlock, to: u64) -> Vec<Extent> {
    let (mut kept, mut gone) = (Vec::with_capacity(extents.len() + 1), Vec::new());
    for extent in extents.drain(..) {
        let start = u64::from(extent.first.0).max(from.0.into());
        let end = extent.end().min(to);
        if start >= end {
            kept.push(extent);
            continue;
        }
        let part = |first: u64, end: u64| Extent {
            first: FileBlock(first as u32),
            count: (end - first) as u32,
            start: DeviceBlock(extent.start.0 + first - u64::from(extent.first.0)),
            unwritten: extent.unwritten,
        };
        if u64::from(extent.first.0) < start {
            kept.push(part(extent.first.0.into(), start));
        }
        gone.push(part(start, end));
        if end < extent.end() {
            kept.push(part(end, extent.end()));
        }
    }
    *extents = kept;
    gone
}

/// Makes the unwritten blocks of `from..to` written, in one leaf at a time. The data is there
/// already.
///
/// # Errors
/// The device's, no space for a tree node, or a corrupt tree.
pub fn mark_written(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    from: FileBlock,
    to: u64,
) -> Result<()> {
    let mut at = u64::from(from.0);
    while at < to {
        let mut path = find(volume, cell, core, FileBlock(at as u32))?;
        let leaf = path.last_mut().expect("never empty");
        let limit = leaf.limit;
        if convert(leaf.extents(), at, to) {
            store(volume, handle, cell, core, path)?;
        }
        at = limit;
    }
    Ok(())
}

/// Marks `from..to` of a leaf's extents written and joins what then fits. Returns whether any
/// changed.
fn convert(extents: &mut Vec<Extent>, from: u64, to: u64) -> bool {
    let unwritten = |e: &&Extent| e.unwritten && e.end() > from && u64::from(e.first.0) < to;
    if extents.iter().find(unwritten).is_none() {
        return false;
    }
    let first = FileBlock(from as u32);
    let old = std::mem::take(extents);
    let mut pieces: Vec<Extent> = Vec::with_capacity(old.len() + 2);
    for extent in old {
        let mut rest = vec![extent];
        let inside = if extent.unwritten { cut(&mut rest, first, to) } else { Vec::new() };
        pieces.extend(rest);
        pieces.extend(inside.into_iter().map(|part| Extent { unwritten: false, ..part }));
    }
    pieces.sort_by_key(|extent| extent.first);
    pieces.into_iter().for_each(|piece| push_joined(extents, piece));
    true
}

/// Adds the next extent, as a part of the one before where it continues that.
fn push_joined(extents: &mut Vec<Extent>, next: Extent) {
    match extents.last_mut() {
        Some(last) if last.continues_with(&next) => last.count += next.count,
        _ => extents.push(next),
    }
}

#[cfg(test)]
mod edits {
    use super::*;

    fn extent(first: u32, count: u32, start: u64, unwritten: bool) -> Extent {
        Extent { first: FileBlock(first), count, start: DeviceBlock(start), unwritten }
    }

    #[test]
    fn cutting_keeps_both_ends() {
        let mut extents = vec![extent(0, 10, 100, false), extent(10, 10, 300, true)];
        let gone = cut(&mut extents, FileBlock(5), 15);
        assert_eq!(gone, [extent(5, 5, 105, false), extent(10, 5, 300, true)]);
        assert_eq!(extents, [extent(0, 5, 100, false), extent(15, 5, 305, true)]);
        let gone = cut(&mut extents, FileBlock(1), 4);
        assert_eq!(gone, [extent(1, 3, 101, false)]);
        assert_eq!(extents.len(), 3);
    }

    #[test]
    fn written_parts_join_their_neighbours() {
        let mut extents = vec![extent(0, 4, 100, false), extent(4, 10, 104, true)];
        assert!(convert(&mut extents, 4, 6));
        assert_eq!(extents, [extent(0, 6, 100, false), extent(6, 8, 106, true)]);
        assert!(convert(&mut extents, 8, 9));
        assert_eq!(extents.len(), 4);
        assert!(convert(&mut extents, 0, 100));
        assert_eq!(extents, [extent(0, 14, 100, false)]);
        assert!(!convert(&mut extents, 0, 100));
    }
}
