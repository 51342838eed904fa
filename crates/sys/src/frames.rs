//! Page frames: memory for file data, 4 KiB each, kept together and used again.
//!
//! A page cache takes and gives back frames all day. From the general allocator each would be a
//! chunk of its own that straddles two pages, and a fresh one costs a fault of the kernel's, which
//! takes longer than filling it. Here frames lie in regions of 2 MiB whose pages the kernel is
//! asked for some at a time, in one call. The lowest regions are used first, so that the highest
//! become empty, and go back to the kernel.
//!
//! The kernel clears a page before it hands it out, and that takes longer than all else that is
//! done for a small file. A thread has it done some frames ahead of need, so that a fast writer
//! does not wait for it; a writer that comes before that thread asks the kernel itself.
//!
//! A huge page is a region in one fault, a third of the time of small ones; from the second region
//! on they are asked for, and the thread makes a region ahead ([`use_huge_pages`]). Not in a guest
//! whose host takes free memory back (virtio-balloon's free page reporting, in blocks of 2 MiB):
//! the host has to find it again, in milliseconds, where small pages are reused while warm.
//!
//! # Invariants
//!
//! - A frame belongs to one [`Frame`] or is free; a region is unmapped only when all of its frames
//!   are free and the thread is not at work in it.
//! - Frames of a region up to `paged` have pages, or somebody is about to ask for them: one asks
//!   for each.
//! - Frames of a region from `fresh` on were never handed out: they are zero.
#![expect(unsafe_code, reason = "UNSAFETY: maps memory and hands parts of it out")]

use std::alloc::{Layout, handle_alloc_error};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use polylane_base::sync::atomic::{AtomicBool, Ordering::Relaxed};
use polylane_base::sync::{Arc, Mutex, Weak, thread};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes in a frame.
pub const FRAME_BYTES: usize = 4096;

/// Bytes in a region.
const REGION_BYTES: usize = 2 << 20;
const FRAMES: usize = REGION_BYTES / FRAME_BYTES;

/// Frames whose pages the kernel is asked for at a time: 128 KiB are filled from the CPU's caches.
const AHEAD: u16 = 32;
const _: () = assert!(FRAMES.is_multiple_of(AHEAD as usize));

/// Fresh frames that the thread has pages made for, at most: 1 MiB.
const READY_MAX: u16 = 256;
/// It is woken when fewer are left.
const READY_MIN: u16 = 128;
/// Frames that the thread asks for in one call, which keeps mappings from being changed meanwhile.
const PAGER_FRAMES: u16 = 4;
const _: () = assert!(AHEAD.is_multiple_of(PAGER_FRAMES));

/// Frames left in all when a region of a huge page is made ahead.
const LEFT_MIN: usize = 128;

/// See [`use_huge_pages`].
static HUGE: AtomicBool = AtomicBool::new(false);

/// Has pools ask for huge pages from now on: where the host leaves free memory alone.
pub fn use_huge_pages() {
    HUGE.store(true, Relaxed);
}

/// Regions without a used frame that are kept for the next ones.
const EMPTY_MAX: usize = 1;

/// A pool of frames; cheap to clone. Thread-safe. Its memory goes with the last frame.
#[derive(Clone, Default)]
pub struct Frames(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// By their address.
    regions: BTreeMap<usize, Region>,
    /// Those with free frames.
    open: BTreeSet<usize>,
    /// How many have free frames only.
    empty: usize,
    /// The region whose fresh frames are used now, when few of them have pages.
    wanted: Option<usize>,
    /// Where the thread is at work.
    paging: Option<usize>,
    /// A region of a huge page is to be made ahead, as few frames are left.
    short: bool,
    /// Wakes the thread; it ends with this.
    pager: Pager,
}

/// The thread that has pages made.
#[derive(Default)]
enum Pager {
    /// A pool that fits into its first region has none.
    #[default]
    Unneeded,
    Runs(SyncSender<()>),
    /// There could be none.
    Failed,
}

