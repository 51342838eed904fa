//! Files whose data is in two layers: copy-up by blocks.
//!
//! ```text
//!            0          bound        size
//!  lower     |===========|
//!  upper     |..##....#..|....####....|      # allocated: the upper's   . hole
//!  the file  |==##====#==|0000####0000|      = the lower's              0 zeros
//! ```
//!
//! A hole of the upper below the bound is the lower's; everything else is the upper's. So the
//! file system of the upper keeps the map. A part that is to read as zeros below the bound is
//! allocated: as an unwritten extent where the upper tells those from holes, else with zeros.
//! A write fills the block that it begins or ends in from the lower, in one call with its own
//! bytes, so that a cut leaves the old block or the new one.
//!
//! Files up to [`SMALL`] bytes are copied whole by their first write; so are all files where the
//! upper does not tell holes (a Ceph file system).

use polylane_base::sync::Arc;
use polylane_base::{Errno, Result};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, Piece, SeekFor, SetAttr, Shifted, Sink, Source};

use crate::Act;
use crate::layer::Held;
use crate::marks::{Mark, Record};
use crate::node::{Below, Node};

/// Files with no more of the lower's data than this are copied whole when they are written.
pub(crate) const SMALL: u64 = 64 << 10;

/// Bytes that are copied at a time.
const CHUNK: u64 = 256 << 10;

/// Bytes of a file that are made its own while its writers wait.
const STEP: u64 = 1 << 20;

/// A request's bytes between what the lower has around them.
struct Framed<'a> {
    head: Vec<u8>,
    source: &'a mut dyn Source,
    tail: Vec<u8>,
}

impl Source for Framed<'_> {
    fn len(&self) -> usize {
        self.head.len() + self.source.len() + self.tail.len()
    }

    fn get(&mut self, at: usize, into: &mut [u8]) {
        let (head, middle) = (self.head.len(), self.head.len() + self.source.len());
        let mut done = 0;
        while done < into.len() {
            let now = at + done;
            let left = into.len() - done;
            let count = match now {
                _ if now < head => left.min(head - now),
                _ if now < middle => left.min(middle - now),
                _ => left,
            };
            let part = &mut into[done..done + count];
            match now {
                _ if now < head => part.copy_from_slice(&self.head[now..now + count]),
                _ if now < middle => self.source.get(now - head, part),
                _ => part.copy_from_slice(&self.tail[now - middle..now - middle + count]),
            }
            done += count;
        }
    }
}

/// Reads all of `len` bytes; `EIO` where a lower is shorter than it was.
fn read_all(ctx: &OpCtx<'_>, from: &Held, offset: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    match from.fs().read(ctx, from.ino(), offset, len, &mut bytes.as_mut_slice())? {
        count if count == len => Ok(bytes),
        _ => Err(Errno::EIO),
    }
}

/// Copies a range from one file to the same place in another.
pub(crate) fn copy_data(
    ctx: &OpCtx<'_>,
    from: &Held,
    to: &Held,
    start: u64,
    end: u64,
) -> Result<()> {
    let mut at = start;
    while at < end {
        let len = (end - at).min(CHUNK);
        let bytes = read_all(ctx, from, at, len as usize)?;
        if to.fs().write(ctx, to.ino(), at, &mut bytes.as_slice())? < bytes.len() {
            return Err(Errno::ENOSPC);
        }
        at += len;
    }
    Ok(())
}

