//! Hostile clients of the channel beside good ones, over an ext4 volume.
//!
//! What must hold: no panic, no hang, the good clients' files hold what they wrote, the volume is
//! never stopped by what a client asks, and e2fsck finds nothing on it in the end. For some seconds
//! with the rooms' own tests, an hour with `cargo xtask campaign clients`: each round has another
//! seed, which is printed (`POLYLANE_CLIENTS_SEED` begins with one) and another number of workers.

#[path = "../../ext4/tests/common/mod.rs"]
mod common;
#[path = "../../front/tests/shm_kit/mod.rs"]
mod shm_kit;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use polylane_front::shm::Config;
use polylane_vfs::OpCtx;
use shm_kit::{House, count_panics, hostile};

/// How long without `POLYLANE_CLIENTS_SECONDS`, and how long a round is at most.
const SECONDS: u64 = 3;
const ROUND: Duration = Duration::from_secs(60);

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn good_clients_among_hostile_ones_on_a_volume() {
    count_panics();
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let first = number("POLYLANE_CLIENTS_SEED").unwrap_or(since_1970.as_secs());
    let whole = Duration::from_secs(number("POLYLANE_CLIENTS_SECONDS").unwrap_or(SECONDS));
    let begin = Instant::now();
    for seed in first.. {
        let left = whole.saturating_sub(begin.elapsed());
        println!("clients: seed {seed}");
        common::on(256, common::LANE, |fs| {
            let workers = vec![None; 1 + (seed % 2) as usize];
            let config = Config { workers, sessions_max: 64, ..Config::default() };
            let house = House::over(shm_kit::lane_of(fs.clone()), config);
            hostile::play(&house, 3, seed, left.clamp(Duration::from_secs(1), ROUND));
            house.lane.vfs.sync(&OpCtx::service()).unwrap();
        });
        if begin.elapsed() >= whole {
            break;
        }
    }
}
