//! Slots: descriptors of the mount opened ahead, so that an open costs no trip through the kernel.
//!
//! A *master* is the library's own descriptor of a slot. A program's descriptor is a copy of it,
//! hence shares its file position. While the file is open the slot is taken; after the last close
//! it is free again, unless a copy may have got away (fork, exec, a message to another process):
//! then the master is closed and the slot belongs to whoever holds the copies. The slot of a parked
//! file stays bound to it, until the file is opened again or another needs the slot.
//!
//! # Invariants
//!
//! - A slot's access mode is that of the opens bound to it.
//! - A slot is bound again only after the service answered the close of its former file.
//!
//! # Locking
//!
//! None: a place changes hands by compare-and-swap of its state.

use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use polylane_ipc::message::SLOT_DIR;
use polylane_ipc::stream::STREAMED_PLACES;
use zerocopy::FromZeros;

use crate::kernel::config::{self, LaneNumber};
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::kernel::reserved;
use crate::kernel::thread;
use crate::session::{Mark, Session, boxes};

/// Slots per access mode: files open at a time, and parked, that need no kernel trip. More use the
/// kernel path.
pub(crate) const SLOTS_PER_MODE: usize = 512;
/// Access modes: read, write, both.
const MODES: usize = 3;
/// All slots.
pub(crate) const SLOTS: usize = SLOTS_PER_MODE * MODES;

const _: () = assert!(SLOTS <= STREAMED_PLACES as usize);

/// The access mode of opens with these flags. `Kernel`: slots have no such.
pub(crate) fn mode(flags: i32) -> Outcome<usize> {
    let mode = usize::try_from(flags & libc::O_ACCMODE).ok().filter(|&mode| mode < MODES);
    mode.ok_or(Detour::Kernel)
}

/// The place of a slot in an order in which those of all modes take turns: small where few of each
/// are made.
pub(crate) fn rank(place: u32) -> u32 {
    place % SLOTS_PER_MODE as u32 * MODES as u32 + place / SLOTS_PER_MODE as u32
}

const EMPTY: u32 = 0;
const FREE: u32 = 1;
const TAKEN: u32 = 2;
/// Being made or unmade by one thread.
const CHANGING: u32 = 3;
/// Bound to a parked file: see `rights::handles`.
const PARKED: u32 = 4;

/// One place. Zero is empty.
#[derive(FromZeros)]
pub(crate) struct Slot {
    state: AtomicU32,
    /// The master.
    fd: AtomicI32,
    /// Its name with the service.
    number: AtomicU32,
    /// Session that it belongs to.
    session: AtomicU32,
    /// The close of its former file, a [`Mark`].
    pending: AtomicU64,
    /// Files it was bound to.
    uses: AtomicU32,
}

/// What making a slot is worth, per access mode. Making one costs as much as a few opens through
/// the kernel, so that opens must have missed one; slots that escape early make it dearer. Where
/// one was made and an open misses it, the program has several files open at a time: then each has
/// a slot of its own made, since what the kernel has open grows by requests.
#[derive(FromZeros)]
struct Price {
    /// Opens that found no slot since the last one was made.
    misses: AtomicU32,
    /// Doublings of the misses that it takes.
    doublings: AtomicU32,
    /// Whether one was made, and none has escaped early since.
    kept: AtomicBool,
}

/// Misses that the first one takes.
const MISSES: u32 = 2;
/// Most doublings.
const DOUBLINGS_MAX: u32 = 5;
/// Opens that waited for the close of the file before, until another slot is tried.
const WAITS_PER_SPARE: u32 = 16;
/// Most such tries.
const SPARES: u32 = 4;
/// A slot that served so many files was worth it.
const USES: u32 = 4;

impl Price {
    const fn new() -> Self {
        let [misses, doublings] = [const { AtomicU32::new(0) }; 2];
        Price { misses, doublings, kept: AtomicBool::new(false) }
    }

    /// Counts a miss; whether a slot of the lane is to be made now.
    fn is_paid(&self, lane: LaneNumber) -> bool {
        // A request that is asked again must not be the kernel's, which would do it twice.
        self.pays() || config::patience() == 0 || boxes::is_asked_again(lane)
    }

    /// Counts a miss; whether so many have paid for a slot.
    fn pays(&self) -> bool {
        let first = if self.kept.load(Ordering::Relaxed) { 1 } else { MISSES };
        let price = first << self.doublings.load(Ordering::Relaxed);
        let paid = self.misses.fetch_add(1, Ordering::Relaxed) + 1 >= price;
        if paid {
            self.misses.store(0, Ordering::Relaxed);
            self.kept.store(true, Ordering::Relaxed);
        }
        paid
    }

