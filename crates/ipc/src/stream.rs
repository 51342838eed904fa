//! The stream of a session: changes of names that a client made under a lease, for which nobody
//! waits.
//!
//! A lease on a directory tells a client every name in it and promises that nobody else changes
//! them. The client then knows the outcome of a change by itself: it writes the change into the
//! stream and goes on. The service *applies* the stream before anybody, the client included, could
//! see a difference; see `docs/design/leases.md`.
//!
//! ```text
//!  gate: shut 1 | variant 1 | claimed 31 | tail 31        (one word, changed by compare-and-swap)
//!
//!   done ≤ claimed ≤ tail ≤ done + ENTRIES
//!    │        │         │
//!  ──┴────────┴─────────┴──────►  positions, each with two variants of 128 bytes
//!   applied   being     waiting   the client may put another entry in place of the last waiting
//!             applied             one: it writes the variant not in use and flips the gate's bit
//! ```
//!
//! What is written to a file lies in a ring of bytes behind the entries, each piece without a gap.
//! The client alone says where; it uses a place again when the entry that named it is applied.
//!
//! # Invariants
//!
//! - `tail` and `variant` are changed by the client, `claimed` and `shut` by the service. One word
//!   holds them all, so an entry is added or replaced before the gate was shut, or not at all.
//! - A position is written only while it is not claimed and not waiting, or, in its other variant,
//!   while it is the last one waiting. An entry says which variant the one before it has.
//! - The service believes its own count of what it claimed, never the word's.
//! - The client's side is used by one thread at a time, the service's too.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use polylane_base::{Errno, Result};
use zerocopy::native_endian::{I64, U16, U32, U64};
use zerocopy::{IntoBytes, little_endian};

use crate::memory::{Memory, Word32, Word64};

/// Entries that may wait or be under way; under loom so few that they wrap.
pub const ENTRIES: u32 = if cfg!(loom) { 2 } else { 256 };
/// Bytes of file data that may wait or be under way.
pub const DATA_BYTES: usize = 256 << 10;
/// Most bytes of one write; longer ones take the ordinary way.
pub const WRITE_BYTES_MAX: usize = DATA_BYTES / 8;
/// 64-bit words of an entry.
pub const ENTRY_WORDS: usize = 16;
/// Longest name in an entry. Longer ones take the ordinary way.
pub const NAME_BYTES_MAX: usize = 40;
/// Words of a name.
const NAME_WORDS: usize = NAME_BYTES_MAX / 8;
/// Leases that one session may have at a time.
pub const LEASES_MAX: u8 = 4;

/// Bytes of a stream in a channel.
pub const STREAM_BYTES: usize = DATA_AT + DATA_BYTES;

/// Where the ring of bytes begins in a stream.
pub(crate) const DATA_AT: usize = HEAD_BYTES + ENTRIES as usize * 2 * ENTRY_BYTES;

const HEAD_BYTES: usize = 128;
const ENTRY_BYTES: usize = 8 * ENTRY_WORDS;
/// Offset of the gate.
const GATE: usize = 0;
/// Offset of what the client believes: not 0, that it may have leases.
const BELIEF: usize = 8;
/// Offset of the count of applied entries, in a line of its own.
const DONE: usize = 64;

const SHUT: u64 = 1 << 63;
const VARIANT: u64 = 1 << 62;
const COUNT: u64 = (1 << 31) - 1;
const CLAIMED_SHIFT: u32 = 31;

/// Whether a word of an entry is written and read: under loom only the handle, the time and the
/// variant before, so that its executions stay few.
const fn travels(word: usize) -> bool {
    !cfg!(loom) || matches!(word, 2 | 3 | 15)
}

/// Turns that a client's changes may cost the service before it stops believing the client.
const CLAIM_TURNS: u32 = 64;

/// What an entry does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Change {
    /// Nothing but the directory's times: a file was made and removed again.
    #[default]
    Touch = 0,
    /// Makes the regular file `name`; with a `slot` also opens it as `handle`.
    Make = 1,
    /// Renames `name` to `name2`.
    Rename = 2,
    /// Removes `name`.
    Unlink = 3,
    /// Sets rights and times, those in `set`, of the open file `handle`.
    Set = 4,
    /// Writes `len` bytes, which lie at `at`, to `offset` of the open file `handle`.
    Write = 5,
    /// Closes the file `handle`.
    Close = 6,
}

impl Change {
    fn from_number(number: u8) -> Option<Change> {
        use Change::{Close, Make, Rename, Set, Touch, Unlink, Write};
        [Touch, Make, Rename, Unlink, Set, Write, Close].get(number as usize).copied()
    }