/// Mapped memory; unmapped when dropped.
struct Region {
    base: NonNull<u8>,
    /// Frames that were used before.
    free: Vec<u16>,
    /// The first of those that never were.
    fresh: u16,
    /// The first without a page that is to have one before it is touched.
    paged: u16,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for Region {}

impl Region {
    fn map(ahead: bool) -> Region {
        let none = || -> ! { handle_alloc_error(Layout::new::<[u8; REGION_BYTES]>()) };
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // Twice as much holds an aligned one; what is around it goes back.
        // SAFETY: new memory, at an address of the kernel's choice.
        let mapped =
            unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * REGION_BYTES, protection, flags) };
        let Some(start) = mapped.ok().and_then(|start| NonNull::new(start.cast::<u8>())) else {
            none()
        };
        let before = start.addr().get().next_multiple_of(REGION_BYTES) - start.addr().get();
        // SAFETY: `before` is less than a region, so it and a region lie within the mapping, and
        // nobody has a reference into what is unmapped.
        let base = unsafe {
            let base = start.add(before);
            // What cannot be unmapped is address space, no memory: nothing has touched it.
            if before > 0 {
                let _ = munmap(start.as_ptr().cast(), before);
            }
            let _ = munmap(base.add(REGION_BYTES).as_ptr().cast(), REGION_BYTES - before);
            base
        };
        // Else all get their pages as they are touched.
        let paged = if ahead { 0 } else { FRAMES as u16 };
        Region { base, free: Vec::new(), fresh: 0, paged }
    }

    /// One whose frames get their pages as they are touched: all at once, if there is a huge one.
    fn map_huge() -> Region {
        let region = Region::map(false);
        let base = region.base.as_ptr().cast();
        // What is refused comes in small pages.
        // SAFETY: the mapping of this region; no byte of it is changed.
        let _ = unsafe { madvise(base, REGION_BYTES, Advice::LinuxHugepage) };
        region
    }

    /// Frames that can be taken.
    fn left(&self) -> usize {
        self.free.len() + FRAMES - usize::from(self.fresh)
    }

    fn is_empty(&self) -> bool {
        self.free.len() == usize::from(self.fresh)
    }

    fn is_full(&self) -> bool {
        self.free.is_empty() && usize::from(self.fresh) == FRAMES
    }

    /// A free frame, and what it holds.
    fn take(&mut self) -> (NonNull<[u8; FRAME_BYTES]>, Holds) {
        let (index, holds) = match self.free.pop() {
            Some(index) => (index, Holds::Bytes),
            None => {
                let first = self.fresh == self.paged && self.page_some();
                self.fresh += 1;
                (self.fresh - 1, if first { Holds::NoPages } else { Holds::Zeros })
            }
        };
        assert!(usize::from(index) < FRAMES, "a full region");
        // SAFETY: within the mapping, by the assertion.
        (unsafe { self.base.add(usize::from(index) * FRAME_BYTES) }.cast(), holds)
    }

    /// Leaves it to the caller to ask for the pages of the next [`AHEAD`] frames; false when all
    /// have theirs.
    fn page_some(&mut self) -> bool {
        let more = usize::from(self.paged) < FRAMES;
        self.paged += if more { AHEAD } else { 0 };
        more
    }

    /// Fresh frames with pages are fewer than `few`, and there could be more.
    fn lacks(&self, few: u16) -> bool {
        usize::from(self.paged) < FRAMES && self.paged - self.fresh < few
    }
}

/// Asks the kernel for pages of `frames` frames from `base` on: Linux 5.14. What is not had this
/// way comes as it is touched, and what pages there are keep their bytes.
///
/// # Safety
/// They lie in one region, which stays mapped meanwhile.
unsafe fn populate(base: NonNull<u8>, frames: u16) {
    let bytes = usize::from(frames) * FRAME_BYTES;
    // SAFETY: mapped, as the caller promises; no byte of it is changed.
    let _ = unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite) };
}

