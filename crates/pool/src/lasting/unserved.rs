//! Connections to the kernel that no service answers any more.
//!
//! The kernel ends a FUSE connection when the last descriptor of it is closed. A thread of a killed
//! service that tells the kernel of a change waits there for the lock of a directory. A program
//! that makes a file has that lock, and waits for the service: neither ends, the descriptor stays
//! open, and both outlive every signal. Root of the host can end the connection by its number,
//! which is the minor number of the mount's device (Documentation/filesystems/fuse/fuse.rst,
//! "Aborting").

use std::os::fd::OwnedFd;
use std::time::Duration;

use polylane_base::sync::thread;
use rustix::fs::{Mode, OFlags, minor, openat};
use rustix::io::Result;
use rustix::mount::MountAttrFlags;

use crate::{mounts, orphans};

/// How often a service that was killed is looked for, and how long it has each time to be gone: one
/// that writes back is left alone.
const LOOKS: usize = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// Whether a dead lane has a service that writes back what its supervisor's death has left, and not
/// one that was killed with it.
pub(super) fn has_service(lane: &str) -> bool {
    (0..LOOKS).all(|look| {
        if look > 0 {
            thread::sleep(BETWEEN_LOOKS);
        }
        orphans::has_service(lane)
    })
}

/// The connection of a file system to the kernel. What this holds is never another one's, also once
/// the device's number is.
#[derive(Debug)]
pub(super) struct Connection(OwnedFd);

impl Connection {
    /// Of a device of which the caller has a mount open.
    ///
    /// # Errors
    /// Only root of the host may.
    pub(super) fn of(device: u64) -> Result<Connection> {
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let control = mounts::create("fusectl", &[], attributes)?;
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        openat(&control, format!("{}/abort", minor(device)), flags, Mode::empty()).map(Connection)
    }

    /// Ends it: all requests fail that wait for an answer, and all later ones. Where its file
    /// system is gone there is nothing to end.
    pub(super) fn end(self) {
        let _ = rustix::io::write(&self.0, b"1");
    }
}
