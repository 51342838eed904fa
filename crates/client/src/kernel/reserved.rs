//! The library's own descriptors: the socket, event descriptors and slot masters.
//!
//! They live on high numbers, close-on-exec, where programs do not expect or create any, and a
//! program that closes "everything" must not hit them: hooked calls treat their numbers as not
//! open.
//!
//! This list survives fork, unlike `state`: a child has to close its copies, or files and sessions
//! of its parent would stay open as long as the child lives.

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::kernel::FDS_MAX;
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;

/// Where they start when the limit on open files allows. Above what programs use, below 1024: the
/// kernel's table of descriptors is as large as the highest number, and each fork copies it.
const NUMBER_MIN: u64 = 700;

static BITS: [AtomicU64; FDS_MAX / 64] = [const { AtomicU64::new(0) }; FDS_MAX / 64];
/// How many there are: most processes have none and need not look.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Whether there are any.
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Relaxed) > 0
}

/// Whether `fd` is the library's own.
#[inline]
pub(crate) fn contains(fd: RawFd) -> bool {
    COUNT.load(Ordering::Relaxed) > 0
        && place(fd).is_some_and(|(word, bit)| BITS[word].load(Ordering::Relaxed) & bit != 0)
}

/// The next private number at `from` or above.
pub(crate) fn next(from: u32) -> Option<u32> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let first = from as usize / 64;
    for (word, bits) in BITS.iter().enumerate().skip(first) {
        let mut bits = bits.load(Ordering::Relaxed);
        if word == first {
            bits &= u64::MAX << (from % 64);
        }
        if bits != 0 {
            return Some(word as u32 * 64 + bits.trailing_zeros());
        }
    }
    None
}

/// Moves `fd` to a high number and takes it over; the old number is closed in any case.
pub(crate) fn adopt(fd: RawFd) -> Outcome<RawFd> {
    let moved = copy(fd);
    real::close_quietly(fd);
    moved
}

/// As [`adopt`], of a descriptor that is owned, and is then.
pub(crate) fn adopt_owned(fd: OwnedFd) -> Outcome<OwnedFd> {
    let moved = rustix::io::fcntl_dupfd_cloexec(&fd, floor());
    // Not by its own drop: that would pass libc, and our hook.
    real::close_quietly(fd.into_raw_fd());
    let moved = moved?;
    if place(moved.as_raw_fd()).is_none() {
        real::close_quietly(moved.into_raw_fd());
        return Err(Detour::Kernel);
    }
    keep(moved.as_raw_fd());
    Ok(moved)
}

/// A private copy of `fd`.
pub(crate) fn copy(fd: RawFd) -> Outcome<RawFd> {
    let moved = real::dup_from(fd, floor())?;
    if place(moved).is_none() {
        real::close_quietly(moved);
        return Err(Detour::Kernel);
    }
    keep(moved);
    Ok(moved)
}

/// Takes `fd` over where it is.
pub(crate) fn keep(fd: RawFd) {
    let Some((word, bit)) = place(fd) else { return };
    if BITS[word].fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Forgets `fd` without closing it.
pub(crate) fn forget(fd: RawFd) {
    let Some((word, bit)) = place(fd) else { return };
    if BITS[word].fetch_and(!bit, Ordering::Relaxed) & bit != 0 {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Closes a private descriptor.
pub(crate) fn close(fd: RawFd) {
    forget(fd);
    real::close_quietly(fd);
}

/// Closes all of them: a forked child's copies of its parent's.
pub(crate) fn close_all() {
    let mut from = 0;
    while let Some(fd) = next(from) {
        close(fd as RawFd);
        from = fd + 1;
    }
}

/// Where private numbers start; under a low limit, half way up.
fn floor() -> RawFd {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let soft = limit.current.unwrap_or(u64::MAX);
    let floor = if soft > NUMBER_MIN + NUMBER_MIN / 4 { NUMBER_MIN } else { soft / 2 };
    floor as RawFd
}

fn place(fd: RawFd) -> Option<(usize, u64)> {
    let fd = usize::try_from(fd).ok().filter(|&fd| fd < FDS_MAX)?;
    Some((fd / 64, 1 << (fd % 64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_order() {
        // Numbers that no other test opens.
        for fd in [60_000, 60_063, 60_064, 65_535] {
            keep(fd);
            assert!(contains(fd));
        }
        assert_eq!(next(60_000), Some(60_000));
        assert_eq!(next(60_001), Some(60_063));
        assert_eq!(next(60_064), Some(60_064));
        assert_eq!(next(60_065), Some(65_535));
        for fd in [60_000, 60_063, 60_064, 65_535] {
            forget(fd);
            assert!(!contains(fd));
        }
        assert_eq!(next(60_000), None);
        assert!(!contains(-1) && !contains(RawFd::MAX));
    }
}
