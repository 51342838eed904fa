//! Which sectors of which blocks are there, dirty, and on their way to the medium.
//!
//! # Words
//!
//! *Present*: the sector's newest content is here. *Dirty*: the medium does not have it. *Writing*:
//! it is on its way there, copied out. *Direct*: a change that goes to the medium itself. *Fill*: a
//! read of the medium whose result is to be kept.
//!
//! # Invariants
//!
//! - Dirty and writing sectors are present.
//! - No sector is on its way to the medium twice by our own doing: a block is not written while it
//!   is being written or while a direct change touches it; a direct change waits for blocks that
//!   are being written.
//! - A fill keeps nothing of a range that a write, or any part of a direct change, met on its way.
//! - Every change gets a number; a flush waits for changes with smaller numbers than its own.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use polylane_sys::buffer::Buffer;
use rustc_hash::FxHashMap;

use super::queues::{Look, Queues};
use crate::cache::bell::ring_all;
use crate::device::SECTOR_BYTES;

/// Bytes in a block, the unit of keeping.
pub(super) const BLOCK_BYTES: usize = 4096;
/// Sectors in a block; a block's masks are bytes.
pub(super) const BLOCK_SECTORS: u64 = (BLOCK_BYTES / SECTOR_BYTES) as u64;
/// Most blocks written at once.
pub(super) const BATCH_BLOCKS: usize = 64;

const _: () = assert!(BLOCK_SECTORS == u8::BITS as u64);

#[derive(Default)]
struct Frame {
    block: u64,
    data: Option<Buffer>,
    present: u8,
    dirty: u8,
    writing: u8,
    /// Written, and not yet flushed.
    unflushed: u8,
    /// Number of its oldest dirty change.
    dirty_since: u64,
    used: bool,
    /// In the list of dirty frames, dirty or not.
    listed: bool,
}

/// A direct change under way.
struct Direct {
    id: u64,
    range: Range<u64>,
    /// Another one touched its range meanwhile: which of them the medium has is not known.
    contested: bool,
}

/// A read whose result is to be kept.
struct Fill {
    id: u64,
    range: Range<u64>,
    spoilt: bool,
}

/// Blocks on their way to the medium: one contiguous run.
pub(super) struct Batch {
    pub(super) sector: u64,
    pub(super) data: Buffer,
    /// Frame, its sectors, and since when they were dirty.
    parts: Vec<(u32, u8, u64)>,
    id: u64,
}

/// Gives the new content of sectors: fills a slice with the bytes from a sector on.
pub(super) type Source<'a> = dyn FnMut(u64, &mut [u8]) + 'a;

/// Everything about one cache.
pub(super) struct State {
    frames: Vec<Frame>,
    frames_max: usize,
    index: FxHashMap<u64, u32>,
    queues: Queues,
    /// Frames in the order in which they became dirty; some are not any more.
    dirty: VecDeque<u32>,
    dirty_count: usize,
    unflushed: Vec<u64>,
    directs: Vec<Direct>,
    fills: Vec<Fill>,
    /// Batches under way and the number of the oldest change in each.
    batches: Vec<(u64, u64)>,
    /// Number of the last change, direct change, fill or batch.
    last: u64,
    hits: u64,
    misses: u64,
    /// Bells of roads that wait for somebody's part.
    pub(super) waiting: Vec<Arc<OwnedFd>>,
    pub(super) closing: bool,
    /// A flush failed: nothing is taken in any more.
    pub(super) stopped: bool,
}

/// The part of `range` that lies in `block`, as a mask.
fn mask(range: &Range<u64>, block: u64) -> u8 {
    let base = block * BLOCK_SECTORS;
    let first = range.start.saturating_sub(base).min(BLOCK_SECTORS);
    let end = range.end.saturating_sub(base).min(BLOCK_SECTORS);
    let ones = |count: u64| ((1u16 << count) - 1) as u8;
    ones(end) & !ones(first)
}

