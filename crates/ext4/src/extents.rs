//! Extent trees: finding, adding and removing runs of a file's blocks.
//!
//! A change decodes the nodes on the way from the root to one leaf, edits the leaf's entries in
//! memory, and stores what changed, splitting full nodes upwards and removing empty ones. Index
//! keys always equal the first key below them, which e2fsck insists on. The blocks that new nodes
//! need are claimed before anything is stored, so that a full file system changes nothing.

use polylane_base::Errno;
use polylane_base::sync::Arc;

use crate::alloc::Claim;
use crate::blockmap;
use crate::cache::{MetaBlock, Seal};
use crate::error::{Corrupt, Error, Result, Structure};
use crate::format::extent::{
    DEPTH_MAX, Entries, Extent, Index, Node, ROOT_BYTES, Search, capacity, checksum_ok, search,
};
use crate::format::inode::EXTENTS;
use crate::format::{DeviceBlock, FileBlock};
use crate::inode::{Cell, Core};
use crate::journal::Handle;
use crate::volume::Volume;

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
    fn capacity(&self, block_bytes: usize) -> usize {
        capacity(if self.block.is_some() { block_bytes } else { ROOT_BYTES })
    }

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

    fn first_key(&self) -> Option<FileBlock> {
        match &self.node.entries {
            Entries::Leaf(extents) => extents.first().map(|extent| extent.first),
            Entries::Inner(indexes) => indexes.first().map(|index| index.first),
        }
    }
}

