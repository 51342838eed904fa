//! An upper of the kernel's overlayfs over its lowers, for reading.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use tempfile::TempDir;

use crate::error::{Error, Result};

/// Two read-only mounts of overlayfs that have no path: the lowers, and the upper over them.
/// Only root can make them.
#[derive(Debug)]
pub struct Overlay {
    base: OwnedFd,
    merged: OwnedFd,
    /// Stands where the upper does in the other mount: the kernel takes no single lower.
    _empty: TempDir,
}

impl Overlay {
    /// Mounts the `upperdir` of an overlayfs over `lowers`, the uppermost first.
    ///
    /// # Errors
    /// One that cannot be mounted so.
    pub fn mount(upper: &Path, lowers: &[PathBuf]) -> Result<Overlay> {
        let beside = upper.parent().unwrap_or(upper);
        // On the upper's file system, so that numbers of files mean the same in both mounts.
        let empty = tempfile::Builder::new().prefix(".polylane-").tempdir_in(beside);
        let empty = empty.map_err(|error| Error::io(beside, "make a directory in it", error))?;
        let mounted = |top: &Path| {
            mount(top, lowers).map_err(|errno| Error::io(upper, "mount it over its lowers", errno))
        };
        let (base, merged) = (mounted(empty.path())?, mounted(upper)?);
        Ok(Overlay { base, merged, _empty: empty })
    }

    /// The lowers alone.
    pub fn base(&self) -> PathBuf {
        path_of(&self.base)
    }

    /// The upper over the lowers.
    pub fn merged(&self) -> PathBuf {
        path_of(&self.merged)
    }
}

fn path_of(mount: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()))
}

/// `top` over `lowers`, where all are read-only. Layers are given one by one: a path may hold
/// colons.
fn mount(top: &Path, lowers: &[PathBuf]) -> Result<OwnedFd, Errno> {
    let fs = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for layer in std::iter::once(top).chain(lowers.iter().map(PathBuf::as_path)) {
        fsconfig_set_string(&fs, "lowerdir+", layer)?;
    }
    for (option, value) in [("redirect_dir", "follow"), ("metacopy", "on"), ("xino", "auto")] {
        fsconfig_set_string(&fs, option, value)?;
    }
    fsconfig_create(&fs)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}
