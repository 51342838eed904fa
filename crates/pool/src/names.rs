//! Pool names: one running pool per name, and where its few run-time files lie.
//!
//! A name is held by an exclusive flock(2) on `NAME.lock` in the run-time directory; the kernel
//! lets go of it with the last process that inherited the descriptor, so a dead holder's file is
//! simply taken over. The statistics socket `NAME.sock` and the one for upgrades, `NAME.control`,
//! lie beside it.
//!
//! A lane of a pool that lasts has a name of its own, `POOL@NUMBER`, which no pool can have.
//!
//! # Invariants
//!
//! - A lock counts only while its path still names the locked file: the holder unlinks the path
//!   *before* it unlocks, and a taker compares inodes after it locked.
//! - The directory goes with its last file; a taker makes it anew when it vanished under it.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::failure::{Failure, Result, plain, say};
use crate::subordinate;

/// Longest name of a pool in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Most lanes of a pool that lasts, at a time.
pub(crate) const LANES_MAX: u32 = 256;

/// The run-time directory of root.
const HOST_DIR: &str = "/run/polylane";

/// A held name. Dropping it does not remove the files; see
/// [`remove_files`](PoolName::remove_files).
#[derive(Debug)]
pub(crate) struct PoolName {
    dir: PathBuf,
    name: String,
    lock: OwnedFd,
}

/// The run-time directory: `/run/polylane` for root, else under `$XDG_RUNTIME_DIR`, else in `/tmp`
/// with the user's number in its name. Root of a user namespace other than the host's, whose
/// `/run` may be the host's, is asked for that variable as well.
pub fn runtime_dir() -> PathBuf {
    // A process that is asked later may be in a namespace that this program has made.
    static IS_HOSTS: LazyLock<bool> = LazyLock::new(polylane_volume::maps_all_users);
    let uid = rustix::process::geteuid();
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    match own.filter(|dir| dir.is_absolute() && !(uid.is_root() && *IS_HOSTS)) {
        Some(dir) => dir.join("polylane"),
        None if uid.is_root() => PathBuf::from(HOST_DIR),
        None => PathBuf::from(format!("/tmp/polylane-{}", uid.as_raw())),
    }
}

/// 16 hexadecimal digits that are never given twice, for an object of the kind `what`.
///
/// # Errors
/// The kernel gives no random bytes.
pub fn fresh_id(what: &str) -> Result<String> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Failure::because(what, "make an id for it", error))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A number that no other lane of its service has had, and not 0.
///
/// # Errors
/// The kernel gives no random bytes.
pub(crate) fn fresh_number(what: &str) -> Result<u32> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Failure::because(what, "make a number for a lane of it", error))?;
    Ok(u32::from_ne_bytes(bytes).max(1))
}

/// Whether a text can name a pool: letters, digits, `.`, `_` and `-`, at most 64, no leading `.`,
/// and no leading `-`, which commands take for an option.
pub fn is_name(text: &str) -> bool {
    let good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && !text.starts_with(['.', '-'])
        && text.bytes().all(good)
}

/// Takes the name of a run's lane in the run-time directory, of a pool: one that no dead lane is
/// listed with in the mount tables, where it would pass for one that lives.
pub(crate) type TakeLane = fn(&Path, &str) -> Result<PoolName>;

/// The name of a lane of a pool that lasts.
pub(crate) fn lane_name(pool: &str, number: u32) -> String {
    format!("{pool}@{number}")
}

/// The pool and the number in a lane's name; `None` for another name.
pub(crate) fn lane_number(name: &str) -> Option<(&str, u32)> {
    let (pool, number) = name.split_once('@')?;
    Some((pool, number.parse().ok()?)).filter(|_| is_name(pool))
}

impl PoolName {
    /// Takes `name` in `dir`.
    ///
    /// # Errors
    /// One line when the name is in use or the directory cannot be used.
    pub(crate) fn take(dir: &Path, name: &str) -> Result<Self> {
        loop {
            ensure_private_dir(dir)?;
            if let Some(taken) = Self::try_take(dir, name, OFlags::CREATE)? {
                return Ok(taken);
            }
        }
    }

    /// Takes the first free name of a lane of `pool`.
    ///
    /// # Errors
    /// As [`take`](PoolName::take); all numbers are in use.
    pub(crate) fn take_lane(dir: &Path, pool: &str) -> Result<Self> {
        for number in 1..=LANES_MAX {
            let name = lane_name(pool, number);
            match Self::take(dir, &name) {
                Ok(taken) => return Ok(taken),
                // Held, or not to be had at all, which the last number tells.
                Err(failure) if number == LANES_MAX => return Err(failure),
                Err(_) if lock_path(dir, &name).exists() => {}
                Err(failure) => return Err(failure),
            }
        }
        Err(in_use(pool))
    }

