//! A kernel that sends anything.
//!
//! Format of the input and oracle: `crates/front/tests/fuzz_kit/fuse.rs`, which also runs as
//! `cargo test -p polylane-front --test fuzz`. No input may take longer than libFuzzer's `-timeout`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use polylane_fuzz::fuzz_kit;

fuzz_target!(|input: &[u8]| {
    let _done = fuzz_kit::fuse::play(input);
});
