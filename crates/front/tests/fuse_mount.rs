//! Real system calls on a real FUSE mount of a memfs lane.
//!
//! One ordinary test starts this program again in a mount namespace of its own, where the ignored
//! tests below run; without root or /dev/fuse it says so and does nothing.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use polylane_base::SystemClock;
use polylane_base::sync::atomic::Ordering;
use polylane_base::sync::{Arc, thread};
use polylane_front::Lane;
use polylane_front::fuse::{
    Ended, InitFlags, Params, ServeOptions, Stop, mount_options, negotiate_without, serve,
};
use polylane_front::lane::notifier::Range;
use polylane_front::lane::tag::TAG_KEPT;
use polylane_vfs::handover::{self, InFlight};
use polylane_vfs::memfs::MemFs;
use polylane_vfs::{OpCtx, Options, Vfs};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags, XattrFlags,
};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

const HELPER: &str = "POLYLANE_TEST_HELPER";

#[test]
fn fuse_mount_in_a_private_namespace() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root");
    }
    if File::options().read(true).write(true).open("/dev/fuse").is_err() {
        return println!("skipped: /dev/fuse cannot be opened");
    }
    let this = std::env::current_exe().expect("the path of this program");
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(this)
        // One at a time: between fork and exec, a child that one test starts holds copies of
        // another's descriptors, and with them its locks and its right to write what is to be
        // executed.
        .args(["--ignored", "--skip", "helper_", "--test-threads", "1"])
        .status()
        .expect("unshare starts");
    assert!(status.success(), "{status}");
}

fn vfs(path: &Path) -> Arc<Vfs> {
    let clock = Arc::new(SystemClock);
    let fs = Arc::new(MemFs::new(256 << 20, 100_000, clock.clone()));
    let options = Options {
        clock,
        cache_bytes_limit: 1 << 20,
        dirty_bytes_limit: 1 << 20,
        flush_interval: Duration::from_secs(5),
        mount_path: path.to_string_lossy().into_owned().into_bytes(),
        covered: vec![],
    };
    Vfs::new(fs, options).expect("an empty memfs opens")
}

struct Served {
    stop: Stop,
    thread: thread::JoinHandle<std::io::Result<Ended>>,
}

impl Served {
    fn start(device: &OwnedFd, lane: Arc<Lane>, params: Params, incarnation: u16) -> Served {
        Served::start_after(device, lane, params, incarnation, None)
    }

    /// The next one finds in `in_flight` what is left unanswered.
    fn start_after(
        device: &OwnedFd,
        lane: Arc<Lane>,
        params: Params,
        incarnation: u16,
        in_flight: Option<Arc<InFlight>>,
    ) -> Served {
        let stop = Stop::new().expect("an eventfd");
        let (device, stopped) = (device.try_clone().expect("a descriptor"), stop.clone());
        let options = ServeOptions { params: Some(params), incarnation, threads: 2, in_flight };
        let thread = thread::spawn(move || serve(device, lane, options, &stopped));
        Served { stop, thread }
    }

    fn stop(self) -> Ended {
        self.stop.request();
        self.thread.join().expect("no panic").expect("no failure")
    }
}

/// A mounted lane; unmounted when dropped. Files on it must be closed before.
struct Mounted {
    at: PathBuf,
    device: OwnedFd,
    lane: Arc<Lane>,
    params: Params,
    served: Option<Served>,
}

impl Mounted {
    fn new(name: &str) -> Mounted {
        Mounted::without(name, 0)
    }

    /// As a kernel would mount that lacks the INIT flags in `unwanted`.
    fn without(name: &str, unwanted: u64) -> Mounted {
        let at = std::env::temp_dir().join(format!("polylane-{}-{name}", std::process::id()));
        fs::create_dir_all(&at).expect("a mount point");
        let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .expect("/dev/fuse");
        let options = CString::new(mount_options(device.as_raw_fd(), 0, 0, true)).expect("text");
        let (kind, flags) = ("fuse.polylane", MountFlags::empty());
        rustix::mount::mount("test", &at, kind, flags, Some(options.as_c_str())).expect("mounted");
        let params = negotiate_without(&device, 5000, InitFlags::from_bits_retain(unwanted))
            .expect("negotiated");
        let lane = Lane::new(vfs(&at), 0);
        let served = Some(Served::start(&device, lane.clone(), params, 0));
        Mounted { at, device, lane, params, served }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    fn file(&self, name: &str) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).open(self.path(name)).expect("opened")
    }

    /// Starts one of the helpers below in a process of its own.
    fn helper(&self, name: &str) -> std::process::Child {
        Command::new(std::env::current_exe().expect("the path of this program"))
            .args(["--ignored", "--exact", name, "--nocapture"])
            .env(HELPER, &self.at)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the helper starts")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _busy = rustix::mount::unmount(&self.at, UnmountFlags::DETACH);
        if let Some(served) = self.served.take() {
            let ended = served.stop();
            if !thread::panicking() {
                assert!(matches!(ended, Ended::Stopped | Ended::Unmounted));
            }
        }
        let _busy = fs::remove_dir(&self.at);
    }
}

