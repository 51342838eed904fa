//! New small files, written together.
//!
//! A tree that was unpacked is thousands of files of a page or two. Their bytes go to one run of
//! blocks by one write to the device; after it each file has a handle of its own, which marks its
//! part of the run in use, maps it, and stores size and times. That is ordered mode, as for a file
//! by itself ([`data`]): until its handle nothing refers to a file's blocks. It is the same in
//! writeback mode: one wait serves them all. Where all data is logged, no file is stored so.

use polylane_base::Errno;
use polylane_base::sync::Arc;
use polylane_sys::buffer::Buffer;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Attr, Late};

use crate::alloc::Claim;
use crate::data::{self, RUN_BLOCKS_MAX, TREE_BLOCKS, map_credits};
use crate::data_mode::DataMode;
use crate::error::Result;
use crate::extents::{self, Mapping};
use crate::format::inode::Stamp;
use crate::format::{DeviceBlock, FileBlock};
use crate::inode::{Cell, Core, number};
use crate::promised;
use crate::volume::Volume;

/// A file's part of a run: its first blocks.
struct Part {
    cell: Arc<Cell>,
    count: u32,
}

/// Stores the first of `writes`, as many as can be stored together, and returns their states. None:
/// the first is not one to be stored so, or there is no run for it.
///
/// # Errors
/// The device's, or a corrupt tree, when not even the first was stored.
pub fn write(ctx: &OpCtx<'_>, volume: &Volume, writes: &mut [Late<'_>]) -> Result<Vec<Attr>> {
    if volume.data == DataMode::Data {
        return Ok(Vec::new());
    }
    let mut parts = gather(volume, writes)?;
    let Some(first) = parts.first() else { return Ok(Vec::new()) };
    let start = claim(volume, volume.goal(first.cell.ino), &mut parts)?;
    if parts.is_empty() {
        return Ok(Vec::new());
    }
    let written = volume.io.write(start, assemble(volume, writes, &parts));
    match written {
        Ok(buffer) => volume.io.keep_buffer(buffer),
        Err(error) => {
            give_back(volume, start, &parts);
            return Err(error.into());
        }
    }
    volume.note_room();
    let (mut states, mut at) = (Vec::with_capacity(parts.len()), start);
    for (index, (part, late)) in parts.iter().zip(writes).enumerate() {
        match link(ctx, volume, part, at, late) {
            Ok(state) => states.push(state),
            Err(error) => {
                give_back(volume, DeviceBlock(at.0 + u64::from(part.count)), &parts[index + 1..]);
                return if states.is_empty() { Err(error) } else { Ok(states) };
            }
        }
        at = DeviceBlock(at.0 + u64::from(part.count));
    }
    Ok(states)
}

