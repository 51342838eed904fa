//! The contract of block devices, checked on those that need nothing but memory.

use polylane_block::BlockDevice;
use polylane_block::file::{FileDevice, Files, Way};
use polylane_block::image;
use polylane_block::ram::RamDevice;
use polylane_testkit::block_suite;
use polylane_testkit::sim::{Image, SimDisk, SimOptions};
use std::sync::Arc;

const SECTORS: u64 = 4096;

#[test]
fn ram() {
    block_suite::run(&|| Arc::new(RamDevice::new(SECTORS)) as Arc<dyn BlockDevice>);
}

fn simulated(options: SimOptions) {
    let blank = Image::zeroed(SECTORS as usize * 512);
    block_suite::run(&|| SimDisk::new(blank.clone(), options.clone()) as Arc<dyn BlockDevice>);
}

#[test]
fn simulated_disk_that_answers_at_once() {
    simulated(SimOptions { record: true, ..SimOptions::default() });
}

#[test]
fn simulated_disk_that_answers_late_and_in_any_order() {
    for seed in 0..4 {
        let depth = if seed % 2 == 0 { 0 } else { 5 };
        simulated(SimOptions { delay: Some(seed), depth, ..SimOptions::default() });
    }
}

/// A device on a fresh sparse file, by rings or by calls, with O_DIRECT where there is any.
fn on_a_file(way: Way, direct: bool) -> Arc<dyn BlockDevice> {
    let path = tempfile::NamedTempFile::new().expect("file").into_temp_path();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("open")
        .set_len(SECTORS * 512)
        .expect("size");
    let Files { io, plain, lock } = image::open(&path).expect("open");
    let io = if direct { io } else { plain.try_clone().expect("dup") };
    FileDevice::open(Files { io, plain, lock }, way).expect("device")
}

#[test]
fn files() {
    for way in [Way::Ring, Way::Calls] {
        for direct in [true, false] {
            block_suite::run(&|| on_a_file(way, direct));
        }
    }
}
