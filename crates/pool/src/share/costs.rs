//! What requests cost on a device, measured by whoever coordinates it: once, beside the volume,
//! when the device has nothing to do.
//!
//! ```text
//! coordinator begins ─ 5 s ─► quiet for a second? ─ no ─► look again
//!                                │ yes
//!                                ▼
//!    16 MiB without a name beside the volume ─► read and written for half a second
//!                                │ others' requests among them: look again
//!                                ▼
//!    devices/MAJOR-MINOR.measured.json ─► lanes join again, to be charged by that
//! ```
//!
//! A pool's start does not wait for it, and nothing is left of a process that ends meanwhile: the
//! file has no name by then.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polylane_base::sync::atomic::{AtomicBool, Ordering};
use polylane_base::sync::{Arc, Mutex, thread};
use polylane_block::device::BlockDevice;
use polylane_block::file::{FileDevice, Files, Way};
use polylane_block::image;
use polylane_block::qos::calibrate::{self, Measured};
use polylane_block::qos::cost::CostModel;
use polylane_sys::event;

use super::cost_file;
use crate::bound::Number;

/// A coordinator that lives no longer measures nothing.
const BEGINS_AFTER: Duration = Duration::from_secs(5);

/// Time in which a quiet device has few requests ...
const QUIET: Duration = Duration::from_secs(1);
/// ... at most so many.
const QUIET_REQUESTS_MAX: u64 = 20;

/// Times that it is looked whether the device is quiet: an hour.
const LOOKS_MAX: u32 = 3600;

/// How long each of the six kinds of requests is measured.
const EACH: Duration = Duration::from_millis(80);

/// A disk that takes longer to be written [`calibrate::BYTES_MIN`] is not measured.
const FILL_TIME_MAX: Duration = Duration::from_secs(1);

/// The disk must have so many times that free.
const FREE_MIN: u64 = 64;

/// Where to measure, and where the result goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Scratch {
    /// A directory on the device.
    pub(crate) dir: PathBuf,
    /// The file for the result.
    pub(crate) result: PathBuf,
}

/// A measuring that goes on beside the coordinator. Its descriptor is readable once there is a
/// result. Dropped, it ends when it comes to it.
#[derive(Debug)]
pub(crate) struct Measuring {
    done: OwnedFd,
    result: Arc<Mutex<Option<CostModel>>>,
    stop: Arc<AtomicBool>,
}

impl Measuring {
    /// Starts one; `None` where the kernel does not say whether the device is quiet.
    pub(crate) fn start(scratch: Scratch, device: Number) -> Option<Measuring> {
        requests(device)?;
        let done = event::eventfd().ok()?;
        let (result, stop) = (Arc::new(Mutex::new(None)), Arc::new(AtomicBool::new(false)));
        let measuring = Measuring { done, result, stop };
        let (found, stop) = (measuring.result.clone(), measuring.stop.clone());
        let bell = measuring.done.try_clone().ok()?;
        let run = move || {
            // Nobody waits for it: the coordinator, from whom it has its priority, comes first.
            let _ = rustix::process::setpriority_process(None, 0);
            if let Some(cost) = measure_when_quiet(&scratch, device, &stop) {
                *found.lock() = Some(cost);
                event::notify(&bell);
            }
        };
        thread::Builder::new().name("polylane-costs".to_string()).spawn(run).ok()?;
        Some(measuring)
    }

    /// What was found.
    pub(crate) fn result(&self) -> Option<CostModel> {
        *self.result.lock()
    }
}

impl AsFd for Measuring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn measure_when_quiet(scratch: &Scratch, device: Number, stop: &AtomicBool) -> Option<CostModel> {
    thread::sleep(BEGINS_AFTER);
    for _ in 0..LOOKS_MAX {
        let before = requests(device)?;
        thread::sleep(QUIET);
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        if requests(device)?.saturating_sub(before) > QUIET_REQUESTS_MAX {
            continue;
        }
        let file = scratch_file(&scratch.dir)?;
        let before = requests(device)?;
        let measured = measure(file)?;
        if is_ours(requests(device)?.saturating_sub(before), measured.requests) {
            // What cannot be kept is measured again by the next one.
            let _ = store(&scratch.result, &measured.cost);
            return Some(measured.cost);
        }
    }
    None
}

