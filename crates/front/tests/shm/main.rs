//! Sessions of the library over shared memory: what they are told, may do and survive. One program:
//! a test binary of its own for each file costs as much to build as the crate.

mod attachments;
mod hostile;
#[path = "../fuse/kernel.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod kernel;
mod lease;
mod ops;
mod questions;
mod rest;
mod rights;
mod sessions;
#[path = "../shm_kit/mod.rs"]
mod shm_kit;
mod streams;
mod sync;
mod sync_left;
mod views;
