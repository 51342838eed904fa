//! An open file system: what all its parts share.

use std::sync::atomic::{AtomicU32, Ordering};

use polylane_base::sync::{Arc, Mutex};
use polylane_base::{Clock, Errno, Time};
use rustc_hash::FxHashSet;

use crate::alloc::Allocator;
use crate::cache::{BlockCache, MetaBlock, Seal};
use crate::error::{Error, Result};
use crate::format::inode::RawInode;
use crate::format::superblock::{Geometry, Superblock};
use crate::format::{DeviceBlock, GroupIndex};
use crate::inode::{Cell, Core, InodeTable, check, in_range};
use crate::io::BlockIo;
use crate::journal::{Client, Freed, Handle, Journal};

/// The shared state of an open file system. Nothing here is global.
pub struct Volume {
    /// The device.
    pub io: Arc<BlockIo>,
    /// Metadata blocks.
    pub cache: Arc<BlockCache>,
    /// Free space.
    pub alloc: Allocator,
    /// The journal; `None` when open for reading only.
    pub journal: Option<Journal>,
    /// Geometry of the image.
    pub geometry: Geometry,
    /// Seed of all checksums.
    pub seed: u32,
    /// Whether metadata carries checksums.
    pub has_sums: bool,
    /// The superblock; counters in it are brought up to date at unmount.
    pub superblock: Mutex<Superblock>,
    /// Inodes in use.
    pub inodes: InodeTable,
    /// The list of orphans, its head last.
    pub orphans: Mutex<Vec<u32>>,
    /// Seed of new inodes' generations.
    pub generation: AtomicU32,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
}

impl Volume {
    /// Starts a change of at most `credits` metadata blocks.
    ///
    /// # Errors
    /// `EROFS` when open for reading only, [`Error::Stopped`] after a failure.
    pub fn start(&self, credits: usize) -> Result<Handle<'_>> {
        match &self.journal {
            Some(journal) => journal.start(credits),
            None => Err(Errno::EROFS.into()),
        }
    }

    /// The cell of `ino`, read from the inode table if need be. A free inode is `ESTALE`.
    ///
    /// # Errors
    /// The device's, or a corrupt inode.
    pub fn cell(&self, ino: u32) -> Result<Arc<Cell>> {
        if let Some(cell) = self.inodes.get(ino) {
            return Ok(cell);
        }
        if !in_range(&self.geometry, ino) {
            return Err(Errno::ESTALE.into());
        }
        let (block, offset) = self.table_block(ino)?;
        let bytes = usize::from(self.geometry.inode_bytes);
        let raw = RawInode::from_bytes(&block.read()[offset..offset + bytes]);
        check(&self.superblock.lock(), ino, &raw)?;
        if raw.mode() == 0 {
            return Err(Errno::ESTALE.into());
        }
        Ok(self.inodes.enter(Cell::new(ino, self.seed, raw)))
    }

    fn table_block(&self, ino: u32) -> Result<(Arc<MetaBlock>, usize)> {
        let (home, offset) = self.alloc.inode_place(ino);
        Ok((self.cache.get(&self.io, home, Seal::None, |_| Ok(()))?, offset))
    }

    /// Puts the inode into the inode table, as part of the handle's transaction. `data`: fdatasync
    /// must save this change.
    ///
    /// # Errors
    /// The device's.
    pub fn store(
        &self,
        handle: &Handle<'_>,
        cell: &Cell,
        core: &mut Core,
        data: bool,
    ) -> Result<()> {
        let (block, offset) = self.table_block(cell.ino)?;
        core.raw.put_checksum(&self.superblock.lock(), cell.ino);
        let bytes = core.raw.bytes();
        handle.modify(&block)[offset..offset + bytes.len()].copy_from_slice(bytes);
        cell.note_change(handle.tid(), data);
        Ok(())
    }

    /// Makes orphan `ino`, whose lock may be held by another thread, point to `next`: its dtime
    /// word changes in the table and, when nobody is at it, in the cell.
    ///
    /// # Errors
    /// The device's.
    pub fn set_next_orphan(&self, handle: &Handle<'_>, ino: u32, next: u32) -> Result<()> {
        let (block, offset) = self.table_block(ino)?;
        let bytes = usize::from(self.geometry.inode_bytes);
        let mut data = handle.modify(&block);
        let mut raw = RawInode::from_bytes(&data[offset..offset + bytes]);
        raw.set_dtime(next);
        raw.put_checksum(&self.superblock.lock(), ino);
        data[offset..offset + bytes].copy_from_slice(raw.bytes());
        Ok(())
    }

    /// Where blocks of `ino` should go: the group of its inode.
    pub fn goal(&self, ino: u32) -> DeviceBlock {
        let group = GroupIndex((ino - 1) / self.geometry.inodes_per_group);
        DeviceBlock(self.geometry.first_block(group))
    }

    /// A generation for a new inode: differs from its former owners' with all but certainty.
    pub fn next_generation(&self) -> u32 {
        let step = self.generation.fetch_add(0x9e37_79b9, Ordering::Relaxed);
        step ^ self.now().nsec
    }

    /// Now.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Turns a failure of the medium or the format into a stop: nothing is written any more.
    /// Ordinary refusals pass through.
    pub fn stop_on<T>(&self, result: Result<T>) -> Result<T> {
        if let (Err(Error::Corrupt(_) | Error::Device(_)), Some(journal)) = (&result, &self.journal)
        {
            journal.stop();
        }
        result
    }
}

impl Client for Volume {
    fn close_groups(&self, groups: &FxHashSet<GroupIndex>) -> Result<Vec<Arc<MetaBlock>>> {
        self.alloc.close_groups(groups)
    }

    fn release(&self, freed: &[Freed]) {
        self.alloc.release(freed);
    }

    fn now(&self) -> Time {
        self.clock.now()
    }
}
