//! What the hooked calls do, in plain Rust: no C types, no raw pointers.
//!
//! Each function decides whether the call is the lane's, asks the service, and returns an
//! [`Outcome`](crate::kernel::outcome::Outcome): the result, an error, or "the kernel does it".

pub(crate) mod attr;
pub(crate) mod dir;
pub(crate) mod fd;
pub(crate) mod file;
pub(crate) mod flags;
pub(crate) mod io;
pub(crate) mod limit;
pub(crate) mod lock;
pub(crate) mod lock_range;
pub(crate) mod lock_wait;
pub(crate) mod map;
pub(crate) mod name;
pub(crate) mod offset;
mod one_shot;
pub(crate) mod open;
pub(crate) mod oplock;
pub(crate) mod own;
mod path;
pub(crate) mod pieces;
pub(crate) mod process;
pub(crate) mod retry;
pub(crate) mod ring;
pub(crate) mod share;
pub(crate) mod stat;
pub(crate) mod state;
pub(crate) mod strict;
pub(crate) mod xattr;