fn blocks(range: &Range<u64>) -> Range<u64> {
    range.start / BLOCK_SECTORS..range.end.div_ceil(BLOCK_SECTORS)
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Bytes of a block that a mask of adjacent sectors stands for.
fn bytes_of(mask: u8) -> Range<usize> {
    let first = mask.trailing_zeros() as usize;
    let end = 8 - mask.leading_zeros() as usize;
    first * SECTOR_BYTES..end * SECTOR_BYTES
}

impl State {
    pub(super) fn new(bytes: u64) -> State {
        let frames_max = (bytes / BLOCK_BYTES as u64).min(u64::from(u32::MAX)) as usize;
        State {
            frames: Vec::new(),
            frames_max,
            index: FxHashMap::default(),
            queues: Queues::new(frames_max),
            dirty: VecDeque::new(),
            dirty_count: 0,
            unflushed: Vec::new(),
            directs: Vec::new(),
            fills: Vec::new(),
            batches: Vec::new(),
            last: 0,
            hits: 0,
            misses: 0,
            waiting: Vec::new(),
            closing: false,
            stopped: false,
        }
    }

    pub(super) fn hits_and_misses(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }

    /// Nothing here that the medium does not have.
    pub(super) fn is_clean(&self) -> bool {
        self.dirty_count == 0 && self.batches.is_empty()
    }

    /// The first sectors of `range` that are here and that the medium does not have.
    pub(super) fn first_unwritten(&self, range: &Range<u64>) -> Option<Range<u64>> {
        if self.is_clean() || range.is_empty() {
            return None;
        }
        let unwritten = |block: u64| {
            let frame = &self.frames[*self.index.get(&block)? as usize];
            let first = runs((frame.dirty | frame.writing) & mask(range, block)).next()?;
            let start = block * BLOCK_SECTORS + u64::from(first.trailing_zeros());
            Some(start..start + u64::from(first.count_ones()))
        };
        let mut wanted = blocks(range);
        match wanted.end - wanted.start > self.index.len() as u64 {
            true => {
                let here = self.index.keys().copied().filter(|block| wanted.contains(block));
                here.filter_map(unwritten).min_by_key(|sectors| sectors.start)
            }
            false => wanted.find_map(unwritten),
        }
    }

    /// Enough is dirty that somebody should write.
    pub(super) fn wants_sweep(&self) -> bool {
        self.dirty_count > self.frames_max / 8
    }

    /// Little enough is dirty that nobody needs to write.
    pub(super) fn is_swept(&self) -> bool {
        self.dirty_count <= self.frames_max / 16
    }

    /// A number for a flush: it waits for all changes so far.
    pub(super) fn now(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn frame(&mut self, block: u64) -> Option<&mut Frame> {
        let index = *self.index.get(&block)?;
        self.frames.get_mut(index as usize)
    }

    /// Copies what is present of `range` to `out`, sector by sector at its place, and returns the
    /// runs of sectors that are missing.
    pub(super) fn read(
        &mut self,
        range: &Range<u64>,
        out: &mut impl FnMut(u64, &[u8]),
    ) -> Vec<Range<u64>> {
        let mut missing: Vec<Range<u64>> = Vec::new();
        for block in blocks(range) {
            let wanted = mask(range, block);
            let base = block * BLOCK_SECTORS;
            let frame = self.index.get(&block).map(|index| &mut self.frames[*index as usize]);
            let present = frame.as_ref().map_or(0, |frame| frame.present & wanted);
            if let Some(frame) = frame.filter(|_| present != 0) {
                frame.used = true;
                let data = frame.data.as_deref().unwrap_or(&[]);
                for run in runs(present) {
                    out(base + u64::from(run.trailing_zeros()), &data[bytes_of(run)]);
                }
            }
            self.hits += u64::from(present.count_ones());
            self.misses += u64::from((wanted & !present).count_ones());
            for run in runs(wanted & !present) {
                let first = base + u64::from(run.trailing_zeros());
                let end = first + u64::from(run.count_ones());
                match missing.last_mut() {
                    Some(last) if last.end == first => last.end = end,
                    _ => missing.push(first..end),
                }
            }
        }
        missing
    }

    /// The frame of a block, a new one if need be. `None`: nothing can go.
    fn take_frame(&mut self, block: u64, cold: bool) -> Option<u32> {
        if let Some(index) = self.index.get(&block) {
            return Some(*index);
        }
        let index = match self.frames.len() < self.frames_max {
            true => {
                self.frames.push(Frame::default());
                (self.frames.len() - 1) as u32
            }
            false => self.evict()?,
        };
        let data = self.frames[index as usize].data.take();
        let data = Some(data.unwrap_or_else(|| Buffer::zeroed(BLOCK_BYTES)));
        let listed = self.frames[index as usize].listed;
        self.frames[index as usize] = Frame { block, data, listed, ..Frame::default() };
        self.index.insert(block, index);
        self.queues.insert(index, block, cold);
        Some(index)
    }

    fn evict(&mut self) -> Option<u32> {
        let frames = &mut self.frames;
        let victim = self.queues.evict(|index| {
            let frame = &mut frames[index as usize];
            match (frame.dirty | frame.writing, std::mem::take(&mut frame.used)) {
                (0, true) if frame.present != 0 => Look::Used,
                (0, _) => Look::Idle(frame.block),
                _ => Look::Pinned,
            }
        })?;
        self.index.remove(&self.frames[victim as usize].block);
        Some(victim)
    }

    /// Takes a write in, its bytes by `from`, which fills a slice with those from a sector on.
    /// False: no room, nothing has changed that matters.
    pub(super) fn write(
        &mut self,
        range: &Range<u64>,
        cold: bool,
        mut from: impl FnMut(u64, &mut [u8]),
    ) -> bool {
        let count = (range.end - range.start).div_ceil(BLOCK_SECTORS) as usize + 1;
        if self.dirty_count + count > self.frames_max / 2 {
            return false;
        }
        for block in blocks(range) {
            if self.take_frame(block, cold).is_none() {
                return false;
            }
        }
        // The frames taken first might have made room for the last; they may not.
        if blocks(range).any(|block| !self.index.contains_key(&block)) {
            return false;
        }
        let number = self.now();
        for block in blocks(range) {
            let wanted = mask(range, block);
            let Some(&index) = self.index.get(&block) else { continue };
            let frame = &mut self.frames[index as usize];
            let bytes = bytes_of(wanted);
            let sector = block * BLOCK_SECTORS + (bytes.start / SECTOR_BYTES) as u64;
            if let Some(data) = &mut frame.data {
                from(sector, &mut data[bytes]);
            }
            frame.used |= frame.present & wanted != 0;
            frame.present |= wanted;
            self.soil(index, wanted, number);
        }
        self.spoil_fills(range);
        true
    }

    /// Makes sectors of a frame dirty by the change `number`.
    fn soil(&mut self, index: u32, sectors: u8, number: u64) {
        let frame = &mut self.frames[index as usize];
        if frame.dirty == 0 {
            frame.dirty_since = number;
            self.dirty_count += 1;
        }
        frame.dirty |= sectors;
        if !std::mem::replace(&mut frame.listed, true) {
            self.dirty.push_back(index);
        }
    }

    fn spoil_fills(&mut self, range: &Range<u64>) {
        let met = self.fills.iter_mut().filter(|fill| overlap(&fill.range, range));
        met.for_each(|fill| fill.spoilt = true);
    }

    /// Begins a read of the medium.
    pub(super) fn begin_fill(&mut self, range: Range<u64>) -> u64 {
        let id = self.now();
        let spoilt = self.directs.iter().any(|direct| overlap(&direct.range, &range));
        self.fills.push(Fill { id, range, spoilt });
        id
    }

    /// Ends it; keeps what was read, if nothing came in between. `from` as in [`State::write`].
    pub(super) fn end_fill(&mut self, id: u64, keep: bool, mut from: impl FnMut(u64, &mut [u8])) {
        let Some(at) = self.fills.iter().position(|fill| fill.id == id) else { return };
        let fill = self.fills.swap_remove(at);
        if !keep || fill.spoilt {
            return;
        }
        for block in blocks(&fill.range) {
            let Some(index) = self.take_frame(block, false) else { return };
            let frame = &mut self.frames[index as usize];
            let wanted = mask(&fill.range, block) & !frame.present;
            for run in runs(wanted) {
                let bytes = bytes_of(run);
                let sector = block * BLOCK_SECTORS + (bytes.start / SECTOR_BYTES) as u64;
                if let Some(data) = &mut frame.data {
                    from(sector, &mut data[bytes]);
                }
            }
            frame.present |= wanted;
        }
    }

    /// Begins a change that goes to the medium itself. `None`: blocks of it are being written; try
    /// again when the bell rings.
    pub(super) fn begin_direct(&mut self, range: Range<u64>) -> Option<u64> {
        for block in blocks(&range) {
            if self.frame(block).is_some_and(|frame| frame.writing != 0) {
                return None;
            }
        }
        let id = self.now();
        let mut contested = false;
        for other in self.directs.iter_mut().filter(|other| overlap(&other.range, &range)) {
            other.contested = true;
            contested = true;
        }
        self.spoil_fills(&range);
        self.directs.push(Direct { id, range, contested });
        Some(id)
    }

    /// Ends it. After a success the medium is newer than what is here; `from`, if there is one,
    /// gives the new content of sectors that are kept. After a failure everything stays.
    pub(super) fn end_direct(&mut self, id: u64, success: bool, mut from: Option<&mut Source<'_>>) {
        let Some(at) = self.directs.iter().position(|direct| direct.id == id) else { return };
        let direct = self.directs.swap_remove(at);
        self.spoil_fills(&direct.range);
        if success {
            for block in blocks(&direct.range) {
                let keep = from.as_mut().filter(|_| !direct.contested);
                self.settle(block, mask(&direct.range, block), keep);
            }
        }
        ring_all(&mut self.waiting);
    }

    /// Sectors of a block were changed on the medium.
    fn settle(&mut self, block: u64, changed: u8, keep: Option<&mut &mut Source<'_>>) {
        let index = match keep {
            Some(_) => self.take_frame(block, false),
            None => self.index.get(&block).copied(),
        };
        let Some(index) = index else { return };
        let frame = &mut self.frames[index as usize];
        let was_dirty = frame.dirty != 0;
        frame.dirty &= !changed;
        frame.unflushed &= !changed;
        frame.present &= !changed;
        if let (Some(from), Some(data)) = (keep, &mut frame.data) {
            let bytes = bytes_of(changed);
            let sector = block * BLOCK_SECTORS + (bytes.start / SECTOR_BYTES) as u64;
            from(sector, &mut data[bytes]);
            frame.present |= changed;
        }
        if was_dirty && frame.dirty == 0 {
            self.dirty_count -= 1;
        }
    }

    /// Dirty blocks from before `number`, oldest first, that may be written now: copied out.
    pub(super) fn next_batch(&mut self, number: u64) -> Option<Batch> {
        let seed = self.next_dirty(number)?;
        let mut first = self.frames[seed as usize].block;
        let mut count = 1;
        if self.frames[seed as usize].dirty != u8::MAX {
            return Some(self.copy_out(&[seed]));
        }
        // Its neighbours, as far as they are dirty from end to end.
        while count < BATCH_BLOCKS && first > 0 && self.joins(first - 1) {
            (first, count) = (first - 1, count + 1);
        }
        while count < BATCH_BLOCKS && self.joins(first + count as u64) {
            count += 1;
        }
        let run = first..first + count as u64;
        let frames: Vec<u32> = run.filter_map(|block| self.index.get(&block).copied()).collect();
        Some(self.copy_out(&frames))
    }

    /// The oldest dirty block that may be written.
    fn next_dirty(&mut self, number: u64) -> Option<u32> {
        while let Some(&index) = self.dirty.front() {
            let frame = &mut self.frames[index as usize];
            if frame.dirty != 0 {
                break;
            }
            frame.listed = false;
            self.dirty.pop_front();
        }
        self.dirty.iter().copied().find(|index| {
            let frame = &self.frames[*index as usize];
            frame.dirty != 0 && frame.dirty_since < number && self.may_write(frame)
        })
    }

    fn may_write(&self, frame: &Frame) -> bool {
        let base = frame.block * BLOCK_SECTORS;
        let here = base..base + BLOCK_SECTORS;
        frame.writing == 0 && !self.directs.iter().any(|direct| overlap(&direct.range, &here))
    }

    /// Whether a block can be part of a longer batch.
    fn joins(&self, block: u64) -> bool {
        let Some(&index) = self.index.get(&block) else { return false };
        let frame = &self.frames[index as usize];
        frame.dirty == u8::MAX && self.may_write(frame)
    }

    /// Copies adjacent blocks out that are dirty from end to end, or one block's first run of dirty
    /// sectors.
    fn copy_out(&mut self, frames: &[u32]) -> Batch {
        let id = self.now();
        let mut parts = Vec::with_capacity(frames.len());
        let mut bytes = Vec::with_capacity(frames.len() * BLOCK_BYTES);
        let (mut sector, mut oldest) = (None, u64::MAX);
        for &index in frames {
            let frame = &mut self.frames[index as usize];
            let sectors = runs(frame.dirty).next().unwrap_or(frame.dirty);
            let here = bytes_of(sectors);
            let first = frame.block * BLOCK_SECTORS + (here.start / SECTOR_BYTES) as u64;
            sector.get_or_insert(first);
            bytes.extend_from_slice(&frame.data.as_deref().unwrap_or(&[])[here]);
            oldest = oldest.min(frame.dirty_since);
            parts.push((index, sectors, frame.dirty_since));
            frame.writing = sectors;
            frame.dirty &= !sectors;
            if frame.dirty == 0 {
                self.dirty_count -= 1;
            }
        }
        self.batches.push((id, oldest));
        Batch { sector: sector.unwrap_or(0), data: Buffer::copy_of(&bytes), parts, id }
    }

    /// Takes the end of a batch in; what failed is dirty again, as old as it was.
    pub(super) fn end_batch(&mut self, batch: &BatchEnd, success: bool) {
        self.batches.retain(|(id, _)| *id != batch.id);
        for &(index, sectors, since) in &batch.parts {
            let frame = &mut self.frames[index as usize];
            frame.writing = 0;
            if success {
                if frame.unflushed == 0 {
                    self.unflushed.push(frame.block);
                }
                frame.unflushed |= sectors;
                continue;
            }
            frame.dirty_since = since;
            self.soil(index, sectors, since);
        }
        ring_all(&mut self.waiting);
    }

    /// Whether changes from before `number` are not on the medium yet.
    pub(super) fn is_behind(&self, number: u64) -> bool {
        let dirty = |index: &u32| {
            let frame = &self.frames[*index as usize];
            frame.dirty != 0 && frame.dirty_since < number
        };
        self.batches.iter().any(|(_, oldest)| *oldest < number) || self.dirty.iter().any(dirty)
    }

    /// The blocks that a flush of the medium, begun now, makes durable.
    pub(super) fn take_unflushed(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unflushed)
    }

    /// Takes the end of that flush in.
    pub(super) fn end_flush(&mut self, covered: &[u64], success: bool) {
        for &block in covered {
            let Some(&index) = self.index.get(&block) else { continue };
            let number = self.last;
            let frame = &mut self.frames[index as usize];
            let lost = std::mem::take(&mut frame.unflushed) & frame.present;
            if success || lost == 0 {
                continue;
            }
            self.soil(index, lost, number);
        }
    }
}

/// A batch without its data.
pub(super) struct BatchEnd {
    parts: Vec<(u32, u8, u64)>,
    id: u64,
}

impl Batch {
    /// Its data, and what is to be given to [`State::end_batch`].
    pub(super) fn split(self) -> (u64, Buffer, BatchEnd) {
        (self.sector, self.data, BatchEnd { parts: self.parts, id: self.id })
    }
}

/// The runs of adjacent ones in a mask, each as a mask.
pub(super) fn runs(mut mask: u8) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let shift = mask.trailing_zeros();
        let length = (mask >> shift).trailing_ones();
        let run = (((1u16 << length) - 1) << shift) as u8;
        mask &= !run;
        Some(run)
    })
}
