//! A lane's mount point as descriptors: looked up once, so that what was checked is what is used.
//!
//! Another user may own a directory on the way to it, and exchange what lies below while a command
//! works. On the way in the directory is held from the check to the mount; on the way out a mount
//! is known by its number, and taken away by its parent's descriptor.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use polylane_base::shown::Shown;
use polylane_sys::mount::MountId;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags,
};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount};

use super::elsewhere::Sighting;
use super::places;
use super::unserved::Connection;
use crate::failure::{Failure, Result};
use crate::mountinfo::{self, Seen};
use crate::mounts;
use crate::skeleton::KERNELS;

/// An empty directory that a lane may be mounted on.
#[derive(Debug)]
pub(crate) struct Point {
    path: PathBuf,
    dir: OwnedFd,
}

impl Point {
    /// Opens the directory at `path`, which is absolute and without links.
    ///
    /// # Errors
    /// One line: it is the kernel's, not there, a link, no directory, a mount's, or not empty.
    pub(crate) fn open(path: &Path) -> Result<Point> {
        let shown = Shown::new(path);
        let refuse = |why: &str| Err(Failure::failed(format!("{shown}: {why}")));
        if let Some(dir) = KERNELS.iter().find(|dir| path.starts_with(dir)) {
            return Err(Failure::usage(format!(
                "{shown}: {dir} is the kernel's: choose another path"
            )));
        }
        let failed = |error: Errno| Failure::path(path, "use it as mount path", error);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // A process with a mount open that is there would keep it from being unmounted.
        let dir = open_at(path, flags, ResolveFlags::NO_XDEV).map_err(|error| match error {
            Errno::LOOP => {
                Failure::failed(format!("{shown}: a directory on the way to it became a link"))
            }
            Errno::XDEV => is_mounted(&shown, kind_at(path)),
            error => failed(error),
        })?;
        let stat = rustix::fs::fstat(&dir).map_err(failed)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                return refuse("a symbolic link: write the directory that it leads to");
            }
            FileType::Directory => {}
            _ => return refuse("not a directory: a lane is mounted on an empty one"),
        }
        if let Some(kind) = mount_at(&dir, path) {
            return Err(is_mounted(&shown, Some(kind)));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let list = rustix::fs::openat(&dir, ".", flags, Mode::empty()).map_err(failed)?;
        for entry in Dir::new(list).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                return refuse("not empty: a lane is mounted on an empty directory");
            }
        }
        Ok(Point { path: path.to_path_buf(), dir })
    }

    /// Puts a detached mount on the directory, if that is still what the path names.
    ///
    /// # Errors
    /// One line when the directory was moved, removed or covered meanwhile, or the kernel refuses.
    pub(crate) fn mount(&self, mount: &OwnedFd) -> Result<()> {
        let failed = |error: Errno| Failure::path(&self.path, "mount the lane there", error);
        let now = rustix::fs::readlink(self_fd(&self.dir), Vec::new()).map_err(failed)?;
        if now.to_bytes() != self.path.as_os_str().as_bytes() {
            return Err(Failure::failed(format!(
                "{}: the directory was moved while the lane started: not mounted",
                Shown::new(&self.path)
            )));
        }
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(mount.as_fd(), "", self.dir.as_fd(), "", flags).map_err(failed)
    }
}

impl AsFd for Point {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

fn is_mounted(shown: &Shown, kind: Option<String>) -> Failure {
    let kind = kind.map(|kind| format!(" ({kind})")).unwrap_or_default();
    Failure::failed(format!(
        "{shown}: a mount point already{kind}: unmount that, or choose another"
    ))
}

/// The kind of the uppermost mount at a path.
fn kind_at(path: &Path) -> Option<String> {
    places::topmost(path.as_os_str().as_bytes()).map(|seen| seen.kind)
}

/// The kind of the mount whose root the directory at `path` is; `None`: it is none's. Where the
/// kernel tells that at once, the table of all mounts is not read.
fn mount_at(dir: &OwnedFd, path: &Path) -> Option<String> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(dir, "", flags, StatxFlags::empty());
    let is_root = StatxAttributes::MOUNT_ROOT;
    if stat.is_ok_and(|stat| {
        stat.stx_attributes_mask.contains(is_root) && !stat.stx_attributes.contains(is_root)
    }) {
        return None;
    }
    let own = mount_id(dir);
    let is_it = |seen: &Seen| Some(seen.id) == own && seen.place == path.as_os_str().as_bytes();
    mountinfo::seen().into_iter().rfind(is_it).map(|mount| mount.kind)
}

