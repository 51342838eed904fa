//! Where containers are kept, and who may change one.
//!
//! ```text
//! containers/lock           held while a name is taken
//! containers/ID/lock        held by a command that starts, ends or removes the container
//! containers/ID/watched     held by the process that waits for the container's end
//! containers/ID/record.json what was asked for (record.rs)
//! containers/ID/upper.img   the volume with what the container changed
//! containers/ID/root        where its lane is mounted
//! containers/ID/mounts/N    where the lane of its mount N is mounted
//! containers/ID/config.json the bundle's configuration, of the last start
//! containers/ID/groups.json where its control groups are, as long as there may be any
//! containers/ID/pid         its first process, as the runtime tells
//! containers/ID/runtime.log what the runtime said of the last start
//! containers/ID/output      standard output and error of one that has no terminal
//! containers/ID/exit.json   how it ended
//! ```
//!
//! # Invariants
//!
//! - A directory has its name when it has its record. One that says `making`, or has lost its
//!   record on the way out, and that no command holds, is of a command that was killed: every
//!   command that lists removes it, but what is in a store.
//! - A record is written aside and renamed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polylane_pool::failure::{Failure, Result};
use polylane_pool::names;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long a command waits for another one that holds a container.
const WAIT_MAX: Duration = if cfg!(test) { Duration::ZERO } else { Duration::from_secs(90) };

/// What another engine's runtime is told; it is written last.
pub(crate) const CONFIG: &str = "config.json";

/// The file of the container's own volume.
pub(crate) const UPPER: &str = "upper.img";

/// The directory of mount points besides the root's.
const MOUNTS: &str = "mounts";

/// What a container's directory is called until it has a record.
const NEW: &str = "new";

/// Most bytes of a record.
const RECORD_BYTES_MAX: u64 = 4 << 20;

/// A lock of a file; it ends with this and with the process.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Lock {
    /// The same lock, which ends when all that have it have let go.
    pub(crate) fn share(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

/// The directory of one container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    dir: PathBuf,
}

/// The directory of all containers.
pub(crate) use polylane_volume::containers_dir as all_dir;

/// Where the runtime keeps its own state.
pub(crate) fn runtime_state() -> PathBuf {
    names::runtime_dir().join("containers")
}

/// Identities of all containers, and of directories that are none yet.
pub(crate) fn ids(dir: &Path) -> Result<Vec<String>> {
    let failed = |error| Failure::path(dir, "list containers", error);
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut ids = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        ids.extend(name.to_str().filter(|name| is_id(name)).map(str::to_string));
    }
    ids.sort();
    Ok(ids)
}

/// Whether a text is a container's identity: 16 hexadecimal digits.
pub(crate) fn is_id(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Makes the directory of all containers, which its user alone may enter.
pub(crate) fn make_all(dir: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| Failure::path(dir, "make it", error))
}

/// Removes a directory that has no name yet, unless the command that makes it lives.
pub(crate) fn clear_new(dir: &Path) -> Result<()> {
    let new = Place::of(dir, NEW);
    if !new.dir.exists() {
        return Ok(());
    }
    match try_lock(&dir.join("lock"))? {
        Some(_names) => new.remove(),
        None => Ok(()),
    }
}

/// Takes the lock of names.
pub(crate) fn lock_names(dir: &Path) -> Result<Lock> {
    lock(&dir.join("lock"), "containers", Some(WAIT_MAX))
}

impl Place {
    pub(crate) fn of(all: &Path, id: &str) -> Place {
        Place { dir: all.join(id) }
    }

