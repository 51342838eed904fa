//! coreutils and friends: the same output and exit status as on tmpfs, command by command.
//!
//! The scripts are `tests/scripts/coreutils/*.sh`, each run after `tests/scripts/tree.sh`. They
//! print nothing that two kernel file systems may disagree on: no inode numbers, no sizes of
//! directories, no order of an unsorted listing, no time that was not set.

use std::fs;

use polylane_tests::oracle::same_as_tmpfs;
use polylane_tests::{LANES, Lane, Script, chosen, lacks, scripts, unavailable};

#[test]
fn coreutils_print_what_they_print_on_tmpfs() {
    let test = "coreutils_print_what_they_print_on_tmpfs";
    let needed = ["rsync", "bzip2", "busybox", "setfattr", "flock", "setpriv", "awk", "xz"];
    if unavailable(test) || lacks(test, &needed) {
        return;
    }
    let mut names = Vec::new();
    for entry in fs::read_dir(scripts().join("coreutils")).expect("scripts") {
        names.push(entry.expect("an entry").file_name().into_string().expect("a UTF-8 name"));
    }
    names.sort();
    let tree = Script::file("tree.sh");
    let script = |name: String| {
        let commands = Script::file(&format!("coreutils/{name}"));
        let text = format!("exec 2>&1\n{}set +e\n{}", tree.text(), commands.text());
        (name, Script::new(text))
    };
    let cases: Vec<(String, Script)> = names.into_iter().map(script).collect();
    same_as_tmpfs(&cases, &LANES);
}

/// Those of a `--dir` lane that root runs are refused (`confinement.rs`: `make-device`).
#[test]
fn device_nodes() {
    if unavailable("device_nodes") {
        return;
    }
    let script = Script::new(format!("exec 2>&1\n{}", Script::file("devices.sh").text()));
    let lanes = [Lane::Fuse, Lane::Preload, Lane::FuseVolume, Lane::PreloadVolume];
    same_as_tmpfs(&[("devices.sh".to_owned(), script)], &lanes);
}

#[test]
fn access_control_lists() {
    let test = "access_control_lists";
    if unavailable(test) || lacks(test, &["setfacl", "getfacl", "setpriv", "tar"]) {
        return;
    }
    let (tree, commands) = (Script::file("tree.sh"), Script::file("acl.sh"));
    let script = Script::new(format!("exec 2>&1\n{}set +e\n{}", tree.text(), commands.text()));
    let lanes = [Lane::Fuse, Lane::Preload, Lane::FuseVolume, Lane::PreloadVolume];
    same_as_tmpfs(&[("acl.sh".to_owned(), script)], &lanes);
}

/// Beside what ext4 answers, not tmpfs: that has user attributes from Linux 6.6 on only.
#[test]
fn extended_attributes_of_users() {
    let test = "extended_attributes_of_users";
    if unavailable(test) || lacks(test, &["setfattr", "getfattr"]) {
        return;
    }
    let (tree, commands) = (Script::file("tree.sh"), Script::file("xattr.sh"));
    let script = Script::new(format!("exec 2>&1\n{}set +e\n{}", tree.text(), commands.text()));
    let expected = Script::file("xattr.expected");
    for lane in chosen(&LANES) {
        assert_eq!(script.run(lane).stdout, expected.text(), "{lane:?}");
    }
}
