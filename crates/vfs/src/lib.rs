//! The private VFS of a lane: everything between a front end and a libservice.
//!
//! ```text
//!  front ends ──► Vfs: walk · names · rename · attrs · xattr · open · lock    OpenFile: file
//!                  │                                                            │
//!                  ├─► dentry (names) ─► inodes (live inodes)                   ├─► cache (pages)
//!                  └────────► fs::FileSystem: memfs · hostdir · mapped ◄────────┘
//! ```
//!
//! # Lock order
//!
//! ```text
//! renaming ─► entries of a directory, upper before lower ─► attr ─► acls ─► libservice
//!             a file's data ─► backing ────────────────────► attr
//!                                     └─► dirty_files ─► a file's map
//! leaves, held over nothing else: parent · a dentry shard · an inode-table shard ·
//!                                 the lock table · the cache's CLOCK · the flusher's state
//! ```
//!
//! Entries and data are one lock, [`Inode`]'s: an inode has either the one or the other. The drop
//! of an inode takes leaves and calls the libservice, so inodes are dropped under any lock but a
//! leaf.
//!
//! # No global state
//!
//! Everything hangs off the [`Vfs`]: two of them share no lock and no table (`tests/isolation.rs`).
#![forbid(unsafe_code)]

mod access;
mod acl;
mod acls;
mod attachment;
mod attr;
mod attrs;
mod bytes;
mod cache;
pub mod cached;
mod caps;
mod character;
mod core;
mod cred;
mod ctx;
mod dentry;
mod file;
pub mod flags;
pub mod fs;
pub mod handover;
pub mod hostdir;
mod inode;
mod inodes;
mod lease;
mod loans;
pub mod lock;
mod lock_request;
pub mod mapped;
mod marks;
pub mod memfs;
mod name;
mod nameless;
mod names;
mod open;
mod oplock;
mod pieces;
mod rename;
mod stats;
mod unsynced;
mod vfs;
mod view;
mod walk;
mod xattr;

pub use attachment::Attachment;
pub use cred::{Cred, Fsetid, HostIds};
pub use ctx::{OpCtx, Origin};
pub use file::{HalfSynced, OpenFile, Written, synchronous};
pub use fs::{Attr, FileSystem, Kind, SetAttr};
pub use inode::{Inode, Node};
pub use lease::{Aside, Holder, Leased, Look};
pub use lock::{LockFamily, LockKind, LockLender, LockLoan, LockOutcome, LockOwner, LockRequest};
pub use lock::{LockWaiter, Ticket};
pub use marks::{MARK_PLACES, Mark, Marker, Teller};
pub use name::Name;
pub use rename::{Moved, RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT};
pub use stats::Stats;
pub use vfs::{Create, Last, Options, PathError, Vfs};
pub use view::{Part, Viewer};
