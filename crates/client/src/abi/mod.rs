//! The C surface: one thin function per hooked name.
//!
//! Each turns C arguments into slices and numbers, asks `ops`, and either returns the answer or
//! calls the real function with the caller's own arguments. Names of one meaning share a body; the
//! list before the name in [`hooks`] is what is exported.
//!
//! # Invariants
//!
//! - `errno` is touched by a failure only.
//! - No panic leaves this module: one is caught and the call goes to the kernel.
#![expect(unsafe_code, reason = "UNSAFETY: C functions with raw pointers, as libc declares them")]

mod arg;
mod attr;
mod exec;
mod fd;
mod fork;
mod io;
mod ioctl;
mod jump;
mod map;
mod name;
mod open;
mod process;
mod raw;
mod start;
mod stat;
mod stdio;
mod xattr;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::outcome::{Detour, Outcome};
use crate::real;

/// Runs the part of a hook that may be handled here.
#[inline]
fn attempt<T>(part: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(part)).unwrap_or(Err(Detour::Kernel))
}

/// `answer!(ops, real)`: the value of `ops`, or -1 with `errno`, or what the real function says.
macro_rules! answer {
    ($ops:expr, $real:expr) => {
        match crate::abi::attempt(|| $ops) {
            Ok(value) => value,
            Err(crate::outcome::Detour::Errno(errno)) => crate::abi::failed(errno.0),
            // SAFETY: the caller's own arguments go to the function that it meant to call.
            Err(crate::outcome::Detour::Kernel) => unsafe { $real },
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
            #[unsafe(export_name = $name)]
            unsafe extern "C" fn hook($($arg: $type),*) -> $ret {
                // SAFETY: the caller keeps the C function's contract.
                unsafe { $body($($arg),*) }
            }
        };
    };
}
use hooks;
