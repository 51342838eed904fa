//! A volume's file: opened by one at a time, created whole or not at all.
//!
//! # The lock
//!
//! Every opener takes an exclusive lock of the open file (OFD) on bytes 100 to 299. QEMU describes
//! what it does with an image by shared locks on single bytes from 100 (what it does) and from 200
//! (what it forbids others), and looks for others' locks on the opposite bytes: so a volume that a
//! guest of QEMU uses is refused here, and the reverse. The lock lives as long as any process has
//! the descriptor: through a restart of the service, and until the service of a killed supervisor
//! has flushed.
//!
//! A file that does not change any more, a snapshot, is shared: its readers take a shared lock on
//! the same bytes. Readers of it as a volume of its own, not as the base of another, take byte 300
//! shared as well; a merge with its neighbour in a chain of snapshots takes that byte alone.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polylane_base::Errno;
use polylane_sys::lock::{is_locked, lock_range, share_range};
use polylane_sys::procstat;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Statx, StatxFlags, renameat_with,
};

use crate::claimed::{self, Claimed};
use crate::file::Files;

/// First locked byte: QEMU's `RAW_LOCK_PERM_BASE`.
const LOCK_START: i64 = 100;
/// Locked bytes, up to the end of what begins at `RAW_LOCK_SHARED_BASE` (200).
const LOCK_LENGTH: i64 = 200;

/// The byte of those who read a snapshot as a volume of its own, and of who merges it.
const READER_LOCK: i64 = LOCK_START + LOCK_LENGTH;

/// Times that a file is opened again whose name was given to another one meanwhile.
const OPENS_MAX: u32 = 8;

/// How long a lock is waited for whose holder is in no list of processes.
const DYING_MAX: Duration = Duration::from_secs(2);
/// How long processes are looked through for the one that has a volume open.
const LOOK_TIME_MAX: Duration = Duration::from_secs(2);
/// Most that is read of what the kernel says of a descriptor.
const FDINFO_BYTES_MAX: u64 = 4 << 10;
/// Most that is read of a program's name.
const NAME_BYTES_MAX: u64 = 512;
/// The first number of the users that services run as: above those of people, and of systemd's
/// containers.
pub const SERVICES_START: u32 = 0x7000_0000;

/// Between two tries.
const DYING_PERIOD: Duration = Duration::from_millis(10);

/// The process that has a volume open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Its process.
    pub pid: u32,
    /// The program's name for itself: `argv[0]`.
    pub name: String,
}

/// Why a volume's file could not be opened or made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ImageError {
    /// Neither a regular file nor a block device.
    NotAFile,
    /// Somebody has it open; who, if that can be seen from here.
    InUse(Option<Holder>),
    /// The kernel uses it itself.
    Claimed(Claimed),
    /// The host refused to do this with it.
    Host(&'static str, Errno),
}

type Result<T> = std::result::Result<T, ImageError>;

fn host(what: &'static str) -> impl Fn(rustix::io::Errno) -> ImageError {
    move |error| ImageError::Host(what, Errno(error.raw_os_error()))
}

/// What a volume is opened with. Not blocking: whatever waits for a peer is no volume.
const FLAGS: OFlags =
    OFlags::RDWR.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Opens an existing volume for reading and writing, alone: neither another process has it open,
/// nor does the kernel use it. A device is claimed, so that the kernel does not meanwhile.
///
/// # Errors
/// See [`ImageError`].
pub fn open(path: &Path) -> Result<Files> {
    // No link: which of them are followed is decided before.
    let flags = FLAGS | OFlags::NOFOLLOW;
    let lock = rustix::fs::open(path, flags, Mode::empty()).map_err(host("open it"))?;
    let stat = rustix::fs::fstat(&lock).map_err(host("look at it"))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let files = take(lock)?;
            claimed::use_of_file(&files.lock, true)
                .map_or(Ok(files), |by| Err(ImageError::Claimed(by)))
        }
        // It can be opened to write all the same, and then takes none.
        FileType::BlockDevice if claimed::is_read_only_device(&stat) => {
            Err(ImageError::Host("open it to write", Errno::EROFS))
        }
        FileType::BlockDevice => match claimed::claim(&proc_path(&lock), FLAGS) {
            Ok(Some(claimed)) => claimed::use_over_device(&claimed)
                .map_or_else(|| take(claimed), |by| Err(ImageError::Claimed(by))),
            // By another that opens volumes, or by the kernel.
            Ok(None) => {
                drop(take(lock.try_clone().map_err(|e| ImageError::Host("open it", e.into()))?)?);
                Err(ImageError::Claimed(claimed::use_of_device(lock)))
            }
            Err(error) => Err(host("open it")(error)),
        },
        _ => Err(ImageError::NotAFile),
    }
}