    /// Whether it changes an open file, not a name.
    pub fn is_of_file(self) -> bool {
        matches!(self, Change::Set | Change::Write | Change::Close)
    }
}

/// `flags` of a `Write`: the file is on loan, and the handle any that may write to it.
pub const LENT: u32 = 1;

bitflags::bitflags! {
    /// `umask` of a `Set`: what the entry sets.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct SetState: u16 {
        /// Permission bits, to `perm`.
        const PERM = 1;
        /// The access time, to `atime`.
        const ATIME = 2;
        /// The access time, to the entry's.
        const ATIME_NOW = 4;
        /// The modification time, to `born`.
        const MTIME = 8;
        /// The modification time, to the entry's.
        const MTIME_NOW = 16;
        /// The access time, to anything.
        const ATIME_ANY = Self::ATIME.bits() | Self::ATIME_NOW.bits();
        /// The modification time, to anything.
        const MTIME_ANY = Self::MTIME.bits() | Self::MTIME_NOW.bits();
    }
}

/// A name of at most [`NAME_BYTES_MAX`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShortName {
    len: u8,
    words: [u64; NAME_WORDS],
}

impl ShortName {
    /// The name; `None` when it is empty or too long.
    #[inline]
    pub fn new(name: &[u8]) -> Option<ShortName> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return None;
        }
        let mut words = [0; NAME_WORDS];
        for (word, bytes) in words.iter_mut().zip(name.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = little_endian::U64::from_bytes(whole).get();
        }
        Some(ShortName { len: name.len() as u8, words })
    }

    /// Its length and its bytes, in words.
    #[inline]
    pub fn to_words(&self) -> (u8, [u64; NAME_WORDS]) {
        (self.len, self.words)
    }

    /// The name of these words, as [`ShortName::to_words`] gave them.
    #[inline]
    pub fn from_words(len: u8, words: [u64; NAME_WORDS]) -> ShortName {
        ShortName { len: len.min(NAME_BYTES_MAX as u8), words }
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> ([u8; NAME_BYTES_MAX], usize) {
        let mut bytes = [0; NAME_BYTES_MAX];
        for (bytes, word) in bytes.chunks_mut(8).zip(self.words) {
            bytes.copy_from_slice(little_endian::U64::new(word).as_bytes());
        }
        (bytes, self.len as usize)
    }

    /// A number that differs for most names.
    #[inline]
    pub fn hash(&self) -> u64 {
        let mixed = self.words.iter().fold(u64::from(self.len), |hash, word| {
            (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        });
        mixed ^ mixed >> 32
    }
}

/// One change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Entry {
    /// What it does.
    pub change: Change,
    /// The lease that it was made under.
    pub lease: u8,
    /// `Make`: permission bits asked for. `Set`: the new ones.
    pub perm: u16,
    /// `Make`: bits to take away. `Set`: what is set, bits of [`SetState`].
    pub umask: u16,
    /// `Make`: slot number plus one; 0: the file is not open.
    pub slot: u32,
    /// `Make` with a slot: flags of open(2). `Write`: [`LENT`] or 0.
    pub flags: u32,
    /// `Make` with a slot, `Set`, `Write`, `Close`: what the client calls the open file; see
    /// [`streamed_handle`].
    pub handle: u64,
    /// When it happened: nanoseconds since 1970, by the coarse clock.
    pub time: i64,
    /// `Make`: when the file was made, if it was renamed since. `Set`: the modification time.
    pub born: i64,
    /// `Set`: the access time.
    pub atime: i64,
    /// `Write`: where its bytes begin in the ring.
    pub at: u32,
    /// `Write`: how many they are.
    pub len: u32,
    /// `Write`: where they go in the file.
    pub offset: u64,
    /// The name.
    pub name: ShortName,
    /// `Rename`: the new name.
    pub name2: ShortName,
}

polylane_base::record! {
    /// An entry as it lies in its words.
    struct EntryRecord: 128 {
        0x00 change: u8,
        0x01 lease: u8,
        0x02 name_len: u8,
        0x03 name2_len: u8,
        0x04 perm: U16,
        0x06 umask: U16,
        0x08 slot: U32,
        0x0c flags: U32,
        0x10 handle: U64,
        0x18 time: I64,
        0x20 born: I64,
        /// `Set`: the access time; `Write`: place and length of the bytes (32 bits each), offset in
        /// the file; of others the name.
        0x28 detail: [U64; NAME_WORDS],
        0x50 name2: [U64; NAME_WORDS],
        /// The lowest bit: the variant of the entry before.
        0x78 former: U64,
    }
}