/// Waits for a line of a helper that holds `word`.
fn await_word(helper: &mut std::process::Child, word: &str) {
    let mut seen = Vec::new();
    let output = helper.stdout.as_mut().expect("a pipe");
    while !String::from_utf8_lossy(&seen).contains(word) {
        let mut byte = [0];
        assert_eq!(output.read(&mut byte).expect("output"), 1, "{word} in {seen:?}");
        seen.push(byte[0]);
    }
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.expect_err("an error").raw_os_error().expect("an errno")
}

#[test]
#[ignore = "in a private mount namespace"]
fn files_are_made_written_read_and_removed() {
    let lane = Mounted::new("files");
    let mut file = lane.file("a");
    file.write_all(b"hello world").expect("written");
    file.seek(SeekFrom::Start(6)).expect("sought");
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text, "world");
    let large: Vec<u8> = (0..5 << 20).map(|i| (i * 7 % 251) as u8).collect();
    fs::write(lane.path("large"), &large).expect("written");
    assert!(fs::read(lane.path("large")).expect("read") == large);
    assert_eq!(fs::metadata(lane.path("large")).expect("state").len(), large.len() as u64);

    fs::rename(lane.path("a"), lane.path("b")).expect("renamed");
    assert_eq!(errno(fs::metadata(lane.path("a"))), libc::ENOENT);
    fs::hard_link(lane.path("b"), lane.path("c")).expect("linked");
    assert_eq!(fs::metadata(lane.path("c")).expect("state").nlink(), 2);
    symlink("b", lane.path("s")).expect("linked");
    assert_eq!(fs::read_link(lane.path("s")).expect("read"), Path::new("b"));
    assert_eq!(fs::read(lane.path("s")).expect("followed"), b"hello world");
    fs::remove_file(lane.path("b")).expect("removed");
    fs::remove_file(lane.path("c")).expect("removed");
    // Open and nameless, it lives on.
    assert_eq!(file.metadata().expect("state").nlink(), 0);
    file.write_all_at(b"HELLO", 0).expect("written");
    let mut start = [0; 5];
    file.read_exact_at(&mut start, 0).expect("read");
    assert_eq!(&start, b"HELLO");
    assert_eq!(errno(fs::write(lane.path(&"n".repeat(256)), b"")), libc::ENAMETOOLONG);
}

