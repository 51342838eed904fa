//! Front ends: protocols on one side, the file door or the block door on the other.
//!
//! Each folder speaks one protocol: it checks what comes in once, charges the tenant and calls the
//! [`Vfs`](polylane_vfs::Vfs) ([`fuse`], [`shm`]), or hands requests to a
//! [device](polylane_block::BlockDevice) ([`nbd`], [`export`], [`ublk`], [`vhost_user`]). What
//! front ends of one lane must know of each other is in [`lane`].
#![forbid(unsafe_code)]

pub mod beat;
pub mod export;
pub mod fuse;
pub mod lane;
pub mod nbd;
mod pace;
pub mod shm;
pub mod ublk;
pub mod vhost_user;
pub mod witness;

pub use lane::locks::{FormerProcess, former_processes};
pub use lane::{Handover, Lane, Survived};