/// The number of the mount that a descriptor leads through.
pub(crate) fn mount_id(fd: &OwnedFd) -> Option<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
    places::mount_in(&info)
}

/// The number of that mount that no other has until the host starts again; 0: it has none.
pub(crate) fn unique_of(mount: &OwnedFd) -> u64 {
    MountId::of(mount).map_or(0, MountId::number)
}

/// The root of a mount, without a request to its file system, and its mount point as a path that
/// no rename above it changes: the parent's descriptor has to stay open.
struct Root {
    root: OwnedFd,
    parent: OwnedFd,
    name: Vec<u8>,
}

/// `EBUSY` where something else is at its place, or over it.
fn root_of(seen: &Seen) -> rustix::io::Result<Root> {
    let path = Path::new(OsStr::from_bytes(&seen.place));
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::INVAL);
    };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let parent = open_at(above, flags | OFlags::DIRECTORY, ResolveFlags::empty())?;
    let root = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
    match mount_id(&root) == Some(seen.id) {
        true => Ok(Root { root, parent, name: name.as_bytes().to_vec() }),
        false => Err(Errno::BUSY),
    }
}

/// The root of exactly this mount.
///
/// # Errors
/// `EBUSY` when something covers it; that it is not there any more.
pub(crate) fn open_root(seen: &Seen) -> rustix::io::Result<OwnedFd> {
    root_of(seen).map(|root| root.root)
}

/// The same, in whichever mount namespace.
///
/// # Errors
/// As [`open_root`]; that the process which sees it has ended.
pub(crate) fn open_sighted(one: &Sighting) -> rustix::io::Result<OwnedFd> {
    root_by(one, NO_LINKS)
}

/// The same, where no file system is asked for the directories above it.
///
/// # Errors
/// `EAGAIN`: one would be; `EBUSY` when something covers it.
pub(crate) fn root_at_once(one: &Sighting) -> rustix::io::Result<OwnedFd> {
    let root = root_by(one, NO_LINKS | ResolveFlags::CACHED);
    // Kernels before 5.12 do not know it.
    root.map_err(|error| if error == Errno::INVAL { Errno::AGAIN } else { error })
}

fn root_by(one: &Sighting, resolve: ResolveFlags) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let from = one.root_dir()?;
    let (dir, path) = match &from {
        Some(dir) => (dir.as_fd(), one.seen.place.strip_prefix(b"/").unwrap_or_default()),
        None => (CWD, &one.seen.place[..]),
    };
    let path = if path.is_empty() { b"." } else { path };
    let path = Path::new(OsStr::from_bytes(path));
    let root = rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve)?;
    match mount_id(&root) {
        Some(id) if id == one.seen.id => Ok(root),
        Some(_) => Err(Errno::BUSY),
        // The kernel does not say which mount it is of: it may for another process.
        None => Err(Errno::AGAIN),
    }
}

/// Takes exactly this mount away, unless it is in use. Its file system, and with that its device's
/// number, lasts until what is returned is closed.
///
/// # Errors
/// `EBUSY` when something covers or uses it; that it is not there any more.
pub(crate) fn unmount(seen: &Seen) -> rustix::io::Result<Option<OwnedFd>> {
    unmount_root(root_of(seen)?)
}

/// The same of the last mount of a lane that any command counts on, whose connection to the kernel
/// is to end.
///
/// # Errors
/// As [`unmount`].
pub(crate) fn unmount_last(seen: &Seen) -> rustix::io::Result<Unmounted> {
    let root = root_of(seen)?;
    let connection = Connection::of(seen.device).ok();
    Ok(Unmounted { kept: unmount_root(root)?, connection })
}

/// The last mount of a lane, taken away. As long as this is there its device's number is no other
/// file system's.
#[derive(Debug)]
pub(crate) struct Unmounted {
    kept: Option<OwnedFd>,
    connection: Option<Connection>,
}

