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
//! # Invariants
//!
//! - A view and an entry each have a sequence number, odd while the service changes them. Who finds
//!   it the same and even before and after reading has read one state of them.
//! - An entry's tag is the generation and the page. No generation is used twice in a channel, so
//!   that one store makes all frames of a file void.
//! - The client changes a frame only while it has the gate of the frame's view: it put `BUSY` there
//!   while the gate was open. What it wrote counts once `BUSY` is taken back from a gate that is
//!   still open; the service shuts the gate without waiting and sees whether somebody was inside.
//! - A frame that somebody may still be writing to is not used for another page.
//! - The gate of a view is shut before the client is told the view's number.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::message::WireAttr;
use crate::queue::memory::{Memory, Word32, Word64};

/// Views of one channel.
pub const VIEWS_MAX: u32 = if cfg!(loom) { 1 } else { 256 };
/// Bytes of a frame: a page of a file.
pub const FRAME_BYTES: usize = 4096;
/// Frames that a page may lie in.
pub const WAYS: usize = if cfg!(loom) { 1 } else { 4 };
/// Most frames of a channel.
pub const FRAMES_MAX: u32 = 1 << 16;

const VIEW_BYTES: usize = 256;
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

const _: () = assert!(ATTR + 8 * WireAttr::WORDS <= GATE);

/// Offsets in an entry.
const ENTRY_SEQ: usize = 0;
const LOAN: usize = 4;
const TAG: usize = 8;

/// The client wrote to the frame.
const DIRTY: u32 = 1;
/// The client may write to the frame while it is inside.
const WRITABLE: u32 = 2;

/// Looks at an end that moves before its size is asked for.
const LOOKS: u32 = 16;

const SHUT: u64 = 1 << 63;
const BUSY: u64 = 1 << 62;

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
}

impl<M: Memory> Views<M> {
    fn view(&self, view: u32, offset: usize) -> usize {
        view as usize % VIEWS_MAX as usize * VIEW_BYTES + offset
    }

    fn entry(&self, entry: usize, offset: usize) -> usize {
        VIEWS_MAX as usize * VIEW_BYTES + entry * ENTRY_BYTES + offset
    }

