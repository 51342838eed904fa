//! fsx: random operations on one file, each read checked against what was written.

use polylane_testkit::effort::number;
use polylane_tests::{Lane, Script, lacks, scripts, tools, unavailable};

/// One process does no more: fsx keeps all that it did, and grows slow.
const ONCE: u32 = 400_000;

fn exercise(test: &str, lane: Lane, operations: u32, seed: u32) {
    if unavailable(test) || lacks(test, &["fsx"]) {
        return;
    }
    let asked = number("POLYLANE_FSX_OPERATIONS", operations.into());
    let operations = u32::try_from(asked).expect("a number of operations");
    for first in (0..operations).step_by(ONCE as usize) {
        let count = ONCE.min(operations - first);
        // Another seed for each process.
        let seed = seed + first / ONCE * 100;
        let text = format!("$FSX -q -f $SCRIPTS/fsx.toml -N {count} -S {seed} -P . file");
        let script = Script::new(text).env("FSX", tools().join("fsx")).env("SCRIPTS", scripts());
        script.limit(600 + u64::from(count / 200)).succeeds(lane);
        println!("fsx: {test}: at {} of {operations}, seed {seed} done", first + count);
    }
}

#[test]
fn fsx_through_fuse() {
    exercise("fsx_through_fuse", Lane::Fuse, 200_000, 1);
}

#[test]
fn fsx_through_preload() {
    exercise("fsx_through_preload", Lane::Preload, 200_000, 2);
}

#[test]
fn fsx_on_a_host_directory_through_fuse() {
    exercise("fsx_on_a_host_directory_through_fuse", Lane::FuseDir, 50_000, 3);
}

#[test]
fn fsx_on_a_host_directory_through_preload() {
    exercise("fsx_on_a_host_directory_through_preload", Lane::PreloadDir, 50_000, 4);
}

#[test]
fn fsx_on_a_volume_through_fuse() {
    exercise("fsx_on_a_volume_through_fuse", Lane::FuseVolume, 50_000, 5);
}

#[test]
fn fsx_over_a_lower_through_fuse() {
    exercise("fsx_over_a_lower_through_fuse", Lane::FuseUnion, 50_000, 7);
}

#[test]
fn fsx_over_a_lower_through_preload() {
    exercise("fsx_over_a_lower_through_preload", Lane::PreloadUnion, 50_000, 8);
}

#[test]
fn fsx_on_a_volume_through_preload() {
    exercise("fsx_on_a_volume_through_preload", Lane::PreloadVolume, 50_000, 6);
}
