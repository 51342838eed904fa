//! The block door: volumes, and everything between a front end's request and the medium's bytes.
//!
//! | module | what it decides |
//! |---|---|
//! | [`bypass`] | volumes in a pool file, reached past the host's file system |
//! | [`cache`] | what a volume's cache keeps: journals bypass it |
//! | [`device`] | the seam that front ends and file systems use: requests, completions, channels |
//! | [`engine`] | what becomes of a request: the one parent function |
//! | [`mod@file`] | a device on a host file: io_uring and O_DIRECT |
//! | [`freeze`] | a device that stands still for a copy of it while it is in use |
//! | [`image`] | opening and creating a volume's file; one opener at a time |
//! | [`map`] | translation: what is known of a volume's space, and who finds it out |
//! | [`medium`] | the seam below the engine: raw bytes and their space |
//! | [`overlay`] | copy-on-write by blocks, on a device that does not change |
//! | [`qos`] | which lane's request may go to the device, and when |
//! | [`ram`] | a medium in memory |
//! | [`recorder`] | what was asked of a device, written down |
//! | [`replace`] | a device that never changes, exchanged for another with the same content |
//! | [`wait`] | the one place that turns submit and poll into waiting |
//!
//! From this door down, code is submit and poll and never blocks; above it, code is straight-line
//! and blocking.
#![forbid(unsafe_code)]

pub mod bypass;
pub mod cache;
pub mod claimed;
pub mod device;
pub mod engine;
pub mod file;
pub mod freeze;
mod gate;
pub mod image;
pub mod map;
pub mod medium;
pub mod overlay;
mod pieces;
pub mod qos;
pub mod ram;
pub mod recorder;
pub mod remote;
pub mod replace;
pub mod wait;

pub use device::{
    Allocation, BlockDevice, Channel, Completion, Error, Op, Request, Sector, Submitted,
};
