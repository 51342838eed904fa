//! Cancellation of threads.
//!
//! What the kernel does on a lane's files is a cancellation point as in libc: the real function is
//! one, and the hook lets the unwinding through. What the library answers itself asks before it
//! begins, and a wait for a lock asks ten times a second, both only once the program has called
//! `pthread_cancel`. No thread is cancelled while it is in here, whatever of libc's is called.
//!
//! Before that first `pthread_cancel` nothing is switched off, and a thread may be in here when it
//! comes: outside of slow paths the library calls no function of libc's that is a cancellation
//! point, and sleeps by [`pause`](polylane_sys::sched::pause).

use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, pthread_t};

use super::hooks;
use crate::kernel::real;
use crate::kernel::thread;

/// Some thread may be cancelled at any instruction.
static ANY_TIME: AtomicBool = AtomicBool::new(false);

/// glibc's.
const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;

/// A cancellation point, unless the library itself makes the call.
#[inline]
pub(super) fn point() {
    if thread::cancels() && !thread::is_inside() && !thread::is_held() {
        // SAFETY: nothing of ours is on the stack but hooks, through which unwinding passes.
        unsafe { real::pthread_testcancel() };
    }
}

/// From here to [`restore`] a cancellation waits, once there may be any: where the library closes a
/// file, say, a cancelled thread would end in its midst.
#[inline]
pub(super) fn defer() -> Option<c_int> {
    let may_be = thread::cancels() || ANY_TIME.load(Ordering::Relaxed);
    if may_be { real::defer_cancel() } else { None }
}

/// Undoes [`defer`]; may be where the thread ends.
#[inline]
pub(super) fn restore(former: Option<c_int>) {
    real::restore_cancel(former);
}

hooks! {
    /// `pthread_cancel`
    ["pthread_cancel"]
    fn pthread_cancel(thread: pthread_t) -> c_int {
        thread::note_cancel();
        // SAFETY: the caller's own argument.
        unsafe { real::pthread_cancel(thread) }
    }

    /// `pthread_setcanceltype`
    ["pthread_setcanceltype"]
    fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int {
        if kind == PTHREAD_CANCEL_ASYNCHRONOUS {
            ANY_TIME.store(true, Ordering::Relaxed);
        }
        // SAFETY: the caller's own arguments.
        unsafe { real::pthread_setcanceltype(kind, old) }
    }
}
