//! Front ends: protocols on one side, the file door on the other.
//!
//! Each folder speaks one protocol: it checks what comes in once, charges the tenant and calls the
//! [`Vfs`](polylane_vfs::Vfs). What front ends of one lane must know of each other is in [`lane`].
#![forbid(unsafe_code)]

pub mod fuse;
pub mod lane;
pub mod notifier;
pub mod shm;
pub mod slots;
pub mod tickets;

pub use lane::Lane;
