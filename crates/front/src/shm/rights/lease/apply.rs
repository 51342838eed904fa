//! What an entry of the stream does.

use polylane_base::{Clock, Errno, Result, Time};
use polylane_ipc::ServiceChannel;
use polylane_ipc::stream::{
    Change, DATA_BYTES, Entry, LENT, STREAMED_HANDLE, SetState, WRITE_BYTES_MAX,
};
use polylane_vfs::fs::{SetAttr, SetTime, Source};
use polylane_vfs::{Aside, Create, Kind, Node, OpCtx, PathError};

use super::{Holding, SECOND, State};
use crate::lane::is_virtual;
use crate::lane::tag::kernel_has_pages;
use crate::shm::files::Open;
use crate::shm::request::Handle;
use crate::shm::rights::closing;

impl Holding<'_> {
    /// Does what an entry says.
    pub(super) fn apply(
        &self,
        state: &mut State,
        ctx: &OpCtx<'_>,
        entry: &Entry,
        time: i64,
    ) -> Result<(), PathError> {
        let lent = entry.change == Change::Write && entry.flags & LENT != 0;
        if self.connection.is_read_only() && !lent {
            return Err(Errno::EROFS.into());
        }
        if entry.change.is_of_file() {
            return self.apply_to_file(state, ctx, entry, time);
        }
        let leased = state.dirs.get(entry.lease as usize).and_then(Option::as_ref);
        let dir = leased.map(|leased| leased.dir().clone()).ok_or(Errno::EPERM)?;
        self.apply_to_names(state, (ctx, &dir), entry, time)
    }

    fn apply_to_names(
        &self,
        state: &mut State,
        (ctx, dir): (&OpCtx<'_>, &Node),
        entry: &Entry,
        time: i64,
    ) -> Result<(), PathError> {
        let vfs = &self.connection.lane.vfs;
        let ((name, len), (name2, len2)) = (entry.name.to_bytes(), entry.name2.to_bytes());
        let (name, name2) = (&name[..len], &name2[..len2]);
        let beside = |name: &&[u8]| name.contains(&b'/') || matches!(*name, b"." | b"..");
        if [name, name2].iter().any(|name| beside(name) || is_virtual(vfs, dir, name)) {
            return Err(Errno::EPERM.into());
        }
        match entry.change {
            Change::Touch => self.stamp(ctx, dir, time),
            Change::Set | Change::Write | Change::Close => {}
            Change::Make => {
                let born = entry.born.clamp(0, time);
                let node = self.make(state, ctx, (dir, name), entry)?;
                if born != time {
                    self.stamp(ctx, &node, born);
                }
            }
            Change::Rename => {
                let rename = || Ok(vfs.take_renamed(ctx, dir, name, dir, name2, 0)?);
                let names = self.with_room(state, false, rename)?;
                self.connection.lane.name_moved(dir, name, &names.moved);
                if let Some(replaced) = names.replaced {
                    self.connection.lane.name_moved(dir, name2, &replaced);
                    vfs.note_nameless(replaced);
                }
            }
            Change::Unlink => {
                if let Some(gone) = vfs.take_unlinked(ctx, dir, name)? {
                    self.connection.lane.name_gone(dir, name, &gone);
                    vfs.note_nameless(gone);
                }
            }
        }
        Ok(())
    }

    /// Changes a file that the client has open: one that it made by its stream, or, by writes, one
    /// that it has on loan.
    fn apply_to_file(
        &self,
        state: &mut State,
        ctx: &OpCtx<'_>,
        entry: &Entry,
        time: i64,
    ) -> Result<(), PathError> {
        let handle = Handle::from_wire(entry.handle);
        if entry.change == Change::Write && entry.flags & LENT != 0 {
            return self.write_lent(state, (ctx, handle), entry, time);
        }
        if handle.index & STREAMED_HANDLE == 0 {
            return Err(Errno::EPERM.into());
        }
        match entry.change {
            Change::Write => self.write(state, (ctx, handle), entry, time),
            Change::Close => Ok(closing::close(self.viewing(), handle, false).map(drop)?),
            _ => self.set((ctx, handle), entry, time),
        }
    }

    /// Writes to a file that the client made by its stream.
    fn write(
        &self,
        state: &mut State,
        (ctx, handle): (&OpCtx<'_>, Handle),
        entry: &Entry,
        time: i64,
    ) -> Result<(), PathError> {
        let file = self.files.file(handle)?;
        if kernel_has_pages(file.node()) {
            return Err(Errno::EPERM.into());
        }
        self.write_aside(state, entry, time, |data, aside| {
            file.write_streamed(ctx, entry.offset, data, aside)
        })
    }

    /// Writes to a file that the client has on loan. Where it has not by now, it is refused: the
    /// client finds its loan over, and asks.
    fn write_lent(
        &self,
        state: &mut State,
        (ctx, handle): (&OpCtx<'_>, Handle),
        entry: &Entry,
        time: i64,
    ) -> Result<(), PathError> {
        let file = self.files.file(handle)?;
        let range = entry.offset..entry.offset.saturating_add(entry.len.into());
        let viewing = self.viewing();
        let _streamed_in = viewing.stream_in(handle);
        self.write_aside(state, entry, time, |data, aside| {
            let may = || viewing.may_stream_in(handle, range);
            file.write_lent(ctx, (entry.offset, data), aside, may)
        })
    }

    /// Writes the bytes of an entry out of the room that was set aside.
    fn write_aside(
        &self,
        state: &mut State,
        entry: &Entry,
        time: i64,
        write: impl FnOnce(&mut Data<'_>, &mut Aside) -> Result<()>,
    ) -> Result<(), PathError> {
        let (at, len) = (entry.at as usize, entry.len as usize);
        if len > WRITE_BYTES_MAX || at > DATA_BYTES - len || len == 0 {
            return Err(Errno::EPERM.into());
        }
        let mut aside = Aside { blocks: state.blocks, time: to_time(time) };
        let mut data = Data { channel: &self.connection.channel, at, len };
        let written = write(&mut data, &mut aside);
        self.connection.lane.vfs.used_blocks(state.blocks - aside.blocks);
        state.blocks = aside.blocks;
        self.connection.stats.written(len);
        Ok(written?)
    }

    /// Sets rights and times.
    fn set(
        &self,
        (ctx, handle): (&OpCtx<'_>, Handle),
        entry: &Entry,
        time: i64,
    ) -> Result<(), PathError> {
        let node = self.files.node(handle)?;
        let what = SetState::from_bits_retain(entry.umask);
        let is = |bit| what.contains(bit);
        let stamp = |given, now, at| match (is(given), is(now)) {
            (true, _) => Some(SetTime::At(to_time(at))),
            (_, true) => Some(SetTime::At(to_time(time))),
            _ => None,
        };
        let set = SetAttr {
            perm: is(SetState::PERM).then_some(u32::from(entry.perm) & 0o7777),
            atime: stamp(SetState::ATIME, SetState::ATIME_NOW, entry.atime),
            mtime: stamp(SetState::MTIME, SetState::MTIME_NOW, entry.born),
            ctime: Some(to_time(time)),
            ..SetAttr::default()
        };
        self.connection.lane.vfs.setattr(ctx, &node, &set)?;
        Ok(())
    }

    /// Adds a name, of a new file or another one, with the room that was set aside for it.
    fn with_room<T>(
        &self,
        state: &mut State,
        is_new: bool,
        add: impl Fn() -> Result<T, PathError>,
    ) -> Result<T, PathError> {
        if self.connection.lane.vfs.creates_reserved() {
            // Claims are bounded, so that there is room for every entry.
            let room = state.room.checked_sub(is_new.into()).ok_or(Errno::ENOSPC)?;
            let done = add()?;
            state.room = room;
            return Ok(done);
        }
        loop {
            let had_room = state.room > 0;
            if had_room {
                state.room -= 1;
                self.connection.lane.vfs.release_names(1);
            }
            match add() {
                // One share was not enough, or somebody else was faster; there is more.
                Err(PathError::Errno(Errno::ENOSPC)) if had_room => {}
                done => return done,
            }
        }
    }

    /// Makes a file, and opens it where the client has it open.
    fn make(
        &self,
        state: &mut State,
        ctx: &OpCtx<'_>,
        (dir, name): (&Node, &[u8]),
        entry: &Entry,
    ) -> Result<Node, PathError> {
        let vfs = &self.connection.lane.vfs;
        let (perm, umask) = (u32::from(entry.perm) & 0o7777, u32::from(entry.umask) & 0o777);
        let Some(slot) = entry.slot.checked_sub(1) else {
            let new = Create { kind: Kind::File, perm, umask, rdev: 0, target: b"" };
            return self.with_room(state, true, || Ok(vfs.create(ctx, dir, name, &new)?));
        };
        let kept = libc::O_ACCMODE | libc::O_APPEND | libc::O_NONBLOCK | libc::O_SYNC;
        let flags = entry.flags.cast_signed() & kept | libc::O_CREAT | libc::O_EXCL;
        let open = || vfs.open_path(ctx, dir, name, flags, perm, umask);
        let file = self.with_room(state, true, open)?;
        let node = file.node().clone();
        self.connection.slots.bind(slot, file.clone())?;
        let open = Open::File { file, slot: Some(slot), view: None };
        if let Err(errno) = self.files.add_streamed(Handle::from_wire(entry.handle), open) {
            self.connection.slots.unbind(slot)?;
            return Err(errno.into());
        }
        Ok(node)
    }

    /// Gives an inode the times that it would have had if nothing had waited: `born` where its
    /// contents are from, the operation's where it was changed.
    fn stamp(&self, ctx: &OpCtx<'_>, node: &Node, born: i64) {
        let made = Some(SetTime::At(to_time(born)));
        let atime = made.filter(|_| node.kind() == Kind::File);
        let set = SetAttr { atime, mtime: made, ..SetAttr::default() };
        // An inode that was just changed can be changed again; if not, its times are a little late.
        let _ = self.connection.lane.vfs.setattr(&ctx.kernel_checked(), node, &set);
    }
}

/// When the client did something: the clock of what it did.
pub(super) struct Moment(pub(super) i64);

impl Clock for Moment {
    fn now(&self) -> Time {
        to_time(self.0)
    }
}

/// Bytes in the stream's ring.
struct Data<'a> {
    channel: &'a ServiceChannel,
    at: usize,
    len: usize,
}

impl Source for Data<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn get(&mut self, at: usize, into: &mut [u8]) {
        // It was looked at whether they lie there.
        self.channel.stream_get(self.at + at, into);
    }
}

fn to_time(ns: i64) -> Time {
    Time { sec: ns.div_euclid(SECOND), nsec: ns.rem_euclid(SECOND) as u32 }
}