#[test]
#[ignore = "in a private mount namespace"]
fn the_kernel_gives_back_what_it_no_longer_knows() {
    let lane = Mounted::new("forget");
    for i in 0..200 {
        fs::create_dir(lane.path(&format!("d{i}"))).expect("made");
        fs::write(lane.path(&format!("d{i}/f")), b"x").expect("written");
    }
    for i in 0..200 {
        fs::remove_dir_all(lane.path(&format!("d{i}"))).expect("removed");
    }
    for _ in 0..100 {
        if lane.lane.nodes.is_empty() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("{} nodes are still known", lane.lane.nodes.len());
}

/// Lookups, forgets, creations and removals of the same few names, all at once, from outside and
/// inside the kernel: in the end every count must be back at nothing.
#[test]
#[ignore = "in a private mount namespace"]
fn counts_stay_exact_under_a_crowd() {
    let lane = Mounted::new("crowd");
    thread::scope(|scope| {
        for seed in 0..4 {
            let lane = &lane;
            scope.spawn(move || crowd_from_outside(lane, seed));
        }
        let door = &lane.lane;
        scope.spawn(|| crowd_from_inside(door));
    });
    for name in 0..NAMES {
        let _gone = fs::remove_file(lane.path(&format!("{name}")));
        let _gone = fs::remove_dir(lane.path(&format!("{name}")));
    }
    assert_eq!(fs::read_dir(&lane.at).expect("listed").count(), 0);
    for _ in 0..200 {
        if lane.lane.nodes.is_empty() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("{} nodes are still known", lane.lane.nodes.len());
}

const NAMES: u64 = 12;
const ROUNDS: usize = 1500;

fn crowd_from_outside(lane: &Mounted, seed: u64) {
    let mut rng = polylane_base::rng::Rng::new(seed);
    for _ in 0..ROUNDS {
        let path = lane.path(&rng.below(NAMES).to_string());
        let other = lane.path(&rng.below(NAMES).to_string());
        let _any_outcome = match rng.below(9) {
            0 | 1 => fs::write(&path, b"data"),
            2 => fs::read(&path).map(drop),
            3 => fs::metadata(&path).map(drop),
            4 => fs::remove_file(&path),
            5 => fs::rename(&path, &other),
            6 => fs::hard_link(&path, &other),
            7 => fs::create_dir(&path).and_then(|()| fs::remove_dir(&path)),
            _ => fs::read_dir(&lane.at).map(|entries| assert!(entries.count() < 1000)),
        };
    }
}

/// What the fast lane does to the same names.
fn crowd_from_inside(door: &Lane) {
    let (mut rng, root) = (polylane_base::rng::Rng::new(99), polylane_vfs::Cred::root());
    let dir = door.vfs.root();
    for _ in 0..ROUNDS {
        let name = rng.below(NAMES).to_string().into_bytes();
        let other = rng.below(NAMES).to_string().into_bytes();
        if rng.percent(50) {
            if let Ok(Some(gone)) = door.vfs.take_unlinked(&OpCtx::as_user(&root), &dir, &name) {
                door.name_gone(&dir, &name, &gone);
            }
        } else if let Ok(names) =
            door.vfs.take_renamed(&OpCtx::as_user(&root), &dir, &name, &dir, &other, 0)
        {
            door.name_moved(&dir, &name, &names.moved);
            if let Some(replaced) = names.replaced {
                door.name_gone(&dir, &other, &replaced);
            }
        }
        thread::sleep(Duration::from_micros(100));
    }
}

#[test]
#[ignore = "in a private mount namespace"]
fn modes_owners_times_and_sizes_change() {
    let lane = Mounted::new("attrs");
    let path = lane.path("a");
    let file = lane.file("a");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).expect("chmod");
    assert_eq!(file.metadata().expect("state").mode(), 0o104_751);
    std::os::unix::fs::chown(&path, Some(12), Some(34)).expect("chown");
    let state = file.metadata().expect("state");
    assert_eq!((state.uid(), state.gid(), state.mode()), (12, 34, 0o100_751), "set-id goes");
    file.set_len(10_000).expect("grown");
    let times = fs::FileTimes::new();
    let then = std::time::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    file.set_times(times.set_accessed(then).set_modified(then)).expect("times");
    let state = file.metadata().expect("state");
    assert_eq!(
        (state.mtime(), state.mtime_nsec(), state.len()),
        (1_000_000_000, 123_456_789, 10_000)
    );
    assert!(state.created().is_ok(), "a time of birth");
    file.set_len(3).expect("shrunk");
    assert_eq!(fs::read(&path).expect("read"), [0; 3]);
    rustix::fs::access(&path, rustix::fs::Access::READ_OK).expect("readable");
    let totals = rustix::fs::statvfs(&path).expect("totals");
    assert_eq!((totals.f_namemax, totals.f_frsize), (255, 4096));
    assert!(totals.f_bfree <= totals.f_blocks && totals.f_blocks == 65_536);
}

#[test]
#[ignore = "in a private mount namespace"]
fn the_umask_and_set_gid_directories_are_honoured() {
    let lane = Mounted::new("umask");
    let mode = |path: &Path| fs::symlink_metadata(path).expect("state").mode() & 0o7777;
    let old = rustix::process::umask(Mode::from_raw_mode(0o027));
    fs::create_dir(lane.path("d")).expect("made");
    drop(lane.file("d/f"));
    rustix::fs::mknodat(CWD, lane.path("p"), rustix::fs::FileType::Fifo, 0o666.into(), 0)
        .expect("a fifo");
    rustix::process::umask(old);
    assert_eq!(mode(&lane.path("d")), 0o750);
    assert_eq!(mode(&lane.path("d/f")), 0o640);
    assert_eq!(mode(&lane.path("p")), 0o640);
    std::os::unix::fs::chown(lane.path("d"), None, Some(77)).expect("chown");
    fs::set_permissions(lane.path("d"), fs::Permissions::from_mode(0o2777)).expect("chmod");
    fs::create_dir(lane.path("d/sub")).expect("made");
    let sub = fs::metadata(lane.path("d/sub")).expect("state");
    assert_eq!((sub.gid(), sub.mode() & 0o2000), (77, 0o2000));
}

#[test]
#[ignore = "in a private mount namespace"]
fn device_nodes_keep_their_numbers() {
    let lane = Mounted::new("nodes");
    let device = rustix::fs::makedev(0x123, 0x6_789a);
    let kind = rustix::fs::FileType::CharacterDevice;
    rustix::fs::mknodat(CWD, lane.path("c"), kind, 0o600.into(), device).expect("a node");
    assert_eq!(fs::metadata(lane.path("c")).expect("state").rdev(), device);
}

#[test]
#[ignore = "in a private mount namespace"]
fn renameat2_swaps_refuses_and_whites_out() {
    let lane = Mounted::new("rename");
    let (a, b) = (lane.path("a"), lane.path("b"));
    fs::write(&a, b"a").expect("written");
    fs::write(&b, b"b").expect("written");
    let rename = |flags| rustix::fs::renameat_with(CWD, &a, CWD, &b, flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).expect("swapped");
    assert_eq!(
        (fs::read(&a).expect("read"), fs::read(&b).expect("read")),
        (b"b".into(), b"a".into())
    );
    rename(RenameFlags::WHITEOUT).expect("moved");
    assert_eq!(fs::metadata(&a).expect("a whiteout").rdev(), 0);
    assert_eq!(fs::read(&b).expect("read"), b"b");
    fs::create_dir(lane.path("d")).expect("made");
    let into_itself = fs::rename(lane.path("d"), lane.path("d/e"));
    assert_eq!(errno(into_itself), libc::EINVAL);
}

#[test]
#[ignore = "in a private mount namespace"]
fn a_nameless_file_gets_a_name() {
    let lane = Mounted::new("tmpfile");
    let flags = libc::O_TMPFILE;
    let mut file =
        OpenOptions::new().write(true).custom_flags(flags).open(&lane.at).expect("opened");
    file.write_all(b"kept").expect("written");
    assert_eq!(fs::read_dir(&lane.at).expect("listed").count(), 0);
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, from, CWD, lane.path("named"), AtFlags::SYMLINK_FOLLOW)
        .expect("linked");
    assert_eq!(fs::read(lane.path("named")).expect("read"), b"kept");
}