/// Gives up the claim on a device, for a program that claims it itself; the lock stays.
///
/// # Errors
/// See [`ImageError`].
pub fn unclaim(files: Files) -> Result<Files> {
    let again = rustix::fs::open(proc_path(&files.plain), FLAGS, Mode::empty());
    let again = again.map_err(host("open it once more"))?;
    drop(files);
    take(again)
}

/// Opens a file that is not going to change, for reading, together with others who do. Its lock
/// keeps everybody out who wants the file alone. A device that takes no writes is opened alone.
///
/// # Errors
/// See [`ImageError`].
pub fn open_shared(path: &Path) -> Result<Files> {
    let lock = lock_shared(path, OFlags::RDONLY)?;
    if let Some(by) = claimed::use_of_file(&lock, false) {
        return Err(ImageError::Claimed(by));
    }
    again(lock, OFlags::RDONLY)
}

/// [`open_shared`] for one who reads the file as a volume of its own: it is not merged meanwhile,
/// and has its name when this returns.
///
/// # Errors
/// See [`ImageError`].
pub fn open_snapshot(path: &Path) -> Result<Files> {
    named(path, || {
        let files = open_shared(path)?;
        wait_for_the_dying(&files.lock, || share_range(&files.lock, READER_LOCK, 1))?;
        Ok(files)
    })
}

/// Opens a snapshot for reading and writing, to merge it with its neighbour: together with those
/// who read it as a base, without any who read it as a volume of its own. It has its name when this
/// returns.
///
/// # Errors
/// See [`ImageError`]; [`ImageError::Claimed`] also where the kernel only reads it.
pub fn open_to_merge(path: &Path) -> Result<Files> {
    named(path, || {
        let lock = lock_shared(path, OFlags::RDWR)?;
        wait_for_the_dying(&lock, || lock_range(&lock, READER_LOCK, 1))?;
        match claimed::use_of_file(&lock, true) {
            Some(by) => Err(ImageError::Claimed(by)),
            None => again(lock, OFlags::RDWR),
        }
    })
}

/// What `open` opens, once it is what has the name.
fn named(path: &Path, open: impl Fn() -> Result<Files>) -> Result<Files> {
    let mut tries = 1;
    loop {
        let files = open()?;
        let number = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let its = rustix::fs::fstat(&files.plain).map(number).map_err(host("look at it"))?;
        match rustix::fs::lstat(path).map(number) {
            Ok(found) if found != its && tries < OPENS_MAX => tries += 1,
            _ => return Ok(files),
        }
    }
}

/// Opens a regular file, with the shared lock.
fn lock_shared(path: &Path, access: OFlags) -> Result<OwnedFd> {
    let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let lock = rustix::fs::open(path, flags, Mode::empty());
    let lock = lock.map_err(host("open it"))?;
    let stat = rustix::fs::fstat(&lock).map_err(host("look at it"))?;
    let lock = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => lock,
        FileType::BlockDevice if claimed::is_read_only_device(&stat) => {
            // By the link of an open file.
            let flags = flags.difference(OFlags::NOFOLLOW);
            let claimed = claimed::claim(&proc_path(&lock), flags).map_err(host("open it"))?;
            claimed.ok_or_else(|| ImageError::Claimed(claimed::use_of_device(lock)))?
        }
        _ => return Err(ImageError::NotAFile),
    };
    wait_for_the_dying(&lock, || share_range(&lock, LOCK_START, LOCK_LENGTH))?;
    Ok(lock)
}

