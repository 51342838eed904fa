//! A union does what every file system must, whatever its upper is.

use polylane_base::{Errno, TestClock};
use polylane_testkit::acl::{self, NOBODY};
use polylane_testkit::fault::Faulty;
use polylane_testkit::fs_suite::{self, Can, node};
use polylane_testkit::probe;
use polylane_union::{Layer, Union, UpperOn};
use polylane_vfs::OpCtx;
use polylane_vfs::cached::{Cached, Mode, Settings};
use polylane_vfs::fs::{AccessTimes, Acl, AclKind, FileSystem, Kind, SetAttr, SetTime};
use polylane_vfs::hostdir::HostDir;
use polylane_vfs::memfs::MemFs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

fn memfs() -> Arc<dyn FileSystem> {
    Arc::new(MemFs::new(1 << 40, 1 << 20, Arc::new(TestClock::default())))
}

fn union(lower: Arc<dyn FileSystem>, upper: Arc<dyn FileSystem>) -> Arc<dyn FileSystem> {
    let lowers = vec![Layer::new(lower).expect("a root")];
    Arc::new(Union::open(lowers, Some(UpperOn::new(upper))).expect("opens"))
}

/// As overlayfs, it makes no whiteouts for users.
const CAN: Can = Can { whiteout: false, ..Can::ALL };

#[test]
fn a_union_in_memory_conforms() {
    fs_suite::run(CAN, &mut || union(memfs(), memfs()));
}

#[test]
fn a_union_under_a_union_conforms() {
    fs_suite::run(CAN, &mut || union(union(memfs(), memfs()), memfs()));
}

#[test]
fn a_union_on_a_union_conforms() {
    fs_suite::run(CAN, &mut || union(memfs(), union(memfs(), memfs())));
}

fn cached(below: Arc<dyn FileSystem>, mode: Mode, clock: &Arc<TestClock>) -> Arc<dyn FileSystem> {
    let settings = Settings {
        mode,
        bytes_limit: 64 * 4096,
        dirty_bytes_limit: 32 * 4096,
        flush_interval: Duration::from_millis(20),
        clock: clock.clone(),
    };
    Arc::new(Cached::new(below, settings).expect("a root"))
}

/// A cache over a union, and a union over caches.
#[test]
fn a_union_conforms_with_caches_as_without() {
    let clock = Arc::new(TestClock::default());
    let memfs = || Arc::new(MemFs::new(1 << 40, 1 << 20, clock.clone())) as Arc<dyn FileSystem>;
    for mode in [Mode::WriteBack, Mode::WriteThrough] {
        fs_suite::run(CAN, &mut || cached(union(memfs(), memfs()), mode, &clock));
        fs_suite::run(CAN, &mut || {
            let upper = cached(memfs(), Mode::WriteThrough, &clock);
            union(cached(memfs(), mode, &clock), upper)
        });
    }
}

/// As on a Ceph file system.
#[test]
fn a_union_on_what_changes_one_name_at_a_time_conforms() {
    let can =
        Can { unnamed: false, fallocate: false, exact_holes: false, rename_flags: false, ..CAN };
    fs_suite::run(can, &mut || union(memfs(), Faulty::plain(memfs())));
}

#[test]
fn a_union_on_a_host_directory_conforms() {
    let dir = tempfile::tempdir().expect("a directory");
    let can = Can { whiteout: false, ..probe::host(dir.path()) };
    let mut count = 0;
    let mut make = || {
        count += 1;
        let path = dir.path().join(count.to_string());
        std::fs::create_dir(&path).expect("made");
        let file = std::fs::File::open(path).expect("opens");
        let host = HostDir::with_descriptors(file.into(), 32).expect("a directory");
        union(memfs(), Arc::new(host))
    };
    fs_suite::run(can, &mut make);
}

/// A host directory keeps no access lists, so its files have none: that is no error.
#[test]
fn files_of_a_lower_without_access_lists_have_none() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("f"), "").expect("written");
    let file = std::fs::File::open(dir.path()).expect("opens");
    let host = HostDir::with_descriptors(file.into(), 32).expect("a directory");
    let fs = union(Arc::new(host), memfs());
    assert!(fs.character().acls);
    let found = fs.lookup(&OpCtx::service(), fs.root().expect("a root").ino, b"f").expect("there");
    assert_eq!(
        fs.getxattr(&OpCtx::service(), found.ino, b"system.posix_acl_access"),
        Err(Errno::ENODATA)
    );
}

/// An upper that is a directory of the host keeps no access lists. The mode of a lower's file has
/// the mask in the group's place, and grants nobody more than its list did, also once it is copied
/// up. The host moves access times there.
#[test]
fn without_access_lists_a_lower_s_grant_no_more_by_the_mode() {
    let ctx = &OpCtx::service();
    let lower = memfs();
    let root = lower.root().expect("a root").ino;
    let made = lower.create(ctx, root, b"f", &node(Kind::File, 0o664)).expect("made").node.ino;
    // u::rw-, u:1000:rw-, g::r--, m::rw-, o::r--
    let list = [(1, 6, NOBODY), (2, 6, 1000), (4, 4, NOBODY), (16, 6, NOBODY), (32, 4, NOBODY)];
    let list = Acl::parse(&acl::value(list)).expect("well-formed");
    lower.set_acl(ctx, made, AclKind::Access, list.as_ref(), None).expect("a list");
    assert_eq!(lower.getattr(ctx, made).expect("there").perm, 0o664);
    let dir = tempfile::tempdir().expect("a directory");
    let file = std::fs::File::open(dir.path()).expect("opens");
    let host = HostDir::with_descriptors(file.into(), 32).expect("a directory");
    let fs = union(lower, Arc::new(host));
    let root = fs.root().expect("a root").ino;
    let found = fs.lookup(ctx, root, b"f").expect("there");
    assert_eq!(found.perm, 0o644, "in the lower");
    let times = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    let copied = fs.setattr(ctx, found.ino, &times).expect("copied up");
    assert_eq!(copied.perm, 0o644, "in the upper");
    let upper = std::fs::metadata(dir.path().join("upper/f")).expect("copied up");
    assert_eq!(upper.mode() & 0o7777, 0o644);
    assert_eq!(fs.character().access_times, AccessTimes::Never, "the VFS moves no access time");
}
