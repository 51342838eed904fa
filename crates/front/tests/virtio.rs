//! The vhost-user-blk server and its driver, in one process: what a guest may do, what the
//! specification asks of a device, what a hostile guest does, and what happens when either goes
//! away. The hostile guest (`virtio_kit/hostile.rs`) is that of the fuzz target `virtio`.

mod virtio_kit;

use std::time::{Duration, Instant};

use polylane_base::rng::Rng;
use polylane_front::vhost_user::driver::{Driver, DriverQueue, Kind};
use virtio_kit::hostile::{self, Secret};
use virtio_kit::{House, SECTORS, SHAPE, count_panics, pattern};

#[test]
fn every_kind_of_request_does_what_it_says() {
    let mut house = House::new();
    let mut driver = house.connect();
    assert_eq!(driver.config(0, 8).expect("config"), SECTORS.to_le_bytes());
    for queue in driver.queues() {
        let data = pattern(7, 8192);
        queue.set_data(0, &data);
        assert_eq!(queue.execute(Kind::Write, 40, 8192).expect("answer"), 0);
        queue.set_data(0, &[0; 8192]);
        assert_eq!(queue.execute(Kind::Read, 40, 8192).expect("answer"), 0);
        assert_eq!(queue.data(0), data);
        assert_eq!(queue.execute(Kind::Flush, 0, 0).expect("answer"), 0);
        assert_eq!(queue.execute(Kind::Discard, 40, 512).expect("answer"), 0);
        assert_eq!(queue.execute(Kind::WriteZeroes, 42, 512).expect("answer"), 0);
        assert_eq!(queue.execute(Kind::Read, 40, 2048).expect("answer"), 0);
        assert!(queue.data(0)[..512].iter().all(|byte| *byte == 0));
        assert_eq!(queue.data(0)[512..1024], data[512..1024]);
        assert!(queue.data(0)[1024..1536].iter().all(|byte| *byte == 0));
        assert_eq!(queue.execute(Kind::Serial, 0, 0).expect("answer"), 0);
        assert_eq!(&queue.data(0)[..9], b"volume-7\0");
        for (kind, sector, bytes) in [
            (Kind::Read, SECTORS, 512),
            (Kind::Write, SECTORS - 1, 1024),
            (Kind::Write, u64::MAX, 512),
            (Kind::Read, 0, 100),
            (Kind::Discard, u64::MAX - 1, 4096),
            (Kind::WriteZeroes, SECTORS - 1, 1024),
        ] {
            assert_eq!(queue.execute(kind, sector, bytes).expect("answer"), 1, "{kind:?}");
        }
    }
    house.end();
}

#[test]
fn many_requests_at_a_time_agree_with_a_model() {
    many_requests(House::new());
    many_requests(House::on_file());
}

fn many_requests(mut house: House) {
    let mut driver = house.connect();
    let mut model = vec![0u8; SECTORS as usize];
    let mut rng = Rng::new(1);
    let queue = &mut driver.queues()[1];
    for round in 0..200u64 {
        // Eight requests on ranges of their own.
        let mut wanted = Vec::new();
        for slot in 0..SHAPE.depth {
            let sector = slot as u64 * 512 + rng.below(490);
            let count = rng.below(16) + 1;
            let write = rng.percent(50);
            queue.set_data(slot, &vec![round as u8; count as usize * 512]);
            let kind = if write { Kind::Write } else { Kind::Read };
            queue.submit(slot, kind, sector, count as u32 * 512);
            wanted.push((sector as usize..(sector + count) as usize, write));
        }
        queue.notify().expect("kick");
        let mut left = SHAPE.depth;
        while left > 0 {
            while let Some((slot, written)) = queue.take() {
                assert_eq!(queue.status(slot), 0);
                let (range, write) = wanted[slot].clone();
                assert_eq!(written as usize, if write { 1 } else { range.len() * 512 + 1 });
                match write {
                    true => model[range].fill(round as u8),
                    false => {
                        let data = queue.data(slot);
                        let same = data.chunks(512).zip(range).all(|(d, s)| d[0] == model[s]);
                        assert!(same, "round {round}");
                    }
                }
                left -= 1;
            }
            if left > 0 {
                queue.wait(1000);
            }
        }
    }
    house.end();
}

