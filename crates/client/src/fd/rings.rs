//! io_uring and Linux AIO: the kernel uses descriptors without a call that we see.
//!
//! A ring holds a file that its program closes, and may itself open and close. So in a program that
//! has one, from then on:
//!
//! - files are opened by the kernel: a slot, which serves one file after another, may not. Reads
//!   and writes of the library stay what they are, on the kernel's offset;
//! - what a number means is asked of the kernel before it is used, as long as rings can close it;
//! - before requests are submitted, the kernel is told of sizes that it has not heard of: it reads
//!   nothing past the size that it knows.
//!
//! A process made with the table of descriptors in common (CLONE_FILES), but without the memory
//! where the library keeps its own, is to the other as a ring is: it opens and closes without being
//! seen.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use crate::fd::file;
use crate::fd::preopened::SlotPool;
use crate::fd::table::Pin;
use crate::kernel::real;

/// What this process, or an ancestor back to the last exec, has made.
static MADE: AtomicU32 = AtomicU32::new(NONE);

const NONE: u32 = 0;
/// Contexts of Linux AIO, which neither open nor close.
const AIO: u32 = 1;
/// Rings of io_uring, or a process that has the same descriptors.
const RINGS: u32 = 2;

/// Linux AIO is about to be used.
pub(crate) fn note_aio() {
    MADE.fetch_max(AIO, Ordering::SeqCst);
}

/// A ring is about to be made, or a process that has the same descriptors.
pub(crate) fn note_rings() {
    MADE.fetch_max(RINGS, Ordering::SeqCst);
}

/// Whether descriptors may be used where nobody sees it.
#[inline]
pub(crate) fn any() -> bool {
    MADE.load(Ordering::Relaxed) != NONE
}

/// Whether descriptors may be closed where nobody sees it.
#[inline]
pub(crate) fn close_unseen() -> bool {
    MADE.load(Ordering::Relaxed) == RINGS
}

/// Whether `fd` still means `file`, by the kernel's inode number on the device of its lane.
#[cold]
pub(crate) fn is_still(fd: RawFd, file: &Pin, slots: &'static SlotPool, device: u64) -> bool {
    let expected = match file.node.load(Ordering::Relaxed) {
        0 => file::slot(slots, file).and_then(|slot| real::node_cached(slot.master()).ok()),
        node => Some(node),
    };
    let found = real::kind_cached(fd).ok().filter(|(of, ..)| *of == device);
    expected.is_some() && found.map(|(_, _, node)| node) == expected
}

/// Files whose end the kernel has not heard of; each a descriptor plus one.
static LONGER: [AtomicI32; LONGER_MAX] = [const { AtomicI32::new(0) }; LONGER_MAX];
const LONGER_MAX: usize = 32;
/// Whether there are any.
static ANY_LONGER: AtomicBool = AtomicBool::new(false);

/// A file was written through the library up to `end`: the kernel is told before it is next asked
/// to do anything, or at once where too many files wait for that.
#[cold]
pub(crate) fn written(fd: RawFd, end: u64) {
    if real::size_cached(fd).is_ok_and(|size| size >= end) {
        return;
    }
    let takes = |place: &AtomicI32| {
        let seen = place.load(Ordering::Relaxed);
        let free = || place.compare_exchange(0, fd + 1, Ordering::SeqCst, Ordering::SeqCst);
        seen == fd + 1 || seen == 0 && free().is_ok()
    };
    if !LONGER.iter().any(takes) {
        return file::tell_size(real::borrow(fd));
    }
    ANY_LONGER.store(true, Ordering::SeqCst);
}

/// Before requests are submitted, and before a descriptor is closed that they may be about.
#[inline]
pub(crate) fn settle() {
    if ANY_LONGER.load(Ordering::Relaxed) {
        tell_all();
    }
}

#[cold]
fn tell_all() {
    ANY_LONGER.store(false, Ordering::SeqCst);
    for place in &LONGER {
        if let Some(fd) = place.swap(0, Ordering::SeqCst).checked_sub(1).filter(|&fd| fd >= 0) {
            file::tell_size(real::borrow(fd));
        }
    }
}
