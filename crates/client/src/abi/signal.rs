//! Signal handlers wait until the library's part of a call is over.
//!
//! A handler may never come back: it jumps (`siglongjmp`) or ends its thread. Were it to run in the
//! midst of a request, a mailbox, a lock or an offset would stay as they were just then. So the
//! program's handlers are installed behind [`catcher`]: in the library's part of a call it keeps
//! the signal, blocks all others and returns; the end of that part has the kernel deliver the
//! signal once more. Waits for locks end when a signal comes ([`thread::has_come`]). What the
//! kernel does on the caller's behalf is interrupted as ever.
//!
//! Faults cannot wait: their handlers run at once.
//!
//! # Invariants
//!
//! - `sigaction` tells what the program set, never of the catcher.
//! - Outside of our hooks (`rt_sigaction` by number) handlers are as the program set them.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use libc::{c_int, siginfo_t, sigset_t};

use super::hooks;
use crate::kernel::config;
use crate::kernel::real;
use crate::kernel::thread::{self, Came};

/// Signals and one.
const SIGNALS: usize = 65;

/// The program's handlers.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
/// Those of their flags that the kernel is told otherwise.
static FLAGS: [AtomicI32; SIGNALS] = [const { AtomicI32::new(0) }; SIGNALS];

/// Flags that the kernel is told otherwise.
const OURS: c_int = libc::SA_SIGINFO | libc::SA_RESETHAND;

/// What the thread itself causes.
const FAULTS: [c_int; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
];

/// A bit of the kernel's signal mask.
fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// What libc keeps for itself.
const LIBC: &[c_int] = if cfg!(target_env = "musl") { &[32, 33, 34] } else { &[32, 33] };

/// All signals but those that cannot wait: faults, and libc's.
fn waiting() -> u64 {
    FAULTS.iter().chain(LIBC).fold(u64::MAX, |mask, &signal| mask & !bit(signal))
}

/// Where the mask that is restored after a handler lies in its context: the kernel's 64 bits, not
/// libc's 1024.
///
/// # Safety
///
/// The third argument of a handler.
unsafe fn mask_in(context: *mut c_void) -> *mut u64 {
    // SAFETY: by contract; only the address is taken.
    unsafe { (&raw mut (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast() }
}

/// The handler of every signal that the program handles.
extern "C-unwind" fn catcher(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let fault = FAULTS.contains(&signal);
    if thread::is_held() && !fault {
        // SAFETY: the kernel's own arguments; the context is this handler's to change.
        unsafe {
            let mask = mask_in(context);
            thread::keep(Came { info: *info, mask: *mask });
            *mask |= waiting();
        }
        return;
    }
    match fault {
        true => thread::unheld(|| handle(signal, info, context)),
        false => handle(signal, info, context),
    }
}

/// Calls the program's handler.
fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let place = signal as usize % SIGNALS;
    if FLAGS[place].load(Ordering::Relaxed) & libc::SA_RESETHAND != 0 {
        let errno = real::errno();
        // SAFETY: a zeroed action is the default one.
        unsafe {
            let action: libc::sigaction = std::mem::zeroed();
            real::sigaction(signal, &action, std::ptr::null_mut());
        }
        real::set_errno(errno);
    }
    let handler = HANDLERS[place].load(Ordering::Acquire);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        return;
    }
    // SAFETY: the number is what the program gave to sigaction or signal as a handler, and neither
    // of the two that stand for none: the address of a function that takes one argument, or three
    // with SA_SIGINFO. By C's calling conventions on Linux callers clear arguments away, so that a
    // function of one argument may be given three. An address that is no function is a fault when
    // the signal comes, as without us.
    unsafe {
        let handler: extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
            std::mem::transmute(handler);
        handler(signal, info, context);
    }
}

