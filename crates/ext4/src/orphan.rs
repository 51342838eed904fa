//! Orphans: inodes without a name that must be freed, and files whose truncation was cut short,
//! also after a power cut.
//!
//! Two forms are known. The *list* starts in the superblock and goes on in each inode's `i_dtime`.
//! The *orphan file* is an array of inode numbers in a file of its own, each block ending in
//! `{magic 0x0b10ca04, checksum over inode seed, block number and entries}`.
//!
//! An open file system of ours uses the list, whatever the image has, and keeps it in memory: it
//! goes to disk when a transaction is closed. So an inode that loses its last name and is freed
//! within one transaction, or a file that is cut within one, costs no list at all.
//!
//! # Locking
//!
//! `orphans → block data`; nothing else is taken under it.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::cache::Seal;
use crate::error::{Corrupt, Result, Structure};
use crate::extents;
use crate::format::checksum::crc;
use crate::format::superblock::{BYTES, OFFSET, Superblock, compat};
use crate::format::{DeviceBlock, le32};
use crate::inode::{Cell, Core, in_range};
use crate::journal::Handle;
use crate::volume::Volume;

/// Magic number at the end of an orphan file's block.
const MAGIC: u32 = 0x0b10_ca04;
const TAIL_BYTES: usize = 8;

/// The orphans that the image names: the list, and those of the orphan file alone.
///
/// # Errors
/// The device's, or a list that runs in a circle or out of range.
pub fn read(volume: &Volume, superblock: &Superblock) -> Result<(Vec<u32>, Vec<u32>)> {
    let (mut list, mut seen) = (Vec::new(), FxHashSet::default());
    let mut ino = superblock.last_orphan();
    while ino != 0 {
        if !in_range(&volume.geometry, ino) || !seen.insert(ino) {
            return Err(Corrupt::new(Structure::Orphan, ino.into(), "list").into());
        }
        list.push(ino);
        ino = volume.cell(ino)?.core.read().raw.dtime();
    }
    let mut others = Vec::new();
    if superblock.has_compat(compat::ORPHAN_FILE) {
        others = read_file(volume, superblock.orphan_file_inode())?;
        others.retain(|ino| seen.insert(*ino));
    }
    Ok((list, others))
}

fn read_file(volume: &Volume, ino: u32) -> Result<Vec<u32>> {
    let corrupt = |field| Corrupt::new(Structure::Orphan, ino.into(), field);
    let cell = volume.cell(ino)?;
    let mut found = Vec::new();
    for extent in extents::all(volume, &cell, &cell.core.read())? {
        for step in 0..u64::from(extent.count) {
            let home = DeviceBlock(extent.start.0 + step);
            let block = volume.io.read(home)?;
            let entries = block.len() - TAIL_BYTES;
            if le32(&block, entries) != MAGIC {
                return Err(corrupt("magic number").into());
            }
            let sum = crc(crc(cell.seed, &home.0.to_le_bytes()), &block[..entries]);
            if volume.has_sums && le32(&block, entries + 4) != sum {
                return Err(corrupt("checksum").into());
            }
            let numbers = block[..entries].chunks_exact(4).map(|bytes| le32(bytes, 0));
            found.extend(numbers.filter(|number| *number != 0));
        }
    }
    match found.iter().all(|number| in_range(&volume.geometry, *number)) {
        true => Ok(found),
        false => Err(corrupt("entry out of range").into()),
    }
}

/// The orphans of an open file system.
#[derive(Default)]
pub struct Orphans {
    /// Those that must be in the list when the running transaction is closed.
    members: FxHashSet<u32>,
    /// The list as the image has it, its head last: each with the one it points to.
    chain: Vec<(u32, u32)>,
    changed: bool,
}

impl Orphans {
    /// Takes over what the image names.
    pub fn take_over(&mut self, list: &[u32], others: &[u32]) {
        self.members.extend(list.iter().chain(others));
        let nexts = list.iter().skip(1).copied().chain([0]);
        self.chain = list.iter().copied().zip(nexts).collect();
        self.chain.reverse();
        self.changed = true;
    }

    /// Forgets an inode that is free already.
    pub fn drop_stale(&mut self, ino: u32) {
        self.changed |= self.members.remove(&ino);
    }

    /// All of them.
    pub fn members(&self) -> Vec<u32> {
        self.members.iter().copied().collect()
    }
}

/// From now on the inode is an orphan.
pub fn add(volume: &Volume, cell: &Cell) {
    let mut orphans = volume.orphans.lock();
    orphans.changed |= orphans.members.insert(cell.ino);
}

/// From now on the inode is none; the caller stores it with the same handle.
pub fn remove(volume: &Volume, cell: &Cell, core: &mut Core) {
    let mut orphans = volume.orphans.lock();
    if orphans.members.remove(&cell.ino) {
        orphans.changed = true;
        cell.chain(None);
        core.raw.set_dtime(0);
    }
}

/// Brings the list on disk up to date, as the last change of a transaction. What came and went
/// within one transaction never gets there.
///
/// # Errors
/// The device's.
pub fn seal(volume: &Volume, handle: &Handle<'_>) -> Result<()> {
    let mut guard = volume.orphans.lock();
    let Orphans { members, chain, changed } = &mut *guard;
    if !std::mem::take(changed) {
        return Ok(());
    }
    let old: FxHashMap<u32, u32> = chain.iter().copied().collect();
    let kept = chain.iter().map(|(ino, _)| *ino).filter(|ino| members.contains(ino));
    let mut list: Vec<u32> = kept.collect();
    list.extend(members.iter().filter(|ino| !old.contains_key(ino)));
    let head = chain.last().map(|(ino, _)| *ino);
    let nexts = [0].into_iter().chain(list.iter().copied());
    *chain = list.iter().copied().zip(nexts).collect();
    for (ino, next) in chain.iter().filter(|(ino, next)| old.get(ino) != Some(next)) {
        volume.set_next_orphan(handle, *ino, *next)?;
    }
    match chain.last().map(|(ino, _)| *ino) {
        same if same == head => Ok(()),
        new => set_head(volume, handle, new.unwrap_or(0)),
    }
}

fn set_head(volume: &Volume, handle: &Handle<'_>, ino: u32) -> Result<()> {
    let mut superblock = volume.superblock.lock();
    superblock.set_last_orphan(ino);
    let (home, at) = superblock_home(volume);
    let block = volume.cache.get(&volume.io, home, Seal::None, |_| Ok(()))?;
    handle.modify(&block)[at..at + BYTES].copy_from_slice(&superblock.encode());
    Ok(())
}

/// The block that holds the superblock, and where in it.
pub fn superblock_home(volume: &Volume) -> (DeviceBlock, usize) {
    let block_bytes = volume.io.block_bytes() as u64;
    (DeviceBlock(OFFSET / block_bytes), (OFFSET % block_bytes) as usize)
}

/// Empties the orphan file's blocks, sealed.
///
/// # Errors
/// The device's.
pub fn clear_file(volume: &Volume, ino: u32) -> Result<()> {
    let cell = volume.cell(ino)?;
    for extent in extents::all(volume, &cell, &cell.core.read())? {
        for step in 0..u64::from(extent.count) {
            let home = DeviceBlock(extent.start.0 + step);
            let mut block = volume.io.read(home)?;
            let entries = block.len() - TAIL_BYTES;
            block[..entries].fill(0);
            let sum = crc(crc(cell.seed, &home.0.to_le_bytes()), &block[..entries]);
            block[entries + 4..].copy_from_slice(&sum.to_le_bytes());
            volume.io.write(home, block)?;
        }
    }
    Ok(())
}
