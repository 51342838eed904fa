//! What a file system of any kind does: its directory tree, caches, leases and locks. One program:
//! a test binary of its own for each file costs as much to build as the crate.

mod acls;
mod cache;
mod common;
mod hostdir;
mod isolation;
mod kept_writes;
mod leases;
mod locks;
mod mapped;
mod marks;
mod memfs;
mod names;
mod paths;
mod permissions;
mod rename;
mod shared_locks;
mod stress;
mod views;
