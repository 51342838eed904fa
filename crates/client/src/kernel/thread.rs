//! What each thread keeps: whether it is inside the library, and which signal waits until it is
//! not.
//!
//! Constant-initialised and without destructor, so that touching it neither allocates nor registers
//! anything: safe in signal handlers and in a child after fork.
//!
//! A signal handler that the program installed through libc waits until the library's part of a
//! call is over (see `abi::signal`), so it may leave the call for good. One that was installed past
//! our hooks may interrupt a call at any instruction and make calls of its own. It finds the
//! interrupted call's mailbox busy and takes the other one (see `session::boxes`).

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The calling thread's part. Only the thread itself, or a signal handler on it, comes here.
struct Thread {
    /// Depth of slow paths: whatever this thread hooks meanwhile is the library's own.
    inside: Cell<u32>,
    /// Whether this thread is in the hook of `syscall`.
    in_syscall: Cell<bool>,
    /// Depth of calls that handlers wait for, and [`CAME`].
    held: Cell<u32>,
    /// The signal that came meanwhile; all others wait in the kernel then.
    came: Cell<Option<Came>>,
    /// See [`number`]; 0: none yet.
    number: Cell<u32>,
}

/// A signal whose handler waits.
#[derive(Clone, Copy)]
pub(crate) struct Came {
    /// As the kernel told it.
    pub(crate) info: libc::siginfo_t,
    /// The mask that the thread had, as the kernel's 64 bits.
    pub(crate) mask: u64,
}

impl Thread {
    #[cold]
    fn take_number(&self) -> u32 {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed) % NUMBER_MAX + 1;
        self.number.set(number);
        number
    }
}

/// Numbers come round after two thousand million threads.
const NUMBER_MAX: u32 = (1 << 31) - 1;

thread_local! {
    static THREAD: Thread = const {
        Thread {
            inside: Cell::new(0),
            in_syscall: Cell::new(false),
            held: Cell::new(0),
            came: Cell::new(None),
            number: Cell::new(0),
        }
    };
}

/// A number that tells running threads of this process apart: not 0, and below 2^31.
#[inline]
pub(crate) fn number() -> u32 {
    THREAD.with(|thread| match thread.number.get() {
        0 => thread.take_number(),
        number => number,
    })
}

/// Whether this thread is on a slow path of the library, so that a hook must go straight to libc.
#[inline]
pub(crate) fn is_inside() -> bool {
    THREAD.with(|thread| thread.inside.get() > 0)
}

/// The calling thread's way through the hook of `syscall`, until it is dropped.
pub(crate) struct InSyscall(());

/// Enters the hook of `syscall`; `None` if the calling thread is in it already. A handler that ran
/// meanwhile and jumped away leaves the thread in it: its later calls go to the kernel.
#[inline]
pub(crate) fn enter_syscall() -> Option<InSyscall> {
    THREAD.with(|thread| (!thread.in_syscall.replace(true)).then_some(InSyscall(())))
}

impl Drop for InSyscall {
    fn drop(&mut self) {
        THREAD.with(|thread| thread.in_syscall.set(false));
    }
}

/// From here to [`release`] handlers wait.
#[inline]
pub(crate) fn hold() {
    THREAD.with(|thread| thread.held.set(thread.held.get() + 1));
}

/// Undoes [`hold`]; whether a handler is to run now: see [`take`].
#[inline]
pub(crate) fn release() -> bool {
    THREAD.with(|thread| {
        // 0 after a fault whose handler did not come back.
        let left = thread.held.get().saturating_sub(1);
        thread.held.set(left);
        left == CAME
    })
}

/// The signal that came.
pub(crate) fn take() -> Option<Came> {
    THREAD.with(|thread| {
        thread.held.set(thread.held.get() & !CAME);
        thread.came.take()
    })
}

/// Whether handlers wait.
#[inline]
pub(crate) fn is_held() -> bool {
    THREAD.with(|thread| thread.held.get() & !CAME > 0)
}

/// Runs the handler of a fault, which may leave the call that it is in.
pub(crate) fn unheld(handler: impl FnOnce()) {
    let held = THREAD.with(|thread| thread.held.replace(thread.held.get() & CAME));
    handler();
    THREAD.with(|thread| thread.held.set(held));
}

/// Keeps a signal until [`release`].
pub(crate) fn keep(came: Came) {
    THREAD.with(|thread| {
        thread.came.set(Some(came));
        thread.held.set(thread.held.get() | CAME);
    });
}

/// The number of the signal whose handler waits.
pub(crate) fn has_come() -> Option<i32> {
    THREAD.with(|thread| {
        let came = if thread.held.get() & CAME == 0 { None } else { thread.came.get() };
        came.map(|came| came.info.si_signo)
    })
}

/// Beside a depth: a signal came.
const CAME: u32 = 1 << 31;

/// Some thread of this process was told to end.
static CANCELLED: AtomicBool = AtomicBool::new(false);

/// From now on waits look whether their thread is to end.
pub(crate) fn note_cancel() {
    CANCELLED.store(true, Ordering::Relaxed);
}

/// Whether a thread was cancelled, ever.
#[inline]
pub(crate) fn cancels() -> bool {
    CANCELLED.load(Ordering::Relaxed)
}

/// Marks a slow path: hooked functions called in it go to libc.
pub(crate) struct Inside(());

impl Inside {
    pub(crate) fn enter() -> Self {
        THREAD.with(|thread| thread.inside.set(thread.inside.get() + 1));
        Inside(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        THREAD.with(|thread| thread.inside.set(thread.inside.get().saturating_sub(1)));
    }
}

/// Runs a slow path: signals and a cancellation wait, hooks are off, `errno` stays.
///
/// Most calls of libc that such a path makes, be it to close a file, are places where a cancelled
/// thread ends, and nothing of ours can be unwound from there.
///
/// Without the signal mask a handler could find a half-made session, or wait for a lock that its
/// own thread holds.
pub(crate) fn slow<R>(path: impl FnOnce() -> R) -> R {
    let errno = crate::kernel::real::errno();
    let mask = crate::kernel::real::block_signals();
    let cancel = crate::kernel::real::defer_cancel();
    let inside = Inside::enter();
    let result = path();
    drop(inside);
    crate::kernel::real::restore_signals(&mask);
    crate::kernel::real::set_errno(errno);
    crate::kernel::real::restore_cancel(cancel);
    result
}
