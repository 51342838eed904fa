//! Calls that wait for a cluster are counted, those of threads and those to images, so that a
//! supervisor tells a worker that waits from one that hangs.
//!
//! The cluster is `tests/ceph/cluster.sh`'s; `CEPH_CLUSTER` is its folder. Without it the test says
//! so and passes: `make test-ceph` starts one. One test alone: the count is the process's.

mod common;
#[path = "common/stopped.rs"]
mod stopped;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{CTX, cluster, directory, mount, settings};
use polylane_base::Errno;
use polylane_block::Sector;
use polylane_block::wait::Waiter;
use polylane_ceph::{TimedFs, calls_under_way, rbd};
use polylane_sys::buffer::Buffer;
use polylane_testkit::fs_suite::node;
use polylane_vfs::fs::{FileSystem, Kind, RenameMode, Work};
use stopped::{OSDS, Stopped};

const MDS: [&str; 2] = ["mds.a", "mds.b"];

/// Whether that becomes so, and stays so for longer than any call takes that does not wait.
fn stays(is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    let mut since = None;
    loop {
        match (is_so(), since) {
            (true, Some(begun)) if Instant::now() > begun + Duration::from_millis(500) => return,
            (true, _) => since = since.or(Some(Instant::now())),
            (false, _) => since = None,
        }
        assert!(Instant::now() < end, "{} calls", calls_under_way());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_call_that_waits_for_the_cluster_is_under_way_and_no_other() {
    let Some(cluster) = cluster() else { return };
    let fs = mount(settings(&cluster, &directory(&cluster)));
    let dir = fs.root().unwrap().ino;
    let file = fs.create(&CTX, dir, b"f", &node(Kind::File, 0o600)).unwrap().node;
    let image = rbd::Settings {
        user: "admin".to_string(),
        pool: "rbd".to_string(),
        image: format!("under-way-{}", std::process::id()),
        snapshot: None,
        conf: common::cluster::conf(&cluster),
        key: common::cluster::key(&cluster),
        timeout: Duration::from_secs(20),
        session: "under-way".to_string(),
        request_time_max: None,
        holder: "a test".to_string(),
    };
    let device = image.clone().prepare().unwrap().create(4 << 20).unwrap();
    let (fs, waiter) = (&fs, &Waiter::new(device));
    fs.write(&CTX, file.ino, 0, &mut &[1; 4096][..]).unwrap();
    fs.fsync(&CTX, file.ino, false).unwrap();
    stays(|| calls_under_way() == 0);
    std::thread::scope(|scope| {
        let stopped = Stopped::new(&cluster, OSDS);
        fs.write(&CTX, file.ino, 0, &mut &[2; 4096][..]).unwrap();
        scope.spawn(|| fs.fsync(&CTX, file.ino, false).unwrap());
        stays(|| calls_under_way() == 1);
        scope.spawn(|| waiter.write(Sector(0), Buffer::copy_of(&[3; 4096]), true).unwrap());
        stays(|| calls_under_way() == 2);
        drop(stopped);
    });
    stays(|| calls_under_way() == 0);
    others_are_served_beside_an_overdue_call(&cluster);
    what_is_found_or_made_late_is_let_go_of(&cluster);
}

/// Who serves programs is told that calls wait, also before one of them has ended.
fn others_are_served_beside_an_overdue_call(cluster: &Path) {
    let fs = mount(settings(cluster, &directory(cluster)));
    let fs = TimedFs::new(fs, Duration::from_secs(2));
    let dir = fs.root().unwrap().ino;
    let file = fs.create(&CTX, dir, b"f", &node(Kind::File, 0o600)).unwrap().node;
    stays(|| !fs.is_slow(Work::Look));
    fs.write(&CTX, file.ino, 0, &mut &[1; 4096][..]).unwrap();
    let stopped = Stopped::new(cluster, OSDS);
    assert_eq!(fs.fsync(&CTX, file.ino, false), Err(Errno::EIO));
    assert!(fs.is_slow(Work::Look) && calls_under_way() == 1);
    drop(stopped);
    stays(|| !fs.is_slow(Work::Look) && calls_under_way() == 0);
    fs.fsync(&CTX, file.ino, false).unwrap();
}

/// The thread that asked has gone: nothing of it stays held for the life of the lane.
fn what_is_found_or_made_late_is_let_go_of(cluster: &Path) {
    let root = directory(cluster);
    let other = mount(settings(cluster, &root));
    let dir = other.root().unwrap().ino;
    for name in ["a", "b", "c"] {
        let made = other.create(&CTX, dir, name.as_bytes(), &node(Kind::Dir, 0o700)).unwrap();
        other.create(&CTX, made.node.ino, b"old", &node(Kind::File, 0o600)).unwrap();
    }
    let client = settings(cluster, &root).prepare().unwrap().mount().unwrap();
    let watch = client.watch();
    let fs = TimedFs::new(client.files(root.as_bytes()).unwrap(), Duration::from_secs(2));
    let dirs = ["a", "b", "c"].map(|name| fs.lookup(&CTX, dir, name.as_bytes()).unwrap().ino);
    stays(|| watch.held().unwrap().1 == 0);
    let before = watch.held().unwrap();
    let stopped = Stopped::new(cluster, MDS);
    std::thread::scope(|scope| {
        let late = [
            scope.spawn(|| fs.lookup(&CTX, dirs[0], b"old").map(drop)),
            scope.spawn(|| fs.create(&CTX, dirs[1], b"new", &node(Kind::File, 0o600)).map(drop)),
            scope.spawn(|| {
                let mode = RenameMode::Replace;
                fs.rename(&CTX, dirs[2], b"old", dirs[2], b"new", mode).map(drop)
            }),
        ];
        for call in late {
            assert_eq!(call.join().unwrap(), Err(Errno::EIO));
        }
    });
    drop(stopped);
    stays(|| calls_under_way() == 0);
    assert_eq!(watch.held().unwrap(), before);
    fs.lookup(&CTX, dirs[1], b"new").expect("it was made");
}