impl Entry {
    fn to_words(self, former: bool) -> [u64; ENTRY_WORDS] {
        let mut record = EntryRecord {
            change: self.change as u8,
            lease: self.lease,
            name_len: self.name.len,
            name2_len: self.name2.len,
            perm: self.perm.into(),
            umask: self.umask.into(),
            slot: self.slot.into(),
            flags: self.flags.into(),
            handle: self.handle.into(),
            time: self.time.into(),
            born: self.born.into(),
            detail: self.name.words.map(U64::new),
            name2: self.name2.words.map(U64::new),
            former: u64::from(former).into(),
        };
        let [first, second, ..] = &mut record.detail;
        match self.change {
            Change::Set => first.set(self.atime.cast_unsigned()),
            Change::Write => {
                first.set(u64::from(self.at) | u64::from(self.len) << 32);
                second.set(self.offset);
            }
            _ => {}
        }
        zerocopy::transmute!(record)
    }

    /// The entry, and the variant of the one before it. `None` when it is none.
    fn from_words(words: &[u64; ENTRY_WORDS]) -> (Option<Entry>, bool) {
        let record: EntryRecord = zerocopy::transmute!(*words);
        let name = |len: u8, words: [U64; NAME_WORDS]| {
            let words = words.map(U64::get);
            (len as usize <= NAME_BYTES_MAX).then_some(ShortName { len, words })
        };
        let entry = || {
            let change = Change::from_number(record.change)?;
            let (is_set, is_write) = (change == Change::Set, change == Change::Write);
            let [first, second, ..] = record.detail.map(U64::get);
            let of_write = |word: u64| if is_write { word } else { 0 };
            Some(Entry {
                change,
                lease: record.lease,
                perm: record.perm.get(),
                umask: record.umask.get(),
                slot: record.slot.get(),
                flags: record.flags.get(),
                handle: record.handle.get(),
                time: record.time.get(),
                born: record.born.get(),
                atime: if is_set { first.cast_signed() } else { 0 },
                at: of_write(first) as u32,
                len: (of_write(first) >> 32) as u32,
                offset: of_write(second),
                name: match is_set || is_write {
                    true => ShortName::default(),
                    false => name(record.name_len, record.detail)?,
                },
                name2: name(record.name2_len, record.name2)?,
            })
        };
        (entry(), record.former.get() & 1 != 0)
    }
}

/// The bit that marks handles that a client chose for files it made through its stream. The other
/// low bits of the index are the place of the slot with the client.
pub const STREAMED_HANDLE: u32 = 1 << 31;

/// Places of such handles: a service has no others.
pub const STREAMED_PLACES: u32 = 2048;

/// The handle of a file opened through the stream: `place` below [`STREAMED_PLACES`], `use_count`
/// any number.
pub fn streamed_handle(place: u32, use_count: u32) -> u64 {
    u64::from(STREAMED_HANDLE | place) | u64::from(use_count) << 32
}

/// The gate, taken apart.
#[derive(Clone, Copy)]
struct Gate(u64);

impl Gate {
    fn tail(self) -> u32 {
        (self.0 & COUNT) as u32
    }

    fn claimed(self) -> u32 {
        (self.0 >> CLAIMED_SHIFT & COUNT) as u32
    }

    fn variant(self) -> bool {
        self.0 & VARIANT != 0
    }

    fn is_shut(self) -> bool {
        self.0 & SHUT != 0
    }

    fn with_tail(self, tail: u32, variant: bool) -> Gate {
        let kept = self.0 & (SHUT | COUNT << CLAIMED_SHIFT);
        Gate(kept | u64::from(tail) & COUNT | if variant { VARIANT } else { 0 })
    }

    fn with_claimed(self, claimed: u32) -> Gate {
        let kept = self.0 & !(COUNT << CLAIMED_SHIFT);
        Gate(kept | (u64::from(claimed) & COUNT) << CLAIMED_SHIFT)
    }
}

/// `a - b` of two counts.
fn distance(a: u32, b: u32) -> u32 {
    a.wrapping_sub(b) & COUNT as u32
}

/// The position of the entry that so many lie before, from that at `position` on.
pub fn position_after(position: u32, count: usize) -> u32 {
    distance(position, (count as u32).wrapping_neg())
}

