//! Leases on directories: that a process answers its own creations, renames and removals is seen by
//! nobody.
//!
//! The cases are functions of `tests/scripts/leases.py`. They run on tmpfs first: a case that does
//! not hold there is wrong itself. `eager` has leases asked for at once, so that many begin and
//! end.

use polylane_tests::{Lane, Script, chosen, scripts, unavailable};

fn holds(test: &str, case: &str, lanes: &[Lane]) {
    if unavailable(test) {
        return;
    }
    for lane in chosen(lanes) {
        let text = format!("mkdir w; cd w; /usr/bin/python3 -B $SCRIPTS/leases.py {case}");
        let script = Script::new(text).env("SCRIPTS", scripts()).env("POLYLANE_LEASES", "eager");
        assert_eq!(script.succeeds(lane), "holds\n", "{case} on {lane:?}");
    }
}

const BOTH: [Lane; 2] = [Lane::Tmpfs, Lane::Preload];
const ALL: [Lane; 3] = [Lane::Tmpfs, Lane::Preload, Lane::PreloadVolume];

#[test]
fn leases_agree_with_tmpfs() {
    for seed in 1..=2 {
        holds("leases_agree_with_tmpfs", &format!("model {seed}"), &ALL);
    }
}

#[test]
fn leases_agree_with_tmpfs_by_relative_paths() {
    holds("leases_agree_with_tmpfs_by_relative_paths", "model-relative 4", &ALL);
}

#[test]
fn leases_pass_between_processes() {
    holds("leases_pass_between_processes", "fight", &BOTH);
}

#[test]
fn threads_share_leases() {
    holds("threads_share_leases", "threads", &BOTH);
}

#[test]
fn a_killed_holder_leaves_what_it_did() {
    holds("a_killed_holder_leaves_what_it_did", "kill", &ALL);
}

#[test]
fn data_of_new_files_is_there() {
    holds("data_of_new_files_is_there", "data 7", &ALL);
}

#[test]
fn times_under_leases_are_those_of_the_calls() {
    holds("times_under_leases_are_those_of_the_calls", "times", &ALL);
}

#[test]
fn files_of_others_are_removed_at_once() {
    for seed in 1..=2 {
        holds("files_of_others_are_removed_at_once", &format!("removed {seed}"), &ALL);
    }
}
