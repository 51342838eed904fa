//! Open files as the service shows them: state and pages in this process's memory, read without a
//! request, and written without one where the service lends them. `docs/design/client-cache.md`.
//!
//! Whatever is not there, or changes while it is read, is asked for as ever. The request says that
//! the file is to be shown; the answer says where.
//!
//! # Invariants
//!
//! - A record's view is good with the session that it names, as long as the record is held.
//! - What was written counts only if the gate was still open after it; else it is written again, by
//!   a request. An end that was moved counts with it: nobody saw what does not count.
//! - Whoever comes near finds each page old or new, wherever this process was stopped: what lies
//!   below the end is written in a spare frame, to which the page is switched over at once.
//! - What a dead service showed counts no more: whether it is dead is looked at last.
//!
//! # Locking
//!
//! The gate of a view keeps the threads of this process apart that write to it. Nobody waits for it
//! for long: a handler may have interrupted the thread that is inside.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use polylane_ipc::lent::Locks;
use polylane_ipc::message::{Message, Op, TransferFlags, WireAttr};
use polylane_ipc::view::{FRAME_BYTES, Found, HAS_DATA, Look, NOTES_READS};

use crate::fd::record::Record;
use crate::fd::table::Glance;
use crate::kernel::config;
use crate::session::{Mark, Session};

/// Of a record's view: it came with a read that reached the end, before any was asked for.
const END_ONLY: u64 = 1 << 31;

/// Longer reads and writes are requests: what one of them moves costs more than the way.
const BYTES_MAX: usize = 64 << 10;
/// Pages that a write of so many bytes may touch.
const PAGES_MAX: usize = BYTES_MAX / FRAME_BYTES + 1;
/// Requests in a row that ask for a view in vain before that is left to every sixteenth.
const TRIES: u32 = 4;
/// Requests in a row, on a file that is shown, after which every eighth asks for more: what is read
/// at random from more than there is room for is hardly ever found.
const MISSES: u32 = 32;
/// Times that a page is copied that changes meanwhile, before it is asked for.
const READ_TRIES: usize = 4;
/// Looks at a gate while another thread is inside.
const SPINS: u32 = 100;

/// Flags of open files whose writes must have reached the service.
const AWAITED_FLAGS: u32 = (libc::O_SYNC | libc::O_DSYNC) as u32;

type Views = polylane_ipc::view::Views<polylane_ipc::memory::Mapped<'static>>;

/// Nanoseconds since 1970 by the coarse clock, as file times are; no system call.
pub(crate) fn now() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}

/// The views of a session, and the number of the file's.
#[inline(always)]
fn shown(session: &'static Session, file: &Record) -> Option<(Views, u32)> {
    let word = file.view.load(Ordering::Relaxed);
    let number = ((word & !END_ONLY) as u32).checked_sub(1)?;
    if (word >> 32) as u32 != session.number {
        return None;
    }
    if session.channel.is_dead() {
        session.lose();
        return None;
    }
    Some((session.channel.views()?, number))
}

/// The flags of a request of `len` bytes that could show the file.
#[inline]
pub(crate) fn wish(file: &Record, len: usize) -> TransferFlags {
    if len > BYTES_MAX {
        return TransferFlags::empty();
    }
    let asked = file.asked.fetch_add(1, Ordering::Relaxed);
    let worth = match file.view.load(Ordering::Relaxed) {
        word if word == 0 || word & END_ONLY != 0 => asked
            .checked_sub(config::views())
            .is_some_and(|tries| tries < TRIES || tries.is_multiple_of(16)),
        _ => asked < MISSES || asked.is_multiple_of(8),
    };
    if !worth {
        return TransferFlags::empty();
    }
    file.meet();
    let found = asked == 0 && file.view.load(Ordering::Relaxed) != 0;
    if found { TransferFlags::SHOW | TransferFlags::FOUND } else { TransferFlags::SHOW }
}

/// As [`wish`], for a read: one of any length that reaches the end shows where that is. A file
/// whose writes may be streamed stays out of view.
#[inline]
pub(crate) fn wish_to_read(file: &Record, len: usize) -> TransferFlags {
    let flags = wish(file, len);
    match flags.is_empty() && !file.is_streamed() && config::views() != config::NEVER {
        true => TransferFlags::SHOW_END,
        false => flags,
    }
}

/// As [`wish`], for a write, after which the pages are to be lent.
#[inline]
pub(crate) fn wish_to_write(file: &Record, len: usize) -> TransferFlags {
    let awaited = file.flags.load(Ordering::Relaxed) & AWAITED_FLAGS != 0;
    if awaited { TransferFlags::empty() } else { wish(file, len) }
}