/// The same file again, for reading only, under the same lock.
///
/// # Errors
/// The host's.
pub fn reopen_read_only(files: &Files) -> Result<Files> {
    let again = proc_path(&files.plain);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let open = |more| rustix::fs::open(&again, flags | more, Mode::empty());
    let plain = open(OFlags::empty()).map_err(host("open it for reading"))?;
    let io = open(OFlags::DIRECT).or_else(|_| open(OFlags::empty()));
    let lock = files.lock.try_clone();
    let lock = lock.map_err(|error| ImageError::Host("keep its lock", error.into()))?;
    Ok(Files { io: io.map_err(host("open it for reading"))?, plain, lock })
}

/// Turns the lock of [`open`] into that of [`open_shared`], for all who hold it: the file does not
/// change any more.
///
/// # Errors
/// The host's.
pub fn share(files: &Files) -> Result<()> {
    let shared = share_range(&files.lock, LOCK_START, LOCK_LENGTH);
    shared.map_err(|errno| ImageError::Host("share it", errno))
}

/// Takes a lock. A holder who cannot be seen may be a process that was killed: the kernel lets go
/// of its files, and with them of its lock, a moment after it has left /proc.
fn wait_for_the_dying(file: &OwnedFd, lock: impl Fn() -> polylane_base::Result<()>) -> Result<()> {
    let begin = Instant::now();
    loop {
        match lock() {
            Ok(()) => return Ok(()),
            Err(Errno::EAGAIN) => match holder(file) {
                None if begin.elapsed() < DYING_MAX => std::thread::sleep(DYING_PERIOD),
                seen => return Err(ImageError::InUse(seen)),
            },
            Err(errno) => return Err(ImageError::Host("lock it", errno)),
        }
    }
}

/// Locks the file and opens it for data.
fn take(lock: OwnedFd) -> Result<Files> {
    wait_for_the_dying(&lock, || lock_range(&lock, LOCK_START, LOCK_LENGTH))?;
    again(lock, OFlags::RDWR)
}

/// Opens a locked file for data: with direct I/O, where its file system has that.
fn again(lock: OwnedFd, access: OFlags) -> Result<Files> {
    let again = proc_path(&lock);
    let open = |more| rustix::fs::open(&again, access | OFlags::CLOEXEC | more, Mode::empty());
    let plain = open(OFlags::empty()).map_err(host("open it a second time"))?;
    let io = open(OFlags::DIRECT).or_else(|_| open(OFlags::empty()));
    Ok(Files { io: io.map_err(host("open it a third time"))?, plain, lock })
}

/// A name of the open file itself, whatever becomes of its path. Other processes of this user can
/// use it as well, as long as this one lives.
pub fn proc_path(file: impl AsFd) -> PathBuf {
    let number = file.as_fd().as_raw_fd();
    PathBuf::from(format!("/proc/{}/fd/{number}", std::process::id()))
}

/// A volume that is being made: it has no name, and vanishes unless it is published.
#[derive(Debug)]
pub struct Draft {
    file: OwnedFd,
    path: PathBuf,
    /// Its name as a draft, on hosts that cannot make files without one.
    temporary: Option<PathBuf>,
}

impl Draft {
    /// An empty sparse file of `bytes` bytes that is going to be `path`, readable by its owner.
    ///
    /// # Errors
    /// See [`ImageError`]; `EEXIST` when there is such a file.
    pub fn new(path: &Path, bytes: u64) -> Result<Draft> {
        if rustix::fs::lstat(path).is_ok() {
            return Err(ImageError::Host("create it", Errno::EEXIST));
        }
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let opened = rustix::fs::open(directory_of(path), flags | OFlags::TMPFILE, mode);
        let (file, temporary) = match opened {
            Ok(file) => (file, None),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => {
                let flags = flags | OFlags::CREATE | OFlags::EXCL;
                let name = draft_name(path)?;
                let file = rustix::fs::open(&name, flags, mode).map_err(host("create it"))?;
                (file, Some(name))
            }
            Err(error) => return Err(host("create it")(error)),
        };
        let draft = Draft { file, path: path.to_path_buf(), temporary };
        rustix::fs::ftruncate(&draft.file, bytes).map_err(host("give it its size"))?;
        Ok(draft)
    }