    /// Takes the name of a dead pool whose files are left; `None` when there are none.
    ///
    /// # Errors
    /// As [`take`](PoolName::take).
    pub(crate) fn take_over(dir: &Path, name: &str) -> Result<Option<Self>> {
        Self::try_take(dir, name, OFlags::empty())
    }

    /// `None` when the lock's file is not there, or was removed while it was being locked.
    fn try_take(dir: &Path, name: &str, flags: OFlags) -> Result<Option<Self>> {
        let path = lock_path(dir, name);
        let flags = flags | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(lock) => lock,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(Failure::path(&path, "open the pool's lock", error)),
        };
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(in_use(name)),
            Err(error) => return Err(Failure::path(&path, "lock it", error)),
        }
        let taken = PoolName { dir: dir.to_path_buf(), name: name.to_string(), lock };
        Ok(is_still(&path, &taken.lock).then_some(taken))
    }

    /// The name.
    pub(crate) fn as_str(&self) -> &str {
        &self.name
    }

    /// How many pools of this user run, this one among them.
    pub(crate) fn running_count(&self) -> usize {
        running_in(&self.dir)
    }

    /// Where the statistics socket belongs.
    pub(crate) fn stats_socket(&self) -> PathBuf {
        self.dir.join(format!("{}.sock", self.name))
    }

    /// Where the socket for upgrades belongs.
    pub(crate) fn control_socket(&self) -> PathBuf {
        self.dir.join(format!("{}.control", self.name))
    }

    /// Where a supervisor without a terminal says things.
    pub(crate) fn log_file(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name))
    }

    /// Makes the directory that the lane's run directory is mounted on; see [`run_dir`].
    ///
    /// # Errors
    /// One line when it cannot be made.
    pub(crate) fn make_run_dir(&self, path: &Path) -> Result<()> {
        self.remove_run_dirs();
        make_run_dir(&self.dir, path)
    }

    /// Makes the directory that a lane is mounted on which nobody is to see, and which is there for
    /// further lanes of its service. It goes with the name's files.
    ///
    /// # Errors
    /// One line when it cannot be made.
    pub(crate) fn make_ground(&self) -> Result<PathBuf> {
        let dir = self.dir.canonicalize().unwrap_or_else(|_| self.dir.clone());
        let above = dir.join(format!("{}.{GROUND}", self.name));
        let failed = |error: Errno| Failure::path(&above, "make a directory", error);
        let at = above.join(GROUND);
        for dir in [&above, &at] {
            match rustix::fs::mkdir(dir, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(at)
    }

    fn remove_ground(&self) {
        let above = self.dir.join(format!("{}.{GROUND}", self.name));
        let _ = fs::remove_dir(above.join(GROUND));
        let _ = fs::remove_dir(above);
    }

    /// The run directories of its lane and of further lanes of its service.
    fn remove_run_dirs(&self) {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        for file in names {
            match file.rsplit_once('.') {
                Some((lane, RUN_DIR | BESIDE)) if self.has_lane(lane) => {
                    remove_run_dir(&self.dir, lane);
                }
                _ => {}
            }
        }
    }

    /// Whether run directories are called so of its lane, or of one more of its service:
    /// `POOL@NUMBER.ID`.
    fn has_lane(&self, lane: &str) -> bool {
        let rest = lane.strip_prefix(&self.name);
        let id = rest.filter(|_| lane_number(&self.name).is_some());
        let id = id.and_then(|rest| rest.strip_prefix('.'));
        rest == Some("") || id.is_some_and(|id| id.parse::<u32>().is_ok())
    }

    /// Removes the run-time files of the pool, and their directory when it is empty then.
    pub(crate) fn remove_files(&self) {
        self.remove_run_dirs();
        self.remove_ground();
        let _ = fs::remove_file(self.stats_socket());
        let _ = fs::remove_file(self.control_socket());
        let _ = fs::remove_file(self.log_file());
        let _ = fs::remove_file(lock_path(&self.dir, &self.name));
        let _ = fs::remove_dir(&self.dir);
    }
}

/// How many pools and lanes of this user run.
pub(crate) fn running_in(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().extension().is_some_and(|e| e == "lock")).count()
}

/// Makes the directory that a lane's run directory is mounted on; see [`run_dir`].
///
/// # Errors
/// One line when it cannot be made.
pub(crate) fn make_run_dir(dir: &Path, path: &Path) -> Result<()> {
    let lane = lane_of(path);
    remove_run_dir(dir, lane);
    let failed = |error| Failure::path(path, "make the lane's run directory", error);
    if let Some(parent) = path.parent() {
        if is_beside(parent) {
            // The command that clears up finds it by this.
            rustix::fs::symlink(path, record_beside(dir, lane)).map_err(failed)?;
        }
        ensure_private_dir(parent)?;
    }
    rustix::fs::mkdir(path, Mode::from_raw_mode(0o755)).map_err(failed)
}