/// What became of an entry that the client wanted to add.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Posted {
    /// It counts; so many wait now.
    Waiting(u32),
    /// No room until the service has applied some.
    Full,
    /// The session has no lease any more: nothing was added.
    Shut,
}

/// A stream in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Stream<M>(pub M);

impl<M: Memory> Stream<M> {
    /// Client: adds an entry.
    #[inline]
    pub fn post(&self, entry: &Entry) -> Posted {
        loop {
            let gate = self.gate();
            if gate.is_shut() {
                return Posted::Shut;
            }
            let done = self.0.word32(DONE).load(Acquire);
            if distance(gate.tail(), done) >= ENTRIES {
                return Posted::Full;
            }
            self.write(gate.tail(), false, entry, gate.variant());
            let next = distance(gate.tail(), u32::MAX);
            if self.turn(gate, gate.with_tail(next, false)) {
                return Posted::Waiting(distance(next, gate.claimed()));
            }
        }
    }

    /// Client: puts `entry` in place of the last one. False when the service has claimed that one,
    /// or the gate is shut: nothing was changed.
    #[inline]
    pub fn replace(&self, entry: &Entry) -> bool {
        let gate = self.gate();
        if gate.is_shut() || gate.tail() == gate.claimed() {
            return false;
        }
        let last = distance(gate.tail(), 1);
        let former = self.read_word(last, gate.variant(), ENTRY_WORDS - 1) & 1 != 0;
        self.write(last, !gate.variant(), entry, former);
        // The only other change is the service's, which claims the last entry or shuts the gate.
        self.turn(gate, gate.with_tail(gate.tail(), !gate.variant()))
    }

    /// Client, where the service died: takes back the entry that was posted last, and shuts the
    /// gate. False: the service had claimed it.
    pub fn withdraw(&self) -> bool {
        loop {
            let gate = self.gate();
            if gate.tail() == gate.claimed() {
                return false;
            }
            let former = gate.with_tail(distance(gate.tail(), 1), false);
            if self.turn(gate, Gate(former.0 | SHUT)) {
                return true;
            }
        }
    }

    /// Client: the last entry, if it still waits: it wrote it itself.
    #[inline]
    pub fn last(&self) -> Option<Entry> {
        let gate = self.gate();
        if gate.tail() == gate.claimed() {
            return None;
        }
        let last = distance(gate.tail(), 1);
        let words = std::array::from_fn(|n| self.read_word(last, gate.variant(), n));
        Entry::from_words(&words).0
    }

    /// Client: entries applied so far, the count's modulo.
    #[inline]
    pub fn done(&self) -> u32 {
        self.0.word32(DONE).load(Acquire)
    }

    /// Client: the position of the entry that was posted last; positions count all entries.
    #[inline]
    pub fn last_position(&self) -> u32 {
        distance(self.gate().tail(), 1)
    }

    /// Client: says whether it may believe that it has leases. Said before it asks for one, and
    /// taken back once it has seen the gate shut.
    pub fn believe(&self, leases: bool) {
        self.0.word64(BELIEF).store(leases.into(), Release);
    }

    /// Service: whether the client may believe that it has leases: then the gate, once shut, stays
    /// shut until it knows better.
    pub fn believes(&self) -> bool {
        self.0.word64(BELIEF).load(Acquire) != 0
    }

    /// Client: whether every entry was applied.
    pub fn is_all_done(&self) -> bool {
        // The count of all entries and that of the applied ones go round together.
        self.gate().tail() == self.done()
    }

    /// Client: the place of the next entry, below [`ENTRIES`].
    #[inline]
    pub fn next_place(&self) -> u32 {
        self.gate().tail() % ENTRIES
    }

    /// Client: whether the session's leases are over.
    #[inline]
    pub fn is_shut(&self) -> bool {
        self.gate().is_shut()
    }

    /// Service: whether something waits, where `claimed` were claimed.
    #[inline]
    pub fn is_waiting(&self, claimed: u32) -> bool {
        self.gate().tail() != claimed
    }

    /// Service: claims all that waits, where `claimed` were claimed before; copies it to `into` in
    /// order, entries that are none left out. Returns the new count. `EPROTO` for a client that
    /// breaks the rules; the gate is shut then.
    pub fn claim(&self, claimed: u32, into: &mut Vec<Entry>) -> Result<u32> {
        for _ in 0..CLAIM_TURNS {
            let gate = self.gate();
            let count = distance(gate.tail(), claimed);
            if count == 0 {
                return Ok(claimed);
            }
            if count > ENTRIES {
                break;
            }
            if self.turn(gate, gate.with_claimed(gate.tail())) {
                self.copy_out(claimed, count, gate.variant(), into);
                return Ok(gate.tail());
            }
        }
        self.shut();
        Err(Errno::EPROTO)
    }