/// Whether of so many requests to the device all but a few were the measuring's own.
fn is_ours(all: u64, own: u64) -> bool {
    all <= own.saturating_add(own / 8).saturating_add(2 * QUIET_REQUESTS_MAX)
}

/// Reads and writes that the device has done; `None` where the kernel does not count them.
fn requests((major, minor): Number) -> Option<u64> {
    let text = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    sum(&text)
}

/// The first and the fifth number of a disk's `stat`.
fn sum(text: &str) -> Option<u64> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |index: usize| words.get(index)?.parse::<u64>().ok();
    number(0)?.checked_add(number(4)?)
}

/// A file in `dir` that has no name any more, written once.
fn scratch_file(dir: &Path) -> Option<Files> {
    let room = rustix::fs::statvfs(dir).ok()?;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    if free < FREE_MIN * calibrate::BYTES_MIN {
        return None;
    }
    let path = dir.join(format!(".polylane-costs-{}", std::process::id()));
    OpenOptions::new().create_new(true).write(true).mode(0o600).open(&path).ok()?;
    let files = image::open(&path);
    let removed = fs::remove_file(&path);
    let files = files.ok().filter(|_| removed.is_ok())?;
    let begin = Instant::now();
    fill(&files).ok()?;
    (begin.elapsed() <= FILL_TIME_MAX).then_some(files)
}

fn fill(files: &Files) -> io::Result<()> {
    let file = File::from(files.plain.try_clone()?);
    let piece = vec![0x5a; 1 << 20];
    for at in (0..calibrate::BYTES_MIN).step_by(piece.len()) {
        file.write_all_at(&piece, at)?;
    }
    file.sync_data()
}

fn measure(files: Files) -> Option<Measured> {
    let device: Arc<dyn BlockDevice> = FileDevice::open(files, Way::Ring).ok()?;
    calibrate::measure(&device, EACH).ok()
}

/// Stores costs whole or not at all. No other user reads them: others may pass the state directory.
fn store(path: &Path, cost: &CostModel) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        // Former versions made it for everyone.
        fs::set_permissions(dir, PermissionsExt::from_mode(0o700))?;
    }
    let fresh = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut file = OpenOptions::new();
    let mut file = file.create(true).truncate(true).write(true).mode(0o600).open(&fresh)?;
    file.write_all(cost_file::text(cost).as_bytes())?;
    fs::rename(&fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_measured_and_gone() {
        let dir = tempfile::tempdir().expect("tempdir");
        let Some(files) = scratch_file(dir.path()) else {
            println!("skipped: no room, or a disk that is too slow at this moment");
            return;
        };
        assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 0);
        let measured = measure(files).expect("measured");
        assert!(measured.requests > 0);
        let result = dir.path().join("devices/8-0.measured.json");
        let devices = dir.path().join("devices");
        fs::create_dir(&devices).expect("mkdir");
        fs::set_permissions(&devices, PermissionsExt::from_mode(0o755)).expect("chmod");
        store(&result, &measured.cost).expect("stored");
        let text = fs::read_to_string(&result).expect("read");
        assert_eq!(cost_file::parse(&text).expect("JSON").cost, measured.cost);
        assert_eq!(fs::read_dir(&devices).expect("list").count(), 1);
        let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&devices), mode(&result)), (0o700, 0o600));
    }

    #[test]
    fn others_requests_are_told_from_our_own() {
        assert_eq!(sum("5 0 40 1 7 0 80 2 0 3 3 1 0 0 0 9 1\n"), Some(12));
        assert_eq!((sum(""), sum("1 2 3 4"), sum("1 2 3 4 x")), (None, None, None));
        assert!(is_ours(10_000, 10_000) && is_ours(4000, 10_000), "merged");
        assert!(!is_ours(13_000, 10_000) && !is_ours(100, 0));
    }

    #[test]
    fn nothing_is_measured_where_nothing_is_counted() {
        let scratch = Scratch { dir: PathBuf::from("/"), result: PathBuf::from("/nowhere") };
        assert!(Measuring::start(scratch, (0, 0)).is_none());
    }
}
