//! Open files that were made under a lease: what nobody else can have met is written, set and
//! closed by the stream.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;

use polylane_ipc::message::{Message, Op, STREAMED};
use polylane_ipc::stream::{self, Change, Entry, SetState, ShortName, WRITE_BYTES_MAX};
use polylane_ipc::view::FRAME_BYTES;

use super::{Inside, Leases};
use crate::fd::record::{FileBits, Record};
use crate::rights::view;
use crate::session::Session;
use crate::session::call;

/// Writes beyond take the ordinary way, which knows what the largest file is.
const OFFSET_MAX: u64 = 1 << 30;
/// Pages beyond have no place in a view.
const LENT_OFFSET_MAX: u64 = 1 << 36;
/// Most bytes that are written in parts: what is left of them fits into one request.
const PARTS_BYTES_MAX: usize = 64 << 10;
/// Flags of open files whose writes are not to wait.
const UNSTREAMED_FLAGS: i32 = libc::O_SYNC | libc::O_DSYNC | libc::O_DIRECT;

impl Leases {
    /// Closes a file that was made under a lease: true then, and its slot is free. False: the
    /// ordinary way.
    pub(crate) fn close(&'static self, session: &'static Session, handle: u64) -> bool {
        let Some(inside) = self.enter(session) else { return false };
        let closed = match session.channel.stream().last() {
            Some(last)
                if last.change == Change::Make
                    && last.slot != 0
                    && last.handle == handle
                    && inside.replace(&Entry { slot: 0, flags: 0, handle: 0, ..last }) =>
            {
                true
            }
            _ => inside.post(&Entry { change: Change::Close, handle, ..Entry::default() }).is_ok(),
        };
        if closed {
            self.note_close(handle, None);
        }
        closed
    }

    /// Writes to a file that was made under a lease and that nobody else can have met, at an offset
    /// or, without one, at its end, with the file's own offset locked. Returns the offset after it;
    /// `None`: the ordinary way.
    #[inline]
    pub(crate) fn write(
        &'static self,
        session: &'static Session,
        file: &Record,
        offset: Option<u64>,
        from: &[u8],
    ) -> Option<u64> {
        if !file.is_streamed() {
            return None;
        }
        let start = match offset {
            Some(offset) => offset,
            // Whether an append counts has to be asked for in the end, perhaps.
            None if file.is(FileBits::AT_END) && session.can_ask() => file.offset.load(Relaxed),
            None => return None,
        };
        let position = self.post_write(session, file, start, from)?;
        // An append is not done twice. Where its service is gone, so is what it had in memory
        // alone.
        let counts = self.counts(session, file, position).unwrap_or(offset.is_none());
        counts.then_some(start + from.len() as u64)
    }

    /// The position of the entry.
    fn post_write(
        &'static self,
        session: &'static Session,
        file: &Record,
        offset: u64,
        from: &[u8],
    ) -> Option<u32> {
        let flags = file.flags.load(Relaxed).cast_signed();
        let fits = from.len() <= WRITE_BYTES_MAX && offset <= OFFSET_MAX;
        if !fits || flags & UNSTREAMED_FLAGS != 0 || !self.is_alone_with(file) {
            return None;
        }
        let may = || self.is_alone_with(file) && self.data.load(Relaxed);
        let inside = self.enter(session).filter(|_| may())?;
        inside.post_write(file.handle.load(Relaxed), offset, from, 0)
    }

    /// Writes whole pages of a file on loan that were not lent: they need no answer, since whoever
    /// else comes near the file first has them applied. False: the ordinary way.
    fn write_lent(
        &'static self,
        session: &'static Session,
        file: &Record,
        offset: u64,
        from: &[u8],
    ) -> bool {
        let (page, end) = (FRAME_BYTES as u64, offset.saturating_add(from.len() as u64));
        let flags = file.flags.load(Relaxed).cast_signed();
        let fits = from.len() <= WRITE_BYTES_MAX && flags & UNSTREAMED_FLAGS == 0;
        let whole =
            offset.is_multiple_of(page) && end.is_multiple_of(page) && end <= LENT_OFFSET_MAX;
        let stream = || view::stream_for(session, file, (offset, end));
        let loan = if fits && whole { stream() } else { 0 };
        let post = |inside: Inside| {
            view::will_stream(session, file);
            inside.post_write(file.handle.load(Relaxed), offset, from, stream::LENT)
        };
        let inside = if loan == 0 { None } else { self.enter_stream(session) };
        inside.and_then(post).is_some_and(|position| {
            // The service ends a loan by saying so first; it looks at the stream then.
            fence(SeqCst);
            stream() == loan || was_done(session, position) == Some(true)
        })
    }