#[test]
fn the_write_cache_can_be_switched_and_the_device_can_grow() {
    let mut house = House::new();
    let mut driver = house.connect();
    assert_eq!(driver.config(32, 1).expect("config"), [1]);
    let queue = &mut driver.queues()[0];
    assert_eq!(queue.execute(Kind::Write, 0, 512).expect("answer"), 0);
    assert_eq!(house.durable_writes(), 0, "the cache is on");
    driver.set_config(32, &[0]).expect("off");
    assert_eq!(driver.config(32, 1).expect("config"), [0]);
    assert_eq!(driver.queues()[0].execute(Kind::Write, 0, 512).expect("answer"), 0);
    assert_eq!(house.durable_writes(), 1, "every write is durable");
    driver.set_config(32, &[1]).expect("on");
    assert_eq!(driver.config(32, 1).expect("config"), [1]);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("pair");
    open_channel(&mut driver, &theirs);
    driver.config(0, 8).expect("config");
    house.grown();
    let mut message = [0; 12];
    use std::io::Read;
    (&ours).read_exact(&mut message).expect("told");
    assert_eq!(message, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    house.end();
}

/// The device has another size than the one that the frontend read from a server that died: the
/// next server says so, since frontends that come again do not ask.
#[test]
fn growth_while_there_was_no_server_is_told_by_the_next_one() {
    use std::io::Read;
    use std::os::unix::fs::FileExt;
    use std::os::unix::net::UnixStream;
    let mut house = House::new();
    let mut driver = house.connect();
    let sectors = driver.config(0, 8).expect("config");
    // Behind the areas of the queues, in 64 bytes at the end.
    let kept = driver.inflight().expect("memory for requests under way").try_clone().expect("fd");
    let at = kept.metadata().expect("metadata").len() / 64 * 64 - 64 + 8;
    let mut told = [0; 8];
    for (known, is_told) in [(None, false), (Some(8u64), true)] {
        house.end();
        kept.read_exact_at(&mut told, at).expect("read");
        assert_eq!(told[..], sectors[..], "what it read is kept");
        if let Some(known) = known {
            kept.write_all_at(&known.to_le_bytes(), at).expect("written");
        }
        house.serve();
        driver.reconnect(&house.path).expect("again");
        let (ours, theirs) = UnixStream::pair().expect("pair");
        open_channel(&mut driver, &theirs);
        ours.set_read_timeout(Some(Duration::from_secs(if is_told { 20 } else { 1 })))
            .expect("set");
        let mut message = [0; 12];
        let heard = (&ours).read_exact(&mut message);
        assert_eq!(heard.is_ok(), is_told, "{known:?}: {heard:?}");
        assert_eq!(driver.config(0, 8).expect("config"), sectors);
    }
    house.end();
}

/// Gives the server a line for messages of its own.
fn open_channel(driver: &mut Driver, line: &std::os::unix::net::UnixStream) {
    use vhost::vhost_user::{VhostUserFrontend, VhostUserProtocolFeatures as Protocol};
    let features = Protocol::BACKEND_REQ | Protocol::CONFIG;
    driver.frontend().set_protocol_features(features).expect("features");
    driver.frontend().set_backend_request_fd(line).expect("channel");
}

/// Three descriptors: address, length, flags, next.
type Chain = [(u64, u32, u16, u16); 3];

/// Chains that break the specification in every way there is; the good request behind them is
/// answered all the same.
#[test]
fn broken_chains_are_answered_and_do_no_harm() {
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    const INDIRECT: u16 = 4;
    let mut house = House::new();
    let mut driver = house.connect();
    let queue = &mut driver.queues()[0];
    let table = 3 * SHAPE.depth as u64 * 16;
    let cases: [(&str, Chain); 12] = [
        ("a loop", [(64, 16, NEXT, 4), (64, 16, NEXT, 3), (64, 1, WRITE, 0)]),
        ("next outside", [(64, 16, NEXT, 9999), (0, 0, 0, 0), (0, 0, 0, 0)]),
        ("outside of memory", [(1 << 40, 16, NEXT, 4), (64, 1, WRITE, 0), (0, 0, 0, 0)]),
        ("wraps around", [(u64::MAX - 3, 16, NEXT, 4), (64, 1, WRITE, 0), (0, 0, 0, 0)]),
        ("huge", [(64, u32::MAX, NEXT, 4), (64, u32::MAX, WRITE, 0), (0, 0, 0, 0)]),
        ("no status", [(64, 16, 0, 0), (0, 0, 0, 0), (0, 0, 0, 0)]),
        ("short header", [(64, 15, NEXT, 4), (64, 1, WRITE, 0), (0, 0, 0, 0)]),
        ("read after write", [(64, 1, WRITE | NEXT, 4), (64, 16, 0, 0), (0, 0, 0, 0)]),
        ("indirect and next", [(table, 32, INDIRECT | NEXT, 4), (64, 1, WRITE, 0), (0, 0, 0, 0)]),
        ("indirect, odd", [(table, 17, INDIRECT, 0), (0, 0, 0, 0), (0, 0, 0, 0)]),
        ("indirect, empty", [(table, 0, INDIRECT, 0), (0, 0, 0, 0), (0, 0, 0, 0)]),
        // The table is the ring's own: its third descriptor is indirect again.
        ("indirect twice", [(48, 16, INDIRECT, 0), (0, 0, 0, 0), (0, 0, 0, 0)]),
    ];
    for (name, descriptors) in cases {
        for (offset, (address, len, flags, next)) in descriptors.into_iter().enumerate() {
            queue.set_descriptor(3 + offset, address, len, flags, next);
        }
        queue.push(3);
        let status = queue.execute(Kind::Flush, 0, 0);
        let mut answers = 1;
        while queue.take().is_some() {
            answers += 1;
        }
        assert!(status.is_ok() && answers <= 2, "{name}");
        for _ in 0..20 {
            if answers < 2 {
                queue.wait(200);
                answers += std::iter::from_fn(|| queue.take()).count();
            }
        }
        assert_eq!(answers, 2, "{name}");
    }
    house.end();
}

#[test]
fn a_good_indirect_table_is_walked() {
    let mut house = House::new();
    let mut driver = house.connect();
    let queue = &mut driver.queues()[0];
    let data = pattern(3, 4096);
    queue.set_data(0, &data);
    queue.build(0, Kind::Write, 8, 4096);
    // Slot 0's three descriptors, as a table for descriptor 30.
    queue.set_descriptor(30, 0, 48, 4, 0);
    queue.push(30);
    queue.notify().expect("kick");
    queue.wait(5000);
    assert_eq!(queue.take(), Some((10, 1)));
    assert_eq!(queue.execute(Kind::Read, 8, 4096).expect("answer"), 0);
    assert_eq!(queue.data(0)[..4096], data);
    house.end();
}

#[test]
fn a_ring_that_lies_about_itself_stops_and_another_start_helps() {
    let mut house = House::new();
    let mut driver = house.connect();
    driver.queues()[0].push(60_000);
    driver.queues()[0].set_available(5000);
    driver.queues()[0].kick().expect("kick");
    // The other queue does not notice.
    assert_eq!(driver.queues()[1].execute(Kind::Flush, 0, 0).expect("answer"), 0);
    driver.stop(0).expect("stop");
    drop(driver);
    let mut driver = house.connect();
    assert_eq!(driver.queues()[0].execute(Kind::Flush, 0, 0).expect("answer"), 0);
    house.end();
}

/// Random memory in place of rings: no answer is expected, only that the server goes on.
#[test]
fn noise_in_shared_memory_does_no_harm() {
    let mut house = House::new();
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut driver = house.connect();
        let queue = &mut driver.queues()[0];
        for _ in 0..40 {
            for index in 0..32 {
                let near = rng.percent(70);
                let address = if near { rng.below(1 << 16) } else { rng.next_u64() };
                let len = if near { rng.below(8192) } else { rng.next_u64() } as u32;
                let next = rng.below(40) as u16;
                queue.set_descriptor(index, address, len, rng.below(8) as u16, next);
            }
            for _ in 0..rng.below(8) {
                queue.push(rng.below(33) as u16);
            }
            queue.kick().expect("kick");
            while queue.take().is_some() {}
        }
        // The guest vanishes, sometimes in the middle.
        if rng.percent(50) {
            queue.wait(1);
        }
    }
    let mut driver = house.connect();
    assert_eq!(driver.queues()[0].execute(Kind::Flush, 0, 0).expect("answer"), 0);
    house.end();
}

