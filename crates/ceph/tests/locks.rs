//! Locks of programs on two clients of a cluster, as on two hosts.
//!
//! The cluster is `tests/ceph/cluster.sh`'s; `CEPH_CLUSTER` is its folder. Without it the tests
//! say so and pass: `make test-ceph` starts one.

mod common;

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use common::{CTX, cluster, directory, mount, settings};
use polylane_base::{Errno, Result, SystemClock};
use polylane_testkit::fs_suite::node;
use polylane_vfs::fs::{FileSystem, Kind};
use polylane_vfs::{LockFamily, LockKind, LockOutcome, LockOwner, LockRequest, Node, Options, Vfs};

const WAIT_MAX: Duration = Duration::from_secs(10);

/// A host, with a file open.
struct Host {
    vfs: Arc<Vfs>,
    file: Node,
}

fn options() -> Options {
    Options {
        clock: Arc::new(SystemClock),
        cache_bytes_limit: 1 << 20,
        dirty_bytes_limit: 1 << 20,
        flush_interval: Duration::from_secs(1),
        mount_path: b"/lane".to_vec(),
        covered: Vec::new(),
    }
}

/// Two hosts with one file of a directory of their own.
fn hosts(cluster: &std::path::Path) -> [Host; 2] {
    let root = directory(cluster);
    let host = |number: u64| {
        let fs = mount(settings(cluster, &root));
        let dir = fs.root().unwrap().ino;
        if number == 0 {
            fs.create(&CTX, dir, b"f", &node(Kind::File, 0o644)).unwrap();
        }
        let ino = fs.lookup(&CTX, dir, b"f").unwrap().ino;
        let vfs = Vfs::new(Arc::new(fs), options()).unwrap();
        let file = vfs.revive(ino, 0).unwrap();
        Host { vfs, file }
    };
    [host(0), host(1)]
}

fn lock(owner: u128, family: LockFamily, kind: LockKind, start: u64, end: u64) -> LockRequest {
    let (owner, pid, user) = (LockOwner(owner), owner as u32, None);
    LockRequest { owner, family, kind, start, end, pid, user }
}

impl Host {
    fn set(&self, request: LockRequest) -> Result<()> {
        match self.vfs.set_lock(&self.file, request, None) {
            LockOutcome::Done(result) => result,
            LockOutcome::Parked(_) => panic!("parked without a waiter"),
        }
    }

    /// A request that waits; how it ends.
    fn wait(&self, request: LockRequest) -> (Receiver<Result<()>>, LockOutcome) {
        let (send, told) = mpsc::channel();
        let waiter = Box::new(move |result| send.send(result).unwrap());
        let outcome = self.vfs.set_lock(&self.file, request, Some(waiter));
        (told, outcome)
    }
}

#[test]
fn a_lock_of_one_host_is_in_the_way_on_another() {
    use LockFamily::{Flock, Ofd, Posix};
    use LockKind::{Read, Unlock, Write};
    let Some(cluster) = cluster() else { return };
    let [one, other] = hosts(&cluster);
    for family in [Posix, Ofd, Flock] {
        one.set(lock(1, family, Write, 0, 9)).unwrap();
        let wanted = lock(2, family, Read, 5, 5);
        assert_eq!(other.set(wanted), Err(Errno::EAGAIN), "{family:?}");
        assert_eq!(one.set(wanted), Err(Errno::EAGAIN), "{family:?}, on the same host");
        assert!(other.vfs.get_lock(&other.file, &wanted).is_some(), "{family:?}");
        one.set(lock(1, family, Read, 0, 9)).unwrap();
        other.set(wanted).unwrap();
        assert_eq!(one.set(lock(1, family, Write, 0, 9)), Err(Errno::EAGAIN), "{family:?}");
        other.set(LockRequest { kind: Unlock, ..wanted }).unwrap();
        one.set(lock(1, family, Unlock, 0, u64::MAX)).unwrap();
        assert_eq!(other.vfs.get_lock(&other.file, &wanted), None, "{family:?}");
    }
    // Each sees its own kind alone.
    one.set(lock(1, Flock, Write, 0, 0)).unwrap();
    other.set(lock(2, Posix, Write, 0, u64::MAX)).unwrap();
    let found = one.vfs.get_lock(&one.file, &lock(1, Posix, Read, 7, 7)).unwrap();
    assert_eq!((found.kind, found.start, found.end), (Write, 0, u64::MAX));
}

#[test]
fn who_waits_is_told_when_the_other_host_lets_go() {
    use LockFamily::{Flock, Posix};
    use LockKind::Write;
    let Some(cluster) = cluster() else { return };
    let [one, other] = hosts(&cluster);
    for family in [Posix, Flock] {
        one.set(lock(1, family, Write, 0, 9)).unwrap();
        let (told, outcome) = other.wait(lock(2, family, Write, 0, 9));
        assert!(matches!(outcome, LockOutcome::Parked(_)), "{family:?}");
        assert!(told.recv_timeout(Duration::from_millis(300)).is_err(), "{family:?}: it waits");
        // As by the end of a process, or of an open file.
        one.vfs.drop_owner(LockOwner(1));
        assert_eq!(told.recv_timeout(WAIT_MAX), Ok(Ok(())), "{family:?}");
        assert_eq!(one.set(lock(1, family, Write, 3, 3)), Err(Errno::EAGAIN), "{family:?}");
        other.vfs.drop_locks(&other.file, LockOwner(2));
        one.set(lock(1, family, Write, 3, 3)).unwrap();
        one.vfs.drop_locks(&one.file, LockOwner(1));
    }
}

#[test]
fn a_wait_is_cancelled_and_ends_with_its_owner() {
    use LockFamily::Posix;
    use LockKind::Write;
    let Some(cluster) = cluster() else { return };
    let [one, other] = hosts(&cluster);
    one.set(lock(1, Posix, Write, 0, 9)).unwrap();
    let (cancelled, outcome) = other.wait(lock(2, Posix, Write, 0, 9));
    let LockOutcome::Parked(ticket) = outcome else { panic!("{outcome:?}") };
    assert!(other.vfs.cancel_lock(ticket) && !other.vfs.cancel_lock(ticket));
    let (told, _) = other.wait(lock(3, Posix, Write, 0, 9));
    other.vfs.drop_owner(LockOwner(3));
    assert_eq!(told.recv_timeout(WAIT_MAX), Ok(Err(Errno::EINTR)));
    one.vfs.drop_owner(LockOwner(1));
    assert!(cancelled.recv_timeout(Duration::from_millis(300)).is_err(), "nobody is told");
    one.set(lock(4, Posix, Write, 0, 9)).unwrap();
}
