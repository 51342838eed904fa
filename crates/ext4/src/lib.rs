//! ext4 in user space: on-disk compatible with Linux's, on any [`polylane_block::BlockDevice`].
//!
//! Written from the kernel's documentation (Documentation/filesystems/ext4) and from experiments
//! with the kernel, mke2fs, e2fsck and debugfs as black boxes.
//!
//! | module | what it knows |
//! |---|---|
//! | [`error`] | corrupt, incompatible, full: errors that name the structure and the object |
//! | [`mod@format`] | bytes on disk: nothing here does I/O or locks |
//! | [`io`], [`cache`] | blocks of the device; metadata blocks in memory |
//! | [`journal`], [`recovery`] | transactions, commits, checkpoints; replay |
//! | [`alloc`] | free blocks and inodes, promises of them |
//! | [`inode`], [`volume`] | inodes in memory; what all parts share |
//! | [`extents`], [`blockmap`] | where a file's blocks are: ext4's way, and that of ext2 and ext3 |
//! | [`dir`] | names, linear and hashed, with an index in memory |
//! | [`data`], [`space`], [`promised`] | contents; truncating and allocating; delayed allocation |
//! | `synced`, `reason`, `data_mode` | where the bytes of a write go: in place or to the log |
//! | `trace` | the last syncs, one by one |
//! | `late` | new small files that are written together |
//! | [`ops`], [`rename`], [`xattr`], [`orphan`] | operations on names and inodes |
//! | `inline` | contents in the inode itself |
//! | `values` | values of attributes in inodes of their own |
//! | `quota`, [`limits`] | what users, groups and projects take, and may |
//! | `projects`, `totals` | names that a project keeps to itself; what statvfs(3) tells |
//! | `fast` | replay of the kernel's fast commits |
//! | [`make`] | new file systems: what is written to a device of zeros |
//! | [`mount`], `damage` | opening and closing; telling e2fsck what was found |
//! | `client` | what the journal asks of what is around it |
//! | `changes` | what closing waits for |
//! | `vfs` | the adapter: the only file that knows `FileSystem`'s calls |
//!
//! How it all works together: docs/design/ext4.md.
//!
//! # Locking
//!
//! From the first taken to the last; what is on one line is never held together.
//!
//! ```text
//! the VFS's locks                one change of a directory at a time, one cross-directory rename
//!   cell (Cell::core)            a directory before what it names; two of those by number
//!     inode shard
//!       log                      who writes a transaction's body or checkpoints; kept across I/O
//!         gate                   entered: a handle; shut: a transaction is being closed
//!           promised
//!             ledger of what is owed
//!               a quota file       and its own cell
//!           orphans
//!             superblock │ group of the allocator, one at a time
//!               block            a metadata block's bytes, one at a time
//!                 changes of a slot │ cache shard │ progress │ trace
//! ```
//!
//! A thread that holds a handle never waits for a cell, the log or another handle: so a transaction
//! can be closed as soon as the operations in it end. The only I/O under a handle is reading
//! metadata that is not cached; file data is read and written before or after.
//! Freed space comes back with a commit: operations ask for space (`Volume::promise`,
//! `Volume::with_space`) before they start a handle, so that they can wait for one.
#![forbid(unsafe_code)]

pub mod alloc;
pub mod blockmap;
pub mod cache;
mod changes;
mod client;
mod counts;
mod damage;
pub mod data;
mod data_mode;
pub mod dir;
pub mod error;
pub mod extents;
mod fast;
pub mod format;
#[cfg(test)]
mod fresh;
mod inline;
pub mod inode;
pub mod io;
pub mod journal;
mod late;
pub mod limits;
pub mod make;
pub mod mount;
pub mod ops;
pub mod orphan;
mod projects;
pub mod promised;
mod quota;
mod reason;
pub mod recovery;
pub mod rename;
mod setattr;
pub mod space;
mod synced;
mod totals;
pub mod trace;
mod values;
mod vfs;
pub mod volume;
pub mod xattr;

pub use data_mode::DataMode;
pub use error::{Corrupt, Error, Result};
pub use mount::{Ext4, Options};
