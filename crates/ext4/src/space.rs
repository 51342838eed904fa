//! A file's space: truncating, punching, allocating ahead, moving ranges, finding holes.
//!
//! What needs more than one handle leaves the file whole after each. A file that is being cut is an
//! orphan meanwhile, so that the next open finishes what a power cut left.

use polylane_base::Errno;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, Piece, SeekFor};

use crate::data::{
    INODE_CREDITS, TREE_BLOCKS, goal, link_claim, map_credits, read_blocks, regular, write_block,
};
use crate::error::Result;
use crate::extents::{self, GROUPS_PER_REMOVAL, Mapping};
use crate::format::FileBlock;
use crate::format::extent::{Extent, UNWRITTEN_BLOCKS_MAX};
use crate::inline;
use crate::inode::{Cell, Core};
use crate::journal::Handle;
use crate::orphan;
use crate::promised;
use crate::volume::Volume;

/// Credits of a handle that removes the blocks of a few groups: their bitmaps and descriptors, what
/// changes in the map, the inode.
pub(crate) fn remove_credits(core: &Core) -> usize {
    2 * (GROUPS_PER_REMOVAL + 2) + extents::credits(core) + INODE_CREDITS
}

/// Removes the blocks of `from..to` in as many handles as it takes, and stores the inode with each.
///
/// # Errors
/// The device's, no space for a tree node, or a corrupt tree.
pub fn remove_blocks(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    from: FileBlock,
    to: u64,
) -> Result<()> {
    promised::release(volume, cell, from.0, to.min(u32::MAX.into()) as u32);
    let mut next = Some(from);
    while let Some(at) = next {
        // Only a hole in the middle of an extent makes the tree grow.
        let may_grow = to < 1 << 32 && extents::is_tree(core);
        let promise = if may_grow { Some(volume.promise(TREE_BLOCKS)?) } else { None };
        let handle = volume.start(ctx, remove_credits(core))?;
        next = extents::remove(volume, &handle, cell, core, at, to)?;
        volume.store(&handle, cell, core, true)?;
        handle.complete();
        drop(promise);
    }
    Ok(())
}

/// Stores the inode, after a change of its times or size.
fn store(ctx: &OpCtx<'_>, volume: &Volume, cell: &Cell, core: &mut Core) -> Result<()> {
    let handle = volume.start(ctx, INODE_CREDITS)?;
    volume.store(&handle, cell, core, true)?;
    handle.complete();
    Ok(())
}

/// Makes bytes `from..to` of a block that is mapped and written read as zeros.
fn zero_within(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    cell: &Cell,
    core: &Core,
    from: u64,
    to: u64,
) -> Result<()> {
    let block_bytes = volume.io.block_bytes() as u64;
    let at = FileBlock((from / block_bytes) as u32);
    let Mapping::Data(Extent { start, unwritten: false, .. }) =
        extents::map(volume, cell, core, at)?
    else {
        return Ok(());
    };
    let mut data = read_blocks(volume, start, 1)?;
    let base = from - from % block_bytes;
    data[(from - base) as usize..(to - base) as usize].fill(0);
    write_block(ctx, volume, start, data)
}

/// Changes the size. What lies past a size that is no larger than before is given back, blocks that
/// were allocated past the end among it (as Linux does, ext4_setattr), and the rest of the last
/// block is zeroed.
///
/// # Errors
/// `EFBIG`, the device's, or a corrupt tree.
pub fn truncate(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    size: u64,
) -> Result<()> {
    if size > volume.max_file_bytes(cell) {
        return Err(Errno::EFBIG.into());
    }
    inline::move_out(ctx, volume, cell, core)?;
    let block_bytes = volume.io.block_bytes() as u64;
    let old = core.raw.size();
    if size < old && !size.is_multiple_of(block_bytes) {
        zero_within(ctx, volume, cell, core, size, size.next_multiple_of(block_bytes))?;
    }
    let has_blocks = core.raw.sectors(volume.geometry.block_bytes) > 0;
    core.touch(volume.now(ctx));
    if size > old || !has_blocks {
        promised::release(volume, cell, size.div_ceil(block_bytes) as u32, u32::MAX);
        core.raw.set_size(size);
        return store(ctx, volume, cell, core);
    }
    orphan::add(volume, cell);
    core.raw.set_size(size);
    cut_tail(ctx, volume, cell, core)
}

