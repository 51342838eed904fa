//! Views: what a channel shows a client of its open files, to be read and written without asking.
//!
//! A *view* is one file: its state, and a generation under which pages of it lie in *frames*. The
//! frames are a set-associative cache, filled by the service and found by the client. All of it is
//! memory of one client process: what a hostile client writes here, nobody else reads, but for
//! pages of files that it was let to write. How the service keeps views true is in
//! `docs/design/client-cache.md`.
//!
//! ```text
//!  ├ view 0 ┼ view 1 ┼ … ┼ entries, 16 bytes per frame ┼ frames, 4096 bytes each ┤
//! ```
//!
//! An entry says which page lies in which frame. A page has few entries that may name it, and any
//! frame may hold it, so that frames that are given up are used again while they are warm. A client
//! writes anew what a page of its loan holds in a spare frame.
//!
//! # Invariants
//!
//! - A view and an entry each have a sequence number, odd while the service changes them. A client
//!   that finds it the same and even before and after reading has read one state of them.
//! - An entry's tag is the generation and the page. No generation is used twice in a channel, so
//!   that one store makes all frames of a file void.
//! - The client changes a frame only while it has the gate of the frame's view: it put `BUSY` there
//!   while the gate was open. What it wrote counts once `BUSY` is taken back from a gate that is
//!   still open; the service shuts the gate without waiting and sees whether somebody was inside.
//! - What a page holds below the end of the file is written anew in a spare frame, and then all of
//!   it at once (`view/spare.rs`).
//! - A page that the service takes back while the gate is open stays what it is once nobody was
//!   found inside after `WRITABLE` went.
//! - A frame that somebody may still be writing to is not used for another page.
//! - The gate of a view is shut before the client is told the view's number.
//!
//! # At rest
//!
//! One open file of a view may *rest*: its program closed it, and may open it again with nobody
//! asked. A word says whether it is in use or at rest; the client changes it from one to the other,
//! and the service takes a file at rest back. Each change is a compare-and-swap from what the word
//! must say, with the number of that very open in it, so that one side wins.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

use crate::memory::{Memory, Word32, Word64};
use crate::message::WireAttr;

mod spare;
mod unwritten;

/// Views of one channel.
pub const VIEWS_MAX: u32 = if cfg!(loom) { 1 } else { 2048 };
/// Bytes of a frame: a page of a file.
pub const FRAME_BYTES: usize = 4096;
/// Frames that a page may lie in.
pub const WAYS: usize = if cfg!(loom) { 1 } else { 4 };
/// Most frames of a channel.
pub const FRAMES_MAX: u32 = 1 << 16;

pub(crate) const VIEW_BYTES: usize = 512;
const ENTRY_BYTES: usize = 16;

/// Offsets in a view.
const SEQ: usize = 0;
const STATE: usize = 8;
const SIZE: usize = 16;
const ATTR: usize = 24;
const GATE: usize = 128;
const WRITTEN: usize = 136;
const READ: usize = 144;
const ROOM: usize = 152;
const ENDS: usize = 160;
const ASK: usize = 176;
const REST: usize = 184;
const STREAMS: usize = 192;
const SPARE: usize = 200;
const OPENED: usize = 208;
/// Locks on loan: see [`crate::lent`].
pub(crate) const LOCKS: usize = 256;

const _: () = assert!(ATTR + 8 * WireAttr::WORDS <= GATE && OPENED + 8 <= LOCKS);

/// Offsets in an entry.
const ENTRY_SEQ: usize = 0;
const LOAN: usize = 4;
const TAG: usize = 8;

/// The client wrote to the frame.
const DIRTY: u32 = 1;
/// The client may write to the frame while it is inside.
const WRITABLE: u32 = 2;
/// Above those bits: how often the client has put the page into another frame.
const SWITCH: u32 = 4;
/// Above that: the number of the frame.
const FRAME_SHIFT: u32 = 16;

const _: () = assert!(FRAMES_MAX <= 1 << (32 - FRAME_SHIFT));

