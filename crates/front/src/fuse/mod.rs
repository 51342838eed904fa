//! FUSE: the lane for every program, over a transport of our own.
//!
//! Protocol 7.31 to 7.45 of `include/uapi/linux/fuse.h`, spoken over a /dev/fuse descriptor that
//! somebody else (the supervisor) opened, mounted and negotiated. So a session can begin in the middle
//! of a mount's life: a replaced service goes on serving the same mount.

pub mod nodes;