/// Removes the blocks past the end of an orphan that has names, which then is none any more.
///
/// # Errors
/// The device's, or a corrupt tree.
pub fn cut_tail(ctx: &OpCtx<'_>, volume: &Volume, cell: &Cell, core: &mut Core) -> Result<()> {
    inline::move_out(ctx, volume, cell, core)?;
    let first = core.raw.size().div_ceil(volume.io.block_bytes() as u64);
    remove_blocks(ctx, volume, cell, core, FileBlock(first as u32), 1 << 32)?;
    if core.raw.links() == 0 {
        return Ok(());
    }
    let handle = volume.start(ctx, INODE_CREDITS)?;
    orphan::remove(volume, cell, core);
    volume.store(&handle, cell, core, true)?;
    handle.complete();
    Ok(())
}

/// fallocate(2) on a regular file.
///
/// # Errors
/// `EINVAL` for ranges that cannot be moved, `EFBIG`, `ENOSPC` (what was allocated so far stays),
/// the device's, or a corrupt tree.
pub fn fallocate(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    mode: Fallocate,
    offset: u64,
    len: u64,
) -> Result<()> {
    let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
    if end > volume.max_file_bytes(cell) {
        return Err(Errno::EFBIG.into());
    }
    inline::move_out(ctx, volume, cell, core)?;
    if mode != Fallocate::PunchHole && !extents::is_tree(core) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let grow = match mode {
        Fallocate::Allocate { keep_size } => {
            allocate(ctx, volume, cell, core, offset, end)?;
            !keep_size
        }
        Fallocate::PunchHole => {
            punch(ctx, volume, cell, core, offset, end)?;
            false
        }
        Fallocate::ZeroRange { keep_size } => {
            punch(ctx, volume, cell, core, offset, end)?;
            allocate(ctx, volume, cell, core, offset, end)?;
            !keep_size
        }
        Fallocate::CollapseRange => return collapse(ctx, volume, cell, core, offset, len),
        Fallocate::InsertRange => return insert(ctx, volume, cell, core, offset, len),
    };
    if grow && end > core.raw.size() {
        core.raw.set_size(end);
    }
    core.touch(volume.now(ctx));
    store(ctx, volume, cell, core)
}

/// Makes `offset..end` a hole, within the size.
fn punch(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    offset: u64,
    end: u64,
) -> Result<()> {
    let block_bytes = volume.io.block_bytes() as u64;
    let end = end.min(core.raw.size().next_multiple_of(block_bytes));
    if offset >= end {
        return Ok(());
    }
    let (first, last) = (offset.next_multiple_of(block_bytes), end - end % block_bytes);
    if offset < first {
        zero_within(ctx, volume, cell, core, offset, end.min(first))?;
    }
    if last < end && last >= first {
        zero_within(ctx, volume, cell, core, last, end)?;
    }
    if first < last {
        let from = FileBlock((first / block_bytes) as u32);
        remove_blocks(ctx, volume, cell, core, from, last / block_bytes)?;
    }
    Ok(())
}

/// Allocates what is missing in `offset..end`, unwritten.
fn allocate(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    offset: u64,
    end: u64,
) -> Result<()> {
    let block_bytes = volume.io.block_bytes() as u64;
    let end = end.div_ceil(block_bytes);
    let mut at = offset / block_bytes;
    while at < end {
        let first = FileBlock(at as u32);
        at += match extents::map(volume, cell, core, first)? {
            Mapping::Data(extent) => u64::from(extent.count),
            Mapping::Hole(blocks) => {
                let want = blocks.min(end - at).min(UNWRITTEN_BLOCKS_MAX.into()) as u32;
                u64::from(allocate_run(ctx, volume, cell, core, first, want)?)
            }
        };
    }
    Ok(())
}

fn allocate_run(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    first: FileBlock,
    want: u32,
) -> Result<u32> {
    let (goal, from) = (goal(volume, cell, core, first)?, volume.blocks_for(ctx));
    let (booked, want) = volume.book_most(ctx, core, want)?;
    let promise = volume.promise(TREE_BLOCKS)?;
    let claim = volume.with_space(|| volume.alloc.claim_data(goal, want, from))?;
    let started = volume.start(ctx, map_credits(core));
    let (handle, count) = link_claim(volume, cell, core, (claim, started), first, true)?;
    volume.store_booked(&handle, cell, core, booked)?;
    handle.complete();
    drop(promise);
    promised::release(volume, cell, first.0, first.0 + count);
    Ok(count)
}

/// Takes `offset..offset + len` out of the file; what follows moves up.
fn collapse(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    offset: u64,
    len: u64,
) -> Result<()> {
    let (first, blocks) = aligned(volume, offset, len)?;
    if offset + len >= core.raw.size() {
        return Err(Errno::EINVAL.into());
    }
    promised::release(volume, cell, first, u32::MAX);
    remove_blocks(ctx, volume, cell, core, FileBlock(first), u64::from(first) + u64::from(blocks))?;
    let mut next = Some(FileBlock(first + blocks));
    while let Some(from) = next {
        next = step(ctx, volume, cell, core, |handle, core| {
            extents::shift_down(volume, handle, cell, core, from, blocks)
        })?;
    }
    core.raw.set_size(core.raw.size() - len);
    core.touch(volume.now(ctx));
    store(ctx, volume, cell, core)
}

