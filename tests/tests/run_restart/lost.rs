//! Bytes and names that went with a service are errors, each told where POSIX tells it.

use std::io::Write as _;

use polylane_tests::pool::{Run, no_library};
use polylane_tests::{lacks, unavailable};

use super::{Limit, kill_service, make_private};

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