    /// Service: so many have been applied; their places may be used again.
    pub fn finish(&self, claimed: u32) {
        self.0.word32(DONE).store(claimed, Release);
    }

    /// Service: no entry can be added or replaced from now on.
    pub fn shut(&self) {
        self.0.word64(GATE).fetch_or(SHUT, AcqRel);
    }

    /// Service: lets a client add entries, whose count starts at `claimed`. Nothing may be waiting.
    pub fn open(&self, claimed: u32) {
        self.finish(claimed);
        let gate = Gate(0).with_tail(claimed, false).with_claimed(claimed);
        self.0.word64(GATE).store(gate.0, Release);
    }

    fn copy_out(&self, claimed: u32, count: u32, last_variant: bool, into: &mut Vec<Entry>) {
        let (start, mut variant) = (into.len(), last_variant);
        for step in (0..count).rev() {
            let mut words = [0; ENTRY_WORDS];
            for (n, word) in words.iter_mut().enumerate() {
                *word = self.read_word(distance(claimed, step.wrapping_neg()), variant, n);
            }
            let (entry, former) = Entry::from_words(&words);
            variant = former;
            into.extend(entry);
        }
        into[start..].reverse();
    }

    fn gate(&self) -> Gate {
        Gate(self.0.word64(GATE).load(Acquire))
    }

    fn turn(&self, from: Gate, to: Gate) -> bool {
        self.0.word64(GATE).compare_exchange(from.0, to.0, AcqRel, Relaxed).is_ok()
    }

    fn place(position: u32, variant: bool) -> usize {
        let place = (position % ENTRIES) as usize * 2 + usize::from(variant);
        HEAD_BYTES + place * ENTRY_BYTES
    }

    fn write(&self, position: u32, variant: bool, entry: &Entry, former: bool) {
        let place = Self::place(position, variant);
        let words = entry.to_words(former).into_iter().enumerate();
        for (n, word) in words.filter(|(n, _)| travels(*n)) {
            self.0.word64(place + 8 * n).store(word, Relaxed);
        }
    }