    /// A slot is gone after so many uses.
    fn lost(&self, uses: u32) {
        let doublings = self.doublings.load(Ordering::Relaxed);
        let early = uses < USES;
        let doublings = if early { (doublings + 1).min(DOUBLINGS_MAX) } else { 0 };
        self.doublings.store(doublings, Ordering::Relaxed);
        if early {
            self.kept.store(false, Ordering::Relaxed);
        }
    }
}

/// All slots of a lane. Zero is "none made".
#[derive(FromZeros)]
pub(crate) struct SlotPool {
    slots: [[Slot; SLOTS_PER_MODE]; MODES],
    /// Places from this one on were never used.
    reach: [AtomicU32; MODES],
    prices: [Price; MODES],
    /// Opens that found only slots whose close was under way.
    waits: [AtomicU32; MODES],
    next_number: AtomicU32,
}

impl SlotPool {
    pub(crate) const fn new() -> Self {
        SlotPool {
            slots: [const { [const { Slot::new() }; SLOTS_PER_MODE] }; MODES],
            reach: [const { AtomicU32::new(0) }; MODES],
            prices: [const { Price::new() }; MODES],
            waits: [const { AtomicU32::new(0) }; MODES],
            next_number: AtomicU32::new(0),
        }
    }

    /// A slot whose file was closed by the request of that mark; `None`: the slot escaped.
    pub(crate) fn release(&'static self, index: u32, closed: Option<Mark>) {
        let Some(slot) = self.get(index) else { return };
        let uses = slot.uses.fetch_add(1, Ordering::Relaxed) + 1;
        match closed {
            Some(mark) => slot.free(mark),
            None => {
                slot.retire(Mark::default());
                self.prices[index as usize / SLOTS_PER_MODE].lost(uses);
            }
        }
    }

    /// A free slot for opens of a mode, or a new one where opens have waited for closes often.
    /// `None`: none is free.
    pub(crate) fn take_free(
        &'static self,
        session: &'static Session,
        mode: usize,
    ) -> Outcome<Option<Taken>> {
        // One whose former file is closed for certain; else the first, once it is.
        let ready = |slot: &Slot| session.is_answered(slot.closing());
        if let Some(taken) = self.find(session, mode, ready) {
            // Another thread may have used it since.
            session.wait_for(taken.slot.closing())?;
            return Ok(Some(taken));
        }
        let spare = self.waits[mode].fetch_add(1, Ordering::Relaxed) < SPARES * WAITS_PER_SPARE;
        if spare
            && self.waits[mode].load(Ordering::Relaxed).is_multiple_of(WAITS_PER_SPARE)
            && let Ok(taken) = self.make(session, mode)
        {
            return Ok(Some(taken));
        }
        let taken = self.find(session, mode, |_| true);
        if let Some(taken) = &taken {
            session.wait_for(taken.slot.closing())?;
        }
        Ok(taken)
    }

    /// The places of a session's parked files, of a mode.
    pub(crate) fn parked(
        &'static self,
        session: &'static Session,
        mode: usize,
    ) -> impl Iterator<Item = usize> {
        let ours = |slot: &Slot| slot.session.load(Ordering::Relaxed) == session.number;
        let places = (mode * SLOTS_PER_MODE..).zip(self.used(mode));
        places.filter(move |(_, slot)| slot.is(PARKED) && ours(slot)).map(|(place, _)| place)
    }

    /// Takes the slot at a place, where a file is parked, from it.
    pub(crate) fn take_parked(&'static self, place: usize) -> Option<Taken> {
        let slot = self.get(place as u32)?;
        slot.turn(PARKED, TAKEN).then(|| Taken::new(place as u32, slot))
    }

    /// Waits until every close that was posted is answered.
    pub(crate) fn settle(&'static self, session: &Session) -> Outcome<()> {
        let ours = |slot: &&Slot| slot.session.load(Ordering::Relaxed) == session.number;
        self.all()
            .map(|(_, slot)| slot)
            .filter(ours)
            .try_for_each(|slot| session.wait_for(slot.closing()))
    }

    /// The slots of a mode that were ever made.
    fn used(&self, mode: usize) -> &[Slot] {
        let reach = self.reach[mode].load(Ordering::Acquire) as usize;
        &self.slots[mode][..reach.min(SLOTS_PER_MODE)]
    }

