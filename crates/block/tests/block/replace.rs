//! A device that is exchanged for another with the same content, while it is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use polylane_base::sync::thread;
use polylane_block::device::{Error, SECTOR_BYTES, Sector};
use polylane_block::ram::RamDevice;
use polylane_block::replace::Replaceable;
use polylane_block::wait::Waiter;
use polylane_block::{BlockDevice, Completion, Op, Request, Submitted};
use polylane_sys::buffer::Buffer;
use polylane_testkit::sim::{Image, SimDisk, SimOptions};

const SECTORS: u64 = 256;

fn byte(sector: u64) -> u8 {
    (sector % 251) as u8 + 1
}

fn image() -> Image {
    let mut image = Image::zeroed(SECTORS as usize * SECTOR_BYTES);
    for sector in 0..SECTORS {
        image.write(sector as usize * SECTOR_BYTES, &[byte(sector); SECTOR_BYTES]);
    }
    image
}

/// A disk that answers late and out of order.
fn slow(seed: u64) -> Arc<SimDisk> {
    SimDisk::new(image(), SimOptions { delay: Some(seed), depth: 4, ..SimOptions::default() })
}

fn read(sector: u64) -> Request {
    Request::with_data(Op::Read, Sector(sector), vec![Buffer::zeroed(SECTOR_BYTES)], sector)
}

fn assert_right(completion: &Completion) {
    completion.result.expect("read");
    let sector = completion.tag;
    assert!(completion.data[0].iter().all(|found| *found == byte(sector)), "sector {sector}");
}

/// One channel is idle, one has requests under way: the former device goes with the last of those.
#[test]
fn the_former_device_is_let_go_of_with_its_last_request() {
    let (old, new) = (slow(1), slow(2));
    let device = Replaceable::new(old.clone());
    let (mut busy, idle) = (device.clone().channel(), device.clone().channel());
    let held = Arc::strong_count(&old);
    for sector in 0..3 {
        assert!(matches!(busy.submit(read(sector)), Submitted::Pending));
    }
    device.replace(new.clone()).expect("the same size");
    assert!(Arc::strong_count(&old) < held, "the idle channel has gone over");
    let Submitted::Busy(later) = busy.submit(read(9)) else { panic!("went to the former device") };
    let mut done = Vec::new();
    while done.len() < 3 {
        busy.park();
        busy.poll(&mut done);
    }
    done.iter().for_each(assert_right);
    assert_eq!(Arc::strong_count(&old), 1, "nothing leads to it any more");
    done.clear();
    assert!(!matches!(busy.submit(later), Submitted::Busy(_)));
    while done.is_empty() {
        busy.park();
        busy.poll(&mut done);
    }
    assert_right(&done[0]);
    drop((busy, idle));
}

#[test]
fn what_is_read_while_it_is_replaced_is_the_same() {
    let device = Replaceable::new(slow(0));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..3u64 {
            let (device, stop) = (device.clone(), &stop);
            scope.spawn(move || {
                let mut channel = device.channel();
                let (mut next, mut under_way, mut done) = (reader, 0, Vec::new());
                while !stop.load(Ordering::Relaxed) || under_way > 0 {
                    while under_way < 4 && !stop.load(Ordering::Relaxed) {
                        next = (next * 7 + 3) % SECTORS;
                        match channel.submit(read(next)) {
                            Submitted::Pending => under_way += 1,
                            Submitted::Done(completion) => assert_right(&completion),
                            Submitted::Busy(request) => {
                                drop(request.complete(Err(Error::Stopped)));
                                break;
                            }
                        }
                    }
                    channel.park();
                    channel.poll(&mut done);
                    under_way -= done.len();
                    done.drain(..).for_each(|completion| assert_right(&completion));
                }
            });
        }
        for round in 0..200 {
            let next = slow(round);
            device.replace(next.clone()).expect("the same size");
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn nothing_is_written_to_it_and_another_size_is_refused() {
    let device = Replaceable::new(slow(3));
    assert!(device.read_only());
    let waiter = Waiter::new(device.clone());
    let refused = waiter.write(Sector(0), Buffer::zeroed(SECTOR_BYTES), false).map(drop);
    assert_eq!(refused, Err(Error::ReadOnly));
    let other = Arc::new(RamDevice::new(SECTORS - 1));
    assert_eq!(device.replace(other), Err(Error::OutOfRange));
    assert_eq!(waiter.read(Sector(5), SECTOR_BYTES).expect("read")[0], byte(5));
}
