//! ext4 in user space: on-disk compatible with Linux's, on any [`polylane_block::BlockDevice`].
//!
//! Written from the kernel's documentation (Documentation/filesystems/ext4) and from experiments with
//! the kernel, mke2fs, e2fsck and debugfs as black boxes.
//!
//! | module | what it knows |
//! |---|---|
//! | [`error`] | corrupt, incompatible, full: errors that name the structure and the object |
//! | [`format`] | bytes on disk: nothing here does I/O or locks |
#![forbid(unsafe_code)]

pub mod alloc;
pub mod cache;
pub mod error;
pub mod format;
pub mod io;
pub mod journal;
pub mod recovery;

pub use error::{Corrupt, Error, Result};