    /// The file, to be filled.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Makes the content durable, which may take long.
    ///
    /// # Errors
    /// See [`ImageError`].
    pub fn durable(self) -> Result<DurableDraft> {
        rustix::fs::fsync(&self.file).map_err(host("make it durable"))?;
        Ok(DurableDraft(self))
    }
}

/// A draft whose content is durable.
#[derive(Debug)]
pub struct DurableDraft(Draft);

impl DurableDraft {
    /// The file.
    pub fn file(&self) -> &OwnedFd {
        self.0.file()
    }

    /// Gives the file its name, durably, and opens it.
    ///
    /// # Errors
    /// See [`ImageError`]; `EEXIST` when somebody was faster.
    pub fn publish(self) -> Result<Files> {
        let DurableDraft(mut draft) = self;
        // A lock before the name: nobody gets in between.
        let lock = draft.file.try_clone();
        let lock = lock.map_err(|error| ImageError::Host("open it", error.into()))?;
        let files = take(lock)?;
        match &draft.temporary {
            None => {
                let from = proc_path(&draft.file);
                rustix::fs::linkat(CWD, &from, CWD, &draft.path, AtFlags::SYMLINK_FOLLOW)
            }
            Some(name) => rename_new(name, &draft.path),
        }
        .map_err(host("create it"))?;
        draft.temporary = None;
        sync_names(&draft.path)?;
        Ok(files)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(name) = &self.temporary {
            let _ = fs::remove_file(name);
        }
    }
}

/// A name for a file that is going to be `path`, which no other process can guess.
fn draft_name(path: &Path) -> Result<PathBuf> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(host("make a name for its draft"))?;
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".draft-{:016x}", u64::from_ne_bytes(bytes)));
    Ok(path.with_file_name(name))
}

/// Renames a file to a name that is free.
fn rename_new(from: &Path, to: &Path) -> rustix::io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Network file systems know the older calls alone.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            rustix::fs::link(from, to)?;
            rustix::fs::unlink(from)
        }
        done => done,
    }
}

/// The directory that the name of `path` is in.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes durable which files the names in the directory of `path` stand for. Hosts that cannot do
/// so for a directory do it by themselves, or never.
///
/// # Errors
/// The host's.
pub fn sync_names(path: &Path) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(directory_of(path), flags, Mode::empty());
    let dir = dir.map_err(host("open its directory"))?;
    match rustix::fs::fsync(&dir) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOTSUP) => Ok(()),
        Err(error) => Err(host("make its name durable")(error)),
    }
}

/// Who has the volume open, if anybody has: `Some(None)` is somebody who cannot be seen from here.
///
/// # Errors
/// See [`ImageError`].
pub fn user_of(file: impl AsFd) -> Result<Option<Option<Holder>>> {
    match is_locked(&file, LOCK_START, LOCK_LENGTH) {
        Ok(true) => Ok(Some(holder(file))),
        Ok(false) => Ok(None),
        Err(errno) => Err(ImageError::Host("look for its lock", errno)),
    }
}

