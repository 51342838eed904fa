//! The block door: volumes, and everything between a front end's request and the medium's bytes.
//!
//! | module | what it decides |
//! |---|---|
//! | [`device`] | the seam that front ends and file systems use: requests, completions, channels |
//! | [`ram`] | a medium in memory |
//! | [`wait`] | the one place that turns submit and poll into waiting |
//!
//! From this door down, code is submit and poll and never blocks; above it, code is straight-line
//! and blocking.
#![forbid(unsafe_code)]

pub mod device;
pub mod ram;
pub mod wait;

pub use device::{BlockDevice, Channel, Completion, Error, Op, Request, Sector, Submitted};