/// The lane's name in the path of a run directory.
pub(crate) fn lane_of(run_dir: &Path) -> &str {
    run_dir.file_stem().and_then(|name| name.to_str()).unwrap_or_default()
}

/// Where it is said which directory beside the run-time directory `dir` is the lane's.
fn record_beside(dir: &Path, lane: &str) -> PathBuf {
    dir.join(format!("{lane}.{BESIDE}"))
}

/// Extension of what names a run directory beside the run-time directory.
const BESIDE: &str = "beside";

/// Extension of the directories that lanes' run directories are mounted on.
const RUN_DIR: &str = "lane";

/// Extension of the directories of lanes that further ones are put over, and the name of the mount
/// point in them, which others than this user cannot reach.
const GROUND: &str = "ground";

/// Where the run directory (socket, library) of the lane `name` at `mount` is mounted: outside of
/// the lane, where its service can change nothing. It is in the run-time directory, or beside it,
/// where the lane covers that or has users who cannot search it: those of an ordinary user's
/// ranges. They do without where no directory can be made beside it.
///
/// # Errors
/// One line when the run-time directory cannot be made.
pub(crate) fn run_dir(name: &str, mount: &Path) -> Result<PathBuf> {
    let dir = runtime_dir();
    ensure_private_dir(&dir)?;
    let whole = dir.canonicalize().unwrap_or(dir);
    let user = rustix::process::geteuid();
    let has_others = || !user.is_root() && subordinate::count(user.as_raw()).is_some();
    let dir = match whole.starts_with(mount) || has_others() && can_have_dir_beside() {
        true => dir_beside()?,
        false => whole,
    };
    Ok(dir.join(format!("{name}.{RUN_DIR}")))
}

/// Whether a path can be one of [`run_dir`], of root's or of this user's. Whose it is, its owner
/// says.
pub(crate) fn is_run_dir(path: &Path) -> bool {
    let dirs = [PathBuf::from(HOST_DIR), runtime_dir()];
    let is_in = |dir: &PathBuf| dir.canonicalize().ok().as_deref() == path.parent();
    path.extension().is_some_and(|extension| extension == RUN_DIR)
        && (path.parent().is_some_and(is_beside) || dirs.iter().any(is_in))
}

/// In memory, and no lane covers it: `/dev` cannot be one's.
const SHARED_DIR: &str = "/dev/shm";

/// A directory that is yet to be made, for one run directory alone. Any user can make directories
/// there: no user can guess the name of this one.
fn dir_beside() -> Result<PathBuf> {
    let (user, id) = (rustix::process::geteuid().as_raw(), fresh_id("the lane's run directory")?);
    Ok(Path::new(SHARED_DIR).join(format!("polylane-{user}-{id}")))
}

/// Whether a directory can be made there.
fn can_have_dir_beside() -> bool {
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    let can = rustix::fs::access(SHARED_DIR, access);
    if let Err(error) = can {
        let why = plain(&error.into());
        say(format_args!("{SHARED_DIR}: {why}: users of /etc/subuid have FUSE only"));
    }
    can.is_ok()
}

/// Whether a directory is called as [`dir_beside`] says.
fn is_beside(dir: &Path) -> bool {
    let is_called = |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(b"polylane-");
    dir.parent() == Some(Path::new(SHARED_DIR)) && dir.file_name().is_some_and(is_called)
}

/// Takes away what is mounted on a lane's run directory in this mount namespace, and its mount
/// point, in the run-time directory `dir` and beside it.
pub(crate) fn remove_run_dir(dir: &Path, lane: &str) {
    remove_mount_point(&dir.join(format!("{lane}.{RUN_DIR}")));
    let record = record_beside(dir, lane);
    if let Ok(beside) = fs::read_link(&record) {
        remove_mount_point(&beside);
        beside.parent().map(fs::remove_dir);
        let _ = fs::remove_file(record);
    }
}

fn remove_mount_point(path: &Path) {
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    while rustix::mount::unmount(path, flags).is_ok() {}
    let _ = fs::remove_dir(path);
}

/// What tells this run-time directory from others on the host, whatever its path is here, and also
/// after it went with its last file and was made again: where a file system is mounted on it, that
/// one's root, else its name in the directory that it is in. Empty: it cannot be told.
pub(crate) fn identity(dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
    let place = |path: &Path| fs::metadata(path).map(|stat| (stat.dev(), stat.ino())).ok();
    let Some(above) = dir.parent().and_then(place) else { return String::new() };
    let (own, name) = (place(&dir), dir.file_name().unwrap_or_default().display());
    match own.filter(|(device, _)| *device != above.0) {
        Some((device, number)) => format!("{device:x}:{number}"),
        None => format!("{:x}:{}/{name}", above.0, above.1),
    }
}

