//! The private VFS of a lane: everything between a front end and a libservice.
#![forbid(unsafe_code)]

mod cred;
mod file;
pub mod fs;
mod inode;
pub mod lock;
pub mod memfs;
mod vfs;

pub use cred::Cred;
pub use file::{OpenFile, Written};
pub use fs::{Attr, FileSystem, Kind, SetAttr};
pub use inode::{Inode, Node};
pub use lock::{LockFamily, LockKind, LockOutcome, LockOwner, LockRequest, LockWaiter, Ticket};
pub use vfs::{Create, Last, Options, PathError, Vfs};
