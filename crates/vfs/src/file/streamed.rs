//! Writes that a client streamed: it was told that they count before they are done here.

use polylane_base::{Errno, Result};
use rustix::fs::OFlags;

use super::{OpenFile, check_unfrozen, room};
use crate::cache::PAGE;
use crate::ctx::OpCtx;
use crate::fs::Source;
use crate::inode::FROZEN;
use crate::lease::{Aside, Room};
use crate::stats::Count;

impl OpenFile {
    /// Writes at `at`, or with `O_APPEND` at the end, what the client of `ctx` wrote under a lease
    /// at the time that `aside` says, out of the room set aside. `EBADF`, `EFBIG`; `EPERM` where
    /// another session has the file on loan; `EBUSY` where there is no page cache; `ENOSPC`: more
    /// than there is room for, and perhaps only the first bytes were written.
    pub fn write_streamed(
        &self,
        ctx: &OpCtx<'_>,
        at: u64,
        source: &mut dyn Source,
        aside: &mut Aside,
    ) -> Result<()> {
        let node = self.writable()?;
        let core = &node.core;
        core.count(Count::Ops);
        let pages = node.pages().ok_or(Errno::EBUSY)?;
        if core.cache.is_pressed() {
            core.cache.flusher.kick();
        }
        let _data = core.lock_exclusive_as(ctx, node)?;
        check_unfrozen(node)?;
        // The end as it is, not as the client thinks.
        let at = if self.wish().contains(OFlags::APPEND) { node.end(ctx)? } else { at };
        let len = room(core.character.max_file_size, at, source.len())?;
        core.kill_set_id(Some(ctx), node)?;
        core.begins_to_change(node);
        node.data_changes(at, at + len as u64);
        match core.cached_write(ctx, node, pages, (at, len), source, Room::Aside(aside))? {
            count if count == source.len() => Ok(()),
            _ => Err(Errno::ENOSPC),
        }
    }

    /// Writes whole pages within the file, at `at`, that the client of `ctx` wrote without asking
    /// while the file was on loan to it, as [`OpenFile::write_streamed`] does; the loan goes on.
    /// `may` says whether there still is one, with the data locked for change. `EBUSY`: there is
    /// none, or the file ends before, or there is no page cache; nothing was written. `EPERM`: no
    /// whole pages.
    pub fn write_lent(
        &self,
        ctx: &OpCtx<'_>,
        (at, source): (u64, &mut dyn Source),
        aside: &mut Aside,
        may: impl FnOnce() -> bool,
    ) -> Result<()> {
        let node = self.writable()?;
        let core = &node.core;
        core.count(Count::Ops);
        let pages = node.pages().ok_or(Errno::EBUSY)?;
        let end = at.checked_add(source.len() as u64).ok_or(Errno::EFBIG)?;
        if !at.is_multiple_of(PAGE as u64) || !end.is_multiple_of(PAGE as u64) {
            return Err(Errno::EPERM);
        }
        if core.cache.is_pressed() {
            core.cache.flusher.kick();
        }
        let _data = node.lock.write();
        let fits = end <= node.size() && !node.has(FROZEN);
        if !fits || !may() {
            return Err(Errno::EBUSY);
        }
        core.kill_set_id(Some(ctx), node)?;
        core.begins_to_change(node);
        node.data_changes(at, end);
        match core.cached_write(ctx, node, pages, (at, source.len()), source, Room::Aside(aside))? {
            count if count == source.len() => Ok(()),
            _ => Err(Errno::ENOSPC),
        }
    }
}
