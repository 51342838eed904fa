//! File contents: reading and writing.
//!
//! *Ordered mode.* Data goes to its blocks before the transaction that shows it: new blocks are
//! claimed in memory, written, and only then marked, mapped and counted in one handle. A power cut
//! in between leaves blocks that nothing refers to and that the bitmaps call free; a reader never
//! sees what a block held before.
//!
//! *Writeback mode* differs where a hole is filled: the handle does its work while the data is on
//! its way, and a commit that closes it then does not wait for them. What fsync promises is the
//! same: the write has ended before it begins.
//!
//! *Deferred.* Before a large sync the bytes stay in memory until the transaction that shows them
//! goes to the log: one batch holds both, and the flush before the commit block covers both.
//!
//! *Logged data.* Which bytes go to the log instead, and which are durable at once, is
//! `synced`'s to decide. The newest version of a block may then be in the log
//! alone: all reading of contents is `read_blocks`'.

use polylane_base::Errno;
use polylane_sys::buffer::Buffer;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Sink, Source};

use crate::alloc::{Blocks, Claim};
use crate::blockmap;
use crate::cache::Seal;
use crate::data_mode::DataMode;
use crate::error::{Corrupt, Result, Structure};
use crate::extents::{self, Mapping};
use crate::format::extent::{Extent, WRITTEN_BLOCKS_MAX};
use crate::format::{DeviceBlock, FileBlock};
use crate::inline;
use crate::inode::{Cell, Core};
use crate::io::Sent;
use crate::journal::{Handle, Journal};
use crate::promised;
use crate::volume::Volume;

/// Credits of a handle that stores an inode and nothing else.
pub const INODE_CREDITS: usize = 2;
/// New tree nodes that mapping one extent may take: one per level.
pub const TREE_BLOCKS: u64 = 6;
/// Most blocks moved in one request to the device.
pub(crate) const RUN_BLOCKS_MAX: u32 = 256;

/// Where the bytes of a write go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// To their blocks.
    Place,
    /// To their blocks, together with the body of the log that the sync writes.
    Deferred,
    /// To their blocks, durable when the write has ended.
    PlaceDurably,
    /// To the log, with the transaction that shows them.
    Log,
}

/// Credits of a handle that maps one extent: what changes in the map, the blocks' bitmap and
/// descriptor, the inode.
pub fn map_credits(core: &Core) -> usize {
    extents::credits(core) + 2 + INODE_CREDITS
}

/// Blocks that the map may take when `count` blocks from `first` on are mapped: for a block map
/// just what is missing, which is nothing once they are promised.
///
/// # Errors
/// The device's, or a block number out of range.
pub fn map_room(
    volume: &Volume,
    cell: &Cell,
    core: &Core,
    (first, count): (FileBlock, u32),
) -> Result<u64> {
    match extents::is_tree(core) {
        true => Ok(TREE_BLOCKS),
        false => blockmap::missing(volume, cell, core, (first, count)),
    }
}

/// Refuses what has no contents.
pub(crate) fn regular(core: &Core) -> Result<()> {
    match core.raw.mode() >> 12 {
        8 => Ok(()),
        4 => Err(Errno::EISDIR.into()),
        _ => Err(Errno::EINVAL.into()),
    }
}

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
    if len > 0 && inline::is(core) {
        let at = offset as usize;
        sink.put(0, &inline::content(cell, core)?[at..at + len]);
        return Ok(len);
    }
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
                let data = read_blocks(volume, start, count)?;
                sink.put(done, &data[within..within + part]);
            }
        }
        done += part;
    }
    Ok(len)
}

/// Reads `count` adjacent blocks of a file, as they were last written.
///
/// # Errors
/// The device's.
pub(crate) fn read_blocks(volume: &Volume, start: DeviceBlock, count: usize) -> Result<Buffer> {
    let newer = match &volume.journal {
        // Found before the rest is read: a checkpoint may make them what is at their homes.
        Some(journal) => journal.logged.find(start, count as u32),
        None => Vec::new(),
    };
    let mut data = volume.io.read_run(start, count)?;
    let block_bytes = volume.io.block_bytes();
    for block in newer {
        let at = (block.home.0 - start.0) as usize * block_bytes;
        data[at..at + block_bytes].copy_from_slice(&block.read());
    }
    Ok(data)
}

