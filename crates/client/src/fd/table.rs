//! What descriptor numbers mean: a flat table of numbers, and the open files behind them.
//!
//! ```text
//!   number ──► entry ──► Record (refs = entries that mean it + calls under way)
//!                          └─ last reference gone ──► Op::Close, slot free or retired
//! ```
//!
//! # Invariants
//!
//! - An entry that names a record holds one reference of it. Entries are changed by swaps, so each
//!   reference is dropped by exactly one thread.
//! - An entry is cleared before the kernel descriptor is closed: the number may be given out again
//!   at once, and must not be found to mean the old file.
//! - "Foreign" and "kernel" may be wrong in one direction only: towards the kernel path, which is
//!   always right.
//!
//! # Locking
//!
//! Lookups take no lock, and a [`Glance`] not even a reference. [`Record::offset_lock`] orders uses
//! of one file's offset.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::fd::record::{CLAIMED, Record};
use crate::kernel::FDS_MAX;
use crate::kernel::config::LaneNumber;

/// Open files at a time; further ones use the kernel path.
pub(crate) const RECORDS_MAX: usize = 16384;

/// Nothing known: to be looked at.
const UNKNOWN: u32 = 0;
/// Nothing of the lane.
const FOREIGN: u32 = 1;
/// Nothing known but this: the process opened it itself and nobody else has a copy.
const FRESH: u32 = 2;
/// Being closed by one thread: the kernel's, and nothing is learned of it.
const CLOSING: u32 = 3;
/// Being given another descriptor by one thread: names the same record again in a moment.
const MOVING: u32 = 4;
/// First entry value that names a record.
const RECORD_FIRST: u32 = 16;

/// Meaning of every number. Zero is "unknown".
pub(crate) struct FdTable {
    entries: [AtomicU32; FDS_MAX],
    /// One more than the highest number that ever named something: bounds walks.
    top: AtomicU32,
}

/// What an entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entry {
    /// Not looked at yet.
    Unknown,
    /// For the kernel.
    Foreign,
    /// The record of this number.
    Record(u32),
}

impl Entry {
    pub(crate) fn from_word(word: u32) -> Entry {
        match word {
            UNKNOWN | FRESH => Entry::Unknown,
            word if word < RECORD_FIRST => Entry::Foreign,
            word => Entry::Record(word - RECORD_FIRST),
        }
    }

    pub(crate) fn to_word(self) -> u32 {
        match self {
            Entry::Unknown => UNKNOWN,
            Entry::Foreign => FOREIGN,
            Entry::Record(index) => index + RECORD_FIRST,
        }
    }
}

impl FdTable {
    pub(crate) const fn new() -> Self {
        FdTable { entries: [const { AtomicU32::new(UNKNOWN) }; FDS_MAX], top: AtomicU32::new(0) }
    }

    /// What `fd` means; numbers outside the table are for the kernel.
    #[inline]
    pub(crate) fn get(&self, fd: RawFd) -> Entry {
        match self.entries.get(fd as usize) {
            Some(entry) => Entry::from_word(settled(entry)),
            None => Entry::Foreign,
        }
    }

    /// Each number that means the record of that number.
    pub(crate) fn each_known(&self, index: u32, mut with: impl FnMut(RawFd)) {
        let word = Entry::Record(index).to_word();
        for (fd, place) in self.entries[..self.top() as usize].iter().enumerate() {
            if settled(place) == word {
                with(fd as RawFd);
            }
        }
    }

    /// Each number that means the record of that number, while nobody closes it or finds what it
    /// means. To be called with all signals blocked.
    pub(crate) fn each_number(&self, index: u32, mut with: impl FnMut(RawFd)) {
        let word = Entry::Record(index).to_word();
        for (fd, place) in self.entries[..self.top() as usize].iter().enumerate() {
            let (done, else_) = (Ordering::AcqRel, Ordering::Relaxed);
            if settled(place) == word && place.compare_exchange(word, MOVING, done, else_).is_ok() {
                with(fd as RawFd);
                place.store(word, Ordering::Release);
            }
        }
    }

    /// Sets what `fd` means; returns what it meant. The caller now owns the old record's reference.
    pub(crate) fn swap(&self, fd: RawFd, entry: Entry) -> Entry {
        let Some(place) = self.entries.get(fd as usize) else { return entry };
        if entry != Entry::Unknown && self.top.load(Ordering::Relaxed) <= fd as u32 {
            self.top.fetch_max(fd as u32 + 1, Ordering::Relaxed);
        }
        Entry::from_word(swap_settled(place, entry.to_word()))
    }