/// So many bytes were found or put where they are shown, or put where that can be done without.
#[inline]
pub(crate) fn hit(file: &Record, bytes: usize) {
    if bytes > 0 && file.asked.load(Ordering::Relaxed) != 0 {
        file.asked.store(0, Ordering::Relaxed);
    }
}

/// The answer to such a request with these flags: its `handle`.
#[inline]
pub(crate) fn learn(session: &Session, file: &Record, flags: TransferFlags, number: u64) {
    let end_only = if flags.contains(TransferFlags::SHOW) { 0 } else { END_ONLY };
    let known = file.view.load(Ordering::Relaxed);
    if number != 0 && (known == 0 || known & END_ONLY > end_only) {
        let word = u64::from(session.number) << 32 | number & (END_ONLY - 1) | end_only;
        if end_only == 0 {
            file.asked.store(1, Ordering::Relaxed);
        }
        file.view.store(word, Ordering::Relaxed);
    }
}

/// The state of an open file, if it is shown. Writes nothing.
#[inline(always)]
pub(crate) fn attr(session: &'static Session, file: &Record) -> Option<WireAttr> {
    let (views, number) = shown(session, file)?;
    views.attr(number).filter(|_| !session.channel.is_dead())
}

/// Reads what is shown; `None`: to be asked for.
#[inline]
pub(crate) fn read(
    session: &'static Session,
    file: &Record,
    offset: u64,
    into: &mut [u8],
) -> Option<usize> {
    let note = |views: &Views, number| views.note_read(number, now);
    copy(session, file, offset, into, note).inspect(|&count| hit(file, count))
}

/// As [`read`], and writes nothing but the bytes: it suffices to glance at the file. `None` too
/// where the read is to be noted.
#[inline(always)]
pub(crate) fn read_glanced(
    session: &'static Session,
    file: &Glance,
    offset: u64,
    into: &mut [u8],
) -> Option<usize> {
    let mut noted = true;
    let look = |views: &Views, number| noted = views.has_noted(number);
    let count = copy(session, file, offset, into, look).filter(|_| noted && file.is_still())?;
    // Whatever file it is by now: a guess of what is worth asking for.
    hit(file, count);
    Some(count)
}

/// Whether nobody but this process has POSIX locks of the file.
pub(crate) fn has_locks(session: &'static Session, file: &Record) -> bool {
    shown(session, file)
        .is_some_and(|(views, number)| views.has_locks(number) && !session.channel.is_dead())
}

/// Changes the POSIX locks that this process has of the file, where they are lent; `writes`: it
/// write-locks. False: to be done by a request.
pub(crate) fn change_locks(
    session: &'static Session,
    file: &Record,
    writes: bool,
    change: impl FnOnce(&mut Locks) -> bool,
) -> bool {
    shown(session, file).is_some_and(|(views, number)| {
        views.change_locks(number, writes, change) && !session.channel.is_dead()
    })
}

/// The POSIX locks that were lent by the service of a former session of this process, which died
/// before it took them back; once.
pub(crate) fn keep_locks(former: &'static Session, file: &Record) -> Option<Locks> {
    let number = ((file.view.load(Ordering::Relaxed) & !END_ONLY) as u32).checked_sub(1)?;
    former.channel.views()?.keep_locks(number)
}

/// Whether the access time is not after every change (`relatime`).
fn is_atime_old(attr: &WireAttr) -> bool {
    let time = |which: usize| (attr.sec[which], attr.nsec[which]);
    time(0) <= time(1).max(time(2))
}

/// Copies what is shown; `note` is called before it counts where the read moves the access time.
#[inline(always)]
fn copy(
    session: &'static Session,
    file: &Record,
    offset: u64,
    into: &mut [u8],
    note: impl FnOnce(&Views, u32),
) -> Option<usize> {
    let (views, number) = shown(session, file)?;
    let look = views.look(number)?;
    if !look.has(HAS_DATA) {
        // Bytes may be missing because a read moves the access time, also one that finds none.
        let moves = |attr: &WireAttr| is_atime_old(attr) && !into.is_empty();
        let ended = views.attr(number).is_some_and(|attr| attr.size <= offset && !moves(&attr));
        return (ended && !session.channel.is_dead()).then_some(0);
    }
    let count = views.size(number)?.saturating_sub(offset).min(into.len() as u64) as usize;
    if count > BYTES_MAX {
        return None;
    }
    let mut done = 0;
    while done < count {
        let at = offset + done as u64;
        let part = (FRAME_BYTES - within(at)).min(count - done);
        let part = &mut into[done..done + part];
        if !copy_page(session, &views, look, at, part)? {
            copy_again(session, &views, look, at, part)?;
        }
        done += part.len();
    }
    if look.has(NOTES_READS) && !into.is_empty() {
        note(&views, number);
    }
    (views.is_same(number, look) && !session.channel.is_dead()).then_some(count)
}

