//! Delayed allocation: which blocks of a file have been promised space, and the promises' way into
//! allocation.
//!
//! The VFS keeps written bytes as dirty pages. Before it does, a block is promised for every file
//! block that has none, so that the disk cannot be full when the pages are written back. Counted
//! blocks are in `Allocator::reserve`; which file blocks they are for is kept here.
//!
//! # Locking
//!
//! `cell → promised → ledger`.

use std::collections::BTreeMap;

use polylane_base::Errno;
use polylane_vfs::OpCtx;

use crate::blockmap;
use crate::error::{Error, Result};
use crate::extents::{self, Mapping};
use crate::format::FileBlock;
use crate::inline;
use crate::inode::{Cell, Core};
use crate::limits::{Booking, Ledger, Owner};
use crate::volume::Volume;

/// Ranges of file blocks: start to end. No two touch.
#[derive(Default, Debug)]
pub struct Promised {
    ranges: BTreeMap<u32, u32>,
    /// Blocks that were claimed for what was promised, and are not the file's yet.
    claimed: u64,
    /// Where limits are enforced: who is owed both.
    owner: Option<Owner>,
}

type Range = (u32, u32);

impl Promised {
    /// Whether nothing is promised.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// How many blocks from `at` on are promised without a gap.
    pub fn run(&self, at: u32) -> u32 {
        let around = self.ranges.range(..=at).next_back();
        around.map_or(0, |(_, end)| end.saturating_sub(at))
    }

    /// The first promised block behind `at`.
    pub fn next(&self, at: u32) -> Option<u32> {
        self.ranges.range(at..).next().map(|(start, _)| *start)
    }

    /// The parts of `start..end` that are not promised.
    fn gaps(&self, start: u32, end: u32) -> Vec<Range> {
        let (mut gaps, mut at) = (Vec::new(), start);
        while at < end {
            let run = self.run(at);
            if run > 0 {
                at = at.saturating_add(run);
                continue;
            }
            let upto = self.next(at).unwrap_or(end).min(end);
            gaps.push((at, upto));
            at = upto;
        }
        gaps
    }

    /// How many blocks are promised, those among them that were claimed.
    pub fn count(&self) -> u64 {
        let promised = self.ranges.iter().map(|(start, end)| u64::from(end - start));
        promised.sum::<u64>() + self.claimed
    }

    /// From now on it is owed to `owner`.
    pub fn owe_to(&mut self, owner: Owner, ledger: &mut Ledger) {
        if self.owner.as_ref().is_some_and(|former| former.ids() == owner.ids()) {
            return;
        }
        let count = self.count();
        ledger.add(owner.each(), (count, 0));
        if let Some(former) = self.owner.replace(owner) {
            ledger.remove(former.each(), (count, 0));
        }
    }

    /// Blocks are claimed for `start..end`; returns how many of them were promised. They are owed
    /// until the file has them ([`Promised::land`]) or not ([`renew`]).
    pub fn claim(&mut self, start: u32, end: u32) -> u64 {
        let count = self.take(start, end);
        if self.owner.is_some() {
            self.claimed += count;
        }
        count
    }

    /// Claimed blocks are the file's, and charged.
    pub fn land(&mut self, count: u64, ledger: &mut Ledger) {
        self.claimed = self.claimed.saturating_sub(count);
        if let Some(owner) = &self.owner {
            ledger.remove(owner.each(), (count, 0));
        }
    }

    /// Promises a range; what of it is new is owed.
    fn insert(&mut self, range: Range) {
        let added = self.put(range);
        if let Some(owner) = &self.owner {
            owner.ledger().add(owner.each(), (added, 0));
        }
    }

    /// Promises a range; returns how many blocks of it were not promised before.
    fn put(&mut self, (mut start, mut end): Range) -> u64 {
        let touching: Vec<Range> = self
            .ranges
            .range(..=end)
            .rev()
            .take_while(|(_, stop)| **stop >= start)
            .map(|(from, stop)| (*from, *stop))
            .collect();
        let mut had = 0;
        for (from, stop) in touching {
            self.ranges.remove(&from);
            (start, end) = (start.min(from), end.max(stop));
            had += u64::from(stop - from);
        }
        self.ranges.insert(start, end);
        u64::from(end - start) - had
    }

    /// Takes `start..end` out; returns how many blocks that were. They are owed no more.
    pub fn remove(&mut self, start: u32, end: u32) -> u64 {
        let count = self.take(start, end);
        if let Some(owner) = &self.owner {
            owner.ledger().remove(owner.each(), (count, 0));
        }
        count
    }

