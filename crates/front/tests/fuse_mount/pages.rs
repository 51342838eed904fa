//! Pages that the kernel keeps, and mappings, beside the fast lane.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use polylane_base::sync::atomic::Ordering;
use polylane_base::sync::thread;
use polylane_front::lane::notifier::Range;
use polylane_front::lane::tag::TAG_KEPT;
use polylane_vfs::OpCtx;

use super::{Mounted, await_word, python};

#[test]
#[ignore = "in a private mount namespace"]
fn cached_pages_follow_the_fast_lane_on_older_kernels() {
    let lane = Mounted::without("cached", DIRECT_IO_ALLOW_MMAP);
    fs::write(lane.path("a"), b"0123456789").expect("written");
    let reader = File::open(lane.path("a")).expect("opened");
    let mut log = OpenOptions::new().append(true).open(lane.path("a")).expect("opened");
    let read = || {
        let mut bytes = [0; 64];
        let count = reader.read_at(&mut bytes, 0).expect("read");
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    };
    assert_eq!(read(), "0123456789");
    let (door, root) = (&lane.lane, polylane_vfs::Cred::root());
    let file = door
        .vfs
        .open_path(&OpCtx::as_user(&root), &door.vfs.root(), b"a", libc::O_RDWR, 0, 0)
        .expect("open");
    let write = |at: Option<u64>, bytes: &[u8]| {
        let range = polylane_front::lane::notifier::Range { offset: at.unwrap_or(0), len: 0 };
        door.before_io(file.node(), range);
        file.write(&OpCtx::as_user(&root), at, &mut &*bytes).expect("written");
        door.changed(file.node(), range);
    };
    write(Some(0), b"XY");
    assert_eq!(read(), "XY23456789");
    write(None, b"+lane");
    log.write_all(b"+kernel").expect("appended");
    assert_eq!(read(), "XY23456789+lane+kernel");
    let set = polylane_vfs::SetAttr { size: Some(4), ..Default::default() };
    door.vfs.setattr(&OpCtx::as_user(&root), file.node(), &set).expect("cut");
    door.changed(file.node(), polylane_front::lane::notifier::Range { offset: 4, len: 0 });
    assert_eq!(read(), "XY23");
}

#[test]
#[ignore = "in a private mount namespace"]
fn appends_from_two_openings_do_not_overwrite() {
    let lane = Mounted::new("append");
    let open =
        || OpenOptions::new().append(true).create(true).open(lane.path("log")).expect("open");
    let (mut a, mut b) = (open(), open());
    for _ in 0..100 {
        a.write_all(b"a").expect("written");
        b.write_all(b"bb").expect("written");
    }
    assert_eq!(fs::metadata(lane.path("log")).expect("state").len(), 300);
    let truncated = OpenOptions::new().write(true).truncate(true).open(lane.path("log"));
    assert_eq!(truncated.expect("opened").metadata().expect("state").len(), 0);
}

#[test]
#[ignore = "in a private mount namespace"]
fn pages_that_the_kernel_keeps_are_dropped_by_the_first_change() {
    let lane = Mounted::new("kept");
    if !lane.params.direct_mmap() {
        return println!("skipped: the kernel maps no direct-I/O files");
    }
    fs::write(lane.path("a"), [1; 8192]).expect("written");
    let (door, ctx) = (&lane.lane, OpCtx::service());
    let node = door.vfs.lookup(&ctx, &door.vfs.root(), b"a").expect("there");
    let open = || door.vfs.open(&ctx, &node, libc::O_RDWR).expect("opens");
    // Untold, as no front end does it: what is read then says where it is read from. The read is
    // for the access time, for which the kernel's next one would come here; the clock has ticks.
    let write = |byte: u8| {
        let file = open();
        file.write(&ctx, Some(0), &mut &[byte; 8192][..]).expect("written");
        thread::sleep(Duration::from_millis(20));
        file.read(&ctx, 0, 1, &mut &mut [0][..]).expect("read");
    };
    let read = || fs::read(lane.path("a")).expect("read")[5000];
    let is_kept = || node.tag().load(Ordering::SeqCst) & TAG_KEPT != 0;
    // The kernel tells late that a descriptor is closed.
    let id = door.nodes.id_of(&node).expect("known");
    let is_closed = || !door.nodes.is_open(id);
    let wait = || {
        while !is_closed() {
            thread::sleep(Duration::from_millis(1))
        }
    };
    wait();
    thread::sleep(Duration::from_millis(20));
    // The first moves the access time.
    assert_eq!((read(), read()), (1, 1));
    write(2);
    assert_eq!((read(), is_kept()), (1, true));
    wait();
    door.changed(&node, Range { offset: 0, len: 1 });
    assert!(!is_kept(), "nobody could fill more");
    assert_eq!((read(), is_kept()), (2, true));
    // With a reader it may fill more, and only what changed goes.
    let reader = File::open(lane.path("a")).expect("opened");
    write(3);
    let at = |offset| {
        let mut byte = [0];
        reader.read_exact_at(&mut byte, offset).expect("read");
        byte[0]
    };
    door.changed(&node, Range { offset: 0, len: 1 });
    assert_eq!((at(0), at(5000), is_kept()), (3, 2, true));
    drop(reader);
    wait();
    // A file that is open for writing stays direct.
    let writer = open();
    write(4);
    assert_eq!(read(), 4);
    drop(writer);
    let mut kernels = OpenOptions::new().write(true).open(lane.path("a")).expect("opened");
    kernels.write_all(&[5; 8192]).expect("written");
    write(6);
    assert_eq!(read(), 6);
}

