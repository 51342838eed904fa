//! Open files and listings of directories go on with the next service.

use std::io::Write as _;
use std::time::Duration;

use polylane_tests::pool::{Run, no_library};
use polylane_tests::{lacks, unavailable};

use super::{Limit, below, empty_lower, kill_service, make_private, upgrade};

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
