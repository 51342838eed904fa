//! Block maps of ext2 and ext3: twelve direct blocks in the inode, then a tree of blocks of
//! numbers, one, two and three levels deep.
//!
//! ```text
//! i_block   0 … 11    data
//!           12        block of numbers of data
//!           13        block of numbers of such blocks
//!           14        and once more
//! ```
//! A number is 32 bits, 0 for a hole. Nothing can be allocated without being written, and a map
//! ends where its third tree does. Changing and removing go leaf by leaf, each with one handle; a
//! block of numbers that names nothing any more is freed with the last number that it loses.

use polylane_base::sync::Arc;
use polylane_base::{Errno, record};
use zerocopy::little_endian::U32;

use crate::alloc::Claim;
use crate::cache::{MetaBlock, Seal};
use crate::error::{Corrupt, Error, Result, Structure};
use crate::extents::{GROUPS_PER_REMOVAL, Mapping, free};
use crate::format::extent::Extent;
use crate::format::{DeviceBlock, FileBlock, GroupIndex};
use crate::inode::{Cell, Core};
use crate::journal::Handle;
use crate::volume::Volume;
use polylane_vfs::OpCtx;

const DIRECT: u64 = 12;
const LEVELS: u32 = 3;
/// Bytes of a block number.
const NUMBER_BYTES: usize = size_of::<U32>();

/// New blocks of numbers that one insert takes at most: its blocks lie below two neighbouring
/// leaves, in the worst case the last one of the second tree and the first one of the third.
const NEW_MAX: usize = 6;
/// Metadata blocks that one change touches at most: new ones with bitmap and descriptor, and the
/// way to them.
pub const CREDITS: usize = 3 * NEW_MAX + LEVELS as usize + 1;

/// Leaves that one removal looks for, give or take: more handles are better than one long one.
const STEPS_PER_REMOVAL: usize = 1024;

fn corrupt(cell: &Cell, field: &'static str) -> Error {
    Corrupt::new(Structure::Inode, cell.ino.into(), field).into()
}

fn numbers_per_block(block_bytes: usize) -> u64 {
    (block_bytes / NUMBER_BYTES) as u64
}

/// Blocks that a map can name.
fn blocks_max(block_bytes: usize) -> u64 {
    let per_block = numbers_per_block(block_bytes);
    DIRECT + (1..=LEVELS).map(|level| per_block.pow(level)).sum::<u64>()
}

/// Bytes of the largest file that a map can hold, as Linux has it (`ext4_max_bitmap_size`): a dense
/// one's `i_blocks`, which counts the map's own blocks, must fit. `huge_file`: it has 48 bits, and
/// counts blocks when need be.
pub fn bytes_max(block_bytes: usize, huge_file: bool) -> u64 {
    let per_block = numbers_per_block(block_bytes);
    let countable = match huge_file {
        true => (1 << 48) - 1,
        false => u64::from(u32::MAX) / (block_bytes as u64 / 512),
    };
    let own = 1 + (1 + per_block) + (1 + per_block + per_block * per_block);
    let all = blocks_max(block_bytes);
    if all + own <= countable {
        return all * block_bytes as u64;
    }
    let behind = countable - DIRECT - per_block;
    let own = match behind < per_block * per_block {
        true => 1 + 1 + behind.div_ceil(per_block),
        false => {
            let last = behind - per_block * per_block;
            let inner = last.div_ceil(per_block) + last.div_ceil(per_block * per_block);
            1 + (1 + per_block) + 1 + inner
        }
    };
    (countable - own) * block_bytes as u64
}

/// Whether a map can name these blocks. They are the caller's to give back when not.
pub fn can_name(claim: &Claim) -> bool {
    claim.start.0 + u64::from(claim.count) <= 1 << 32
}

/// The way to a file block's number: its place in the inode, then in each block of numbers.
#[derive(Debug, PartialEq, Eq)]
struct Route {
    places: Vec<usize>,
    /// Numbers from the last place on to the end of the array that it is in.
    rest: usize,
}

impl Route {
    /// `None` behind the end of what a map can name.
    fn new(at: u64, block_bytes: usize) -> Option<Route> {
        if at < DIRECT {
            return Some(Route { places: vec![at as usize], rest: (DIRECT - at) as usize });
        }
        let per_block = numbers_per_block(block_bytes);
        let mut within = at - DIRECT;
        for level in 1..=LEVELS {
            if within < per_block.pow(level) {
                let mut places = vec![(DIRECT as usize) + level as usize - 1];
                let below = (0..level).rev().map(|below| per_block.pow(below));
                places.extend(below.map(|covered| (within / covered % per_block) as usize));
                let rest = (per_block - within % per_block) as usize;
                return Some(Route { places, rest });
            }
            within -= per_block.pow(level);
        }
        None
    }

