//! The FUSE device: opened, and what keeps it from opening.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::failure::{Failure, Result};

/// Its path ...
pub(crate) const FUSE_DEVICE: &str = "/dev/fuse";
/// ... and its numbers (`MISC_MAJOR`, `FUSE_MINOR` of linux/miscdevice.h).
const FUSE_MAJOR: u32 = 10;
const FUSE_MINOR: u32 = 229;

/// Opens the FUSE device.
pub(crate) fn open_fuse() -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open(FUSE_DEVICE, flags, Mode::empty()).map_err(|error| {
        let why = Failure::because(FUSE_DEVICE, "open it", error);
        Failure::failed(format!("{why}: {}", fuse_remedy(error)))
    })?;
    match rustix::fs::fstat(&device) {
        Ok(stat) if stat.st_rdev == rustix::fs::makedev(FUSE_MAJOR, FUSE_MINOR) => Ok(device),
        _ => Err(Failure::failed(format!("{FUSE_DEVICE}: not the FUSE device (character 10:229)"))),
    }
}

/// What to do about a FUSE device that cannot be opened.
pub(crate) fn fuse_remedy(error: Errno) -> &'static str {
    match error {
        Errno::NOENT => "load the fuse module, or give the container this device",
        Errno::NXIO | Errno::NODEV => "load the fuse module",
        // The mode of the file lets root pass; what is left is the control group of devices.
        Errno::PERM => "let the container have this device (character 10:229)",
        Errno::ACCESS if rustix::process::geteuid().is_root() => {
            "allow it: a security module or the container refuses this device"
        }
        Errno::ACCESS => "let this user read and write it: chmod 666 /dev/fuse, or a group",
        _ => "load the fuse module",
    }
}