#[test]
#[ignore = "in a private mount namespace"]
fn holes_are_made_found_and_filled() {
    let lane = Mounted::new("holes");
    let file = lane.file("a");
    file.write_all_at(&[1; 65_536], 0).expect("written");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 4096, 8192).expect("punched");
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), Ok(4096));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(4096)), Ok(12_288));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(70_000)), Err(Errno::NXIO));
    assert_eq!(file.metadata().expect("state").blocks(), (65_536 - 8192) / 512);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 65_536, 4096).expect("grown");
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 69_632, 4096).expect("reserved");
    assert_eq!(file.metadata().expect("state").len(), 69_632);
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 0, 100).expect("zeroed");
    let mut start = [9; 101];
    file.read_exact_at(&mut start, 0).expect("read");
    assert_eq!((start[99], start[100]), (0, 1));
    file.sync_all().expect("synced");
    file.sync_data().expect("synced");
}

#[test]
#[ignore = "in a private mount namespace"]
fn ranges_are_copied_inside() {
    let lane = Mounted::new("copy");
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i % 253) as u8).collect();
    fs::write(lane.path("a"), &data).expect("written");
    assert_eq!(fs::copy(lane.path("a"), lane.path("b")).expect("copied"), data.len() as u64);
    assert!(fs::read(lane.path("b")).expect("read") == data);
    let (a, c) = (lane.file("a"), lane.file("c"));
    let (mut from, mut to) = (1000, 5);
    let copied = rustix::fs::copy_file_range(&a, Some(&mut from), &c, Some(&mut to), 70_000);
    assert_eq!(copied, Ok(70_000));
    let mut piece = vec![0; 70_000];
    c.read_exact_at(&mut piece, 5).expect("read");
    assert!(piece == data[1000..71_000]);
}

