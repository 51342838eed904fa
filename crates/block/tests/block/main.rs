//! Devices, caches and volumes over real and simulated media. One program: a test binary of its own
//! for each file costs as much to build as the crate.

mod bypass;
mod cache;
mod claimed;
mod crash;
mod device_suite;
mod engine;
mod overlay;
mod replace;
mod volumes;
