//! Directories: names to inodes, on disk as linear blocks or below a hash tree, in memory as an
//! index.
//!
//! The index is built at the first use: every name's place, in the order of a listing, and how much
//! room each block has. Lookups then cost one search and one comparison however large the directory
//! is, inserts go straight to a block with room, and a listing goes on where it was without looking
//! at what it has told. On disk the order is what Linux wants: in a hashed directory a name lies in
//! the leaf that its hash belongs to.

mod insert;
mod names;

use std::collections::BTreeSet;

use polylane_base::Errno;
use polylane_base::sync::Arc;

use crate::cache::{MetaBlock, Seal};
use crate::error::{Corrupt, Error, Result, Structure};
use crate::extents::{self, Mapping};
use crate::format::dirent::{self, DOT_DOT_AT, Entries};
use crate::format::extent::Extent;
use crate::format::hash::{HashVersion, NameHash};
use crate::format::htree::{self, IndexEntry, Place};
use crate::format::inode::InodeFlags;
use crate::format::{DeviceBlock, FileBlock};
use crate::inline;
use crate::inode::{Cell, Core};
use crate::journal::Handle;
use crate::volume::Volume;

use insert::Adding;
use names::{Names, Spot};

/// A name with its hash, which is computed once per operation.
#[derive(Clone, Copy)]
pub struct Name<'a> {
    bytes: &'a [u8],
    hash: NameHash,
}

impl<'a> Name<'a> {
    /// `bytes` as a name in `volume`.
    pub fn new(volume: &Volume, bytes: &'a [u8]) -> Name<'a> {
        Name { bytes, hash: volume.traits.listing_hash.hash(bytes, volume.traits.hash_seed) }
    }

    /// Its position in a listing. By its hash, so that a listing stays right while entries move
    /// between blocks. Half MD4 whatever the directory's tree uses: positions must not change when
    /// a tree is made.
    fn position(&self) -> u64 {
        u64::from(self.hash.major / 2) << 31 | u64::from(self.hash.minor / 2)
    }

    /// Its place in a tree.
    fn tree_hash(&self, volume: &Volume, version: HashVersion) -> u32 {
        match version == volume.traits.listing_hash {
            true => self.hash.major,
            false => version.hash(self.bytes, volume.traits.hash_seed).major,
        }
    }
}

/// A directory's entries in memory. Belongs to the directory's cell and is guarded by its lock.
pub struct DirIndex {
    names: Names,
    /// Longest free gap per block, an upper bound; index nodes have none.
    room: Vec<u16>,
    /// The hash tree's lower level, when there is one.
    tree: Option<Tree>,
    /// Blocks that are index nodes.
    nodes: BTreeSet<FileBlock>,
    /// Where to look for room first: an entry's offset per block.
    hints: Vec<u16>,
    /// How often entries moved from block to block: what was found before then is found anew.
    moves: u32,
}

/// A hash tree flattened: leaves by their first hash, and which node each entry lies in.
struct Tree {
    version: HashVersion,
    leaves: Vec<IndexEntry>,
}

/// An entry that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The inode.
    pub ino: u32,
    spot: Spot,
    moves: u32,
}

fn corrupt(cell: &Cell, field: &'static str) -> Error {
    Corrupt::new(Structure::Directory, cell.ino.into(), field).into()
}

/// Blocks of the directory.
fn block_count(volume: &Volume, core: &Core) -> u32 {
    if inline::is(core) {
        return 1;
    }
    (core.raw.size() / u64::from(volume.geometry.block_bytes)) as u32
}

/// One block of a directory, checked. `seal` says what it must be.
fn block(
    volume: &Volume,
    cell: &Cell,
    core: &Core,
    at: FileBlock,
    seal: Seal,
) -> Result<Arc<MetaBlock>> {
    if inline::is(core) {
        return inline::directory_block(volume, cell, core);
    }
    let Mapping::Data(Extent { start, unwritten: false, .. }) =
        extents::map(volume, cell, core, at)?
    else {
        return Err(corrupt(cell, "hole in a directory"));
    };
    let seal = if volume.has_sums { seal } else { Seal::None };
    volume.cache.get(&volume.io, start, seal, |bytes| match seal.verify(bytes) {
        true => Ok(()),
        false => Err(corrupt(cell, "checksum of a block")),
    })
}