/// Has pages made ahead of need, as long as there is the pool.
fn run_pager(pool: &Weak<Mutex<State>>, wake: &Receiver<()>) {
    while wake.recv().is_ok() {
        let Some(pool) = pool.upgrade() else { return };
        if pool.lock().short {
            let region = Region::map_huge();
            for frame in (0..FRAMES).step_by(AHEAD.into()) {
                // SAFETY: within a region, which nobody else knows yet.
                unsafe { populate(region.base.add(frame * FRAME_BYTES), AHEAD) };
            }
            let unneeded = pool.lock().made_ahead(region);
            drop(unneeded);
        }
        loop {
            let Some(base) = pool.lock().page_next() else { break };
            for frame in (0..AHEAD).step_by(PAGER_FRAMES.into()) {
                // SAFETY: `page_next` gave out `AHEAD` frames of a region, which stays until
                // `paged` is told.
                unsafe { populate(base.0.add(usize::from(frame) * FRAME_BYTES), PAGER_FRAMES) };
            }
            let emptied = pool.lock().paged();
            drop(emptied);
        }
    }
}

/// Where the thread is to have pages made.
struct Place(NonNull<u8>);

/// What a frame holds when it is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// What a user before left.
    Bytes,
    /// Zeros.
    Zeros,
    /// Zeros, and neither it nor the rest of [`AHEAD`] frames has a page.
    NoPages,
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`; all frames are free, so nobody has a reference into it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), REGION_BYTES) };
    }
}

impl State {
    fn take(&mut self) -> (NonNull<[u8; FRAME_BYTES]>, Holds) {
        let at = match self.open.first() {
            Some(at) => *at,
            None => {
                // An idle pool shall stay small: its first region fills page by page.
                self.add(match (self.regions.is_empty(), HUGE.load(Relaxed)) {
                    (true, _) => Region::map(false),
                    (false, true) => Region::map_huge(),
                    (false, false) => Region::map(true),
                })
            }
        };
        let region = self.regions.get_mut(&at).expect("an open region is a region");
        self.empty -= usize::from(region.is_empty());
        let taken = region.take();
        if region.is_full() {
            self.open.remove(&at);
        }
        if taken.1 != Holds::Bytes && region.lacks(READY_MIN) {
            self.wanted = Some(at);
        }
        let few = self.open.len() <= 1 && region.left() < LEFT_MIN;
        self.short |= few && self.regions.len() > 1 && HUGE.load(Relaxed);
        taken
    }

    fn add(&mut self, region: Region) -> usize {
        let at = region.base.addr().get();
        self.regions.insert(at, region);
        self.open.insert(at);
        self.empty += 1;
        at
    }

    /// A region was made ahead. It is returned where another one became empty meanwhile.
    fn made_ahead(&mut self, region: Region) -> Option<Region> {
        self.short = false;
        if self.empty >= EMPTY_MAX {
            return Some(region);
        }
        self.add(region);
        None
    }

    /// The next frames for the thread; none when enough have pages.
    fn page_next(&mut self) -> Option<Place> {
        let at = self.wanted?;
        let region = self.regions.get_mut(&at);
        let region = region.filter(|region| !region.is_empty() && region.lacks(READY_MAX));
        let Some(region) = region else {
            self.wanted = None;
            return None;
        };
        let first = usize::from(region.paged);
        region.page_some();
        self.paging = Some(at);
        // SAFETY: a region that lacks pages has `AHEAD` frames from `first` on.
        Some(Place(unsafe { region.base.add(first * FRAME_BYTES) }))
    }

    /// They have pages. A region that became empty meanwhile and is to be unmapped is returned.
    fn paged(&mut self) -> Option<Region> {
        let at = self.paging.take()?;
        let empty = self.regions.get(&at).is_some_and(Region::is_empty);
        if !empty || self.empty <= EMPTY_MAX {
            return None;
        }
        self.empty -= 1;
        self.open.remove(&at);
        self.regions.remove(&at)
    }

    /// Takes a frame back. A region that is to be unmapped is returned.
    fn give(&mut self, frame: NonNull<[u8; FRAME_BYTES]>) -> Option<Region> {
        let at = frame.addr().get() / REGION_BYTES * REGION_BYTES;
        let region = self.regions.get_mut(&at).expect("a frame is in a region");
        region.free.push(((frame.addr().get() - at) / FRAME_BYTES) as u16);
        if !region.is_empty() {
            self.open.insert(at);
            return None;
        }
        if self.empty < EMPTY_MAX || self.paging == Some(at) {
            self.empty += 1;
            self.open.insert(at);
            return None;
        }
        self.open.remove(&at);
        self.regions.remove(&at)
    }
}

impl Frames {
    /// A frame of zeros.
    pub fn zeroed(&self) -> Frame {
        let (mut frame, held) = self.frame();
        if held == Holds::Bytes {
            // What another file's page held must not be seen, whoever is to fill this one.
            frame.fill(0);
        }
        frame
    }

    /// A frame for who fills all of it before anybody sees it: it holds whatever it held.
    pub fn unfilled(&self) -> Frame {
        self.frame().0
    }

    fn frame(&self) -> (Frame, Holds) {
        let (base, holds) = self.take();
        let frame = Frame { base, owner: self.0.clone() };
        match holds {
            Holds::Bytes | Holds::Zeros => {}
            // SAFETY: a region is whole steps of so many frames, and this one stays mapped as long
            // as `frame` is held.
            Holds::NoPages => unsafe { populate(base.cast(), AHEAD) },
        }
        (frame, holds)
    }

    fn take(&self) -> (NonNull<[u8; FRAME_BYTES]>, Holds) {
        let mut state = self.0.lock();
        let taken = state.take();
        if state.short || state.wanted.is_some() && state.paging.is_none() {
            if let Pager::Unneeded = state.pager {
                state.pager = self.start_pager();
            }
            if let Pager::Runs(wake) = &state.pager {
                // One that is full wakes it anyway.
                let _ = wake.try_send(());
            }
        }
        taken
    }

    fn start_pager(&self) -> Pager {
        let (wake, woken) = sync_channel(1);
        let pool = Arc::downgrade(&self.0);
        let named = thread::Builder::new().name("frames".into());
        match named.spawn(move || run_pager(&pool, &woken)) {
            Ok(_) => Pager::Runs(wake),
            Err(_) => Pager::Failed,
        }
    }

    /// Bytes mapped.
    pub fn mapped_bytes(&self) -> u64 {
        (self.0.lock().regions.len() * REGION_BYTES) as u64
    }
}

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frames({} bytes mapped)", self.mapped_bytes())
    }
}

/// A frame, owned like a `Box<[u8; 4096]>`.
pub struct Frame {
    base: NonNull<[u8; FRAME_BYTES]>,
    owner: Arc<Mutex<State>>,
}

// SAFETY: the memory is owned exclusively, like a Box's.
unsafe impl Send for Frame {}
// SAFETY: shared access is read-only, like a Box's.
unsafe impl Sync for Frame {}

impl Drop for Frame {
    fn drop(&mut self) {
        let emptied = self.owner.lock().give(self.base);
        // Without the lock: it is a call of the kernel's.
        drop(emptied);
    }
}

impl Deref for Frame {
    type Target = [u8; FRAME_BYTES];

    fn deref(&self) -> &[u8; FRAME_BYTES] {
        // SAFETY: mapped, initialised (the kernel's zeros or what was written), ours alone.
        unsafe { self.base.as_ref() }
    }
}

impl DerefMut for Frame {
    fn deref_mut(&mut self) -> &mut [u8; FRAME_BYTES] {
        // SAFETY: as in `deref`, exclusively.
        unsafe { self.base.as_mut() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names the process that is the test proper: one in which no other test has a pool.
    const ALONE: &str = "POLYLANE_FRAMES_TEST";

    /// As random takes and returns as a cache makes: frames are nobody else's and zero, and
    /// memory goes back.
    #[test]
    fn frames_are_their_own_and_go_back() {
        let (frames, mut held, mut state) = (Frames::default(), Vec::new(), 1_u64);
        for turn in 0..20_000_u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            let number = (state >> 33) as usize;
            if number % 5 < 3 && held.len() < 4 * FRAMES {
                let mut frame = frames.zeroed();
                assert!(frame.iter().all(|byte| *byte == 0));
                frame[..4].copy_from_slice(&turn.to_le_bytes());
                frame[FRAME_BYTES - 1] = 7;
                held.push((turn, frame));
            } else if !held.is_empty() {
                let (turn, frame) = held.swap_remove(number % held.len());
                assert_eq!((&frame[..4], frame[FRAME_BYTES - 1]), (&turn.to_le_bytes()[..], 7));
            }
        }
        assert!(held.len() > FRAMES, "more than one region");
        assert!(frames.mapped_bytes() >= (held.len() * FRAME_BYTES) as u64);
        held.clear();
        // The thread may be at work in one more.
        while frames.0.lock().paging.is_some() {
            thread::yield_now();
        }
        assert_eq!(frames.mapped_bytes(), (EMPTY_MAX * REGION_BYTES) as u64);
        assert!(frames.zeroed().iter().all(|byte| *byte == 0));
    }

    /// The thread is ahead of who takes frames, has no more made than it may, and ends with the
    /// pool.
    #[test]
    fn pages_are_made_ahead_of_need() {
        let frames = Frames::default();
        let first: Vec<Frame> = (0..FRAMES).map(|_| frames.zeroed()).collect();
        assert!(matches!(frames.0.lock().pager, Pager::Unneeded), "one region needs none");
        let mut more = vec![frames.zeroed()];
        let at = more[0].base.addr().get() / REGION_BYTES * REGION_BYTES;
        let ready = |frames: &Frames| {
            let state = frames.0.lock();
            let region = &state.regions[&at];
            (region.paged - region.fresh, state.wanted.is_none() && state.paging.is_none())
        };
        let settled = |frames: &Frames| {
            while !ready(frames).1 {
                thread::yield_now();
            }
            ready(frames).0
        };
        for _ in 0..READY_MAX {
            assert!((READY_MIN..READY_MAX + AHEAD).contains(&settled(&frames)));
            more.push(frames.zeroed());
        }
        assert!(more.iter().all(|frame| frame.iter().all(|byte| *byte == 0)));
        let pool = Arc::downgrade(&frames.0);
        drop((first, more, frames));
        while pool.strong_count() > 0 {
            thread::yield_now();
        }
    }

    /// With huge pages a region is ready before the last one is full, but for a pool that fits into
    /// two; frames are zero, and what is empty goes back.
    #[test]
    fn a_huge_page_is_made_ahead_of_need() {
        if std::env::var_os(ALONE).is_none() {
            let name = "frames::tests::a_huge_page_is_made_ahead_of_need";
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let done = again.args(["--exact", name, "--test-threads=1"]).env(ALONE, "1").output();
            return assert!(done.is_ok_and(|done| done.status.success()));
        }
        use_huge_pages();
        let frames = Frames::default();
        let mut held: Vec<Frame> = (0..FRAMES).map(|_| frames.zeroed()).collect();
        assert!(matches!(frames.0.lock().pager, Pager::Unneeded), "one region needs none");
        held.extend((0..FRAMES).map(|_| frames.zeroed()));
        while frames.mapped_bytes() < (3 * REGION_BYTES) as u64 {
            thread::yield_now();
        }
        held.extend((0..FRAMES).map(|_| frames.zeroed()));
        assert!(held.iter().all(|frame| frame.iter().all(|byte| *byte == 0)));
        let address = |frame: &Frame| frame.base.addr().get();
        let places: BTreeSet<usize> = held.iter().map(address).collect();
        assert_eq!(places.len(), held.len(), "a frame is nobody else's");
        held.clear();
        while frames.0.lock().short {
            thread::yield_now();
        }
        assert_eq!(frames.mapped_bytes(), (EMPTY_MAX * REGION_BYTES) as u64);
    }

    #[test]
    fn a_frame_outlives_its_pool_and_changes_threads() {
        let frames = Frames::default();
        let held: Vec<Frame> = (0..3 * FRAMES).map(|_| frames.zeroed()).collect();
        drop(frames);
        std::thread::scope(|scope| {
            let mut held = held;
            let rest = held.split_off(FRAMES);
            scope.spawn(move || drop(rest));
            held.iter_mut().for_each(|frame| frame.fill(9));
        });
    }
}