/// A process that holds the lock on this file, as far as this user may look. A pool's service comes
/// before other processes that share its descriptor.
fn holder(file: impl AsFd) -> Option<Holder> {
    // Without asking file systems: one of those that others have open may never answer.
    let (flags, which) = (AtFlags::STATX_DONT_SYNC, StatxFlags::INO);
    let place = |stat: Statx| {
        let numbers = [stat.stx_dev_major, stat.stx_dev_minor];
        (numbers, stat.stx_ino, [stat.stx_rdev_major, stat.stx_rdev_minor])
    };
    let wanted = rustix::fs::statx(file, "", flags | AtFlags::EMPTY_PATH, which).ok()?;
    let wanted = place(wanted);
    let same = |fd: &Path| {
        rustix::fs::statx(CWD, fd, flags, which).is_ok_and(|stat| place(stat) == wanted)
    };
    let mut found: Option<Holder> = None;
    // Others decide how much they have open.
    let begin = Instant::now();
    let in_time = || begin.elapsed() < LOOK_TIME_MAX;
    for pid in procstat::pids().take_while(|_| in_time()) {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut descriptors = descriptors.map(|fd| fd.path()).take_while(|_| in_time());
        let holds = descriptors.any(|fd| same(&fd) && has_lock(&fd));
        if !holds {
            continue;
        }
        let holder = Holder { pid, name: program(pid) };
        match holder.name.starts_with("polylane-service[") {
            true => return Some(holder),
            false => found = found.or(Some(holder)),
        }
    }
    found
}

/// `/proc/PID/fdinfo/FD` lists the locks of the open file, of which there may be many.
fn has_lock(fd: &Path) -> bool {
    let number = fd.file_name().unwrap_or_default();
    let info = fd.with_file_name("..").join("fdinfo").join(number);
    let text = procstat::head(info, FDINFO_BYTES_MAX).unwrap_or_default();
    text.windows(6).any(|part| part == b"\nlock:")
}

/// The program's name for itself, if it is one of this user's, of root's or a service; of others,
/// whose words may never end, what the kernel calls it.
fn program(pid: u32) -> String {
    let own = rustix::process::geteuid().as_raw();
    let user = procstat::real_user(&procstat::status(pid));
    let is_known = user.is_some_and(|user| user == 0 || user == own || user >= SERVICES_START);
    let file = if is_known { "cmdline" } else { "comm" };
    let line = procstat::head(format!("/proc/{pid}/{file}"), NAME_BYTES_MAX).unwrap_or_default();
    let first = line.split(|byte| matches!(byte, 0 | b'\n')).next().unwrap_or_default();
    String::from_utf8_lossy(first).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_one_opener_who_is_named_to_the_second() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("volume");
        let draft = Draft::new(&path, 1 << 20).expect("new");
        assert!(!path.exists(), "no name before it is complete");
        let files = draft.durable().and_then(DurableDraft::publish).expect("publish");
        assert_eq!(fs::metadata(&path).expect("stat").len(), 1 << 20);
        let Err(ImageError::InUse(Some(holder))) = open(&path) else { panic!("not refused") };
        assert_eq!(holder.pid, std::process::id());
        drop((files.io, files.plain));
        assert!(matches!(open(&path), Err(ImageError::InUse(Some(_)))));
        drop(files.lock);
        open(&path).expect("free");
        let again = Draft::new(&path, 1).expect_err("exists");
        assert_eq!(again, ImageError::Host("create it", Errno::EEXIST));
    }

    #[test]
    fn a_draft_with_a_name_takes_nobody_s_place() {
        let dir = tempfile::tempdir().expect("dir");
        let (path, taken) = (dir.path().join("volume"), dir.path().join("taken"));
        let draft = draft_name(&path).expect("name");
        fs::write(&draft, "new").expect("write");
        fs::write(&taken, "old").expect("write");
        assert_eq!(rename_new(&draft, &taken), Err(rustix::io::Errno::EXIST));
        rename_new(&draft, &path).expect("free");
        sync_names(&path).expect("sync");
        assert_eq!(fs::read_to_string(&path).expect("read"), "new");
        assert_eq!(fs::read_to_string(&taken).expect("read"), "old");
        assert!(sync_names(&dir.path().join("none/volume")).is_err());
    }

    #[test]
    fn only_files_are_volumes() {
        assert!(matches!(open(Path::new("/dev/null")), Err(ImageError::NotAFile)));
        assert!(matches!(open(Path::new("/nowhere/at/all")), Err(ImageError::Host(..))));
        let dir = tempfile::tempdir().expect("dir");
        assert!(open(dir.path()).is_err());
    }
}
