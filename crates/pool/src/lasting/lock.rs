//! Locks of commands among each other: files of the run-time directory, locked by flock(2). Others
//! cannot open them, and so not lock them.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polylane_base::sync::thread;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::table::hash;
use crate::failure::{Failure, Result};
use crate::names::{ensure_private_dir, is_still};

/// How long other commands may hold the lock, one after the other: a hundred that start at a time
/// on a busy host are done sooner. One that was stopped (Ctrl-Z) holds it for longer.
const LOCK_TIME_MAX: Duration = Duration::from_secs(30);

/// The lock of a file in the run-time directory. Dropped, it is free.
#[derive(Debug)]
pub(super) struct Lock {
    path: PathBuf,
    _file: OwnedFd,
}

impl Lock {
    /// Locks the file of that name in the run-time directory `dir`, which is made.
    ///
    /// # Errors
    /// One line when the directory cannot be used, or another command holds the lock for long.
    pub(super) fn take(dir: &Path, name: String) -> Result<Lock> {
        let (start, path) = (Instant::now(), dir.join(name));
        let failed = |error: Errno| Failure::path(&path, "lock it", error);
        while start.elapsed() < LOCK_TIME_MAX {
            ensure_private_dir(dir)?;
            let file = match open(&path, OFlags::CREATE) {
                Ok(file) => file,
                // The last holder of a name removed it.
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(failed(error)),
            };
            // No thread waits for it in flock(2): who holds it forks.
            match lock(&path, &file) {
                Ok(true) => return Ok(Lock { path, _file: file }),
                Ok(false) => {}
                Err(Errno::WOULDBLOCK) => thread::sleep(Duration::from_millis(1)),
                Err(error) => return Err(failed(error)),
            }
        }
        Err(Failure::failed(format!(
            "{}: other polylane commands hold it for {} s: end a stopped one",
            path.display(),
            LOCK_TIME_MAX.as_secs()
        )))
    }

    /// `EWOULDBLOCK`: another process holds it; `ENOENT`: its file was removed meanwhile.
    pub(super) fn try_take(path: &Path, flags: OFlags) -> rustix::io::Result<Lock> {
        let file = open(path, flags)?;
        match lock(path, &file)? {
            true => Ok(Lock { path: path.to_path_buf(), _file: file }),
            false => Err(Errno::NOENT),
        }
    }

    /// Locks what is mounted at a path, before the tables.
    ///
    /// # Errors
    /// As [`take`](Lock::take).
    pub(super) fn of_path(dir: &Path, path: &[u8]) -> Result<Lock> {
        Lock::take(dir, path_lock(path))
    }
}

/// What the files of the locks of paths begin with. No pool has such a name.
pub(super) const PATH_LOCKS: &str = ".at-";

/// Paths that have it in common wait for each other, no more.
pub(super) fn path_lock(path: &[u8]) -> String {
    format!("{PATH_LOCKS}{:016x}", hash(path))
}

fn open(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
}

/// Locks a file; `false`: its path does not lead to it any more.
fn lock(path: &Path, file: &OwnedFd) -> rustix::io::Result<bool> {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(is_still(path, file))
}

impl Drop for Lock {
    /// The file goes before it is unlocked, and the directory with its last file, as for names.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = self.path.parent().map(fs::remove_dir);
    }
}