/// Makes room for `len` bytes at `offset`: a hole; what follows moves down.
fn insert(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    offset: u64,
    len: u64,
) -> Result<()> {
    let (first, blocks) = aligned(volume, offset, len)?;
    if offset >= core.raw.size() {
        return Err(Errno::EINVAL.into());
    }
    let size = core.raw.size() + len;
    if size > volume.max_file_bytes(cell) {
        return Err(Errno::EFBIG.into());
    }
    promised::release(volume, cell, first, u32::MAX);
    if extents::end(volume, cell, core)? + u64::from(blocks) > u64::from(u32::MAX) {
        return Err(Errno::EFBIG.into());
    }
    let from = FileBlock(first);
    step(ctx, volume, cell, core, |handle, core| {
        extents::split_at(volume, handle, cell, core, from)?;
        core.raw.set_size(size);
        Ok(())
    })?;
    let mut next = Some(1 << 32);
    while let Some(upto) = next {
        next = step(ctx, volume, cell, core, |handle, core| {
            extents::shift_up(volume, handle, cell, core, (from, upto), blocks)
        })?;
    }
    core.touch(volume.now(ctx));
    store(ctx, volume, cell, core)
}

/// One handle's part of a change of the file's tree.
fn step<T>(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    change: impl FnOnce(&Handle<'_>, &mut Core) -> Result<T>,
) -> Result<T> {
    let promise = volume.promise(TREE_BLOCKS)?;
    let handle = volume.start(ctx, extents::credits(core) + INODE_CREDITS)?;
    let done = change(&handle, core)?;
    volume.store(&handle, cell, core, true)?;
    handle.complete();
    drop(promise);
    Ok(done)
}

fn aligned(volume: &Volume, offset: u64, len: u64) -> Result<(u32, u32)> {
    let block_bytes = volume.io.block_bytes() as u64;
    if !offset.is_multiple_of(block_bytes) || !len.is_multiple_of(block_bytes) {
        return Err(Errno::EINVAL.into());
    }
    Ok(((offset / block_bytes) as u32, (len / block_bytes) as u32))
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
    if inline::is(core) {
        return Ok(if target == SeekFor::Data { offset } else { size });
    }
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

/// Tells `each` where the file's extents that overlap `len` bytes at `offset` lie, until it says
/// false. Neighbours on the device that one extent could not hold are told as one.
///
/// # Errors
/// The device's, or a corrupt tree.
pub fn pieces(
    volume: &Volume,
    ino: u32,
    (offset, len): (u64, u64),
    each: &mut dyn FnMut(Piece) -> bool,
) -> Result<()> {
    // What is in the log is to be where it is said to be.
    if let Some(journal) = volume.journal.as_ref().filter(|it| !it.logged.is_empty()) {
        journal.commit(volume)?;
        journal.checkpoint()?;
    }
    let cell = volume.cell(ino)?;
    let core = cell.core.read();
    regular(&core)?;
    // The caller may read the device there.
    volume.io.write_deferred()?;
    let block_bytes = volume.io.block_bytes() as u64;
    let end = offset.saturating_add(len).div_ceil(block_bytes).min(u32::MAX.into());
    let (mut at, mut last): (u64, Option<Piece>) = (offset / block_bytes, None);
    while at < end {
        let extent = match extents::map(volume, &cell, &core, FileBlock(at as u32))? {
            Mapping::Data(extent) => extent,
            Mapping::Hole(blocks) => {
                at = at.saturating_add(blocks.max(1));
                continue;
            }
        };
        let piece = Piece {
            offset: at * block_bytes,
            place: extent.start.0 * block_bytes,
            len: u64::from(extent.count) * block_bytes,
            unwritten: extent.unwritten,
        };
        at += u64::from(extent.count);
        match &mut last {
            Some(last) if follows(last, &piece) => last.len += piece.len,
            _ => {
                if let Some(done) = last.replace(piece)
                    && !each(done)
                {
                    return Ok(());
                }
            }
        }
    }
    if let Some(done) = last {
        each(done);
    }
    Ok(())
}

fn follows(before: &Piece, piece: &Piece) -> bool {
    before.offset + before.len == piece.offset
        && before.place + before.len == piece.place
        && before.unwritten == piece.unwritten
}
