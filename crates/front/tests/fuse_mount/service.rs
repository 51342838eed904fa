//! What goes on over another service: slots, handles and requests in flight.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use polylane_base::sync::{Arc, thread};
use polylane_front::Lane;
use polylane_front::fuse::Ended;
use polylane_vfs::OpCtx;
use polylane_vfs::handover::{self, InFlight};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::{Mounted, Served, await_word, errno};

#[test]
#[ignore = "in a private mount namespace"]
fn a_file_handle_outlives_what_the_kernel_remembers() {
    let lane = Mounted::new("handle");
    let program = r#"
import ctypes, errno, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [('bytes', ctypes.c_uint), ('kind', ctypes.c_int), ('data', ctypes.c_ubyte * 128)]
handle, mount, path = Handle(128), ctypes.c_int(), sys.argv[1] + '/a'
with open(path, 'w') as file: file.write('bytes')
error = libc.name_to_handle_at(-100, path.encode(), ctypes.byref(handle), ctypes.byref(mount), 0)
assert error == 0, os.strerror(ctypes.get_errno())
lane = os.open(sys.argv[1], os.O_RDONLY)
print('handle', flush=True)
sys.stdin.readline()
path = sys.argv[1] + '/b'
file = libc.open_by_handle_at(lane, ctypes.byref(handle), os.O_RDWR)
assert file >= 0, os.strerror(ctypes.get_errno())
assert os.read(file, 9) == b'bytes'
assert os.fstat(file).st_ino == os.stat(path).st_ino
os.close(file)
os.unlink(path)
# The fast lane has it open still.
file = libc.open_by_handle_at(lane, ctypes.byref(handle), os.O_RDWR)
assert file >= 0, os.strerror(ctypes.get_errno())
assert os.read(file, 9) == b'bytes' and os.fstat(file).st_nlink == 0
os.close(file)
print('closed', flush=True)
sys.stdin.readline()
# The kernel keeps the inode until it is told that its own last close was heard of.
for _ in range(500):
    file = libc.open_by_handle_at(lane, ctypes.byref(handle), os.O_RDWR)
    if file < 0: break
    os.close(file)
    time.sleep(.01)
assert file == -1
assert ctypes.get_errno() == errno.ESTALE, os.strerror(ctypes.get_errno())
"#;
    let started = Command::new("python3")
        .args(["-c", program])
        .arg(&lane.at)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut python) = started else { return println!("skipped: no python3") };
    await_word(&mut python, "handle");
    let (vfs, root) = (&lane.lane.vfs, polylane_vfs::Cred::root());
    let node = vfs.lookup(&OpCtx::as_user(&root), &vfs.root(), b"a").expect("there");
    // As the fast lane does it: the kernel lets go of the name that is gone, and knows no other.
    vfs.rename(&OpCtx::as_user(&root), &vfs.root(), b"a", &vfs.root(), b"b", 0).expect("renamed");
    lane.lane.name_moved(&vfs.root(), b"a", &node);
    let forgotten = || lane.lane.nodes.id_of(&node).is_none();
    assert!((0..500).any(|_| {
        thread::sleep(Duration::from_millis(10));
        forgotten()
    }));
    let file = vfs.open(&OpCtx::as_user(&root), &node, libc::O_RDWR).expect("opens");
    drop(node);
    python.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("told");
    await_word(&mut python, "closed");
    drop(file);
    python.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("told");
    assert!(python.wait().expect("waited").success());
}