    fn take(&mut self, start: u32, end: u32) -> u64 {
        let overlapping: Vec<Range> = self
            .ranges
            .range(..end)
            .rev()
            .take_while(|(_, stop)| **stop > start)
            .map(|(from, stop)| (*from, *stop))
            .collect();
        let mut count = 0;
        for (from, stop) in overlapping {
            self.ranges.remove(&from);
            if from < start {
                self.ranges.insert(from, start);
            }
            if end < stop {
                self.ranges.insert(end, stop);
            }
            count += u64::from(stop.min(end) - from.max(start));
        }
        count
    }
}

/// Promises blocks for `offset..offset + len` where the file has none.
///
/// # Errors
/// `ENOSPC`, `EDQUOT`, `EFBIG`, the device's, or a corrupt tree.
pub fn reserve(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    cell: &Cell,
    (offset, len): (u64, u64),
) -> Result<()> {
    move_out(ctx, volume, cell)?;
    let gaps = unpromised(volume, cell, offset, len)?;
    if gaps.is_empty() {
        return Ok(());
    }
    if cell.is_mapped {
        return reserve_mapped(ctx, volume, cell, &gaps);
    }
    // A write-back of this file may hold its lock for long. Then every block counts as missing:
    // what turns out to be there is given back when it is written.
    if let Some(core) = cell.core.try_read() {
        return promise(ctx, volume, cell, holes(volume, cell, &core, &gaps)?);
    }
    match promise(ctx, volume, cell, gaps.clone()) {
        Err(Error::Errno(Errno::ENOSPC | Errno::EDQUOT)) => {
            let holes = holes(volume, cell, &cell.core.read(), &gaps)?;
            promise(ctx, volume, cell, holes)
        }
        result => result,
    }
}

/// The same for a file with a block map, where a single block may need others that name it: these
/// are made at once.
fn reserve_mapped(ctx: &OpCtx<'_>, volume: &Volume, cell: &Cell, gaps: &[Range]) -> Result<()> {
    let mut core = cell.core.write();
    let holes = holes(volume, cell, &core, gaps)?;
    promise(ctx, volume, cell, holes.clone())?;
    let prepared = prepare(ctx, volume, cell, &mut core, &holes);
    if prepared.is_err() {
        holes.iter().for_each(|(start, end)| release(volume, cell, *start, *end));
    }
    prepared
}

fn prepare(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    cell: &Cell,
    core: &mut Core,
    holes: &[Range],
) -> Result<()> {
    holes.iter().try_for_each(|hole| blockmap::prepare(ctx, volume, cell, core, *hole))
}

/// The same out of `left` promised blocks that are not for any file yet; returns how many it took.
///
/// # Errors
/// `ENOSPC`: they are too few; the others as above.
pub fn reserve_aside(
    ctx: &OpCtx<'_>,
    volume: &Volume,
    cell: &Cell,
    (offset, len): (u64, u64),
    left: u64,
) -> Result<u64> {
    move_out(ctx, volume, cell)?;
    let gaps = unpromised(volume, cell, offset, len)?;
    let missing = match cell.core.try_read() {
        Some(core) => holes(volume, cell, &core, &gaps)?,
        None => gaps,
    };
    let count = count(&missing);
    if count > left {
        return Err(Errno::ENOSPC.into());
    }
    if cell.is_mapped {
        prepare(ctx, volume, cell, &mut cell.core.write(), &missing)?;
    }
    let mut promised = cell.promised.lock();
    missing.into_iter().for_each(|range| promised.insert(range));
    Ok(count)
}

/// Contents of an inode move to a block before more is promised.
fn move_out(ctx: &OpCtx<'_>, volume: &Volume, cell: &Cell) -> Result<()> {
    match volume.geometry.inline_data && inline::is(&cell.core.read()) {
        true => inline::move_out(ctx, volume, cell, &mut cell.core.write()),
        false => Ok(()),
    }
}

/// The file blocks of `offset..offset + len` that are not promised.
fn unpromised(volume: &Volume, cell: &Cell, offset: u64, len: u64) -> Result<Vec<Range>> {
    let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
    if end > volume.max_file_bytes(cell) {
        return Err(Errno::EFBIG.into());
    }
    let block_bytes = volume.io.block_bytes() as u64;
    let blocks = ((offset / block_bytes) as u32, end.div_ceil(block_bytes) as u32);
    Ok(cell.promised.lock().gaps(blocks.0, blocks.1))
}

fn count(ranges: &[Range]) -> u64 {
    ranges.iter().map(|(start, end)| u64::from(end - start)).sum()
}

