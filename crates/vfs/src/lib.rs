//! The private VFS of a lane: everything between a front end and a libservice.
#![forbid(unsafe_code)]

pub mod fs;

pub use fs::{Attr, FileSystem, Kind};