    /// The place in the array of data blocks' numbers.
    fn leaf_place(&self) -> usize {
        self.places[self.places.len() - 1]
    }

    /// Blocks from the route's own on that nothing is known of when only `found` blocks of numbers
    /// of it are there.
    fn hole(&self, found: usize, block_bytes: usize) -> u64 {
        let per_block = numbers_per_block(block_bytes);
        let missing = &self.places[found + 1..];
        let passed = missing.iter().fold(0, |passed, place| passed * per_block + *place as u64);
        per_block.pow(missing.len() as u32) - passed
    }
}

/// The numbers that `bytes` hold, whole ones.
fn numbers_of(bytes: &[u8]) -> &[U32] {
    record::slice(bytes, 0, bytes.len() / NUMBER_BYTES)
}

/// The numbers in the inode, or in a block.
fn number_at(core: &Core, array: Option<&Arc<MetaBlock>>, place: usize) -> u32 {
    match array {
        Some(block) => numbers_of(&block.read())[place].get(),
        None => numbers_of(core.raw.block())[place].get(),
    }
}

/// Changes `count` numbers from `place` on: to `first` and those that follow it, or all to 0.
fn put_numbers(
    handle: &Handle<'_>,
    core: &mut Core,
    array: Option<&Arc<MetaBlock>>,
    (place, count): (usize, usize),
    first: u32,
) {
    let step = u32::from(first != 0);
    let put = |bytes: &mut [u8]| {
        let numbers = record::slice_mut::<U32>(bytes, place * NUMBER_BYTES, count);
        for (nth, number) in numbers.iter_mut().enumerate() {
            number.set(first + nth as u32 * step);
        }
    };
    match array {
        Some(block) => put(&mut handle.modify(block)),
        None => put(core.raw.block_mut()),
    }
}

/// The blocks of numbers on a route, from the top, as far as there are any.
fn walk(volume: &Volume, cell: &Cell, core: &Core, route: &Route) -> Result<Vec<Arc<MetaBlock>>> {
    let mut blocks: Vec<Arc<MetaBlock>> = Vec::with_capacity(LEVELS as usize);
    for place in &route.places[..route.places.len() - 1] {
        let number = number_at(core, blocks.last(), *place);
        if number == 0 {
            break;
        }
        let home = DeviceBlock(number.into());
        if home.0 >= volume.geometry.block_count {
            return Err(corrupt(cell, "i_block: indirect block"));
        }
        blocks.push(volume.cache.get(&volume.io, home, Seal::None, |_| Ok(()))?);
    }
    Ok(blocks)
}

/// What lies at `target`, as [`crate::extents::map`].
///
/// # Errors
/// The device's, or a block number out of range.
pub fn map(volume: &Volume, cell: &Cell, core: &Core, target: FileBlock) -> Result<Mapping> {
    let block_bytes = volume.io.block_bytes();
    let Some(route) = Route::new(target.0.into(), block_bytes) else {
        return Ok(Mapping::Hole((1 << 32) - u64::from(target.0)));
    };
    let blocks = walk(volume, cell, core, &route)?;
    if blocks.len() + 1 < route.places.len() {
        return Ok(Mapping::Hole(route.hole(blocks.len(), block_bytes)));
    }
    match blocks.last() {
        Some(block) => run(volume, cell, &block.read(), &route, target),
        None => run(volume, cell, core.raw.block(), &route, target),
    }
}

/// The run of adjacent blocks, or of holes, that begins at the route's place of `numbers`.
fn run(
    volume: &Volume,
    cell: &Cell,
    numbers: &[u8],
    route: &Route,
    target: FileBlock,
) -> Result<Mapping> {
    let numbers = &numbers_of(numbers)[route.leaf_place()..];
    let number = |nth: usize| numbers[nth].get();
    let start = number(0);
    let step = u32::from(start != 0);
    let follows = |nth: &usize| number(*nth) == start.wrapping_add(*nth as u32 * step);
    let count = (0..route.rest).take_while(follows).count();
    if start == 0 {
        return Ok(Mapping::Hole(count as u64));
    }
    if u64::from(start) + count as u64 > volume.geometry.block_count {
        return Err(corrupt(cell, "i_block: data block"));
    }
    let start = DeviceBlock(start.into());
    Ok(Mapping::Data(Extent { first: target, count: count as u32, start, unwritten: false }))
}