    pub(crate) fn at(dir: PathBuf) -> Place {
        Place { dir }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The lane's mount point.
    pub(crate) fn root(&self) -> PathBuf {
        self.file("root")
    }

    /// The mount point of the store in which its files are, where commands change that.
    pub(crate) fn store(&self) -> PathBuf {
        self.file("store")
    }

    /// The mount point of the lane of mount `number`.
    pub(crate) fn lane(&self, number: usize) -> PathBuf {
        self.file(MOUNTS).join(number.to_string())
    }

    /// Makes the directory with a record in it, and takes its lock; the caller holds that of names.
    /// It has its name when all of that is done.
    pub(crate) fn make(&self, record: &impl Serialize) -> Result<Lock> {
        let all = self.dir.parent().unwrap_or(&self.dir);
        let new = Place::of(all, NEW);
        // Of a command that was killed.
        new.remove()?;
        let failed = |error| Failure::path(&self.dir, "make it", error);
        fs::DirBuilder::new().mode(0o700).create(&new.dir).map_err(failed)?;
        new.make_dir("root")?;
        let lock = new.lock()?;
        new.write("record.json", record)?;
        fs::rename(&new.dir, &self.dir).map_err(failed)?;
        Ok(lock)
    }

    pub(crate) fn make_dir(&self, name: &str) -> Result<()> {
        let dir = self.file(name);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.map_err(|error| Failure::path(&dir, "make it", error))
    }

    /// Takes the right to start, end or remove the container.
    pub(crate) fn lock(&self) -> Result<Lock> {
        lock(&self.file("lock"), "container", Some(WAIT_MAX))
    }

    /// Makes the directory, unless it is there, and takes its lock.
    pub(crate) fn make_locked(&self) -> Result<Lock> {
        loop {
            self.make_dir("")?;
            // Another command may have removed it meanwhile.
            if let Some(lock) = self.lock_dir()? {
                return Ok(lock);
            }
        }
    }

    /// The lock of a directory that needs no record; `None`: there is no such directory.
    pub(crate) fn lock_dir(&self) -> Result<Option<Lock>> {
        loop {
            match self.lock() {
                Ok(lock) if self.has(&lock) => return Ok(Some(lock)),
                _ if !self.dir.exists() => return Ok(None),
                Err(failure) => return Err(failure),
                // The command that had the lock removed it.
                Ok(_) => {}
            }
        }
    }

    /// The same, if nobody has it and it was taken before.
    pub(crate) fn try_lock_dir(&self) -> Result<Option<Lock>> {
        match self.file("lock").exists() {
            true => Ok(self.try_lock()?.filter(|lock| self.has(lock))),
            false => Ok(None),
        }
    }

    /// Whether a lock is that of the directory, not of one that was removed.
    fn has(&self, lock: &Lock) -> bool {
        let named = self.file("lock").metadata();
        let held = lock.file.metadata();
        named.ok().zip(held.ok()).is_some_and(|(named, held)| named.ino() == held.ino())
    }

    /// The same; `None`: the container was removed meanwhile.
    pub(crate) fn lock_if_there(&self) -> Result<Option<Lock>> {
        self.if_there(self.lock())
    }

    /// The same for the process that records the container's end, which nothing else knows: it
    /// waits for as long as another command has the container, as one that reads its files does.
    pub(crate) fn lock_for_end(&self) -> Result<Option<Lock>> {
        self.if_there(lock(&self.file("lock"), "container", None))
    }

    fn if_there(&self, locked: Result<Lock>) -> Result<Option<Lock>> {
        match locked {
            // A lock that was waited for may be one of a file that is gone.
            Ok(lock) if self.file("record.json").exists() => Ok(Some(lock)),
            Err(failure) if self.dir.exists() => Err(failure),
            _ => Ok(None),
        }
    }

    /// The same, if nobody has it.
    pub(crate) fn try_lock(&self) -> Result<Option<Lock>> {
        try_lock(&self.file("lock"))
    }

    /// The right to wait for the container's end, if nobody has it.
    pub(crate) fn try_watch(&self) -> Result<Option<Lock>> {
        try_lock(&self.file("watched"))
    }

    /// Waits until nobody waits for the container's end any more; whether that came in time.
    pub(crate) fn wait_unwatched(&self, limit: Duration) -> Result<bool> {
        let end = Instant::now() + limit;
        while self.try_watch()?.is_none() {
            if Instant::now() > end {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(true)
    }

    /// Writes a record: the former one or the new one is there, whenever this is killed.
    pub(crate) fn write(&self, name: &str, record: &impl Serialize) -> Result<()> {
        let path = self.file(name);
        let failed = |error: io::Error| Failure::path(&path, "write it", error);
        let text = serde_json::to_vec_pretty(record).map_err(|error| failed(error.into()))?;
        if text.len() as u64 > RECORD_BYTES_MAX {
            return Err(failed(io::ErrorKind::FileTooLarge.into()));
        }
        let aside = self.file(&format!("{name}.new"));
        let write = || {
            let mut options = File::options();
            let mut file =
                options.create(true).truncate(true).write(true).mode(0o600).open(&aside)?;
            io::Write::write_all(&mut file, &text)?;
            file.sync_all()?;
            fs::rename(&aside, &path)
        };
        write().map_err(failed)
    }

    /// Reads a record; `None`: there is none.
    pub(crate) fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let path = self.file(name);
        let failed = |error: io::Error| Failure::path(&path, "read it", error);
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed)?,
        };
        let mut text = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(file, RECORD_BYTES_MAX), &mut text)
            .map_err(failed)?;
        let record = serde_json::from_slice(&text);
        record.map(Some).map_err(|error| {
            Failure::failed(format!("{}: not a record of this version: {error}", path.display()))
        })
    }

    /// Removes a file of it; none is no error.
    pub(crate) fn remove_file(&self, name: &str) -> Result<()> {
        let path = self.file(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Failure::path(&path, "remove it", error))
            }
            _ => Ok(()),
        }
    }

    /// Removes all of it: the record last, since it tells what is to be removed. What is still
    /// mounted in it is not gone into: its mount point is not removed, which is an error.
    pub(crate) fn remove(&self) -> Result<()> {
        self.remove_but(|_| false)?;
        self.remove_file("record.json")?;
        self.remove_file("lock")?;
        match fs::remove_dir(&self.dir) {
            // Another command has taken its lock anew: it goes on with the directory.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|error| Failure::path(&self.dir, "remove it", error)),
        }
    }

    /// Removes the file of its volume, which no lane may have open; none is no error.
    pub(crate) fn remove_volume(&self) -> Result<()> {
        let path = self.file(UPPER);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() => polylane_volume::remove_unused(&path),
            _ => self.remove_file(UPPER),
        }
    }

    /// Removes what is in it, but its record and its lock, and what `is_kept` names: the volume
    /// first, so that nothing is removed where a lane still has that open.
    pub(crate) fn remove_but(&self, is_kept: impl Fn(&OsStr) -> bool) -> Result<()> {
        let failed = |error| Failure::path(&self.dir, "remove it", error);
        let is_kept = |name: &OsStr| name == "record.json" || name == "lock" || is_kept(name);
        if !is_kept(OsStr::new(UPPER)) {
            self.remove_volume()?;
        }
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let entry = entry.map_err(failed)?;
            if is_kept(&entry.file_name()) {
                continue;
            }
            match entry.file_type().map_err(failed)?.is_dir() {
                true => remove_mount_points(&entry.path()).map_err(failed)?,
                false => fs::remove_file(entry.path()).map_err(failed)?,
            }
        }
        Ok(())
    }
}

