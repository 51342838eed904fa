//! `RLIMIT_FSIZE`: the kernel enforces it for itself only, so writes of the fast lane look here.

use std::sync::atomic::Ordering;

use polylane_base::Errno;
use rustix::process::{Resource, getrlimit};

use super::state;
use crate::kernel::outcome::Outcome;
use crate::kernel::real;

/// How much of `len` bytes at `offset` may be written: at least one, or `EFBIG` and the signal.
#[inline]
pub(crate) fn cap(offset: u64, len: usize) -> Outcome<usize> {
    let limit = get();
    if limit == u64::MAX || offset.saturating_add(len as u64) <= limit || len == 0 {
        return Ok(len);
    }
    match limit.checked_sub(offset) {
        None | Some(0) => Err(exceeded().into()),
        Some(room) => Ok(room as usize),
    }
}

/// Whether a limit is set at all.
#[inline]
pub(crate) fn is_set() -> bool {
    get() != u64::MAX
}

/// A size that a file may be given.
pub(crate) fn check_size(size: u64) -> Outcome<()> {
    if size > get() { Err(exceeded().into()) } else { Ok(()) }
}

/// The limit may have changed.
pub(crate) fn changed() {
    if let Some(state) = state::started() {
        state.file_limit.store(0, Ordering::Relaxed);
    }
}

#[inline]
fn get() -> u64 {
    match state::get().file_limit.load(Ordering::Relaxed) {
        0 => look(),
        NONE => u64::MAX,
        limit => limit - 1,
    }
}

/// The stored form of "no limit".
const NONE: u64 = u64::MAX;

#[cold]
fn look() -> u64 {
    let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    state::get().file_limit.store(limit.saturating_add(1), Ordering::Relaxed);
    limit
}

#[cold]
fn exceeded() -> Errno {
    real::raise(libc::SIGXFSZ);
    Errno::EFBIG
}
