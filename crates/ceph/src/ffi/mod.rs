//! libcephfs: its declarations, loaded at run time, and safe objects over them.
//!
//! The library is LGPL and is not linked in: it is opened by its name when a lane on Ceph starts.
//!
//! # Invariants
//!
//! - An [`Inode`] holds one reference of libcephfs (`ceph_ll_put` gives it back), an [`OpenFile`]
//!   one handle, a [`DirStream`] one stream. Each keeps the [`Mount`] alive, which ends last.
//! - Every call takes the mount's own lock inside of libcephfs: all objects may be used from any
//!   thread, but a [`DirStream`], which is one reader's.

mod calls;
mod file;
mod inode;
mod library;
mod mount;

pub(crate) use calls::{Stat, change, check};
pub(crate) use file::{DirStream, Listed, OpenFile};
pub(crate) use inode::{Inode, New};
pub(crate) use library::Missing;
pub(crate) use mount::{Mount, Unmounted};