#[test]
#[ignore = "in a private mount namespace"]
fn shared_mappings_see_each_other_and_the_file() {
    shared_mappings(&Mounted::new("mmap"));
}

/// As on Linux before 6.6: data goes through the page cache.
const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;

#[test]
#[ignore = "in a private mount namespace"]
fn shared_mappings_see_each_other_and_the_file_on_older_kernels() {
    let lane = Mounted::without("mmap-old", DIRECT_IO_ALLOW_MMAP);
    assert!(!lane.params.direct_mmap());
    shared_mappings(&lane);
}

fn shared_mappings(lane: &Mounted) {
    python(
        lane,
        r#"
import fcntl, mmap, os, sys
path = sys.argv[1] + '/m'
a, b = os.open(path, os.O_RDWR | os.O_CREAT), os.open(path, os.O_RDWR)
os.ftruncate(a, 8192)
x, y = mmap.mmap(a, 8192), mmap.mmap(b, 8192)
x[0:4] = b'mapx'
assert y[0:4] == b'mapx', 'mapping to mapping'
assert os.pread(b, 4, 0) == b'mapx', 'mapping to read'
os.pwrite(b, b'wrote', 100)
assert x[100:105] == b'wrote', 'write to mapping'
y[8000:8003] = b'end'
y.flush()
assert open(path, 'rb').read()[8000:8003] == b'end'
os.ftruncate(a, 4096)
assert os.fstat(b).st_size == 4096
log = os.open(path, os.O_RDWR | os.O_APPEND)
try:
    z = mmap.mmap(log, 4096)
except OSError:
    # Before Linux 6.6, what appends goes past the page cache and cannot be mapped shared.
    assert sys.argv[2] == 'old'
    z = mmap.mmap(b, 4096)
z[50:53] = b'log'
z.flush()
os.write(log, b'tail')
assert os.pread(a, 4, 4096) == b'tail' and os.pread(a, 3, 50) == b'log'
assert os.fstat(a).st_size == 4100, os.fstat(a).st_size
fcntl.fcntl(a, fcntl.F_SETFL, os.O_RDWR | os.O_APPEND)
os.write(a, b'more')
assert os.pread(b, 9, 4096) == b'tailmore'
"#,
    );
}

/// The kernel maps it for a program that may only append, and keeps what that stores.
#[test]
#[ignore = "in a private mount namespace"]
fn nobody_sees_what_is_stored_in_a_file_that_only_grows() {
    python(
        &Mounted::new("mmap-append"),
        r#"
import errno, fcntl, mmap, os, struct, sys, time
path = sys.argv[1] + '/log'
a = os.open(path, os.O_RDWR | os.O_CREAT)
os.write(a, b'history')
fcntl.ioctl(a, 0x40086602, struct.pack('l', 0x20))
reader = mmap.mmap(os.open(path, os.O_RDONLY), 7, prot=mmap.PROT_READ)
log = os.open(path, os.O_RDWR | os.O_APPEND)
stored = mmap.mmap(log, 7)
for _ in range(20):
    stored[0:1] = b'R'
    try:
        stored.flush()
        raise SystemExit('the store was taken')
    except OSError as refused:
        assert refused.errno == errno.EPERM, refused
    until = time.monotonic() + 20
    while reader[0:7] != b'history' or stored[0:7] != b'history':
        assert time.monotonic() < until, (reader[0:7], stored[0:7])
        time.sleep(0.001)
    assert open(path, 'rb').read() == b'history'
os.write(log, b' goes on')
assert open(path, 'rb').read() == b'history goes on'
# The kernel sends pages by whichever mapping's file it likes: the one from before, say.
before = mmap.mmap(a, 7)
for mapping in [stored, before]:
    mapping[0:1] = b'R'
    try:
        mapping.flush()
        raise SystemExit('the store was taken by another file')
    except OSError as refused:
        assert refused.errno == errno.EPERM, refused
assert open(path, 'rb').read() == b'history goes on'
# What was mapped before is written as long as none came to append.
other = sys.argv[1] + '/other'
b = os.open(other, os.O_RDWR | os.O_CREAT)
os.write(b, b'history')
mapped = mmap.mmap(b, 7)
fcntl.ioctl(b, 0x40086602, struct.pack('l', 0x20))
mapped[0:1] = b'H'
mapped.flush()
assert open(other, 'rb').read() == b'History'
"#,
    );
}