/// Blocks of numbers that `count` blocks from `first` on lack, no more of them than one request
/// writes: they lie below two neighbouring leaves at most.
///
/// # Errors
/// The device's, or a block number out of range.
pub fn missing(
    volume: &Volume,
    cell: &Cell,
    core: &Core,
    (first, count): (FileBlock, u32),
) -> Result<u64> {
    let (first, mut missing) = (u64::from(first.0), 0);
    let mut leaves = vec![first];
    while let Some(at) = leaves.pop() {
        let Some(route) = Route::new(at, volume.io.block_bytes()) else { break };
        let found = walk(volume, cell, core, &route)?.len();
        missing += (route.places.len() - 1 - found) as u64;
        let next = at + route.rest as u64;
        leaves.extend((next < first + u64::from(count)).then_some(next));
    }
    Ok(missing)
}

/// Makes blocks the file's where it has a hole, as [`crate::extents::insert`]. They were promised
/// with as many more as [`missing`] says.
///
/// # Errors
/// `EFBIG` past the end of a map, the device's, or a number out of range.
pub fn insert(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    new: Extent,
) -> Result<()> {
    let block_bytes = volume.io.block_bytes();
    let mut done = 0;
    while done < new.count {
        let at = u64::from(new.first.0) + u64::from(done);
        let route = Route::new(at, block_bytes).ok_or(Errno::EFBIG)?;
        let count = route.rest.min((new.count - done) as usize);
        let leaf = reach(volume, handle, cell, core, &route)?;
        let place = route.leaf_place();
        if (place..place + count).any(|place| number_at(core, leaf.as_ref(), place) != 0) {
            return Err(corrupt(cell, "i_block: a block where a hole was"));
        }
        let first = u32::try_from(new.start.0 + u64::from(done)).map_err(|_| Errno::EFBIG)?;
        put_numbers(handle, core, leaf.as_ref(), (place, count), first);
        done += count as u32;
    }
    Ok(())
}

/// Makes the blocks of numbers that blocks of `start..end` will need, so that they can be written
/// when nothing else is free.
///
/// # Errors
/// `ENOSPC`, `EFBIG` past the end of a map, the device's, or a number out of range.
pub fn prepare(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    (start, end): (u32, u32),
) -> Result<()> {
    let mut at = start;
    while at < end {
        let route = Route::new(at.into(), volume.io.block_bytes()).ok_or(Errno::EFBIG)?;
        at = at.saturating_add(route.rest as u32);
        let missing = route.places.len() - 1 - walk(volume, cell, core, &route)?.len();
        if missing == 0 {
            continue;
        }
        let promise = volume.promise(missing as u64)?;
        let handle = volume.start(ctx, CREDITS)?;
        reach(volume, &handle, cell, core, &route)?;
        volume.store(&handle, cell, core, false)?;
        handle.complete();
        drop(promise);
    }
    Ok(())
}

/// The array that a route ends in, with all blocks of numbers on the way to it made; `None` for the
/// inode's own.
fn reach(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    route: &Route,
) -> Result<Option<Arc<MetaBlock>>> {
    let mut blocks = walk(volume, cell, core, route)?;
    while blocks.len() + 1 < route.places.len() {
        let home = volume.allocate(handle, core, volume.goal(cell.ino))?;
        let block = volume.cache.create(&volume.io, home, Seal::None);
        drop(handle.modify(&block));
        let place = route.places[blocks.len()];
        let number = u32::try_from(home.0).map_err(|_| Errno::EFBIG)?;
        put_numbers(handle, core, blocks.last(), (place, 1), number);
        core.add_blocks(1, volume.geometry.block_bytes);
        blocks.push(block);
    }
    Ok(blocks.pop())
}

/// Removes blocks of `from..to` and frees them, as [`crate::extents::remove`]: those of one leaf,
/// and of a few groups.
///
/// # Errors
/// The device's, a number out of range, or a block that is free already.
pub fn remove(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    from: FileBlock,
    to: u64,
) -> Result<Option<FileBlock>> {
    let block_bytes = volume.io.block_bytes();
    let end = to.min(blocks_max(block_bytes)).min(u32::MAX.into());
    let go_on = |at: u64| (at < end).then_some(FileBlock(at as u32));
    let mut at = u64::from(from.0);
    for _ in 0..STEPS_PER_REMOVAL {
        let Some(route) = Route::new(at, block_bytes).filter(|_| at < end) else {
            return Ok(None);
        };
        let blocks = walk(volume, cell, core, &route)?;
        let mut is_changed = false;
        if blocks.len() + 1 < route.places.len() {
            at += route.hole(blocks.len(), block_bytes);
        } else {
            let count = route.rest.min((end - at) as usize);
            let array = (blocks.last(), route.leaf_place());
            let (cleared, freed) = clear(volume, handle, cell, core, array, count)?;
            at += cleared as u64;
            is_changed = freed;
        }
        is_changed |= prune(volume, handle, core, blocks, &route)?;
        if is_changed {
            break;
        }
    }
    Ok(go_on(at))
}