#[test]
#[ignore = "in a private mount namespace"]
fn a_slot_is_a_descriptor_of_the_bound_file() {
    let lane = Mounted::new("slots");
    let groups: Arc<[polylane_base::Gid]> = Arc::new([]);
    let token = polylane_front::lane::slots::Token::random().expect("random bytes");
    // The kernel names this thread in its requests, which is not the first of the process.
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let numbers = polylane_front::witness::Numbers { pid: std::process::id(), thread };
    let session = lane.lane.slots.open_session(token, (polylane_base::Uid(0), groups), numbers);
    let name = lane.path(&format!(".polylane-slots/{token}-5"));
    let flags = libc::O_CREAT;
    let slot = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&name);
    let slot = slot.expect("a slot");
    assert_eq!(errno(slot.read_at(&mut [0], 0)), libc::EBADF);
    fs::write(lane.path("a"), b"contents").expect("written");
    let vfs = &lane.lane.vfs;
    let root = polylane_vfs::Cred::root();
    let file = vfs
        .open_path(&OpCtx::as_user(&root), &vfs.root(), b"a", libc::O_RDWR, 0, 0)
        .expect("opened");
    session.bind(5, file).expect("bound");

    let mut text = String::new();
    (&slot).read_to_string(&mut text).expect("read");
    assert_eq!(text, "contents");
    let state = slot.metadata().expect("state");
    assert_eq!(state.ino(), fs::metadata(lane.path("a")).expect("state").ino());
    (&slot).write_all(b", more").expect("written");
    assert_eq!((&slot).seek(SeekFrom::End(0)).expect("sought"), 14);
    assert_eq!(fs::read(lane.path("a")).expect("read"), b"contents, more");
    slot.set_permissions(fs::Permissions::from_mode(0o640)).expect("chmod");
    assert_eq!(fs::metadata(lane.path("a")).expect("state").mode(), 0o100_640);

    // Through /proc: a second opening of the bound file, with its own offset and mode.
    let again = format!("/proc/self/fd/{}", slot.as_raw_fd());
    assert_eq!(fs::read(&again).expect("read"), b"contents, more");
    let mut reader = File::open(&again).expect("opened anew");
    drop(slot);
    fs::remove_file(lane.path("a")).expect("removed");
    assert_eq!(fs::read_dir(&lane.at).expect("listed").count(), 0);
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("read");
    assert_eq!(text, "contents, more");

    // A slot that is over leaves nothing behind, in the kernel neither.
    drop(reader);
    for _ in 0..100 {
        if lane.lane.nodes.is_empty() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("{} nodes are still known", lane.lane.nodes.len());
}

