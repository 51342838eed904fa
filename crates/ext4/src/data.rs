//! File contents: reading, writing, punching, truncating.
//!
//! *Ordered mode.* Data goes to its blocks before the transaction that shows it: new blocks are
//! claimed in memory, written, and only then marked, mapped and counted in one handle. A power cut
//! in between leaves blocks that nothing refers to and that the bitmaps call free; a reader never
//! sees what a block held before.

use polylane_base::Errno;
use polylane_sys::buffer::Buffer;
use polylane_vfs::fs::{SeekFor, Sink, Source};

use crate::error::Result;
use crate::extents::{self, Mapping};
use crate::format::extent::{Extent, UNWRITTEN_BLOCKS_MAX, WRITTEN_BLOCKS_MAX};
use crate::format::{DeviceBlock, FileBlock};
use crate::inode::{Cell, Core};
use crate::volume::Volume;

/// Credits of a handle that maps one extent: a path of nodes, each split, bitmaps and the inode.
pub const MAP_CREDITS: usize = 24;
/// Leaves changed per handle when blocks are removed.
const LEAVES_PER_HANDLE: usize = 4;
/// Credits of such a handle: each leaf's extents may lie in many groups.
const REMOVE_CREDITS: usize = 256;
/// Most blocks moved in one request to the device.
const RUN_BLOCKS_MAX: u32 = 256;

/// Reads up to `len` bytes at `offset` into `sink`.
///
/// # Errors
/// The device's, or a corrupt tree.
pub fn read(
    volume: &Volume,
    cell: &Cell,
    core: &Core,
    offset: u64,
    len: usize,
    sink: &mut dyn Sink,
) -> Result<usize> {
    let len = (len as u64).min(core.raw.size().saturating_sub(offset)) as usize;
    let block_bytes = volume.io.block_bytes();
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let within = (at % block_bytes as u64) as usize;
        let first = FileBlock((at / block_bytes as u64) as u32);
        let mapping = extents::map(volume, cell, core, first)?;
        let (blocks, source) = match mapping {
            Mapping::Hole(count) => (count, None),
            Mapping::Data(extent) if extent.unwritten => (extent.count.into(), None),
            Mapping::Data(extent) => (extent.count.min(RUN_BLOCKS_MAX).into(), Some(extent.start)),
        };
        let span = (blocks.saturating_mul(block_bytes as u64) as usize).saturating_sub(within);
        let part = span.min(len - done);
        match source {
            None => sink.zero(done, part),
            Some(start) => {
                let count = (within + part).div_ceil(block_bytes);
                let data = volume.io.read_run(start, count)?;
                sink.put(done, &data[within..within + part]);
            }
        }
        done += part;
    }
    Ok(len)
}

