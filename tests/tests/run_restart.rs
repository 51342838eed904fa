//! A service that dies is replaced under the running tenant.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use polylane_tests::pool::{Run, Running, no_library, signal_to};
use polylane_tests::{binary, lacks, skip, unavailable};

/// Works on the lane all the time, says when it has begun.
/// Errors are expected while the service is away: files of a former lane in memory are stale.
const LOAD: &str = r#"
cd /
for worker in 1 2 3; do
    ( i=0; while :; do
        i=$((i + 1))
        ( echo $i > /lane/$worker.$((i % 50)) && cat /lane/* && ls -l /lane ) >/dev/null 2>&1
    done ) &
done
sleep 0.5
echo up
"#;

#[test]
fn a_killed_service_is_replaced_under_load() {
    if unavailable("a_killed_service_is_replaced_under_load") {
        return;
    }
    let script = format!(
        "{LOAD}\nsleep 3\n\
         mkdir /lane/again && echo x > /lane/again/file && cat /lane/again/file && \
         ls -d /lane/again"
    );
    let mut run = Run::new("--mem --no-preload").script(&script).start();
    assert_eq!(run.line(), "up");
    for _ in 0..3 {
        let before = run.service();
        signal_to(before, "KILL");
        std::thread::sleep(std::time::Duration::from_millis(400));
        assert_ne!(run.service(), before);
    }
    assert_eq!(run.line(), "x");
    assert_eq!(run.line(), "/lane/again");
    assert_eq!(run.end().code(), Some(0));
}

/// Asked for its counters, a service dies before it answers: the next one does.
#[test]
fn what_a_killed_service_was_asked_the_next_one_answers() {
    if unavailable("what_a_killed_service_was_asked_the_next_one_answers") {
        return;
    }
    let mut run = Run::new("--mem").script("echo up; sleep 60").start();
    assert_eq!(run.line(), "up");
    let service = run.service();
    signal_to(service, "STOP");
    let mut stats = Command::new(binary());
    let stats = stats.args(["stats", "--json", "--pool", &run.pool]).stdout(Stdio::piped());
    let asked = Instant::now();
    let stats = stats.spawn().expect("polylane");
    std::thread::sleep(Duration::from_millis(500));
    signal_to(service, "KILL");
    let output = stats.wait_with_output().expect("stats ends");
    assert!(output.status.success(), "{output:?}");
    assert!(asked.elapsed() < Duration::from_secs(4), "it was told nothing");
    signal_to(run.child.id(), "TERM");
    run.end();
}

#[test]
fn a_preloaded_command_outlives_its_service() {
    let name = "a_preloaded_command_outlives_its_service";
    if unavailable(name) || no_library(name) {
        return;
    }
    let script = "echo up; for i in 1 2 3 4 5 6 7 8 9 10; do echo $i > /lane/f$i; cat /lane/f$i; \
                  sleep 0.1; done";
    let mut run = Run::new("--mem").script(script).start();
    assert_eq!(run.line(), "up");
    signal_to(run.service(), "KILL");
    // A file written to the service that dies may be gone before it is read.
    let lines: Vec<String> =
        std::iter::from_fn(|| Some(run.line()).filter(|l| !l.is_empty())).collect();
    assert!(lines.len() >= 9 && lines.ends_with(&["10".to_string()]), "{lines:?}");
    assert_eq!(run.end().code(), Some(0));
}

/// Makes, writes and renames a file again and again, for as long as it may.
const BUSY: &str = r#"
import os
print("up", flush=True)
while True:
    try:
        with open("/lane/f", "wb", 0) as f:
            f.write(b"x" * 100)
        os.rename("/lane/f", "/lane/g")
    except OSError:
        pass
"#;

/// How often the service was replaced, and how many renames came by the library since.
fn replaced_and_renamed(pool: &str) -> Option<(u64, u64)> {
    let output = Command::new(binary()).args(["stats", "--json", "--pool", pool]).output();
    let said: serde_json::Value = serde_json::from_slice(&output.ok()?.stdout).ok()?;
    let pool = said.get(0).unwrap_or(&said);
    let by_library = &pool["service"]["shared_memory"]["by_operation"];
    Some((pool["service_restarts"].as_u64()?, by_library["rename"].as_u64().unwrap_or(0)))
}

/// A program with the library is back at the next service, by the library, within a second.
#[test]
fn a_preloaded_program_is_back_within_a_second() {
    let name = "a_preloaded_program_is_back_within_a_second";
    if unavailable(name) || no_library(name) || lacks(name, &["mke2fs"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::create_dir(dir.path().join("tree")).expect("made");
    let tree = format!("--dir {}", dir.path().join("tree").display());
    let volume = format!("--size 256M --volume {}", dir.path().join("volume").display());
    for options in [tree, volume] {
        let script = format!("exec /usr/bin/python3 -c '{BUSY}'");
        let mut run = Run::new(&options).script(&script).start();
        assert_eq!(run.line(), "up");
        let mut times = Vec::new();
        for round in 1..=5 {
            std::thread::sleep(Duration::from_millis(700));
            let killed = Instant::now();
            signal_to(run.service(), "KILL");
            let is_back = |(restarts, renames)| restarts == round && renames > 0;
            let back = || replaced_and_renamed(&run.pool).is_some_and(is_back);
            while !back() {
                assert!(killed.elapsed() < Duration::from_secs(20), "it does not come back");
            }
            times.push(killed.elapsed());
        }
        times.sort();
        println!("{options}: back after {times:?}");
        assert!(times[2] < Duration::from_secs(1), "{options}: {times:?}");
        run.signal("TERM");
        run.end();
    }
}

/// A file in constant use, which the library reads and writes without asking the service.
const HOLDER: &str = r#"
import os, time
fd = os.open("/lane/f", os.O_RDWR | os.O_CREAT)
for _ in range(40):
    os.pwrite(fd, b"old!" * 1024, 0)
    assert os.pread(fd, 4, 4092) == b"old!"
print("up", flush=True)
time.sleep(2)
os.system("printf new! > /lane/f")
try:
    print(os.pread(fd, 4, 0).decode())
except OSError:
    print("gone")
try:
    os.pwrite(fd, b"late", 0)
except OSError:
    pass
print(open("/lane/f").read())
"#;

#[test]
fn nobody_reads_what_a_dead_service_showed() {
    let name = "nobody_reads_what_a_dead_service_showed";
    if unavailable(name) || no_library(name) {
        return;
    }
    let script = format!("exec /usr/bin/python3 -c '{HOLDER}'");
    let mut run = Run::new("--mem").env("POLYLANE_VIEWS", "eager").script(&script).start();
    assert_eq!(run.line(), "up");
    signal_to(run.service(), "KILL");
    let held = run.line();
    assert!(held == "gone" || held == "new!", "{held}");
    let kept = run.line();
    assert!(kept == "new!" || kept == "late" && held == "new!", "{kept}");
    assert_eq!(run.end().code(), Some(0));
}

#[test]
fn files_of_a_host_directory_survive_the_service() {
    if unavailable("files_of_a_host_directory_survive_the_service") {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let script = "echo kept > /lane/file && sync /lane/file; echo up; sleep 2; \
                  cat /lane/file; echo more > /lane/second; sync /lane/second";
    let mut run = Run::new("--no-preload --dir").arg(dir.path()).script(script).start();
    assert_eq!(run.line(), "up");
    signal_to(run.service(), "KILL");
    assert_eq!(run.line(), "kept");
    assert_eq!(run.end().code(), Some(0));
    let second = std::fs::read_to_string(dir.path().join("second")).expect("second");
    assert_eq!(second, "more\n");
}

/// A directory has no lock: a run on one begins when the service of a killed run, which may be
/// writing there, has ended.
#[test]
fn a_run_on_a_directory_waits_for_the_service_of_a_killed_one() {
    if unavailable("a_run_on_a_directory_waits_for_the_service_of_a_killed_one") {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let mut killed = Run::new("--dir").arg(dir.path()).script("echo up; sleep 60").start();
    assert_eq!(killed.line(), "up");
    let service = killed.service();
    signal_to(service, "STOP");
    killed.signal("KILL");
    let next = Run::new("--dir").arg(dir.path()).script("touch /lane/begun; echo up");
    let mut next = next.start();
    // It looks again and again.
    let looked = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", next.child.id()));
        let status = status.unwrap_or_default();
        let sleeps = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"));
        sleeps.and_then(|n| n.trim().parse().ok()).unwrap_or(0) > 50
    };
    let begun = dir.path().join("begun");
    let end = Instant::now() + Duration::from_secs(20);
    while !begun.exists() && !looked() {
        assert!(Instant::now() < end, "it neither waits nor begins");
        std::thread::sleep(Duration::from_millis(10));
    }
    let waited = !begun.exists();
    signal_to(service, "CONT");
    assert_eq!(next.line(), "up");
    let left = std::fs::read(format!("/proc/{service}/cmdline")).unwrap_or_default();
    assert!(waited && left.is_empty(), "{waited} {left:?}");
    assert_eq!(next.end().code(), Some(0));
    killed.end();
}

#[test]
fn a_service_that_keeps_dying_ends_the_run() {
    if unavailable("a_service_that_keeps_dying_ends_the_run") {
        return;
    }
    let script = "echo up; while :; do sleep 1; done";
    let mut run = Run::new("--mem --no-preload").script(script).start();
    assert_eq!(run.line(), "up");
    for _ in 0..200 {
        if run.child.try_wait().expect("wait").is_some() {
            break;
        }
        if let Some(service) = run.service_now() {
            signal_to(service, "KILL");
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(run.end().code(), Some(1));
}

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

/// Ends a run that takes too long, so that readers of its output come to an end.
struct Limit(Arc<AtomicBool>);

impl Limit {
    fn on(run: &Running, seconds: u64) -> Limit {
        let (over, supervisor) = (Arc::new(AtomicBool::new(false)), run.child.id());
        let (seen, end) = (over.clone(), Instant::now() + Duration::from_secs(seconds));
        std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                if Instant::now() > end {
                    eprintln!("the run took more than {seconds} s: killed");
                    return signal_to(supervisor, "KILL");
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Limit(over)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Two that work exactly, while something happens to the service.
fn exact(options: &str, source: &std::path::Path, seconds: u32) -> Running {
    let python = format!("/usr/bin/python3 -c '{EXACT}' $i {seconds}");
    let script = format!("for i in 1 2; do {python} & done; echo up; wait");
    Run::new(options).arg(source).script(&script).start()
}

fn upgrade(pool: &str) -> (bool, String) {
    let output = Command::new(binary()).args(["pool", "upgrade", pool]).output().expect("polylane");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
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

/// A lower without a name in it.
fn empty_lower() -> tempfile::TempDir {
    tempfile::tempdir().expect("tempdir")
}

/// The options of a lane over it.
fn below(lower: &tempfile::TempDir) -> String {
    format!("--lower {}", lower.path().display())
}

/// An upper is its user's alone.
fn make_private(dir: &std::path::Path) {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).expect("chmod");
}

/// Kills a run's service, and waits for the next.
fn kill_service(run: &Running) {
    let before = run.service();
    signal_to(before, "KILL");
    let end = Instant::now() + Duration::from_secs(20);
    while run.service_now().is_none_or(|now| now == before) {
        assert!(Instant::now() < end, "no service comes up");
        std::thread::sleep(Duration::from_millis(10));
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

/// A process that keeps its locks itself loses none with the service. Until it has come to the next
/// one, nobody else gets any.
const KEEPS_LOCKS: &str = r#"
import fcntl, os, sys
held = os.open("/lane/held", os.O_RDWR | os.O_CREAT)
os.write(held, b"held")
os.fsync(held)
os.fsync(os.open("/lane", os.O_RDONLY))
for _ in range(10):
    fcntl.lockf(held, fcntl.LOCK_EX, 50, 100)
    fcntl.lockf(held, fcntl.LOCK_UN, 50, 100)
fcntl.lockf(held, fcntl.LOCK_EX, 10, 10)
fcntl.lockf(held, fcntl.LOCK_SH, 10, 30)
def others():
    child = os.fork()
    if child == 0:
        fd = os.open("/lane/held", os.O_RDWR)
        got = ""
        for how in fcntl.LOCK_SH, fcntl.LOCK_EX:
            for start in 5, 15, 35, 100:
                try:
                    fcntl.lockf(fd, how | fcntl.LOCK_NB, 1, start)
                    got += "y"
                except BlockingIOError:
                    got += "n"
        print(got, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
def again():
    for _ in range(10):
        fcntl.lockf(held, fcntl.LOCK_EX, 50, 100)
        fcntl.lockf(held, fcntl.LOCK_UN, 50, 100)
print("up", flush=True)
sys.stdin.readline()
others()
assert os.pread(held, 4, 0) == b"held"
others()
again()
others()
again()
print("again", flush=True)
sys.stdin.readline()
fcntl.lockf(held, fcntl.LOCK_UN, 10, 10)
others()
os.close(held)
others()
"#;

#[test]
fn a_process_that_keeps_its_locks_has_them_after_a_kill() {
    let name = "a_process_that_keeps_its_locks_has_them_after_a_kill";
    if unavailable(name) || no_library(name) || lacks(name, &["python3"]) {
        return;
    }
    let place = tempfile::tempdir().expect("tempdir");
    let volume = place.path().join("volume");
    let script = format!("exec /usr/bin/python3 -c '{KEEPS_LOCKS}'");
    let run = Run::new("--size 64M --volume").arg(&volume).script(&script);
    let (mut run, mut input) = run.env("POLYLANE_VIEWS", "eager").start_with_input();
    let _limit = Limit::on(&run, 60);
    assert_eq!(run.line(), "up");
    kill_service(&run);
    writeln!(input, "on").expect("COMMAND listens");
    assert_eq!(run.line(), "nnnnnnnn", "before it came to the next service");
    assert_eq!([run.line(), run.line()], ["ynyyynny", "ynyyynny"]);
    assert_eq!(run.line(), "again");
    kill_service(&run);
    writeln!(input, "on").expect("COMMAND listens");
    assert_eq!([run.line(), run.line()], ["yyyyyyny", "yyyyyyyy"]);
    assert_eq!(run.end().code(), Some(0));
}

/// Files that lost bytes with a service: nothing goes on with those, but whoever has locks of them
/// has them still, and takes and gives up others, as with any open file.
const LOSES: &str = r#"
import errno, fcntl, os, struct, subprocess, sys
d = "/lane/"
OFD_SETLK = 37
def make(name):
    fd = os.open(d + name, os.O_RDWR | os.O_CREAT)
    os.write(fd, b"old")
    os.fsync(fd)
    return fd
def ofd(fd, kind):
    fcntl.fcntl(fd, OFD_SETLK, struct.pack("hhqqii", kind, 0, 0, 0, 0, 0))
OTHER = """
import fcntl, sys
f = open(sys.argv[1], "r+b")
def free(take):
    try:
        take()
    except OSError:
        return "n"
    return "y"
posix = [free(lambda: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, at)) for at in (50, 100)]
print("".join(posix) + free(lambda: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)))
"""
def others(name):
    told = subprocess.run([sys.executable, "-c", OTHER, d + name], stdout=subprocess.PIPE)
    return told.stdout.decode().strip()
names = ["posix", "flock", "ofd", "none"]
posix, flock, whole, none = fds = [make(name) for name in names]
os.fsync(os.open(d, os.O_RDONLY))
# Locks that a process takes often it may keep itself.
for turn in range(8):
    fcntl.lockf(posix, fcntl.LOCK_EX, 10, 100)
    fcntl.lockf(posix, fcntl.LOCK_UN, 10, 100)
    fcntl.lockf(posix, fcntl.LOCK_EX, 10, 100)
fcntl.flock(flock, fcntl.LOCK_EX)
ofd(whole, fcntl.F_WRLCK)
for fd in fds:
    os.pwrite(fd, b"new" * 5000, 0)
# Unless the flusher was there in between.
lost = None
for turn in range(2):
    print("up", flush=True)
    sys.stdin.readline()
    # Own locks are in nobody own way, before anybody else asks.
    fcntl.lockf(posix, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 100)
    fcntl.lockf(none, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.lockf(none, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.lockf(none, fcntl.LOCK_UN)
    fcntl.flock(flock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    ofd(whole, fcntl.F_WRLCK)
    assert os.fstat(posix).st_size in (3, 15000)
    failed = []
    for fd in fds:
        read, write = lambda: os.pread(fd, 3, 0), lambda: os.pwrite(fd, b"more", 0)
        for use in read, write, lambda: os.fsync(fd):
            try:
                use()
            except OSError as error:
                assert error.errno == errno.EIO, error
                failed.append(fd)
    assert lost is None or lost == failed, (lost, failed)
    lost = failed
    told = [others(name) for name in names]
    assert told == ["yny", "yyn", "nny", "yyy"], told
fcntl.lockf(posix, fcntl.LOCK_UN, 5, 100)
fcntl.lockf(posix, fcntl.LOCK_UN, 5, 105)
ofd(whole, fcntl.F_UNLCK)
fcntl.flock(flock, fcntl.LOCK_UN)
assert [others(name) for name in names] == ["yyy"] * 4
fcntl.lockf(posix, fcntl.LOCK_EX | fcntl.LOCK_NB)
fcntl.flock(flock, fcntl.LOCK_EX | fcntl.LOCK_NB)
ofd(whole, fcntl.F_WRLCK)
for fd in fds:
    try:
        os.close(fd)
    except OSError as error:
        assert error.errno == errno.EIO, error
told = [others(name) for name in names]
assert told == ["yyy"] * 4, told
print("lost" if lost else "kept", flush=True)
"#;

#[test]
fn locks_of_files_that_lost_bytes_stay_and_go() {
    let name = "locks_of_files_that_lost_bytes_stay_and_go";
    if unavailable(name) || no_library(name) || lacks(name, &["python3"]) {
        return;
    }
    let ways = [("", "1"), ("", "eager"), ("--no-preload ", "0")];
    let told = ways.map(|(option, views)| {
        let place = tempfile::tempdir().expect("tempdir");
        let script = format!("exec /usr/bin/python3 -c '{LOSES}'");
        let run = Run::new(&format!("{option}--size 64M --volume"));
        let run = run.arg(place.path().join("volume")).script(&script);
        let (mut run, mut input) = run.env("POLYLANE_VIEWS", views).start_with_input();
        let _limit = Limit::on(&run, 60);
        for _ in 0..2 {
            assert_eq!(run.line(), "up", "{option}{views}");
            kill_service(&run);
            writeln!(input, "on").expect("COMMAND listens");
        }
        let told = run.line();
        assert_eq!(run.end().code(), Some(0), "{option}{views}");
        told
    });
    assert!(told.iter().any(|told| told == "lost"), "the flusher was there each time: {told:?}");
}

/// A mapping that was there before the service was killed, of a file that was not synced: what the
/// kernel has of it can be used, what it has not is SIGBUS; another descriptor says EIO.
const MAPS: &str = r#"
import errno, mmap, os, signal, sys
fd = os.open("/lane/mapped", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 4 << 20)
mapping = mmap.mmap(fd, 4 << 20)
def stores(at):
    child = os.fork()
    if child == 0:
        mapping[at] = 2
        os._exit(0)
    return os.waitpid(child, 0)[1]
assert stores(0) == 0
print("up", flush=True)
sys.stdin.readline()
assert stores(0) == 0
assert stores(3 << 20) == signal.SIGBUS
try:
    os.pread(fd, 1, 3 << 20)
    assert False, "a file that lost its bytes is read"
except OSError as error:
    assert error.errno == errno.EIO, error
print("told", flush=True)
"#;

#[test]
fn mappings_of_a_file_that_lost_bytes_are_errors_where_the_kernel_has_no_page() {
    let test = "mappings_of_a_file_that_lost_bytes_are_errors_where_the_kernel_has_no_page";
    if unavailable(test) || no_library(test) || lacks(test, &["python3"]) {
        return;
    }
    for option in ["--no-preload ", ""] {
        let run = Run::new(&format!("{option}--size 64M --flush-interval 60s"));
        let (mut run, mut input) =
            run.script(&format!("exec /usr/bin/python3 -c '{MAPS}'")).start_with_input();
        let _limit = Limit::on(&run, 60);
        assert_eq!(run.line(), "up", "{option}");
        kill_service(&run);
        writeln!(input, "on").expect("COMMAND listens");
        assert_eq!(run.line(), "told", "{option}");
        assert_eq!(run.end().code(), Some(0), "{option}");
    }
}

/// Three processes, each the only user of a database with a write-ahead log. Each commits until it
/// is told to stop, and begins again after an error; then it counts what is there. SQLite maps a
/// file that it never syncs: a process that touches a lost page of it is ended by SIGBUS, and
/// another does its last part.
const ONLY_USERS: &str = r#"
import mmap, os, select, signal, sqlite3, sys
commits = memoryview(mmap.mmap(-1, 4096)).cast("Q")
def connect(path):
    base = sqlite3.connect(path, timeout=1.5, isolation_level=None)
    base.execute("pragma journal_mode=wal")
    base.execute("pragma synchronous=extra")
    base.execute("create table if not exists t(i integer primary key, b blob)")
    return base
def commit(base):
    base.execute("begin immediate")
    for _ in range(3):
        base.execute("insert into t(b) values(?)", (os.urandom(500),))
    base.execute("commit")
def use(i, stop):
    os.makedirs("/lane/%d" % i, exist_ok=True)
    path, base, heard = "/lane/%d/base" % i, None, set()
    while not select.select([stop], [], [], 0)[0]:
        try:
            base = base or connect(path)
            commit(base)
            commits[i] += 1
            if commits[i] == 1:
                os.write(1, b"up\n")
        except (sqlite3.Error, OSError) as error:
            heard.add(str(error))
            try:
                base and base.close()
            except sqlite3.Error:
                pass
            base = None
    base = connect(path)
    there = base.execute("select count(*) from t").fetchone()[0]
    whole = base.execute("pragma integrity_check").fetchone()[0]
    kept = whole == "ok" and there >= 3 * commits[i]
    os.write(1, ("%s %s\n" % ("kept" if kept else "lost", sorted(heard))).encode())
stop, end = os.pipe()
def start(i):
    child = os.fork()
    if child == 0:
        if i not in children:
            os.close(end)
        use(i, stop)
        os._exit(0)
    return child
children = {}
for i in range(3):
    children[i] = start(i)
sys.stdin.readline()
os.close(end)
for i in range(3):
    status = os.waitpid(children[i], 0)[1]
    if status == signal.SIGBUS:
        status = os.waitpid(start(i), 0)[1]
    assert status == 0, status
"#;

/// What a service that was killed knew of locks is nobody's lock, least of all that of the process
/// that had it.
fn only_users_are_never_locked_out(test: &str, options: &str) {
    if unavailable(test) || no_library(test) || lacks(test, &["python3", "mke2fs"]) {
        return;
    }
    let sqlite = Command::new("/usr/bin/python3").args(["-c", "import sqlite3"]).status();
    if !sqlite.is_ok_and(|status| status.success()) {
        return skip(test, "python3 has no sqlite3");
    }
    let place = tempfile::tempdir().expect("tempdir");
    let script = format!("exec /usr/bin/python3 -c '{ONLY_USERS}'");
    let run = Run::new(&format!("{options}--size 256M --volume"));
    let run = run.arg(place.path().join("volume")).script(&script);
    let (mut run, mut input) = run.start_with_input();
    let _limit = Limit::on(&run, 100);
    assert_eq!([(); 3].map(|()| run.line()), ["up"; 3]);
    for _ in 0..5 {
        kill_service(&run);
        std::thread::sleep(Duration::from_millis(1500));
    }
    writeln!(input, "end").expect("COMMAND listens");
    for _ in 0..3 {
        let told = run.line();
        assert!(told.starts_with("kept ") && !told.contains("lock"), "{told}");
    }
    assert_eq!(run.end().code(), Some(0));
}

#[test]
fn the_only_user_of_a_database_is_never_locked_out_by_the_library() {
    let test = "the_only_user_of_a_database_is_never_locked_out_by_the_library";
    only_users_are_never_locked_out(test, "");
}

#[test]
fn the_only_user_of_a_database_is_never_locked_out_by_fuse() {
    let test = "the_only_user_of_a_database_is_never_locked_out_by_fuse";
    only_users_are_never_locked_out(test, "--no-preload ");
}

/// On a volume: what was synced goes on, what was not is an error and can be opened anew, locks
/// stay, and no call is done twice. Names that were not synced may be gone.
const GOES_ON: &str = r#"
import errno, fcntl, os, select, sys
d = "/lane"
whole = os.open(d + "/whole", os.O_RDWR | os.O_CREAT)
os.write(whole, b"whole" * 2000)
os.fsync(whole)
fcntl.lockf(whole, fcntl.LOCK_EX)
fcntl.flock(whole, fcntl.LOCK_EX)
torn = os.open(d + "/torn", os.O_RDWR | os.O_CREAT)
os.write(torn, b"old")
os.fsync(torn)
os.fsync(os.open(d, os.O_RDONLY))
for _ in range(50):
    os.pwrite(torn, b"new" * 5000, 0)
print("up", flush=True)
sys.stdin.readline()
assert os.pread(whole, 5, 9995) == b"whole"
os.pwrite(whole, b"again", 0)
os.fsync(whole)
assert os.pread(whole, 10, 0) == b"againwhole"
# The flusher may have been there in between: then all is there. Nothing old is ever read.
torn_by = 0
for use in [lambda: os.pread(torn, 3, 0), lambda: os.pwrite(torn, b"new", 0) and b"new"]:
    try:
        assert use() == b"new", "a file that lost its bytes goes on"
    except OSError as error:
        assert error.errno == errno.EIO, error
        torn_by += 1
assert torn_by in (0, 2), torn_by
try:
    os.close(torn)
except OSError as error:
    assert error.errno == errno.EIO, error
torn = os.open(d + "/torn", os.O_RDWR)
assert os.pread(torn, 3, 0) in (b"old", b"new")
os.pwrite(torn, b"good", 0)
os.fsync(torn)
child = os.fork()
if child == 0:
    for take in fcntl.lockf, fcntl.flock:
        try:
            take(os.open(d + "/whole", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
            os._exit(1)
        except BlockingIOError:
            pass
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0, "a lock is gone"
print("on", flush=True)
n = 0
while True:
    n += 1
    if n % 100 == 0 and select.select([sys.stdin], [], [], 0)[0]:
        break
    p = d + "/n%d" % n
    try:
        os.mkdir(p)
        os.rename(p, p + "b")
        os.rmdir(p + "b")
        fd = os.open(p + "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileNotFoundError:
        continue
    try:
        os.close(fd)
    except OSError as error:
        # Its name was not committed.
        assert error.errno == errno.EIO, error
os.write(1, b"exact\n")
"#;

#[test]
fn open_files_of_a_volume_outlive_a_killed_service() {
    let name = "open_files_of_a_volume_outlive_a_killed_service";
    if unavailable(name) || no_library(name) || lacks(name, &["python3"]) {
        return;
    }
    let lower = empty_lower();
    let over = format!("{} --size 1G --volume", below(&lower));
    for options in ["--size 1G --volume", "--no-preload --size 1G --volume", &over] {
        let place = tempfile::tempdir().expect("tempdir");
        let volume = place.path().join("volume");
        let script = format!("exec /usr/bin/python3 -c '{GOES_ON}'");
        let run = Run::new(options).arg(&volume).script(&script);
        let (mut run, mut input) = run.start_with_input();
        let _limit = Limit::on(&run, 60);
        assert_eq!(run.line(), "up", "{options}");
        kill_service(&run);
        writeln!(input, "go").expect("COMMAND listens");
        assert_eq!(run.line(), "on", "{options}");
        for round in 0..3 {
            std::thread::sleep(Duration::from_millis(400 + 37 * round));
            kill_service(&run);
        }
        writeln!(input, "end").expect("COMMAND listens");
        assert_eq!(run.line(), "exact", "{options}");
        assert_eq!(run.end().code(), Some(0));
        polylane_tests::volume::assert_clean(&volume);
    }
}

/// Files without a name, one of them from the beginning, which another service must have.
const NAMELESS: &str = r#"
import os, sys
d = "/lane"
gone = os.open(d + "/gone", os.O_RDWR | os.O_CREAT)
os.write(gone, b"gone" * 5000)
os.unlink(d + "/gone")
never = os.open(d, os.O_RDWR | os.O_TMPFILE, 0o600)
os.write(never, b"never")
closed = os.open(d + "/closed", os.O_RDWR | os.O_CREAT)
os.write(closed, b"closed" * 5000)
os.unlink(d + "/closed")
late = [os.open(d, os.O_RDWR | os.O_TMPFILE, 0o640) for turn in range(4)]
for fd in late:
    os.write(fd, b"late")
for fd in gone, never, closed, *late:
    os.fsync(fd)
root = os.open(d, os.O_RDONLY)
os.fsync(root)
for turn in range(4):
    print("up", flush=True)
    sys.stdin.readline()
    if turn == 1:
        os.close(closed)
    assert os.pread(gone, 4, 19996) == b"gone", turn
    assert os.pread(never, 5, 0) == b"never", turn
    assert os.fstat(gone).st_nlink == 0, turn
    assert os.listdir(d) == [], os.listdir(d)
    link = "/proc/self/fd/%d" % late[turn]
    os.link(link, d + "/late", src_dir_fd=root, follow_symlinks=True)
    assert open(d + "/late").read() == "late", turn
    assert os.stat(d + "/late").st_mode == 0o100640, turn
    assert os.fstat(late[turn]).st_nlink == 1, turn
    os.unlink(d + "/late")
    os.fsync(root)
    assert os.pread(gone, 4 * turn + 1, 20000) == b"more" * turn, turn
    os.pwrite(gone, b"more", 20000 + 4 * turn)
    # An upgrade takes along what is not durable.
    if turn == 1:
        os.fsync(gone)
print("on", flush=True)
"#;

#[test]
fn open_files_of_a_volume_without_a_name_go_on() {
    let name = "open_files_of_a_volume_without_a_name_go_on";
    if unavailable(name) || no_library(name) || lacks(name, &["python3"]) {
        return;
    }
    let lower = empty_lower();
    let over = format!("{} --size 1G --volume", below(&lower));
    for options in ["--size 1G --volume", "--no-preload --size 1G --volume", &over] {
        let place = tempfile::tempdir().expect("tempdir");
        let volume = place.path().join("volume");
        let script = format!("exec /usr/bin/python3 -c '{NAMELESS}'");
        let run = Run::new(options).arg(&volume).script(&script);
        let (mut run, mut input) = run.start_with_input();
        let _limit = Limit::on(&run, 60);
        for turn in 0..4 {
            assert_eq!(run.line(), "up", "{options}, turn {turn}");
            if turn % 2 == 0 {
                kill_service(&run);
            } else {
                let (done, said) = upgrade(&run.pool);
                assert!(done && said.contains("replaced"), "{options}: {said}");
            }
            writeln!(input, "go").expect("COMMAND listens");
        }
        assert_eq!(run.line(), "on", "{options}");
        assert_eq!(run.end().code(), Some(0));
        polylane_tests::volume::assert_clean(&volume);
    }
}

/// Streams of a directory, by its path and by a descriptor: whatever is read before a kill and
/// after it is all that there is, once.
const LISTS: &str = r#"
import os, sys
os.chdir("/lane")
os.mkdir("d")
for n in range(3000):
    os.close(os.open("d/file-number-%d" % n, os.O_CREAT | os.O_WRONLY))
streams = [os.scandir(what) for what in ("/lane/d", "d", os.open("d", os.O_RDONLY))]
seen = [[next(stream).name for _ in range(900)] for stream in streams]
print("up", flush=True)
sys.stdin.readline()
for stream, names in zip(streams, seen):
    names.extend(entry.name for entry in stream)
print([(len(names), len(set(names))) for names in seen], flush=True)
"#;

#[test]
fn a_directory_is_listed_to_its_end_over_a_kill() {
    let name = "a_directory_is_listed_to_its_end_over_a_kill";
    if unavailable(name) || lacks(name, &["python3"]) {
        return;
    }
    let place = tempfile::tempdir().expect("tempdir");
    let script = format!("exec /usr/bin/python3 -c '{LISTS}'");
    let run = Run::new("--dir").arg(place.path()).script(&script);
    let (mut run, mut input) = run.env("POLYLANE_PATIENCE", "0").start_with_input();
    let _limit = Limit::on(&run, 60);
    assert_eq!(run.line(), "up");
    kill_service(&run);
    writeln!(input, "on").expect("COMMAND listens");
    assert_eq!(run.line(), "[(3000, 3000), (3000, 3000), (3000, 3000)]");
    assert_eq!(run.end().code(), Some(0));
}

/// A file is replaced as all programs do, and the service killed before the last step. Three
/// openings of the directory: two from before, one from after.
const REPLACES: &str = r#"
import errno, os, sys, time
d = "/lane/d"
os.mkdir(d)
def put(name, text):
    fd = os.open(d + name, os.O_RDWR | os.O_CREAT)
    os.write(fd, text)
    os.fsync(fd)
    os.close(fd)
put("/x", b"old")
first, second = (os.open(d, os.O_RDONLY | os.O_DIRECTORY) for opening in range(2))
os.fsync(first)
put("/tmp", b"new")
os.rename(d + "/tmp", d + "/x")
print("renamed", flush=True)
sys.stdin.readline()
def refused(fd):
    try:
        os.fsync(fd)
    except OSError as error:
        assert error.errno == errno.EIO, error
        return True
    return False
is_new = open(d + "/x", "rb").read() == b"new"
told = [refused(fd) for fd in (first, second)]
third = os.open(d, os.O_RDONLY | os.O_DIRECTORY)
# What a commit made last meanwhile may be told all the same.
assert is_new or told == [True, True], told
assert not any([refused(fd) for fd in (first, second, third)])
os.close(os.open(d + "/y", os.O_RDWR | os.O_CREAT))
os.fsync(third)
print("kept" if is_new else "told", sorted(os.listdir(d)), flush=True)
"#;

#[test]
fn names_that_went_with_a_service_are_told_by_the_fsync_of_their_directory() {
    let name = "names_that_went_with_a_service_are_told_by_the_fsync_of_their_directory";
    if unavailable(name) || no_library(name) || lacks(name, &["python3"]) {
        return;
    }
    for options in ["--size 1G --volume", "--no-preload --size 1G --volume"] {
        let place = tempfile::tempdir().expect("tempdir");
        let script = format!("exec /usr/bin/python3 -c '{REPLACES}'");
        let run = Run::new(options).arg(place.path().join("volume")).script(&script);
        let (mut run, mut input) = run.start_with_input();
        let _limit = Limit::on(&run, 60);
        assert_eq!(run.line(), "renamed", "{options}");
        kill_service(&run);
        writeln!(input, "go").expect("COMMAND listens");
        // A commit may have come in between, seldom.
        let said = run.line();
        assert!(said == "told ['tmp', 'x', 'y']" || said == "kept ['x', 'y']", "{options}: {said}");
        assert_eq!(run.end().code(), Some(0));
    }
}

/// On a union of a volume's files: a file of the lower and a new one have bytes that were not
/// synced, each of another one was, and one is only read. Then one service after the other is
/// killed, the later ones with nothing in hand.
const OVER_A_VOLUME: &str = r#"
import errno, os, sys
os.chdir("/lane/d")
def put(name, synced):
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b"new!", 0)
    if synced:
        os.fsync(fd)
    return fd
synced = [put("low1", True), put("made1", True)]
lost = [put("low2", False), put("made2", False)]
read = os.open("low3", os.O_RDONLY)
os.mkdir("dir")
os.rename("low4", "dir/moved")
dirs = [os.open(name, os.O_RDONLY) for name in (".", "dir")]
def refused(call):
    try:
        call()
    except OSError as error:
        assert error.errno == errno.EIO, error
        return True
    return False
for turn in range(3):
    print("up", flush=True)
    sys.stdin.readline()
    for fd in lost:
        uses = lambda: os.pread(fd, 4, 0), lambda: os.fsync(fd), lambda: os.pwrite(fd, b"more", 0)
        assert all(refused(use) for use in uses), turn
    assert [os.pread(fd, 4, 0) for fd in synced] == [b"new!"] * 2
    assert os.pread(read, 4, 0) == b"low3" and os.fstat(read).st_size == 300000
    # Names are in the directory below, and all there.
    assert not any(refused(lambda: os.fsync(fd)) for fd in dirs + synced), turn
    assert sorted(os.listdir(".")) == ["dir", "low1", "low2", "low3", "made1", "made2"]
    assert os.listdir("dir") == ["moved"]
    for fd in synced:
        os.pwrite(fd, b"new!", 8192 * turn)
        os.fsync(fd)
again = os.open("low2", os.O_RDWR)
os.pwrite(again, b"once more", 0)
os.fsync(again)
print("on", os.pread(again, 9, 0).decode(), flush=True)
"#;

/// The whole of such a union has pages in its service, although its upper is a directory.
#[test]
fn bytes_that_went_with_the_service_of_a_union_over_a_volume_are_errors() {
    let name = "bytes_that_went_with_the_service_of_a_union_over_a_volume_are_errors";
    if unavailable(name) || no_library(name) || lacks(name, &["python3"]) {
        return;
    }
    let place = tempfile::tempdir().expect("tempdir");
    let volume = place.path().join("volume");
    let fill = "mkdir /lane/d; cd /lane/d; for i in 1 2 3 4; do \
                for n in $(seq 75); do printf low$i%3996s; done >low$i; done";
    let made = Run::new("--size 64M --volume").arg(&volume).script(fill).start().end();
    assert_eq!(made.code(), Some(0));
    let every = "--flush-interval 3600s";
    for options in ["", "--no-preload", "--file-cache writethrough --file-cache-over upper"] {
        let every = if options.contains("cache") { "" } else { every };
        let upper = tempfile::tempdir().expect("tempdir");
        make_private(upper.path());
        let script = format!("exec /usr/bin/python3 -c '{OVER_A_VOLUME}'");
        let run = Run::new(&format!("{options} {every} --lower")).arg(&volume);
        let (mut run, mut input) =
            run.arg("--dir").arg(upper.path()).script(&script).start_with_input();
        let _limit = Limit::on(&run, 60);
        for turn in 0..3 {
            assert_eq!(run.line(), "up", "{options}{turn}");
            kill_service(&run);
            writeln!(input, "go").expect("COMMAND listens");
        }
        assert_eq!(run.line(), "on once more", "{options}");
        assert_eq!(run.end().code(), Some(0));
    }
}

/// Works by a lease, syncs its directory, and says what became of it.
const STREAMS: &str = r#"
import os, sys, errno
d = "/lane/d"
os.mkdir(d)
root = os.open(d, os.O_RDONLY)
def make(letter, count):
    for n in range(count):
        fd = os.open("%s/%s%d" % (d, letter, n), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(fd, b"hello")
        os.close(fd)
def synced():
    try:
        os.fsync(root)
        return "synced"
    except OSError as error:
        return errno.errorcode[error.errno]
def there(letter):
    return [d + "/" + name for name in os.listdir(d) if name[0] == letter]
def whole(letter):
    return sum(os.path.getsize(path) == 5 for path in there(letter))
def killed():
    print("up", flush=True)
    sys.stdin.readline()
make("a", 60)
assert synced() == "synced"
make("b", 60)
assert synced() == "synced"
killed()
# Its first call after the kill is one that needs no answer.
make("c", 20)
print(synced(), len(there("a") + there("b")), whole("c"), flush=True)
make("d", 60)
assert synced() == "synced"
make("e", 5)
killed()
print(synced(), synced(), len(there("d")), len(there("e")), flush=True)
make("f", 60)
print(synced(), whole("f"), flush=True)
"#;

/// Nothing is streamed to a service that is dead. What one had not taken when it died is told by
/// the next sync, once.
#[test]
fn nothing_is_streamed_to_a_dead_service() {
    let name = "nothing_is_streamed_to_a_dead_service";
    if unavailable(name) || no_library(name) || lacks(name, &["python3"]) {
        return;
    }
    let place = tempfile::tempdir().expect("tempdir");
    let volume = place.path().join("volume");
    let script = format!("exec /usr/bin/python3 -c '{STREAMS}'");
    let run = Run::new("--size 1G --volume").arg(&volume).script(&script);
    let run = run.env("POLYLANE_PATIENCE", "0").env("POLYLANE_LEASES", "eager");
    let (mut run, mut input) = run.start_with_input();
    let _limit = Limit::on(&run, 60);
    assert_eq!(run.line(), "up");
    kill_service(&run);
    writeln!(input, "on").expect("COMMAND listens");
    assert_eq!(run.line(), "synced 120 20");
    assert_eq!(run.line(), "up");
    kill_service(&run);
    writeln!(input, "on").expect("COMMAND listens");
    assert_eq!(run.line(), "EIO synced 60 0");
    assert_eq!(run.line(), "synced 60");
    assert_eq!(run.end().code(), Some(0));
    polylane_tests::volume::assert_clean(&volume);
}

/// A union: files of a lower, copied up before, after and never, mapped, removed and below a
/// directory that moves. Two lowers have `d`, the lower one `d/low`.
const UNION: &str = r#"
import fcntl, mmap, os, subprocess, sys
big = 1 << 20
block = lambda fd, n, count=4096: os.pread(fd, count, n * 4096)
os.chdir("/lane/d/low")
program = subprocess.Popen(["./busybox", "sh", "-c", "while read line; do echo $line; done"],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def talks():
    program.stdin.write(b"word\n")
    program.stdin.flush()
    return program.stdout.readline() == b"word\n"
assert talks()
# What a service had as its own: text of a program, and pages that nobody has touched yet.
private = mmap.mmap(os.open("big", os.O_RDONLY), big, prot=mmap.PROT_READ)
before = os.open("part", os.O_RDONLY)
part = os.open("part", os.O_RDWR)
shared = mmap.mmap(part, big)
gone = os.open("gone", os.O_RDONLY)
late = os.open("late", os.O_RDWR)
never = os.open("never", os.O_RDONLY)
one, two = (os.open(name, os.O_RDWR) for name in ("one", "two"))
os.pwrite(part, b"P" * 4096, 4096)
os.fsync(part)
os.unlink("gone")
os.pwrite(one, b"linked", 0)
os.fsync(one)
fcntl.lockf(late, fcntl.LOCK_EX)
fcntl.flock(never, fcntl.LOCK_SH)
os.rename("/lane/d/low", "/lane/d/moved")
os.fsync(os.open("/lane/d", os.O_RDONLY))
for turn in range(5):
    print("up", flush=True)
    sys.stdin.readline()
    assert talks(), turn
    assert os.getcwd() == "/lane/d/moved", os.getcwd()
    page = (7 * turn + 11) * 4096
    assert private[page:page + 4] == b"big!", private[page:page + 4]
    assert block(before, 1) == b"P" * 4096 and block(before, 2, 4) == b"part"
    assert shared[4096:4100] == b"PPPP" and shared[page:page + 4] == b"part"
    assert os.pread(gone, 4, big - 4) == b"gone" and os.fstat(gone).st_nlink == 0
    assert os.pread(never, 5, 0) == b"never" and os.pread(two, 6, 0) == b"linked"
    assert os.fstat(two).st_nlink == 2, os.fstat(two)
    assert os.stat("late").st_ino == os.fstat(late).st_ino
    assert sorted(os.listdir(".")) == sorted(os.listdir("/lane/d/moved")) == [
        "big", "busybox", "late", "never", "one", "part", "two"], os.listdir(".")
    child = os.fork()
    if child == 0:
        for take, name in (fcntl.lockf, "late"), (fcntl.flock, "never"):
            try:
                take(os.open(name, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
                os._exit(1)
            except BlockingIOError:
                pass
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "a lock is gone"
    # From here on copied up, and synced, so that the next turn has it.
    os.pwrite(late, b"late%d" % turn, 4096 * turn)
    os.fsync(late)
    os.pwrite(part, b"p" * 4096, 4096 * (100 + turn))
    os.fsync(part)
    assert block(before, 100 + turn) == b"p" * 4096 == shared[4096 * (100 + turn):][:4096]
    fd = os.open("never", os.O_RDONLY)
    assert os.fstat(fd).st_ino == os.fstat(never).st_ino
    os.close(fd)
program.stdin.close()
assert program.wait() == 0
print("on", flush=True)
"#;

#[test]
fn open_files_of_a_union_outlive_their_service() {
    let name = "open_files_of_a_union_outlive_their_service";
    if unavailable(name) || no_library(name) || lacks(name, &["python3", "busybox"]) {
        return;
    }
    for upper in ["--size 1G --volume", "--no-preload --size 1G --volume", "--dir"] {
        let place = tempfile::tempdir().expect("tempdir");
        let low = place.path().join("low/d/low");
        for dir in ["high/d", "low/d/low"] {
            std::fs::create_dir_all(place.path().join(dir)).expect("mkdir");
        }
        std::fs::write(place.path().join("high/d/own"), "own").expect("write");
        std::fs::copy("/bin/busybox", low.join("busybox")).expect("copy");
        for (name, words) in [("big", "big!"), ("part", "part"), ("gone", "gone")] {
            std::fs::write(low.join(name), words.repeat(1 << 18)).expect("write");
        }
        for name in ["late", "never", "one"] {
            std::fs::write(low.join(name), format!("{name} {}", "x".repeat(100_000)))
                .expect("write");
        }
        std::fs::hard_link(low.join("one"), low.join("two")).expect("link");
        let own = place.path().join("own");
        if upper == "--dir" {
            std::fs::create_dir(&own).expect("mkdir");
            make_private(&own);
        }
        let script = format!("exec /usr/bin/python3 -c '{UNION}'");
        let run = Run::new("").arg("--lower").arg(place.path().join("high"));
        let run = run.arg("--lower").arg(place.path().join("low"));
        let run = upper.split(' ').fold(run, |run, word| run.arg(word)).arg(&own);
        let (mut run, mut input) = run.script(&script).start_with_input();
        let _limit = Limit::on(&run, 60);
        for turn in 0..5 {
            assert_eq!(run.line(), "up", "{upper}, turn {turn}");
            if turn % 3 == 2 {
                let (done, said) = upgrade(&run.pool);
                assert!(done && said.contains("replaced"), "{upper}: {said}");
            } else {
                kill_service(&run);
            }
            writeln!(input, "go").expect("COMMAND listens");
        }
        assert_eq!(run.line(), "on", "{upper}");
        assert_eq!(run.end().code(), Some(0));
    }
}
