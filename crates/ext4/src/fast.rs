//! Replay of the kernel's fast commits, as one transaction.
//!
//! The area for fast commits says what changed since the last transaction: inodes, ranges of
//! blocks, names ([`crate::format::fast`]); bitmaps, counters and tree nodes follow from it. Here
//! all of it becomes the first transaction of the journal, with the number that the fast commits
//! are for. As soon as it has committed they count no more; a power cut before leaves them, and
//! what the log had, for the next opening.
//!
//! What an operation changed may be there twice, and its parts in any order: so blocks are only
//! marked and freed when all is done, and what a new range names is set aside before anything else
//! is allocated.

use polylane_base::Errno;
use polylane_base::sync::Arc;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::alloc::Claim;
use crate::dir::{self, Name};
use crate::error::{Corrupt, Error, Result, Structure};
use crate::extents;
use crate::format::dirent::file_type;
use crate::format::extent::Extent;
use crate::format::fast::{Change, Entry};
use crate::format::inode::{self, BLOCK, CLASSIC_BYTES, RawInode};
use crate::format::quota::Charge;
use crate::format::{DeviceBlock, FileBlock};
use crate::inode::{Cell, Core, check, in_range};
use crate::journal::Handle;
use crate::ops::add_links;
use crate::orphan;
use crate::volume::Volume;
use crate::xattr;
use polylane_vfs::OpCtx;

/// Makes the changes, and commits them. On return they are in the log.
///
/// # Errors
/// [`Error::Incompatible`] for more than one transaction can hold, and for files with block maps;
/// `ENOSPC`, the device's, or damage. The fast commits then still count.
pub fn replay(ctx: &OpCtx<'_>, volume: &Volume, changes: &[Change]) -> Result<()> {
    let Some(journal) = volume.journal.as_ref().filter(|_| !changes.is_empty()) else {
        return Ok(());
    };
    let claims = set_aside(volume, changes)?;
    enter(ctx, volume, changes)?;
    let handle = journal.start(ctx, 1)?;
    let mut replay = Replay {
        volume,
        handle: &handle,
        claims,
        added: FxHashMap::default(),
        removed: Vec::new(),
        inodes: FxHashSet::default(),
        used: FxHashSet::default(),
    };
    changes.iter().try_for_each(|change| replay.make(change))?;
    replay.finish_inodes()?;
    replay.finish_blocks()?;
    let used = replay.used;
    if !journal.can_hold_running() {
        return Err(refused("more fast commits than one transaction holds"));
    }
    handle.complete();
    journal.commit(volume)?;
    used.into_iter().for_each(|ino| drop(volume.inodes.remove(ino)));
    Ok(())
}

/// Keeps the blocks of all new ranges away from what the replay itself allocates.
fn set_aside(volume: &Volume, changes: &[Change]) -> Result<Vec<Claim>> {
    let mut claims = Vec::new();
    for change in changes {
        let Change::Add(ino, extent) = change else { continue };
        let geometry = &volume.geometry;
        let end = extent.start.0.checked_add(extent.count.into());
        let inside = extent.start.0 >= geometry.first_data_block.into()
            && end.is_some_and(|end| end <= geometry.block_count)
            && extent.end() <= u64::from(u32::MAX);
        if !inside {
            let field = "range of a fast commit";
            return Err(Corrupt::new(Structure::ExtentTree, (*ino).into(), field).into());
        }
        claims.extend(volume.alloc.claim_free(extent.start, extent.count)?);
    }
    Ok(claims)
}

/// Makes the accounts of owners that quotas do not know: where they keep usage, the kernel writes
/// that in whole commits.
fn enter(ctx: &OpCtx<'_>, volume: &Volume, changes: &[Change]) -> Result<()> {
    let known = changes.iter().filter_map(|change| match change {
        Change::Inode(_, bytes) if bytes.len() >= CLASSIC_BYTES => Some(bytes),
        _ => None,
    });
    for bytes in known {
        let mut whole = vec![0; usize::from(volume.geometry.inode_bytes).max(bytes.len())];
        whole[..bytes.len()].copy_from_slice(bytes);
        let raw = RawInode::from_bytes(&whole);
        volume.enter(ctx, [raw.uid(), raw.gid(), raw.project()])?;
    }
    Ok(())
}

