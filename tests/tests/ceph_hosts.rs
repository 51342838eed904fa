//! Clients of several hosts on one directory of a cluster: lanes by both ways in, and ceph-fuse.
//!
//! Each answer is held against a model, and where it differs against what a client reads that
//! begins then, so that it is known who was wrong (`tests/scripts/hosts.py`).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use polylane_tests::ceph::{CephFuse, Cluster};
use polylane_tests::host::{Host, succeeds, text};
use polylane_tests::{lacks, scripts};

/// ceph-fuse's way not to have old bytes: the kernel is told of no change by another host of a file
/// that both write.
const NO_PAGE_CACHE: &str = "--fuse_disable_pagecache=true";

/// A script that prints a file of a directory of the cluster, as a new client reads it.
fn reader(host: &Host, cluster: &Cluster, root: &str) -> PathBuf {
    let (script, at) = (host.path("read"), host.dir("anew"));
    let lines = format!(
        "#!/bin/sh\nexec unshare -m sh -ec 'ceph-fuse -c {} -n client.admin -r {root} \
         {NO_PAGE_CACHE} {at} >/dev/null 2>&1; cat {at}/$0; umount {at}' \"$1\"\n",
        cluster.conf().display(),
        at = at.display()
    );
    fs::write(&script, lines).expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("executable");
    script
}

/// How often each was wrong in so many random steps of two processes of a lane, one by the library
/// and one by FUSE, and two of ceph-fuse: the lane's, and the cluster's, and ceph-fuse's.
fn wrong(
    test: &str,
    (seed, steps): (u32, u32),
    of_lane: &[&str],
    options: &[&str],
) -> Option<[u64; 4]> {
    let cluster = Cluster::for_test(test)?;
    if lacks(test, &["ceph-fuse", "python3"]) {
        return None;
    }
    let root = cluster.directory(test.get(..12)?);
    let host = Host::new();
    let (lane, peer) = (host.dir("lane"), host.dir("peer"));
    let conf = cluster.conf();
    let source = format!("ceph:admin@cephfs:{root}");
    let mount = ["mount", "--ceph-conf", text(&conf), &source, text(&lane)];
    succeeds(&[&mount, of_lane].concat());
    let mounted = CephFuse::new(&cluster, &root, &peer, options);
    let actor = |name: &str, at: &Path| format!("{name}={}", at.display());
    let mut command = Command::new("/usr/bin/python3");
    command.arg("-B").arg(scripts().join("hosts.py"));
    command.args([seed.to_string(), steps.to_string()]).arg(reader(&host, &cluster, &root));
    command.args([actor("library", &lane), actor("fuse", &lane), actor("peer", &peer)]);
    let output = command.output().expect("python3");
    drop(mounted);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    eprint!("{said}");
    succeeds(&["umount", text(&lane)]);
    host.assert_nothing_is_left();
    let counts = said.lines().last()?.rsplit_once("wrong: ")?.1;
    let mut counts = counts.split(", ").map(|one| one.rsplit_once(' ')?.1.parse().ok());
    Some([(); 4].map(|()| counts.next().flatten().expect("four counts")))
}

#[test]
fn hosts_that_work_on_the_same_files_see_what_the_others_did() {
    let test = "hosts_that_work_on_the_same_files_see_what_the_others_did";
    for seed in 1..=3 {
        let Some(counts) = wrong(test, (seed, 1500), &[], &[NO_PAGE_CACHE]) else { return };
        assert_eq!(counts, [0; 4], "seed {seed}: library, fuse, peer, the cluster");
    }
}

/// A cache over the lane's files asks the cluster before each answer whether they are as they were.
#[test]
fn hosts_see_what_the_others_did_through_a_cache_of_files() {
    let test = "hosts_see_what_the_others_did_through_a_cache_of_files";
    let cache = ["--file-cache", "writethrough", "--file-cache-size", "1M"];
    for seed in 5..=7 {
        let Some(counts) = wrong(test, (seed, 1500), &cache, &[NO_PAGE_CACHE]) else { return };
        assert_eq!(counts, [0; 4], "seed {seed}: library, fuse, peer, the cluster");
    }
}

/// Beside a ceph-fuse with its own settings, whose kernel keeps pages that others overwrote, a lane
/// has the truth all the same.
#[test]
fn a_lane_has_no_old_bytes_where_ceph_fuse_has() {
    let test = "a_lane_has_no_old_bytes_where_ceph_fuse_has";
    let Some([library, fuse, peer, cluster]) = wrong(test, (4, 1000), &[], &[]) else { return };
    assert_eq!([library, fuse, cluster], [0; 3], "library, fuse, the cluster");
    eprintln!("ceph-fuse was wrong {peer} times");
}
