//! What the targets share: the players of hostile input, which the bounded runs of
//! `cargo test -p polylane-front` use too.
#![allow(dead_code, reason = "each target uses its part")]

#[path = "../../crates/front/tests/fuzz_kit/mod.rs"]
pub mod fuzz_kit;
#[path = "../../crates/front/tests/fuse/kernel.rs"]
pub mod kernel;
#[path = "../../crates/front/tests/shm_kit/mod.rs"]
pub mod shm_kit;
#[path = "../../crates/front/tests/virtio_kit/mod.rs"]
pub mod virtio_kit;
