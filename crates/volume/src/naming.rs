//! Names in a directory of volumes are given by one command of a user at a time.
//!
//! The lock is an flock(2) of a file in this user's state directory, named by the directory's
//! device and inode number. Others cannot open it, and so not lock it, whatever they may do with
//! the directory. Where the state directory cannot be written, the directory itself is locked,
//! which any user may do who can read it: then it is not waited for in vain for long.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polylane_base::shown::Shown;
use polylane_base::sync::thread;
use polylane_block::image;
use rustix::fs::{FlockOperation, Mode, OFlags, fstat, lstat};
use rustix::io::Errno;

use crate::failure::{Failure, Result};
use crate::places::state_dir;

/// How long other commands that name something there are waited for, one after the other: a hundred
/// that start at a time on a busy host are done sooner.
const NAMING_MAX: Duration = Duration::from_secs(30);

/// Between two tries.
const PERIOD: Duration = Duration::from_millis(10);

/// Held; dropped, it is free.
#[derive(Debug)]
pub(crate) struct Naming {
    /// The lock's file, which goes with it.
    file: Option<PathBuf>,
    _lock: OwnedFd,
}

impl Drop for Naming {
    /// The file goes before it is unlocked: who opened it before sees that it is gone.
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = fs::remove_file(file);
        }
    }
}

/// Keeps other commands from giving names in the directory of `volume`. `None`: there is no such
/// directory, or no such lock on this host.
///
/// # Errors
/// Another command of this user names something there for long.
pub(crate) fn hold(volume: &Path) -> Result<Option<Naming>> {
    hold_in(state_dir().ok().as_deref(), volume, NAMING_MAX)
}

fn hold_in(state: Option<&Path>, volume: &Path, limit: Duration) -> Result<Option<Naming>> {
    let dir = image::directory_of(volume);
    let Ok(stat) = rustix::fs::stat(dir) else { return Ok(None) };
    let file = state.map(|state| {
        let name = format!("{:x}-{:x}.lock", stat.st_dev, stat.st_ino);
        state.join("naming").join(name)
    });
    let begin = Instant::now();
    while let Some(file) = &file {
        match lock_file(file) {
            Ok(Some(lock)) => return Ok(Some(Naming { file: Some(file.clone()), _lock: lock })),
            Ok(None) if begin.elapsed() < limit => thread::sleep(PERIOD),
            Ok(None) => {
                let seconds = limit.as_secs();
                let dir = Shown::new(dir);
                return Err(Failure::failed(format!(
                    "{dir}: another command of this user has been making a volume there for \
                     {seconds} s: end a stopped one"
                )));
            }
            // As on a host that is full.
            Err(_) => break,
        }
    }
    Ok(lock_dir(dir).map(|lock| Naming { file: None, _lock: lock }))
}

/// Locks the file, which is made; `None`: another has it.
fn lock_file(file: &Path) -> rustix::io::Result<Option<OwnedFd>> {
    let dir = image::directory_of(file);
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let lock = rustix::fs::open(file, flags, Mode::RUSR | Mode::WUSR)?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error),
        Ok(()) => {
            let number = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
            let (own, there) = (fstat(&lock).map(number)?, lstat(file).map(number));
            // The former holder has removed what was opened here.
            Ok((there == Ok(own)).then_some(lock))
        }
    }
}

fn lock_dir(dir: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(dir, flags, Mode::empty()).ok()?;
    rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_command_names_and_whoever_locks_the_directory_keeps_none_from_it() {
        let dir = tempfile::tempdir().expect("dir");
        let (state, volumes) = (dir.path().join("state"), dir.path().join("volumes"));
        fs::create_dir(&volumes).expect("mkdir");
        let volume = volumes.join("v.img");
        let hold = |limit| hold_in(Some(&state), &volume, limit);
        // As any user may who can read the directory.
        let _theirs = lock_dir(&volumes).expect("locked");
        let begin = Instant::now();
        let own = hold(NAMING_MAX).expect("not refused").expect("held");
        assert!(begin.elapsed() < NAMING_MAX);
        let failure = hold(Duration::from_millis(50)).expect_err("held by another");
        assert!(failure.line.contains("another command"), "{failure}");
        let elsewhere = dir.path().join("other.img");
        assert!(hold_in(Some(&state), &elsewhere, NAMING_MAX).expect("another").is_some());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| hold(Duration::from_secs(60)).map(|held| held.is_some()));
            drop(own);
            assert_eq!(waits.join().expect("no panic"), Ok(true));
        });
        assert_eq!(fs::read_dir(state.join("naming")).expect("there").count(), 0);
        // A state directory that cannot be one.
        fs::write(dir.path().join("file"), "").expect("write");
        let none = hold_in(Some(&dir.path().join("file")), &volume, NAMING_MAX);
        assert!(none.expect("not refused").is_none(), "the directory is locked");
        assert!(hold_in(None, &dir.path().join("no/v"), NAMING_MAX).expect("absent").is_none());
    }
}