/// Writes a block of a file that has it already, outside of [`write()`].
///
/// # Errors
/// The device's.
pub(crate) fn write_block(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    start: DeviceBlock,
    data: Buffer,
) -> Result<()> {
    let way = if volume.data == DataMode::Data { Way::Log } else { Way::Place };
    if way_of_run(volume, (start, 1), way)?.0 == Way::Log {
        start_logging(ctx, volume, start, &data, 0)?.complete();
        return Ok(());
    }
    volume.io.write(start, data)?;
    Ok(())
}

/// Writes all of `source` at `offset`, the way that was decided for it.
///
/// # Errors
/// `ENOSPC` when not even the first byte fits, `EFBIG`, the device's, or a corrupt tree.
pub fn write(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    offset: u64,
    source: &mut dyn Source,
    way: Way,
) -> Result<usize> {
    let end = offset.checked_add(source.len() as u64).ok_or(Errno::EFBIG)?;
    if end > volume.max_file_bytes(cell) {
        return Err(Errno::EFBIG.into());
    }
    inline::move_out(ctx, volume, cell, core)?;
    let mut done = 0;
    while done < source.len() {
        match write_run(ctx, volume, cell, core, offset + done as u64, (source, done), way) {
            Ok(count) => done += count,
            Err(crate::Error::Errno(Errno::ENOSPC)) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// The target of a symbolic link.
///
/// # Errors
/// `EINVAL` when it is none, the device's, or a corrupt inode.
pub fn readlink(volume: &Volume, cell: &Cell, core: &Core) -> Result<Vec<u8>> {
    if core.raw.mode() >> 12 != 10 {
        return Err(Errno::EINVAL.into());
    }
    if inline::is(core) {
        return inline::content(cell, core);
    }
    let size = core.raw.size() as usize;
    if !extents::has_map(core) {
        return Ok(core.raw.block()[..size].to_vec());
    }
    // A target is metadata: its newest version may be in the journal only.
    let corrupt = |field| Corrupt::new(Structure::Inode, cell.ino.into(), field);
    let Mapping::Data(Extent { start, unwritten: false, .. }) =
        extents::map(volume, cell, core, FileBlock(0))?
    else {
        return Err(corrupt("symbolic link without a target").into());
    };
    let block = volume.cache.get(&volume.io, start, Seal::None, |_| Ok(()))?;
    let bytes = block.read();
    Ok(bytes.get(..size).ok_or(corrupt("i_size"))?.to_vec())
}

/// Writes what one mapping covers, or a part of it that goes one way. Returns how many bytes that
/// was.
fn write_run(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    at: u64,
    (source, from): (&mut dyn Source, usize),
    way: Way,
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
            return fill_hole(
                ctx,
                volume,
                cell,
                core,
                (first, want),
                (at, within),
                (source, from),
                way,
            );
        }
    };
    let (way, count) = way_of_run(volume, (start, count), way)?;
    let bytes = (count as usize * block_bytes - within).min(left);
    let promise = if new { Some(volume.promise(TREE_BLOCKS)?) } else { None };
    let data = assemble(volume, core, (start, count, new), (at, within, bytes), source, from)?;
    let credits = if new { map_credits(core) } else { INODE_CREDITS };
    let handle = match way {
        Way::Log => start_logging(ctx, volume, start, &data, credits)?,
        Way::Place => {
            volume.io.keep_buffer(volume.io.write(start, data)?);
            volume.start(ctx, credits)?
        }
        Way::PlaceDurably => {
            volume.io.keep_buffer(volume.io.write_durable(start, data)?);
            volume.start(ctx, credits)?
        }
        Way::Deferred => start_deferring(ctx, volume, start, data, credits)?,
    };
    if new {
        let end = u64::from(first.0) + u64::from(count);
        extents::mark_written(volume, &handle, cell, core, first, end)?;
    }
    // What is logged is saved by a commit alone.
    finish(ctx, volume, handle, cell, core, at + bytes as u64, new || way == Way::Log)?;
    drop(promise);
    promised::release(volume, cell, first.0, first.0 + count);
    Ok(bytes)
}

/// How the first of `count` written blocks from `start` on are written, and how many: what is in
/// the log is logged again, and is not written in place; the rest goes where it has room.
fn way_of_run(volume: &Volume, (start, count): (DeviceBlock, u32), way: Way) -> Result<(Way, u32)> {
    let Some(journal) = &volume.journal else {
        return Ok((way_with_room(volume, (start, count), way)?, count));
    };
    let most = journal.data_blocks_max().min(RUN_BLOCKS_MAX as usize) as u32;
    if way == Way::Log && !is_room_asked_for(volume, journal) {
        return Ok((Way::Log, count.min(most)));
    }
    let (is_in_log, run) = journal.logged.run(start, count);
    if is_in_log {
        return Ok((Way::Log, run.min(most)));
    }
    let run = if way == Way::Log { run.min(most) } else { run };
    Ok((way_with_room(volume, (start, run), way)?, run))
}

/// Whether data needs room on the medium before it is logged. What little a sync logs finds it in
/// the log, until the medium is known to be short.
fn is_room_asked_for(volume: &Volume, journal: &Journal) -> bool {
    volume.data == DataMode::Data || journal.is_short()
}

/// Whether a write of blocks that are not in the log may be deferred, or logged: later, no writer
/// could be told that there is no room for it, and what waits in the log keeps others from removing
/// anything.
fn way_with_room(volume: &Volume, (start, count): (DeviceBlock, u32), way: Way) -> Result<Way> {
    match (way, &volume.journal) {
        (Way::Deferred, _) if !volume.io.has_room(start, count.into()) => Ok(Way::Place),
        (Way::Log, Some(journal)) if is_room_asked_for(volume, journal) => {
            match journal.reserve_homes(start, count) {
                Err(polylane_block::Error::NoSpace) => Ok(Way::Place),
                reserved => Ok(reserved.map(|()| Way::Log)?),
            }
        }
        (way, _) => Ok(way),
    }
}

/// A handle with `credits`, in whose transaction the log has `data` as the blocks from `start` on.
fn start_logging<'a>(
    ctx: &OpCtx<'a>,
    volume: &'a Volume,
    start: DeviceBlock,
    data: &[u8],
    credits: usize,
) -> Result<Handle<'a>> {
    let block_bytes = volume.io.block_bytes();
    let handle = volume.start(ctx, credits + data.len() / block_bytes)?;
    for (index, block) in data.chunks(block_bytes).enumerate() {
        handle.log_data(DeviceBlock(start.0 + index as u64), block);
    }
    Ok(handle)
}

