//! ext4 in user space: on-disk compatible with Linux's, on any [`polylane_block::BlockDevice`].
//!
//! Written from the kernel's documentation (Documentation/filesystems/ext4) and from experiments
//! with the kernel, mke2fs, e2fsck and debugfs as black boxes.
//!
//! | module | what it knows |
//! |---|---|
//! | [`error`] | corrupt, incompatible, full: errors that name the structure and the object |
//! | [`mod@format`] | bytes on disk: nothing here does I/O or locks |
#![forbid(unsafe_code)]

pub mod alloc;
pub mod blockmap;
pub mod cache;
pub mod data;
pub mod dir;
pub mod error;
pub mod extents;
pub mod format;
pub mod inode;
pub mod io;
pub mod journal;
pub mod mount;
pub mod ops;
pub mod orphan;
pub mod promised;
pub mod recovery;
pub mod rename;
pub mod space;
mod vfs;
pub mod volume;
pub mod xattr;

pub use error::{Corrupt, Error, Result};
pub use mount::{Ext4, Options};
