//! `RLIMIT_FSIZE`: the kernel enforces it for itself only, so writes of the fast lane look here.
//!
//! Another process may change the limit (prlimit(2)), which no hook sees. One that was raised is
//! found before a write fails; one that was lowered after [`UNSEEN_BYTES_MAX`] more of a thread.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use polylane_base::Errno;
use rustix::process::{Resource, getrlimit};

use super::state::State;
use crate::kernel::outcome::Outcome;
use crate::kernel::real;

thread_local! {
    /// What the calling thread wrote since it last asked for the limit.
    static UNSEEN_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// How much of `len` bytes at `offset` may be written: at least one, or `EFBIG` and the signal.
#[inline]
pub(crate) fn cap(state: &'static State, offset: u64, len: usize) -> Outcome<usize> {
    let fits = |limit| limit == u64::MAX || offset.saturating_add(len as u64) <= limit;
    if len == 0 || fits(get(state)) {
        return Ok(len);
    }
    match look(state) {
        limit if fits(limit) => Ok(len),
        limit => match limit.checked_sub(offset) {
            None | Some(0) => Err(exceeded().into()),
            Some(room) => Ok(room as usize),
        },
    }
}

/// Whether a limit is set at all.
#[inline]
pub(crate) fn is_set(state: &'static State) -> bool {
    get(state) != u64::MAX
}

/// As [`is_set`], before a write of `len` bytes: now and then the kernel is asked.
#[inline]
pub(crate) fn is_set_for(state: &'static State, len: usize) -> bool {
    let unseen = UNSEEN_BYTES.get().saturating_add(len).saturating_add(WRITE_BYTES);
    UNSEEN_BYTES.set(if unseen < UNSEEN_BYTES_MAX { unseen } else { 0 });
    if unseen < UNSEEN_BYTES_MAX { is_set(state) } else { look(state) != u64::MAX }
}

/// A size that a file may be given, by the limit that the kernel has now.
pub(crate) fn check_size(state: &'static State, size: u64) -> Outcome<()> {
    if size > look(state) { Err(exceeded().into()) } else { Ok(()) }
}

/// The limit may have changed.
pub(crate) fn changed(state: &'static State) {
    if let Some(fields) = state.started() {
        fields.file_limit.store(0, Ordering::Relaxed);
    }
}

#[inline]
fn get(state: &'static State) -> u64 {
    match state.get().file_limit.load(Ordering::Relaxed) {
        0 => look(state),
        NONE => u64::MAX,
        limit => limit - 1,
    }
}

/// What a thread may write until the limit is asked for again.
const UNSEEN_BYTES_MAX: usize = 64 << 10;
/// What each write counts besides its bytes.
const WRITE_BYTES: usize = 1 << 10;

/// The stored form of "no limit".
const NONE: u64 = u64::MAX;

#[cold]
fn look(state: &'static State) -> u64 {
    let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    state.get().file_limit.store(limit.saturating_add(1), Ordering::Relaxed);
    limit
}

#[cold]
fn exceeded() -> Errno {
    real::raise(libc::SIGXFSZ);
    Errno::EFBIG
}
