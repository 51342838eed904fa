//! An fsync that waits for a device stays with the thread that took it, and nobody waits behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use polylane_base::rng::Rng;
use polylane_base::{Errno, SystemClock, TestClock};
use polylane_front::shm::Config;
use polylane_ipc::message::{Message, Op};
use polylane_testkit::fault::{Call, Faulty};
use polylane_vfs::cached::{Cached, Mode, Settings};
use polylane_vfs::fs::FileSystem;
use polylane_vfs::memfs::MemFs;

use crate::shm_kit::{Client, House, lane_of, wait_for};

/// A lane on a device that can be stopped.
pub fn house(followers: usize) -> (Arc<Faulty>, House) {
    let fs = Arc::new(MemFs::new(1 << 30, 1 << 20, Arc::new(TestClock::default())));
    let mut character = fs.character();
    character.cache_data = true;
    let device = Faulty::with_character(fs, character);
    (device.clone(), House::over(lane_of(device), Config { followers, ..Config::default() }))
}

pub fn dirty(client: &Client, path: &str) -> u64 {
    let handle = client.create(path);
    client.write(handle, 0, b"some bytes").unwrap();
    handle
}

pub fn fsync(client: &Client, handle: u64) -> Result<(), Errno> {
    client.call(&Message { handle, ..Message::new(Op::Fsync) }).map(drop)
}

/// A lane on a device, with a file cache between them.
struct InACache {
    device: Arc<Faulty>,
    cache: Arc<Cached>,
    house: House,
}

fn house_in_a_cache(mode: Mode) -> InACache {
    let (device, _) = house(0);
    let settings = Settings {
        mode,
        bytes_limit: 16 << 20,
        dirty_bytes_limit: 4 << 20,
        flush_interval: Duration::from_secs(3600),
        clock: Arc::new(SystemClock),
    };
    let cache = Arc::new(Cached::new(device.clone(), settings).unwrap());
    let house = House::over(lane_of(cache.clone()), Config::default());
    InACache { device, cache, house }
}

/// While `call` waits for the device, stopped at `blocked`, another client is served. `waits`
/// returns once it does.
fn others_are_served_while(
    InACache { device, house, .. }: &InACache,
    (blocked, waits): (Call, impl Fn()),
    call: impl FnOnce() + Send,
) {
    let other = house.client();
    other.create("other");
    device.block(blocked, true);
    let served = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(call);
        waits();
        scope.spawn(|| {
            other.stat("other").unwrap();
            served.store(true, Ordering::SeqCst);
        });
        let start = Instant::now();
        while !served.load(Ordering::SeqCst) && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let in_time = served.load(Ordering::SeqCst);
        device.block(blocked, false);
        assert!(in_time, "nobody was served while {blocked:?} waited");
    });
}

fn fill(client: &Client, handle: u64, len: usize) {
    let mut at = 0;
    while at < len {
        let part = &[1; PART][..PART.min(len - at)];
        at += client.write(handle, at as u64, part).unwrap();
    }
}

/// Bytes of a write.
const PART: usize = 32 << 10;

#[test]
fn others_are_served_while_a_file_cache_waits_for_the_device() {
    for (mode, len) in [
        (Mode::WriteThrough, 1 << 10),
        (Mode::WriteBack, 1 << 10),
        (Mode::WriteBack, 1 << 20),
        (Mode::WriteBack, 3 << 20),
    ] {
        let house = house_in_a_cache(mode);
        let client = house.house.client();
        let handle = client.create("f");
        fill(&client, handle, len);
        let blocked = (Call::Sync, || house.device.await_blocked(1));
        others_are_served_while(&house, blocked, || fsync(&client, handle).unwrap());
    }
}

#[test]
fn others_are_served_while_a_write_waits_for_room_in_a_file_cache() {
    let house = house_in_a_cache(Mode::WriteBack);
    let client = house.house.client();
    let handle = client.create("f");
    let throttled = || wait_for("a write to wait", || house.cache.stats().throttled > 0);
    others_are_served_while(&house, (Call::Write, throttled), || fill(&client, handle, 6 << 20));
}

#[test]
fn others_are_served_while_a_write_goes_through_a_file_cache() {
    let house = house_in_a_cache(Mode::WriteThrough);
    let client = house.house.client();
    let handle = client.create("f");
    let blocked = (Call::Write, || house.device.await_blocked(1));
    others_are_served_while(&house, blocked, || {
        client.write(handle, 0, b"bytes").unwrap();
    });
}