    fn read_word(&self, position: u32, variant: bool, n: usize) -> u64 {
        if !travels(n) {
            return 0;
        }
        self.0.word64(Self::place(position, variant) + 8 * n).load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    use std::time::Duration;

    use polylane_sys::futex::Woken;

    use super::*;

    struct Plain {
        words: Vec<AtomicU64>,
        done: AtomicU32,
    }

    impl Plain {
        fn new() -> Stream<Plain> {
            let words = (0..STREAM_BYTES / 8).map(|_| AtomicU64::new(0)).collect();
            Stream(Plain { words, done: AtomicU32::new(0) })
        }
    }

    impl Memory for Plain {
        type W32 = AtomicU32;
        type W64 = AtomicU64;

        fn word32(&self, offset: usize) -> &AtomicU32 {
            assert_eq!(offset, DONE);
            &self.done
        }

        fn word64(&self, offset: usize) -> &AtomicU64 {
            &self.words[offset / 8]
        }

        fn wait(&self, _: usize, _: u32, _: Duration) -> Woken {
            Woken::TimedOut
        }

        fn wake(&self, _: usize, _: u32) {}

        fn pause(&self) {}

        fn fence(&self) {}

        fn fence_acquire(&self) {}

        fn fence_release(&self) {}

        fn total_order(&self) {}
    }

    fn make(name: &str) -> Entry {
        let name = ShortName::new(name.as_bytes()).unwrap();
        Entry { change: Change::Make, name, time: -5, handle: 77, slot: 3, ..Entry::default() }
    }

    fn names(entries: &[Entry]) -> Vec<String> {
        let text = |entry: &Entry| {
            let (bytes, len) = entry.name.to_bytes();
            String::from_utf8(bytes[..len].to_vec()).unwrap()
        };
        entries.iter().map(text).collect()
    }

    #[test]
    fn entries_come_out_as_they_went_in() {
        let stream = Plain::new();
        stream.open(7);
        let long = "x".repeat(NAME_BYTES_MAX);
        for name in ["a", "bcdefghij", &long] {
            assert!(matches!(stream.post(&make(name)), Posted::Waiting(_)));
        }
        let mut out = Vec::new();
        assert_eq!(stream.claim(7, &mut out), Ok(10));
        assert_eq!(names(&out), ["a", "bcdefghij", &long]);
        assert_eq!(out[1], make("bcdefghij"));
        assert!(ShortName::new(&[b'x'; NAME_BYTES_MAX + 1]).is_none());
        assert!(ShortName::new(b"").is_none());
    }

    #[test]
    fn what_is_set_comes_out_as_it_went_in() {
        let stream = Plain::new();
        stream.open(0);
        let entry = Entry {
            change: Change::Set,
            perm: 0o4751,
            umask: (SetState::PERM | SetState::ATIME | SetState::MTIME_NOW).bits(),
            handle: streamed_handle(3, 9),
            time: 8,
            born: -7,
            atime: i64::MIN,
            ..Entry::default()
        };
        let (handle, time) = (streamed_handle(3, 9), i64::MAX);
        let (at, len, offset) = (DATA_BYTES as u32 - 1, u32::MAX, u64::MAX - 1);
        let write = Entry { change: Change::Write, handle, time, at, len, offset, ..entry };
        let write = Entry { born: 0, atime: 0, ..write };
        let close = Entry { change: Change::Close, handle, ..Entry::default() };
        [entry, write, close].iter().for_each(|entry| _ = stream.post(entry));
        let mut out = Vec::new();
        assert_eq!(stream.claim(0, &mut out), Ok(3));
        assert_eq!(out, [entry, write, close]);
    }

    #[test]
    fn only_the_last_waiting_entry_is_replaced() {
        let stream = Plain::new();
        stream.open(COUNT as u32 - 1);
        assert!(!stream.replace(&make("nothing waits")));
        stream.post(&make("a"));
        assert!(stream.replace(&make("b")) && stream.replace(&make("c")));
        stream.post(&make("d"));
        assert!(stream.replace(&make("e")));
        stream.post(&make("f"));
        let mut out = Vec::new();
        let claimed = stream.claim(COUNT as u32 - 1, &mut out).unwrap();
        assert_eq!((claimed, names(&out)), (1, vec!["c".into(), "e".into(), "f".into()]));
        assert!(!stream.replace(&make("claimed")));
    }

    #[test]
    fn a_full_stream_says_so_and_goes_on_when_entries_are_applied() {
        let stream = Plain::new();
        stream.open(0);
        for count in 1..=ENTRIES {
            assert_eq!(stream.post(&make("a")), Posted::Waiting(count));
        }
        assert_eq!(stream.post(&make("b")), Posted::Full);
        let mut out = Vec::new();
        let claimed = stream.claim(0, &mut out).unwrap();
        assert_eq!((claimed, out.len()), (ENTRIES, ENTRIES as usize));
        assert_eq!(stream.post(&make("b")), Posted::Full);
        stream.finish(claimed);
        assert_eq!(stream.post(&make("b")), Posted::Waiting(1));
    }

    #[test]
    fn nothing_passes_a_shut_gate() {
        let stream = Plain::new();
        stream.open(0);
        stream.post(&make("a"));
        stream.shut();
        assert_eq!(stream.post(&make("b")), Posted::Shut);
        assert!(!stream.replace(&make("c")));
        let mut out = Vec::new();
        assert_eq!(stream.claim(0, &mut out), Ok(1));
        assert_eq!(names(&out), ["a"]);
    }

    #[test]
    fn only_what_was_not_claimed_is_withdrawn() {
        let stream = Plain::new();
        stream.open(0);
        stream.post(&make("a"));
        let mut out = Vec::new();
        let claimed = stream.claim(0, &mut out).unwrap();
        assert!(!stream.withdraw());
        stream.post(&make("b"));
        assert!(stream.withdraw() && stream.is_shut());
        assert!(!stream.is_all_done() && !stream.withdraw());
        stream.finish(claimed);
        assert!(stream.is_all_done() && !stream.is_waiting(claimed));
    }

    /// Whatever words lie there, claiming ends, within the bound, and gives entries or an error.
    #[test]
    fn garbage_is_bounded() {
        let stream = Plain::new();
        let mut state = 1_u64;
        for turn in 0..20_000_u32 {
            for word in &stream.0.words[..64] {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                word.store(state ^ state >> 17, Ordering::Relaxed);
            }
            let mut out = Vec::new();
            let near = if turn % 2 == 0 { stream.gate().tail() } else { 0 };
            let claimed = distance(near, turn % 200);
            let _ = stream.claim(claimed, &mut out);
            assert!(out.len() <= ENTRIES as usize);
        }
    }
}
