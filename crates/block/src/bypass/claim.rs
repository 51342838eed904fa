//! A volume of a pool file, opened in the process that serves it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use polylane_base::Errno;
use polylane_base::sync::Arc;
use polylane_sys::lock::share_range;
use rustix::fs::{Mode, OFlags};

use super::BypassVolume;
use super::error::{PoolError, Result, failed};
use super::extents::Extents;
use super::format::{Id, Layout};
use super::hold::{Hold, USE_BYTE, wait_for_lock};
use super::pool_file::{
    OTHERS_TIME_MAX, PoolFiles, copy, disk_device, file_device, id_of, map_error,
};
use super::volume::{Road, Shared, Teller};
use crate::device::BlockDevice;
use crate::file::Way;
use crate::image::proc_path;

/// Byte of a volume's own file that is locked as long as requests for it are in flight.
const CLAIM_BYTE: i64 = 300;

/// What a process opens for itself of a volume and its pool file, while it may still open files.
#[derive(Debug)]
pub struct Claim {
    /// The volume's own file, whose lock lasts as long as requests in flight.
    volume: OwnedFd,
    /// The pool file, with O_DIRECT.
    direct: OwnedFd,
    files: PoolFiles,
}

impl Claim {
    /// Opens them by descriptors that were handed down; `volume` is the volume's own file. Waits
    /// for requests of a killed process.
    ///
    /// # Errors
    /// [`PoolError::Unfinished`]; the host's.
    pub fn new(volume: impl AsFd, files: PoolFiles) -> Result<Claim> {
        let again = |fd: &dyn Fn() -> PathBuf, more| {
            let flags = OFlags::RDWR | OFlags::CLOEXEC | more;
            rustix::fs::open(fd(), flags, Mode::empty()).map_err(failed("open it again"))
        };
        let volume = again(&|| proc_path(&volume), OFlags::empty())?;
        let direct = again(&|| proc_path(&files.pool), OFlags::DIRECT)?;
        // The process that handed it down has this lock too, but may be killed before this one.
        share_range(&direct, USE_BYTE, 1).map_err(|errno| PoolError::Host("lock it", errno))?;
        match wait_for_lock(&volume, CLAIM_BYTE, OTHERS_TIME_MAX) {
            Ok(()) => Ok(Claim { volume, direct, files }),
            Err(Errno::EAGAIN) => Err(PoolError::Unfinished),
            Err(errno) => Err(PoolError::Host("lock it", errno)),
        }
    }

    /// Opens a volume: past the file system if the pool file is pinned and its map is right, else
    /// through the file; `tell` is told why. Opens no file.
    ///
    /// # Errors
    /// The volume is not there, the directory is damaged, the pool file was pinned by somebody who
    /// is not polylane.
    pub fn open(self, id: Id, way: Way, tell: Teller) -> Result<Opened> {
        let Claim { volume, direct, files: PoolFiles { disk, pool } } = self;
        let stat = |fd: &OwnedFd| rustix::fs::seek(fd, rustix::fs::SeekFrom::End(0));
        let disk_sectors = stat(&disk).map_err(failed("find its disk's size"))? / 512;
        let pool_id = id_of(&direct)?;
        let hold = Hold::new(copy(&direct)?, disk_sectors);
        let mut devices = Vec::new();
        let mut roads = Vec::new();
        let doubt = match (hold.is_pinned(), hold.map()) {
            (true, Ok(map)) => {
                let device = disk_device(&disk, &pool, &volume, way)?;
                roads.push(Road::new(device.clone(), map));
                devices.push(device);
                None
            }
            (true, Err(why)) => Some(map_error(why).to_string()),
            (false, _) => Some("its pool file is not pinned".to_string()),
        };
        let device = file_device(&direct, &pool, &volume)?;
        roads.push(Road::new(device.clone(), Extents::identity(device.sector_count())));
        devices.push(device);
        if let Some(why) = doubt {
            if !hold.use_file() {
                return Err(PoolError::Host("use it: it is pinned", Errno::ETXTBSY));
            }
            tell(&format!("{why}: goes through the file"));
        }
        let shared = Shared::new(pool_id, &id, Layout::POOL, roads, Some(hold), tell)?;
        Ok(BypassVolume::start(shared, devices)?)
    }
}

/// An open volume.
pub type Opened = Arc<BypassVolume>;
