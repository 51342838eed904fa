//! A client that writes anything into its channel.
//!
//! Format of the input and oracle: `crates/front/tests/fuzz_kit/channel.rs`, which also runs as
//! `cargo test -p polylane-front --test fuzz`. No input may take longer than libFuzzer's `-timeout`.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/front/tests/fuzz_kit/mod.rs"]
#[allow(dead_code)]
mod fuzz_kit;
#[path = "../../crates/front/tests/fuse/kernel.rs"]
#[allow(dead_code)]
mod kernel;
#[path = "../../crates/front/tests/shm_kit/mod.rs"]
#[allow(dead_code)]
mod shm_kit;

use fuzz_kit::channel::Ground;

fuzz_target!(|input: &[u8]| {
    static GROUND: OnceLock<Ground> = OnceLock::new();
    fuzz_kit::channel::play(GROUND.get_or_init(Ground::new), input);
});