impl Act<'_> {
    /// `FileSystem::read`.
    pub(crate) fn read(
        &self,
        node: &Node,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        self.check_data(node)?;
        let (upper, below) = {
            let state = node.state();
            (state.upper.clone(), state.below)
        };
        let Some(upper) = upper else {
            let data = node.data().ok_or(Errno::ESTALE)?;
            return data.fs().read(self.ctx, data.ino(), offset, len, sink);
        };
        let Some(below) = below else {
            return upper.fs().read(self.ctx, upper.ino(), offset, len, sink);
        };
        let data = node.data().ok_or(Errno::EIO)?;
        let end = upper.attr(self.ctx)?.size.min(offset.saturating_add(len as u64));
        let mut at = offset;
        while at < end {
            let (is_own, run_end) = match at < below.bound {
                true => self.run(&upper, below, at, end.min(below.bound))?,
                false => (true, end),
            };
            let by = (at - offset) as usize;
            let len = (run_end - at) as usize;
            let from = if is_own { &upper } else { data };
            let count = from.fs().read(self.ctx, from.ino(), at, len, &mut Shifted { sink, by })?;
            if count < len {
                return Err(if is_own { Errno::EIO } else { self.changed_under(node) });
            }
            at = run_end;
        }
        Ok(end.saturating_sub(offset) as usize)
    }

    /// Whether the upper has what lies at `at`, and where that ends, at most at `end`.
    fn run(&self, upper: &Held, below: Below, at: u64, end: u64) -> Result<(bool, u64)> {
        if below.whole {
            return Ok((false, end));
        }
        if !self.upper()?.tells_holes {
            // It was written where holes are told, and came here by a copy.
            return Err(Errno::EIO);
        }
        if self.upper()?.tells_pieces {
            let mut first = None;
            let mut each = |piece: Piece| {
                let piece_end = piece.offset.saturating_add(piece.len);
                if piece_end > at {
                    first = Some((piece.offset, piece_end));
                }
                first.is_none()
            };
            upper.fs().pieces(self.ctx, upper.ino(), at, end - at, &mut each)?;
            return Ok(match first {
                Some((start, piece_end)) if start <= at => (true, piece_end.min(end)),
                Some((start, _)) => (false, start.min(end)),
                None => (false, end),
            });
        }
        match upper.fs().seek(self.ctx, upper.ino(), at, SeekFor::Data) {
            Ok(start) if start > at => Ok((false, start.min(end))),
            Ok(_) => {
                Ok((true, upper.fs().seek(self.ctx, upper.ino(), at, SeekFor::Hole)?.min(end)))
            }
            Err(Errno::ENXIO) => Ok((false, end)),
            Err(errno) => Err(errno),
        }
    }

    /// The inode of the upper that a write goes to.
    pub(crate) fn written(&self, node: &Arc<Node>) -> Result<Held> {
        self.check_data(node)?;
        self.copied_up(node)
    }

    /// `FileSystem::write`.
    pub(crate) fn write(
        &self,
        node: &Arc<Node>,
        offset: u64,
        source: &mut dyn Source,
    ) -> Result<usize> {
        let upper = self.written(node)?;
        let _filling = node.filling_if_partial();
        self.write_blocks(node, &upper, offset, source)
    }

    /// The same with `filling` of a file that is not whole.
    fn write_blocks(
        &self,
        node: &Node,
        upper: &Held,
        offset: u64,
        source: &mut dyn Source,
    ) -> Result<usize> {
        let Some(below) = self.begin(node, upper)? else {
            return upper.fs().write(self.ctx, upper.ino(), offset, source);
        };
        let len = source.len();
        let end = offset.checked_add(len as u64).ok_or(Errno::EFBIG)?;
        let size = upper.attr(self.ctx)?.size;
        let below = self.before_growth(node, upper, below, end > size)?;
        let granule = self.upper()?.granule;
        let start = offset - offset % granule;
        let data = node.data().ok_or(Errno::EIO)?;
        let is_hole = |at: u64| -> Result<bool> {
            Ok(at < below.bound && !self.run(upper, below, at, at + 1)?.0)
        };
        let mut head = Vec::new();
        if start < offset && is_hole(start)? {
            let known = offset.min(below.bound) - start;
            head = read_all(self.ctx, data, start, known as usize)?;
            head.resize((offset - start) as usize, 0);
        }
        let mut tail = Vec::new();
        let last = end - end % granule;
        if last < end && is_hole(last)? {
            let tail_end = (last + granule).min(below.bound).min(size);
            if tail_end > end {
                tail = read_all(self.ctx, data, end, (tail_end - end) as usize)?;
            }
        }
        let begin = offset - head.len() as u64;
        let before = head.len();
        let count =
            upper.fs().write(self.ctx, upper.ino(), begin, &mut Framed { head, source, tail })?;
        match count.saturating_sub(before).min(len) {
            0 if len > 0 => Err(Errno::ENOSPC),
            count => Ok(count),
        }
    }

    /// Before blocks of a file are written: the mark says so. `None`: the file is whole.
    fn begin(&self, node: &Node, upper: &Held) -> Result<Option<Below>> {
        let Some(below) = node.state().below else { return Ok(None) };
        if below.bound <= SMALL || !self.upper()?.tells_holes {
            self.complete(node, upper)?;
            return Ok(None);
        }
        if !below.whole {
            return Ok(Some(below));
        }
        self.set_below(node, upper, Some(Below { whole: false, ..below }))
    }

    /// Before a file grows: what its mark says of a larger bound must not come back.
    fn before_growth(&self, node: &Node, upper: &Held, below: Below, grows: bool) -> Result<Below> {
        if !(grows && below.mark_is_wide) {
            return Ok(below);
        }
        let below = Below { mark_is_wide: false, ..below };
        self.set_below(node, upper, Some(below)).map(|_| below)
    }

    fn set_below(&self, node: &Node, upper: &Held, below: Option<Below>) -> Result<Option<Below>> {
        self.write_below(node, upper, below)?;
        node.state().below = below;
        Ok(below)
    }

    /// Copies what the lower has in a range where the upper has holes; whole granules.
    fn fill(&self, node: &Node, upper: &Held, below: Below, (from, to): (u64, u64)) -> Result<()> {
        let granule = self.upper()?.granule;
        let end = to.saturating_add(granule - 1) / granule * granule;
        let end = end.min(below.bound).min(upper.attr(self.ctx)?.size);
        let data = node.data().ok_or(Errno::EIO)?;
        let mut at = from - from % granule;
        while at < end {
            let (is_own, run_end) = self.run(upper, below, at, end)?;
            if !is_own {
                copy_data(self.ctx, data, upper, at, run_end)?;
            }
            at = run_end;
        }
        Ok(())
    }

    /// Makes a file whole.
    pub(crate) fn complete(&self, node: &Node, upper: &Held) -> Result<()> {
        let Some(below) = node.state().below else { return Ok(()) };
        self.fill(node, upper, below, (0, below.bound))?;
        // A journal that keeps data before metadata needs no more.
        if !self.upper()?.tells_pieces {
            upper.fs().fsync(self.ctx, upper.ino(), true)?;
        }
        self.set_below(node, upper, None).map(|_| ())
    }

    /// Makes a file whole that others may read and write meanwhile; it is [`STEP`] bytes at a time
    /// that they wait. Its times stay. False: it is whole already.
    pub(crate) fn complete_in_steps(&self, node: &Node) -> Result<bool> {
        let mut at = 0u64;
        self.check_data(node)?;
        loop {
            let _filling = node.filling();
            let (upper, below) = (node.upper(), node.state().below);
            let Some((upper, below)) = upper.zip(below) else { return Ok(at > 0) };
            let before = upper.attr(self.ctx)?;
            let end = at.saturating_add(STEP);
            let is_last = end >= below.bound;
            match is_last {
                true => self.complete(node, &upper)?,
                false => self.fill(node, &upper, below, (at, end))?,
            }
            self.upper()?.restore_times(self.ctx, &upper, &before)?;
            if is_last {
                return Ok(true);
            }
            at = end;
        }
    }

    /// A change of size, with what else is set.
    pub(crate) fn truncate(&self, node: &Arc<Node>, size: u64, set: &SetAttr) -> Result<()> {
        if size > 0 {
            self.check_data(node)?;
        }
        let upper = match node.upper() {
            Some(upper) => upper,
            None => {
                let _alone = self.alone();
                let is_first = node.upper().is_none();
                let upper = self.copy_up(node, Some(set))?;
                if is_first && upper.attr(self.ctx)?.size == size {
                    // All was set before it got its name.
                    return Ok(());
                }
                upper
            }
        };
        if node.state().spoiled.is_some() {
            return self.empty_spoiled(node, &upper, set);
        }
        let _filling = node.filling_if_partial();
        let now = upper.attr(self.ctx)?.size;
        let Some(below) = node.state().below.filter(|_| size != now) else {
            return upper.fs().setattr(self.ctx, upper.ino(), set).map(|_| ());
        };
        if size < below.bound && (size <= SMALL || !self.upper()?.tells_holes) {
            // What is left is small, or cannot be told from holes: it is the upper's before the
            // rest goes.
            self.fill(node, &upper, below, (0, size))?;
            upper.fs().setattr(self.ctx, upper.ino(), set)?;
            if !self.upper()?.tells_holes {
                upper.fs().fsync(self.ctx, upper.ino(), true)?;
            }
            self.cut_off(node, &upper, None, size);
            return Ok(());
        }
        let Some(below) = self.begin(node, &upper)? else {
            return upper.fs().setattr(self.ctx, upper.ino(), set).map(|_| ());
        };
        let below = self.before_growth(node, &upper, below, size > now)?;
        upper.fs().setattr(self.ctx, upper.ino(), set)?;
        if size < below.bound {
            self.cut_off(node, &upper, Some(Below { bound: size, ..below }), size);
        }
        Ok(())
    }

    /// Cuts a file whose data cannot be read to nothing: it is whole then.
    fn empty_spoiled(&self, node: &Node, upper: &Held, set: &SetAttr) -> Result<()> {
        upper.fs().setattr(self.ctx, upper.ino(), set)?;
        if let Some(value) = upper.mark(self.ctx, Mark::Polylane)? {
            // One that says nothing goes.
            match Record::parse(&value) {
                Ok(record) => {
                    let whole = Record { bound: Some(0), in_parts: None, ..record };
                    let value = whole.to_value();
                    self.upper()?.set_mark(self.ctx, upper.ino(), Mark::Polylane, &value)?;
                }
                Err(_) => self.upper()?.remove_mark(self.ctx, upper.ino(), Mark::Polylane)?,
            }
        }
        self.upper()?.remove_mark(self.ctx, upper.ino(), Mark::Metacopy)?;
        let mut state = node.state();
        (state.below, state.spoiled) = (None, None);
        Ok(())
    }

    /// After a file was cut: what the lower has of it now. Where that cannot be marked, for want of
    /// room, the mark is wide: it is never used past the file's size, and is written before the
    /// file grows, or the growth fails.
    fn cut_off(&self, node: &Node, upper: &Held, below: Option<Below>, size: u64) {
        if self.set_below(node, upper, below).is_err() {
            let wide = Below { bound: size, mark_is_wide: true, whole: false };
            node.state().below = Some(wide);
        }
    }

    /// `FileSystem::fallocate`.
    pub(crate) fn fallocate(
        &self,
        node: &Arc<Node>,
        mode: Fallocate,
        (offset, len): (u64, u64),
    ) -> Result<()> {
        let upper = self.written(node)?;
        let _filling = node.filling_if_partial();
        let forward = |offset, len| upper.fs().fallocate(self.ctx, upper.ino(), mode, offset, len);
        let Some(below) = self.begin(node, &upper)? else {
            return forward(offset, len).map(|_| ());
        };
        if matches!(mode, Fallocate::CollapseRange | Fallocate::InsertRange) {
            self.complete(node, &upper)?;
            return forward(offset, len).map(|_| ());
        }
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        let below = self.before_growth(node, &upper, below, end > upper.attr(self.ctx)?.size)?;
        let inside = end.min(below.bound);
        if let Fallocate::Allocate { .. } = mode {
            self.fill(node, &upper, below, (offset, inside))?;
            return forward(offset, len).map(|_| ());
        }
        // What the upper may refuse goes first. The block that the bound is in may be a hole.
        if end > below.bound {
            self.fill(node, &upper, below, (below.bound - 1, below.bound))?;
            let start = offset.max(below.bound);
            forward(start, end - start)?;
        }
        match offset < inside {
            true => self.zero(node, &upper, (offset, inside)),
            false => Ok(()),
        }
    }

    /// Makes a range below the bound read as zeros: its whole blocks unwritten where the upper
    /// tells them from holes, else everything written.
    fn zero(&self, node: &Node, upper: &Held, (from, to): (u64, u64)) -> Result<()> {
        let granule = self.upper()?.granule;
        let first = from.next_multiple_of(granule);
        let last = to - to % granule;
        let mut written = vec![(from, to)];
        if first < last && self.upper()?.tells_pieces {
            let mode = Fallocate::ZeroRange { keep_size: true };
            match upper.fs().fallocate(self.ctx, upper.ino(), mode, first, last - first) {
                Ok(_) => written = vec![(from, first), (last, to)],
                Err(Errno::EOPNOTSUPP) => {}
                Err(errno) => return Err(errno),
            }
        }
        let zeros = vec![0; CHUNK as usize];
        for (from, to) in written {
            let mut at = from;
            while at < to {
                let len = (to - at).min(CHUNK) as usize;
                if self.write_blocks(node, upper, at, &mut &zeros[..len])? < len {
                    return Err(Errno::ENOSPC);
                }
                at += len as u64;
            }
        }
        Ok(())
    }

    /// `FileSystem::seek`. What is the lower's counts as data.
    pub(crate) fn seek(&self, node: &Node, offset: u64, target: SeekFor) -> Result<u64> {
        self.check_data(node)?;
        let (upper, below) = {
            let state = node.state();
            (state.upper.clone(), state.below)
        };
        let (Some(upper), Some(below)) = (&upper, below.filter(|below| !below.whole)) else {
            let from = match (&upper, below) {
                (Some(upper), None) => upper,
                _ => node.data().ok_or(Errno::ESTALE)?,
            };
            return from.fs().seek(self.ctx, from.ino(), offset, target);
        };
        let size = upper.attr(self.ctx)?.size;
        match target {
            _ if offset >= size => Err(Errno::ENXIO),
            SeekFor::Data if offset < below.bound => Ok(offset),
            SeekFor::Hole if below.bound >= size => Ok(size),
            _ => upper.fs().seek(self.ctx, upper.ino(), offset.max(below.bound), target),
        }
    }
}
