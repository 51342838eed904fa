//! Bypass: volumes whose requests go to the host's disk itself, past its file system.
//!
//! ```text
//!  volume's sector ─► chunk (directory) ─► pool file's byte ─► disk's sector (the host's map)
//! ```
//!
//! Many volumes lie in one pool file, in chunks. As long as one of them is in use, a swap area on
//! the file's head pins it: the kernel then lets nobody write, cut, move or share any part of it,
//! so that the map which was taken once stays true. Every block of the file is written before it is
//! given to a volume, and so nothing of the host's own state changes by our writes.
//! docs/design/bypass.md has the formats, the locks and the reasons.
//!
//! | module | what |
//! |---|---|
//! | `format` | the directory's pages, byte by byte |
//! | `directory` | whose chunks are whose; changes that a power cut cannot break |
//! | `extents` | the host's map, checked |
//! | `host` | which hosts are fit |
//! | `pool_file` | making, growing and pinning pool files; volumes made and removed |
//! | `claim` | a volume opened, in the process that serves it |
//! | `hold` | locks, and whether the pin is there |
//! | `chunks` | who is in which chunk of an open volume |
//! | `volume`, `channel`, `clerk` | the open volume as a medium |

mod channel;
mod chunks;
mod claim;
mod clerk;
mod desk;
mod directory;
mod error;
mod extents;
mod format;
mod hold;
mod host;
mod pool_file;
mod volume;

use std::ops::Range;

use polylane_base::sync::{Arc, Mutex, thread};

use crate::device::{Allocation, BlockDevice, Channel, Error, Op, SECTOR_BYTES, Sector};
use crate::file::{FileDevice, Totals};
use crate::medium::{Medium, Run, Space};

use channel::BypassChannel;
pub use claim::{Claim, Opened};
pub use directory::{Directory, DirectoryError, PoolBytes, Volume};
pub use error::{PoolError, Refused};
pub use extents::{Doubt, Extents};
pub use format::{Id, Layout};
pub use hold::{Hold, MapError};
pub use pool_file::{PoolFile, PoolFiles, Use};
use volume::Shared;
pub use volume::{Road, Teller};

const UNIT: u64 = SECTOR_BYTES as u64;

/// An open volume of a pool file. See the [module](self).
///
/// Thread-safe. Its clerk ends with it.
pub struct BypassVolume {
    shared: Arc<Shared>,
    clerk: Mutex<Option<thread::JoinHandle<()>>>,
    /// The devices of its roads, for their counters.
    files: Vec<Arc<FileDevice>>,
}

impl BypassVolume {
    /// Opens the volume `id` in the pool `pool`. `roads`: the disk, if it may be used, then the
    /// file. Without a `hold` nobody else changes the directory, and nothing is pinned. `tell` is
    /// told, once, what the owner of the volume should know.
    ///
    /// # Errors
    /// What is wrong with the directory; [`DirectoryError::NoVolume`].
    pub fn open(
        (pool, id): (Id, Id),
        layout: Layout,
        roads: Vec<Road>,
        hold: Option<Hold>,
        tell: Teller,
    ) -> Result<Arc<BypassVolume>, DirectoryError> {
        BypassVolume::start(Shared::new(pool, &id, layout, roads, hold, tell)?, Vec::new())
    }

    fn start(
        shared: Shared,
        files: Vec<Arc<FileDevice>>,
    ) -> Result<Arc<BypassVolume>, DirectoryError> {
        let shared = Arc::new(shared);
        let its = shared.clone();
        let clerk = thread::Builder::new()
            .name("bypass".to_string())
            .spawn(move || clerk::run(&its))
            .map_err(|error| DirectoryError::Medium(Error::Medium(error.into())))?;
        Ok(Arc::new(BypassVolume { shared, clerk: Mutex::new(Some(clerk)), files }))
    }

    /// Whether requests go past the file system now.
    pub fn is_on_disk(&self) -> bool {
        self.shared.is_on_disk()
    }

    /// Whether a failure stopped it.
    pub fn is_stopped(&self) -> bool {
        self.shared.is_stopped()
    }

    /// What its roads did, added up.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.files.iter().for_each(|file| totals.add(&file.totals()));
        totals
    }
}

impl Drop for BypassVolume {
    fn drop(&mut self) {
        self.shared.desk.close();
        if let Some(clerk) = self.clerk.lock().take() {
            // It panicked or it did not: it is gone.
            let _ = clerk.join();
        }
    }
}

impl BlockDevice for BypassVolume {
    fn sector_count(&self) -> u64 {
        self.shared.volume.size / UNIT
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        Box::new(BypassChannel::new(self, false))
    }

    fn waiting_channel(self: Arc<Self>) -> Box<dyn Channel> {
        Box::new(BypassChannel::new(self, true))
    }

    /// Whole chunks are given back; what is zeroed within one is little.
    fn writes_zeros(&self, op: Op) -> bool {
        matches!(op, Op::WriteZeroes { unmap: false, .. })
    }

    fn allocation(&self, sector: Sector, count: u64) -> (Allocation, u64) {
        let (chunk_sectors, end) = (self.shared.layout.chunk_bytes / UNIT, self.sector_count());
        if sector.0 >= end {
            return (Allocation::Data, count);
        }
        let index = sector.0 / chunk_sectors;
        let here = ((index + 1) * chunk_sectors).min(end) - sector.0;
        match self.shared.chunks.look(index as u32) {
            Some(_) => (Allocation::Data, here.min(count)),
            None => (Allocation::Hole, here.min(count)),
        }
    }
}

impl Medium for BypassVolume {
    fn runs(&self, range: Range<u64>) -> Result<Vec<Run>, Error> {
        if range.start >= range.end || range.end > self.sector_count() {
            return Err(Error::OutOfRange);
        }
        let chunk_sectors = self.shared.layout.chunk_bytes / UNIT;
        let mut runs = Vec::new();
        for index in range.start / chunk_sectors..range.end.div_ceil(chunk_sectors) {
            let first = index * chunk_sectors;
            let mut at = range.start.max(first);
            let end = range.end.min(first + chunk_sectors);
            let Some(chunk) = self.shared.chunks.look(index as u32) else {
                runs.push(Run { sectors: at..end, space: Space::Hole, place: None });
                continue;
            };
            let inside = self.shared.layout.chunk_at(chunk) / UNIT;
            let extents = self.shared.road(self.shared.road_number()).extents();
            for piece in extents.pieces(inside + (at - first)..inside + (end - first)) {
                let next = at + (piece.end - piece.start);
                let place = Some(Sector(piece.start));
                runs.push(Run { sectors: at..next, space: Space::Written, place });
                at = next;
            }
        }
        Ok(runs)
    }

    fn allocate(&self, range: Range<u64>) -> Result<(), Error> {
        if range.start >= range.end || range.end > self.sector_count() {
            return Err(Error::OutOfRange);
        }
        let chunk_sectors = self.shared.layout.chunk_bytes / UNIT;
        let chunks = range.start / chunk_sectors..range.end.div_ceil(chunk_sectors);
        chunks.map(|index| index as u32).try_for_each(|index| self.shared.fill(index))
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }
}