/// Looks at an end that moves before its size is asked for.
const LOOKS: u32 = 16;

/// Below the number of an open file that may rest: its program uses it.
const USED: u64 = 1;
/// Its program closed it.
const RESTING: u64 = 2;
const REST_SHIFT: u32 = 2;

pub(crate) const SHUT: u64 = 1 << 63;
pub(crate) const BUSY: u64 = 1 << 62;

/// Bits of a page number in a tag; pages beyond have no frames.
const PAGE_BITS: u32 = 24;
/// Bits of a generation.
const GENERATION_BITS: u32 = 64 - PAGE_BITS;

/// Beside a generation: the size and the data count.
pub const HAS_DATA: u64 = 1;
/// Beside a generation: the file's state counts.
pub const HAS_ATTR: u64 = 2;
/// Beside a generation: a read is to be noted, because it moves the access time.
pub const NOTES_READS: u64 = 4;
/// Beside a generation: the file is on loan, and its state counts as long as nothing was written on
/// that. The first read that is noted is its access time.
pub const UNTIL_WRITTEN: u64 = 8;

/// Bytes that views with `frames` frames take in a channel.
pub const fn bytes(frames: usize) -> usize {
    frames_at(frames) + frames * FRAME_BYTES
}

const fn frames_at(frames: usize) -> usize {
    (VIEWS_MAX as usize * VIEW_BYTES + frames * ENTRY_BYTES).next_multiple_of(FRAME_BYTES)
}

/// The name of a page of a file in the frames; `None`: it has none. `generation` is not 0.
pub fn tag(generation: u64, page: u64) -> Option<u64> {
    (page >> PAGE_BITS == 0).then_some(generation << PAGE_BITS | page)
}

/// The generation after `generation`. Comes round after 2^40.
pub fn next_generation(generation: u64) -> u64 {
    (generation + 1) % (1 << GENERATION_BITS)
}

/// The views in a channel's memory. Either side's use of one view may come from many threads.
#[derive(Clone, Debug)]
pub struct Views<M> {
    /// Where they lie.
    pub memory: M,
    /// Frames: a power of two, or none.
    pub frames: usize,
}

/// A view as it was found.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    seq: u32,
    state: u64,
}

impl Look {
    /// Whether all of these counted.
    #[inline]
    pub fn has(&self, bits: u64) -> bool {
        self.state & bits == bits
    }

    /// The number of the state that was found; the next one has another.
    #[inline]
    pub fn sequence(&self) -> u32 {
        self.seq
    }
}

/// A frame that was found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    entry: usize,
    seq: u32,
    loan: u32,
}

/// What the service finds when it takes a page back, by its client's account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The frame in which the page lies.
    pub frame: u32,
    /// The client wrote to it since it was lent.
    pub written: bool,
}

impl<M: Memory> Views<M> {
    pub(crate) fn view(&self, view: u32, offset: usize) -> usize {
        view as usize % VIEWS_MAX as usize * VIEW_BYTES + offset
    }

    fn entry(&self, entry: usize, offset: usize) -> usize {
        VIEWS_MAX as usize * VIEW_BYTES + entry * ENTRY_BYTES + offset
    }

    fn loan(&self, entry: usize) -> &M::W32 {
        self.memory.word32(self.entry(entry, LOAN))
    }

    /// Where the bytes of a frame lie.
    #[inline]
    pub fn frame_offset(&self, frame: u32) -> usize {
        frames_at(self.frames) + frame as usize * FRAME_BYTES
    }

    /// The first of the [`WAYS`] entries that a page may have. There must be frames.
    #[inline]
    pub fn set_of(&self, tag: u64) -> usize {
        let spread = (tag >> PAGE_BITS).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        (spread.wrapping_add(tag) as usize & (self.frames / WAYS - 1)) * WAYS
    }
}

/// The client's side.
impl<M: Memory> Views<M> {
    /// Looks at a view; `None` while it changes.
    #[inline]
    pub fn look(&self, view: u32) -> Option<Look> {
        let seq = self.memory.word32(self.view(view, SEQ)).load(Acquire);
        let state = self.memory.word64(self.view(view, STATE)).load(Acquire);
        (seq.is_multiple_of(2)).then_some(Look { seq, state })
    }