/// Clears up to `count` numbers from a place of an array on and frees their blocks, of a few groups
/// at a time. Returns how many it went over, and whether it freed any.
fn clear(
    volume: &Volume,
    handle: &Handle<'_>,
    cell: &Cell,
    core: &mut Core,
    (array, place): (Option<&Arc<MetaBlock>>, usize),
    count: usize,
) -> Result<(usize, bool)> {
    let (mut runs, mut groups) = (Vec::<Claim>::new(), Vec::<GroupIndex>::new());
    let mut cleared = 0;
    while cleared < count {
        let number = u64::from(number_at(core, array, place + cleared));
        cleared += 1;
        let start = DeviceBlock(number);
        match runs.last_mut() {
            _ if number == 0 => continue,
            Some(run) if run.start.0 + u64::from(run.count) == number => run.count += 1,
            _ => runs.push(Claim { start, count: 1 }),
        }
        if number >= volume.geometry.block_count {
            return Err(corrupt(cell, "i_block: data block"));
        }
        let (group, _) = volume.alloc.groups_of(start, 1);
        if !groups.contains(&group) {
            groups.push(group);
        }
        if groups.len() == GROUPS_PER_REMOVAL {
            break;
        }
    }
    if !runs.is_empty() {
        put_numbers(handle, core, array, (place, cleared), 0);
    }
    for run in &runs {
        free(volume, handle, core, run.start, run.count)?;
    }
    Ok((cleared, !runs.is_empty()))
}

/// Frees the blocks of numbers of a route that name nothing any more, from the last one up. Returns
/// whether there were any.
fn prune(
    volume: &Volume,
    handle: &Handle<'_>,
    core: &mut Core,
    mut blocks: Vec<Arc<MetaBlock>>,
    route: &Route,
) -> Result<bool> {
    let mut is_changed = false;
    while let Some(block) = blocks.pop() {
        if block.read().iter().any(|byte| *byte != 0) {
            break;
        }
        put_numbers(handle, core, blocks.last(), (route.places[blocks.len()], 1), 0);
        volume.alloc.free_metadata(handle, block.home, 1)?;
        core.add_blocks(-1, volume.geometry.block_bytes);
        is_changed = true;
    }
    Ok(is_changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_cover_each_block_once() {
        for block_bytes in [1024, 2048, 4096] {
            let per_block = numbers_per_block(block_bytes);
            let ends = [0, 11, 12, 13, 11 + per_block, 12 + per_block, 13 + per_block];
            let second = 12 + per_block + per_block * per_block;
            for at in ends.into_iter().chain([second - 1, second, second + 5 * per_block]) {
                let route = Route::new(at, block_bytes).expect("below the end");
                let next = Route::new(at + 1, block_bytes).expect("below the end");
                assert!(route.rest > 0 && route != next);
                if route.rest > 1 {
                    assert_eq!(next.leaf_place(), route.leaf_place() + 1, "{at}");
                    assert_eq!(next.rest + 1, route.rest, "{at}");
                }
                // A hole ends where the part of the map that is missing does.
                for found in 0..route.places.len() {
                    let behind = Route::new(at + route.hole(found, block_bytes), block_bytes);
                    let behind = behind.map(|behind| behind.places);
                    let same = behind.as_ref().and_then(|places| places.get(..=found));
                    assert_ne!(same, Some(&route.places[..=found]), "{at}");
                }
            }
            let end = blocks_max(block_bytes);
            assert!(Route::new(end - 1, block_bytes).is_some());
            assert_eq!(Route::new(end, block_bytes), None);
        }
    }

    /// What Linux 6.18 says for the same images (`ext4_max_bitmap_size`).
    #[test]
    fn the_largest_files_are_linuxs() {
        assert_eq!(bytes_max(1024, true), 17_247_252_480);
        assert_eq!(bytes_max(1024, false), 17_247_252_480);
        assert_eq!(bytes_max(2048, false), 275_415_851_008);
        assert_eq!(bytes_max(4096, true), 4_402_345_721_856);
        assert_eq!(bytes_max(4096, false), 2_196_873_666_560);
    }
}