/// Removes a mount point, or the directory of several. Nothing below one is looked at: what a
/// tenant has there may be links to the host's directories.
fn remove_mount_points(dir: &Path) -> io::Result<()> {
    if dir.file_name().is_some_and(|name| name == MOUNTS) {
        for entry in fs::read_dir(dir)? {
            fs::remove_dir(entry?.path())?;
        }
    }
    fs::remove_dir(dir)
}

fn open_lock(path: &Path) -> Result<File> {
    let mut options = File::options();
    let options = options.create(true).truncate(false).write(true).mode(0o600);
    options.open(path).map_err(|error| Failure::path(path, "open its lock", error))
}

fn try_lock(path: &Path) -> Result<Option<Lock>> {
    let file = open_lock(path)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(Lock { file })),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(Failure::path(path, "lock it", error)),
    }
}

/// Takes a lock; where another command has it for longer than `limit`, that is an error.
fn lock(path: &Path, what: &str, limit: Option<Duration>) -> Result<Lock> {
    let begun = Instant::now();
    loop {
        if let Some(lock) = try_lock(path)? {
            return Ok(lock);
        }
        if let Some(limit) = limit.filter(|limit| begun.elapsed() > *limit) {
            return Err(Failure::failed(format!(
                "{}: another command has held this {what} for {} s",
                path.display(),
                limit.as_secs()
            )));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A command that reads a container's files, or starts it, may take longer than others wait.
    #[test]
    fn the_end_of_a_container_waits_for_as_long_as_another_command_has_it() {
        let all = tempfile::tempdir().expect("tempdir");
        let place = Place::of(all.path(), "one");
        place.make_dir("root").expect("mkdir");
        place.write("record.json", &1).expect("written");
        let held = place.lock().expect("free");
        place.lock_if_there().expect_err("another command has it");
        std::thread::scope(|scope| {
            let end = scope.spawn(|| place.lock_for_end().map(|lock| lock.is_some()));
            // Other commands give up meanwhile.
            for _ in 0..3 {
                place.lock().expect_err("another command has it");
            }
            assert!(!end.is_finished());
            drop(held);
            assert!(end.join().expect("no panic").expect("locked"));
        });
        place.remove().expect("removed");
        assert!(place.lock_for_end().expect("nothing").is_none());
    }

    #[test]
    fn nothing_is_removed_while_a_lane_has_the_volume_open() {
        let all = tempfile::tempdir().expect("tempdir");
        let place = Place::of(all.path(), "one");
        place.make_dir("root").expect("mkdir");
        let files = [UPPER, "upper.img.polylane", CONFIG].map(|name| place.file(name));
        for file in &files {
            fs::write(file, [0; 4096]).expect("written");
        }
        let held = fs::OpenOptions::new().read(true).write(true).open(&files[0]).expect("open");
        polylane_sys::lock::lock_range(&held, 0, 0).expect("locked");
        let refused = place.remove().expect_err("in use").to_string();
        assert!(refused.contains(UPPER), "{refused}");
        place.remove_volume().expect_err("in use");
        assert!(files.iter().chain([&place.root()]).all(|file| file.exists()));
        drop(held);
        place.remove().expect("removed");
        assert!(!place.dir().exists());
    }

    /// A root that could not be unmounted, with what a tenant may have made in it.
    #[test]
    fn nothing_below_a_mount_point_is_removed_and_no_link_there_is_followed() {
        let host = tempfile::tempdir().expect("tempdir");
        let theirs = host.path().join("theirs/empty");
        fs::create_dir_all(&theirs).expect("mkdir");
        let all = host.path().join("all");
        for under in ["root", "mounts/0"] {
            let place = Place::of(&all, "one");
            fs::create_dir_all(place.file(under).join("empty")).expect("mkdir");
            symlink(host.path().join("theirs"), place.file(under).join("link")).expect("link");
            place.write("record.json", &1).expect("written");
            place.remove().expect_err("it is mounted there");
            assert!(place.file(under).join("empty").exists() && theirs.exists(), "{under}");
            assert!(place.file("record.json").exists(), "the next command goes on");
            fs::remove_file(place.file(under).join("link")).expect("rm");
            fs::remove_dir(place.file(under).join("empty")).expect("rm");
            place.remove().expect("it is mounted no more");
            place.remove().expect("nothing is no error");
        }
        // `mounts` itself may be a link, or a mount, of no command of ours.
        let place = Place::of(&all, "one");
        place.make_dir("root").expect("mkdir");
        symlink(host.path().join("theirs"), place.file("mounts")).expect("link");
        place.remove().expect("the link goes");
        assert!(theirs.exists());
    }
}
