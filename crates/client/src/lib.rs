//! `libpolylane.so`: the fast lane of a tenant's programs, loaded with `LD_PRELOAD`.
//!
//! ```text
//!  program ── open, read, stat … ──► abi (C names) ──► ops (plain Rust) ──► call ──► service
//!                                      │ not ours, or not now
//!                                      └──────────► real libc ──► kernel ──► FUSE ──► service
//! ```
//!
//! The FUSE mount is the truth: every descriptor handed out is a real one that means the right
//! file, so anything that is not hooked, not understood or not possible just now goes to the kernel
//! with the caller's own arguments and is slower, but right.
//!
//! Imports point down; each floor is a folder:
//!
//! | floor | what it knows |
//! |---|---|
//! | `abi` | the C surface: names, pointers, `errno` |
//! | `ops` | what each call means; the state of the process, handed down from here |
//! | `rights` | what is known, and may be done without asking the service |
//! | `fd` | descriptors, open files, kernel descriptors opened ahead |
//! | `session` | the channel and its mailboxes, whether a path is the lane's |
//! | `kernel` | libc's own functions, the environment, threads |
//!
//! # Invariants
//!
//! - No threads; no memory of the program's allocator, and none at all after the first use of the
//!   lane but in directory streams; nothing in the constructor that waits.
//! - Everything on the way of a read, write, stat, open or close may run in a signal handler.

// The C surface and the libc calls allow unsafe code themselves; nothing else does.

mod abi;
mod fd;
mod kernel;
mod ops;
mod rights;
mod session;

/// A connection may be made in a signal handler, whichever function the signal interrupted.
#[cfg(not(test))]
#[global_allocator]
static MEMORY: polylane_sys::mappings::Mappings = polylane_sys::mappings::Mappings;
