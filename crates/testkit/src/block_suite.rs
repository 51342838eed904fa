//! What every [`BlockDevice`] must do, by the contract in [`polylane_block::device`].
//!
//! Each check gets a device of its own, at least 1 MiB large and all zeros, and panics when the
//! contract is broken. Durability is not seen from here: `sim` cuts the power.

use std::sync::Arc;

use polylane_base::rng::Rng;
use polylane_block::device::{
    BlockDevice, Channel, Completion, Error, Op, Request, SECTOR_BYTES, Sector, Submitted,
};
use polylane_block::wait::Waiter;
use polylane_sys::buffer::Buffer;

/// Makes a fresh device, all zeros, of at least 2048 sectors.
pub type Make<'a> = &'a dyn Fn() -> Arc<dyn BlockDevice>;

/// A named check.
type Check = (&'static str, fn(Arc<dyn BlockDevice>));

const CHECKS: &[Check] = &[
    ("reads see completed writes", reads_see_completed_writes),
    ("buffers are stored in order", buffers_are_stored_in_order),
    ("zeroes and discards read as zeros", zeroes_and_discards_read_as_zeros),
    ("bad requests are refused", bad_requests_are_refused),
    ("refused requests change nothing", refused_requests_change_nothing),
    ("every request is answered once", every_request_is_answered_once),
    ("a busy channel gives the request back", a_busy_channel_gives_the_request_back),
    ("channels share one truth", channels_share_one_truth),
    ("threads do not disturb each other", threads_do_not_disturb_each_other),
    ("random operations agree with an array", random_operations_agree_with_an_array),
];

/// Runs all checks.
///
/// # Panics
/// The device breaks the contract.
pub fn run(make: Make<'_>) {
    for (name, check) in CHECKS {
        eprintln!("block suite: {name}");
        let device = make();
        assert!(device.sector_count() >= 2048, "the suite needs 1 MiB");
        check(device);
    }
}

fn filled(sectors: usize, byte: u8) -> Buffer {
    Buffer::copy_of(&vec![byte; sectors * SECTOR_BYTES])
}

fn read(waiter: &Waiter, sector: u64, sectors: usize) -> Buffer {
    waiter.read(Sector(sector), sectors * SECTOR_BYTES).expect("in range")
}

fn reads_see_completed_writes(device: Arc<dyn BlockDevice>) {
    let waiter = Waiter::new(device);
    for (sector, sectors, byte) in [(0, 1, 1), (7, 9, 2), (100, 300, 3), (8, 1, 4)] {
        waiter.write(Sector(sector), filled(sectors, byte), byte % 2 == 0).expect("in range");
        assert!(read(&waiter, sector, sectors).iter().all(|b| *b == byte));
    }
    waiter.flush().expect("flushes");
    let bytes = read(&waiter, 6, 4);
    assert_eq!([bytes[0], bytes[512], bytes[1024], bytes[1536]], [0, 2, 4, 2]);
}

fn buffers_are_stored_in_order(device: Arc<dyn BlockDevice>) {
    let waiter = Waiter::new(device);
    let parts = vec![filled(1, 1), filled(8, 2), filled(3, 3)];
    let request = Request::with_data(Op::Write { fua: false }, Sector(5), parts, 77);
    let done = waiter.all([request]).pop().expect("one answer");
    assert_eq!((done.tag, done.result, done.data.len()), (77, Ok(()), 3));
    let parts = vec![Buffer::zeroed(4096), Buffer::zeroed(2048)];
    let request = Request::with_data(Op::Read, Sector(5), parts, 78);
    let done = waiter.all([request]).pop().expect("one answer");
    assert_eq!(done.result, Ok(()));
    let bytes: Vec<u8> = done.data.iter().flat_map(|b| b.iter().copied()).collect();
    let expected = [vec![1; 512], vec![2; 4096], vec![3; 1536]].concat();
    assert!(bytes == expected);
}

fn zeroes_and_discards_read_as_zeros(device: Arc<dyn BlockDevice>) {
    let waiter = Waiter::new(device);
    // Unaligned to any larger unit, inside one, across many, and over what is zero already.
    for (sector, count) in [(3, 1), (9, 6), (120, 1000), (0, 2048)] {
        for op in [0, 1, 2] {
            waiter.write(Sector(0), filled(2048, 0xee), false).expect("in range");
            match op {
                0 => waiter.discard(Sector(sector), count).expect("discards"),
                1 => waiter.write_zeroes(Sector(sector), count, false).expect("zeroes"),
                _ => waiter.write_zeroes(Sector(sector), count, true).expect("zeroes"),
            }
            let bytes = read(&waiter, 0, 2048);
            for (index, bytes) in bytes.chunks(SECTOR_BYTES).enumerate() {
                let inside = (sector..sector + count).contains(&(index as u64));
                let expected = if inside { 0 } else { 0xee };
                assert!(bytes.iter().all(|b| *b == expected), "sector {index}, op {op}");
            }
        }
    }
}

fn bad_requests(sectors: u64) -> Vec<Request> {
    let write =
        |sector, buffers| Request::with_data(Op::Write { fua: false }, Sector(sector), buffers, 0);
    let about = |op, sector, count| Request::without_data(op, Sector(sector), count, 0);
    let zeroes = Op::WriteZeroes { unmap: false, fua: false };
    let mut lying = write(0, vec![filled(1, 1)]);
    lying.count = 2;
    vec![
        write(sectors, vec![filled(1, 1)]),
        write(sectors - 1, vec![filled(2, 1)]),
        write(u64::MAX, vec![filled(1, 1)]),
        write(0, vec![]),
        write(0, vec![Buffer::copy_of(&[1; 100])]),
        write(0, vec![Buffer::copy_of(&[1; 100]), Buffer::copy_of(&[1; 412])]),
        lying,
        Request::with_data(Op::Read, Sector(sectors), vec![filled(1, 0)], 0),
        Request::with_data(Op::Discard, Sector(0), vec![filled(1, 0)], 0),
        about(Op::Discard, 0, 0),
        about(Op::Discard, sectors - 1, 2),
        about(Op::Discard, 2, u64::MAX),
        about(zeroes, sectors, 1),
        about(zeroes, 0, 0),
        about(Op::Flush, 0, 1),
    ]
}

fn bad_requests_are_refused(device: Arc<dyn BlockDevice>) {
    let waiter = Waiter::new(device.clone());
    for (index, request) in bad_requests(device.sector_count()).into_iter().enumerate() {
        let done = waiter.all([request]).pop().expect("one answer");
        assert_eq!(done.result, Err(Error::OutOfRange), "request {index}");
    }
    let last = Sector(device.sector_count() - 1);
    waiter.write(last, filled(1, 5), false).expect("the last sector is there");
}

fn refused_requests_change_nothing(device: Arc<dyn BlockDevice>) {
    let sectors = device.sector_count();
    let waiter = Waiter::new(device);
    waiter.write(Sector(0), filled(64, 0x11), false).expect("in range");
    waiter.write(Sector(sectors - 64), filled(64, 0x11), false).expect("in range");
    for request in bad_requests(sectors) {
        waiter.all([request]);
    }
    for start in [0, sectors - 64] {
        assert!(read(&waiter, start, 64).iter().all(|b| *b == 0x11));
    }
}

/// Submits, polling whenever the channel is full; returns whether it ever was.
fn push(channel: &mut dyn Channel, mut request: Request, done: &mut Vec<Completion>) -> bool {
    let mut was_busy = false;
    loop {
        match channel.submit(request) {
            Submitted::Done(completion) => done.push(completion),
            Submitted::Pending => {}
            Submitted::Busy(same) => {
                was_busy = true;
                request = same;
                channel.park();
                channel.poll(done);
                continue;
            }
        }
        return was_busy;
    }
}

fn drain(channel: &mut dyn Channel, done: &mut Vec<Completion>, count: usize) {
    while done.len() < count {
        channel.park();
        channel.poll(done);
    }
}

fn every_request_is_answered_once(device: Arc<dyn BlockDevice>) {
    let mut channel = device.channel();
    let mut done = Vec::new();
    for tag in 0..500u64 {
        let sector = Sector(tag * 4);
        let request = match tag % 5 {
            0 => Request::without_data(Op::Flush, Sector(0), 0, tag),
            1 => Request::with_data(Op::Read, sector, vec![Buffer::zeroed(512)], tag),
            2 => Request::without_data(Op::Discard, sector, 2, tag),
            _ => {
                Request::with_data(Op::Write { fua: tag % 2 == 0 }, sector, vec![filled(3, 1)], tag)
            }
        };
        push(&mut *channel, request, &mut done);
    }
    drain(&mut *channel, &mut done, 500);
    channel.poll(&mut done);
    assert!(done.iter().all(|completion| completion.result.is_ok()));
    let mut tags: Vec<u64> = done.iter().map(|completion| completion.tag).collect();
    tags.sort_unstable();
    assert!(tags.into_iter().eq(0..500), "each tag once");
}

/// Far more requests than any queue holds: whoever has a limit must say so and keep the request
/// whole.
fn a_busy_channel_gives_the_request_back(device: Arc<dyn BlockDevice>) {
    let mut channel = device.clone().channel();
    let mut done = Vec::new();
    for tag in 0..2048u64 {
        let data = vec![filled(1, tag as u8)];
        let request = Request::with_data(Op::Write { fua: false }, Sector(tag), data, tag);
        push(&mut *channel, request, &mut done);
    }
    drain(&mut *channel, &mut done, 2048);
    let bytes = read(&Waiter::new(device), 0, 2048);
    for (tag, sector) in bytes.chunks(SECTOR_BYTES).enumerate() {
        assert!(sector.iter().all(|b| *b == tag as u8), "sector {tag}");
    }
}

fn channels_share_one_truth(device: Arc<dyn BlockDevice>) {
    let (mut one, mut two) = (device.clone().channel(), device.channel());
    for round in 0..50u8 {
        let (writer, reader) =
            if round % 2 == 0 { (&mut one, &mut two) } else { (&mut two, &mut one) };
        let mut done = Vec::new();
        let write = vec![filled(4, round)];
        let request = Request::with_data(Op::Write { fua: false }, Sector(33), write, 0);
        push(&mut **writer, request, &mut done);
        drain(&mut **writer, &mut done, 1);
        let request = Request::with_data(Op::Read, Sector(33), vec![Buffer::zeroed(2048)], 1);
        let mut seen = Vec::new();
        push(&mut **reader, request, &mut seen);
        drain(&mut **reader, &mut seen, 1);
        assert!(seen[0].data[0].iter().all(|b| *b == round));
    }
}

fn threads_do_not_disturb_each_other(device: Arc<dyn BlockDevice>) {
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = device.clone();
            scope.spawn(move || {
                let waiter = Waiter::new(device);
                for round in 0..60u64 {
                    // Neighbours' sectors alternate: a read-modify-write below would show.
                    let sector = round * 16 + thread;
                    let byte = (thread * 60 + round) as u8;
                    waiter.write(Sector(sector), filled(1, byte), false).expect("in range");
                }
                for round in 0..60u64 {
                    let byte = (thread * 60 + round) as u8;
                    assert!(read(&waiter, round * 16 + thread, 1).iter().all(|b| *b == byte));
                }
            });
        }
    });
}