    /// Whether all that was read of a view since the look was one state.
    #[inline]
    pub fn is_same(&self, view: u32, look: Look) -> bool {
        self.is_at(view, look.seq)
    }

    /// As [`Views::is_same`], since the look with that [`Look::sequence`], whoever looked.
    #[inline]
    pub fn is_at(&self, view: u32, sequence: u32) -> bool {
        self.memory.fence_acquire();
        self.memory.word32(self.view(view, SEQ)).load(Relaxed) == sequence
    }

    /// Size of the file, once [`Views::is_same`] says so; `None`: it grows too fast to say.
    #[inline]
    pub fn size(&self, view: u32) -> Option<u64> {
        if self.memory.word64(self.view(view, ROOM)).load(Acquire) == 0 {
            return Some(self.memory.word64(self.view(view, SIZE)).load(Acquire));
        }
        let count = || self.memory.word64(self.view(view, GATE)).load(Acquire) & !(SHUT | BUSY);
        for _ in 0..LOOKS {
            let before = count();
            let end = self.memory.word64(self.end_word(view, before)).load(Acquire);
            self.memory.fence_acquire();
            if count() == before {
                return Some(end);
            }
        }
        None
    }

    /// Where the end of the file lies after so many passes through the gate. The next one has
    /// another place, so that who does not get through has changed nothing.
    fn end_word(&self, view: u32, gate: u64) -> usize {
        self.view(view, ENDS + 8 * (gate % 2) as usize)
    }

    /// The end of the file for who is inside, and how far it may be moved (0: not at all). Room
    /// that was taken away while the gate is open leaves the end where it was moved to.
    #[inline]
    pub fn end_and_room(&self, view: u32, inside: &Inside) -> (u64, u64) {
        let room = self.memory.word64(self.view(view, ROOM)).load(Acquire);
        (self.memory.word64(self.end_word(view, inside.0)).load(Relaxed), room)
    }

    /// State of the file; `None`: to be asked for, as where a read was noted that moves a time, but
    /// for one on loan.
    #[inline(always)]
    pub fn attr(&self, view: u32) -> Option<WireAttr> {
        let look = self.look(view).filter(|look| look.has(HAS_ATTR))?;
        let read = if look.has(NOTES_READS) { self.read_of(view, look)? } else { 0 };
        let mut words = [0; WireAttr::WORDS];
        for (n, word) in words.iter_mut().enumerate() {
            *word = self.memory.word64(self.view(view, ATTR + 8 * n)).load(Acquire);
        }
        let attr = self.is_same(view, look).then(|| WireAttr::from_words(&words))?;
        Some(if read == 0 { attr } else { unwritten::accessed(attr, read) })
    }

    /// The frame of a page. Its bytes count if [`Views::is_whole`] says so after they were copied.
    #[inline]
    pub fn find(&self, look: Look, page: u64) -> Option<Found> {
        if self.frames == 0 || page >> PAGE_BITS != 0 {
            return None;
        }
        let tag = look.state >> PAGE_BITS << PAGE_BITS | page;
        let set = self.set_of(tag);
        (set..set + WAYS).find_map(|entry| {
            let seq = self.memory.word32(self.entry(entry, ENTRY_SEQ)).load(Acquire);
            let found = self.memory.word64(self.entry(entry, TAG)).load(Acquire);
            let there = found == tag && seq.is_multiple_of(2);
            there.then(|| Found { entry, seq, loan: self.loan(entry).load(Acquire) })
        })
    }

    /// Where the bytes of a found frame lie.
    #[inline]
    pub fn found_offset(&self, found: Found) -> usize {
        self.frame_offset(found.loan >> FRAME_SHIFT)
    }

