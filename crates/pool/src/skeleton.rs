//! A mount point where the host has none: a stand-in for the deepest directory that exists.
//!
//! Mount path `/srv/a/b` with `/srv` on the host and nothing below: in the tenant's mount namespace
//! a tmpfs covers `/srv`. It holds every entry of the host's `/srv` (bind-mounted, so they are the
//! host's own) and the missing `a/b`. The host's tree is not touched.
//!
//! The stand-in is read-only: a file made right in it would be lost at the end, and an error is
//! better than a loss. Directories for temporary files (sticky, writable by all) stay writable, as
//! private ones.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use polylane_base::shown::Shown;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::{Errno, Result as SysResult};
use rustix::mount::{MountAttrFlags, MountFlags};

use crate::failure::{Failure, Result};
use crate::mounts;

/// Sticky and writable by all, as `/tmp`.
const TEMPORARY: u32 = 0o1002;

/// Directories that show the kernel and its devices.
pub(crate) const KERNELS: [&str; 3] = ["/proc", "/sys", "/dev"];

/// How much of a mount path exists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MountPoint {
    /// The deepest existing directory, without symbolic links.
    pub(crate) exists: PathBuf,
    /// What is missing below it; empty when the mount point exists.
    pub(crate) missing: PathBuf,
}

impl MountPoint {
    /// Looks `path` up on the host.
    ///
    /// # Errors
    /// One line when the path is not absolute, holds `..`, or leads to something else than a
    /// directory.
    pub(crate) fn find(path: &Path) -> Result<Self> {
        let shown = Shown::new(path);
        if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
            return Err(Failure::usage(format!(
                "--at {shown}: write an absolute path without '..'"
            )));
        }
        if path == Path::new("/") {
            return Err(Failure::usage("--at /: use --root to make the lane the root"));
        }
        let mut missing = PathBuf::new();
        let mut exists = path;
        loop {
            match std::fs::symlink_metadata(exists) {
                Ok(_) => break,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(Failure::path(exists, "use it as mount path", error)),
            }
            let (Some(parent), Some(name)) = (exists.parent(), exists.file_name()) else { break };
            missing = if missing.as_os_str().is_empty() {
                PathBuf::from(name)
            } else {
                Path::new(name).join(&missing)
            };
            exists = parent;
        }
        let real = std::fs::canonicalize(exists)
            .map_err(|error| Failure::path(exists, "use it as mount path", error))?;
        if !real.is_dir() {
            return Err(Failure::failed(format!(
                "{shown}: {} is not a directory: choose another --at",
                Shown::new(exists)
            )));
        }
        let point = MountPoint { exists: real, missing };
        let whole = point.path();
        match KERNELS.iter().find(|dir| whole.starts_with(dir)) {
            Some(dir) => Err(Failure::usage(format!(
                "--at {}: {dir} is the kernel's, and programs need it: choose another path",
                Shown::new(path)
            ))),
            None => Ok(point),
        }
    }

    /// The mount path itself.
    pub(crate) fn path(&self) -> PathBuf {
        match self.missing.as_os_str().is_empty() {
            true => self.exists.clone(),
            false => self.exists.join(&self.missing),
        }
    }
}

/// Makes the mount point in this mount namespace.
pub(crate) fn build(point: &MountPoint) -> SysResult<()> {
    if point.missing.as_os_str().is_empty() {
        return Ok(());
    }
    let parent = open_dir(&point.exists)?;
    let stat = rustix::fs::fstat(&parent)?;
    let entries = pick_up(&parent)?;
    let stand_in = mounts::tmpfs(stat.st_mode & 0o7777, "100%", MountAttrFlags::empty())?;
    mounts::attach_at(&stand_in, &point.exists)?;
    for entry in &entries {
        put_down(&stand_in, entry)?;
    }
    make_dirs(&stand_in, &point.missing)?;
    copy_owner(&stand_in, &stat);
    if point.exists == Path::new("/") {
        mounts::switch_root(&stand_in)?;
    }
    if stat.st_mode & TEMPORARY != TEMPORARY {
        rustix::mount::mount_remount(&point.exists, MountFlags::BIND | MountFlags::RDONLY, "")?;
    }
    Ok(())
}

