//! Inodes in memory: one cell per inode that the VFS holds.
//!
//! # Locking
//!
//! `table shard → nothing`; `cell → journal handle → group → block`. Two cells are locked in the
//! order of their numbers, a directory before what it names.

use std::sync::atomic::{AtomicU64, Ordering};

use polylane_base::sync::{Arc, Mutex, RwLock};
use polylane_base::{Errno, Gid, Ino, Time, Uid};
use polylane_vfs::fs::{Attr, Kind};
use rustc_hash::FxHashMap;

use crate::dir::DirIndex;
use crate::error::{Corrupt, Result, Structure};
use crate::format::checksum::inode_seed;
use crate::format::inode::{InodeFlags, RawInode, Stamp};
use crate::format::quota::Charge;
use crate::format::superblock::Geometry;
use crate::journal::Tid;
use crate::limits::Booking;
use crate::promised::Promised;

/// The number on disk of an inode of the VFS. `ESTALE`: no ext4 has such an inode.
pub(crate) fn number(ino: Ino) -> Result<u32> {
    u32::try_from(ino.0).map_err(|_| Errno::ESTALE.into())
}

/// An inode in use.
pub struct Cell {
    /// Its number.
    pub ino: u32,
    /// Seed of the checksums of its blocks.
    pub seed: u32,
    /// It is a file whose blocks a block map names; that never changes.
    pub is_mapped: bool,
    /// Its state.
    pub core: RwLock<Core>,
    /// The last transaction that changed it; 0: none since it was read.
    changed_in: AtomicU64,
    /// The last transaction that changed what fdatasync must save.
    data_changed_in: AtomicU64,
    /// Its place in the image's list of orphans: [`CHAINED`] and the number of the next one; 0 when
    /// it is not in the list. Changes only while no other handle exists, or under the cell's lock.
    chained: AtomicU64,
    /// Blocks that have been promised to delayed writes.
    pub promised: Mutex<Promised>,
}

/// Marks an inode that is in the list of orphans.
const CHAINED: u64 = 1 << 32;

/// The part behind the lock.
pub struct Core {
    /// The inode as it is to be on disk.
    pub raw: RawInode,
    /// Index of a directory's entries, built at the first use.
    pub index: Option<DirIndex>,
    /// What quotas were charged for it.
    pub charged: Charge,
    /// Inodes that hold values of its attributes; counted where there are quotas.
    pub values: u64,
    /// What was booked for it, and is charged when it is stored next.
    pub booked: Booking,
    /// Blocks that it was promised, and has when it is stored next.
    pub landed: u64,
}

impl Cell {
    /// A cell for an inode that was read or just made.
    pub fn new(ino: u32, file_system_seed: u32, raw: RawInode) -> Arc<Cell> {
        Arc::new(Cell {
            ino,
            seed: inode_seed(file_system_seed, ino, raw.generation()),
            is_mapped: raw.mode() >> 12 == 8
                && !raw.has_flag(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA),
            core: RwLock::new(Core::new(raw, Charge::default())),
            changed_in: AtomicU64::new(0),
            data_changed_in: AtomicU64::new(0),
            chained: AtomicU64::new(0),
            promised: Mutex::default(),
        })
    }

    /// Notes that `tid` changes the inode; `data`: in a way that fdatasync must save (size,
    /// blocks).
    pub fn note_change(&self, tid: Tid, data: bool) {
        self.changed_in.store(tid.0, Ordering::Release);
        if data {
            self.data_changed_in.store(tid.0, Ordering::Release);
        }
    }

    /// Notes the inode's place in the list of orphans: the next one's number, or that it has none.
    pub fn chain(&self, next: Option<u32>) {
        let word = next.map_or(0, |next| CHAINED | u64::from(next));
        self.chained.store(word, Ordering::Release);
    }

