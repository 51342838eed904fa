//! The polylane command.
#![forbid(unsafe_code)]
fn main() {}
