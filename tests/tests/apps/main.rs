//! Real programs in lanes: each prints on a lane what it prints on tmpfs, through FUSE and through
//! the preload library.

mod coreutils;
mod programs;
