//! Mounts as descriptors: made detached, put into place later.
//!
//! Everything that must come from the old tree is picked up as a detached copy first, so the order
//! in which the tenant's tree is put together does not matter, and no path is looked up twice.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::io::{Errno, Result};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
    fsopen, mount_change, move_mount, open_tree, unmount,
};

/// One parameter of a file system: a flag, or a key with a value.
pub(crate) enum Parameter<'a> {
    /// Present or not.
    Flag(&'a str),
    /// With a value.
    Value(&'a str, String),
}

/// A new, detached mount.
pub(crate) fn create(
    kind: &str,
    parameters: &[Parameter<'_>],
    attributes: MountAttrFlags,
) -> Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for parameter in parameters {
        match parameter {
            Parameter::Flag(key) => fsconfig_set_flag(context.as_fd(), *key)?,
            Parameter::Value(key, value) => {
                fsconfig_set_string(context.as_fd(), *key, value.as_str())?;
            }
        }
    }
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// A new, detached tmpfs.
pub(crate) fn tmpfs(mode: u32, bytes_max: &str, attributes: MountAttrFlags) -> Result<OwnedFd> {
    let parameters = [
        Parameter::Value("source", "polylane".to_string()),
        Parameter::Value("mode", format!("{mode:o}")),
        Parameter::Value("size", bytes_max.to_string()),
    ];
    create("tmpfs", &parameters, attributes)
}

/// What a lane's mount is called that has no SOURCE, or one that the kernel does not take.
pub(crate) const SOURCE: &str = "polylane";

/// Most bytes of a parameter's value (`fsconfig(2)` copies 256 with the terminator).
const VALUE_BYTES_MAX: usize = 255;

/// The detached FUSE mount of a lane, by the name of `source` for those who list mounts. The kernel
/// sends FUSE_INIT to `fuse` now.
pub(crate) fn fuse(fuse: &OwnedFd, source: &str, attributes: MountAttrFlags) -> Result<OwnedFd> {
    let source = if source.len() > VALUE_BYTES_MAX { SOURCE } else { source };
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let parameters = [
        Parameter::Value("source", source.to_string()),
        Parameter::Value("subtype", "polylane".to_string()),
        Parameter::Value("fd", fuse.as_raw_fd().to_string()),
        Parameter::Value("rootmode", "40000".to_string()),
        Parameter::Value("user_id", uid.to_string()),
        Parameter::Value("group_id", gid.to_string()),
        Parameter::Flag("default_permissions"),
        Parameter::Flag("allow_other"),
    ];
    create("fuse", &parameters, attributes)
}

/// A detached copy of what lies at `path`, with all mounts below it.
pub(crate) fn copy_of(dir: impl AsFd, path: &Path) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    open_tree(dir.as_fd(), path, flags)
}

/// A detached copy of the mount of what a descriptor stands for, from there on, without the mounts
/// below it.
pub(crate) fn copy_of_one(dir: impl AsFd) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(dir.as_fd(), "", flags)
}

/// Nothing can be changed through this mount, or run with another user's rights.
pub(crate) fn make_read_only(mount: &OwnedFd) -> Result<()> {
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    polylane_sys::mount::restrict(mount, attributes)
        .map_err(|error| Errno::from_raw_os_error(error.0))
}

/// Puts a detached mount on `name` in `dir`.
pub(crate) fn attach(mount: &OwnedFd, dir: impl AsFd, name: &Path) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(mount.as_fd(), "", dir.as_fd(), name, flags)
}

/// Puts a detached mount on an absolute path.
pub(crate) fn attach_at(mount: &OwnedFd, path: &Path) -> Result<()> {
    attach(mount, CWD, path)
}

/// Lets no mount made here reach the host. What the host mounts and unmounts still arrives, so that
/// a tenant never keeps a host's file system busy.
pub(crate) fn cut_off() -> Result<()> {
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
}

/// Makes `root` (attached on `/`, so far hidden under the process's old root) the root of this
/// mount namespace and drops the old one.
pub(crate) fn switch_root(root: &OwnedFd) -> Result<()> {
    rustix::process::fchdir(root)?;
    match rustix::process::pivot_root(".", ".") {
        // The old root is now stacked on the new one and the first thing `.` leads to.
        Ok(()) => unmount(".", UnmountFlags::DETACH)?,
        // The initial root file system (an initramfs) cannot be pivoted away.
        Err(Errno::INVAL) => rustix::process::chroot(".")?,
        Err(error) => return Err(error),
    }
    rustix::process::chdir("/")
}
