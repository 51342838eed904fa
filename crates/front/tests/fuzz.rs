//! The fuzz targets `fuse` and `channel`, in a bounded run: inputs made from seeds, the same each
//! time. The oracle of each is at the head of its file in `fuzz_kit`.

mod fuzz_kit;
#[allow(dead_code, reason = "each test binary uses its part")]
#[path = "fuse/kernel.rs"]
mod kernel;
mod shm_kit;

use std::time::{Duration, Instant};

use polylane_base::rng::Rng;

/// Inputs of a run ...
const INPUTS: u64 = 150;
/// ... of which no more are played when this is over: a slow machine sees fewer.
const TIME: Duration = Duration::from_secs(15);

/// An input: random bytes, with runs that are small, as fields are.
fn input(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let len = 16 + rng.below(2000) as usize;
    let small = rng.percent(70);
    (0..len)
        .map(|_| if small && rng.percent(60) { rng.below(56) as u8 } else { rng.next_u64() as u8 })
        .collect()
}

/// Plays, and insists that something came of it: inputs that do nothing find nothing.
fn run(mut play: impl FnMut(&[u8]) -> u64) {
    let (start, mut done) = (Instant::now(), 0);
    for seed in 0..INPUTS {
        done += play(&input(seed));
        if start.elapsed() > TIME {
            break;
        }
    }
    assert!(done > 0, "nothing that was asked was done");
}

#[test]
fn any_input_from_the_kernel_is_answered() {
    run(fuzz_kit::fuse::play);
}

#[test]
fn any_client_is_kept_from_others() {
    let ground = fuzz_kit::channel::Ground::new();
    run(|input| {
        fuzz_kit::channel::play(&ground, input);
        ground.requests()
    });
}
