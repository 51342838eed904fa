//! Calls in flight are done once over a kill, an upgrade and a hang of the service.

use std::time::{Duration, Instant};

use polylane_tests::pool::{Run, Running, no_library, signal_to};
use polylane_tests::{lacks, unavailable};

use super::{Limit, below, empty_lower, kill_service, make_private, upgrade};

/// Works for `sys.argv[2]` seconds in a directory of its own; every call has one right result, and
/// any other ends it with a trace. One open file and one that appends are kept all the time, and a
/// lock of either kind, which are looked at, and given up, in the end.
const EXACT: &str = r#"
import fcntl, os, sys, time
d = "/lane/w" + sys.argv[1]
os.mkdir(d)
log = os.open(d + "/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
held = os.open(d + "/held", os.O_RDWR | os.O_CREAT)
os.write(held, b"held")
fcntl.lockf(held, fcntl.LOCK_EX)
fcntl.flock(held, fcntl.LOCK_EX)
end, n = time.time() + float(sys.argv[2]), 0
while time.time() < end:
    p = d + "/a%d" % n
    os.mkdir(p)
    os.rename(p, p + "b")
    p += "b"
    fd = os.open(p + "/f", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.write(fd, b"x")
    os.close(fd)
    os.link(p + "/f", p + "/g")
    os.unlink(p + "/f")
    os.symlink("q", p + "/s")
    os.rename(p + "/g", p + "/h")
    os.unlink(p + "/h")
    os.unlink(p + "/s")
    os.rmdir(p)
    os.write(log, b"%08d\n" % n)
    assert os.pread(held, 4, 0) == b"held"
    n += 1
want = b"".join(b"%08d\n" % i for i in range(n))
got = open(d + "/log", "rb").read()
assert got == want, (len(got), len(want))
assert sorted(os.listdir(d)) == ["held", "log"], os.listdir(d)
def refused(take):
    child = os.fork()
    if child == 0:
        try:
            take(os.open(d + "/held", os.O_RDWR))
        except BlockingIOError:
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0
exclusive = fcntl.LOCK_EX | fcntl.LOCK_NB
assert refused(lambda fd: fcntl.lockf(fd, exclusive)), "the lock is gone"
assert refused(lambda fd: fcntl.flock(fd, exclusive)), "the flock is gone"
fcntl.flock(held, fcntl.LOCK_UN)
assert not refused(lambda fd: fcntl.flock(fd, exclusive)), "the flock stays"
other = os.open(d + "/held", os.O_RDONLY)
os.close(other)
assert not refused(lambda fd: fcntl.lockf(fd, exclusive)), "the lock outlives a close"
os.write(1, b"exact\n")  # in one call: two of these run, and share the pipe
"#;

/// Two that work exactly, while something happens to the service.
fn exact(options: &str, source: &std::path::Path, seconds: u32) -> Running {
    let python = format!("/usr/bin/python3 -c '{EXACT}' $i {seconds}");
    let script = format!("for i in 1 2; do {python} & done; echo up; wait");
    Run::new(options).arg(source).script(&script).start()
}

#[test]
fn operations_in_flight_when_a_service_is_killed_are_done_once() {
    let name = "operations_in_flight_when_a_service_is_killed_are_done_once";
    if unavailable(name) || no_library(name) || lacks(name, &["python3"]) {
        return;
    }
    let lower = empty_lower();
    for options in ["--no-preload --dir", "--dir", &format!("{} --dir", below(&lower))] {
        let dir = tempfile::tempdir().expect("tempdir");
        make_private(dir.path());
        let mut run = exact(options, dir.path(), 6);
        let _limit = Limit::on(&run, 60);
        assert_eq!(run.line(), "up");
        for round in 0..5 {
            std::thread::sleep(Duration::from_millis(600 + 37 * round));
            kill_service(&run);
        }
        assert_eq!([run.line(), run.line()], ["exact", "exact"], "{options}");
        assert_eq!(run.end().code(), Some(0));
    }
}

#[test]
fn a_service_is_upgraded_and_no_program_notices() {
    let name = "a_service_is_upgraded_and_no_program_notices";
    if unavailable(name) || no_library(name) || lacks(name, &["python3"]) {
        return;
    }
    let place = tempfile::tempdir().expect("tempdir");
    let (volume, over) = (place.path().join("volume"), place.path().join("over"));
    let lower = empty_lower();
    for (options, source) in [
        ("--no-preload --dir", place.path()),
        ("--dir", place.path()),
        ("--size 1G --volume", &volume),
        (&format!("{} --size 1G --volume", below(&lower)), &over),
    ] {
        for old in ["w1", "w2"] {
            let _ = std::fs::remove_dir_all(place.path().join(old));
        }
        let mut run = exact(options, source, 6);
        let _limit = Limit::on(&run, 60);
        assert_eq!(run.line(), "up");
        for _ in 0..3 {
            std::thread::sleep(Duration::from_secs(1));
            let before = run.service();
            let (done, said) = upgrade(&run.pool);
            assert!(done && said.contains("replaced"), "{options}: {said}");
            assert_ne!(run.service(), before);
        }
        assert_eq!([run.line(), run.line()], ["exact", "exact"], "{options}");
        assert_eq!(run.end().code(), Some(0));
    }
    polylane_tests::volume::assert_clean(&volume);
    polylane_tests::volume::assert_clean(&over);
}

#[test]
fn a_lane_in_memory_and_no_pool_at_all_are_not_upgraded() {
    let name = "a_lane_in_memory_and_no_pool_at_all_are_not_upgraded";
    if unavailable(name) {
        return;
    }
    let mut run = Run::new("--mem --no-preload").script("echo up; sleep 2; echo on").start();
    let _limit = Limit::on(&run, 60);
    assert_eq!(run.line(), "up");
    let (done, said) = upgrade(&run.pool);
    assert!(!done && said.contains("memory") && said.lines().count() == 1, "{said}");
    assert_eq!(run.line(), "on");
    assert_eq!(run.end().code(), Some(0));
    let (done, said) = upgrade("no-such-pool");
    assert!(!done && said.contains("not running"), "{said}");
}

#[test]
fn a_service_that_hangs_is_replaced() {
    let name = "a_service_that_hangs_is_replaced";
    if unavailable(name) || lacks(name, &["python3"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let mut run = exact("--no-preload --dir", dir.path(), 3);
    let _limit = Limit::on(&run, 90);
    assert_eq!(run.line(), "up");
    std::thread::sleep(Duration::from_secs(1));
    let (before, start) = (run.service(), Instant::now());
    signal_to(before, "STOP");
    assert_eq!([run.line(), run.line()], ["exact", "exact"]);
    assert!(start.elapsed() > Duration::from_secs(10), "not at the first suspicion");
    assert_eq!(run.end().code(), Some(0));
}