/// A handle with `credits`, whose transaction shows `data` as the blocks from `start` on, which go
/// to the device with it.
fn start_deferring<'a>(
    ctx: &OpCtx<'a>,
    volume: &'a Volume,
    start: DeviceBlock,
    data: Buffer,
    credits: usize,
) -> Result<Handle<'a>> {
    volume.io.prepare_to_defer(start, (data.len() / volume.io.block_bytes()) as u32)?;
    let handle = volume.start(ctx, credits)?;
    volume.io.defer(start, data);
    Ok(handle)
}

fn fill_hole(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    (first, want): (FileBlock, u32),
    (at, within): (u64, usize),
    (source, from): (&mut dyn Source, usize),
    way: Way,
) -> Result<usize> {
    let block_bytes = volume.io.block_bytes();
    let goal = goal(volume, cell, core, first)?;
    let want = match (way, &volume.journal) {
        (Way::Log, Some(journal)) => want.min(journal.data_blocks_max() as u32),
        _ => want,
    };
    let promise = volume.promise(map_room(volume, cell, core, (first, want))?)?;
    let (claim, was_promised) = claim(volume, cell, core, goal, (first, want))?;
    let bytes = (claim.count as usize * block_bytes - within).min(source.len() - from);
    let place = (claim.start, claim.count, true);
    let begun = way_with_room(volume, (claim.start, claim.count), way).and_then(|way| {
        let data = assemble(volume, core, place, (at, within, bytes), source, from)?;
        begin(ctx, volume, claim.start, data, map_credits(core), way)
    });
    if begun.is_err() && was_promised {
        promised::renew(volume, cell, first.0, first.0 + claim.count);
    }
    let (started, sent) = match begun {
        Ok((handle, sent)) => (Ok(handle), sent),
        Err(error) => (Err(error), None),
    };
    let (handle, count) = link_claim(volume, cell, core, (claim, started), first, false)?;
    core.landed = if was_promised { count.into() } else { 0 };
    finish(ctx, volume, handle, cell, core, at + bytes as u64, true)?;
    drop(promise);
    promised::release(volume, cell, first.0, first.0 + count);
    if let Some(sent) = sent {
        volume.io.keep_buffer(sent.wait()?);
    }
    Ok(bytes)
}