#[test]
fn noise_on_the_socket_ends_the_session_and_no_more() {
    use std::io::{Read, Write};
    let mut house = House::new();
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut stream = std::os::unix::net::UnixStream::connect(&house.path).expect("connect");
        let mut bytes = pattern(seed, rng.below(300) as usize);
        if rng.percent(80) && bytes.len() >= 12 {
            // A header that is one.
            bytes[..4].copy_from_slice(&(rng.below(45) as u32).to_le_bytes());
            bytes[4..8].copy_from_slice(&[1, 0, 0, 0]);
            let size = if rng.percent(50) { bytes.len() as u64 - 12 } else { rng.next_u64() };
            bytes[8..12].copy_from_slice(&(size as u32).to_le_bytes());
        }
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let mut driver = house.connect();
    assert_eq!(driver.queues()[0].execute(Kind::Flush, 0, 0).expect("answer"), 0);
    house.end();
}

/// The server goes away between taking requests and answering them; the next one finds them.
#[test]
fn requests_under_way_survive_the_server() {
    requests_under_way(House::new());
    requests_under_way(House::on_file());
}

fn requests_under_way(mut house: House) {
    let mut driver = house.connect();
    let queue = &mut driver.queues()[0];
    assert_eq!(queue.execute(Kind::Write, 0, 512).expect("answer"), 0);
    house.end();
    // Made available while nobody is there.
    let queue = &mut driver.queues()[0];
    for slot in 0..4 {
        queue.set_data(slot, &[slot as u8 + 1; 512]);
        queue.submit(slot, Kind::Write, slot as u64, 512);
    }
    house.serve();
    driver.reconnect(&house.path).expect("again");
    let queue = &mut driver.queues()[0];
    let mut answered = 0;
    for _ in 0..50 {
        answered += std::iter::from_fn(|| queue.take()).count();
        if answered == 4 {
            break;
        }
        queue.wait(200);
    }
    assert_eq!(answered, 4);
    for slot in 0..4 {
        assert_eq!(queue.execute(Kind::Read, slot, 512).expect("answer"), 0);
        assert_eq!(queue.data(0)[0], slot as u8 + 1);
    }
    house.end();
}

