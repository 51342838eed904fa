//! Cached handles: what a program opens again and again, without changing it, it closes and opens
//! without a request.
//!
//! ```text
//!   Op::Open, MAY_REST ──► in use ── last close ──► parked ── open of the same path ──► in use
//!                             └─ mark broken ─► Op::Close └─ another needs the slot ─► Op::Close
//! ```
//!
//! A parked file keeps its handle, its slot and its view. It is opened again by a path as long as
//! the mark that came with its open holds (`rights::lookup`): the path leads to the same file in
//! the same state, and this session may read it. The service takes a parked file back when it lost
//! its last name; a word in its view says whose it is. One that has to make room is closed by the
//! open that takes its slot. `docs/design/client-cache.md`.
//!
//! # Invariants
//!
//! - The place of a parked file is that of its slot, and belongs to the thread that has the slot.
//! - A file is parked, or reopened, first; then its mark is compared. The service, when the file's
//!   last name is removed, raises the mark first, and then takes the file back if it is parked. So
//!   none stays parked without a name.
//! - A process that takes POSIX locks parks no file: a close gives locks up.
//!
//! # Locking
//!
//! None: see `fd::preopened`.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};

use polylane_ipc::message::{
    AT_REST, FIRST, IS_MARK, MAY_BE_DIR, MAY_REST, Message, Op, Reply, TransferFlags,
};
use zerocopy::FromZeros;

use crate::fd::at::At;
use crate::fd::file::LARGEFILE;
use crate::fd::preopened::{self, SLOTS, SlotPool, Taken};
use crate::fd::record::{FileBits, Record};
use crate::fd::table::{Pin, Records};
use crate::kernel::config;
use crate::kernel::outcome::Outcome;
use crate::kernel::real;
use crate::rights::lookup::{Asked, PATH_WORDS, Question, sum_now, words};
use crate::rights::view;
use crate::session::{Mark, Session};

/// Flags of opens whose files may be parked, `O_RDONLY` too; those not in the question change
/// nothing that lasts.
const FLAGS: i32 = libc::O_RDWR
    | libc::O_APPEND
    | libc::O_CLOEXEC
    | libc::O_NOFOLLOW
    | libc::O_NONBLOCK
    | libc::O_NOCTTY
    | LARGEFILE as i32;
/// What keeps an open file from being parked.
const BARRED: FileBits = FileBits::ESCAPED
    .union(FileBits::SHARED)
    .union(FileBits::LOCKED)
    .union(FileBits::FLAGGED)
    .union(FileBits::DIRECTORY);
/// Seconds since it was really opened, after which it is opened anew: an open looks whether the
/// access time is due.
const AGE_MAX: i64 = 60;

/// What a slot more is worth at most, and at least: files that were opened again count up, also
/// those that had had to make room; files that had to make room count down.
const WORTH_MAX: i32 = 256;
/// What a file is worth that was opened again.
const HIT: i32 = 4;
/// Hashes of files that had to make room, which are remembered; each has one place.
const MISSED: usize = 1024;
/// Hashes of opens that came before, which are remembered, in pairs.
const SEEN: usize = 4096;
/// One more slot is made for so many files that had to make room, if it is worth it.
const CROWD: u32 = 8;

/// A file that cached, or may. All zero: none.
#[derive(FromZeros)]
#[repr(align(64))]
struct CachedHandle {
    /// Bytes of the path, and the question.
    head: AtomicU64,
    dir: AtomicU64,
    places: AtomicU64,
    sum: AtomicU64,
    handle: AtomicU64,
    /// Under which it may be parked; 0: it may not.
    number: AtomicU64,
    /// Number of its view.
    view: AtomicU32,
    /// As the record's.
    flags: AtomicU32,
    /// Number of the session that it is open in.
    session: AtomicU32,
    /// 1: it was opened once, and is parked for the next open to close.
    once: AtomicU32,
    /// What the record knew of the view.
    shown: AtomicU64,
    /// Seconds of the monotonic clock when it was opened.
    opened_at: AtomicI64,
    path: [AtomicU64; PATH_WORDS],
}