/// Has the signal that waits delivered, now that it may be.
#[cold]
pub(super) fn deliver() {
    let Some(came) = thread::take() else { return };
    let errno = real::errno();
    let signal = came.info.si_signo;
    let info = &raw const came.info;
    let (pid, thread) = (rustix::process::getpid(), rustix::thread::gettid());
    let (pid, thread) = (pid.as_raw_nonzero().get().into(), thread.as_raw_nonzero().get().into());
    let word = i64::from(signal);
    // SAFETY: the kernel reads the siginfo; a mask is plain data, whose first 64 bits count.
    unsafe {
        let number = libc::SYS_rt_tgsigqueueinfo;
        if real::syscall(number, pid, thread, word, info as i64, 0, 0) != 0 {
            real::syscall(libc::SYS_tgkill, pid, thread, word, 0, 0, 0);
        }
        let mut mask = MaybeUninit::<sigset_t>::zeroed();
        mask.as_mut_ptr().cast::<u64>().write(came.mask);
        // The handler runs before this returns, if it returns.
        real::set_errno(errno);
        libc::sigprocmask(libc::SIG_SETMASK, mask.as_ptr(), std::ptr::null_mut());
    }
}

/// Sets a handler behind the catcher.
///
/// # Safety
///
/// As `sigaction`.
unsafe fn install(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let place = signal as usize;
    let behind = catcher as *const () as usize;
    let (handler, flags) = (&HANDLERS[place], &FLAGS[place]);
    let before = (handler.load(Ordering::Relaxed), flags.load(Ordering::Relaxed));
    // SAFETY: null or valid, by contract.
    let mut action = unsafe { new.as_ref() }.copied();
    if let Some(action) = &mut action
        && ![libc::SIG_DFL, libc::SIG_IGN, behind].contains(&action.sa_sigaction)
    {
        handler.store(action.sa_sigaction, Ordering::Release);
        flags.store(action.sa_flags & OURS, Ordering::Relaxed);
        action.sa_sigaction = behind;
        action.sa_flags = action.sa_flags & !OURS | libc::SA_SIGINFO;
    }
    let action = action.as_ref().map_or(std::ptr::null(), |action| &raw const *action);
    // SAFETY: as this function.
    let rc = unsafe { real::sigaction(signal, action, old) };
    if rc != 0 {
        handler.store(before.0, Ordering::Release);
        flags.store(before.1, Ordering::Relaxed);
    // SAFETY: null or valid, by contract, and filled in.
    } else if let Some(old) = unsafe { old.as_mut() }
        && old.sa_sigaction == behind
    {
        old.sa_sigaction = before.0;
        old.sa_flags = old.sa_flags & !OURS | before.1;
    }
    rc
}

/// Whether a signal's handlers go behind the catcher.
fn is_caught(signal: c_int) -> bool {
    config::has_lane() && (1..SIGNALS as c_int).contains(&signal)
}

/// `signal` with these flags.
///
/// # Safety
///
/// As `signal`.
unsafe fn simple(signal: c_int, handler: usize, flags: c_int) -> usize {
    // SAFETY: actions are plain data; the pointers are valid.
    unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        let mut old: libc::sigaction = std::mem::zeroed();
        (new.sa_sigaction, new.sa_flags) = (handler, flags);
        if flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&mut new.sa_mask, signal);
        }
        match install(signal, &new, &mut old) {
            0 => old.sa_sigaction,
            _ => libc::SIG_ERR,
        }
    }
}

hooks! {
    /// `sigaction`
    ["sigaction", "__sigaction"]
    fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
        // SAFETY: the caller's own arguments; so below.
        unsafe {
            match is_caught(signal) {
                true => install(signal, new, old),
                false => real::sigaction(signal, new, old),
            }
        }
    }

    /// `signal`
    ["signal", "bsd_signal", "ssignal"]
    fn bsd(signal: c_int, handler: usize) -> usize {
        // SAFETY: as above.
        unsafe {
            match is_caught(signal) && handler != libc::SIG_ERR {
                true => simple(signal, handler, libc::SA_RESTART),
                false => real::signal(signal, handler),
            }
        }
    }

    /// `signal` of System V.
    ["sysv_signal", "__sysv_signal"]
    fn system_five(signal: c_int, handler: usize) -> usize {
        // SAFETY: as above.
        unsafe {
            match is_caught(signal) && handler != libc::SIG_ERR {
                true => simple(signal, handler, libc::SA_RESETHAND | libc::SA_NODEFER),
                false => real::sysv_signal(signal, handler),
            }
        }
    }
}