fn random_operations_agree_with_an_array(device: Arc<dyn BlockDevice>) {
    let waiter = Waiter::new(device);
    let mut rng = Rng::new(42);
    let mut array = vec![0u8; 2048 * SECTOR_BYTES];
    for step in 0..1500u32 {
        let sector = rng.below(2048);
        let count = 1 + rng.below(if step % 3 == 0 { 200 } else { 8 }.min(2048 - sector));
        let range = sector as usize * 512..(sector + count) as usize * 512;
        match rng.below(10) {
            0 => waiter.flush().expect("flushes"),
            1 => {
                waiter.discard(Sector(sector), count).expect("discards");
                array[range].fill(0);
            }
            2 => {
                waiter.write_zeroes(Sector(sector), count, step % 2 == 0).expect("zeroes");
                array[range].fill(0);
            }
            3..=6 => {
                let bytes: Vec<u8> = range.clone().map(|_| rng.next_u64() as u8).collect();
                let fua = step % 4 == 0;
                waiter.write(Sector(sector), Buffer::copy_of(&bytes), fua).expect("in range");
                array[range].copy_from_slice(&bytes);
            }
            _ => {
                let bytes = read(&waiter, sector, count as usize);
                assert!(bytes[..] == array[range], "step {step}: sectors {sector}+{count}");
            }
        }
    }
    assert!(read(&waiter, 0, 2048)[..] == array[..]);
}
