//! Totals of a file system, as statvfs(3) tells them.

use polylane_vfs::fs::StatFs;

use crate::error::Result;
use crate::journal::Journal;
use crate::volume::Volume;

/// `EXT4_SUPER_MAGIC`.
const STATFS_MAGIC: u32 = 0xef53;

/// Of all of it.
pub fn of(volume: &Volume) -> StatFs {
    let geometry = &volume.geometry;
    let freeing = volume.journal.as_ref().map_or(0, Journal::freeing);
    let free = volume.alloc.available_blocks() + freeing;
    let reserved = volume.superblock.lock().reserved_blocks();
    let reserved = reserved + volume.alloc.pool_blocks();
    StatFs {
        bsize: geometry.block_bytes,
        // As Linux counts by default (`bsddf`): what nobody's files take is no part of it.
        blocks: geometry.block_count.saturating_sub(volume.overhead_blocks),
        bfree: free,
        bavail: free.saturating_sub(reserved),
        files: geometry.inode_count.into(),
        ffree: volume.alloc.available_inodes().into(),
        namelen: 255,
        magic: STATFS_MAGIC,
    }
}

/// Those that a directory shows: where its project may have less, what that may.
///
/// # Errors
/// The device's, or damaged quota files.
pub fn within(volume: &Volume, dir: u32, mut totals: StatFs) -> Result<StatFs> {
    let Some(accounts) = &volume.accounts else { return Ok(totals) };
    let project = volume.cell(dir)?.core.read().raw.project();
    let [bytes, inodes] = accounts.project_room(volume, project)?;
    if let Some((most, left)) = bytes {
        let blocks = |bytes: u64| bytes / u64::from(totals.bsize);
        // Linux rounds what is taken down, too.
        let left = blocks(most).saturating_sub(blocks(most - left));
        totals.blocks = totals.blocks.min(blocks(most));
        totals.bfree = totals.bfree.min(left);
        totals.bavail = totals.bavail.min(left);
    }
    if let Some((most, left)) = inodes {
        totals.files = totals.files.min(most);
        totals.ffree = totals.ffree.min(left);
    }
    Ok(totals)
}