/// A handle for mapping new blocks, to which `data` goes, or with which it is logged. Ordered: it
/// is there when the handle begins. Else it is on its way, and the caller waits for that when the
/// handle has ended: not before, and soon, since who copies the device waits for what is under way.
fn begin<'a>(
    ctx: &OpCtx<'a>,
    volume: &'a Volume,
    start: DeviceBlock,
    data: Buffer,
    credits: usize,
    way: Way,
) -> Result<(Handle<'a>, Option<Sent<'a>>)> {
    match (way, volume.data) {
        (Way::Log, _) => Ok((start_logging(ctx, volume, start, &data, credits)?, None)),
        (Way::Deferred, _) => Ok((start_deferring(ctx, volume, start, data, credits)?, None)),
        (_, DataMode::Writeback) => {
            let handle = volume.start(ctx, credits)?;
            Ok((handle, Some(volume.io.begin_write(start, data)?)))
        }
        (_, DataMode::Ordered | DataMode::Data) => {
            volume.io.keep_buffer(volume.io.write(start, data)?);
            Ok((volume.start(ctx, credits)?, None))
        }
    }
}

/// Makes claimed blocks the file's, from `first` on, in the handle that was `started` for it;
/// returns it and how many blocks there are. Without a handle the claim is given up.
pub fn link_claim<'a>(
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    (claim, started): (Claim, Result<Handle<'a>>),
    first: FileBlock,
    unwritten: bool,
) -> Result<(Handle<'a>, u32)> {
    let handle = match started {
        Ok(handle) => handle,
        Err(error) => {
            volume.alloc.unclaim(claim);
            return Err(error);
        }
    };
    let (start, count) = (claim.start, claim.count);
    volume.alloc.mark(&handle, claim);
    extents::insert(volume, &handle, cell, core, Extent { first, count, start, unwritten })?;
    core.add_blocks(count.into(), volume.geometry.block_bytes);
    Ok((handle, count))
}

/// Claims up to `want` blocks: promised ones, or ones that nobody was promised. Whether they were
/// promised: they are not any more, for what is taken and promised would be missing twice, and
/// those who were promised other blocks would be told that there are none.
fn claim(
    volume: &Volume,
    cell: &Cell,
    core: &Core,
    goal: DeviceBlock,
    (first, want): (FileBlock, u32),
) -> Result<(Claim, bool)> {
    let mut promised = cell.promised.lock();
    let run = promised.run(first.0);
    if run > 0 {
        let claim = |goal| volume.alloc.claim(goal, want.min(run));
        let claim = volume.claim_for(core, goal, claim)?;
        volume.alloc.unreserve(promised.claim(first.0, first.0 + claim.count));
        return Ok((claim, true));
    }
    let upto = promised.next(first.0).map_or(want, |next| want.min(next - first.0));
    drop(promised);
    let claim = |goal| volume.with_space(|| volume.alloc.claim_data(goal, upto, Blocks::Kept));
    Ok((volume.claim_for(core, goal, claim)?, false))
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
    let mut data = volume.io.buffer(count as usize * block_bytes);
    // A block's bytes that the file does not have are zero.
    data[..within].fill(0);
    data[within + bytes..].fill(0);
    let tail = (within + bytes) % block_bytes;
    let last = (within + bytes) / block_bytes;
    let ends_inside = tail != 0 && at + (bytes as u64) < core.raw.size();
    if !new && within != 0 {
        data[..block_bytes].copy_from_slice(&read_blocks(volume, start, 1)?);
    }
    if !new && ends_inside && (last > 0 || within == 0) {
        let block = read_blocks(volume, DeviceBlock(start.0 + last as u64), 1)?;
        data[last * block_bytes..][..block_bytes].copy_from_slice(&block);
    }
    source.get(from, &mut data[within..within + bytes]);
    Ok(data)
}

/// Ends a write that reached `end`. fdatasync must save it when blocks were `mapped` or the file
/// grew or went to the log.
fn finish(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    handle: Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    end: u64,
    mapped: bool,
) -> Result<()> {
    let grew = end > core.raw.size();
    if grew {
        core.raw.set_size(end);
    }
    core.touch(volume.now(ctx));
    volume.store(&handle, cell, core, mapped || grew)?;
    handle.complete();
    Ok(())
}

/// Where new blocks should go: behind the file's block before, else at the inode's group.
pub(crate) fn goal(
    volume: &Volume,
    cell: &Cell,
    core: &Core,
    first: FileBlock,
) -> Result<DeviceBlock> {
    if let Some(before) = first.0.checked_sub(1)
        && let Mapping::Data(extent) = extents::map(volume, cell, core, FileBlock(before))?
    {
        return Ok(DeviceBlock(extent.start.0 + 1));
    }
    Ok(volume.goal(cell.ino))
}

const _: () = assert!(RUN_BLOCKS_MAX <= WRITTEN_BLOCKS_MAX);