#[test]
#[ignore = "in a private mount namespace"]
fn extended_attributes_come_and_go() {
    let lane = Mounted::new("xattr");
    let path = lane.path("a");
    fs::write(&path, b"").expect("written");
    let set = |name: &str, value: &[u8], how| rustix::fs::setxattr(&path, name, value, how);
    set("user.one", b"1", XattrFlags::CREATE).expect("set");
    assert_eq!(set("user.one", b"2", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.two", b"2", XattrFlags::REPLACE), Err(Errno::NODATA));
    set("trusted.three", &[3; 4000], XattrFlags::empty()).expect("set");
    let mut names = vec![0; 1024];
    let count = rustix::fs::listxattr(&path, names.as_mut_slice()).expect("listed");
    let mut list: Vec<_> =
        names[..count].split(|byte| *byte == 0).filter(|n| !n.is_empty()).collect();
    list.sort_unstable();
    assert_eq!(list, [b"trusted.three".as_slice(), b"user.one"]);
    let mut value = vec![0; 8000];
    assert_eq!(rustix::fs::getxattr(&path, "trusted.three", value.as_mut_slice()), Ok(4000));
    assert_eq!(rustix::fs::getxattr(&path, "trusted.three", &mut value[..10]), Err(Errno::RANGE));
    rustix::fs::removexattr(&path, "user.one").expect("removed");
    assert_eq!(rustix::fs::getxattr(&path, "user.one", value.as_mut_slice()), Err(Errno::NODATA));
    let acl = "system.posix_acl_access";
    assert_eq!(rustix::fs::getxattr(&path, acl, value.as_mut_slice()), Err(Errno::NODATA));
    drop(lane);
    // As mounted for a file system without access control lists, or by a former version.
    let lane = Mounted::without("xattr", POSIX_ACL);
    let path = lane.path("a");
    fs::write(&path, b"").expect("written");
    assert_eq!(rustix::fs::getxattr(&path, acl, value.as_mut_slice()), Err(Errno::OPNOTSUPP));
}

#[test]
#[ignore = "in a private mount namespace"]
fn a_listing_survives_removal_of_what_it_lists() {
    let lane = Mounted::new("list");
    const COUNT: usize = 10_000;
    for i in 0..COUNT {
        drop(lane.file(&format!("{i}")));
    }
    let mut seen = std::collections::HashSet::new();
    for entry in fs::read_dir(&lane.at).expect("opened") {
        let name = entry.expect("an entry").file_name();
        fs::remove_file(lane.at.join(&name)).expect("removed");
        assert!(seen.insert(name), "seen twice");
    }
    assert_eq!(seen.len(), COUNT);
    assert_eq!(fs::read_dir(&lane.at).expect("opened").count(), 0);
    for dir in ["t/u/v", "t/w", "t/u/x"] {
        fs::create_dir_all(lane.path(dir)).expect("made");
        fs::write(lane.path(dir).join("f"), dir).expect("written");
    }
    assert_eq!(errno(fs::remove_dir(lane.path("t"))), libc::ENOTEMPTY);
    fs::remove_dir_all(lane.path("t")).expect("removed");
}

#[test]
#[ignore = "in a private mount namespace"]
fn the_reserved_names_are_hidden() {
    let lane = Mounted::new("reserved");
    assert_eq!(fs::read_dir(&lane.at).expect("listed").count(), 0);
    let state = fs::metadata(lane.path(".polylane")).expect("there");
    assert_eq!((state.is_dir(), state.mode() & 0o777), (true, 0o755));
    assert_eq!(fs::read_dir(lane.path(".polylane")).expect("listed").count(), 0);
    assert_eq!(errno(fs::create_dir(lane.path(".polylane"))), libc::EEXIST);
    assert_eq!(errno(fs::remove_dir(lane.path(".polylane"))), libc::EBUSY);
    assert_eq!(errno(File::create(lane.path(".polylane/x"))), libc::EPERM);
    assert_eq!(errno(File::create(lane.path(".polylane-slots/x"))), libc::EACCES);
    // Something can be mounted on it: the run directory.
    let at = lane.path(".polylane");
    rustix::mount::mount("run", &at, "tmpfs", MountFlags::empty(), None).expect("mounted");
    fs::write(at.join("socket"), b"").expect("written");
    rustix::mount::unmount(&at, UnmountFlags::empty()).expect("unmounted");
}

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
    // Whoever has it open for writing keeps it direct.
    let writer = open();
    write(4);
    assert_eq!(read(), 4);
    drop(writer);
    let mut kernels = OpenOptions::new().write(true).open(lane.path("a")).expect("opened");
    kernels.write_all(&[5; 8192]).expect("written");
    write(6);
    assert_eq!(read(), 6);
}

/// Runs a Python program that has the lane's path as its argument; Python has mmap without
/// `unsafe`.
fn python(lane: &Mounted, program: &str) {
    let age = if lane.params.direct_mmap() { "new" } else { "old" };
    let run = Command::new("python3").arg("-c").arg(program).arg(&lane.at).arg(age).status();
    match run {
        Err(error) if error.kind() == ErrorKind::NotFound => println!("skipped: no python3"),
        run => assert!(run.expect("python3 starts").success(), "see above"),
    }
}

#[test]
#[ignore = "in a private mount namespace"]
fn shared_mappings_see_each_other_and_the_file() {
    shared_mappings(&Mounted::new("mmap"));
}

/// As on Linux before 6.6: data goes through the page cache.
const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
/// The same for access control lists.
const POSIX_ACL: u64 = 1 << 20;

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

#[test]
#[ignore = "in a private mount namespace"]
fn programs_run_from_the_lane() {
    let lane = Mounted::new("exec");
    let (from, to) = (Path::new("/bin/echo"), lane.path("echo"));
    fs::copy(from, &to).expect("copied");
    let output = Command::new(&to).arg("it runs").output().expect("started");
    assert_eq!(output.stdout, b"it runs\n");
    fs::write(lane.path("script"), "#!/bin/sh\nexit 7\n").expect("written");
    fs::set_permissions(lane.path("script"), fs::Permissions::from_mode(0o755)).expect("chmod");
    assert_eq!(Command::new(lane.path("script")).status().expect("started").code(), Some(7));
}

#[test]
#[ignore = "in a private mount namespace"]
fn locks_hold_between_processes() {
    let lane = Mounted::new("locks");
    let file = lane.file("a");
    let mut helper = lane.helper("helper_that_locks");
    await_word(&mut helper, "locked");
    let try_posix = || rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive);
    let try_flock = || rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(try_posix(), Err(Errno::AGAIN));
    assert_eq!(try_flock(), Err(Errno::AGAIN));
    let waiting = file.as_fd().try_clone_to_owned().expect("a descriptor");
    let waiter = thread::spawn(move || {
        rustix::fs::fcntl_lock(&waiting, FlockOperation::LockExclusive)?;
        rustix::fs::flock(&waiting, FlockOperation::LockExclusive)?;
        // Closing it would drop the process's POSIX locks.
        Ok::<_, Errno>(waiting)
    });
    // While one waits, everybody else is served, however few the service's threads.
    for _ in 0..50 {
        fs::write(lane.path("b"), b"served").expect("written");
    }
    assert!(!waiter.is_finished());
    // Its process dies: its locks go.
    helper.kill().expect("killed");
    helper.wait().expect("gone");
    let _open = waiter.join().expect("no panic").expect("locked");
    let mut helper = lane.helper("helper_that_is_refused");
    assert!(helper.wait().expect("waited").success());
}