/// One entry of the covered directory.
enum Entry {
    Link(OsString, OsString),
    Dir(OsString, OwnedFd),
    Other(OsString, OwnedFd),
}

fn open_dir(path: &Path) -> SysResult<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

/// Detached copies of everything in a directory. What vanishes meanwhile is left out.
fn pick_up(dir: &OwnedFd) -> SysResult<Vec<Entry>> {
    use std::os::unix::ffi::OsStringExt;
    let mut entries = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
        if name == "." || name == ".." {
            continue;
        }
        match pick_up_one(dir, name) {
            Ok(entry) => entries.push(entry),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(entries)
}

fn pick_up_one(dir: &OwnedFd, name: OsString) -> SysResult<Entry> {
    use std::os::unix::ffi::OsStringExt;
    let stat = rustix::fs::statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(dir, &name, Vec::new())?;
            Entry::Link(name, OsString::from_vec(target.into_bytes()))
        }
        FileType::Directory => {
            let copy = mounts::copy_of(dir, Path::new(&name))?;
            Entry::Dir(name, copy)
        }
        _ => {
            let copy = mounts::copy_of(dir, Path::new(&name))?;
            Entry::Other(name, copy)
        }
    })
}

fn put_down(stand_in: &OwnedFd, entry: &Entry) -> SysResult<()> {
    match entry {
        Entry::Link(name, target) => rustix::fs::symlinkat(target, stand_in, name),
        Entry::Dir(name, mount) => {
            rustix::fs::mkdirat(stand_in, name, Mode::RWXU)?;
            mounts::attach(mount, stand_in, Path::new(name))
        }
        Entry::Other(name, mount) => {
            make_file(stand_in, Path::new(name))?;
            mounts::attach(mount, stand_in, Path::new(name))
        }
    }
}

/// An empty file to mount something on.
pub(crate) fn make_file(dir: &OwnedFd, name: &Path) -> SysResult<()> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::RGRP | Mode::ROTH).map(drop)
}

fn make_dirs(dir: &OwnedFd, path: &Path) -> SysResult<()> {
    let mut made = PathBuf::new();
    for part in path.components() {
        made.push(part);
        rustix::fs::mkdirat(dir, &made, Mode::from_raw_mode(0o755))?;
    }
    Ok(())
}

/// The stand-in looks like what it covers. In a user namespace other users' numbers cannot be
/// given.
fn copy_owner(stand_in: &OwnedFd, stat: &Stat) {
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    let _ = rustix::fs::chownat(stand_in, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_split_where_it_stops_existing() {
        let dir = tempfile::tempdir().expect("tempdir");
        let real = dir.path().canonicalize().expect("canonical");
        std::os::unix::fs::symlink(&real, real.join("link")).expect("symlink");
        std::fs::write(real.join("file"), "").expect("write");
        let find = |path: &str| MountPoint::find(&real.join(path));
        let point = |missing: &str| MountPoint { exists: real.clone(), missing: missing.into() };
        assert_eq!(find(""), Ok(point("")));
        assert_eq!(find("a/b"), Ok(point("a/b")));
        assert_eq!(find("link/a"), Ok(point("a")));
        assert_eq!(point("a/b").path(), real.join("a/b"));
        assert_eq!(point("").path().as_os_str(), real.as_os_str(), "no slash at the end");
        let file = find("file").expect_err("a file");
        assert!(file.line.contains("is not a directory"), "{file}");
        assert_eq!(find("file/below").expect_err("below a file").status, 1);
        assert_eq!(MountPoint::find(Path::new("/")).expect_err("the root").status, 2);
        for path in ["/proc", "/sys/", "/dev/polylane/x", "/proc/self/fd", "//dev"] {
            let refused = MountPoint::find(Path::new(path)).expect_err("the kernel's");
            assert_eq!(refused.status, 2, "{path}: {refused}");
        }
        std::os::unix::fs::symlink("/proc", real.join("p")).expect("symlink");
        assert_eq!(find("p/x").expect_err("the kernel's by a link").status, 2);
        assert_eq!(MountPoint::find(Path::new("relative")).expect_err("relative").status, 2);
        assert_eq!(MountPoint::find(Path::new("/a/../b")).expect_err("dots").status, 2);
    }
}
