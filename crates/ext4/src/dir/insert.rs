//! Adding a name: into a linear block, or into the leaf of the hash tree that its hash belongs to,
//! splitting what is full.

use polylane_base::Errno;
use polylane_base::sync::Arc;

use super::{DirIndex, Live, Name, Spot, Tree, block, block_count, corrupt, last_block, live};
use crate::cache::{MetaBlock, Seal};
use crate::data::map_room;
use crate::error::{Corrupt, Error, Result, Structure};
use crate::extents;
use crate::format::FileBlock;
use crate::format::dirent::{self, Entries, TAIL_BYTES};
use crate::format::extent::Extent;
use crate::format::htree::{self, IndexEntry, Place};
use crate::format::inode::InodeFlags;
use crate::inline;
use crate::inode::{Cell, Core};
use crate::journal::Handle;
use crate::volume::Volume;

/// Where a name may go, as far as is known without looking: the leaf of its hash, else the first of
/// the blocks from the end on; at most four.
fn fitting(volume: &Volume, index: &DirIndex, name: Name<'_>) -> Vec<FileBlock> {
    let needed = dirent::record_bytes(name.bytes.len());
    let fits = |at: &usize| usize::from(index.room[*at]) >= needed;
    let candidates: Vec<usize> = match &index.tree {
        Some(tree) => {
            let leaf = tree.leaf_for(name.tree_hash(volume, tree.version));
            vec![tree.leaves[leaf].block.0 as usize]
        }
        // The last block first: growing directories fill from the end.
        None => (0..index.room.len()).rev().filter(fits).take(4).collect(),
    };
    candidates.into_iter().filter(fits).map(|at| FileBlock(at as u32)).collect()
}

/// See [`super::growth`].
pub(super) fn growth(
    volume: &Volume,
    cell: &Cell,
    core: &Core,
    index: &DirIndex,
    name: Name<'_>,
) -> Result<Option<u64>> {
    if inline::is(core) {
        return Ok(None);
    }
    for at in fitting(volume, index, name) {
        let leaf = block(volume, cell, core, at, Seal::Directory(cell.seed))?;
        let mut bytes = leaf.read().to_vec();
        let put = dirent::insert(&mut bytes, volume.has_sums, 0, (1, 0, name.bytes));
        if put.map_err(|field| corrupt(cell, field))?.is_some() {
            return Ok(Some(0));
        }
    }
    if index.tree.is_some() || volume.traits.dir_index && index.room.len() == 1 {
        return Ok(None);
    }
    let end = FileBlock(block_count(volume, core));
    Ok(Some(1 + map_room(volume, cell, core, (end, 1))?))
}

/// Blocks that a directory with a hash tree grows by, whose leaf is full, or one that gets a tree.
/// Names that are inline move to a block, which then is full seldom.
pub(super) fn tree_growth(
    volume: &Volume,
    cell: &Cell,
    core: &Core,
    index: &DirIndex,
    name: Name<'_>,
) -> Result<u64> {
    let Some(tree) = &index.tree else {
        // A leaf for the names that are there; where it is full, too, another one.
        return Ok(if inline::is(core) { 1 } else { 2 });
    };
    let path = path_to(volume, cell, core, name.tree_hash(volume, tree.version))?;
    let full = path.iter().rev().take_while(|node| is_full(volume, node));
    // A root that is full gets two nodes below it.
    Ok(1 + full.map(|node| if node.place == Place::Root { 2 } else { 1 }).sum::<u64>())
}

/// An index node on the way to a leaf.
struct Node {
    place: Place,
    block: Arc<MetaBlock>,
    entries: Vec<IndexEntry>,
}

/// An insert under way.
pub(super) struct Adding<'a, 'j> {
    pub(super) volume: &'a Volume,
    pub(super) handle: &'a Handle<'j>,
    pub(super) cell: &'a Cell,
    pub(super) name: Name<'a>,
    pub(super) ino: u32,
    pub(super) file_type: u8,
}

impl Adding<'_, '_> {
    fn leaf(&self, core: &Core, at: FileBlock) -> Result<Arc<MetaBlock>> {
        block(self.volume, self.cell, core, at, Seal::Directory(self.cell.seed))
    }