    /// Sets what `fd` means if nothing was known. False when something was.
    pub(crate) fn learn(&self, fd: RawFd, entry: Entry) -> bool {
        let Some(place) = self.entries.get(fd as usize) else { return false };
        self.top.fetch_max(fd as u32 + 1, Ordering::Relaxed);
        let (done, else_) = (Ordering::AcqRel, Ordering::Relaxed);
        let word = entry.to_word();
        place.compare_exchange(UNKNOWN, word, done, else_).is_ok()
            || place.compare_exchange(FRESH, word, done, else_).is_ok()
    }

    /// Takes back what was learned of `fd`, if it still means that: then the caller owns the
    /// reference.
    pub(crate) fn unlearn(&self, fd: RawFd, entry: Entry) -> bool {
        self.exchange(fd, entry.to_word(), UNKNOWN)
    }

    /// `fd` is about to be closed: nothing is learned of it until [`closed`](Self::closed). Returns
    /// what it meant, as [`swap`](Self::swap).
    pub(crate) fn closes(&self, fd: RawFd) -> Entry {
        let Some(place) = self.entries.get(fd as usize) else { return Entry::Unknown };
        Entry::from_word(swap_settled(place, CLOSING))
    }

    /// `fd` was closed. It may have been given out again since, and mean something.
    pub(crate) fn closed(&self, fd: RawFd) {
        self.exchange(fd, CLOSING, UNKNOWN);
    }

    /// Whether nothing at all is said of `fd`.
    pub(crate) fn is_blank(&self, fd: RawFd) -> bool {
        self.entries.get(fd as usize).is_none_or(|place| place.load(Ordering::Relaxed) == UNKNOWN)
    }

    /// This process has just opened `fd`, of which nothing was known.
    pub(crate) fn set_fresh(&self, fd: RawFd) {
        let Some(place) = self.entries.get(fd as usize) else { return };
        let (done, else_) = (Ordering::Release, Ordering::Relaxed);
        if place.compare_exchange(UNKNOWN, FRESH, done, else_).is_ok() {
            self.top.fetch_max(fd as u32 + 1, Ordering::Relaxed);
        }
    }

    /// Whether this process opened `fd` and nobody else has a copy.
    pub(crate) fn is_fresh(&self, fd: RawFd) -> bool {
        // A record that was taken before this look is found by whoever shares after it.
        fence(Ordering::SeqCst);
        self.entries.get(fd as usize).is_some_and(|place| place.load(Ordering::Acquire) == FRESH)
    }

    /// There may be a copy of `fd` from now on.
    pub(crate) fn stale(&self, fd: RawFd) {
        // Whatever else is known of it is no matter of who has copies.
        self.exchange(fd, FRESH, UNKNOWN);
    }

    /// Has an entry say `new` if it says `old`, and whether it did.
    fn exchange(&self, fd: RawFd, old: u32, new: u32) -> bool {
        let Some(place) = self.entries.get(fd as usize) else { return false };
        place.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// There may be copies of every number from now on.
    pub(crate) fn stale_all(&self) {
        (0..self.top()).for_each(|fd| self.stale(fd as RawFd));
        fence(Ordering::SeqCst);
    }

    /// One more than the highest number that may mean something.
    pub(crate) fn top(&self) -> u32 {
        self.top.load(Ordering::Relaxed)
    }
}

/// What an entry says, once it is not moving.
#[inline]
fn settled(place: &AtomicU32) -> u32 {
    loop {
        match place.load(Ordering::Acquire) {
            MOVING => std::thread::yield_now(),
            word => return word,
        }
    }
}

/// Has an entry say `new`; what it said.
#[inline]
fn swap_settled(place: &AtomicU32, new: u32) -> u32 {
    let (done, else_) = (Ordering::AcqRel, Ordering::Relaxed);
    loop {
        let old = settled(place);
        if place.compare_exchange_weak(old, new, done, else_).is_ok() {
            return old;
        }
    }
}

/// All records. Zero is "all free".
pub(crate) struct RecordPool {
    records: [Record; RECORDS_MAX],
    /// Where the search for a free place starts: the place that was freed last.
    hint: AtomicU32,
    /// One more than the highest place ever used: bounds walks.
    top: AtomicU32,
}

impl RecordPool {
    pub(crate) const fn new() -> Self {
        RecordPool {
            records: [const { Record::new() }; RECORDS_MAX],
            hint: AtomicU32::new(0),
            top: AtomicU32::new(0),
        }
    }
}

/// The open files of this process, and what becomes of one whose last reference is gone. That is
/// handed in as a function because any thread drops the last reference anywhere, and what then
/// happens to the file (a request, or none) is decided above.
pub(crate) struct Records {
    pool: &'static RecordPool,
    finish: fn(&Record),
}

impl Records {
    /// The files of a pool; `finish` is called with each whose last reference is gone.
    pub(crate) const fn new(pool: &'static RecordPool, finish: fn(&Record)) -> Self {
        Records { pool, finish }
    }

