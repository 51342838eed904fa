//! One truth per byte: a process with the preload library and one without, on the same files.
//!
//! The cases are functions of `tests/scripts/coherence.py`. They run on tmpfs first: a case that
//! does not hold there is wrong itself.

use polylane_tests::{Lane, Script, chosen, scripts, unavailable};

const PLACES: [Lane; 5] =
    [Lane::Tmpfs, Lane::Preload, Lane::PreloadDir, Lane::PreloadUnion, Lane::Fuse];

fn holds(test: &str, case: &str) {
    if unavailable(test) {
        return;
    }
    let script =
        Script::new(format!("mkdir -p w; cd w; /usr/bin/python3 -B $SCRIPTS/coherence.py {case}"));
    let script = script.env("SCRIPTS", scripts());
    for lane in chosen(&PLACES) {
        assert_eq!(script.succeeds(lane), "holds\n", "{case} on {lane:?}");
    }
}

#[test]
fn preload_writer_fuse_reader() {
    holds("preload_writer_fuse_reader", "preload-writer");
}

#[test]
fn fuse_writer_preload_reader() {
    holds("fuse_writer_preload_reader", "fuse-writer");
}

#[test]
fn shared_mapping_in_the_preloaded_process() {
    holds("shared_mapping_in_the_preloaded_process", "mapping-in-preload");
}

#[test]
fn shared_mapping_in_the_fuse_process() {
    holds("shared_mapping_in_the_fuse_process", "mapping-in-fuse");
}

#[test]
fn shared_mappings_in_both() {
    holds("shared_mappings_in_both", "two-mappings");
}

#[test]
fn names_and_attributes_are_seen_at_once() {
    holds("names_and_attributes_are_seen_at_once", "names");
}

#[test]
fn unlinked_open_files_live_on_both_sides() {
    holds("unlinked_open_files_live_on_both_sides", "unlinked");
}

#[test]
fn locks_exclude_across_both_ways_in() {
    holds("locks_exclude_across_both_ways_in", "locks");
}

#[test]
fn appends_from_both_sides_lose_nothing() {
    holds("appends_from_both_sides_lose_nothing", "appends");
}

#[test]
fn random_operations_from_both_sides() {
    let test = "random_operations_from_both_sides";
    if unavailable(test) {
        return;
    }
    for seed in ["1", "2", "3"] {
        let text = "mkdir -p w; cd w; /usr/bin/python3 -B $SCRIPTS/mixed.py $SEED 10000";
        let script = Script::new(text).limit(200);
        let script = script.env("SCRIPTS", scripts()).env("SEED", seed);
        for lane in chosen(&PLACES) {
            assert_eq!(script.succeeds(lane), "10000 operations\n", "seed {seed} on {lane:?}");
        }
    }
}

#[test]
fn files_that_are_only_read_are_never_old() {
    let test = "files_that_are_only_read_are_never_old";
    if unavailable(test) {
        return;
    }
    const WITH_VOLUMES: [Lane; 5] =
        [Lane::Tmpfs, Lane::Preload, Lane::PreloadVolume, Lane::PreloadDir, Lane::Fuse];
    for seed in ["1", "2"] {
        let script = Script::new("/usr/bin/python3 -B $SCRIPTS/kept.py $SEED 4000").limit(200);
        let script = script.env("SCRIPTS", scripts()).env("SEED", seed);
        for lane in chosen(&WITH_VOLUMES) {
            assert_eq!(script.succeeds(lane), "4000 operations\n", "seed {seed} on {lane:?}");
        }
    }
}

#[test]
fn a_directory_made_again_can_be_worked_in() {
    holds("a_directory_made_again_can_be_worked_in", "places");
}
