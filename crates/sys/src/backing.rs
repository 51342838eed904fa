//! FUSE passthrough: a file that the kernel reads and writes in the place of a served one
//! (`include/uapi/linux/fuse.h`).
//!
//! What this module promises above: the structure of the kernel's layout, complete; descriptors are
//! borrowed for one call.
#![expect(unsafe_code, reason = "UNSAFETY: an ioctl on /dev/fuse")]

use std::os::fd::{AsFd, AsRawFd};

use polylane_base::{Errno, Result};

/// `FUSE_DEV_IOC_BACKING_OPEN`: `_IOW(229, 1, struct fuse_backing_map)`.
const BACKING_OPEN: u64 = 0x4010_e501;

/// `FUSE_DEV_IOC_BACKING_CLOSE`: `_IOW(229, 2, uint32_t)`.
const BACKING_CLOSE: u64 = 0x4004_e502;

/// `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

const _: () = assert!(size_of::<BackingMap>() == 16);

/// Registers `file` at the mount behind `fuse`; its number, for replies to OPEN. It stays open,
/// with the locks on it, until it is [forgotten](forget) or the mount is gone, and as long as a
/// file is open on it. The kernel opens the path anew for data, with the flags of whoever opens the
/// served file.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN or where passthrough was not agreed on, `ELOOP` where the file
/// lies on another file system's files; the kernel's others.
pub fn register(fuse: impl AsFd, file: impl AsFd) -> Result<u32> {
    let map = BackingMap { fd: file.as_fd().as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: the kernel reads a whole `fuse_backing_map`, which this is.
    let id = unsafe { libc::ioctl(fuse.as_fd().as_raw_fd(), BACKING_OPEN as _, &raw const map) };
    u32::try_from(id)
        .map_err(|_| Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)))
}

/// Takes a registered file back from the mount behind `fuse`.
///
/// # Errors
/// `ENOENT` when there is none of this number; the kernel's others.
pub fn forget(fuse: impl AsFd, id: u32) -> Result<()> {
    // SAFETY: the kernel reads a `uint32_t`, which this is.
    match unsafe { libc::ioctl(fuse.as_fd().as_raw_fd(), BACKING_CLOSE as _, &raw const id) } {
        0 => Ok(()),
        _ => Err(last()),
    }
}

fn last() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}