    /// Puts the name into block `at` if it has room.
    fn try_block(&self, core: &Core, index: &mut DirIndex, at: FileBlock) -> Result<bool> {
        let needed = dirent::record_bytes(self.name.bytes.len());
        if usize::from(index.room[at.0 as usize]) < needed {
            return Ok(false);
        }
        let leaf = self.leaf(core, at)?;
        let mut bytes = self.handle.modify(&leaf);
        let tail = self.volume.has_sums;
        let hint = index.hints[at.0 as usize].into();
        let entry = (self.ino, self.file_type, self.name.bytes);
        let put = dirent::insert(&mut bytes, tail, hint, entry);
        let Some(offset) = put.map_err(|field| corrupt(self.cell, field))? else {
            // The estimate was too high: gaps are only known exactly when they are looked at.
            index.room[at.0 as usize] = needed as u16 - 1;
            return Ok(false);
        };
        let spot = Spot { block: at.0, offset: offset as u16 };
        index.names.insert(self.name.position(), spot);
        index.hints[at.0 as usize] = spot.offset;
        Ok(true)
    }

    /// Adds the name to a directory without a tree, which may give it one.
    pub(super) fn linear(&self, core: &mut Core, index: &mut DirIndex) -> Result<()> {
        for at in fitting(self.volume, index, self.name) {
            if self.try_block(core, index, at)? {
                return Ok(());
            }
        }
        if self.volume.traits.dir_index && index.room.len() == 1 {
            self.make_tree(core, index)?;
            return self.hashed(core, index);
        }
        let at = self.grow(core, index, Seal::Directory(self.cell.seed))?;
        self.empty_leaf(core, index, at)?;
        match self.try_block(core, index, at)? {
            true => Ok(()),
            false => Err(corrupt(self.cell, "an empty block has no room")),
        }
    }

    /// Adds a block to the directory.
    fn grow(&self, core: &mut Core, index: &mut DirIndex, seal: Seal) -> Result<FileBlock> {
        let volume = self.volume;
        let at = FileBlock(block_count(volume, core));
        let goal = last_block(volume, self.cell, core)?.unwrap_or(volume.goal(self.cell.ino));
        let start = volume.allocate(self.handle, core, goal)?;
        let extent = Extent { first: at, count: 1, start, unwritten: false };
        extents::insert(volume, self.handle, self.cell, core, extent)?;
        core.add_blocks(1, volume.geometry.block_bytes);
        core.raw.set_size(core.raw.size() + u64::from(volume.geometry.block_bytes));
        let seal = if volume.has_sums { seal } else { Seal::None };
        let fresh = volume.cache.create(&volume.io, start, seal);
        drop(self.handle.modify(&fresh));
        index.room.push(0);
        index.hints.push(0);
        Ok(at)
    }

    fn empty_leaf(&self, core: &Core, index: &mut DirIndex, at: FileBlock) -> Result<()> {
        let leaf = self.leaf(core, at)?;
        dirent::put_empty(&mut self.handle.modify(&leaf), self.volume.has_sums);
        let tail = if self.volume.has_sums { TAIL_BYTES } else { 0 };
        index.room[at.0 as usize] = (self.volume.io.block_bytes() - tail) as u16;
        Ok(())
    }

    /// Turns a directory of one linear block into a hashed one: its entries move to a new leaf.
    fn make_tree(&self, core: &mut Core, index: &mut DirIndex) -> Result<()> {
        let (volume, cell) = (self.volume, self.cell);
        let version = volume.traits.tree_hash;
        let version = version.ok_or_else(|| corrupt(cell, "unknown default hash version"))?;
        let root = self.leaf(core, FileBlock(0))?;
        let old = root.read().to_vec();
        let parent = Entries::new(&old, volume.has_sums).nth(1);
        let parent = parent.and_then(|entry| entry.ok()).filter(|entry| entry.name == b"..");
        let parent = parent.ok_or_else(|| corrupt(cell, "no '..'"))?.ino;
        let at = self.grow(core, index, Seal::Directory(cell.seed))?;
        let names = live(&old, volume.has_sums).map_err(|field| corrupt(cell, field))?;
        index.forget_block(volume, cell, FileBlock(0), &old)?;
        index.moves += 1;
        self.fill(core, index, at, &names)?;
        let seal = Seal::Index(Place::Root, cell.seed);
        root.set_seal(if volume.has_sums { seal } else { Seal::None });
        let mut bytes = self.handle.modify(&root);
        let info = htree::RootInfo { hash_version: version.on_disk(), levels: 0 };
        htree::put_root(&mut bytes, info, cell.ino, parent);
        let leaves = vec![IndexEntry { hash: 0, block: at }];
        htree::put_entries(&mut bytes, Place::Root, volume.has_sums, &leaves);
        drop(bytes);
        core.raw.set_flag(InodeFlags::INDEX, true);
        index.room[0] = 0;
        index.nodes.insert(FileBlock(0));
        index.tree = Some(Tree { version, leaves });
        Ok(())
    }

