//! An allocator that takes each piece from the kernel as a mapping of its own, for a library in
//! other people's programs: it neither calls the program's allocator nor takes a lock, so that
//! memory can be had in a signal handler that interrupted `malloc`, and in a child forked while
//! another thread was in it. Each piece costs a system call and whole pages: for few and long-lived
//! ones.
#![expect(unsafe_code, reason = "UNSAFETY: the contract of a global allocator, by mmap(2)")]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ptr::null_mut;

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

// SAFETY: a new mapping is nobody else's and starts at a page; it stays until `dealloc`, which gets
// the same length. Nothing here unwinds.
unsafe impl GlobalAlloc for Mappings {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > PAGE {
            return null_mut();
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        place(unsafe { mmap_anonymous(null_mut(), layout.size(), prot, MapFlags::PRIVATE) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for `alloc`; the kernel's pages are zero.
        unsafe { self.alloc(layout) }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        // SAFETY: a mapping of `alloc`'s, of that length, of no further use to anybody.
        let _ = unsafe { munmap(piece.cast(), layout.size()) };
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let how = MremapFlags::MAYMOVE;
        // SAFETY: a mapping of `alloc`'s, of that length; its user takes the new place instead.
        place(unsafe { mremap(piece.cast(), layout.size(), size, how) })
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
}