    /// All of them, with their places in the pool.
    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, &Slot)> {
        (0..MODES).flat_map(|mode| (mode * SLOTS_PER_MODE..).zip(self.used(mode)))
    }

    /// The places that were ever used by opens of a mode.
    pub(crate) fn places(&self, mode: usize) -> Range<usize> {
        let used = if mode < MODES { self.used(mode).len() } else { 0 };
        mode * SLOTS_PER_MODE..mode * SLOTS_PER_MODE + used
    }

    /// Takes a free slot that is `fit`.
    fn find(
        &'static self,
        session: &Session,
        mode: usize,
        fit: impl Fn(&Slot) -> bool,
    ) -> Option<Taken> {
        self.used(mode).iter().enumerate().find_map(|(place, slot)| {
            let ours = slot.session.load(Ordering::Relaxed) == session.number;
            (ours && slot.is(FREE) && fit(slot) && slot.turn(FREE, TAKEN))
                .then(|| Taken::new((mode * SLOTS_PER_MODE + place) as u32, slot))
        })
    }

    /// A new slot, where that is worth it. `Kernel`: it is not, or there are enough.
    #[cold]
    pub(crate) fn make(&'static self, session: &Session, mode: usize) -> Outcome<Taken> {
        if !self.prices[mode].is_paid(session.lane) {
            return Err(Detour::Kernel);
        }
        self.make_now(session, mode)
    }

    /// A new slot, whatever it is worth.
    #[cold]
    pub(crate) fn make_now(&'static self, session: &Session, mode: usize) -> Outcome<Taken> {
        if self.all().filter(|(_, slot)| slot.is_open()).count() >= masters_max() {
            return Err(Detour::Kernel);
        }
        let empty = |slot: &Slot| slot.turn(EMPTY, CHANGING) || slot.reclaim(session.number);
        let place = self.slots[mode].iter().position(empty).ok_or(Detour::Kernel)?;
        self.reach[mode].fetch_max(place as u32 + 1, Ordering::AcqRel);
        let slot = &self.slots[mode][place];
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        match thread::slow(|| open_master(session, number, mode as i32)) {
            Ok(fd) => {
                slot.fd.store(fd, Ordering::Relaxed);
                slot.number.store(number, Ordering::Relaxed);
                slot.session.store(session.number, Ordering::Relaxed);
                slot.pending.store(0, Ordering::Relaxed);
                slot.uses.store(0, Ordering::Relaxed);
                slot.state.store(TAKEN, Ordering::Release);
                Ok(Taken::new((mode * SLOTS_PER_MODE + place) as u32, slot))
            }
            Err(_) => {
                slot.state.store(EMPTY, Ordering::Release);
                Err(Detour::Kernel)
            }
        }
    }

    /// The slot of a record.
    pub(crate) fn get(&'static self, index: u32) -> Option<&'static Slot> {
        let index = index as usize;
        self.slots.get(index / SLOTS_PER_MODE)?.get(index % SLOTS_PER_MODE)
    }

    /// Moves the master on `fd` to another number: the program wants this one. False: none is
    /// there.
    pub(crate) fn move_master(&'static self, fd: RawFd) -> bool {
        let is_it = |slot: &&Slot| slot.is_open() && slot.master() == fd;
        let Some(slot) = self.all().map(|(_, slot)| slot).find(is_it) else { return false };
        // Where no number is left the slot loses its master: -1 is never open.
        slot.fd.store(reserved::copy(fd).unwrap_or(-1), Ordering::Relaxed);
        reserved::forget(fd);
        true
    }

    /// Closes the masters of all free slots, and of parked files: the program ran out of
    /// descriptors. `close` has the parked file at a place closed, which is of the session of that
    /// number. Whether there were any.
    pub(crate) fn shed(&'static self, close: impl Fn(usize, u32)) -> bool {
        let mut any = false;
        for (index, slot) in self.all() {
            let parked = slot.turn(PARKED, CHANGING);
            if parked || slot.turn(FREE, CHANGING) {
                if parked {
                    close(index, slot.session.load(Ordering::Relaxed));
                }
                slot.unmake();
                any = true;
            }
        }
        any
    }

    /// Closes the masters of what a former session left: they may hold files open.
    pub(crate) fn drop_former(&'static self, session: u32) {
        for (_, slot) in self.all().filter(|(_, slot)| slot.reclaim(session)) {
            slot.state.store(EMPTY, Ordering::Release);
        }
    }

    /// Takes the slot of a parked file, at a place in the pool. False: another thread did.
    pub(crate) fn unpark(&'static self, session: &Session, place: usize) -> bool {
        self.get(place as u32).is_some_and(|slot| {
            let ours = slot.session.load(Ordering::Relaxed) == session.number;
            ours && slot.turn(PARKED, TAKEN)
        })
    }

    /// The file of a taken slot is parked, with it.
    pub(crate) fn park(&'static self, place: usize) {
        if let Some(slot) = self.get(place as u32) {
            slot.state.store(PARKED, Ordering::Release);
        }
    }

    /// The file of a taken slot is parked no longer: the slot is free.
    pub(crate) fn free_parked(&'static self, place: usize, closed: Option<Mark>) {
        self.release(place as u32, closed);
    }
}

impl Slot {
    const fn new() -> Self {
        Slot {
            state: AtomicU32::new(EMPTY),
            fd: AtomicI32::new(0),
            number: AtomicU32::new(0),
            session: AtomicU32::new(0),
            pending: AtomicU64::new(0),
            uses: AtomicU32::new(0),
        }
    }