    /// Makes block `at` hold exactly `names`, and the index know them.
    fn fill(&self, core: &Core, index: &mut DirIndex, at: FileBlock, names: &[Live]) -> Result<()> {
        let (volume, cell) = (self.volume, self.cell);
        let leaf = self.leaf(core, at)?;
        let mut bytes = self.handle.modify(&leaf);
        dirent::put_empty(&mut bytes, volume.has_sums);
        let mut last = 0;
        for (ino, file_type, name) in names {
            let put = dirent::insert(&mut bytes, volume.has_sums, last, (*ino, *file_type, name));
            let put = put.map_err(|field| corrupt(cell, field))?;
            last = put.ok_or_else(|| corrupt(cell, "entries outgrow their block"))?;
        }
        index.add_block(volume, cell, at, &bytes)
    }

    /// Adds the name to a hashed directory.
    pub(super) fn hashed(&self, core: &mut Core, index: &mut DirIndex) -> Result<()> {
        let seed = self.volume.traits.hash_seed;
        loop {
            let tree = index.tree.as_ref().ok_or_else(|| corrupt(self.cell, "no tree"))?;
            let position = tree.leaf_for(self.name.tree_hash(self.volume, tree.version));
            let at = tree.leaves[position].block;
            if self.try_block(core, index, at)? {
                return Ok(());
            }
            self.split_leaf(core, index, position, seed)?;
        }
    }

    /// Splits a full leaf by hash: the upper half moves to a new block.
    fn split_leaf(
        &self,
        core: &mut Core,
        index: &mut DirIndex,
        position: usize,
        seed: [u32; 4],
    ) -> Result<()> {
        let (volume, cell) = (self.volume, self.cell);
        let tree = index.tree.as_ref().ok_or_else(|| corrupt(cell, "no tree"))?;
        let (version, at) = (tree.version, tree.leaves[position].block);
        let old = self.leaf(core, at)?.read().to_vec();
        let names = live(&old, volume.has_sums).map_err(|field| corrupt(cell, field))?;
        let mut names: Vec<_> =
            names.into_iter().map(|entry| (version.hash(&entry.2, seed).major, entry)).collect();
        names.sort_by_key(|(hash, _)| *hash);
        let middle = middle(&names).ok_or(Errno::ENOSPC)?;
        let (first, last) = (names[middle].0, names[middle - 1].0);
        // Equal hashes on both sides: the new leaf goes on where the old one ends.
        let boundary = if first == last { first | 1 } else { first };
        self.can_grow_tree(core, boundary)?;
        let fresh = self.grow(core, index, Seal::Directory(cell.seed))?;
        let upper: Vec<_> = names.split_off(middle).into_iter().map(|(_, entry)| entry).collect();
        let lower: Vec<_> = names.into_iter().map(|(_, entry)| entry).collect();
        index.forget_block(volume, cell, at, &old)?;
        index.moves += 1;
        self.fill(core, index, fresh, &upper)?;
        self.fill(core, index, at, &lower)?;
        let tree = index.tree.as_mut().ok_or_else(|| corrupt(cell, "no tree"))?;
        let entry = IndexEntry { hash: boundary, block: fresh };
        tree.leaves.insert(position + 1, entry);
        self.store_tree(core, index, entry)
    }

