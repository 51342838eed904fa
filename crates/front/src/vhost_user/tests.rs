//! The server and the driver, in one process: what a guest may do, what a hostile one does, and
//! what happens when either goes away.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use polylane_base::rng::Rng;
use polylane_block::ram::RamDevice;
use polylane_block::{Channel, Completion, Op, Request, Submitted};
use std::sync::atomic::{AtomicU64, Ordering};

use super::driver::{Driver, Kind, Shape};
use super::*;

const SHAPE: Shape = Shape { queues: 2, depth: 8, data_bytes: 8192 };
const SECTORS: u64 = 4096;

/// Memory that counts durable writes.
struct Counting {
    ram: Arc<RamDevice>,
    durable: AtomicU64,
}

impl BlockDevice for Counting {
    fn sector_count(&self) -> u64 {
        self.ram.sector_count()
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        Box::new(CountingChannel { inner: self.ram.clone().channel(), device: self })
    }
}

struct CountingChannel {
    inner: Box<dyn Channel>,
    device: Arc<Counting>,
}

impl Channel for CountingChannel {
    fn submit(&mut self, request: Request) -> Submitted {
        let durable = matches!(request.op, Op::Write { fua: true });
        self.device.durable.fetch_add(u64::from(durable), Ordering::Relaxed);
        self.inner.submit(request)
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.inner.poll(done);
    }

    fn park(&mut self) {
        self.inner.park();
    }
}

struct Kit {
    _dir: tempfile::TempDir,
    path: PathBuf,
    door: OwnedFd,
    device: Arc<Counting>,
    server: Option<Box<Server>>,
}

impl Kit {
    fn new() -> Kit {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("socket");
        let door = OwnedFd::from(UnixListener::bind(&path).expect("bind"));
        let ram = Arc::new(RamDevice::new(SECTORS));
        let device = Arc::new(Counting { ram, durable: AtomicU64::default() });
        let mut kit = Kit { _dir: dir, path, door, device, server: None };
        kit.serve();
        kit
    }

    fn serve(&mut self) {
        let device: Arc<dyn BlockDevice> = self.device.clone();
        let export = Export { serial: "volume-7".into(), device, queues: 4 };
        let door = self.door.try_clone().expect("dup");
        self.server = Some(Box::new(serve(door, export).expect("serve")));
    }

    fn durable_writes(&self) -> u64 {
        self.device.durable.load(Ordering::Relaxed)
    }

    fn end(&mut self) {
        self.server.take().expect("at work").end();
    }

    fn connect(&self) -> Driver {
        Driver::connect(&self.path, SHAPE).expect("connect")
    }
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..bytes).map(|_| rng.below(256) as u8).collect()
}

#[test]
fn every_kind_of_request_does_what_it_says() {
    let mut kit = Kit::new();
    let mut driver = kit.connect();
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
    kit.end();
}

#[test]
fn many_requests_at_a_time_agree_with_a_model() {
    let mut kit = Kit::new();
    let mut driver = kit.connect();
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
    kit.end();
}

#[test]
fn the_write_cache_can_be_switched_and_the_device_can_grow() {
    let mut kit = Kit::new();
    let mut driver = kit.connect();
    assert_eq!(driver.config(32, 1).expect("config"), [1]);
    let queue = &mut driver.queues()[0];
    assert_eq!(queue.execute(Kind::Write, 0, 512).expect("answer"), 0);
    assert_eq!(kit.durable_writes(), 0, "the cache is on");
    driver.set_config(32, &[0]).expect("off");
    assert_eq!(driver.config(32, 1).expect("config"), [0]);
    assert_eq!(driver.queues()[0].execute(Kind::Write, 0, 512).expect("answer"), 0);
    assert_eq!(kit.durable_writes(), 1, "every write is durable");
    driver.set_config(32, &[1]).expect("on");
    assert_eq!(driver.config(32, 1).expect("config"), [1]);
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("pair");
    use vhost::vhost_user::VhostUserFrontend;
    let features = vhost::vhost_user::VhostUserProtocolFeatures::BACKEND_REQ
        | vhost::vhost_user::VhostUserProtocolFeatures::CONFIG;
    driver.frontend().set_protocol_features(features).expect("features");
    driver.frontend().set_backend_request_fd(&theirs).expect("channel");
    driver.config(0, 8).expect("config");
    kit.server.as_ref().expect("at work").grown();
    let mut message = [0; 12];
    use std::io::Read;
    (&ours).read_exact(&mut message).expect("told");
    assert_eq!(message, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    kit.end();
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
    let mut kit = Kit::new();
    let mut driver = kit.connect();
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
    kit.end();
}

#[test]
fn a_good_indirect_table_is_walked() {
    let mut kit = Kit::new();
    let mut driver = kit.connect();
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
    kit.end();
}

#[test]
fn a_ring_that_lies_about_itself_stops_and_another_start_helps() {
    let mut kit = Kit::new();
    let mut driver = kit.connect();
    driver.queues()[0].push(60_000);
    driver.queues()[0].set_available(5000);
    driver.queues()[0].kick().expect("kick");
    // The other queue does not notice.
    assert_eq!(driver.queues()[1].execute(Kind::Flush, 0, 0).expect("answer"), 0);
    driver.stop(0).expect("stop");
    drop(driver);
    let mut driver = kit.connect();
    assert_eq!(driver.queues()[0].execute(Kind::Flush, 0, 0).expect("answer"), 0);
    kit.end();
}

/// Random memory in place of rings: no answer is expected, only that the server goes on.
#[test]
fn noise_in_shared_memory_does_no_harm() {
    let mut kit = Kit::new();
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut driver = kit.connect();
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
    let mut driver = kit.connect();
    assert_eq!(driver.queues()[0].execute(Kind::Flush, 0, 0).expect("answer"), 0);
    kit.end();
}

#[test]
fn noise_on_the_socket_ends_the_session_and_no_more() {
    use std::io::{Read, Write};
    let mut kit = Kit::new();
    for seed in 0..200 {
        let mut rng = Rng::new(seed);
        let mut stream = std::os::unix::net::UnixStream::connect(&kit.path).expect("connect");
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
    let mut driver = kit.connect();
    assert_eq!(driver.queues()[0].execute(Kind::Flush, 0, 0).expect("answer"), 0);
    kit.end();
}

/// The server goes away between taking requests and answering them; the next one finds them.
#[test]
fn requests_under_way_survive_the_server() {
    let mut kit = Kit::new();
    let mut driver = kit.connect();
    let queue = &mut driver.queues()[0];
    assert_eq!(queue.execute(Kind::Write, 0, 512).expect("answer"), 0);
    kit.end();
    // Made available while nobody is there.
    let queue = &mut driver.queues()[0];
    for slot in 0..4 {
        queue.set_data(slot, &[slot as u8 + 1; 512]);
        queue.submit(slot, Kind::Write, slot as u64, 512);
    }
    kit.serve();
    driver.reconnect(&kit.path).expect("again");
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
    kit.end();
}
