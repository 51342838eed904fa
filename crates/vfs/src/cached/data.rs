//! Data of files: through the pages, and, where others change the files below, with a look at
//! whether the pages are still of what lies there.

use polylane_base::{Result, Time};

use super::{Cached, Held, Mode};
use crate::cache::FilePages;
use crate::ctx::OpCtx;
use crate::file::room;
use crate::fs::{Attr, Sink, Source};
use crate::lease::Room;

/// Files carry the time of the last tick of their host's clock: a second change within it leaves
/// no trace. Four ticks of 100 Hz.
const TICK_NANOSECONDS: i128 = 40_000_000;

/// What moves no time is seen after this: stores of others through shared mappings, until their
/// kernel writes them back. A minute, as NFS clients ask again at the latest (`acregmax`).
const AGE_MAX_NANOSECONDS: i128 = 60_000_000_000;

/// A state of a file below.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stamp {
    size: u64,
    mtime: Time,
    ctime: Time,
    /// The last change was old enough that another one would show.
    is_settled: bool,
    /// When it was looked at.
    seen: Time,
}

fn nanoseconds(time: Time) -> i128 {
    i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec)
}

impl Stamp {
    fn of(attr: &Attr, now: Time) -> Stamp {
        let Attr { size, mtime, ctime, .. } = *attr;
        let is_settled = nanoseconds(now) - nanoseconds(ctime) > TICK_NANOSECONDS;
        Stamp { size, mtime, ctime, is_settled, seen: now }
    }

    /// Whether pages of this state are those of `now`, too.
    fn holds(&self, now: &Stamp) -> bool {
        // Also where the clock was set back.
        let is_young =
            (0..AGE_MAX_NANOSECONDS).contains(&(nanoseconds(now.seen) - nanoseconds(self.seen)));
        let Stamp { size, mtime, ctime, .. } = *now;
        let is_same = (size, mtime, ctime) == (self.size, self.mtime, self.ctime);
        self.is_settled && is_young && is_same
    }
}

impl Cached {
    pub(super) fn read_pages(
        &self,
        ctx: &OpCtx<'_>,
        held: &Held,
        pages: &FilePages,
        (offset, len): (u64, usize),
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let (node, ahead) = (&held.node, &held.ahead);
        let mut read =
            || self.core.cached_read(ctx, node, pages, (ahead, false), offset, len, sink);
        {
            let _data = node.lock.read();
            if self.is_current(ctx, held)? {
                return read();
            }
        }
        let _alone = node.lock.write();
        self.renew(ctx, held, pages)?;
        read()
    }

    pub(super) fn write_pages(
        &self,
        ctx: &OpCtx<'_>,
        held: &Held,
        pages: &FilePages,
        offset: u64,
        source: &mut dyn Source,
    ) -> Result<usize> {
        let (core, node) = (&self.core, &held.node);
        let len = room(core.character.max_file_size, offset, source.len())?;
        if self.mode == Mode::WriteBack {
            core.throttle(len)?;
        }
        let _alone = node.lock.write();
        self.renew(ctx, held, pages)?;
        match self.mode {
            Mode::WriteBack => {
                core.cached_write(ctx, node, pages, (offset, len), source, Room::Free)
            }
            Mode::WriteThrough => {
                let written = core.write_through(ctx, node, pages, (offset, len), source);
                // Others may have changed the file before its own change or after it.
                *held.stamp.lock() = None;
                written
            }
        }
    }

    /// Looks at the file below, where others may have changed it, and drops what is old. Call with
    /// the data locked for change.
    pub(super) fn renew(&self, ctx: &OpCtx<'_>, held: &Held, pages: &FilePages) -> Result<()> {
        if !self.is_current(ctx, held)? {
            self.core.drop_clean(pages);
            self.keep_stamp(ctx, held)?;
        }
        Ok(())
    }

    /// Whether the pages are of what lies below. Call with the data locked.
    fn is_current(&self, ctx: &OpCtx<'_>, held: &Held) -> Result<bool> {
        if !self.is_volatile() {
            return Ok(true);
        }
        let new = self.look_below(ctx, held)?;
        Ok(held.stamp.lock().is_some_and(|stamp| stamp.holds(&new)))
    }

    fn keep_stamp(&self, ctx: &OpCtx<'_>, held: &Held) -> Result<()> {
        if self.is_volatile() {
            let new = self.look_below(ctx, held)?;
            *held.stamp.lock() = Some(new);
        }
        Ok(())
    }

    fn look_below(&self, ctx: &OpCtx<'_>, held: &Held) -> Result<Stamp> {
        let mut attr = held.node.attr();
        let new = self.below().getattr(ctx, held.node.ino())?;
        let stamp = Stamp::of(&new, self.core.now(&OpCtx::service()));
        held.node.keep(&mut attr, new);
        Ok(stamp)
    }
}