fn refused(what: &str) -> Error {
    Error::Incompatible(vec![format!("{what} (mount it by the kernel once, or run e2fsck)")])
}

struct Replay<'a, 'j> {
    volume: &'a Volume,
    handle: &'a Handle<'j>,
    /// Blocks of new ranges that were free.
    claims: Vec<Claim>,
    /// Blocks of new ranges that a file has, with the file.
    added: FxHashMap<u64, u32>,
    /// Blocks that a file lost, and whether they held data.
    removed: Vec<(Extent, bool)>,
    /// Inodes whose state or blocks changed.
    inodes: FxHashSet<u32>,
    /// Those that are in memory.
    used: FxHashSet<u32>,
}

impl Replay<'_, '_> {
    fn make(&mut self, change: &Change) -> Result<()> {
        match change {
            Change::Inode(ino, bytes) => self.put_inode(*ino, bytes),
            Change::Add(ino, extent) => self.add(*ino, *extent),
            Change::Delete(ino, first, count) => match self.cell(*ino)? {
                Some(cell) => {
                    let end = u64::from(first.0) + u64::from(*count);
                    self.take_out(&cell, &mut cell.core.write(), *first, end)
                }
                None => Ok(()),
            },
            Change::Create(entry) => self.create(entry),
            Change::Link(entry) => self.link(entry),
            Change::Unlink(entry) => self.unlink(entry),
        }
    }

