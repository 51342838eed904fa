//! Block maps of ext2 and ext3, for reading: twelve direct blocks in the inode, then a tree of
//! blocks of numbers, one, two and three levels deep.
//!
//! Files with such maps are read, and neither changed nor removed.

use crate::cache::Seal;
use crate::error::{Corrupt, Error, Result, Structure};
use crate::extents::Mapping;
use crate::format::extent::Extent;
use crate::format::{DeviceBlock, FileBlock, le32};
use crate::inode::{Cell, Core};
use crate::volume::Volume;

const DIRECT: u64 = 12;
const LEVELS: u32 = 3;
/// Bytes of a block number.
const NUMBER_BYTES: usize = 4;

fn corrupt(cell: &Cell, field: &'static str) -> Error {
    Corrupt::new(Structure::Inode, cell.ino.into(), field).into()
}

/// What lies at `target`, as [`crate::extents::map`].
///
/// # Errors
/// The device's, or a block number out of range.
pub fn map(volume: &Volume, cell: &Cell, core: &Core, target: FileBlock) -> Result<Mapping> {
    let at = u64::from(target.0);
    if at < DIRECT {
        let numbers = &core.raw.block()[..DIRECT as usize * NUMBER_BYTES];
        return run(volume, cell, numbers, at as usize, target);
    }
    let per_block = (volume.io.block_bytes() / NUMBER_BYTES) as u64;
    let mut rest = at - DIRECT;
    for level in 1..=LEVELS {
        let covered = per_block.pow(level);
        if rest < covered {
            let slot = (DIRECT as usize + level as usize - 1) * NUMBER_BYTES;
            let top = le32(core.raw.block(), slot);
            return descend(volume, cell, top, level, rest, target);
        }
        rest -= covered;
    }
    Ok(Mapping::Hole((1 << 32) - at))
}

/// Follows the tree below block `number`, `level` levels above data, to its data block `rest`.
fn descend(
    volume: &Volume,
    cell: &Cell,
    mut number: u32,
    mut level: u32,
    mut rest: u64,
    target: FileBlock,
) -> Result<Mapping> {
    let per_block = (volume.io.block_bytes() / NUMBER_BYTES) as u64;
    loop {
        if number == 0 {
            // Nothing below: a hole to the end of what this block would cover.
            return Ok(Mapping::Hole(per_block.pow(level) - rest));
        }
        let home = DeviceBlock(number.into());
        if home.0 >= volume.geometry.block_count {
            return Err(corrupt(cell, "i_block: indirect block"));
        }
        let block = volume.cache.get(&volume.io, home, Seal::None, |_| Ok(()))?;
        let below = per_block.pow(level - 1);
        let (index, within) = ((rest / below) as usize, rest % below);
        if level == 1 {
            return run(volume, cell, &block.read(), index, target);
        }
        number = le32(&block.read(), index * NUMBER_BYTES);
        (level, rest) = (level - 1, within);
    }
}

/// The run of adjacent blocks, or of holes, that begins at `index` of `numbers`.
fn run(
    volume: &Volume,
    cell: &Cell,
    numbers: &[u8],
    index: usize,
    target: FileBlock,
) -> Result<Mapping> {
    let number = |at: usize| le32(numbers, at * NUMBER_BYTES);
    let limit = numbers.len() / NUMBER_BYTES;
    let start = number(index);
    let step = u32::from(start != 0);
    let follows = |at: &usize| number(*at) == start.wrapping_add((at - index) as u32 * step);
    let count = (index..limit).take_while(follows).count();
    if start == 0 {
        return Ok(Mapping::Hole(count as u64));
    }
    if u64::from(start) + count as u64 > volume.geometry.block_count {
        return Err(corrupt(cell, "i_block: data block"));
    }
    let start = DeviceBlock(start.into());
    Ok(Mapping::Data(Extent { first: target, count: count as u32, start, unwritten: false }))
}