impl Unmounted {
    /// Lets go of the file system. Where other mount namespaces have copies of the mount the kernel
    /// would keep the lane for them, and its service wait: its connection is ended then.
    pub(crate) fn end(self) {
        drop(self.kept);
        if let Some(connection) = self.connection {
            connection.end();
        }
    }
}

fn unmount_root(root: Root) -> rustix::io::Result<Option<OwnedFd>> {
    let Root { root, parent, name } = root;
    // A mount of its own, which keeps this one from nothing, as the root would.
    let kept = mounts::copy_of_one(&root).ok();
    drop(root);
    let place = self_fd(&parent).join(OsStr::from_bytes(&name));
    rustix::mount::unmount(place, UnmountFlags::NOFOLLOW).map(|()| kept)
}

/// Takes the mount with this root away, in use or not; no file system is asked for that.
pub(crate) fn detach(root: &OwnedFd) -> rustix::io::Result<()> {
    rustix::mount::unmount(self_fd(root), UnmountFlags::DETACH)
}

/// No link is followed.
const NO_LINKS: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_MAGICLINKS);

/// Opens an absolute path with no link on the way to it; its last name by `last`.
fn open_at(path: &Path, flags: OFlags, last: ResolveFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = NO_LINKS;
    // A path with a link at its end is told apart by its kind.
    let parent = path.parent().map(|above| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat2(CWD, above, flags, Mode::empty(), resolve)
    });
    match (parent.transpose()?, path.file_name()) {
        (Some(parent), Some(name)) => rustix::fs::openat2(parent, name, flags, Mode::empty(), last),
        _ => rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve),
    }
}

fn self_fd(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_cannot_be_a_mount_path_is_refused() {
        let dir = tempfile::tempdir().expect("tempdir");
        let real = dir.path().canonicalize().expect("canonical");
        fs::create_dir(real.join("empty")).expect("mkdir");
        fs::create_dir(real.join("full")).expect("mkdir");
        fs::write(real.join("full/file"), "").expect("write");
        std::os::unix::fs::symlink("empty", real.join("link")).expect("symlink");
        std::os::unix::fs::symlink(&real, real.join("up")).expect("symlink");
        Point::open(&real.join("empty")).expect("an empty directory");
        for (path, word) in [
            ("full", "not empty"),
            ("full/file", "not a directory"),
            ("link", "symbolic link"),
            ("up/empty", "became a link"),
        ] {
            let line = Point::open(&real.join(path)).expect_err(path).line;
            assert!(line.contains(word), "{line}");
        }
        Point::open(&real.join("absent")).expect_err("absent");
        for path in ["/proc", "/sys/fs", "/dev/shm"] {
            assert_eq!(Point::open(Path::new(path)).expect_err(path).status, 2);
        }
    }

    #[test]
    fn a_directory_that_was_exchanged_after_the_check_is_not_mounted_on() {
        let dir = tempfile::tempdir().expect("tempdir");
        let real = dir.path().canonicalize().expect("canonical");
        fs::create_dir_all(real.join("up/m")).expect("mkdir");
        fs::create_dir_all(real.join("victim/m")).expect("mkdir");
        let point = Point::open(&real.join("up/m")).expect("an empty directory");
        fs::rename(real.join("up"), real.join("old")).expect("rename");
        std::os::unix::fs::symlink("victim", real.join("up")).expect("symlink");
        // Not a mount: the refusal comes before the kernel's.
        let other = rustix::fs::open("/", OFlags::PATH, Mode::empty()).expect("open");
        let line = point.mount(&other).expect_err("moved").line;
        assert!(line.contains("moved while the lane started"), "{line}");
    }

    #[test]
    fn a_mount_that_is_covered_or_gone_is_not_found() {
        let root = mountinfo::seen().into_iter().next().expect("a mount");
        let other = Seen { id: u64::MAX, place: b"/tmp".to_vec(), ..root };
        assert_eq!(unmount(&other).expect_err("another"), Errno::BUSY);
        assert_eq!(open_root(&other).expect_err("another"), Errno::BUSY);
        assert_eq!(root_at_once(&Sighting::own(&other)).expect_err("another"), Errno::BUSY);
    }
}
