//! The C surface: one thin function per hooked name.
//!
//! Each turns C arguments into slices and numbers, asks `ops`, and either returns the answer or
//! calls the real function with the caller's own arguments. Names of one meaning share a body; the
//! list before the name in [`hooks`] is what is exported.
//!
//! # Invariants
//!
//! - `errno` is touched by a failure only.
//! - No panic leaves this module: one is caught and the call goes to the kernel. What unwinds a
//!   thread that is cancelled in the kernel's part of a call passes through.
//! - No handler that was installed through our hooks sees the library's part of a call half done.
#![expect(unsafe_code, reason = "UNSAFETY: C functions with raw pointers, as libc declares them")]

mod arg;
mod attr;
mod cancel;
mod dir;
mod epoll;
mod exec;
mod fd;
mod fork;
mod io;
mod ioctl;
mod jump;
mod load;
mod map;
mod name;
mod number;
mod open;
mod process;
mod raw;
mod ring;
mod signal;
mod start;
mod stat;
mod stdio;
mod xattr;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::kernel::outcome::{Outcome, Unanswered};
use crate::kernel::real;
use crate::kernel::thread;
use crate::ops::lock_wait::AGAIN;
use crate::ops::retry;
use crate::ops::state::STATE;

/// Runs the part of a hook that may be handled here. Signal handlers wait meanwhile, and so does a
/// cancellation that may come at any time.
#[inline]
fn attempt<T>(mut part: impl FnMut() -> Outcome<T>) -> Result<T, Unanswered> {
    let cancellable = cancel::defer();
    thread::hold();
    let whole = AssertUnwindSafe(|| retry::once(&STATE, &mut part));
    let done = catch_unwind(whole).unwrap_or(Err(Unanswered::Kernel));
    if thread::release() {
        signal::deliver();
    }
    cancel::restore(cancellable);
    done
}

/// As [`attempt`], for what waits: a signal whose handler does not interrupt has it begin again
/// after the handler ran, and a cancelled thread ends here.
fn attempt_again<T>(mut part: impl FnMut() -> Outcome<T>) -> Result<T, Unanswered> {
    loop {
        match attempt(&mut part) {
            Err(Unanswered::Errno(AGAIN)) => cancel::point(),
            done => return done,
        }
    }
}

/// `answer!(ops, real)`: the value of `ops`, or -1 with `errno`, or what the real function says.
macro_rules! answer {
    ($ops:expr, $real:expr) => {
        answer!(@given crate::abi::attempt(|| $ops), $real)
    };
    // What may wait for long.
    (waiting $ops:expr, $real:expr) => {
        answer!(@given crate::abi::attempt_again(|| $ops), $real)
    };
    (@given $done:expr, $real:expr) => {
        match $done {
            Ok(value) => value,
            Err(crate::kernel::outcome::Unanswered::Errno(errno)) => crate::abi::failed(errno.0),
            // SAFETY: the caller's own arguments go to the function that it meant to call.
            Err(crate::kernel::outcome::Unanswered::Kernel) => unsafe { $real },
        }
    };
}
use answer;

/// Sets `errno` and gives the value that says so.
#[cold]
fn failed<T: real::Failure>(errno: i32) -> T {
    real::set_errno(errno);
    T::FAILED
}

/// Defines hooks: `["name", "other name"] fn body_name(arguments) -> type { body }`.
macro_rules! hooks {
    ($(
        $(#[$meta:meta])*
        [$($name:literal),+ $(,)?] fn $body:ident $args:tt -> $ret:ty $block:block
    )*) => {
        $(
            hooks! { @body $(#[$meta])* $body $args $ret $block }
            $( hooks! { @export $name $body $args $ret } )+
        )*
    };
    (
        @body $(#[$meta:meta])*
        $body:ident ($($arg:ident: $type:ty),* $(,)?) $ret:ty $block:block
    ) => {
        $(#[$meta])*
        ///
        /// # Safety
        ///
        /// As the C function: pointers are valid for what it reads and writes.
        #[inline]
        pub(super) unsafe fn $body($($arg: $type),*) -> $ret $block
    };
    (@export $name:literal $body:ident ($($arg:ident: $type:ty),* $(,)?) $ret:ty) => {
        const _: () = {
            // Miri's own `std` is not to call them.
            #[cfg_attr(not(miri), unsafe(export_name = $name))]
            #[cfg_attr(miri, allow(dead_code, reason = "nothing is exported"))]
            unsafe extern "C-unwind" fn hook($($arg: $type),*) -> $ret {
                // SAFETY: the caller keeps the C function's contract.
                unsafe { $body($($arg),*) }
            }
        };
    };
}
use hooks;
