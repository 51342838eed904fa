//! libcephfs, librados and librbd: their declarations, loaded at run time, and safe objects over
//! them.
//!
//! The libraries are LGPL and are not linked in: they are opened by their names when a lane on a
//! cluster starts.
//!
//! # Invariants
//!
//! - An [`Inode`] holds one reference of libcephfs (`ceph_ll_put` gives it back), an [`OpenFile`]
//!   one handle, a [`DirStream`] one stream. Each keeps the [`Mount`] alive, which ends last.
//! - Every call that may wait for the cluster is counted ([`calls_under_way`]).
//! - Every call takes the mount's own lock inside of libcephfs: all objects may be used from any
//!   thread, but a [`DirStream`], which is one reader's.

mod calls;
mod file;
mod image;
mod inode;
mod library;
mod mount;
mod rados;
mod under_way;

pub use calls::on_barred;
pub(crate) use calls::{BARRED, Stat, change, check};
pub(crate) use file::{DirStream, Listed, OpenFile};
pub(crate) use image::{Image, Mode, Work};
pub(crate) use inode::{Inode, New};
pub(crate) use library::Missing;
pub(crate) use mount::{Caller, Mount, Unmounted};
pub(crate) use rados::{Cluster, Pool, Unconnected};
pub use under_way::{UnderWay, ask_calls, calls_under_way};