/// All of them, by the places of their slots. Zero is "none".
#[derive(FromZeros)]
pub(crate) struct CachedHandles {
    entries: [CachedHandle; SLOTS],
    /// Hashes of what was asked for them, side by side.
    hashes: [AtomicU64; SLOTS],
    /// When they were parked: the count of files parked before.
    since: [AtomicU64; SLOTS],
    /// Upper halves of hashes of files that had to make room.
    missed: [AtomicU32; MISSED],
    /// Upper halves of hashes of opens that came, the last one first.
    seen: [[AtomicU32; 2]; SEEN / 2],
    /// What a slot more is worth.
    worth: AtomicI32,
    /// Files that made room for others.
    gone: AtomicU32,
    /// Files parked so far.
    count: AtomicU64,
}

impl CachedHandles {
    pub(crate) const fn new() -> Self {
        CachedHandles {
            entries: [const { CachedHandle::new() }; SLOTS],
            hashes: [const { AtomicU64::new(0) }; SLOTS],
            since: [const { AtomicU64::new(0) }; SLOTS],
            missed: [const { AtomicU32::new(0) }; MISSED],
            seen: [const { [const { AtomicU32::new(0) }; 2] }; SEEN / 2],
            worth: AtomicI32::new(0),
            gone: AtomicU32::new(0),
            count: AtomicU64::new(0),
        }
    }

    fn count_hit(&self) {
        let worth = self.worth.load(Ordering::Relaxed);
        self.worth.store((worth + HIT).min(WORTH_MAX), Ordering::Relaxed);
    }

    fn count_miss(&self) {
        let worth = self.worth.load(Ordering::Relaxed);
        self.worth.store((worth - 1).max(-WORTH_MAX), Ordering::Relaxed);
    }

    /// Whether such an open came before, lately; notes that it came.
    fn came_before(&self, hash: u64) -> bool {
        let [last, other] = &self.seen[hash as usize % (SEEN / 2)];
        let before = [last, other].map(|seen| seen.load(Ordering::Relaxed));
        if before[0] != upper(hash) {
            other.store(before[0], Ordering::Relaxed);
            last.store(upper(hash), Ordering::Relaxed);
        }
        before.contains(&upper(hash)) || config::views() == 0
    }

    /// The file of such an open has to make room; `once`: which was the only one.
    fn makes_room(&self, hash: u64, once: bool) {
        if !once {
            self.count_miss();
        }
        self.missed[hash as usize % MISSED].store(upper(hash), Ordering::Relaxed);
    }

    /// Such an open found none parked: had there been more room, it might have.
    fn count_missed(&self, hash: u64) {
        let missed = &self.missed[hash as usize % MISSED];
        if missed.load(Ordering::Relaxed) == upper(hash) {
            missed.store(0, Ordering::Relaxed);
            self.count_hit();
        }
    }

    /// Whether so many files had to make room for others that one more slot is worth it. The file
    /// whose room is asked for is one of them.
    fn is_crowded(&self) -> bool {
        let gone = self.gone.fetch_add(1, Ordering::Relaxed);
        gone % CROWD == CROWD - 1 && self.worth.load(Ordering::Relaxed) > -WORTH_MAX
    }
}

/// The part of a hash that does not say its place; never 0.
fn upper(hash: u64) -> u32 {
    (hash >> 32) as u32 | 1
}

impl CachedHandle {
    const fn new() -> Self {
        CachedHandle {
            head: AtomicU64::new(0),
            dir: AtomicU64::new(0),
            places: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            handle: AtomicU64::new(0),
            number: AtomicU64::new(0),
            view: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            session: AtomicU32::new(0),
            once: AtomicU32::new(0),
            shown: AtomicU64::new(0),
            opened_at: AtomicI64::new(0),
            path: [const { AtomicU64::new(0) }; PATH_WORDS],
        }
    }