/// Where a byte of a file lies in its page.
fn within(offset: u64) -> usize {
    (offset % FRAME_BYTES as u64) as usize
}

/// Copies from one page; whether it was the file's all the time. `None`: it is not shown.
#[inline(always)]
fn copy_page(
    session: &'static Session,
    views: &Views,
    look: Look,
    at: u64,
    into: &mut [u8],
) -> Option<bool> {
    let found = views.find(look, at / FRAME_BYTES as u64)?;
    session.channel.frame_get(views.found_offset(found) + within(at), into);
    Some(views.is_whole(found))
}

/// The same where another thread wrote the page anew meanwhile.
#[cold]
fn copy_again(
    session: &'static Session,
    views: &Views,
    look: Look,
    at: u64,
    into: &mut [u8],
) -> Option<()> {
    let mut copied = (1..READ_TRIES).map(|_| copy_page(session, views, look, at, into));
    copied.find(|whole| *whole != Some(false))?.map(drop)
}

/// Writes where the service lends it, at an offset or, without one, at the end of the file; returns
/// the offset after it. `None`: to be written by a request.
#[inline]
pub(crate) fn write(
    session: &'static Session,
    file: &Record,
    offset: Option<u64>,
    from: &[u8],
) -> Option<u64> {
    let put = || store(session, file, offset, from, || true);
    put().or_else(|| if extended(session, file) { put() } else { None })
}

/// The loan on which whole pages of the file from `offset` to `end` may be written by the stream,
/// none of which is shown; 0: there is none.
#[inline]
pub(crate) fn stream_for(
    session: &'static Session,
    file: &Record,
    (offset, end): (u64, u64),
) -> u64 {
    let Some((views, number)) = shown(session, file) else { return 0 };
    let loan = views.streams(number);
    let pages = offset / FRAME_BYTES as u64..end.div_ceil(FRAME_BYTES as u64);
    let unseen = |look: Look| !pages.clone().any(|page| views.find(look, page).is_some());
    let there = loan != 0
        && views
            .look(number)
            .filter(|look| look.has(HAS_DATA) && unseen(*look))
            .is_some_and(|look| views.size(number) >= Some(end) && views.is_same(number, look))
        && !session.channel.is_dead();
    if there { loan } else { 0 }
}

/// Something of the file is about to be written by the stream, on loan.
pub(crate) fn will_stream(session: &'static Session, file: &Record) {
    if let Some((views, number)) = shown(session, file) {
        views.will_stream(number);
    }
}

/// How many of `len` bytes from `offset` on lie in pages that are all shown, or all not shown.
/// `None`: nothing of the file is.
pub(crate) fn alike(
    session: &'static Session,
    file: &Record,
    offset: u64,
    len: usize,
) -> Option<usize> {
    let (page_bytes, (views, number)) = (FRAME_BYTES as u64, shown(session, file)?);
    let look = views.look(number).filter(|look| look.has(HAS_DATA))?;
    let is_shown = |page| views.find(look, page).is_some();
    let (first, end) = (offset / page_bytes, offset.saturating_add(len as u64));
    let mut pages = first..end.div_ceil(page_bytes);
    let former = is_shown(first);
    let other = pages.find(|&page| is_shown(page) != former);
    Some(other.map_or(len, |page| (page * page_bytes - offset) as usize))
}

thread_local! {
    /// The view that the calling thread asked more room for, and by which request.
    static EXTENDED: Cell<(u64, Mark)> = const { Cell::new((0, Mark::NONE)) };
}

/// Asks for more room behind the end, and goes on.
#[cold]
fn ask(session: &'static Session, file: &Record) {
    let (handle, view) = (file.handle.load(Ordering::Relaxed), file.view.load(Ordering::Relaxed));
    if let Some(mark) = session.post_if_free(&Message { handle, ..Message::new(Op::Extend) }) {
        EXTENDED.set((view, mark));
    }
}

/// Waits for the room that this thread asked for, for this file; false: it did not ask.
#[cold]
fn extended(session: &'static Session, file: &Record) -> bool {
    let (view, mark) = EXTENDED.replace((0, Mark::NONE));
    view != 0 && view == file.view.load(Ordering::Relaxed) && session.wait_for(mark).is_ok()
}