/// The parts of `ranges` that have no blocks.
fn holes(volume: &Volume, cell: &Cell, core: &Core, ranges: &[Range]) -> Result<Vec<Range>> {
    let mut holes = Vec::new();
    for (start, end) in ranges {
        let mut at = *start;
        while at < *end {
            let left = u64::from(end - at);
            at += match extents::map(volume, cell, core, FileBlock(at))? {
                Mapping::Data(extent) => extent.count.min(left as u32),
                Mapping::Hole(blocks) => {
                    let count = blocks.min(left) as u32;
                    holes.push((at, at + count));
                    count
                }
            };
        }
    }
    Ok(holes)
}

fn promise(ctx: &OpCtx<'_>, volume: &Volume, cell: &Cell, ranges: Vec<Range>) -> Result<()> {
    let count = count(&ranges);
    if count == 0 {
        return Ok(());
    }
    let from = volume.blocks_for(ctx);
    let owner = cell.promised.lock().owner.clone();
    let mut booked = book(ctx, volume, owner.as_ref(), count)?;
    volume.with_space(|| volume.alloc.reserve(count, from))?;
    let mut promised = cell.promised.lock();
    // One who was given the file meanwhile has to be allowed that, too.
    let mut asked = owner;
    while asked.as_ref().map(Owner::ids) != promised.owner.as_ref().map(Owner::ids) {
        asked = promised.owner.clone();
        drop(promised);
        drop(std::mem::take(&mut booked));
        booked = book(ctx, volume, asked.as_ref(), count)
            .inspect_err(|_| volume.alloc.unreserve(count))?;
        promised = cell.promised.lock();
    }
    let added: u64 = ranges.into_iter().map(|range| promised.put(range)).sum();
    if let Some(owner) = &promised.owner {
        let mut ledger = owner.ledger();
        ledger.add(owner.each(), (added, 0));
        booked.settle(&mut ledger);
    }
    Ok(())
}

fn book(ctx: &OpCtx<'_>, volume: &Volume, owner: Option<&Owner>, count: u64) -> Result<Booking> {
    owner.map_or(Ok(Booking::default()), |owner| volume.book(ctx, owner.each(), (count, 0)))
}

/// Promises `start..end` again: blocks that were claimed for it, and are given back next.
pub fn renew(volume: &Volume, cell: &Cell, start: u32, end: u32) {
    let mut promised = cell.promised.lock();
    let claimed = u64::from(end - start);
    let added = promised.put((start, end));
    promised.claimed = promised.claimed.saturating_sub(claimed);
    if let Some(owner) = &promised.owner {
        // What was promised once more meanwhile is owed twice.
        owner.ledger().remove(owner.each(), (claimed - added, 0));
    }
    volume.alloc.renew(added);
}

/// Ends the promises for `start..end`: they were kept, or are not needed.
pub fn release(volume: &Volume, cell: &Cell, start: u32, end: u32) {
    let mut promised = cell.promised.lock();
    if !promised.is_empty() {
        volume.alloc.unreserve(promised.remove(start, end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_base::rng::Rng;

    #[test]
    fn ranges_agree_with_single_blocks() {
        const BLOCKS: u64 = 200;
        let mut rng = Rng::new(5);
        let (mut promised, mut model) = (Promised::default(), [false; BLOCKS as usize]);
        for _ in 0..if cfg!(miri) { 50 } else { 5000 } {
            let start = rng.below(BLOCKS - 1);
            let end = start + 1 + rng.below((BLOCKS - start).min(40));
            let end = end.min(BLOCKS);
            let part = &mut model[start as usize..end as usize];
            let (start, end) = (start as u32, end as u32);
            if rng.percent(50) {
                let missing = part.iter().filter(|block| !**block).count() as u64;
                let gaps = promised.gaps(start, end);
                let counted: u64 = gaps.iter().map(|(from, to)| u64::from(to - from)).sum();
                assert_eq!(counted, missing);
                gaps.into_iter().for_each(|gap| promised.insert(gap));
                part.fill(true);
            } else {
                let there = part.iter().filter(|block| **block).count() as u64;
                assert_eq!(promised.remove(start, end), there);
                part.fill(false);
            }
            let at = rng.below(BLOCKS) as usize;
            let run = model[at..].iter().take_while(|block| **block).count();
            assert_eq!(promised.run(at as u32) as usize, run);
        }
        let ends: Vec<Range> = promised.ranges.iter().map(|(from, to)| (*from, *to)).collect();
        assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ends:?}");
    }
}
