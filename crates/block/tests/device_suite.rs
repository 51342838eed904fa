//! The contract of block devices, checked on those that need nothing but memory.

use polylane_block::BlockDevice;
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