impl DirIndex {
    /// Reads the whole directory.
    ///
    /// # Errors
    /// The device's, or a corrupt directory.
    pub fn build(volume: &Volume, cell: &Cell, core: &Core) -> Result<DirIndex> {
        let blocks = block_count(volume, core);
        let mut index = DirIndex {
            names: Names::default(),
            room: Vec::new(),
            tree: None,
            nodes: BTreeSet::new(),
            hints: Vec::new(),
            moves: 0,
        };
        if core.raw.has_flag(InodeFlags::INDEX) {
            let (tree, inner) = Tree::read(volume, cell, core, blocks)?;
            index.tree = Some(tree);
            index.nodes = inner.into_iter().chain([FileBlock(0)]).collect();
        }
        for at in (0..blocks).map(FileBlock) {
            index.room.push(0);
            index.hints.push(0);
            if !index.is_node(at) {
                let leaf = block(volume, cell, core, at, Seal::Directory(cell.seed))?;
                index.add_block(volume, cell, at, &leaf.read())?;
            }
        }
        Ok(index)
    }

    /// Enters a block's names and room.
    fn add_block(
        &mut self,
        volume: &Volume,
        cell: &Cell,
        at: FileBlock,
        bytes: &[u8],
    ) -> Result<()> {
        let mut room = 0;
        for entry in Entries::new(bytes, volume.has_sums) {
            let entry = entry.map_err(|field| corrupt(cell, field))?;
            room = room.max(entry.record_bytes - entry.used_bytes());
            if entry.ino != 0 && entry.name != b"." && entry.name != b".." {
                let spot = Spot { block: at.0, offset: entry.offset as u16 };
                self.names.insert(Name::new(volume, entry.name).position(), spot);
            }
        }
        self.room[at.0 as usize] = room as u16;
        self.hints[at.0 as usize] = 0;
        Ok(())
    }

    /// Forgets the names that a block holds.
    fn forget_block(
        &mut self,
        volume: &Volume,
        cell: &Cell,
        at: FileBlock,
        bytes: &[u8],
    ) -> Result<()> {
        for entry in Entries::new(bytes, volume.has_sums) {
            let entry = entry.map_err(|field| corrupt(cell, field))?;
            let spot = Spot { block: at.0, offset: entry.offset as u16 };
            self.names.remove(Name::new(volume, entry.name).position(), spot);
        }
        Ok(())
    }

    fn is_node(&self, at: FileBlock) -> bool {
        self.nodes.contains(&at)
    }

    /// Whether the directory holds no name but `.` and `..`.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

impl Tree {
    /// Reads root and nodes; returns the flattened leaves and the blocks of inner nodes.
    fn read(
        volume: &Volume,
        cell: &Cell,
        core: &Core,
        blocks: u32,
    ) -> Result<(Tree, Vec<FileBlock>)> {
        let broken =
            |field| -> Error { Corrupt::new(Structure::HashTree, cell.ino.into(), field).into() };
        let seal = Seal::Index(Place::Root, cell.seed);
        let root = block(volume, cell, core, FileBlock(0), seal)?;
        let bytes = root.read();
        let info = htree::root_info(&bytes, volume.traits.tree_levels).map_err(broken)?;
        let version = HashVersion::new(info.hash_version, volume.traits.unsigned_hash);
        let version = version.ok_or_else(|| broken("unknown hash version"))?;
        let top = htree::entries(&bytes, Place::Root, volume.has_sums, blocks).map_err(broken)?;
        let mut tree = Tree { version, leaves: Vec::new() };
        let mut nodes = Vec::new();
        drop(bytes);
        tree.take(volume, cell, core, (top, info.levels), &mut nodes)?;
        Ok((tree, nodes))
    }