    fn is(&self, asked: &Asked<'_>) -> bool {
        self.head.load(Ordering::Relaxed) == asked.head(0)
            && self.dir.load(Ordering::Relaxed) == asked.dir
            && words(asked.path).zip(&self.path).all(|(a, b)| a == b.load(Ordering::Relaxed))
    }

    /// Whether an open of the path would give this very file. To be asked after it was parked or
    /// reopened.
    fn holds(&self, session: &'static Session) -> bool {
        let places = self.places.load(Ordering::Relaxed);
        let age = real::seconds() - self.opened_at.load(Ordering::Relaxed);
        age < AGE_MAX && sum_now(session, places) == Some(self.sum.load(Ordering::Relaxed))
    }

    fn park(&self, session: &Session) -> bool {
        let (view, number) = self.name(session);
        number != 0 && session.channel.views().is_some_and(|views| views.lie_down(view, number))
    }

    fn unpark(&self, session: &Session) -> bool {
        let (view, number) = self.name(session);
        number != 0 && session.channel.views().is_some_and(|views| views.get_up(view, number))
    }

    /// Its view, and under which number it may be parked; 0: not in this session.
    fn name(&self, session: &Session) -> (u32, u64) {
        let ours = self.session.load(Ordering::Relaxed) == session.number;
        let number = if ours { self.number.load(Ordering::Relaxed) } else { 0 };
        (self.view.load(Ordering::Relaxed), number)
    }

    /// Nothing is parked here any more.
    fn clear(&self) {
        self.number.store(0, Ordering::Relaxed);
    }
}

/// What an open asks whose file, or the kernel's descriptor of whose directory, may be parked;
/// `None`: it may not.
#[inline]
pub(crate) fn question<'a>(at: &At<'a>, flags: i32) -> Option<Asked<'a>> {
    if flags & !(FLAGS | libc::O_DIRECTORY) != 0 {
        return None;
    }
    Asked::new(at, Question::Open { flags })
}

/// Whether an open with these flags may be answered with a directory.
pub(crate) fn may_be_dir(flags: i32) -> bool {
    flags & !(FLAGS | libc::O_DIRECTORY) == 0 && flags & (libc::O_RDWR | libc::O_APPEND) == 0
}

/// What an open asks for.
pub(crate) struct Wish {
    /// Its `arg[2]`.
    pub(crate) arg: u64,
    /// It is the first one of late.
    pub(crate) once: bool,
}

/// A parked file that has to be closed. Dropped, it is closed by a request of its own, and
/// waited for.
pub(crate) struct Evicted {
    session: &'static Session,
    handle: u64,
}

impl Evicted {
    /// Its handle, for a request that closes it first.
    pub(crate) fn into_handle(self) -> u64 {
        std::mem::ManuallyDrop::new(self).handle
    }
}

impl Drop for Evicted {
    fn drop(&mut self) {
        // Without an answer the session is over.
        let _ = post(self.session, self.handle).map(|mark| self.session.wait_for(mark));
    }
}

/// A slot taken for an open that is under way. Dropped, it is free again.
pub(crate) struct TakenSlot {
    /// The file that was parked with it, still to be closed. Dropped first.
    evicted: Option<Evicted>,
    taken: Taken,
}

impl TakenSlot {
    /// The slot stays taken; its place in the pool, and what is to be closed before it is bound.
    pub(crate) fn keep(self) -> (u32, Option<Evicted>) {
        (self.taken.keep(), self.evicted)
    }
}

/// The cached handles of a process, with what else a parked file takes up.
#[derive(Clone, Copy)]
pub(crate) struct HandleCache {
    pub(crate) cached: &'static CachedHandles,
    pub(crate) slots: &'static SlotPool,
    pub(crate) records: &'static Records,
}

