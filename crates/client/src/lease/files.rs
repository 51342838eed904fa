//! Open files that were made under a lease: what nobody else can have met is written, set and
//! closed by the stream.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;

use polylane_ipc::message::{Message, Op};
use polylane_ipc::stream::{self, Change, Entry, ShortName, WRITE_BYTES_MAX};
use polylane_ipc::view::FRAME_BYTES;

use super::{Inside, Leases, is_streamed};
use crate::session::Session;
use crate::table::{Record, bit};
use crate::{call, state, view};

/// Writes beyond take the ordinary way, which knows what the largest file is.
const OFFSET_MAX: u64 = 1 << 30;
/// Pages beyond have no place in a view.
const LENT_OFFSET_MAX: u64 = 1 << 36;
/// Flags of open files whose writes are not to wait.
const UNSTREAMED_FLAGS: i32 = libc::O_SYNC | libc::O_DSYNC | libc::O_DIRECT;

/// Closes a file that was made under a lease: true then, and its slot is free. False: the ordinary
/// way.
pub(crate) fn close(session: &'static Session, handle: u64) -> bool {
    let Some(inside) = state::get().leases.enter(session) else { return false };
    match session.channel.stream().last() {
        Some(last)
            if last.change == Change::Make
                && last.slot != 0
                && last.handle == handle
                && inside.replace(&Entry { slot: 0, flags: 0, handle: 0, ..last }) =>
        {
            true
        }
        _ => inside.post(&Entry { change: Change::Close, handle, ..Entry::default() }).is_ok(),
    }
}

/// Writes to a file that was made under a lease and that nobody else can have met, at an offset or,
/// without one, at its end, with the file's own offset locked. Returns the offset after it; `None`:
/// the ordinary way.
#[inline]
pub(crate) fn write(
    session: &'static Session,
    file: &Record,
    offset: Option<u64>,
    from: &[u8],
) -> Option<u64> {
    if !is_streamed(file.handle.load(Relaxed)) {
        return None;
    }
    let start = match offset {
        Some(offset) => offset,
        None if file.is(bit::AT_END) => file.offset.load(Relaxed),
        None => return None,
    };
    if !post_write(session, file, start, from) {
        return None;
    }
    // An append is not done twice. Where its service is gone, so is what it had in memory alone.
    let alone = is_still_alone(session, file.handle.load(Relaxed));
    (alone || offset.is_none()).then_some(start + from.len() as u64)
}

fn post_write(session: &'static Session, file: &Record, offset: u64, from: &[u8]) -> bool {
    let (leases, handle) = (&state::get().leases, file.handle.load(Relaxed));
    let flags = file.flags.load(Relaxed).cast_signed();
    if from.len() > WRITE_BYTES_MAX || flags & UNSTREAMED_FLAGS != 0 || offset > OFFSET_MAX {
        return false;
    }
    let alone = || leases.is_alone(handle) && file.view.load(Relaxed) == 0;
    if !alone() || file.is(bit::SHARED | bit::ESCAPED) {
        return false;
    }
    let inside = leases.enter(session).filter(|_| alone() && leases.data.load(Relaxed));
    let Some(inside) = inside else { return false };
    inside.post_write(handle, offset, from, 0)
}

/// What became of a write to a file on loan.
pub(crate) enum Lent {
    /// It is to be done the ordinary way.
    Ordinary,
    /// It counts.
    Done,
    /// The loan was over meanwhile, or the page lent: by the entry at this position it was done or
    /// was not.
    Asked(u32),
}

/// Writes whole pages of a file on loan that were not lent: they need no answer, since whoever else
/// comes near the file first has them applied.
pub(crate) fn write_lent(
    session: &'static Session,
    file: &Record,
    offset: u64,
    from: &[u8],
) -> Lent {
    let (page, end) = (FRAME_BYTES as u64, offset.saturating_add(from.len() as u64));
    let flags = file.flags.load(Relaxed).cast_signed();
    let fits = from.len() <= WRITE_BYTES_MAX && flags & UNSTREAMED_FLAGS == 0;
    let whole = offset.is_multiple_of(page) && end.is_multiple_of(page) && end <= LENT_OFFSET_MAX;
    let stream = || view::stream_for(session, file, (offset, end));
    let loan = if fits && whole { stream() } else { 0 };
    if loan == 0 {
        return Lent::Ordinary;
    }
    match post_lent(session, file, offset, from) {
        None => Lent::Ordinary,
        Some(position) => {
            // Who ends the loan says so first, and then looks at the stream.
            fence(SeqCst);
            if stream() == loan { Lent::Done } else { Lent::Asked(position) }
        }
    }
}

/// The position of the entry.
fn post_lent(session: &'static Session, file: &Record, offset: u64, from: &[u8]) -> Option<u32> {
    let inside = state::get().leases.enter_stream(session)?;
    let posted = inside.post_write(file.handle.load(Relaxed), offset, from, stream::LENT);
    posted.then(|| session.channel.stream().last_position())
}

impl Inside {
    /// Puts bytes into the ring, and the entry that writes them. False: neither.
    fn post_write(&self, handle: u64, offset: u64, from: &[u8], flags: u32) -> bool {
        let head = self.leases.head.load(Relaxed);
        let Some(at) = self.take_bytes(from.len()) else { return false };
        self.session.channel.stream_put(at, from);
        let (at, len) = (at as u32, from.len() as u32);
        let stamped = self.stamped(Change::Write, 0, ShortName::default());
        let posted = self.post(&Entry { handle, at, len, offset, flags, ..stamped }).is_ok();
        if !posted {
            self.leases.head.store(head, Relaxed);
        }
        posted
    }
}

/// Another thread that opened the file meanwhile did so before the entry, or is seen here: then the
/// entry is applied before anybody hears of it.
fn is_still_alone(session: &'static Session, handle: u64) -> bool {
    fence(SeqCst);
    state::get().leases.is_alone(handle) || call::plain(session, Message::new(Op::Ping)).is_ok()
}

/// Sets rights or times of a file that was made under a lease and that nobody else can have met:
/// true. False: the ordinary way.
pub(crate) fn set(session: &'static Session, file: &Record, what: &NewState) -> bool {
    let handle = file.handle.load(Relaxed);
    let alone = |leases: &Leases| leases.is_alone(handle) && file.view.load(Relaxed) == 0;
    let leases = &state::get().leases;
    if !alone(leases) || file.is(bit::SHARED | bit::ESCAPED) {
        return false;
    }
    let Some(inside) = leases.enter(session).filter(|_| alone(leases)) else { return false };
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
    drop(inside);
    is_still_alone(session, handle)
}

/// What [`set`] sets.
#[derive(Clone, Copy, Default)]
pub(crate) struct NewState {
    /// Bits of [`stream::set`].
    pub(crate) mask: u16,
    /// Permission bits.
    pub(crate) perm: u16,
    /// Access and modification time: nanoseconds since 1970.
    pub(crate) times: [i64; 2],
}

impl NewState {
    /// As a change of what `entry` sets already.
    fn on(&self, mut entry: Entry) -> Entry {
        let is = |bits: u16| self.mask & bits != 0;
        if is(stream::set::PERM) {
            entry.perm = self.perm;
        }
        for bits in [stream::set::ATIME_ANY, stream::set::MTIME_ANY] {
            if is(bits) {
                entry.umask &= !bits;
            }
        }
        if is(stream::set::ATIME) {
            entry.atime = self.times[0];
        }
        if is(stream::set::MTIME) {
            entry.born = self.times[1];
        }
        entry.umask |= self.mask;
        entry
    }
}