    /// Whether what was copied out of a frame was its page all the time.
    #[inline]
    pub fn is_whole(&self, found: Found) -> bool {
        self.memory.fence_acquire();
        let moved = self.loan(found.entry).load(Relaxed) ^ found.loan;
        moved & !(DIRTY | WRITABLE) == 0
            && self.memory.word32(self.entry(found.entry, ENTRY_SEQ)).load(Relaxed) == found.seq
    }

    /// Goes in to write: from now on the frames of the view stay what they are until
    /// [`Views::leave`]. `None`: not let to, or another thread is inside.
    #[inline]
    pub fn enter(&self, view: u32) -> Option<Inside> {
        let gate = self.memory.word64(self.view(view, GATE));
        let seen = gate.load(Relaxed);
        if seen & (SHUT | BUSY) != 0 {
            return None;
        }
        gate.compare_exchange(seen, seen | BUSY, Acquire, Relaxed).ok().map(|_| Inside(seen))
    }

    /// Whether a thread is inside and the gate is open: worth a moment's wait.
    #[inline]
    pub fn is_crowded(&self, view: u32) -> bool {
        self.memory.word64(self.view(view, GATE)).load(Relaxed) & (SHUT | BUSY) == BUSY
    }

    /// Bytes behind the end of the file are about to be written in a found frame, which nobody
    /// reads before the end has moved. False: they must not be.
    #[inline]
    pub fn mark(&self, found: Found) -> bool {
        let loan = self.loan(found.entry);
        let seen = loan.load(Relaxed);
        let may = seen & WRITABLE != 0;
        // Not stored: the service may take the page back meanwhile.
        let marked = || loan.compare_exchange(seen, seen | DIRTY, Relaxed, Relaxed).is_ok();
        may && (seen & DIRTY != 0 || marked())
    }

    /// Whether a file that ends at `end` is worth asking for more room for: true once for each
    /// time that the service said from where on.
    #[inline]
    pub fn is_to_ask(&self, view: u32, end: u64) -> bool {
        let ask = self.memory.word64(self.view(view, ASK));
        let from = ask.load(Relaxed);
        from != 0 && end >= from && ask.compare_exchange(from, 0, Relaxed, Relaxed).is_ok()
    }

    /// The number of the loan on which whole pages that are not lent may be written by the stream;
    /// 0: there is none. Looked at again once that is done: who ends the loan takes the number away
    /// before he looks at the stream, and no other loan has the same.
    #[inline]
    pub fn streams(&self, view: u32) -> u64 {
        self.memory.fence();
        self.memory.word64(self.view(view, STREAMS)).load(SeqCst)
    }

    /// Whether a read was noted since the gate was opened.
    #[inline]
    pub fn has_noted(&self, view: u32) -> bool {
        self.memory.word64(self.view(view, READ)).load(Relaxed) != 0
    }

    /// Notes that the file is read; `time` gives when, and is asked once.
    #[inline]
    pub fn note_read(&self, view: u32, time: impl FnOnce() -> i64) {
        let read = self.memory.word64(self.view(view, READ));
        if read.load(Relaxed) == 0 {
            // Either the service takes it, or what it showed before is seen to be over.
            read.swap(time().cast_unsigned(), AcqRel);
        }
    }

    /// The program closed the file that may rest under `number`. False: it may not.
    #[inline]
    pub fn lie_down(&self, view: u32, number: u64) -> bool {
        self.turn(view, number, USED, RESTING)
    }

    /// The program uses the file again that rests under `number`. False: the service took it back.
    #[inline]
    pub fn get_up(&self, view: u32, number: u64) -> bool {
        self.turn(view, number, RESTING, USED)
    }

    #[inline]
    fn turn(&self, view: u32, number: u64, from: u64, to: u64) -> bool {
        let (word, number) = (self.rest_word(view), number << REST_SHIFT);
        let turned = word.compare_exchange(number | from, number | to, SeqCst, Relaxed).is_ok();
        // The client looks at the file's mark next, and the service raised that before it looked
        // here: one of the two sees what the other did.
        self.memory.fence();
        turned
    }

    fn rest_word(&self, view: u32) -> &M::W64 {
        self.memory.word64(self.view(view, REST))
    }

