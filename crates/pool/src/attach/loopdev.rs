//! The `loop` front end's kernel side: a FUSE mount of one file, and a loop device on it.
//!
//! Nothing here has a name in any tree but the loop device: the mount is detached, and lives as
//! long as the loop device holds its file open.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polylane_base::Errno;
use polylane_base::sync::thread;
use polylane_block::cache::Mode as CacheMode;
use polylane_block::file::Files;
use polylane_front::export::file;
use polylane_front::fuse::Params;
use polylane_sys::{backing, loopdev};
use polylane_volume::cache::CacheSpec;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::mount::MountAttrFlags;

use super::device;
use super::record::Record;
use crate::failure::{Failure, Result};
use crate::fuse_device;
use crate::mounts::{self, Parameter};

/// Where free loop devices are to be had.
pub(super) const CONTROL: &str = "/dev/loop-control";

/// How long the kernel may take to send FUSE_INIT after the mount.
const INIT_TIME_MAX_S: u32 = 10;

/// Free devices that somebody else may take before we do.
const TRIES_MAX: usize = 64;

/// How long a loop device may take to let go of its file once it was told to: a program that looks
/// at every new device may have it open for a moment.
const CLEAR_TIME_MAX: Duration = Duration::from_secs(10);

/// What loop devices may ask for; a host whose direct I/O wants more is not passed through to.
const SECTOR_BYTES: u32 = 512;

/// A mount of one file.
#[derive(Debug)]
pub(super) struct FileMount {
    /// The FUSE device.
    pub(super) fuse: OwnedFd,
    /// The detached mount, which goes with it unless its file is open.
    pub(super) mount: OwnedFd,
    /// What FUSE_INIT agreed on.
    pub(super) params: Params,
}

/// Makes the mount.
pub(super) fn mount() -> Result<FileMount> {
    let fuse = fuse_device::open_fuse()?;
    let owner = [rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()];
    let parameters = [
        Parameter::Value("source", "polylane".to_string()),
        Parameter::Value("subtype", "polylane".to_string()),
        Parameter::Value("fd", fuse.as_raw_fd().to_string()),
        Parameter::Value("rootmode", "40500".to_string()),
        Parameter::Value("user_id", owner[0].to_string()),
        Parameter::Value("group_id", owner[1].to_string()),
    ];
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount = mounts::create("fuse", &parameters, attributes)
        .map_err(|error| Failure::because("/dev/fuse", "mount a file through it", error))?;
    let params = file::negotiate(&fuse, INIT_TIME_MAX_S)
        .map_err(|error| Failure::because("/dev/fuse", "agree on a protocol", error))?;
    Ok(FileMount { fuse, mount, params })
}

/// The name of the file of an attachment: its path is what programs see of it, and must be no other
/// attachment's.
pub(super) fn file_name(id: &str) -> String {
    format!("polylane-{id}")
}

/// Lets the kernel read and write the volume's file itself, where that is the same as through the
/// engine: an ordinary file with direct I/O in sectors, nothing under it and no cache. The file's
/// number at the mount, or why it cannot be.
pub(super) fn pass_through(
    mount: &FileMount,
    files: &[Files],
    cache: &CacheSpec,
) -> Result<u32, String> {
    let [file] = files else {
        return Err("it is not one file: 'volume resize VOLUME ITS-SIZE' makes it one".to_string());
    };
    if !mount.params.passthrough() {
        return Err("this kernel's FUSE cannot (Linux 6.9 can)".to_string());
    }
    if cache.mode != CacheMode::None {
        return Err("it is cached: add --cache none".to_string());
    }
    if !is_direct(file).unwrap_or(false) {
        return Err("its host has no direct I/O in sectors of 512 bytes".to_string());
    }
    // With its lock: whoever can still write keeps others out, also when the keeper is dead.
    backing::register(&mount.fuse, &file.lock)
        .map_err(|error| format!("the kernel does not take its file: {error}"))
}

/// Whether a volume's file is an ordinary one with direct I/O in sectors.
fn is_direct(file: &Files) -> rustix::io::Result<bool> {
    let flags = rustix::fs::fcntl_getfl(&file.io)?;
    let wanted = StatxFlags::TYPE | StatxFlags::DIOALIGN;
    let told = rustix::fs::statx(&file.io, "", AtFlags::EMPTY_PATH, wanted)?;
    let regular = FileType::from_raw_mode(told.stx_mode.into()) == FileType::RegularFile;
    let aligned = (1..=SECTOR_BYTES).contains(&told.stx_dio_offset_align);
    Ok(regular && aligned && flags.contains(OFlags::DIRECT))
}

/// Puts the file of `mount` under a free loop device. `record` is told its path before that.
pub(super) fn engage(
    mount: &OwnedFd,
    id: &str,
    mut record: impl FnMut(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(mount, file_name(id), flags, Mode::empty())
        .map_err(|error| Failure::because("volume", "open it as a file", error))?;
    let control = rustix::fs::open(CONTROL, flags, Mode::empty())
        .map_err(|error| Failure::because(CONTROL, "open it", error))?;
    for _ in 0..TRIES_MAX {
        let number = loopdev::free(&control)
            .map_err(|error| Failure::because(CONTROL, "get a loop device", error))?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        record(&path)?;
        let device = rustix::fs::open(&path, flags, Mode::empty())
            .map_err(|error| Failure::path(&path, "open it", error))?;
        match loopdev::configure(&device, &file, &file_name(id), false) {
            Ok(()) => return Ok(path),
            Err(Errno::EBUSY) => {}
            Err(error) => return Err(Failure::path(&path, "put the volume under it", error)),
        }
    }
    Err(Failure::because(CONTROL, "get a loop device", Errno::EBUSY))
}

/// Takes the loop device of an attachment away, after what it holds was written.
///
/// # Errors
/// It is mounted or open exclusively.
pub(super) fn disengage(record: &Record) -> Result<()> {
    let Some(path) = &record.device else { return Ok(()) };
    if !is_ours(path, &record.id) {
        // It went by itself, or never came; the number may be somebody else's by now.
        return Ok(());
    }
    let device = device::exclusively(path)?;
    // Of an engine that is dead for good nothing can be had any more; whoever lost data was told.
    let _ = rustix::fs::fsync(&device);
    loopdev::clear(&device).map_err(|error| Failure::path(path, "take the volume off", error))?;
    drop(device);
    let start = Instant::now();
    while is_bound(path) && start.elapsed() < CLEAR_TIME_MAX {
        thread::sleep(Duration::from_millis(5));
    }
    match is_bound(path) {
        false => Ok(()),
        true => Err(Failure::failed(format!(
            "{}: is open in a program: it goes when that ends",
            path.display()
        ))),
    }
}

/// Whether a loop device lies on the file of an attachment. The device itself would ask whoever
/// serves the file, who may be dead.
fn is_ours(path: &Path, id: &str) -> bool {
    let name = path.file_name().unwrap_or_default();
    let file = fs::read_to_string(Path::new("/sys/block").join(name).join("loop/backing_file"));
    file.is_ok_and(|file| file.trim_end() == format!("/{}", file_name(id)))
}

/// Whether a loop device has a file.
fn is_bound(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    fs::exists(Path::new("/sys/block").join(name).join("loop")).unwrap_or(false)
}

/// The loop device takes the volume's new size over.
pub(super) fn grown(record: &Record) -> Result<()> {
    let Some(path) = &record.device else { return Ok(()) };
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| Failure::path(path, "open it", error))?;
    loopdev::set_capacity(device.as_fd())
        .map_err(|error| Failure::path(path, "give it the new size", error))
}
