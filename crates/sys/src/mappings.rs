//! An allocator that takes each piece from the kernel as a mapping of its own, for a library in
//! other people's programs: it neither calls the program's allocator nor takes a lock, so that
//! memory can be had in a signal handler that interrupted `malloc`, and in a child forked while
//! another thread was in it. Each piece costs a system call and whole pages: for few and long-lived
//! ones.
//!
//! Where the kernel gives no mapping (`RLIMIT_AS`, `RLIMIT_DATA`), pieces come from a `Reserve`
//! that was mapped with the library. It holds what one connection takes, so that the connection
//! fails by an error of its own mapping and not by an allocation, which would abort the program.
#![expect(unsafe_code, reason = "UNSAFETY: the contract of a global allocator, by mmap(2)")]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};

/// The smallest page of any machine: what a mapping starts at a multiple of.
const PAGE: usize = 4096;

/// Such an allocator. Pieces that must lie at more than a page's multiple are refused.
#[derive(Clone, Copy, Debug)]
pub struct Mappings;

/// A pointer as the allocator's callers take it; null for an error.
fn place(done: rustix::io::Result<*mut c_void>) -> *mut u8 {
    done.map_or(null_mut(), |place| place.cast())
}

/// What a new piece of this layout gets from the kernel; null if it gives none.
fn map(layout: Layout) -> *mut u8 {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    place(unsafe { mmap_anonymous(null_mut(), layout.size(), prot, MapFlags::PRIVATE) })
}

// SAFETY: a new piece has one owner and starts at a page; it stays until `dealloc`, which gets
// the same length. Nothing here unwinds.
unsafe impl GlobalAlloc for Mappings {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > PAGE {
            return null_mut();
        }
        let piece = map(layout);
        if piece.is_null() { RESERVE.take(layout.size()) } else { piece }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for `alloc`.
        let piece = unsafe { self.alloc(layout) };
        if RESERVE.holds(piece) {
            // SAFETY: a new piece of that length. The kernel's own pages are zero.
            unsafe { piece.write_bytes(0, layout.size()) };
        }
        piece
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if RESERVE.holds(piece) {
            RESERVE.give_back(piece, layout.size());
        } else {
            // SAFETY: a mapping of `alloc`'s, of that length, that is used no more.
            let _ = unsafe { munmap(piece.cast(), layout.size()) };
        }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !RESERVE.holds(piece) {
            let how = MremapFlags::MAYMOVE;
            // SAFETY: a mapping of `alloc`'s, of that length; its user takes the new place instead.
            let moved = place(unsafe { mremap(piece.cast(), layout.size(), size, how) });
            if !moved.is_null() {
                return moved;
            }
        }
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else { return null_mut() };
        // SAFETY: two pieces, each of at least the length that is copied; the old one is given back
        // once, as by its user.
        unsafe {
            let new = self.alloc(wanted);
            if !new.is_null() {
                new.copy_from_nonoverlapping(piece, size.min(layout.size()));
                self.dealloc(piece, layout);
            }
            new
        }
    }
}

/// Pages of a [`Reserve`]: a bit each in its map.
const RESERVE_PAGES: usize = 64;

static RESERVE: Reserve = Reserve::new();

/// Pages that are there from the start: 256 KiB of the library's zeroed data, which take no memory
/// before they are used. Any thread and any signal handler may take and give back.
#[repr(C, align(4096))]
struct Reserve {
    pages: UnsafeCell<[u8; RESERVE_PAGES * PAGE]>,
    /// Which pages are taken.
    taken: AtomicU64,
}

// SAFETY: a page is handed to one taker at a time, by the bit of `taken` that it set.
unsafe impl Sync for Reserve {}

impl Reserve {
    const fn new() -> Self {
        Reserve { pages: UnsafeCell::new([0; RESERVE_PAGES * PAGE]), taken: AtomicU64::new(0) }
    }