#[test]
#[ignore = "in a private mount namespace"]
fn a_file_that_the_fast_lane_removes_is_freed_although_the_kernel_knew_it() {
    let lane = Mounted::new("freed");
    fs::write(lane.path("a"), vec![1; 1 << 20]).expect("written");
    let (door, root) = (&lane.lane, polylane_vfs::Cred::root());
    let dir = door.vfs.root();
    let node = door.vfs.lookup(&OpCtx::as_user(&root), &dir, b"a").expect("found");
    door.vfs.unlink(&OpCtx::as_user(&root), &dir, b"a").expect("removed");
    door.name_gone(&dir, b"a", &node);
    drop(node);
    for _ in 0..100 {
        let totals = door.vfs.statfs(&OpCtx::service()).expect("totals");
        if totals.bfree == totals.blocks {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("the space is not free");
}

#[test]
#[ignore = "in a private mount namespace"]
fn a_second_service_takes_over_the_live_mount() {
    let mut mounted = Mounted::new("takeover");
    let program = r#"
import os, sys
os.chdir(sys.argv[1])
print('in', flush=True)
sys.stdin.readline()
for i in range(20):
    open(f'{sys.argv[1]}/n{i}', 'w').close()
"#;
    fs::write(mounted.path("before"), b"kept").expect("written");
    let open = mounted.file("before");
    let started = Command::new("python3")
        .args(["-c", program])
        .arg(&mounted.at)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let ended = mounted.served.take().expect("served").stop();
    assert_eq!(ended, Ended::Stopped);

    // No service runs: requests wait.
    let path = mounted.path("before");
    let waiting = thread::spawn(move || fs::read(path).expect("read"));
    thread::sleep(Duration::from_millis(50));
    assert!(!waiting.is_finished());

    let lane = Lane::new(mounted.lane.vfs.clone(), 1);
    mounted.lane = lane.clone();
    mounted.served = Some(Served::start(&mounted.device, lane, mounted.params, 1));
    assert_eq!(waiting.join().expect("no panic"), b"kept");
    fs::write(mounted.path("after"), b"new").expect("written");
    assert_eq!(fs::read(mounted.path("before")).expect("read"), b"kept");
    // What was open before says so, and does not hang.
    assert_eq!(errno(open.read_at(&mut [0], 0)), libc::EIO);
    if let Ok(mut python) = started {
        python.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("told");
        assert!(python.wait().expect("waited").success());
        assert!(mounted.path("n19").exists());
    }
}

#[test]
#[ignore = "in a private mount namespace"]
fn a_request_that_died_with_its_service_is_sent_again() {
    let mut mounted = Mounted::new("resend");
    if !mounted.params.resend() {
        return println!("skipped: this kernel does not send requests again (Linux 6.9 does)");
    }
    fs::write(mounted.path("a"), b"kept").expect("written");
    assert_eq!(mounted.served.take().expect("served").stop(), Ended::Stopped);
    let path = mounted.path("a");
    let asking = thread::spawn(move || fs::read(path).expect("read"));
    // A service reads the request and dies.
    let mut ready = [rustix::event::PollFd::new(&mounted.device, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut ready, None).expect("a request");
    let mut message = vec![0; (1 << 20) + 8192];
    assert!(rustix::io::read(&mounted.device, &mut message).expect("a request") >= 40);

    let lane = Lane::new(mounted.lane.vfs.clone(), 1);
    mounted.lane = lane.clone();
    mounted.served = Some(Served::start(&mounted.device, lane, mounted.params, 1));
    assert_eq!(asking.join().expect("no panic"), b"kept");
}

/// A service reads a request of the kernel's, and dies.
fn read_and_die(device: &OwnedFd) -> u64 {
    let mut ready = [rustix::event::PollFd::new(device, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut ready, None).expect("a request");
    let mut message = vec![0; (1 << 20) + 8192];
    assert!(rustix::io::read(device, &mut message).expect("a request") >= 40);
    u64::from_ne_bytes(message[8..16].try_into().expect("eight bytes"))
}

/// As before Linux 6.9: the kernel sends no request again.
#[test]
#[ignore = "in a private mount namespace"]
fn a_request_that_died_with_its_service_fails_on_older_kernels() {
    const HAS_RESEND: u64 = 1 << 39;
    let mut mounted = Mounted::without("no-resend", HAS_RESEND);
    assert!(!mounted.params.resend());
    let memfd = handover::Store::create().expect("memfd");
    let left = || Arc::new(InFlight::attach(&memfd).expect("map"));
    let start = |mounted: &mut Mounted, incarnation: u16| {
        let (lane, params) = (Lane::new(mounted.lane.vfs.clone(), incarnation), mounted.params);
        mounted.lane = lane.clone();
        let (device, in_flight) = (&mounted.device, Some(left()));
        mounted.served = Some(Served::start_after(device, lane, params, incarnation, in_flight));
    };
    for name in ["a", "b"] {
        fs::write(mounted.path(name), name).expect("written");
    }
    let file = mounted.file("a");
    let stop = |mounted: &mut Mounted| {
        assert_eq!(mounted.served.take().expect("served").stop(), Ended::Stopped);
    };
    stop(&mut mounted);
    // Two requests are in hand when the service dies. Of one it had not even written that down.
    let ask = |path: PathBuf| thread::spawn(move || fs::metadata(path).map(drop));
    let first = ask(mounted.path("a"));
    left().read(read_and_die(&mounted.device));
    let second = ask(mounted.path("b"));
    read_and_die(&mounted.device);
    thread::sleep(Duration::from_millis(50));
    assert!(!first.is_finished() && !second.is_finished());
    start(&mut mounted, 1);
    for asked in [first, second] {
        assert_eq!(errno(asked.join().expect("no panic")), libc::EIO);
    }
    assert_eq!(fs::read(mounted.path("b")).expect("as ever"), b"b");

    // One waits for a lock, and many others have come and gone since.
    stop(&mut mounted);
    let waiting = thread::spawn(move || rustix::fs::flock(&file, FlockOperation::LockShared));
    let asked = read_and_die(&mounted.device);
    left().waits_since(Some(asked));
    left().read(asked + 1_000_000);
    start(&mut mounted, 2);
    assert_eq!(waiting.join().expect("no panic"), Err(Errno::IO));
    assert_eq!(fs::read(mounted.path("a")).expect("as ever"), b"a");
}