/// The first of `writes` that one run of one group can hold.
fn gather(volume: &Volume, writes: &[Late<'_>]) -> Result<Vec<Part>> {
    let (mut parts, mut total) = (Vec::<Part>::new(), 0);
    for late in writes {
        let Some(part) = part(volume, late)? else { break };
        total += part.count;
        let goal = volume.goal(part.cell.ino);
        let near = parts.first().is_none_or(|first| volume.goal(first.cell.ino) == goal);
        if !near || total > RUN_BLOCKS_MAX {
            break;
        }
        parts.push(part);
    }
    Ok(parts)
}

/// A write that begins a file whose blocks there are promised, and not there yet.
fn part(volume: &Volume, late: &Late<'_>) -> Result<Option<Part>> {
    let count = late.source.len().div_ceil(volume.io.block_bytes());
    if late.offset != 0 || !(1..=RUN_BLOCKS_MAX as usize).contains(&count) {
        return Ok(None);
    }
    let part = Part { cell: volume.cell(number(late.ino)?)?, count: count as u32 };
    let promised = part.cell.promised.lock().run(0) >= part.count;
    let core = part.cell.core.read();
    let fits = promised && is_hole(volume, &part, &core)?;
    drop(core);
    Ok(fits.then_some(part))
}

fn is_hole(volume: &Volume, part: &Part, core: &Core) -> Result<bool> {
    let has_tree = core.raw.mode() >> 12 == 8 && extents::is_tree(core);
    Ok(has_tree
        && match extents::map(volume, &part.cell, core, FileBlock(0))? {
            Mapping::Hole(blocks) => blocks >= part.count.into(),
            Mapping::Data(_) => false,
        })
}

/// Claims a run for `parts`, less those for which it is too short, in place of what they were
/// promised.
fn claim(volume: &Volume, goal: DeviceBlock, parts: &mut Vec<Part>) -> Result<DeviceBlock> {
    let want = parts.iter().map(|part| part.count).sum();
    let Claim { start, count } = volume.alloc.claim(goal, want)?;
    let mut used = 0;
    parts.retain(|part| {
        let fits = used + part.count <= count;
        used = if fits { used + part.count } else { count };
        fits
    });
    let used: u32 = parts.iter().map(|part| part.count).sum();
    if used < count {
        let rest = DeviceBlock(start.0 + u64::from(used));
        volume.alloc.unclaim(Claim { start: rest, count: count - used });
    }
    for part in parts.iter() {
        volume.alloc.unreserve(part.cell.promised.lock().claim(0, part.count));
    }
    Ok(start)
}

/// Gives the run from `start` on back, and promises the blocks of `parts` again.
fn give_back(volume: &Volume, start: DeviceBlock, parts: &[Part]) {
    let mut at = start;
    for part in parts {
        promised::renew(volume, &part.cell, 0, part.count);
        volume.alloc.unclaim(Claim { start: at, count: part.count });
        at = DeviceBlock(at.0 + u64::from(part.count));
    }
}

/// The bytes of the run: each file's, and zeros to the end of its last block.
fn assemble(volume: &Volume, writes: &mut [Late<'_>], parts: &[Part]) -> Buffer {
    let block_bytes = volume.io.block_bytes();
    let total: u32 = parts.iter().map(|part| part.count).sum();
    let mut data = volume.io.buffer(total as usize * block_bytes);
    let mut at = 0;
    for (part, late) in parts.iter().zip(writes) {
        let (len, room) = (late.source.len(), part.count as usize * block_bytes);
        late.source.get(0, &mut data[at..at + len]);
        data[at + len..at + room].fill(0);
        at += room;
    }
    data
}

/// Makes the blocks from `start` on, which hold the bytes, the file's, and stores size and times.
fn link(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    part: &Part,
    start: DeviceBlock,
    late: &Late<'_>,
) -> Result<Attr> {
    let mut core = part.cell.core.write();
    let ready = is_hole(volume, part, &core).and_then(|hole| match hole {
        true => Ok((volume.promise(TREE_BLOCKS)?, volume.start(ctx, map_credits(&core))?)),
        false => Err(Errno::EAGAIN.into()),
    });
    let back = |_: &_| give_back(volume, start, std::slice::from_ref(part));
    let (promise, handle) = ready.inspect_err(back)?;
    let claim = Claim { start, count: part.count };
    let linked =
        data::link_claim(volume, &part.cell, &mut core, (claim, Ok(handle)), FileBlock(0), false);
    let (handle, _) = linked?;
    let size = core.raw.size().max(late.source.len() as u64);
    core.raw.set_size(size);
    core.raw.set_time(Stamp::Modify, late.times[0]);
    core.raw.set_time(Stamp::Change, late.times[1]);
    core.landed = part.count.into();
    volume.store(&handle, &part.cell, &mut core, true)?;
    handle.complete();
    drop(promise);
    // Somebody may have promised them once more meanwhile.
    promised::release(volume, &part.cell, 0, part.count);
    Ok(volume.attr(&part.cell, &core))
}
