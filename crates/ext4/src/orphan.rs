//! Orphans: inodes without a name that must be freed, and files whose truncation was cut short,
//! also after a power cut.
//!
//! Two forms are known. The *list* starts in the superblock and goes on in each inode's `i_dtime`.
//! The
//! *orphan file* is an array of inode numbers in a file of its own, each block ending in
//! `{magic 0x0b10ca04, checksum over inode seed, block number and entries}`. An open file system of
//! ours uses the list, whatever the image has: an entry is one word in the superblock and one in
//! the inode, and most unlinks need none (an inode that nobody holds is freed in the unlinking
//! transaction).

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

/// The orphans that the image names, list first.
///
/// # Errors
/// The device's, or a list that runs in a circle or out of range.
pub fn read(volume: &Volume, superblock: &Superblock) -> Result<Vec<u32>> {
    let mut orphans = Vec::new();
    let mut ino = superblock.last_orphan();
    while ino != 0 {
        let limit = volume.geometry.inode_count as usize;
        if !in_range(&volume.geometry, ino) || orphans.len() >= limit || orphans.contains(&ino) {
            return Err(Corrupt::new(Structure::Orphan, ino.into(), "list").into());
        }
        orphans.push(ino);
        ino = volume.cell(ino)?.core.read().raw.dtime();
    }
    if superblock.has_compat(compat::ORPHAN_FILE) {
        orphans.extend(read_file(volume, superblock.orphan_file_inode())?);
    }
    Ok(orphans)
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

/// Enters an inode into the list, as part of the handle's transaction; the caller stores the inode.
///
/// # Errors
/// The device's.
pub fn add(volume: &Volume, handle: &Handle<'_>, cell: &Cell, core: &mut Core) -> Result<()> {
    let mut list = volume.orphans.lock();
    if list.contains(&cell.ino) {
        return Ok(());
    }
    core.raw.set_dtime(list.last().copied().unwrap_or(0));
    list.push(cell.ino);
    set_head(volume, handle, cell.ino)
}

/// Takes an inode out of the list, as part of the handle's transaction; the caller stores the
/// inode.
///
/// # Errors
/// The device's.
pub fn remove(volume: &Volume, handle: &Handle<'_>, cell: &Cell, core: &mut Core) -> Result<()> {
    let mut list = volume.orphans.lock();
    let Some(at) = list.iter().position(|ino| *ino == cell.ino) else { return Ok(()) };
    let next = core.raw.dtime();
    core.raw.set_dtime(0);
    list.remove(at);
    // The list runs from its end to its beginning: the entry after `at` points to this one.
    match list.get(at) {
        None => set_head(volume, handle, next),
        Some(before) => volume.set_next_orphan(handle, *before, next),
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