/// Both queues at a time, each with a thread and sectors of its own.
#[test]
fn queues_work_side_by_side() {
    queues_side_by_side(House::new());
    queues_side_by_side(House::on_file());
}

fn queues_side_by_side(mut house: House) {
    let mut driver = house.connect();
    assert_eq!(driver.config(34, 2).expect("config"), [4, 0], "queues that are offered");
    std::thread::scope(|scope| {
        for (index, queue) in driver.queues().iter_mut().enumerate() {
            scope.spawn(move || {
                let (mut rng, first) = (Rng::new(index as u64), index as u64 * SECTORS / 2);
                for round in 0..300u64 {
                    let sector = first + rng.below(SECTORS / 2 - 16);
                    let data = pattern(round, 8192);
                    queue.set_data(0, &data);
                    assert_eq!(queue.execute(Kind::Write, sector, 8192).expect("answer"), 0);
                    queue.set_data(0, &[0; 8192]);
                    assert_eq!(queue.execute(Kind::Read, sector, 8192).expect("answer"), 0);
                    assert_eq!(queue.data(0), data, "queue {index}, round {round}");
                }
            });
        }
    });
    house.end();
}

/// Waits until `count` requests are answered.
fn answers(queue: &mut DriverQueue, count: usize) {
    let (start, mut seen) = (Instant::now(), 0);
    while seen < count {
        seen += std::iter::from_fn(|| queue.take()).count();
        assert!(start.elapsed() < Duration::from_secs(30), "{seen} of {count} answers came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// With the event index a guest says after how many answers it is to be interrupted; without it,
/// whether at all.
#[test]
fn interrupts_come_when_they_were_asked_for() {
    interrupts(House::new());
    interrupts(House::on_file());
}

fn interrupts(mut house: House) {
    const EVENT_IDX: u64 = 1 << 29;
    for unknown in [0, EVENT_IDX] {
        let mut driver = Driver::connect_without(&house.path, SHAPE, unknown).expect("connect");
        let queue = &mut driver.queues()[0];
        assert_eq!(queue.execute(Kind::Flush, 0, 0).expect("answer"), 0);
        let depth = SHAPE.depth as u16;
        for asked in [0, depth] {
            queue.interrupts();
            queue.ask_interrupt(asked);
            // One after the other: each would be interrupted for.
            for slot in 0..SHAPE.depth {
                queue.submit(slot, Kind::Flush, 0, 0);
                queue.kick().expect("kick");
                answers(queue, 1);
            }
            let (mut came, end) = (queue.interrupts(), Instant::now() + Duration::from_secs(30));
            while came == 0 && asked > 0 {
                assert!(Instant::now() < end, "no interrupt came");
                std::thread::sleep(Duration::from_millis(1));
                came += queue.interrupts();
            }
            // One may be late, from before it was asked.
            let most = if asked == 0 || unknown == 0 { asked.min(1) + 1 } else { depth + 1 };
            assert!(came <= u64::from(most), "{came} interrupts, {asked} asked, {unknown:x}");
        }
        driver.stop(0).expect("stop");
    }
    house.end();
}

/// Without flushes, or with its write cache switched off, a guest cannot make anything durable: all
/// that it writes is, and still is when another server has taken over.
#[test]
fn a_guest_that_cannot_flush_gets_durable_writes() {
    const FLUSH: u64 = 1 << 9;
    let mut house = House::new();
    let mut driver = Driver::connect_without(&house.path, SHAPE, FLUSH).expect("connect");
    assert_eq!(driver.queues()[0].execute(Kind::Write, 0, 512).expect("answer"), 0);
    assert_eq!(house.durable_writes(), 1, "it knows no flush");
    drop(driver);
    let mut driver = house.connect();
    assert_eq!(driver.queues()[0].execute(Kind::Write, 0, 512).expect("answer"), 0);
    assert_eq!(house.durable_writes(), 1, "it can flush");
    driver.set_config(32, &[0]).expect("off");
    // Nobody answers that message; an answer to the next one says that it was heard.
    assert_eq!(driver.config(32, 1).expect("config"), [0]);
    assert_eq!(driver.queues()[0].execute(Kind::Write, 0, 512).expect("answer"), 0);
    assert_eq!(house.durable_writes(), 2, "it switched its cache off");
    house.end();
    house.serve();
    driver.reconnect(&house.path).expect("again");
    assert_eq!(driver.config(32, 1).expect("config"), [0]);
    assert_eq!(driver.queues()[0].execute(Kind::Write, 0, 512).expect("answer"), 0);
    assert_eq!(house.durable_writes(), 3, "the next server knows");
    house.end();
}

/// As many descriptors as a ring has, in one chain.
#[test]
fn the_longest_chain_is_served_and_one_more_is_a_loop() {
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    let mut house = House::new();
    let mut driver = house.connect();
    let queue = &mut driver.queues()[0];
    let data = pattern(5, 8192);
    queue.set_data(0, &data);
    assert_eq!(queue.execute(Kind::Write, 0, 8192).expect("answer"), 0);
    queue.set_data(0, &[0; 8192]);
    // Header and status of slot 0, and sixteen sectors in thirty pieces.
    queue.build(0, Kind::Read, 0, 8192);
    let (header, body, status) = queue.places(0);
    queue.set_descriptor(0, header, 16, NEXT, 1);
    for piece in 0..30u64 {
        let len = if piece == 29 { 8192 - 29 * 256 } else { 256 };
        let index = piece as usize + 1;
        queue.set_descriptor(index, body + piece * 256, len, NEXT | WRITE, index as u16 + 1);
    }
    queue.set_descriptor(31, status, 1, WRITE, 0);
    queue.push(0);
    queue.kick().expect("kick");
    answers(queue, 1);
    assert_eq!((queue.status(0), queue.data(0)), (0, data));
    queue.build(1, Kind::Flush, 0, 0);
    queue.set_descriptor(0, header, 16, NEXT, 1);
    queue.set_descriptor(1, body, 256, NEXT | WRITE, 2);
    queue.set_descriptor(31, status, 1, NEXT | WRITE, 0);
    queue.push(0);
    queue.kick().expect("kick");
    answers(queue, 1);
    house.end();
}

/// What the fuzz target does, for a few seconds, the same every time.
#[test]
fn a_hostile_guest_reaches_nothing_that_it_did_not_name() {
    count_panics();
    let (mut house, secret) = (House::new(), Secret::new());
    let start = Instant::now();
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let count = 20 + rng.below(600) as usize;
        let input: Vec<u8> = (0..count).map(|_| rng.next_u64() as u8).collect();
        hostile::play(&house, &secret, &input);
        // The first fifty come in any case.
        if seed >= 50 && start.elapsed() > Duration::from_secs(10) {
            break;
        }
    }
    house.end();
}