    /// A blank record of a file of that lane with one reference, the caller's; `None` when all are
    /// in use.
    pub(crate) fn allocate(&'static self, lane: LaneNumber) -> Option<Pin> {
        let hint = self.pool.hint.load(Ordering::Relaxed) as usize;
        for step in 0..RECORDS_MAX {
            let index = (hint + step) % RECORDS_MAX;
            let record = &self.pool.records[index];
            if record.refs.load(Ordering::Relaxed) != 0 {
                continue;
            }
            let (done, else_) = (Ordering::Acquire, Ordering::Relaxed);
            if record.refs.compare_exchange(0, CLAIMED, done, else_).is_ok() {
                record.reset(lane);
                record.refs.store(1, Ordering::Release);
                self.pool.hint.store(index as u32, Ordering::Relaxed);
                self.pool.top.fetch_max(index as u32 + 1, Ordering::Relaxed);
                return Some(Pin { index: index as u32, record, records: self });
            }
        }
        None
    }

    /// The record that `fd` means, held.
    #[inline]
    pub(crate) fn find(&'static self, table: &FdTable, fd: RawFd) -> Result<Pin, Entry> {
        match table.entries.get(fd as usize) {
            Some(place) => self.find_word(place),
            None => Err(Entry::Foreign),
        }
    }

    /// A look at the record that `fd` means; `None`: it means none.
    #[inline]
    pub(crate) fn glance(&'static self, table: &'static FdTable, fd: RawFd) -> Option<Glance> {
        let place = table.entries.get(fd as usize)?;
        let word = place.load(Ordering::Acquire);
        let Entry::Record(index) = Entry::from_word(word) else { return None };
        let record = self.pool.records.get(index as usize)?;
        let generation = record.generation.load(Ordering::Acquire);
        let glance = Glance { record, place, word, generation };
        // Else it may be a later file that the number meant only before.
        glance.is_still().then_some(glance)
    }

    /// The record that an entry names, held.
    #[inline]
    pub(crate) fn find_word(&'static self, place: &AtomicU32) -> Result<Pin, Entry> {
        loop {
            let word = place.load(Ordering::Acquire);
            let entry = Entry::from_word(word);
            let Entry::Record(index) = entry else {
                if word == MOVING {
                    std::thread::yield_now();
                    continue;
                }
                return Err(entry);
            };
            let Some(record) = self.pool.records.get(index as usize) else {
                return Err(Entry::Foreign);
            };
            if !record.hold() {
                // Freed between the two looks: the entry has changed.
                std::hint::spin_loop();
                continue;
            }
            let pin = Pin { index, record, records: self };
            // Holding it proves nothing about the entry: the place may have been used again.
            if place.load(Ordering::Acquire) == word {
                return Ok(pin);
            }
        }
    }

    /// Takes over the reference that an entry held.
    pub(crate) fn adopt(&'static self, entry: Entry) -> Option<Pin> {
        let Entry::Record(index) = entry else { return None };
        self.pool.records.get(index as usize).map(|record| Pin { index, record, records: self })
    }

    /// Every record in use, held one at a time.
    pub(crate) fn each(&'static self, mut with: impl FnMut(&Pin)) {
        let top = self.pool.top.load(Ordering::Relaxed) as usize;
        for (index, record) in self.pool.records.iter().enumerate().take(top) {
            if record.hold() {
                with(&Pin { index: index as u32, record, records: self });
            }
        }
    }
}

/// A look at a record without holding it: no write to shared memory. What was read there, and by
/// its view, is of the open file that the number meant all the while if [`Glance::is_still`] says
/// so afterwards. Nothing of it may be written, and what is written through its view only if
/// [`Glance::is_still`] says so inside the view's gate.
pub(crate) struct Glance {
    record: &'static Record,
    place: &'static AtomicU32,
    word: u32,
    generation: u32,
}

impl Glance {
    /// Whether the number has meant the same open file since the look: its entry is what it was,
    /// and what it names was not given up meanwhile.
    #[inline]
    pub(crate) fn is_still(&self) -> bool {
        fence(Ordering::Acquire);
        self.place.load(Ordering::Relaxed) == self.word
            && self.record.generation.load(Ordering::Relaxed) == self.generation
    }
}

impl std::ops::Deref for Glance {
    type Target = Record;