    /// Goes out. `time`: when it was written, nanoseconds since 1970; `None`: nothing was. `end`:
    /// where the file ends now. False: the gate was shut meanwhile and what was written does not
    /// count.
    #[inline]
    pub fn leave(&self, view: u32, inside: Inside, time: Option<i64>, end: u64) -> bool {
        let gate = self.memory.word64(self.view(view, GATE));
        self.memory.word64(self.end_word(view, inside.0 + 1)).store(end, Relaxed);
        if let Some(time) = time {
            self.memory.word64(self.view(view, WRITTEN)).store(time.cast_unsigned(), Relaxed);
        }
        let mut seen = inside.0 | BUSY;
        let free = (inside.0 + 1) & !(SHUT | BUSY);
        loop {
            let next = if seen & SHUT == 0 { free } else { seen & !BUSY };
            match gate.compare_exchange(seen, next, Release, Relaxed) {
                Ok(_) => return seen & SHUT == 0,
                Err(now) => seen = now,
            }
        }
    }
}

/// The right to change frames of a view; given back by [`Views::leave`].
#[must_use = "nobody else comes in before this one has left"]
#[derive(Debug)]
pub struct Inside(u64);

/// The service's side. Changes of one view, and of one entry, exclude each other.
impl<M: Memory> Views<M> {
    /// Makes a change while the sequence number at `seq` is odd; the next even one follows.
    fn change(&self, seq: usize, change: impl FnOnce()) {
        let seq = self.memory.word32(seq);
        let odd = seq.load(Relaxed) | 1;
        seq.store(odd, Relaxed);
        self.memory.fence_release();
        change();
        seq.store(odd.wrapping_add(1), Release);
    }

    /// Changes a view: its generation, what counts of it (`HAS_` bits), and that. The client may
    /// not make the file longer.
    pub fn put(&self, view: u32, (generation, has): (u64, u64), size: u64, attr: &WireAttr) {
        let word = |offset| self.memory.word64(self.view(view, offset));
        self.change(self.view(view, SEQ), || {
            word(STATE).store(generation << PAGE_BITS | has, Release);
            word(SIZE).store(size, Release);
            word(ROOM).store(0, Release);
            if has & HAS_ATTR != 0 {
                for (n, value) in attr.to_words().into_iter().enumerate() {
                    word(ATTR + 8 * n).store(value, Release);
                }
            }
        });
    }

    /// Changes what counts of a view, and leaves the rest as it is.
    pub fn put_has(&self, view: u32, (generation, has): (u64, u64)) {
        self.change(self.view(view, SEQ), || {
            let state = self.memory.word64(self.view(view, STATE));
            state.store(generation << PAGE_BITS | has, Release);
        });
    }

    /// From now on the bytes of a view count beside its state, and reads of them are to be noted.
    pub fn let_read(&self, view: u32, generation: u64) {
        let state = generation << PAGE_BITS | HAS_DATA | HAS_ATTR | NOTES_READS;
        self.change(self.view(view, SEQ), || {
            self.memory.word64(self.view(view, STATE)).store(state, Release);
            self.memory.word64(self.view(view, READ)).store(0, Release);
        });
    }

    /// An open file of the view may rest under `number`, which is not 0, below 2^62 and of no file
    /// before; or, 0, none may. It is in use.
    pub fn put_rest(&self, view: u32, number: u64) {
        let word = if number == 0 { 0 } else { number << REST_SHIFT | USED };
        self.rest_word(view).store(word, Release);
    }

    /// Takes back the file that may rest under `number`, if it rests: true then. Whatever is a
    /// reason to was raised before, as a mark that the client looks at after it turned the word.
    pub fn take_rest(&self, view: u32, number: u64) -> bool {
        self.memory.fence();
        let resting = number << REST_SHIFT | RESTING;
        self.rest_word(view).compare_exchange(resting, 0, SeqCst, Relaxed).is_ok()
    }