    /// Takes the leaves below `entries` in, which have so many levels of nodes below them.
    fn take(
        &mut self,
        volume: &Volume,
        cell: &Cell,
        core: &Core,
        (entries, levels): (Vec<IndexEntry>, u8),
        nodes: &mut Vec<FileBlock>,
    ) -> Result<()> {
        if levels == 0 {
            self.leaves.extend(entries);
            return Ok(());
        }
        let broken =
            |field| -> Error { Corrupt::new(Structure::HashTree, cell.ino.into(), field).into() };
        let blocks = block_count(volume, core);
        for node in entries {
            nodes.push(node.block);
            if nodes.len() > blocks as usize {
                return Err(broken("more nodes than blocks"));
            }
            let inner = block(volume, cell, core, node.block, Seal::Index(Place::Node, cell.seed))?;
            let below = htree::entries(&inner.read(), Place::Node, volume.has_sums, blocks);
            let mut below = below.map_err(broken)?;
            below[0].hash = node.hash;
            self.take(volume, cell, core, (below, levels - 1), nodes)?;
        }
        Ok(())
    }

    /// The position of the leaf that names of hash `major` belong to. Bit 0 marks a continued run
    /// of equal hashes: such a leaf begins with the hash that the one before ends with.
    fn leaf_for(&self, major: u32) -> usize {
        self.leaves.partition_point(|leaf| leaf.hash & !1 <= major).saturating_sub(1)
    }
}

/// Runs `with` on the directory's index, building it first if need be.
fn with_index<T>(
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    with: impl FnOnce(&mut DirIndex, &mut Core) -> Result<T>,
) -> Result<T> {
    let mut index = match core.index.take() {
        Some(index) => index,
        None => DirIndex::build(volume, cell, core)?,
    };
    let result = with(&mut index, core);
    // After a failure what is in memory may differ from the blocks: build it anew when needed.
    if result.is_ok() || matches!(result, Err(Error::Errno(_))) {
        core.index = Some(index);
    }
    result
}

/// Finds `name`.
///
/// # Errors
/// The device's, or a corrupt directory.
pub fn lookup(
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    name: Name<'_>,
) -> Result<Option<Found>> {
    with_index(volume, cell, core, |index, core| find(volume, cell, core, index, name))
}

fn find(
    volume: &Volume,
    cell: &Cell,
    core: &Core,
    index: &DirIndex,
    name: Name<'_>,
) -> Result<Option<Found>> {
    for spot in index.names.at(name.position()) {
        let at = FileBlock(spot.block);
        let leaf = block(volume, cell, core, at, Seal::Directory(cell.seed))?;
        let bytes = leaf.read();
        let entry = Entries::at(&bytes, spot.offset.into(), volume.has_sums);
        let entry = entry.map_err(|field| corrupt(cell, field))?;
        if entry.name == name.bytes {
            return Ok(Some(Found { ino: entry.ino, spot: *spot, moves: index.moves }));
        }
    }
    Ok(None)
}

/// What was found earlier under the directory's lock, wherever it has moved since.
///
/// # Errors
/// `ENOENT`, the device's, or a corrupt directory.
pub fn again(
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    name: Name<'_>,
    found: Found,
) -> Result<Found> {
    with_index(volume, cell, core, |index, core| match index.moves == found.moves {
        true => Ok(found),
        false => Ok(find(volume, cell, core, index, name)?.ok_or(Errno::ENOENT)?),
    })
}

/// Whether the directory holds no name but `.` and `..`.
///
/// # Errors
/// The device's, or a corrupt directory.
pub fn is_empty(volume: &Volume, cell: &Cell, core: &mut Core) -> Result<bool> {
    with_index(volume, cell, core, |index, _| Ok(index.is_empty()))
}

/// Adds a name that is not there. A directory whose entries are inline gets a block for them first.
///
/// # Errors
/// The device's, no space, or a corrupt directory.
pub fn insert(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    name: Name<'_>,
    ino: u32,
    file_type: u8,
) -> Result<()> {
    with_index(volume, cell, core, |index, core| {
        inline::move_out_directory(volume, handle, cell, core)?;
        let adding = Adding { volume, handle, cell, name, ino, file_type };
        if index.tree.is_some() {
            return adding.hashed(core, index);
        }
        adding.linear(core, index)
    })
}

/// Blocks that the directory takes for a new name, its map's among them, looked up in the blocks
/// themselves. `None`: a hash tree grows, by as many as that may take.
///
/// # Errors
/// The device's, or a corrupt directory.
pub fn growth(
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    name: Name<'_>,
) -> Result<Option<u64>> {
    with_index(volume, cell, core, |index, core| insert::growth(volume, cell, core, index, name))
}

/// Blocks of its own that the directory grows by for a new name, without its map's.
///
/// # Errors
/// The device's, or a corrupt directory.
pub fn own_growth(volume: &Volume, cell: &Cell, core: &mut Core, name: Name<'_>) -> Result<u64> {
    with_index(volume, cell, core, |index, core| {
        match insert::growth(volume, cell, core, index, name)? {
            Some(blocks) => Ok(blocks.min(1)),
            None => insert::tree_growth(volume, cell, core, index, name),
        }
    })
}

/// Removes an entry.
///
/// # Errors
/// The device's, or a corrupt directory.
pub fn remove(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    name: Name<'_>,
    found: Found,
) -> Result<()> {
    if inline::is(core) {
        return inline::remove_name(cell, core, name.bytes);
    }
    with_index(volume, cell, core, |index, core| {
        let at = FileBlock(found.spot.block);
        let leaf = block(volume, cell, core, at, Seal::Directory(cell.seed))?;
        let mut bytes = handle.modify(&leaf);
        let removed = dirent::remove(&mut bytes, volume.has_sums, found.spot.offset.into());
        let joined = removed.map_err(|field| corrupt(cell, field))?;
        drop(bytes);
        index.hints[at.0 as usize] = joined as u16;
        // The gap is at least as long as the name's record; how long exactly shows at the next
        // insert.
        index.room[at.0 as usize] = volume.io.block_bytes() as u16;
        index.names.remove(name.position(), found.spot);
        Ok(())
    })
}

/// Makes an existing entry name another inode.
///
/// # Errors
/// The device's, or a corrupt directory.
pub fn replace(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    found: Found,
    ino: u32,
    file_type: u8,
) -> Result<()> {
    let at = FileBlock(found.spot.block);
    let leaf = block(volume, cell, core, at, Seal::Directory(cell.seed))?;
    if inline::is(core) {
        let bytes = leaf.read();
        let entry = Entries::at(&bytes, found.spot.offset.into(), volume.has_sums);
        let name = entry.map_err(|field| corrupt(cell, field))?.name;
        return inline::set_target(cell, core, name, (ino, file_type));
    }
    let mut bytes = handle.modify(&leaf);
    dirent::set_target(&mut bytes, found.spot.offset.into(), ino, file_type);
    Ok(())
}

/// The directory that `..` of a directory names.
///
/// # Errors
/// The device's, or a corrupt directory.
pub fn parent(volume: &Volume, cell: &Cell) -> Result<u32> {
    let core = cell.core.read();
    if inline::is(&core) {
        return Ok(inline::parent(&core));
    }
    let seal = match core.raw.has_flag(InodeFlags::INDEX) {
        true => Seal::Index(Place::Root, cell.seed),
        false => Seal::Directory(cell.seed),
    };
    let first = block(volume, cell, &core, FileBlock(0), seal)?;
    match Entries::at(&first.read(), DOT_DOT_AT, false) {
        Ok(entry) if entry.name == b".." => Ok(entry.ino),
        _ => Err(corrupt(cell, "no '..'")),
    }
}

/// Makes `..` of a directory name `parent`.
///
/// # Errors
/// The device's, or a corrupt directory.
pub fn set_parent(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    parent: u32,
) -> Result<()> {
    if inline::is(core) {
        inline::set_parent(core, parent);
        return Ok(());
    }
    let seal = match core.raw.has_flag(InodeFlags::INDEX) {
        true => Seal::Index(Place::Root, cell.seed),
        false => Seal::Directory(cell.seed),
    };
    let first = block(volume, cell, core, FileBlock(0), seal)?;
    let mut bytes = handle.modify(&first);
    match Entries::at(&bytes, DOT_DOT_AT, false) {
        Ok(entry) if entry.name == b".." => {
            dirent::set_target(&mut bytes, DOT_DOT_AT, parent, 2);
            Ok(())
        }
        _ => Err(corrupt(cell, "no '..'")),
    }
}

/// Makes a new directory's first block, with `.` and `..`.
///
/// # Errors
/// The device's, or no space.
pub fn init(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    parent: u32,
) -> Result<()> {
    let start = volume.allocate(handle, core, volume.goal(cell.ino))?;
    let extent = Extent { first: FileBlock(0), count: 1, start, unwritten: false };
    extents::insert(volume, handle, cell, core, extent)?;
    core.add_blocks(1, volume.geometry.block_bytes);
    core.raw.set_size(volume.geometry.block_bytes.into());
    let seal = if volume.has_sums { Seal::Directory(cell.seed) } else { Seal::None };
    let leaf = volume.cache.create(&volume.io, start, seal);
    dirent::put_first(&mut handle.modify(&leaf), volume.has_sums, cell.ino, parent);
    Ok(())
}

/// One entry of a listing.
pub struct Listed<'a> {
    /// The inode.
    pub ino: u32,
    /// Its type code.
    pub file_type: u8,
    /// Position after it.
    pub next: u64,
    /// Its name.
    pub name: &'a [u8],
}