/// A new, empty tree in an inode.
pub fn init(core: &mut Core) {
    Node { depth: 0, entries: Entries::Leaf(Vec::new()) }.encode(core.raw.block_mut());
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
    if !core.raw.has_flag(EXTENTS) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let root = Node::decode(core.raw.block(), None, volume.geometry.block_count);
    let root = root.map_err(|field| corrupt(cell, field))?;
    let mut path = vec![Step { block: None, node: root, at: 0, limit: 1 << 32 }];
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
    if !core.raw.has_flag(EXTENTS) {
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
    let mut path = find(volume, cell, core, from)?;
    let leaf = path.last_mut().expect("never empty");
    let limit = leaf.limit;
    let upto = within_groups(volume, leaf.extents(), from, to);
    let freed = cut(leaf.extents(), from, upto);
    if !freed.is_empty() {
        store(volume, handle, cell, core, path)?;
    }
    let is_data = core.raw.mode() >> 12 == 8;
    for run in freed {
        match is_data {
            true => volume.alloc.free(handle, run.start, run.count)?,
            false => volume.alloc.free_metadata(handle, run.start, run.count)?,
        }
        core.add_blocks(-i64::from(run.count), volume.geometry.block_bytes);
    }
    let next = if upto < to { upto } else { limit };
    Ok((next < to.min(1 << 32)).then_some(FileBlock(next as u32)))
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

/// Moves an extent that is in the tree to file block `to`, where there is a hole.
///
/// # Errors
/// The device's, no space for a tree node, or a corrupt tree.
pub fn shift(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    extent: Extent,
    to: FileBlock,
) -> Result<()> {
    let mut path = find(volume, cell, core, extent.first)?;
    let leaf = path.last_mut().expect("never empty");
    cut(leaf.extents(), extent.first, extent.end());
    store(volume, handle, cell, core, path)?;
    insert(volume, handle, cell, core, Extent { first: to, ..extent })
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
    for piece in pieces {
        match extents.last_mut() {
            Some(last) if last.continues_with(&piece) => last.count += piece.count,
            _ => extents.push(piece),
        }
    }
    true
}

/// How many new nodes storing an edited path takes: one for each that is too full, the root
/// included.
fn nodes_needed(path: &Path, block_bytes: usize) -> usize {
    let mut needed = 0;
    for step in path.iter().rev() {
        if step.node.len() + usize::from(needed > 0) <= step.capacity(block_bytes) {
            break;
        }
        needed += 1;
    }
    needed
}

/// Claims blocks for `count` new nodes, all or none.
fn claim_nodes(volume: &Volume, cell: &Cell, count: usize) -> Result<Vec<Claim>> {
    let mut claims = Vec::with_capacity(count);
    for _ in 0..count {
        match volume.alloc.claim(volume.goal(cell.ino), 1) {
            Ok(claim) => claims.push(claim),
            Err(error) => {
                claims.into_iter().for_each(|claim| volume.alloc.unclaim(claim));
                return Err(error);
            }
        }
    }
    Ok(claims)
}

/// Stores a path whose leaf was edited: from the leaf upwards, nodes that are empty go, nodes that
/// are too full split, and keys are mended. Changes nothing when there is no space.
fn store(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    mut path: Path,
) -> Result<()> {
    let needed = nodes_needed(&path, volume.io.block_bytes());
    let mut claims = claim_nodes(volume, cell, needed)?;
    while let Some(step) = path.pop() {
        let lifts = fits_root(&step, &path);
        let Some(parent) = path.last_mut() else {
            return store_root(volume, handle, cell, core, step, claims);
        };
        let Some(block) = &step.block else {
            return Err(corrupt(cell, "root below an inner node"));
        };
        let (at, fits) = (parent.at, step.capacity(volume.io.block_bytes()));
        let Some(first) = step.first_key() else {
            parent.indexes().remove(at);
            volume.alloc.free_metadata(handle, block.home, 1)?;
            core.add_blocks(-1, volume.geometry.block_bytes);
            continue;
        };
        let key_changed = parent.indexes()[at].first != first;
        parent.indexes()[at].first = first;
        if step.node.len() <= fits {
            write_node(handle, block, &step.node);
            if !key_changed && !lifts {
                return Ok(());
            }
            continue;
        }
        let (left, right) = split(step.node, fits);
        write_node(handle, block, &left);
        let index = new_node(volume, handle, cell, core, &right, claims.pop())?;
        parent.indexes().insert(at + 1, index);
    }
    Ok(())
}

fn write_node(handle: &Handle<'_>, block: &Arc<MetaBlock>, node: &Node) {
    node.encode(&mut handle.modify(block));
}

/// Two halves of a node with one entry too many. Files grow at their end: then the left half stays
/// full.
fn split(node: Node, fits: usize) -> (Node, Node) {
    let depth = node.depth;
    let make = |entries| Node { depth, entries };
    let at = |len: usize| if len == fits + 1 { fits } else { len / 2 };
    match node.entries {
        Entries::Leaf(mut left) => {
            let right = left.split_off(at(left.len()));
            (make(Entries::Leaf(left)), make(Entries::Leaf(right)))
        }
        Entries::Inner(mut left) => {
            let right = left.split_off(at(left.len()));
            (make(Entries::Inner(left)), make(Entries::Inner(right)))
        }
    }
}

fn new_node(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    node: &Node,
    claim: Option<Claim>,
) -> Result<Index> {
    let first = match &node.entries {
        Entries::Leaf(extents) => extents[0].first,
        Entries::Inner(indexes) => indexes[0].first,
    };
    let claim = claim.ok_or_else(|| corrupt(cell, "more nodes than were claimed"))?;
    let child = claim.start;
    volume.alloc.mark(handle, claim);
    let seal = if volume.has_sums { Seal::Extent(cell.seed) } else { Seal::None };
    let block = volume.cache.create(&volume.io, child, seal);
    write_node(handle, &block, node);
    core.add_blocks(1, volume.geometry.block_bytes);
    Ok(Index { first, child })
}

/// Whether a node is all there is below the root, and so small that the root can hold it.
fn fits_root(step: &Step, above: &Path) -> bool {
    step.node.len() <= capacity(ROOT_BYTES) && above.iter().all(|step| step.node.len() == 1)
}

/// Takes the entries of a root's only child into the root, as long as they fit.
fn lift(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    mut node: Node,
) -> Result<Node> {
    while let Entries::Inner(indexes) = &node.entries
        && let [only] = indexes[..]
    {
        let (block, child) = load(volume, cell, only, node.depth - 1)?;
        if child.len() > capacity(ROOT_BYTES) {
            break;
        }
        volume.alloc.free_metadata(handle, block.home, 1)?;
        core.add_blocks(-1, volume.geometry.block_bytes);
        node = child;
    }
    Ok(node)
}

/// Stores the root. One that is too full moves into a block of its own below a new root; an inner
/// root without entries becomes an empty leaf.
fn store_root(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    step: Step,
    mut claims: Vec<Claim>,
) -> Result<()> {
    let mut node = step.node;
    if node.is_empty() {
        node = Node { depth: 0, entries: Entries::Leaf(Vec::new()) };
    }
    if node.len() > capacity(ROOT_BYTES) {
        if node.depth == DEPTH_MAX {
            return Err(corrupt(cell, "tree is too deep"));
        }
        let depth = node.depth + 1;
        let index = new_node(volume, handle, cell, core, &node, claims.pop())?;
        node = Node { depth, entries: Entries::Inner(vec![index]) };
    } else {
        node = lift(volume, handle, cell, core, node)?;
    }
    node.encode(core.raw.block_mut());
    Ok(())
}

/// All extents of a file, in order.
///
/// # Errors
/// The device's, or a corrupt tree.
pub fn all(volume: &Volume, cell: &Cell, core: &Core) -> Result<Vec<Extent>> {
    let (mut extents, mut at) = (Vec::new(), 0u64);
    // Each has blocks of its own, so a map with more of them leads in circles.
    let followed = |extents: &Vec<Extent>| match extents.len() as u64 > volume.geometry.block_count
    {
        true => Err(corrupt(cell, "more extents than blocks")),
        false => Ok(()),
    };
    let end = core.raw.size().div_ceil(volume.io.block_bytes() as u64);
    while !core.raw.has_flag(EXTENTS) && at < end {
        match blockmap::map(volume, cell, core, FileBlock(at as u32))? {
            Mapping::Data(extent) => {
                extents.push(extent);
                followed(&extents)?;
                at = extent.end();
            }
            Mapping::Hole(blocks) => at = at.saturating_add(blocks),
        }
    }
    while core.raw.has_flag(EXTENTS) && at < 1 << 32 {
        let mut path = find(volume, cell, core, FileBlock(at as u32))?;
        let leaf = path.last_mut().expect("never empty");
        let limit = leaf.limit;
        let start = leaf.extents().partition_point(|e| e.end() <= at);
        extents.extend_from_slice(&leaf.extents()[start..]);
        followed(&extents)?;
        at = limit;
    }
    Ok(extents)
}

#[cfg(test)]
mod tests {
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
