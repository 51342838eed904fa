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
//! | module | what it knows |
//! |---|---|
//! | `abi` | the C surface: names, pointers, `errno` |
//! | `ops` | what each call means |
//! | `path`, `cwd`, `mounts` | whether a path is the lane's |
//! | `table`, `file`, `slots` | descriptors, open files, kernel descriptors opened ahead |
//! | `lease` | names that may be changed without asking |
//! | `known`, `resting` | paths whose state is known, files that are opened again without asking |
//! | `view` | what open files hold, to be read and written without asking |
//! | `rings` | what changes where the kernel uses descriptors unseen |
//! | `session`, `call`, `thread` | the channel and its mailboxes |
//! | `state`, `private` | what a process keeps, and what a forked child finds |
//! | `real`, `config` | libc's own functions; the environment |
//!
//! # Invariants
//!
//! - No threads; no memory of the program's allocator, and none at all after the first use of the
//!   lane but in directory streams; nothing in the constructor that waits.
//! - Everything on the way of a read, write, stat, open or close may run in a signal handler.

// The C surface and the libc calls allow unsafe code themselves; nothing else does.

mod abi;
mod call;
mod config;
mod cwd;
mod file;
mod known;
mod lease;
mod lock;
mod mounts;
mod opened;
mod ops;
mod outcome;
mod path;
mod private;
mod real;
mod reserve;
mod resting;
mod rings;
mod session;
mod slots;
mod state;
mod table;
mod thread;
mod view;

/// A connection may be made in a signal handler, whichever function the signal interrupted.
#[cfg(not(test))]
#[global_allocator]
static MEMORY: polylane_sys::mappings::Mappings = polylane_sys::mappings::Mappings;
