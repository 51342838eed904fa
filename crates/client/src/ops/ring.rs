//! Before the kernel uses descriptors without a call that we see: see `fd::rings`.

use std::os::fd::RawFd;

use super::state::State;
use super::{file, share};
use crate::fd::{self, rings};
use crate::kernel::real;

/// Linux AIO is about to be used.
pub(crate) fn aio_begins(state: &'static State) {
    rings::note_aio();
    // The slots of files that are open now are theirs for good.
    share::share_all(state);
}

/// A ring is about to be made.
pub(crate) fn ring_begins(state: &'static State) {
    rings::note_rings();
    share::share_all(state);
    share::leave_to_numbers(state);
}

/// Another process is about to have this one's descriptors, and not its memory.
pub(crate) fn numbers_are_shared(state: &'static State) {
    ring_begins(state);
    // It would take the session's descriptors for copies, and close them.
    share::leave_sessions(state);
}

/// Before the kernel reads `fd` up to `end` at a time that only it knows.
#[cold]
pub(crate) fn before_read(state: &'static State, fd: RawFd, end: u64) {
    if file::find(state, fd).is_ok() && real::size_cached(fd).is_ok_and(|size| size < end) {
        fd::file::tell_size(real::borrow(fd));
    }
}
