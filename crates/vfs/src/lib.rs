//! The private VFS of a lane: everything between a front end and a libservice.
//!
//! # Lock order
//!
//! ```text
//! renaming ─► entries of a directory, upper before lower ─► a file's data ─► attr ─► libservice
//!                                                           leaves: parent · a dentry shard ·
//!                                                           an inode-table shard · the lock table
//! ```
#![forbid(unsafe_code)]

mod access;
mod attrs;
mod cache;
mod core;
mod cred;
mod dentry;
mod file;
pub mod fs;
pub mod hostdir;
mod inode;
mod inodes;
pub mod lock;
pub mod memfs;
mod names;
mod open;
mod rename;
mod stats;
mod vfs;
mod walk;
mod xattr;

pub use cred::Cred;
pub use file::{OpenFile, Written};
pub use fs::{Attr, FileSystem, Kind, SetAttr};
pub use inode::{Inode, Node};
pub use lock::{LockFamily, LockKind, LockOutcome, LockOwner, LockRequest, LockWaiter, Ticket};
pub use rename::{Moved, RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT};
pub use stats::Stats;
pub use vfs::{Create, Last, Options, PathError, Vfs};