/// Writes all of `source` at `offset`.
///
/// # Errors
/// `ENOSPC` when not even the first byte fits, the device's, or a corrupt tree.
pub fn write(
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    offset: u64,
    source: &mut dyn Source,
) -> Result<usize> {
    let mut done = 0;
    while done < source.len() {
        match write_run(volume, cell, core, offset + done as u64, source, done) {
            Ok(count) => done += count,
            Err(crate::Error::Errno(Errno::ENOSPC)) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Writes what one mapping covers. Returns how many bytes that was.
fn write_run(
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    at: u64,
    source: &mut dyn Source,
    from: usize,
) -> Result<usize> {
    let block_bytes = volume.io.block_bytes();
    let within = (at % block_bytes as u64) as usize;
    let first = FileBlock((at / block_bytes as u64) as u32);
    let left = source.len() - from;
    let wanted = ((within + left).div_ceil(block_bytes) as u64).min(RUN_BLOCKS_MAX.into()) as u32;
    let mapping = extents::map(volume, cell, core, first)?;
    let (start, count, new) = match mapping {
        Mapping::Data(extent) => (extent.start, extent.count.min(wanted), extent.unwritten),
        Mapping::Hole(blocks) => {
            let want = (blocks.min(u64::from(wanted))) as u32;
            return fill_hole(volume, cell, core, (first, want), (at, within), source, from);
        }
    };
    let bytes = (count as usize * block_bytes - within).min(left);
    let data = assemble(volume, core, (start, count, new), (at, within, bytes), source, from)?;
    volume.io.write(start, data)?;
    let handle = volume.start(MAP_CREDITS)?;
    if new {
        let end = u64::from(first.0) + u64::from(count);
        extents::mark_written(volume, &handle, cell, core, first, end)?;
    }
    finish(volume, &handle, cell, core, at + bytes as u64)?;
    Ok(bytes)
}

fn fill_hole(
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    (first, want): (FileBlock, u32),
    (at, within): (u64, usize),
    source: &mut dyn Source,
    from: usize,
) -> Result<usize> {
    let block_bytes = volume.io.block_bytes();
    let claim = volume.alloc.claim(goal(volume, cell, core, first)?, want)?;
    let bytes = (claim.count as usize * block_bytes - within).min(source.len() - from);
    let place = (claim.start, claim.count, true);
    let written = assemble(volume, core, place, (at, within, bytes), source, from)
        .and_then(|data| Ok(volume.io.write(claim.start, data)?));
    let started = written.and_then(|_| volume.start(MAP_CREDITS));
    let handle = match started {
        Ok(handle) => handle,
        Err(error) => {
            volume.alloc.unclaim(claim);
            return Err(error);
        }
    };
    let (start, count) = (claim.start, claim.count);
    volume.alloc.mark(&handle, claim);
    let extent = Extent { first, count, start, unwritten: false };
    extents::insert(volume, &handle, cell, core, extent)?;
    core.add_blocks(count.into(), volume.geometry.block_bytes);
    finish(volume, &handle, cell, core, at + bytes as u64)?;
    Ok(bytes)
}

/// The bytes for a run of blocks: the source's, with what the first and last block held around
/// them.
fn assemble(
    volume: &Volume,
    core: &Core,
    (start, count, new): (DeviceBlock, u32, bool),
    (at, within, bytes): (u64, usize, usize),
    source: &mut dyn Source,
    from: usize,
) -> Result<Buffer> {
    let block_bytes = volume.io.block_bytes();
    let mut data = Buffer::zeroed(count as usize * block_bytes);
    let tail = (within + bytes) % block_bytes;
    let last = (within + bytes) / block_bytes;
    let ends_inside = tail != 0 && at + (bytes as u64) < core.raw.size();
    if !new && within != 0 {
        data[..block_bytes].copy_from_slice(&volume.io.read(start)?);
    }
    if !new && ends_inside && (last > 0 || within == 0) {
        let block = volume.io.read(DeviceBlock(start.0 + last as u64))?;
        data[last * block_bytes..][..block_bytes].copy_from_slice(&block);
    }
    source.get(from, &mut data[within..within + bytes]);
    Ok(data)
}

fn finish(
    volume: &Volume,
    handle: &crate::journal::Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    end: u64,
) -> Result<()> {
    if end > core.raw.size() {
        core.raw.set_size(end);
    }
    core.touch(volume.now());
    volume.store(handle, cell, core, true)
}

/// Where new blocks should go: behind the file's block before, else at the inode's group.
fn goal(volume: &Volume, cell: &Cell, core: &Core, first: FileBlock) -> Result<DeviceBlock> {
    if let Some(before) = first.0.checked_sub(1)
        && let Mapping::Data(extent) = extents::map(volume, cell, core, FileBlock(before))?
    {
        return Ok(DeviceBlock(extent.start.0 + 1));
    }
    Ok(volume.goal(cell.ino))
}

/// Removes the blocks of `from..to` in as many handles as it takes; the caller stores the inode
/// last.
///
/// # Errors
/// The device's, or a corrupt tree.
pub fn remove_blocks(
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    from: FileBlock,
    to: u64,
) -> Result<()> {
    let mut next = Some(from);
    while let Some(at) = next {
        let handle = volume.start(REMOVE_CREDITS)?;
        let leaves = LEAVES_PER_HANDLE;
        next = extents::remove(volume, &handle, cell, core, at, to, leaves)?;
        volume.store(&handle, cell, core, true)?;
    }
    Ok(())
}

/// Makes bytes `from..to` of a block that is mapped and written read as zeros, in place.
fn zero_within(volume: &Volume, cell: &Cell, core: &Core, from: u64, to: u64) -> Result<()> {
    let block_bytes = volume.io.block_bytes() as u64;
    let at = FileBlock((from / block_bytes) as u32);
    let Mapping::Data(Extent { start, unwritten: false, .. }) =
        extents::map(volume, cell, core, at)?
    else {
        return Ok(());
    };
    let mut data = volume.io.read(start)?;
    let base = from - from % block_bytes;
    data[(from - base) as usize..(to - base) as usize].fill(0);
    volume.io.write(start, data)?;
    Ok(())
}

/// Changes the size. Shrinking gives blocks back and zeroes the rest of the last one.
///
/// # Errors
/// The device's, or a corrupt tree.
pub fn truncate(volume: &Volume, cell: &Cell, core: &mut Core, size: u64) -> Result<()> {
    let block_bytes = volume.io.block_bytes() as u64;
    let old = core.raw.size();
    if size < old && !size.is_multiple_of(block_bytes) {
        zero_within(volume, cell, core, size, size.next_multiple_of(block_bytes))?;
    }
    core.raw.set_size(size);
    core.touch(volume.now());
    let handle = volume.start(MAP_CREDITS)?;
    volume.store(&handle, cell, core, true)?;
    drop(handle);
    if size < old {
        let first = FileBlock(size.div_ceil(block_bytes) as u32);
        remove_blocks(volume, cell, core, first, 1 << 32)?;
    }
    Ok(())
}

/// Makes `offset..offset + len` a hole, within the size.
///
/// # Errors
/// The device's, no space for a tree node, or a corrupt tree.
pub fn punch(volume: &Volume, cell: &Cell, core: &mut Core, offset: u64, len: u64) -> Result<()> {
    let block_bytes = volume.io.block_bytes() as u64;
    let end = (offset + len).min(core.raw.size().next_multiple_of(block_bytes));
    if offset >= end {
        return Ok(());
    }
    let (first, last) = (offset.next_multiple_of(block_bytes), end - end % block_bytes);
    if offset < first {
        zero_within(volume, cell, core, offset, end.min(first))?;
    }
    if last < end && last >= first {
        zero_within(volume, cell, core, last, end)?;
    }
    if first < last {
        let from = FileBlock((first / block_bytes) as u32);
        remove_blocks(volume, cell, core, from, last / block_bytes)?;
    }
    core.touch(volume.now());
    let handle = volume.start(MAP_CREDITS)?;
    volume.store(&handle, cell, core, true)
}

/// Allocates what is missing in `offset..offset + len`, unwritten.
///
/// # Errors
/// `ENOSPC` (what was allocated so far stays), the device's, or a corrupt tree.
pub fn allocate(
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    offset: u64,
    len: u64,
) -> Result<()> {
    let block_bytes = volume.io.block_bytes() as u64;
    let end = (offset + len).div_ceil(block_bytes);
    let mut at = offset / block_bytes;
    while at < end {
        let first = FileBlock(at as u32);
        match extents::map(volume, cell, core, first)? {
            Mapping::Data(extent) => at += u64::from(extent.count),
            Mapping::Hole(blocks) => {
                let want = blocks.min(end - at).min(UNWRITTEN_BLOCKS_MAX.into()) as u32;
                let claim = volume.alloc.claim(goal(volume, cell, core, first)?, want)?;
                let handle = match volume.start(MAP_CREDITS) {
                    Ok(handle) => handle,
                    Err(error) => {
                        volume.alloc.unclaim(claim);
                        return Err(error);
                    }
                };
                let (start, count) = (claim.start, claim.count);
                volume.alloc.mark(&handle, claim);
                let extent = Extent { first, count, start, unwritten: true };
                extents::insert(volume, &handle, cell, core, extent)?;
                core.add_blocks(count.into(), volume.geometry.block_bytes);
                volume.store(&handle, cell, core, true)?;
                at += u64::from(count);
            }
        }
    }
    Ok(())
}

/// Finds the next data or hole at or after `offset`, which lies below the size.
///
/// # Errors
/// `ENXIO` when no data follows, the device's, or a corrupt tree.
pub fn seek(
    volume: &Volume,
    cell: &Cell,
    core: &Core,
    offset: u64,
    target: SeekFor,
) -> Result<u64> {
    let (block_bytes, size) = (volume.io.block_bytes() as u64, core.raw.size());
    let mut at = offset / block_bytes;
    while at * block_bytes < size {
        let (is_data, blocks) = match extents::map(volume, cell, core, FileBlock(at as u32))? {
            Mapping::Data(extent) => (!extent.unwritten, u64::from(extent.count)),
            Mapping::Hole(blocks) => (false, blocks),
        };
        if is_data == (target == SeekFor::Data) {
            return Ok(offset.max(at * block_bytes));
        }
        at = at.saturating_add(blocks.max(1));
    }
    match target {
        SeekFor::Data => Err(Errno::ENXIO.into()),
        SeekFor::Hole => Ok(size),
    }
}

const _: () = assert!(RUN_BLOCKS_MAX <= WRITTEN_BLOCKS_MAX);