/// As [`write()`], at an offset; it suffices to glance at the file. A thread that is inside the
/// gate of the view, and then finds the number to mean the same file, is inside the gate of that
/// file: its view is another's only after its last number was given up.
#[inline(always)]
pub(crate) fn write_glanced(
    session: &'static Session,
    file: &Glance,
    offset: u64,
    from: &[u8],
) -> Option<u64> {
    store(session, file, Some(offset), from, || file.is_still())
}

/// Stores bytes if, once inside the gate, `is_still` says that it is the file's.
#[inline(always)]
fn store(
    session: &'static Session,
    file: &Record,
    offset: Option<u64>,
    from: &[u8],
    is_still: impl FnOnce() -> bool,
) -> Option<u64> {
    let awaited = file.flags.load(Ordering::Relaxed) & AWAITED_FLAGS != 0;
    let (views, number) = shown(session, file)?;
    if awaited || from.is_empty() || from.len() > BYTES_MAX {
        return None;
    }
    for _ in 0..SPINS {
        if !views.is_crowded(number) {
            break;
        }
        std::hint::spin_loop();
    }
    let inside = views.enter(number)?;
    let (size, room) = views.end_and_room(number, &inside);
    // What lies between the end and an offset past it would have to be made zeros; what lies on
    // both sides of the end would change at once only below it.
    let at = offset.unwrap_or(size);
    let end = at.checked_add(from.len() as u64).filter(|&end| {
        let moves = end > size;
        (!moves || at == size && end <= room) && (offset.is_some() || moves) && is_still()
    });
    let put = end.and_then(|end| {
        let how = if end > size { Put::Behind } else { Put::Anew };
        put(session, &views, number, (at, from), how).map(|()| end)
    });
    let counts = views.leave(number, inside, put.map(|_| now()), put.unwrap_or(0).max(size));
    let end = put.filter(|_| counts && !session.channel.is_dead())?;
    hit(file, from.len());
    if views.is_to_ask(number, end) {
        ask(session, file);
    }
    Some(end)
}

/// How bytes come into a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Put {
    /// Behind the end: no client reads them before it has moved.
    Behind,
    /// In place of others, all of a page's at once.
    Anew,
}

/// Stores bytes in frames, from inside the gate. All of them, or nothing that counts.
#[inline]
fn put(
    session: &Session,
    views: &Views,
    number: u32,
    (offset, from): (u64, &[u8]),
    how: Put,
) -> Option<()> {
    let look = views.look(number).filter(|look| look.has(HAS_DATA))?;
    let end = offset + from.len() as u64;
    let within = (offset % FRAME_BYTES as u64) as usize;
    let put_page = |found, within, from: &[u8]| match how {
        Put::Behind => {
            session.channel.frame_put(views.found_offset(found) + within, from);
            Some(())
        }
        Put::Anew => renew(session, views, (number, found), (within, from)),
    };
    if within + from.len() <= FRAME_BYTES {
        return put_page(lent(views, look, offset / FRAME_BYTES as u64, how)?, within, from);
    }
    let mut frames = [const { None }; PAGES_MAX];
    let (first, last) = (offset / FRAME_BYTES as u64, (end - 1) / FRAME_BYTES as u64);
    for (frame, page) in frames.iter_mut().zip(first..=last) {
        *frame = Some(lent(views, look, page, how)?);
    }
    let mut done = 0;
    for frame in frames.into_iter().flatten() {
        let within = ((offset + done as u64) % FRAME_BYTES as u64) as usize;
        let part = (FRAME_BYTES - within).min(from.len() - done);
        put_page(frame, within, &from[done..done + part])?;
        done += part;
    }
    (done == from.len()).then_some(())
}

/// The frame of a page that may be written; marked as written, if that is done there.
#[inline]
fn lent(views: &Views, look: Look, page: u64, how: Put) -> Option<Found> {
    views.find(look, page).filter(|found| match how {
        Put::Behind => views.mark(*found),
        Put::Anew => views.may_switch(*found),
    })
}

/// Changes bytes of a page: they and what else it holds are put into the spare frame, which is the
/// page's then.
#[inline]
fn renew(
    session: &Session,
    views: &Views,
    (number, found): (u32, Found),
    (within, from): (usize, &[u8]),
) -> Option<()> {
    let spare = views.spare(number)?;
    let (old, new) = (views.found_offset(found), views.frame_offset(spare));
    session.channel.frame_put(new + within, from);
    if from.len() < FRAME_BYTES {
        let after = within + from.len();
        session.channel.frame_copy(old, new, within);
        session.channel.frame_copy(old + after, new + after, FRAME_BYTES - after);
    }
    views.switch(number, found, spare).then_some(())
}