    /// Where the bytes of an entry's frame lie. The first ways of all sets come first, so that the
    /// pages of a file that is alone lie side by side.
    #[inline]
    pub fn frame_offset(&self, entry: usize) -> usize {
        let sets = self.frames / WAYS;
        frames_at(self.frames) + (entry % WAYS * sets + entry / WAYS) * FRAME_BYTES
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

    /// The end of the file for who is inside, and how far it may be moved (0: not at all).
    #[inline]
    pub fn end_and_room(&self, view: u32, inside: &Inside) -> (u64, u64) {
        match self.memory.word64(self.view(view, ROOM)).load(Acquire) {
            0 => (self.memory.word64(self.view(view, SIZE)).load(Acquire), 0),
            room => (self.memory.word64(self.end_word(view, inside.0)).load(Relaxed), room),
        }
    }

    /// State of the file; `None`: to be asked for.
    #[inline(always)]
    pub fn attr(&self, view: u32) -> Option<WireAttr> {
        let look = self.look(view).filter(|look| look.has(HAS_ATTR))?;
        let mut words = [0; WireAttr::WORDS];
        for (n, word) in words.iter_mut().enumerate() {
            *word = self.memory.word64(self.view(view, ATTR + 8 * n)).load(Acquire);
        }
        self.is_same(view, look).then(|| WireAttr::from_words(&words))
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
            (found == tag && seq.is_multiple_of(2)).then_some(Found { entry, seq })
        })
    }

    /// Where the bytes of a found frame lie.
    #[inline]
    pub fn found_offset(&self, found: Found) -> usize {
        self.frame_offset(found.entry)
    }

    /// Whether what was copied out of a frame was its page all the time.
    #[inline]
    pub fn is_whole(&self, found: Found) -> bool {
        self.memory.fence_acquire();
        self.memory.word32(self.entry(found.entry, ENTRY_SEQ)).load(Relaxed) == found.seq
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

    /// The page of a found frame is about to be written. False: it must not be.
    #[inline]
    pub fn mark(&self, found: Found) -> bool {
        let loan = self.memory.word32(self.entry(found.entry, LOAN));
        let may = loan.load(Relaxed) & WRITABLE != 0;
        if may {
            loan.store(WRITABLE | DIRTY, Relaxed);
        }
        may
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
            read.store(time().cast_unsigned(), Relaxed);
        }
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
    /// Changes a view: its generation, what counts of it (`HAS_` bits), and that. The client may
    /// not make the file longer.
    pub fn put(&self, view: u32, (generation, has): (u64, u64), size: u64, attr: &WireAttr) {
        let seq = self.memory.word32(self.view(view, SEQ));
        let odd = seq.load(Relaxed) | 1;
        seq.store(odd, Relaxed);
        self.memory.fence_release();
        let state = generation << PAGE_BITS | has;
        self.memory.word64(self.view(view, STATE)).store(state, Release);
        self.memory.word64(self.view(view, SIZE)).store(size, Release);
        self.memory.word64(self.view(view, ROOM)).store(0, Release);
        if has & HAS_ATTR != 0 {
            for (n, word) in attr.to_words().into_iter().enumerate() {
                self.memory.word64(self.view(view, ATTR + 8 * n)).store(word, Release);
            }
        }
        seq.store(odd.wrapping_add(1), Release);
    }

    /// Puts a page into the frame of an entry: `fill` stores its bytes. Tag 0: none.
    pub fn put_page(&self, entry: usize, tag: u64, fill: impl FnOnce(usize)) {
        let seq = self.memory.word32(self.entry(entry, ENTRY_SEQ));
        let odd = seq.load(Relaxed) | 1;
        seq.store(odd, Relaxed);
        self.memory.fence_release();
        self.memory.word64(self.entry(entry, TAG)).store(tag, Release);
        self.memory.word32(self.entry(entry, LOAN)).store(0, Relaxed);
        fill(self.frame_offset(entry));
        seq.store(odd.wrapping_add(1), Release);
    }

    /// The client may write to the page in an entry. The gate must be shut.
    pub fn let_write(&self, entry: usize) {
        self.memory.word32(self.entry(entry, LOAN)).store(WRITABLE, Relaxed);
    }

    /// Whether the client wrote to the writable page in an entry since it was last taken.
    pub fn take_dirty(&self, entry: usize) -> bool {
        self.memory.word32(self.entry(entry, LOAN)).swap(WRITABLE, AcqRel) & DIRTY != 0
    }

    /// Lets the client in, and lets it make the file longer, from `end` up to `room` (0: not at
    /// all). The gate must be shut and nobody inside.
    pub fn open_gate(&self, view: u32, end: u64, room: u64) {
        let gate = self.memory.word64(self.view(view, GATE));
        let count = gate.load(Relaxed) & !(SHUT | BUSY);
        self.memory.word64(self.view(view, READ)).store(0, Relaxed);
        self.memory.word64(self.end_word(view, count + 1)).store(end, Relaxed);
        gate.store((count + 1) & !(SHUT | BUSY), Release);
        // Last: who sees it sees the gate that the end belongs to.
        self.memory.word64(self.view(view, ROOM)).store(room, Release);
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

    /// When the client read first since the gate was opened, by its own account: nanoseconds since
    /// 1970. The gate must be shut.
    pub fn read(&self, view: u32) -> Option<i64> {
        let time = self.memory.word64(self.view(view, READ)).load(Relaxed).cast_signed();
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
    use crate::queue::Mapped;
    use polylane_sys::Region;

    const FRAMES: usize = 64;

    fn with(test: impl FnOnce(&Region, Views<Mapped<'_>>)) {
        let (region, _fd) = Region::create("views", bytes(FRAMES)).unwrap();
        let views = Views { memory: Mapped::new(&region, 0), frames: FRAMES };
        (0..VIEWS_MAX).for_each(|view| assert!(views.shut_gate(view)));
        test(&region, views);
    }

    #[test]
    fn frames_are_apart_and_within_bounds() {
        with(|region, views| {
            let mut at: Vec<usize> = (0..FRAMES).map(|entry| views.frame_offset(entry)).collect();
            at.sort_unstable();
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
            views.put_page(views.set_of(tag) + 1, tag, |at| region.copy_in(at, b"bytes"));
            let look = views.look(2).unwrap();
            assert!(
                look.has(HAS_DATA) && views.size(2) == Some(5000) && views.find(look, 0).is_none()
            );
            assert_eq!(views.attr(2), Some(attr));
            let found = views.find(look, 1).unwrap();
            let mut seen = [0; 5];
            region.copy_out(views.found_offset(found), &mut seen);
            assert!(&seen == b"bytes" && views.is_whole(found) && views.is_same(2, look));
            views.put_page(found.entry, 0, |_| ());
            assert!(!views.is_whole(found));
            views.put(2, (next_generation(9), HAS_DATA), 1, &attr);
            assert!(!views.is_same(2, look) && views.attr(2).is_none());
        });
    }

    #[test]
    fn an_end_moves_with_the_gate_alone() {
        with(|_, views| {
            views.put(3, (1, HAS_DATA), 100, &WireAttr::default());
            views.open_gate(3, 100, 5000);
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
            views.open_gate(3, 5000, 0);
            let inside = views.enter(3).unwrap();
            assert_eq!(views.end_and_room(3, &inside), (5000, 0));
            assert!(views.leave(3, inside, None, 5000));
        });
    }

    #[test]
    fn a_shut_gate_voids_what_is_being_written() {
        with(|_, views| {
            assert!(views.enter(0).is_none());
            views.open_gate(0, 0, 0);
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