    /// The next orphan, when this one is in the list.
    pub fn next_orphan(&self) -> Option<u32> {
        let word = self.chained.load(Ordering::Acquire);
        (word & CHAINED != 0).then_some(word as u32)
    }

    /// The transaction that a sync must wait for, if any.
    pub fn changed_in(&self, data_only: bool) -> Option<Tid> {
        let of = if data_only { &self.data_changed_in } else { &self.changed_in };
        Some(Tid(of.load(Ordering::Acquire))).filter(|tid| tid.0 != 0)
    }
}

impl Core {
    /// Of an inode that was charged for.
    pub fn new(raw: RawInode, charged: Charge) -> Core {
        Core { raw, index: None, charged, values: 0, booked: Booking::default(), landed: 0 }
    }

    /// The state as the VFS wants it.
    pub fn attr(&self, ino: u32, block_bytes: u32) -> Attr {
        let raw = &self.raw;
        let kind = Kind::from_mode(raw.mode().into()).unwrap_or(Kind::File);
        let device = matches!(kind, Kind::Char | Kind::Block);
        // As Linux: programs that copy files must not take inline data for a hole.
        let is_inline = kind == Kind::File && raw.has_flag(InodeFlags::INLINE_DATA);
        let inline_sectors = if is_inline { raw.size().div_ceil(512) } else { 0 };
        Attr {
            ino: Ino(ino.into()),
            generation: raw.generation().into(),
            kind,
            perm: u32::from(raw.mode()) & 0o7777,
            nlink: raw.links().into(),
            uid: Uid(raw.uid()),
            gid: Gid(raw.gid()),
            rdev: if device { raw.rdev() } else { 0 },
            size: raw.size(),
            blocks: raw.sectors(block_bytes) + inline_sectors,
            blksize: block_bytes,
            atime: raw.time(Stamp::Access),
            mtime: raw.time(Stamp::Modify),
            ctime: raw.time(Stamp::Change),
            btime: raw.time(Stamp::Birth),
            flags: (raw.flags() & InodeFlags::VISIBLE).bits(),
        }
    }

    /// Moves `mtime` and `ctime`.
    pub fn touch(&mut self, now: Time) {
        self.raw.set_time(Stamp::Modify, now);
        self.raw.set_time(Stamp::Change, now);
    }

    /// Adds to the blocks that the inode takes.
    pub fn add_blocks(&mut self, blocks: i64, block_bytes: u32) {
        let sectors = self.raw.sectors(block_bytes) as i64 + blocks * i64::from(block_bytes / 512);
        self.raw.set_sectors(sectors.max(0) as u64, block_bytes);
    }
}

/// Checks an inode that was read from the table, against what we rely on. `seed` is the checksums'
/// seed, when there are any.
///
/// # Errors
/// [`Corrupt`] of [`Structure::Inode`], or of features that only single inodes have.
pub fn check(geometry: &Geometry, seed: Option<u32>, ino: u32, raw: &RawInode) -> Result<()> {
    let corrupt = |field| Err(Corrupt::new(Structure::Inode, ino.into(), field).into());
    match () {
        () if seed.is_some_and(|seed| !raw.checksum_ok(seed, ino)) => corrupt("checksum"),
        () if !raw.extra_isize_ok() => corrupt("i_extra_isize"),
        () if raw.mode() != 0 && Kind::from_mode(raw.mode().into()).is_none() => corrupt("i_mode"),
        () if raw.size() > i64::MAX as u64 => corrupt("i_size"),
        () if raw.xattr_block() >= geometry.block_count => corrupt("i_file_acl"),
        () if raw.has_flag(InodeFlags::INLINE_DATA)
            && (!geometry.inline_data || raw.has_flag(InodeFlags::EXTENTS)) =>
        {
            corrupt("i_flags: inline data")
        }
        () if raw.has_flag(InodeFlags::ENCRYPT) => corrupt("i_flags: encryption"),
        () => Ok(()),
    }
}