/// The lock of a lane's or pool's name.
pub(crate) fn lock_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.lock"))
}

fn in_use(name: &str) -> Failure {
    Failure::failed(format!("pool '{name}' is in use: choose another name or end the other run"))
}

/// Makes the directory and refuses one that belongs to somebody else: in `/tmp` anybody could have
/// made it first. Others can neither read it nor open it, and so not lock it; they reach lanes' run
/// directories in root's, and in those that have nothing else.
pub(crate) fn ensure_private_dir(dir: &Path) -> Result<()> {
    let wanted = match rustix::process::geteuid().is_root() || is_beside(dir) {
        true => Mode::RWXU | Mode::XGRP | Mode::XOTH,
        false => Mode::RWXU,
    };
    match rustix::fs::mkdir(dir, wanted) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(Failure::path(dir, "make the run-time directory", error)),
    }
    match rustix::fs::lstat(dir) {
        Ok(stat)
            if stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o22 == 0 =>
        {
            // Of another's making (a service manager), or of a former version's.
            match stat.st_mode & 0o777 == wanted.as_raw_mode() {
                true => Ok(()),
                false => rustix::fs::chmod(dir, wanted)
                    .map_err(|error| Failure::path(dir, "keep it from other users", error)),
            }
        }
        Ok(_) => Err(Failure::failed(format!(
            "{}: not a private directory of this user: remove it or set XDG_RUNTIME_DIR",
            dir.display()
        ))),
        // Removed by the last holder between the two calls: the open after this finds out.
        Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(Failure::path(dir, "look at the run-time directory", error)),
    }
}

/// Whether a path still names the file that is locked.
pub(crate) fn is_still(path: &Path, lock: &OwnedFd) -> bool {
    match (rustix::fs::lstat(path), rustix::fs::fstat(lock)) {
        (Ok(named), Ok(held)) => (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_time_directory_is_the_same_after_it_was_made_again() {
        let above = tempfile::tempdir().expect("tempdir");
        let [dir, other] = ["polylane", "other"].map(|name| above.path().join(name));
        let absent = identity(&dir);
        fs::create_dir(&dir).expect("made");
        let first = identity(&dir);
        fs::remove_dir(&dir).expect("removed");
        // Its number may be another's by now.
        fs::create_dir(&other).expect("made");
        fs::create_dir(&dir).expect("made");
        assert_eq!([absent, identity(&dir)], [first.clone(), first.clone()]);
        assert_ne!(identity(&other), first);
        assert_ne!(identity(Path::new("/proc")), identity(Path::new("/sys")), "mounted");
        assert_eq!(identity(&above.path().join("none/polylane")), "", "it cannot be told");
    }

    #[test]
    fn a_name_is_held_once_and_a_stale_file_is_taken_over() {
        let dir = tempfile::tempdir().expect("tempdir");
        let dir = dir.path().join("run");
        let first = PoolName::take(&dir, "one").expect("free");
        let error = PoolName::take(&dir, "one").expect_err("held");
        assert_eq!(error.status, crate::failure::FAILED);
        assert!(error.line.contains("'one' is in use"), "{error}");
        PoolName::take(&dir, "two").expect("another name");
        assert!(PoolName::take_over(&dir, "one").is_err(), "held");
        drop(first);
        assert!(dir.join("one.lock").exists());
        PoolName::take(&dir, "one").expect("a left file is no holder");
        let left = PoolName::take_over(&dir, "one").expect("free").expect("left");
        left.remove_files();
        assert!(PoolName::take_over(&dir, "one").expect("free").is_none());
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("tempdir");
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).expect("chmod");
        assert!(PoolName::take(dir.path(), "one").is_err());
    }

    #[test]
    fn lanes_of_a_pool_have_names_that_no_pool_has() {
        let dir = tempfile::tempdir().expect("tempdir");
        let take = || PoolName::take_lane(dir.path(), "web").expect("free");
        let (one, two) = (take(), take());
        assert_eq!((one.as_str(), two.as_str()), ("web@1", "web@2"));
        drop(one);
        assert_eq!(take().as_str(), "web@1", "the first free number");
        assert!(!is_name("web@1"));
        assert_eq!(lane_number("web@12"), Some(("web", 12)));
        for other in ["web", "web@", "web@x", "@1", "a/b@1"] {
            assert_eq!(lane_number(other), None, "{other}");
        }
    }

    #[test]
    fn names_are_plain() {
        for good in ["a", "web-1", "A.b_c", &"x".repeat(64)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", ".", "..", ".x", "-x", "--help", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(!is_name(bad), "{bad}");
        }
    }
}