    /// The cell of an inode; `None`: it is free, and what is said of it is past.
    fn cell(&mut self, ino: u32) -> Result<Option<Arc<Cell>>> {
        match self.volume.cell(ino) {
            Ok(cell) => {
                self.used.insert(ino);
                Ok(Some(cell))
            }
            Err(Error::Errno(Errno::ESTALE)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The inode gets the state that the commit knows, and keeps its map. One of another generation
    /// is a new one, which begins without blocks.
    fn put_inode(&mut self, ino: u32, bytes: &[u8]) -> Result<()> {
        let volume = self.volume;
        let inode_bytes = usize::from(volume.geometry.inode_bytes);
        let damaged = |field| Corrupt::new(Structure::Inode, ino.into(), field);
        if !in_range(&volume.geometry, ino) || bytes.len() > inode_bytes {
            return Err(damaged("number or length in a fast commit").into());
        }
        let old = self.cell(ino)?;
        let generation = inode::generation(bytes).ok_or(damaged("length in a fast commit"))?;
        let is_other =
            |cell: &Arc<Cell>| volume.has_sums && cell.core.read().raw.generation() != generation;
        if let Some(cell) = old.as_ref().filter(|cell| is_other(cell)) {
            let mut core = cell.core.write();
            if extents::has_map(&core) && extents::is_tree(&core) {
                self.take_out(cell, &mut core, FileBlock(0), 1 << 32)?;
            }
        }
        let had = old.clone();
        let old = old.filter(|cell| !is_other(cell));
        let mut whole =
            old.as_ref().map_or(vec![0; inode_bytes], |cell| cell.core.read().raw.bytes().to_vec());
        let (map, dtime) = (whole[BLOCK].to_vec(), RawInode::from_bytes(&whole).dtime());
        whole[..CLASSIC_BYTES].copy_from_slice(&bytes[..CLASSIC_BYTES]);
        whole[CLASSIC_BYTES..bytes.len()].copy_from_slice(&bytes[CLASSIC_BYTES..]);
        // What is charged for the number, whoever had it.
        let charged = had.map_or(Charge::default(), |cell| cell.core.read().charged);
        let mut core = Core::new(RawInode::from_bytes(&whole), charged);
        let is_listed = volume.orphans.lock().has(ino);
        core.raw.set_dtime(if is_listed { dtime } else { 0 });
        check(&volume.geometry, None, ino, &core.raw)?;
        if core.raw.mode() == 0 {
            return Err(damaged("i_mode in a fast commit").into());
        }
        let had_map = |cell: &Arc<Cell>| extents::has_map(&cell.core.read());
        match &old {
            _ if !extents::has_map(&core) => {}
            Some(old) if had_map(old) => core.raw.block_mut().copy_from_slice(&map),
            _ => extents::init(&mut core),
        }
        volume.alloc.take_inode_number(self.handle, ino, core.raw.mode() >> 12 == 4)?;
        let cell = Cell::new(ino, volume.seed, core.raw);
        cell.core.write().charged = charged;
        volume.inodes.replace(cell.clone());
        self.used.insert(ino);
        self.store(&cell, &mut cell.core.write())
    }

    fn store(&mut self, cell: &Cell, core: &mut Core) -> Result<()> {
        self.inodes.insert(cell.ino);
        self.volume.store(self.handle, cell, core, true)
    }

    fn add(&mut self, ino: u32, extent: Extent) -> Result<()> {
        let Some(cell) = self.cell(ino)? else { return Ok(()) };
        let mut core = cell.core.write();
        self.take_out(&cell, &mut core, extent.first, extent.end())?;
        extents::insert(self.volume, self.handle, &cell, &mut core, extent)?;
        let blocks = extent.start.0..extent.start.0 + u64::from(extent.count);
        self.added.extend(blocks.map(|block| (block, ino)));
        self.store(&cell, &mut core)
    }

    fn take_out(&mut self, cell: &Cell, core: &mut Core, from: FileBlock, to: u64) -> Result<()> {
        if !extents::is_tree(core) {
            return Err(refused("fast commits of files with block maps"));
        }
        let is_data = core.raw.mode() >> 12 == 8;
        let mut next = Some(from).filter(|from| u64::from(from.0) < to);
        while let Some(at) = next {
            let (gone, more) = extents::take_out(self.volume, self.handle, cell, core, at, to)?;
            for extent in gone {
                for block in extent.start.0..extent.start.0 + u64::from(extent.count) {
                    if self.added.get(&block) == Some(&cell.ino) {
                        self.added.remove(&block);
                    }
                }
                self.removed.push((extent, is_data));
            }
            next = more;
        }
        self.store(cell, core)
    }

    fn create(&mut self, entry: &Entry) -> Result<()> {
        let volume = self.volume;
        let (Some(cell), Some(parent)) = (self.cell(entry.ino)?, self.cell(entry.parent)?) else {
            return Ok(());
        };
        if cell.ino == parent.ino {
            return Err(Corrupt::new(Structure::Directory, cell.ino.into(), "fast commit").into());
        }
        let mut core = cell.core.write();
        let is_dir = core.raw.mode() >> 12 == 4;
        if is_dir {
            extents::init(&mut core);
            dir::init(volume, self.handle, &cell, &mut core, parent.ino)?;
        }
        core.raw.set_links(if is_dir { 2 } else { 1 });
        self.store(&cell, &mut core)?;
        let kind = file_type(core.raw.mode());
        drop(core);
        let mut above = parent.core.write();
        if self.put_name(&parent, &mut above, entry, kind)? && is_dir {
            add_links(&mut above, 1);
        }
        self.store(&parent, &mut above)
    }

    /// Puts a name into a directory; false: there is such a name.
    fn put_name(&self, parent: &Cell, above: &mut Core, entry: &Entry, kind: u8) -> Result<bool> {
        let (volume, name) = (self.volume, Name::new(self.volume, &entry.name));
        if above.raw.mode() >> 12 != 4 {
            let field = "fast commit of a name";
            return Err(Corrupt::new(Structure::Directory, parent.ino.into(), field).into());
        }
        if dir::lookup(volume, parent, above, name)?.is_some() {
            return Ok(false);
        }
        dir::insert(volume, self.handle, parent, above, name, entry.ino, kind)?;
        Ok(true)
    }

    fn link(&mut self, entry: &Entry) -> Result<()> {
        let (Some(cell), Some(parent)) = (self.cell(entry.ino)?, self.cell(entry.parent)?) else {
            return Ok(());
        };
        if cell.ino == parent.ino {
            return Err(Corrupt::new(Structure::Directory, cell.ino.into(), "fast commit").into());
        }
        let (kind, links) = {
            let core = cell.core.read();
            (file_type(core.raw.mode()), core.raw.links())
        };
        let mut above = parent.core.write();
        let is_new = self.put_name(&parent, &mut above, entry, kind)?;
        self.store(&parent, &mut above)?;
        drop(above);
        if is_new {
            let mut core = cell.core.write();
            core.raw.set_links(links.saturating_add(1));
            self.store(&cell, &mut core)?;
        }
        Ok(())
    }

    fn unlink(&mut self, entry: &Entry) -> Result<()> {
        let volume = self.volume;
        let (Some(cell), Some(parent)) = (self.cell(entry.ino)?, self.cell(entry.parent)?) else {
            return Ok(());
        };
        let mut above = parent.core.write();
        let name = Name::new(volume, &entry.name);
        let found = match above.raw.mode() >> 12 {
            4 => dir::lookup(volume, &parent, &mut above, name)?,
            _ => None,
        };
        let Some(found) = found.filter(|found| found.ino == cell.ino && cell.ino != parent.ino)
        else {
            return Ok(());
        };
        dir::remove(volume, self.handle, &parent, &mut above, name, found)?;
        let mut core = cell.core.write();
        let is_dir = core.raw.mode() >> 12 == 4;
        let links = if is_dir { 0 } else { core.raw.links().saturating_sub(1) };
        core.raw.set_links(links);
        if is_dir {
            add_links(&mut above, -1);
        }
        self.store(&cell, &mut core)?;
        self.store(&parent, &mut above)
    }

    /// Counts the blocks of what changed; what lost its last name is an orphan.
    fn finish_inodes(&mut self) -> Result<()> {
        let volume = self.volume;
        for ino in self.inodes.clone() {
            let Some(cell) = self.cell(ino)? else { continue };
            let mut core = cell.core.write();
            if extents::has_map(&core) && extents::is_tree(&core) {
                let blocks = extents::count(volume, &cell, &core)?;
                let blocks = blocks + xattr::blocks(volume, &cell, &core)?;
                let block_bytes = volume.geometry.block_bytes;
                core.raw.set_sectors(blocks * u64::from(block_bytes / 512), block_bytes);
            }
            if let Some(accounts) = &volume.accounts {
                core.values = accounts.values(volume, &cell, &core)?;
            }
            if core.raw.links() == 0 {
                orphan::add(volume, &cell);
            }
            volume.store(self.handle, &cell, &mut core, true)?;
        }
        Ok(())
    }

    /// Marks the blocks that files have now, and frees those that none has any more.
    fn finish_blocks(&mut self) -> Result<()> {
        let alloc = &self.volume.alloc;
        let mut claimed = FxHashSet::default();
        for claim in std::mem::take(&mut self.claims) {
            let blocks = claim.start.0..claim.start.0 + u64::from(claim.count);
            claimed.extend(blocks.clone());
            let (kept, unused) = blocks.partition(|block| self.added.contains_key(block));
            for (start, count) in runs(kept) {
                alloc.mark(self.handle, Claim { start, count });
            }
            for (start, count) in runs(unused) {
                alloc.unclaim(Claim { start, count });
            }
        }
        for (block, ino) in &self.added {
            if !claimed.contains(block) && !alloc.block_in_use(DeviceBlock(*block))? {
                let field = "fast commit: a block with two owners";
                return Err(Corrupt::new(Structure::ExtentTree, (*ino).into(), field).into());
            }
        }
        for kind in [true, false] {
            let of_kind = self.removed.iter().filter(|(_, is_data)| *is_data == kind);
            let mut gone: Vec<u64> = Vec::new();
            for (extent, _) in of_kind {
                for block in extent.start.0..extent.start.0 + u64::from(extent.count) {
                    let is_free = self.added.contains_key(&block);
                    if !is_free && alloc.block_in_use(DeviceBlock(block))? {
                        gone.push(block);
                    }
                }
            }
            gone.sort_unstable();
            gone.dedup();
            for (start, count) in runs(gone) {
                match kind {
                    true => alloc.free(self.handle, start, count)?,
                    false => alloc.free_metadata(self.handle, start, count)?,
                }
            }
        }
        Ok(())
    }
}

/// Ascending numbers as runs: first and count.
fn runs(blocks: Vec<u64>) -> Vec<(DeviceBlock, u32)> {
    let mut runs: Vec<(DeviceBlock, u32)> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some((start, count)) if start.0 + u64::from(*count) == block => *count += 1,
            _ => runs.push((DeviceBlock(block), 1)),
        }
    }
    runs
}