/// Lists the directory from position `from` on, until `each` returns false. Names of equal position
/// are listed together or not at all, unless the listing is cut between them; then some may come
/// twice, never none.
///
/// # Errors
/// The device's, or a corrupt directory.
pub fn list(
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    from: u64,
    each: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<()> {
    with_index(volume, cell, core, |index, core| {
        for (position, spot) in index.names.from(from) {
            let at = FileBlock(spot.block);
            let leaf = block(volume, cell, core, at, Seal::Directory(cell.seed))?;
            let bytes = leaf.read();
            let entry = Entries::at(&bytes, spot.offset.into(), volume.has_sums);
            let entry = entry.map_err(|field| corrupt(cell, field))?;
            let (ino, file_type, name) = (entry.ino, entry.file_type, entry.name);
            // Positions start at 1: 0 is the start of a listing.
            if !each(Listed { ino, file_type, next: position + 1, name }) {
                break;
            }
        }
        Ok(())
    })
}

/// An entry in use: inode, type code, name.
type Live = (u32, u8, Vec<u8>);

/// The entries in use of a block, without `.` and `..`.
fn live(bytes: &[u8], tail: bool) -> Result<Vec<Live>, &'static str> {
    let mut names = Vec::new();
    for entry in Entries::new(bytes, tail) {
        let entry = entry?;
        if entry.ino != 0 && entry.name != b"." && entry.name != b".." {
            names.push((entry.ino, entry.file_type, entry.name.to_vec()));
        }
    }
    Ok(names)
}

fn last_block(volume: &Volume, cell: &Cell, core: &Core) -> Result<Option<DeviceBlock>> {
    let Some(last) = block_count(volume, core).checked_sub(1) else { return Ok(None) };
    match extents::map(volume, cell, core, FileBlock(last))? {
        Mapping::Data(extent) => Ok(Some(DeviceBlock(extent.start.0 + 1))),
        Mapping::Hole(_) => Ok(None),
    }
}