    /// Refuses a split when no node from the root down to the leaf of `hash` has room for one more
    /// entry, and there may be no more levels: looked at before anything changes.
    fn can_grow_tree(&self, core: &Core, hash: u32) -> Result<()> {
        let path = path_to(self.volume, self.cell, core, hash)?;
        let may_deepen = path.len() <= usize::from(self.volume.traits.tree_levels);
        match may_deepen || path.iter().any(|node| !is_full(self.volume, node)) {
            true => Ok(()),
            false => Err(Errno::ENOSPC.into()),
        }
    }

    /// Enters a new leaf into the tree on disk: into its node, which is split when it is full, and
    /// so are those above.
    fn store_tree(&self, core: &mut Core, index: &mut DirIndex, entry: IndexEntry) -> Result<()> {
        let sums = self.volume.has_sums;
        let mut path = path_to(self.volume, self.cell, core, entry.hash)?;
        let mut rising = Some(entry);
        while let Some(entry) = rising.take()
            && let Some(mut node) = path.pop()
        {
            // A node that is read has no more entries than fit; with one more, halves of it do.
            let full = is_full(self.volume, &node);
            // Never before the first, which stands for all that is less.
            let at = node.entries.partition_point(|other| other.hash <= entry.hash).max(1);
            node.entries.insert(at, entry);
            if full {
                let upper = node.entries.split_off(node.entries.len() / 2);
                let hash = upper[0].hash;
                let right = IndexEntry { hash, block: self.node(core, index, &upper)? };
                if node.place == Place::Node {
                    rising = Some(right);
                } else {
                    // The root's entries move into two nodes below it.
                    let lower = self.node(core, index, &node.entries)?;
                    node.entries = vec![IndexEntry { hash: 0, block: lower }, right];
                    htree::add_level(&mut self.handle.modify(&node.block));
                }
            }
            let mut bytes = self.handle.modify(&node.block);
            htree::put_entries(&mut bytes, node.place, sums, &node.entries);
        }
        Ok(())
    }

    fn node(
        &self,
        core: &mut Core,
        index: &mut DirIndex,
        entries: &[IndexEntry],
    ) -> Result<FileBlock> {
        let seal = Seal::Index(Place::Node, self.cell.seed);
        let at = self.grow(core, index, seal)?;
        let node = block(self.volume, self.cell, core, at, seal)?;
        let mut bytes = self.handle.modify(&node);
        htree::put_node(&mut bytes);
        htree::put_entries(&mut bytes, Place::Node, self.volume.has_sums, entries);
        index.nodes.insert(at);
        Ok(at)
    }
}

/// Whether a node has no room for one more entry.
fn is_full(volume: &Volume, node: &Node) -> bool {
    node.entries.len() >= node.place.limit(volume.io.block_bytes(), volume.has_sums)
}

/// The index nodes that lead to the leaf of `hash`, the root first.
fn path_to(volume: &Volume, cell: &Cell, core: &Core, hash: u32) -> Result<Vec<Node>> {
    let broken =
        |field| -> Error { Corrupt::new(Structure::HashTree, cell.ino.into(), field).into() };
    let blocks = block_count(volume, core);
    let read = |at: FileBlock, place: Place| {
        let block = block(volume, cell, core, at, Seal::Index(place, cell.seed))?;
        let entries = htree::entries(&block.read(), place, volume.has_sums, blocks);
        Ok::<_, Error>(Node { place, block, entries: entries.map_err(broken)? })
    };
    let root = read(FileBlock(0), Place::Root)?;
    let info = htree::root_info(&root.block.read(), volume.traits.tree_levels);
    let mut path = vec![root];
    for level in 0..usize::from(info.map_err(broken)?.levels) {
        let entries = &path[level].entries;
        let below = entries.partition_point(|node| node.hash <= hash).saturating_sub(1);
        let at = entries[below].block;
        path.push(read(at, Place::Node)?);
    }
    Ok(path)
}

/// Where to cut sorted names so that both halves take about as many bytes; never first or past the
/// end.
fn middle(names: &[(u32, Live)]) -> Option<usize> {
    let bytes = |entry: &(u32, Live)| dirent::record_bytes(entry.1.2.len());
    let half = names.iter().map(bytes).sum::<usize>() / 2;
    let mut sum = 0;
    let at = names.iter().position(|entry| {
        sum += bytes(entry);
        sum > half
    })?;
    (names.len() >= 2).then(|| at.clamp(1, names.len() - 1))
}