#[test]
#[ignore = "in a private mount namespace"]
fn the_fast_lane_and_mappings_see_each_other() {
    fast_lane_and_mappings(&Mounted::new("mmap-lane"));
}

#[test]
#[ignore = "in a private mount namespace"]
fn the_fast_lane_and_mappings_see_each_other_on_older_kernels() {
    fast_lane_and_mappings(&Mounted::without("mmap-lane-old", DIRECT_IO_ALLOW_MMAP));
}

fn fast_lane_and_mappings(lane: &Mounted) {
    let program = r#"
import mmap, os, sys
f = os.open(sys.argv[1] + '/m', os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 4096)
m = mmap.mmap(f, 4096)
m[0:6] = b'mapped'
print('mapped', flush=True)
sys.stdin.readline()
assert m[6:10] == b'lane', m[0:16]
m[0:6] = b'MAPPED'
print('again', flush=True)
sys.stdin.readline()
"#;
    let started = Command::new("python3")
        .args(["-c", program])
        .arg(&lane.at)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut python) = started else { return println!("skipped: no python3") };
    await_word(&mut python, "mapped");
    let door = &lane.lane;
    let root = polylane_vfs::Cred::root();
    let file = door
        .vfs
        .open_path(&OpCtx::as_user(&root), &door.vfs.root(), b"m", libc::O_RDWR, 0, 0)
        .expect("open");
    let read = || {
        let mut bytes = [0; 16];
        door.before_io(file.node(), polylane_front::lane::notifier::Range { offset: 0, len: 16 });
        file.read(&OpCtx::service(), 0, 16, &mut &mut bytes[..]).expect("read");
        bytes
    };
    assert_eq!(&read()[..6], b"mapped");
    door.before_io(file.node(), polylane_front::lane::notifier::Range { offset: 6, len: 4 });
    file.write(&OpCtx::as_user(&root), Some(6), &mut &b"lane"[..]).expect("written");
    door.changed(file.node(), polylane_front::lane::notifier::Range { offset: 6, len: 4 });
    let input = python.stdin.as_mut().expect("a pipe");
    input.write_all(b"\n").expect("told");
    await_word(&mut python, "again");
    assert_eq!(&read()[..10], b"MAPPEDlane");
    python.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("told");
    assert!(python.wait().expect("waited").success());
}

/// A mapping that is longer than its file, which then grows without the kernel.
#[test]
#[ignore = "in a private mount namespace"]
fn a_mapping_reaches_what_the_fast_lane_adds() {
    let lane = Mounted::new("grow");
    let program = r#"
import mmap, os, sys
f = os.open(sys.argv[1] + '/m', os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 65536)
m = mmap.mmap(f, 65536)
os.ftruncate(f, 10)
m[0:6] = b'mapped'
print('mapped', flush=True)
sys.stdin.readline()
assert m[40000:40003] == b'far', m[40000:40003]
m[39000] = 7
print('again', flush=True)
sys.stdin.readline()
assert m[65533:65536] == b'end'
assert m[0:6] == b'mapped' and m[39000] == 7
m[65535] = ord('X')
print('stored', flush=True)
sys.stdin.readline()
assert m[65533:65536] == b'enX', m[65533:65536]
"#;
    let started = Command::new("python3")
        .args(["-c", program])
        .arg(&lane.at)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut python) = started else { return println!("skipped: no python3") };
    let (door, root) = (&lane.lane, polylane_vfs::Cred::root());
    let write = |python: &mut std::process::Child, at: u64, bytes: &[u8]| {
        let vfs = &door.vfs;
        let file = vfs
            .open_path(&OpCtx::as_user(&root), &vfs.root(), b"m", libc::O_RDWR, 0, 0)
            .expect("open");
        let range = polylane_front::lane::notifier::Range { offset: at, len: bytes.len() as u64 };
        door.before_io(file.node(), range);
        file.write(&OpCtx::as_user(&root), Some(at), &mut &*bytes).expect("written");
        door.changed(file.node(), range);
        python.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("told");
    };
    await_word(&mut python, "mapped");
    write(&mut python, 40_000, b"far");
    await_word(&mut python, "again");
    write(&mut python, 65_533, b"end");
    await_word(&mut python, "stored");
    // Once more, late: the program has stored another last byte since.
    let file =
        door.vfs.open_path(&OpCtx::as_user(&root), &door.vfs.root(), b"m", libc::O_RDWR, 0, 0);
    let file = file.expect("open");
    door.nodes.tell_size(door.nodes.id_of(file.node()).expect("known"), 10);
    door.changed(file.node(), polylane_front::lane::notifier::Range { offset: 0, len: 1 });
    python.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("told");
    assert!(python.wait().expect("waited").success());
}
