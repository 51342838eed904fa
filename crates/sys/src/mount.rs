//! Attributes of mounts: mount_setattr(2), which rustix lacks.
#![expect(unsafe_code, reason = "UNSAFETY: a raw system call with a struct")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use polylane_base::{Errno, Result};
use rustix::mount::MountAttrFlags;

/// `struct mount_attr` of linux/mount.h, in its first version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Gives a mount (a descriptor of its root) and the mounts below it these attributes besides those
/// that it has.
///
/// # Errors
/// `EBUSY` when a file on it is open to be written and it is to be read-only; `EPERM`, `EINVAL`:
/// see mount_setattr(2).
pub fn restrict(mount: impl AsFd, attributes: MountAttrFlags) -> Result<()> {
    let wanted = Attributes { set: attributes.bits().into(), ..Attributes::default() };
    change(mount.as_fd(), libc::AT_RECURSIVE, &wanted)
}

/// Shows the owners of files on a detached mount (a descriptor of its root) as the numbers that
/// they have on the host in this user namespace, for good; owners without a number there have none.
///
/// # Errors
/// `EINVAL` when the file system lets no mount be id-mapped; `EPERM` when this one is already, or
/// the caller may not.
pub fn map_ids(mount: impl AsFd, user_namespace: BorrowedFd<'_>) -> Result<()> {
    let wanted = Attributes {
        set: MountAttrFlags::MOUNT_ATTR_IDMAP.bits().into(),
        user_namespace: user_namespace.as_raw_fd() as u64,
        ..Attributes::default()
    };
    change(mount.as_fd(), 0, &wanted)
}

fn change(mount: BorrowedFd<'_>, flags: libc::c_int, wanted: &Attributes) -> Result<()> {
    let flags = libc::AT_EMPTY_PATH | flags;
    // SAFETY: the path is an empty string, and the kernel reads as many bytes of the struct as it
    // has.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(wanted),
            size_of::<Attributes>(),
        )
    };
    match rc {
        0 => Ok(()),
        _ => Err(Errno::from(std::io::Error::last_os_error())),
    }
}
