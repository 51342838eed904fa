//! A client that writes anything into its channel.
//!
//! Format of the input and oracle: `crates/front/tests/fuzz_kit/channel.rs`, which also runs as
//! `cargo test -p polylane-front --test fuzz`. No input may take longer than libFuzzer's `-timeout`.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use polylane_fuzz::fuzz_kit::channel::{self, Ground};

fuzz_target!(|input: &[u8]| {
    static GROUND: OnceLock<Ground> = OnceLock::new();
    channel::play(GROUND.get_or_init(Ground::new), input);
});