    /// Puts a page into an entry, to lie in a frame: `fill` stores its bytes at an offset. Tag 0:
    /// none.
    pub fn put_page(&self, entry: usize, (tag, frame): (u64, u32), fill: impl FnOnce(usize)) {
        self.change(self.entry(entry, ENTRY_SEQ), || {
            self.memory.word64(self.entry(entry, TAG)).store(tag, Release);
            self.loan(entry).store(frame << FRAME_SHIFT, Release);
            fill(self.frame_offset(frame));
        });
    }

    /// The client may write to the page in an entry, which lies in `frame`. The gate must be shut,
    /// or the page one that the client was not shown before.
    pub fn let_write(&self, entry: usize, frame: u32) {
        self.loan(entry).store(frame << FRAME_SHIFT | WRITABLE, Release);
    }

    /// The client may not write to the page in an entry any more, nor put it into another frame. A
    /// client that is inside meanwhile may be writing behind the end of the file there.
    pub fn take_back(&self, entry: usize) -> Taken {
        let word = self.loan(entry).fetch_and(!(DIRTY | WRITABLE), AcqRel);
        Taken { frame: word >> FRAME_SHIFT, written: word & DIRTY != 0 }
    }

    /// Whether the client wrote to the page in an entry since it was lent, by its own account. The
    /// gate must be shut and no thread inside: then the page needs to be taken back only if so.
    pub fn is_written(&self, entry: usize) -> bool {
        self.loan(entry).load(Acquire) & DIRTY != 0
    }

    /// Undoes [`Views::take_back`] for a page that the client wrote.
    pub fn let_write_again(&self, entry: usize) {
        self.loan(entry).fetch_or(WRITABLE | DIRTY, AcqRel);
    }

    /// Lets the client in, and lets it make the file longer, from `end` up to `room` (0: not at
    /// all); past `ask` (0: never) it asks for more. The gate must be shut and nobody inside. What
    /// the gate says until somebody goes in.
    pub fn open_gate(&self, view: u32, end: u64, (room, ask): (u64, u64)) -> u64 {
        let gate = self.memory.word64(self.view(view, GATE));
        let count = gate.load(Relaxed) & !(SHUT | BUSY);
        self.memory.word64(self.view(view, READ)).store(0, Relaxed);
        self.memory.word64(self.end_word(view, count + 1)).store(end, Relaxed);
        let opened = (count + 1) & !(SHUT | BUSY);
        self.memory.word64(self.view(view, OPENED)).store(opened, Relaxed);
        gate.store(opened, Release);
        // Last: who sees it sees the gate that the end belongs to.
        self.put_room(view, room, ask);
        opened
    }

    /// As with [`Views::open_gate`], for a gate that is open.
    pub fn put_room(&self, view: u32, room: u64, ask: u64) {
        self.memory.word64(self.view(view, ASK)).store(ask, Relaxed);
        self.memory.word64(self.view(view, ROOM)).store(room, Release);
    }

    /// On the loan with this number, which no other has, the client may write by the stream what it
    /// is not lent; 0: it may not. What was posted before that was forbidden lies in the stream for
    /// who looks there next.
    pub fn let_stream(&self, view: u32, loan: u64) {
        self.memory.word64(self.view(view, STREAMS)).store(loan, SeqCst);
        self.memory.fence();
    }

    /// Whether nobody is inside, whose gate may be open. What was forbidden before is obeyed by
    /// whoever comes in after.
    pub fn is_passed(&self, view: u32) -> bool {
        // Changed without a change: who comes in next sees what was stored before.
        self.memory.word64(self.view(view, GATE)).fetch_or(0, AcqRel) & BUSY == 0
    }

    /// Where the file ends by the client's account: what passed the gate before it was shut.
    pub fn end(&self, view: u32) -> u64 {
        let gate = self.memory.word64(self.view(view, GATE)).load(Acquire);
        self.memory.word64(self.end_word(view, gate)).load(Relaxed)
    }

    /// Lets nobody in from now on; true when nobody is inside either.
    pub fn shut_gate(&self, view: u32) -> bool {
        self.memory.word64(self.view(view, GATE)).fetch_or(SHUT, AcqRel) & BUSY == 0
    }