/// As many fsyncs as threads can wait, and more, each of a session of its own or of one session's
/// threads: none keeps another request waiting, and each is answered when the device goes on.
#[test]
fn others_are_served_while_fsyncs_wait_for_the_device() {
    for (followers, syncs) in [(0, 2), (1, 1), (1, 3), (4, 4), (4, 8)] {
        let (device, house) = house(followers);
        let other = house.client();
        let clients: Vec<_> = (0..syncs).map(|_| house.client()).collect();
        let handles: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(at, client)| dirty(client, &format!("f{at}")))
            .collect();
        device.block(Call::Sync, true);
        std::thread::scope(|scope| {
            for (at, (client, handle)) in clients.iter().zip(&handles).enumerate() {
                scope.spawn(|| fsync(client, *handle).unwrap());
                wait_for("the fsync to be taken", || {
                    let totals = house.server.totals();
                    totals.kept + totals.handed_off == at as u64 + 1
                });
                // By one who sleeps, by one who looks, and with a name that is new.
                other.stat("f0").unwrap();
                other.create(&format!("new{at}"));
            }
            device.block(Call::Sync, false);
        });
        let totals = house.server.totals();
        let kept = followers.min(syncs) as u64;
        assert_eq!((totals.kept, totals.handed_off), (kept, syncs as u64 - kept), "{followers}");
    }
}

/// Also the first fsyncs, of which nothing is known: they may take long.
#[test]
fn no_helper_does_what_a_lone_client_asks_for() {
    let (_, house) = house(4);
    let client = house.client();
    let handle = dirty(&client, "f");
    for number in 0..200 {
        client.write(handle, number, b"more").unwrap();
        fsync(&client, handle).unwrap();
    }
    assert_eq!(house.server.totals().handed_off, 0);
}

#[test]
fn errors_of_the_device_come_back_with_the_fsync() {
    let (device, house) = house(2);
    let client = house.client();
    for number in 0..20 {
        let handle = dirty(&client, &format!("f{number}"));
        if number % 2 == 0 {
            device.fail_once(Call::Sync, 0, Errno::EIO);
        }
        let expected = if number % 2 == 0 { Err(Errno::EIO) } else { Ok(()) };
        assert_eq!(fsync(&client, handle), expected, "{number}");
        client.close(handle).unwrap();
    }
}

/// The server stops while fsyncs wait: they are answered first.
#[test]
fn a_stop_waits_for_what_waits_for_the_device() {
    for count in [1, 5, 9] {
        let (device, house) = house(4);
        let clients: Vec<_> = (0..count).map(|_| house.client()).collect();
        let handles: Vec<_> = clients.iter().map(|client| dirty(client, "f")).collect();
        device.block(Call::Sync, true);
        std::thread::scope(|scope| {
            for (client, handle) in clients.iter().zip(&handles) {
                scope.spawn(|| fsync(client, *handle).unwrap());
            }
            wait_for("the fsyncs to be taken", || {
                let totals = house.server.totals();
                totals.kept + totals.handed_off == count
            });
            let stopped = scope.spawn(|| house.server.stop());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!stopped.is_finished());
            device.block(Call::Sync, false);
        });
    }
}

/// Sessions come and go and sync at random, while the device stops and goes on: every request is
/// answered.
#[test]
fn roles_change_hands_at_random() {
    let (device, house) = house(3);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let works: Vec<_> = (0..6u64)
            .map(|seed| {
                let house = &house;
                scope.spawn(move || works_at_random(house, seed))
            })
            .collect();
        let (device, over) = (&device, &over);
        scope.spawn(move || {
            let mut blocked = false;
            while !over.load(Ordering::Relaxed) {
                blocked = !blocked;
                device.block(Call::Sync, blocked);
                std::thread::sleep(Duration::from_micros(300));
            }
            device.block(Call::Sync, false);
        });
        works.into_iter().for_each(|work| work.join().unwrap());
        over.store(true, Ordering::Relaxed);
    });
    assert!(house.server.totals().kept > 10, "{:?}", house.server.totals());
}

fn works_at_random(house: &House, seed: u64) {
    let mut rng = Rng::new(seed);
    for round in 0..6 {
        let client = house.client();
        let handle = dirty(&client, &format!("f{seed}-{round}"));
        for at in 0..40 {
            match rng.below(4) {
                0 => drop(client.stat("f0-0")),
                1 => std::thread::sleep(Duration::from_micros(rng.below(200))),
                2 => drop(client.write(handle, at, b"again").unwrap()),
                _ => fsync(&client, handle).unwrap(),
            }
        }
    }
}
