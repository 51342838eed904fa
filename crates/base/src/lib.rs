//! The words every room uses: errors, identities, sizes, time and random numbers.
//!
//! Nothing here knows about files, blocks or processes; nothing here does I/O except reading the
//! clock. Every other crate may use this one and it uses none of them.
#![forbid(unsafe_code)]

pub mod clock;
pub mod errno;
pub mod id;
pub mod record;
pub mod rng;
pub mod shown;
pub mod size;
pub mod sync;

pub use clock::{Clock, SystemClock, TestClock, Time};
pub use errno::{Errno, Result};
pub use id::{Gid, ID_RANGES_MAX, IdRange, Ino, Uid};