    fn turn(&self, from: u32, to: u32) -> bool {
        let (done, else_) = (Ordering::Acquire, Ordering::Relaxed);
        self.state.load(Ordering::Relaxed) == from
            && self.state.compare_exchange(from, to, done, else_).is_ok()
    }

    fn is(&self, state: u32) -> bool {
        self.state.load(Ordering::Relaxed) == state
    }

    /// Closes the master of a slot that is changing.
    fn unmake(&self) {
        reserved::close(self.fd.load(Ordering::Relaxed));
        self.state.store(EMPTY, Ordering::Release);
    }

    /// The close of its former file.
    fn closing(&self) -> Mark {
        Mark::from_word(self.pending.load(Ordering::Relaxed))
    }

    fn is_open(&self) -> bool {
        self.state.load(Ordering::Relaxed) != EMPTY
    }

    /// Takes the place of a free slot of a session that is over.
    fn reclaim(&self, session: u32) -> bool {
        let old = self.session.load(Ordering::Relaxed) != session;
        if old && (self.turn(FREE, CHANGING) || self.turn(PARKED, CHANGING)) {
            reserved::close(self.fd.load(Ordering::Relaxed));
            return true;
        }
        false
    }

    /// The master: shares its file position with every copy.
    pub(crate) fn master(&self) -> RawFd {
        self.fd.load(Ordering::Relaxed)
    }

    /// Its name with the service.
    pub(crate) fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// Free again; `closed` is the close under way.
    fn free(&self, closed: Mark) {
        self.pending.store(closed.to_word(), Ordering::Relaxed);
        self.state.store(FREE, Ordering::Release);
    }

    /// Never to be used again: what copies there are keep it.
    fn retire(&self, closed: Mark) {
        self.pending.store(closed.to_word(), Ordering::Relaxed);
        self.unmake();
    }
}

/// A slot taken for an open that is under way. Dropped, it is free again.
pub(crate) struct Taken {
    index: u32,
    slot: &'static Slot,
}

impl Taken {
    fn new(index: u32, slot: &'static Slot) -> Taken {
        Taken { index, slot }
    }

    /// The slot stays taken; its place in the pool.
    pub(crate) fn keep(self) -> u32 {
        std::mem::ManuallyDrop::new(self).index
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.slot.state.store(FREE, Ordering::Release);
    }
}

/// Most masters in one lane: of all lanes together an eighth of the descriptors that the program
/// may have.
fn masters_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let lanes = config::lanes().count().max(1);
    limit.current.map_or(usize::MAX, |soft| (soft / 8) as usize / lanes)
}

/// Opens `MOUNT/.polylane-slots/<token>-<number>` and moves the descriptor up.
fn open_master(session: &Session, number: u32, mode: i32) -> Outcome<RawFd> {
    use std::io::Write;
    let mut name = [0; 96];
    let mut rest = &mut name[..];
    let room = rest.len();
    let mut put = || -> std::io::Result<usize> {
        write!(rest, "{SLOT_DIR}/")?;
        for byte in session.token {
            write!(rest, "{byte:02x}")?;
        }
        write!(rest, "-{number}")?;
        Ok(room - rest.len())
    };
    let len = put().map_err(|_| Detour::Kernel)?;
    let mut path = [0; config::MOUNT_BYTES_MAX + 96];
    let path = config::under_mount(session.lane, &mut path, &name[..len]).ok_or(Detour::Kernel)?;
    let flags = libc::O_CREAT | libc::O_CLOEXEC | mode;
    reserved::adopt(real::open_file(path, flags)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_different_and_small_where_few_slots_are_made() {
        let mut ranks: Vec<u32> = (0..SLOTS as u32).map(rank).collect();
        let few = (0..MODES)
            .flat_map(|mode| (0..4).map(move |n| rank((mode * SLOTS_PER_MODE + n) as u32)));
        assert!(few.into_iter().all(|rank| rank < 4 * MODES as u32));
        ranks.sort_unstable();
        assert!(ranks.into_iter().eq(0..SLOTS as u32));
    }

    /// The first takes two opens. Then each open that finds none has one made, until one escapes
    /// early.
    #[test]
    fn slots_are_dear_at_first_and_where_they_escape() {
        let price = Price::new();
        let paid = |count: usize| -> Vec<bool> { (0..count).map(|_| price.pays()).collect() };
        assert_eq!(paid(4), [false, true, true, true]);
        price.lost(0);
        assert_eq!(paid(6), [false, false, false, true, false, true]);
        price.lost(USES - 1);
        assert_eq!(paid(8), [false, false, false, false, false, false, false, true]);
        price.lost(USES);
        assert_eq!(paid(2), [true, true]);
    }
}
