//! Hostile clients beside a good one (`shm_kit/hostile.rs`), and clients that flood.
//!
//! What must hold: no panic in the service, no hang, the good client's files hold what it wrote,
//! and none of its bytes ever shows up in a hostile client's memory. The same over an ext4, for as
//! long as one likes: `polylane-pool`'s test `hostile_clients`.

use std::time::Duration;

use polylane_base::sync::Arc;
use polylane_base::sync::atomic::{AtomicBool, Ordering::Relaxed};
use polylane_front::shm::Config;
use polylane_ipc::message::{Message, Op};

use crate::shm_kit::{House, count_panics, hostile};

/// Half a second of it already reaches every operation; more finds more.
const TIME: Duration = Duration::from_secs(5);

#[test]
fn a_good_client_among_hostile_ones() {
    count_panics();
    let config = Config { workers: vec![None, None], sessions_max: 64, ..Config::default() };
    let house = House::with(config);
    hostile::play(&house, 1, 0, TIME);
    for (op, count) in house.server.totals().by_op {
        assert!(count > 0, "{op:?} was never tried");
    }
}

#[test]
fn one_client_that_floods_does_not_starve_another() {
    let house = House::with(Config { workers: vec![None], ..Config::default() });
    let stop = Arc::new(AtomicBool::new(false));
    let flooders: Vec<_> = (0..2)
        .map(|_| {
            let (client, stop) = (house.client(), stop.clone());
            std::thread::spawn(move || {
                let threads: Vec<_> = (0..60).map(|_| client.thread()).collect();
                let ping = Message::new(Op::Ping);
                while !stop.load(Relaxed) {
                    for thread in &threads {
                        let watch = polylane_ipc::channel::client::Trusting;
                        thread.channel.post(thread.mailbox, &ping, &watch).unwrap();
                    }
                }
            })
        })
        .collect();
    let client = house.client();
    let handle = client.create("f");
    for round in 0..500u64 {
        client.write(handle, round, &[1]).unwrap();
    }
    stop.store(true, Relaxed);
    flooders.into_iter().for_each(|thread| thread.join().unwrap());
}