    #[inline]
    fn deref(&self) -> &Record {
        self.record
    }
}

/// A reference to a record; the last one to go closes the file.
pub(crate) struct Pin {
    index: u32,
    record: &'static Record,
    records: &'static Records,
}

impl Pin {
    /// The entry that names the record. The reference becomes the entry's.
    pub(crate) fn into_entry(self) -> Entry {
        let pin = std::mem::ManuallyDrop::new(self);
        Entry::Record(pin.index)
    }

    /// Which record it is.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// One more reference.
    pub(crate) fn again(&self) -> Pin {
        self.record.refs.fetch_add(1, Ordering::Relaxed);
        Pin { index: self.index, record: self.record, records: self.records }
    }
}

impl std::ops::Deref for Pin {
    type Target = Record;

    fn deref(&self) -> &Record {
        self.record
    }
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        let refs = &self.record.refs;
        let mut now = refs.load(Ordering::Relaxed);
        loop {
            let next = match now {
                // A child that was forked within a call: the record was wiped.
                0 => return,
                1 => CLAIMED,
                more => more - 1,
            };
            let (done, again) = (Ordering::AcqRel, Ordering::Relaxed);
            match refs.compare_exchange_weak(now, next, done, again) {
                Ok(_) if next == CLAIMED => break,
                Ok(_) => return,
                Err(seen) => now = seen,
            }
        }
        (self.records.finish)(self.record);
        refs.store(0, Ordering::Release);
        self.records.pool.hint.store(self.index, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: FdTable = FdTable::new();
    static POOL: RecordPool = RecordPool::new();
    static RECORDS: Records = Records::new(&POOL, |_| {});

    fn open(fd: RawFd) -> u32 {
        let pin = RECORDS.allocate(LaneNumber::FIRST).unwrap();
        let index = pin.index;
        TABLE.swap(fd, pin.into_entry());
        index
    }

    fn close(fd: RawFd) {
        drop(RECORDS.adopt(TABLE.swap(fd, Entry::Unknown)));
    }

    #[test]
    fn a_number_is_fresh_until_something_else_is_known_or_copies_may_be_about() {
        static FDS: FdTable = FdTable::new();
        FDS.set_fresh(3);
        assert!(FDS.is_fresh(3) && FDS.get(3) == Entry::Unknown && !FDS.is_blank(3));
        assert!(FDS.learn(3, Entry::Record(1)) && !FDS.is_fresh(3));
        FDS.set_fresh(3);
        assert_eq!(FDS.get(3), Entry::Record(1));
        FDS.stale(3);
        assert_eq!(FDS.swap(3, Entry::Unknown), Entry::Record(1));
        FDS.set_fresh(4);
        FDS.set_fresh(9);
        FDS.stale(4);
        assert!(FDS.is_blank(4) && FDS.is_fresh(9));
        FDS.stale_all();
        assert!(FDS.is_blank(9) && FDS.is_blank(-1) && !FDS.is_fresh(-1));
    }

    #[test]
    fn nothing_is_learned_of_a_number_while_it_is_closed() {
        static FDS: FdTable = FdTable::new();
        FDS.swap(5, Entry::Record(1));
        assert_eq!(FDS.closes(5), Entry::Record(1));
        assert!(FDS.get(5) == Entry::Foreign && !FDS.learn(5, Entry::Record(2)));
        FDS.closed(5);
        assert!(FDS.is_blank(5) && FDS.learn(5, Entry::Record(2)));
        assert!(!FDS.unlearn(5, Entry::Record(3)) && FDS.unlearn(5, Entry::Record(2)));
        // Given out again before its former close is over.
        assert_eq!(
            (FDS.closes(5), FDS.swap(5, Entry::Record(4))),
            (Entry::Unknown, Entry::Foreign)
        );
        FDS.closed(5);
        assert_eq!(FDS.get(5), Entry::Record(4));
        assert_eq!(FDS.closes(-1), Entry::Unknown);
        FDS.closed(-1);
    }

    #[test]
    fn a_glance_counts_as_long_as_the_number_means_the_file() {
        assert!(RECORDS.glance(&TABLE, 7).is_none() && RECORDS.glance(&TABLE, -1).is_none());
        let place = open(7);
        let glance = RECORDS.glance(&TABLE, 7).unwrap();
        assert!(glance.is_still());
        open(8);
        close(8);
        assert!(glance.is_still());
        close(7);
        assert!(!glance.is_still());
        // The same number, and the same place for another file.
        POOL.hint.store(place, Ordering::Relaxed);
        assert_eq!(open(7), place);
        assert!(!glance.is_still());
        assert!(RECORDS.glance(&TABLE, 7).unwrap().is_still());
        close(7);
    }
}
