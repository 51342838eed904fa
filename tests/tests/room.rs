//! Blocks and inodes come back when the last name and the last descriptor of a file go, at once, by
//! every way in.

use std::path::Path;
use std::process::Command;

use polylane_tests::pool::Run;
use polylane_tests::volume::assert_clean;
use polylane_tests::{Lane, Script, chosen, lacks, scripts, unavailable};

const PYTHON: &str = "/usr/bin/python3 -B";

/// A lane of which an inode table is what there is least of.
const INODES: &str = "600";

fn cannot(test: &str) -> bool {
    unavailable(test) || lacks(test, &["python3", "mke2fs", "e2fsck", "tar"])
}

/// Asked for before and after each program of a suite.
fn nothing_is_left(test: &str, lane: Lane) {
    if cannot(test) || chosen(&[lane]).is_empty() {
        return;
    }
    let seed = std::process::id();
    let script = Script::new(format!("{PYTHON} $SCRIPTS/room.py {seed}")).limit(120);
    let said = script.env("SCRIPTS", scripts()).succeeds(lane);
    assert_eq!(said, format!("13 programs in the order of {seed}\n"), "{lane:?}");
}

#[test]
fn programs_by_the_library_leave_nothing_in_memory() {
    nothing_is_left("programs_by_the_library_leave_nothing_in_memory", Lane::Preload);
}

#[test]
fn programs_by_the_library_leave_nothing_on_a_volume() {
    nothing_is_left("programs_by_the_library_leave_nothing_on_a_volume", Lane::PreloadVolume);
}

#[test]
fn programs_by_fuse_leave_nothing_in_memory() {
    nothing_is_left("programs_by_fuse_leave_nothing_in_memory", Lane::Fuse);
}

#[test]
fn programs_by_fuse_leave_nothing_on_a_volume() {
    nothing_is_left("programs_by_fuse_leave_nothing_on_a_volume", Lane::FuseVolume);
}

/// What the kernel remembers of files that are gone must not keep a lane full.
fn emptied_lane_has_room(test: &str, options: &str) {
    if cannot(test) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let volume = dir.path().join("volume");
    make_volume(&volume);
    let script = format!("{PYTHON} {}/room.py full", scripts().display());
    for place in ["--mem --memory 160M", "--volume"] {
        let run = Run::new(&format!("{options} {place}"));
        let run = if place == "--volume" { run.arg(&volume) } else { run };
        let output = run.script(&script).output();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{place}: {said} {errors}");
        assert_eq!(said, "No space left on device\n", "{place}");
    }
    assert_clean(&volume);
}

fn make_volume(volume: &Path) {
    let made = std::fs::File::create(volume).and_then(|file| file.set_len(48 << 20));
    made.expect("a file");
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-N", INODES]).arg(volume);
    assert!(mke2fs.status().expect("mke2fs").success());
}

#[test]
fn a_lane_that_was_emptied_by_the_library_has_room() {
    emptied_lane_has_room("a_lane_that_was_emptied_by_the_library_has_room", "");
}

#[test]
fn a_lane_that_was_emptied_by_fuse_has_room() {
    emptied_lane_has_room("a_lane_that_was_emptied_by_fuse_has_room", "--no-preload");
}
