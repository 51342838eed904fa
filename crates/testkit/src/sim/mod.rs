//! A simulated disk: it records what it is told, answers late and out of order, fails on purpose,
//! and can be looked at as a power cut would leave it.
//!
//! | module | what |
//! |---|---|
//! | [`image`] | bytes of a disk, cheap to copy |
//! | [`disk`] | the device: channels, record, faults |
//! | [`gate`] | a door before the disk, at which flushes wait for the test |
//! | [`crash`] | from a record to every image that a power cut may leave |
//!
//! The rules are those of [`polylane_block::device`]: a write may be on the medium from its
//! submission on, in any part of whole sectors, and is there for certain once a flush that was
//! submitted after its completion has completed, or when it carried FUA and has completed.

pub mod crash;
pub mod disk;
pub mod gate;
pub mod image;
mod space;

pub use crash::{Crash, Fate, Tear};
pub use disk::{Event, Fault, FaultOn, SimDisk, SimOptions};
pub use gate::{Gate, Held};
pub use image::Image;