/// Whether `ino` is a number that the image has.
pub fn in_range(geometry: &Geometry, ino: u32) -> bool {
    (1..=geometry.inode_count).contains(&ino)
}

const SHARDS: usize = 64;

/// Inodes in a row that lie together: files of one directory mostly have neighbouring numbers, and
/// are used one after the other.
const ROW: u32 = 32;

/// Neighbouring cells.
#[derive(Default)]
struct Row {
    cells: [Option<Arc<Cell>>; ROW as usize],
    used: u32,
}

/// The cells in use, by number.
pub struct InodeTable {
    shards: Vec<Mutex<FxHashMap<u32, Box<Row>>>>,
}

impl Default for InodeTable {
    fn default() -> Self {
        InodeTable { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }
}

impl Row {
    /// The place of a cell.
    fn at(&mut self, ino: u32) -> &mut Option<Arc<Cell>> {
        &mut self.cells[(ino % ROW) as usize]
    }

    fn put(&mut self, cell: Arc<Cell>) -> Option<Arc<Cell>> {
        let former = self.at(cell.ino).replace(cell);
        self.used += u32::from(former.is_none());
        former
    }
}

impl InodeTable {
    fn shard(&self, ino: u32) -> &Mutex<FxHashMap<u32, Box<Row>>> {
        &self.shards[(ino / ROW) as usize % SHARDS]
    }

    /// The cell of `ino`, if it is in use.
    pub fn get(&self, ino: u32) -> Option<Arc<Cell>> {
        self.shard(ino).lock().get_mut(&(ino / ROW))?.at(ino).clone()
    }

    /// Enters a cell, unless another thread was first: then that one's.
    pub fn enter(&self, cell: Arc<Cell>) -> Arc<Cell> {
        let mut shard = self.shard(cell.ino).lock();
        let row = shard.entry(cell.ino / ROW).or_default();
        if let Some(former) = row.at(cell.ino) {
            return former.clone();
        }
        row.put(cell.clone());
        cell
    }

    /// Enters the cell of an inode that was just made, in place of any former one of its number.
    pub fn replace(&self, cell: Arc<Cell>) {
        let former = self.shard(cell.ino).lock().entry(cell.ino / ROW).or_default().put(cell);
        drop(former);
    }

    /// Takes a cell out.
    pub fn remove(&self, ino: u32) -> Option<Arc<Cell>> {
        let mut shard = self.shard(ino).lock();
        let row = shard.get_mut(&(ino / ROW))?;
        let cell = row.at(ino).take()?;
        row.used -= 1;
        if row.used == 0 {
            shard.remove(&(ino / ROW));
        }
        Some(cell)
    }

    /// Cells in use.
    pub fn len(&self) -> usize {
        let used = |row: &Row| row.used as usize;
        let of = |shard: &Mutex<FxHashMap<u32, Box<Row>>>| {
            shard.lock().values().map(|row| used(row)).sum::<usize>()
        };
        self.shards.iter().map(of).sum()
    }

    /// Whether none is in use.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_found_as_in_a_map() {
        let table = InodeTable::default();
        let cell = |ino| Cell::new(ino, 0, RawInode::new(256, 32));
        let numbers = [1, 31, 32, 33, 63, 64, 2048, u32::MAX];
        for ino in numbers {
            assert!(table.get(ino).is_none() && table.remove(ino).is_none());
            let first = table.enter(cell(ino));
            assert!(Arc::ptr_eq(&table.enter(cell(ino)), &first), "the first one stays");
            let new = cell(ino);
            table.replace(new.clone());
            assert!(table.get(ino).is_some_and(|found| Arc::ptr_eq(&found, &new)));
        }
        assert_eq!(table.len(), numbers.len());
        for ino in numbers {
            assert_eq!(table.remove(ino).map(|cell| cell.ino), Some(ino));
        }
        assert!(table.is_empty() && table.shards.iter().all(|shard| shard.lock().is_empty()));
    }
}
