//! A hostile guest of the vhost-user-blk server.
//!
//! The input is a list of commands to a native virtio driver: descriptors, rings, messages of the
//! frontend, memory for requests under way; format and oracle are in
//! `crates/front/tests/virtio_kit/hostile.rs`, which also runs as `cargo test -p polylane-front
//! --test virtio`.
//!
//! # Oracle
//!
//! No panic in any thread; nothing read or written that the guest did not name; no answer that it
//! did not ask for; the next guest is served; no input longer than libFuzzer's `-timeout`.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use polylane_fuzz::virtio_kit::hostile::{self, Secret};
use polylane_fuzz::virtio_kit::{House, count_panics};

fuzz_target!(|input: &[u8]| {
    static PLACE: OnceLock<(House, Secret)> = OnceLock::new();
    let (house, secret) = PLACE.get_or_init(|| {
        count_panics();
        (House::lasting(), Secret::new())
    });
    hostile::play(house, secret, input);
});
