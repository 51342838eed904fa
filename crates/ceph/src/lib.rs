//! A lane's files on a Ceph file system, through libcephfs.
//!
//! ```text
//!   fs        CephFs, the libservice: inode numbers, names, data
//!   timed     CephFs whose calls end in time
//!   deadline  calls that end in time, though what they call does not
//!   inodes    which inodes the VFS holds, and their open handles
//!   locks     locks of the cluster
//!   listing   a directory's stream, kept from call to call
//!   client    a mounted client, of which file systems are directories
//!   counters  what a client's calls came to
//!   direct    calls of the library alone, which lanes are measured beside
//!   connect   from settings to a mounted client
//!   failure   why there is none
//!   rbd       an image of a cluster as the medium of a volume
//!   conf      what a ceph.conf and a keyring say of a user
//!   ffi       libcephfs, librados and librbd, loaded at run time; the only unsafe code
//! ```
//!
//! Each lane has a client of its own in its own service process: one mount, one cache, one lock of
//! the client library (libcephfs holds one lock for all of a mount), one flusher. So tenants of a
//! host share none of these (Polytropon, "Danaus", SoCC'20 §4).
//!
//! # Who may change what is here
//!
//! Other hosts change the same files. libcephfs keeps capabilities of the MDS for what it caches,
//! and gives them up before another client's change counts; it is asked each time
//! ([`Character::volatile`](polylane_vfs::fs::Character)), and nothing above it keeps names,
//! attributes or data.
//!
//! # Threads
//!
//! libcephfs starts threads at [`Prepared::mount`]: a process mounts after its last fork, with all
//! signals blocked, and confined already.
#![deny(unsafe_code)]

mod client;
pub mod conf;
mod connect;
pub mod counters;
mod deadline;
mod direct;
mod failure;
mod ffi;
mod fs;
mod inodes;
mod listing;
mod locks;
pub mod rbd;
mod timed;

pub use client::{Client, Watch};
pub use connect::{Caching, Prepared, Settings, look};
pub use direct::{Direct, DirectFile};
pub use failure::Failure;
pub use ffi::{UnderWay, ask_calls, calls_under_way, on_barred};
pub use fs::CephFs;
pub use timed::TimedFs;
