//! Real system calls on a real FUSE mount of a memfs lane.
//!
//! One ordinary test starts this program again in a mount namespace of its own, where the ignored
//! tests below run; without root or /dev/fuse it says so and does nothing.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use polylane_base::SystemClock;
use polylane_base::sync::{Arc, thread};
use polylane_front::Lane;
use polylane_front::fuse::{
    Ended, InitFlags, Params, ServeOptions, Stop, mount_options, negotiate_without, serve,
};
use polylane_vfs::handover::InFlight;
use polylane_vfs::memfs::MemFs;
use polylane_vfs::{Options, Vfs};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};

mod files;
mod locks;
mod pages;
mod service;

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
