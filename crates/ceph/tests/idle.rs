//! Handles that are not used are closed, whatever the closing of one of them waits for.
//!
//! The cluster is `tests/ceph/cluster.sh`'s; `CEPH_CLUSTER` is its folder. Without it the test says
//! so and passes: `make test-ceph` starts one. One test alone: the calls are the process's.

mod common;
#[path = "common/stopped.rs"]
mod stopped;

use std::time::{Duration, Instant};

use common::{CTX, cluster, directory, settings};
use polylane_ceph::calls_under_way;
use polylane_testkit::fs_suite::node;
use polylane_vfs::fs::{FileSystem, Kind};
use stopped::{OSDS, Stopped};

/// Longer than a handle stays open that wrote and was not synced.
const LONG: Duration = Duration::from_secs(60);

/// Until that is so.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_sync_that_waits_keeps_no_other_handle_open() {
    let Some(cluster) = cluster() else { return };
    let root = directory(&cluster);
    let client = settings(&cluster, &root).prepare().unwrap().mount().unwrap();
    let (fs, watch) = (client.files(root.as_bytes()).unwrap(), client.watch());
    let dir = fs.root().unwrap().ino;
    let make = |name: &[u8]| fs.create(&CTX, dir, name, &node(Kind::File, 0o600)).unwrap().node;
    let (wrote, other) = (make(b"wrote"), make(b"other"));
    let use_other = || fs.read(&CTX, other.ino, 0, 16, &mut [0; 16].as_mut_slice()).unwrap();
    let open = || watch.held().unwrap().1;
    fs.write(&CTX, wrote.ino, 0, &mut &[1; 4096][..]).unwrap();
    let stopped = Stopped::new(&cluster, OSDS);
    until("no handle that wrote is synced to be closed", || {
        use_other();
        calls_under_way() == 1
    });
    until("the other file's handle stays open", || open() == 1);
    until("the sync waits no more", || calls_under_way() == 1);
    assert_eq!(open(), 1, "the handle whose sync waits");
    drop(stopped);
    until("the handle that wrote stays open", || open() == 0);
}