    /// The same for pages some of which are lent, and others may be written by the stream, as of a
    /// log that goes on behind the page that it wrote last. How many bytes, from the first on, were
    /// written.
    pub(crate) fn write_in_parts(
        &'static self,
        session: &'static Session,
        file: &Record,
        offset: u64,
        from: &[u8],
    ) -> usize {
        if self.write_lent(session, file, offset, from) {
            view::hit(file, from.len());
            return from.len();
        }
        let write = |at: u64, from: &[u8]| {
            view::write(session, file, Some(at), from).is_some()
                || self.write_lent(session, file, at, from)
        };
        if from.len() > PARTS_BYTES_MAX {
            return 0;
        }
        let mut done = 0;
        while done < from.len()
            && let Some(part) = view::alike(session, file, offset + done as u64, from.len() - done)
            // All at once was tried.
            && part < from.len()
            && write(offset + done as u64, &from[done..done + part])
        {
            done += part;
        }
        view::hit(file, done);
        done
    }

    /// Whether an entry counts that was posted while no other session could have met the file.
    /// One that met it meanwhile did so before the entry was there, or is seen here: then the
    /// service says what became of it, before the caller gets an answer. `None`: the service is
    /// gone.
    fn counts(
        &'static self,
        session: &'static Session,
        file: &Record,
        position: u32,
    ) -> Option<bool> {
        fence(SeqCst);
        match self.is_alone_with(file) {
            true => Some(true),
            false => was_done(session, position),
        }
    }

    /// Sets rights or times of a file that was made under a lease and that nobody else can have
    /// met: true. False: the ordinary way.
    pub(crate) fn set(
        &'static self,
        session: &'static Session,
        file: &Record,
        what: &NewState,
    ) -> bool {
        let handle = file.handle.load(Relaxed);
        if !self.is_alone_with(file) {
            return false;
        }
        let inside = self.enter(session).filter(|_| self.is_alone_with(file));
        let Some(inside) = inside else { return false };
        let mut entry = inside.stamped(Change::Set, 0, ShortName::default());
        entry.handle = handle;
        let former = session.channel.stream().last();
        let former = former.filter(|last| last.change == Change::Set && last.handle == handle);
        let merged = former.map(|last| what.on(Entry { time: entry.time, ..last }));
        if !merged.is_some_and(|merged| inside.replace(&merged))
            && inside.post(&what.on(entry)).is_err()
        {
            return false;
        }
        let position = session.channel.stream().last_position();
        drop(inside);
        self.counts(session, file, position) == Some(true)
    }
}

impl Inside {
    /// Puts bytes into the ring, and the entry that writes them; its position. `None`: neither.
    fn post_write(&self, handle: u64, offset: u64, from: &[u8], flags: u32) -> Option<u32> {
        let head = self.leases.head.load(Relaxed);
        let at = self.take_bytes(from.len())?;
        self.session.channel.stream_put(at, from);
        let (at, len) = (at as u32, from.len() as u32);
        let stamped = self.stamped(Change::Write, 0, ShortName::default());
        let posted = self.post(&Entry { handle, at, len, offset, flags, ..stamped });
        if posted.is_err() {
            self.leases.head.store(head, Relaxed);
        }
        posted.ok().map(|()| self.session.channel.stream().last_position())
    }
}

/// Whether the entry at a position was applied, not refused.
#[cold]
fn was_done(session: &'static Session, position: u32) -> Option<bool> {
    let arg = [position.into(), 0, 0, 0];
    let asked = Message { flags: STREAMED, arg, ..Message::new(Op::Ping) };
    call::plain(session, asked).ok().map(|reply| reply.value[0] == 0)
}

/// What [`Leases::set`] sets.
#[derive(Clone, Copy, Default)]
pub(crate) struct NewState {
    /// Which of them.
    pub(crate) mask: SetState,
    /// Permission bits.
    pub(crate) perm: u16,
    /// Access and modification time: nanoseconds since 1970.
    pub(crate) times: [i64; 2],
}

impl NewState {
    /// As a change of what `entry` sets already.
    fn on(&self, mut entry: Entry) -> Entry {
        let is = |what| self.mask.intersects(what);
        if is(SetState::PERM) {
            entry.perm = self.perm;
        }
        for bits in [SetState::ATIME_ANY, SetState::MTIME_ANY] {
            if is(bits) {
                entry.umask &= !bits.bits();
            }
        }
        if is(SetState::ATIME) {
            entry.atime = self.times[0];
        }
        if is(SetState::MTIME) {
            entry.born = self.times[1];
        }
        entry.umask |= self.mask.bits();
        entry
    }
}