    /// The bits of so many bytes from the first page on; `None` if the reserve is smaller.
    fn mask(bytes: usize) -> Option<u64> {
        let pages = bytes.div_ceil(PAGE).max(1);
        (pages <= RESERVE_PAGES).then(|| u64::MAX >> (RESERVE_PAGES - pages))
    }

    /// So many bytes, at a page's start, with whatever they last held; null if there is no room.
    fn take(&self, bytes: usize) -> *mut u8 {
        let Some(mask) = Self::mask(bytes) else { return null_mut() };
        let last = mask.leading_zeros();
        let mut taken = self.taken.load(Ordering::Relaxed);
        while let Some(first) = (0..=last).find(|first| taken & mask << first == 0) {
            let with = taken | mask << first;
            let order = (Ordering::Acquire, Ordering::Relaxed);
            match self.taken.compare_exchange_weak(taken, with, order.0, order.1) {
                Ok(_) => return self.pages.get().cast::<u8>().wrapping_add(first as usize * PAGE),
                Err(now) => taken = now,
            }
        }
        null_mut()
    }

    fn holds(&self, piece: *const u8) -> bool {
        piece.addr().wrapping_sub(self.pages.get().addr()) < RESERVE_PAGES * PAGE
    }

    /// Ends a piece that [`Reserve::take`] gave for so many bytes.
    fn give_back(&self, piece: *const u8, bytes: usize) {
        let first = (piece.addr() - self.pages.get().addr()) / PAGE;
        if let Some(mask) = Self::mask(bytes) {
            self.taken.fetch_and(!(mask << first), Ordering::Release);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn pieces_grow_and_shrink_with_what_they_hold() {
        let layout = Layout::from_size_align(100, 64).unwrap();
        // SAFETY: pieces are used within their lengths and given back once.
        unsafe {
            let piece = Mappings.alloc_zeroed(layout);
            assert!(std::slice::from_raw_parts(piece, 100).iter().all(|&byte| byte == 0));
            piece.write_bytes(7, 100);
            let longer = Mappings.realloc(piece, layout, 1 << 20);
            longer.add((1 << 20) - 1).write(9);
            let layout = Layout::from_size_align(1 << 20, 64).unwrap();
            let shorter = Mappings.realloc(longer, layout, 50);
            assert_eq!(std::slice::from_raw_parts(shorter, 50), [7; 50]);
            Mappings.dealloc(shorter, Layout::from_size_align(50, 64).unwrap());
            assert!(Mappings.alloc(Layout::from_size_align(1, 2 * PAGE).unwrap()).is_null());
        }
    }
    /// Random pieces beside a model of which pages are whose.
    #[test]
    fn a_reserve_gives_each_page_to_one_taker() {
        let (reserve, mut seed) = (Box::new(Reserve::new()), 7_u64);
        let (mut held, mut owner) = (Vec::<(*mut u8, usize)>::new(), [false; RESERVE_PAGES]);
        let first = |piece: *mut u8| (piece.addr() - reserve.pages.get().addr()) / PAGE;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = (seed >> 33) as usize;
            if random.is_multiple_of(2) && !held.is_empty() {
                let (piece, bytes) = held.swap_remove(random / 2 % held.len());
                owner[first(piece)..][..bytes.div_ceil(PAGE)].fill(false);
                reserve.give_back(piece, bytes);
                continue;
            }
            let bytes = random / 2 % (12 * PAGE) + 1;
            let pages = bytes.div_ceil(PAGE);
            let piece = reserve.take(bytes);
            let has_room = owner.windows(pages).any(|run| run.iter().all(|&taken| !taken));
            assert_eq!(has_room, !piece.is_null());
            if !piece.is_null() {
                assert!(reserve.holds(piece) && piece.addr().is_multiple_of(PAGE));
                let run = &mut owner[first(piece)..][..pages];
                assert!(run.iter().all(|&taken| !taken), "two takers of one page");
                run.fill(true);
                held.push((piece, bytes));
            }
        }
        assert!(reserve.take(RESERVE_PAGES * PAGE + 1).is_null());
        assert!(!reserve.holds(reserve.pages.get().cast::<u8>().wrapping_sub(1)));
    }
}
