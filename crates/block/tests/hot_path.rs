//! What a request costs besides its I/O: no memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use polylane_block::device::{BlockDevice, Channel, Completion, Op, Request, Sector, Submitted};
use polylane_block::engine::{Engine, Options};
use polylane_block::file::{FileDevice, Way};
use polylane_block::freeze::Freezable;
use polylane_block::image::{Draft, DurableDraft};
use polylane_block::map::{Unit, UnitOptions};
use polylane_block::medium::Medium;
use polylane_block::ram::RamDevice;
use polylane_sys::buffer::Buffer;

const SECTORS: u64 = 16384;
/// Requests at a time.
const DEPTH: u64 = 16;
const ROUNDS: u64 = 200;
const LIMIT: Duration = Duration::from_secs(60);

/// A request for each of `free`, whose buffers are used again.
fn round(
    channel: &mut dyn Channel,
    free: &mut Vec<Completion>,
    done: &mut Vec<Completion>,
    at: u64,
) {
    let count = free.len();
    for (index, used) in free.drain(..).enumerate() {
        let op = match index % 3 {
            0 => Op::Write { fua: false },
            _ => Op::Read,
        };
        let sector = Sector((at * DEPTH + index as u64) * 8 % SECTORS);
        match channel.submit(Request::with_data(op, sector, used.data, index as u64)) {
            Submitted::Done(completion) => done.push(completion),
            Submitted::Pending => {}
            Submitted::Busy(_) => panic!("there is room for {DEPTH}"),
        }
    }
    let end = Instant::now() + LIMIT;
    while done.len() < count {
        assert!(Instant::now() < end, "{} of {count} answered in {LIMIT:?}", done.len());
        channel.poll(done);
        if done.len() < count {
            channel.park();
        }
    }
    for completion in done.iter() {
        completion.result.expect("served");
    }
    free.append(done);
}

/// What this thread allocates for [`ROUNDS`] rounds, once all is warm.
fn allocations(device: Arc<dyn BlockDevice>) -> u64 {
    let mut channel = device.channel();
    let mut free: Vec<Completion> = (0..DEPTH)
        .map(|index| {
            let data = vec![Buffer::zeroed(4096)];
            Request::with_data(Op::Read, Sector(0), data, index).complete(Ok(()))
        })
        .collect();
    let mut done = Vec::with_capacity(2 * DEPTH as usize);
    for at in 0..ROUNDS {
        round(&mut *channel, &mut free, &mut done, at);
    }
    let counted = allocation_counter::measure(|| {
        for at in 0..ROUNDS {
            round(&mut *channel, &mut free, &mut done, at);
        }
    });
    counted.count_total
}

fn engine(medium: Arc<dyn Medium>) -> Arc<dyn BlockDevice> {
    let unit = Unit::start(&UnitOptions::default()).expect("a thread");
    Engine::open(medium, Some(unit), &Options::default()).expect("open")
}

#[test]
fn the_counter_counts() {
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(vec![1u8; 100])));
    assert_eq!(counted.count_total, 1);
}

#[test]
fn a_request_allocates_nothing() {
    let ram = engine(Arc::new(RamDevice::new(SECTORS)));
    assert_eq!(allocations(ram.clone()), 0, "an engine on memory");
    assert_eq!(allocations(Freezable::new(ram)), 0, "one that can be frozen");
    let dir = tempfile::tempdir().expect("dir");
    for way in [Way::Ring, Way::Calls] {
        let path = dir.path().join(format!("{way:?}"));
        let files = Draft::new(&path, SECTORS * 512)
            .and_then(Draft::durable)
            .and_then(DurableDraft::publish)
            .expect("file");
        let file = Freezable::new(engine(FileDevice::open(files, way).expect("device")));
        assert_eq!(allocations(file), 0, "a file by {way:?}");
    }
}
