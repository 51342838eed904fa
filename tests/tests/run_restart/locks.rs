//! Locks over a kill: a process has those that it had, and no dead process has any.

use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use polylane_tests::pool::{Run, no_library};
use polylane_tests::{lacks, skip, unavailable};

use super::{Limit, kill_service};

/// A process that keeps its locks itself loses none with the service. Until it has come to the next
/// one, no other process gets any.
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

/// Files that lost bytes with a service: nothing goes on with those, but processes that have locks
/// of them have them still, and take and give up others, as with any open file.
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
    # Own locks hinder no own lock, before another process asks.
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

/// What a service that was killed knew of locks is no process's lock, least of all that of the one
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