/// close(2) returns before the kernel has told us: the next flock must not see the last one.
#[test]
#[ignore = "in a private mount namespace"]
fn a_closed_descriptors_flock_is_in_nobodys_way() {
    python(
        &Mounted::new("flock"),
        r#"
import fcntl, os, sys
for _ in range(5000):
    f = os.open(sys.argv[1] + '/a', os.O_RDWR | os.O_CREAT)
    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(f)
"#,
    );
}

#[test]
#[ignore = "a process of its own, for locks_hold_between_processes"]
fn helper_that_locks() {
    let Ok(at) = std::env::var(HELPER) else { return };
    let file = OpenOptions::new().read(true).write(true).open(Path::new(&at).join("a")).expect("a");
    rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive).expect("locked");
    rustix::fs::flock(&file, FlockOperation::LockExclusive).expect("locked");
    println!("locked");
    let _closed = std::io::stdin().read(&mut [0]);
    thread::sleep(Duration::from_secs(60));
}

#[test]
#[ignore = "a process of its own, for locks_hold_between_processes"]
fn helper_that_is_refused() {
    let Ok(at) = std::env::var(HELPER) else { return };
    let file = OpenOptions::new().read(true).write(true).open(Path::new(&at).join("a")).expect("a");
    let refused = rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockShared);
    assert_eq!(refused, Err(Errno::AGAIN));
    let refused = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
    assert_eq!(refused, Err(Errno::AGAIN));
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

    // Nobody serves: requests wait.
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

/// As before Linux 6.9: nobody sends anything again.
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