    /// Whether nobody is inside any more. The gate must be shut.
    pub fn is_left(&self, view: u32) -> bool {
        self.memory.word64(self.view(view, GATE)).load(Acquire) & BUSY == 0
    }

    /// When the client read first since it was let to, by its own account: nanoseconds since
    /// 1970. The gate must be shut.
    pub fn read(&self, view: u32) -> Option<i64> {
        // A change without a change: see `note_read`.
        let time = self.memory.word64(self.view(view, READ)).fetch_or(0, AcqRel).cast_signed();
        (time != 0).then_some(time)
    }

    /// When the client wrote last, by its own account: nanoseconds since 1970.
    pub fn written(&self, view: u32) -> i64 {
        self.memory.word64(self.view(view, WRITTEN)).load(Relaxed).cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Mapped;
    use polylane_sys::Region;

    const FRAMES: usize = 64;

    fn with(test: impl FnOnce(&Region, Views<Mapped<'_>>)) {
        let (region, _fd) = Region::create("views", bytes(FRAMES)).unwrap();
        let views = Views { memory: Mapped::new(&region, 0), frames: FRAMES };
        (0..VIEWS_MAX).for_each(|view| assert!(views.shut_gate(view)));
        test(&region, views);
    }

    #[test]
    fn a_file_at_rest_is_got_up_or_taken_back_but_not_both() {
        with(|_, views| {
            assert!(!views.lie_down(3, 7) && !views.take_rest(3, 7));
            views.put_rest(3, 7);
            assert!(!views.take_rest(3, 7) && !views.get_up(3, 7), "in use");
            assert!(views.lie_down(3, 7) && views.get_up(3, 7) && views.lie_down(3, 7));
            assert!(!views.take_rest(3, 6) && views.take_rest(3, 7) && !views.get_up(3, 7));
            views.put_rest(3, 8);
            assert!(!views.lie_down(3, 7) && views.lie_down(3, 8));
            views.put_rest(3, 0);
            assert!(!views.get_up(3, 8) && !views.lie_down(3, 0));
        });
    }

    #[test]
    fn frames_are_apart_and_within_bounds() {
        with(|region, views| {
            let at: Vec<usize> = (0..FRAMES as u32).map(|n| views.frame_offset(n)).collect();
            assert!(at.windows(2).all(|two| two[1] - two[0] == FRAME_BYTES));
            assert!(at[0] >= views.entry(FRAMES, 0));
            assert_eq!(at[FRAMES - 1] + FRAME_BYTES, region.len());
        });
    }

    #[test]
    fn a_file_that_is_alone_fits_whole() {
        with(|_, views| {
            let mut used = [0; FRAMES / WAYS];
            for page in 0..FRAMES as u64 {
                used[views.set_of(tag(77, page).unwrap()) / WAYS] += 1;
            }
            assert!(used.iter().all(|&pages| pages == WAYS));
            assert_eq!(tag(1, 1 << PAGE_BITS), None);
        });
    }

    #[test]
    fn pages_are_found_until_the_generation_changes() {
        with(|region, views| {
            let attr = WireAttr { size: 5000, nlink: 3, ..WireAttr::default() };
            views.put(2, (9, HAS_DATA | HAS_ATTR), 5000, &attr);
            let tag = tag(9, 1).unwrap();
            views.put_page(views.set_of(tag) + 1, (tag, 5), |at| region.copy_in(at, b"bytes"));
            assert_eq!(
                views.found_offset(views.find(views.look(2).unwrap(), 1).unwrap()),
                views.frame_offset(5)
            );
            let look = views.look(2).unwrap();
            assert!(
                look.has(HAS_DATA) && views.size(2) == Some(5000) && views.find(look, 0).is_none()
            );
            assert_eq!(views.attr(2), Some(attr));
            let found = views.find(look, 1).unwrap();
            let mut seen = [0; 5];
            region.copy_out(views.found_offset(found), &mut seen);
            assert!(&seen == b"bytes" && views.is_whole(found) && views.is_same(2, look));
            views.put_page(found.entry, (0, 0), |_| ());
            assert!(!views.is_whole(found));
            views.put(2, (next_generation(9), HAS_DATA), 1, &attr);
            assert!(!views.is_same(2, look) && views.attr(2).is_none());
        });
    }

    #[test]
    fn an_end_moves_with_the_gate_alone() {
        with(|_, views| {
            views.put(3, (1, HAS_DATA), 100, &WireAttr::default());
            views.open_gate(3, 100, (5000, 250));
            assert!(
                !views.is_to_ask(3, 249) && views.is_to_ask(3, 250) && !views.is_to_ask(3, 251)
            );
            assert_eq!(views.size(3), Some(100));
            for end in [200, 300, 5000] {
                let inside = views.enter(3).unwrap();
                assert_eq!(views.end_and_room(3, &inside), (views.size(3).unwrap(), 5000));
                assert!(views.leave(3, inside, Some(1), end));
                assert_eq!(views.size(3), Some(end));
            }
            // Who is shut out has moved nothing.
            let inside = views.enter(3).unwrap();
            views.shut_gate(3);
            assert!(!views.leave(3, inside, Some(2), 5001));
            assert_eq!((views.end(3), views.size(3)), (5000, Some(5000)));
            views.put(3, (1, HAS_DATA), 5000, &WireAttr::default());
            views.open_gate(3, 5000, (9000, 0));
            let inside = views.enter(3).unwrap();
            assert!(views.leave(3, inside, Some(3), 6000));
            // Another state while the gate is open: what was moved stays moved.
            views.put(3, (1, 0), 5000, &WireAttr::default());
            let inside = views.enter(3).unwrap();
            assert_eq!(views.end_and_room(3, &inside), (6000, 0));
            assert!(views.leave(3, inside, None, 6000));
            assert!(views.shut_gate(3));
            assert_eq!(views.end(3), 6000);
            views.put(3, (1, HAS_DATA), 5000, &WireAttr::default());
            views.open_gate(3, 5000, (0, 0));
            let inside = views.enter(3).unwrap();
            assert_eq!(views.end_and_room(3, &inside), (5000, 0));
            assert!(views.leave(3, inside, None, 5000));
        });
    }

    #[test]
    fn a_page_is_taken_back_while_the_gate_is_open() {
        with(|_, views| {
            let tag = tag(1, 0).unwrap();
            let entry = views.set_of(tag);
            views.put(0, (1, HAS_DATA), 0, &WireAttr::default());
            views.put_page(entry, (tag, 9), |_| ());
            views.let_write(entry, 9);
            views.open_gate(0, 0, (4096, 0));
            let inside = views.enter(0).unwrap();
            let found = views.find(views.look(0).unwrap(), 0).unwrap();
            assert!(views.mark(found) && views.mark(found));
            assert_eq!(views.take_back(entry).frame, 9);
            assert!(!views.is_passed(0), "somebody is inside");
            views.let_write_again(entry);
            assert!(views.leave(0, inside, None, 4096));
            assert_eq!(views.take_back(entry).frame, 9);
            assert!(views.is_passed(0));
            let inside = views.enter(0).unwrap();
            assert!(!views.mark(found));
            assert!(views.leave(0, inside, None, 4096));
        });
    }

    #[test]
    fn a_shut_gate_voids_what_is_being_written() {
        with(|_, views| {
            assert!(views.enter(0).is_none());
            views.open_gate(0, 0, (0, 0));
            let inside = views.enter(0).unwrap();
            assert!(views.enter(0).is_none() && views.is_crowded(0));
            assert!(views.leave(0, inside, Some(7), 0));
            assert_eq!(views.written(0), 7);
            let inside = views.enter(0).unwrap();
            assert!(!views.shut_gate(0) && !views.is_left(0));
            assert!(!views.leave(0, inside, None, 0));
            assert!(views.is_left(0) && views.enter(0).is_none());
        });
    }
}
