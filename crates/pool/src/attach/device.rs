//! What block devices of the kernel's have in common.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use polylane_base::sync::thread;
use rustix::fs::{Mode, OFlags};

use crate::failure::{Failure, Result};

/// How long a device that is mounted nowhere may stay in use: other mount namespaces may have
/// copies of a mount that was just taken off here, and let go of them when they end.
const BUSY_TIME_MAX: Duration = Duration::from_secs(30);

/// Opens a device that nobody has mounted. A file system that was just unmounted, or is so in some
/// other mount namespace, may take a moment to let go of it.
pub(super) fn exclusively(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
    let start = Instant::now();
    loop {
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(device) => return Ok(device),
            Err(rustix::io::Errno::BUSY)
                if !is_mounted(path) && start.elapsed() < BUSY_TIME_MAX =>
            {
                thread::sleep(Duration::from_millis(20));
            }
            Err(rustix::io::Errno::BUSY) => {
                return Err(Failure::failed(format!(
                    "{}: is in use: unmount it first",
                    path.display()
                )));
            }
            Err(error) => return Err(Failure::path(path, "open it", error)),
        }
    }
}

/// Whether a device is mounted as far as this process sees.
fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let source = |line: &str| {
        let (_, after) = line.split_once(" - ")?;
        after.split(' ').nth(1).map(|source| Path::new(source) == path)
    };
    mounts.lines().any(|line| source(line) == Some(true))
}
