//! What a process holds of a pool file while it uses a volume in it: the pin's sight, and locks.
//!
//! | byte | lock | held by |
//! |---|---|---|
//! | 0 | exclusive | whoever changes the directory, for that change |
//! | 1 | shared | whoever uses a volume in the file; exclusive: whoever pins, unpins or grows it |
//! | 2 | shared | whoever goes through the file; exclusive: whoever pins it, for that moment |
//! | 3 | exclusive | whoever makes or removes volumes |
//!
//! Locks belong to open files, and so do not outlive the processes that have them.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use polylane_base::sync::thread;
use polylane_base::{Errno, Result};
use polylane_sys::buffer::Buffer;
use polylane_sys::extents as host;
use polylane_sys::lock::{lock_range, share_range, unlock_range};

use super::extents::{Doubt, Extents};
use super::format::Layout;

/// Locked bytes.
pub(super) const DIRECTORY_BYTE: i64 = 0;
pub(super) const USE_BYTE: i64 = 1;
pub(super) const FILE_BYTE: i64 = 2;
pub(super) const MAKER_BYTE: i64 = 3;

/// How long the directory may be locked by somebody: a chunk may have to be zeroed meanwhile.
const LOCK_TIME_MAX: Duration = Duration::from_secs(60);

/// Between two tries.
const TRY_AGAIN: Duration = Duration::from_millis(1);

/// Where it is tried whether the file is pinned: the end of the head, which nothing uses.
const PROBE_AT: u64 = Layout::POOL.head_bytes - PROBE_BYTES as u64;
const PROBE_BYTES: usize = 4096;

/// A road into a pool file, held open; what it keeps away is told at the head of this file.
#[derive(Debug)]
pub struct Hold {
    /// An open file of this process alone, with O_DIRECT: locks, and where the pin is looked for.
    file: OwnedFd,
    /// Sectors of the disk under it.
    disk_sectors: u64,
}

/// The directory's lock.
pub(super) struct Locked<'a>(&'a OwnedFd);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let _ = unlock_range(self.0, DIRECTORY_BYTE, 1);
    }
}

impl Hold {
    /// `file` is a pool file, opened by this process for itself, with O_DIRECT.
    pub fn new(file: OwnedFd, disk_sectors: u64) -> Hold {
        Hold { file, disk_sectors }
    }

    /// Waits for the directory's lock.
    pub(super) fn lock_directory(&self) -> Result<Locked<'_>> {
        wait_for_lock(&self.file, DIRECTORY_BYTE, LOCK_TIME_MAX)?;
        Ok(Locked(&self.file))
    }

    /// Whether the kernel lets nobody change the file.
    pub(super) fn is_pinned(&self) -> bool {
        is_pinned(&self.file)
    }

    /// The host's map of the file, as it is now.
    pub(super) fn map(&self) -> std::result::Result<Extents, MapError> {
        map(&self.file, self.disk_sectors)
    }

    /// From now on nobody pins the file: it is used as a file. False: somebody has pinned it again.
    pub(super) fn use_file(&self) -> bool {
        let shared = share_range(&self.file, FILE_BYTE, 1).is_ok();
        match shared && !self.is_pinned() {
            true => true,
            false => {
                let _ = unlock_range(&self.file, FILE_BYTE, 1);
                false
            }
        }
    }
}

/// Waits for an exclusive lock on one byte.
pub(super) fn wait_for_lock(file: impl AsFd, byte: i64, limit: Duration) -> Result<()> {
    let begin = Instant::now();
    loop {
        match lock_range(&file, byte, 1) {
            Err(Errno::EAGAIN) if begin.elapsed() < limit => thread::sleep(TRY_AGAIN),
            other => return other,
        }
    }
}

/// Whether the kernel lets nobody change a pool file: it then refuses a write of zeros to where
/// zeros are, which otherwise does no harm.
pub(super) fn is_pinned(file: impl AsFd) -> bool {
    let zeros = Buffer::zeroed(PROBE_BYTES);
    rustix::io::pwrite(file, &zeros, PROBE_AT) == Err(rustix::io::Errno::TXTBSY)
}

/// Why there is no map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// The host does not tell.
    Host(Errno),
    /// What it tells cannot be used.
    Doubt(Doubt),
}

/// The host's map of a whole pool file.
pub(super) fn map(file: impl AsFd, disk_sectors: u64) -> std::result::Result<Extents, MapError> {
    let stat = rustix::fs::fstat(&file);
    let bytes = stat.map_err(|error| MapError::Host(Errno(error.raw_os_error())))?.st_size as u64;
    let found = host::of(&file).map_err(MapError::Host)?;
    Extents::new(&found, bytes, disk_sectors).map_err(MapError::Doubt)
}