impl HandleCache {
    /// Whether such an open came before, lately; notes that it came.
    pub(crate) fn came_before(self, asked: &Asked<'_>) -> bool {
        self.cached.came_before(asked.hash)
    }

    /// Whether the file of an open may be parked: it is worth it from the second open on, and for
    /// what is read by one of many opens in a row, since the next one then closes it; but not in a
    /// process that `locks`. And whether it may be a directory.
    pub(crate) fn wish(self, asked: &Asked<'_>, flags: i32, in_row: bool, locks: bool) -> Wish {
        let once = !self.came_before(asked);
        let arg = match (once, locks) {
            (true, false) if in_row && flags & libc::O_ACCMODE == libc::O_RDONLY => {
                MAY_REST | FIRST
            }
            (false, false) => MAY_REST,
            _ => 0,
        };
        let dir = if !once && may_be_dir(flags) { MAY_BE_DIR } else { 0 };
        Wish { arg: arg | dir, once }
    }

    /// The answer to such an open.
    pub(crate) fn learn(
        self,
        session: &Session,
        file: &Record,
        (asked, once): (&Asked<'_>, bool),
        reply: &Reply,
    ) {
        let [_, _, places, sum, number, view, ..] = reply.value;
        let Some(shown) = (view as u32).checked_sub(1) else { return };
        let place = file.slot.load(Ordering::Relaxed).wrapping_sub(1);
        let entry = self.cached.entries.get(place as usize);
        let Some(entry) = entry.filter(|_| number != 0 && places & IS_MARK != 0) else { return };
        self.cached.hashes[place as usize].store(asked.hash, Ordering::Relaxed);
        entry.head.store(asked.head(0), Ordering::Relaxed);
        entry.dir.store(asked.dir, Ordering::Relaxed);
        entry.places.store(places, Ordering::Relaxed);
        entry.sum.store(sum, Ordering::Relaxed);
        entry.handle.store(reply.handle, Ordering::Relaxed);
        entry.number.store(number, Ordering::Relaxed);
        entry.view.store(shown, Ordering::Relaxed);
        entry.session.store(session.number, Ordering::Relaxed);
        entry.once.store(once.into(), Ordering::Relaxed);
        entry.flags.store(file.flags.load(Ordering::Relaxed), Ordering::Relaxed);
        entry.opened_at.store(real::seconds(), Ordering::Relaxed);
        words(asked.path).zip(&entry.path).for_each(|(a, b)| b.store(a, Ordering::Relaxed));
        view::learn(session, file, TransferFlags::SHOW_END, view);
        file.set(FileBits::PARKABLE);
    }

    /// The parked file that an open of a path gives, in use again.
    #[inline]
    pub(crate) fn again(
        self,
        session: &'static Session,
        asked: &Asked<'_>,
        flags: i32,
    ) -> Option<Pin> {
        let places = self.slots.places((flags & libc::O_ACCMODE) as usize);
        let hashes = places.clone().zip(&self.cached.hashes[places]);
        let is_it = |hash: &AtomicU64| hash.load(Ordering::Relaxed) == asked.hash;
        let mut places = hashes.filter(|(_, hash)| is_it(hash)).map(|(place, _)| place);
        let found = places.find_map(|place| self.unpark(session, place, asked));
        if found.is_none() {
            self.cached.count_missed(asked.hash);
        }
        found
    }

    fn unpark(self, session: &'static Session, place: usize, asked: &Asked<'_>) -> Option<Pin> {
        let entry = &self.cached.entries[place];
        if !self.slots.unpark(session, place) {
            return None;
        }
        if !entry.is(asked) {
            self.slots.park(place);
            return None;
        }
        if !entry.unpark(session) {
            // The service took it back, and the slot with it.
            entry.clear();
            self.slots.free_parked(place, Some(Mark::NONE));
            return None;
        }
        if !entry.holds(session) {
            self.slots.free_parked(place, post_close(session, entry));
            return None;
        }
        let Some(file) = self.records.allocate(session.lane) else {
            self.slots.free_parked(place, post_close(session, entry));
            return None;
        };
        self.cached.count_hit();
        entry.once.store(0, Ordering::Relaxed);
        file.flags.store(entry.flags.load(Ordering::Relaxed), Ordering::Relaxed);
        file.handle.store(entry.handle.load(Ordering::Relaxed), Ordering::Relaxed);
        file.view.store(entry.shown.load(Ordering::Relaxed), Ordering::Relaxed);
        // A program that opens a file again reads it again: the service is to show what it asks
        // for.
        file.asked.store(config::views(), Ordering::Relaxed);
        file.session.store(session.number, Ordering::Relaxed);
        file.set(FileBits::PARKABLE);
        file.slot.store(place as u32 + 1, Ordering::Release);
        Some(file)
    }

    /// The last reference to an open file is gone. True: it cached, or was taken back meanwhile;
    /// false: it is to be closed. `present`: the session. Not for a process that takes POSIX locks,
    /// nor for one whose descriptors are used unseen.
    pub(crate) fn park_last(self, present: Option<&'static Session>, file: &Record) -> bool {
        let may = file.is(FileBits::PARKABLE) && !file.is(BARRED);
        may && present.is_some_and(|session| self.park(session, file))
    }

    fn park(self, session: &'static Session, file: &Record) -> bool {
        let place = file.slot.load(Ordering::Relaxed).wrapping_sub(1) as usize;
        let Some(entry) = self.cached.entries.get(place) else { return false };
        if file.session.load(Ordering::Relaxed) != session.number {
            return false;
        }
        let same = file.flags.load(Ordering::Relaxed) == entry.flags.load(Ordering::Relaxed);
        if !same || !entry.park(session) {
            return false;
        }
        if !entry.holds(session) {
            if entry.unpark(session) {
                return false;
            }
            // Its last name is gone, and it was taken back.
            entry.clear();
            self.slots.free_parked(place, Some(Mark::NONE));
            return true;
        }
        entry.shown.store(file.view.load(Ordering::Relaxed), Ordering::Relaxed);
        let count = self.cached.count.fetch_add(1, Ordering::Relaxed);
        self.cached.since[place].store(count, Ordering::Relaxed);
        self.slots.park(place);
        true
    }

    /// A slot for an open with these flags; made when none is free. `Kernel` when there are enough.
    pub(crate) fn take_slot(self, session: &'static Session, flags: i32) -> Outcome<TakenSlot> {
        let mode = preopened::mode(flags)?;
        if let Some(taken) = self.slots.take_free(session, mode)? {
            return Ok(TakenSlot { evicted: None, taken });
        }
        match self.take_parked(session, mode) {
            Some(taken) => Ok(taken),
            None => Ok(TakenSlot { evicted: None, taken: self.slots.make(session, mode)? }),
        }
    }

    /// The slot of the file that was parked first, which is closed, of those opened once if there
    /// are any; now and then a new one, so that more of the others may be parked.
    fn take_parked(self, session: &'static Session, mode: usize) -> Option<TakenSlot> {
        let is_once = |place: usize| self.cached.entries[place].once.load(Ordering::Relaxed) != 0;
        // When a file was parked: smaller is earlier.
        let since = |place: usize| self.cached.since[place].load(Ordering::Relaxed);
        let order = |place: &usize| (!is_once(*place), since(*place));
        let place = self.slots.parked(session, mode).min_by_key(order)?;
        if !is_once(place)
            && self.cached.is_crowded()
            && let Ok(taken) = self.slots.make_now(session, mode)
        {
            return Some(TakenSlot { evicted: None, taken });
        }
        let taken = self.slots.take_parked(place)?;
        Some(TakenSlot { evicted: self.evict(session, place), taken })
    }

    /// Has the file that is parked at a place whose slot the caller has make room. `None`: the
    /// service took it back.
    fn evict(self, session: &'static Session, place: usize) -> Option<Evicted> {
        let entry = &self.cached.entries[place];
        let once = entry.once.load(Ordering::Relaxed) != 0;
        self.cached.makes_room(self.cached.hashes[place].load(Ordering::Relaxed), once);
        let handle = entry.handle.load(Ordering::Relaxed);
        let ours = entry.unpark(session);
        entry.clear();
        ours.then_some(Evicted { session, handle })
    }

    /// Closes the file that is parked at a place whose slot the caller has: the close, under way.
    /// `None`: the session is over.
    fn close(self, session: &'static Session, place: usize) -> Option<Mark> {
        self.cached.count_miss();
        let entry = &self.cached.entries[place];
        if entry.unpark(session) {
            return post_close(session, entry);
        }
        // The service took it back, and the slot with it.
        entry.clear();
        Some(Mark::NONE)
    }

    /// Closes all parked files, and waits until they are: their slots must not be bound.
    pub(crate) fn close_all(self, session: &'static Session) {
        let mut any = false;
        for (place, _) in self.slots.all() {
            if self.slots.unpark(session, place) {
                self.slots.free_parked(place, self.close(session, place));
                any = true;
            }
        }
        if any {
            // Without an answer the session is over.
            let _ = self.slots.settle(session);
        }
    }

    /// Closes the library's descriptors of all free slots, and of parked files, which are closed:
    /// the program ran out of descriptors. Whether there were any. `present`: the session.
    pub(crate) fn shed(self, present: Option<&'static Session>) -> bool {
        self.slots.shed(|place, number| {
            if let Some(session) = present.filter(|session| session.number == number) {
                // Gone with the descriptor at the latest.
                let _ = self.close(session, place);
            }
        })
    }
}

fn post_close(session: &'static Session, entry: &CachedHandle) -> Option<Mark> {
    let handle = entry.handle.load(Ordering::Relaxed);
    entry.clear();
    post(session, handle)
}

fn post(session: &'static Session, handle: u64) -> Option<Mark> {
    session.post(&Message { handle, flags: AT_REST, ..Message::new(Op::Close) }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_made_while_files_are_opened_again() {
        let cached = CachedHandles::new();
        let made = || (0..64).filter(|_| cached.is_crowded()).count();
        assert_eq!(made(), 64 / CROWD as usize);
        (0..WORTH_MAX).for_each(|_| cached.count_miss());
        assert_eq!(made(), 0);
        cached.count_hit();
        assert_eq!(made(), 64 / CROWD as usize);
    }

    #[test]
    fn two_opens_that_share_a_place_are_both_seen() {
        let cached = CachedHandles::new();
        let hashes = [1 << 40, 2 << 40];
        assert!(!hashes.iter().any(|hash| cached.came_before(*hash)));
        (0..3).for_each(|_| assert!(hashes.iter().all(|hash| cached.came_before(*hash))));
        assert!(!cached.came_before(3 << 40) && cached.came_before(2 << 40));
    }

    #[test]
    fn slots_are_made_while_files_that_made_room_are_missed() {
        let cached = CachedHandles::new();
        let hash = |file: u64| file.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (0..WORTH_MAX).for_each(|_| cached.count_miss());
        // More files than may entry, one after the other and again: each made room just before.
        for file in 0..100 {
            cached.count_missed(hash(file));
            cached.makes_room(hash(file), false);
        }
        assert!(!(0..CROWD).any(|_| cached.is_crowded()), "nobody asked for them again");
        for file in 0..100 {
            cached.count_missed(hash(file));
        }
        assert!((0..CROWD).any(|_| cached.is_crowded()));
        cached.count_missed(hash(5));
        assert_eq!(cached.worth.load(Ordering::Relaxed), 100 * HIT - WORTH_MAX, "counted once");
    }
}
