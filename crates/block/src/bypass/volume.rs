//! An open volume: its chunks, the two roads to them, and what is done seldom.
//!
//! # Roads
//!
//! The first road is the disk, through the map. The second is the pool file, through its file
//! system, for when the pin was lost: then the map is only as good as everybody's manners. The
//! change from one to the other happens once, with all chunks closed and empty, and is said once.
//!
//! # Invariants
//!
//! - A request is in every chunk that it touches from before its first byte moves until after its
//!   last one has.
//! - A chunk is free in the directory, durably, before it is a hole here no more; it is ours in the
//!   directory, durably and with zeros in it, before it is a chunk here.
//! - After a failed change of the directory the volume is stopped: what is on the medium may be the
//!   old or the new.
//!
//! # Locking
//!
//! `office` is held by whoever closes chunks, changes the directory or the road; then the lock of
//! the pool file; then `Syncer::state`. None of them for a read or write of what is there.

use std::time::{Duration, Instant};

use polylane_base::Errno;
use polylane_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use polylane_base::sync::{Arc, Condvar, Mutex};
use polylane_sys::buffer::Buffer;

use super::chunks::{Chunks, Found};
use super::desk::Desk;
use super::directory::{Directory, DirectoryError, PoolBytes, Volume};
use super::extents::Extents;
use super::format::{Id, Layout};
use super::hold::Hold;
use crate::device::{BlockDevice, Error, Op, SECTOR_BYTES, Sector};
use crate::wait::Waiter;

const UNIT: u64 = SECTOR_BYTES as u64;

/// How long requests may take to leave their chunks: longer than a disk's own retries.
const DRAIN_TIME_MAX: Duration = Duration::from_secs(60);

/// How long a discard waits for them before it writes zeros instead.
const DISCARD_TIME_MAX: Duration = Duration::from_secs(5);

/// Chunks that write-zeroes without `unmap` goes through in one turn: each may have to be written.
const TURN_CHUNKS: u64 = 16;

/// A way to a pool file's bytes: a device, and where on it they lie.
pub struct Road {
    device: Arc<dyn BlockDevice>,
    extents: Extents,
    waiter: Waiter,
}

impl Road {
    /// The bytes that `extents` tells of, on `device`.
    pub fn new(device: Arc<dyn BlockDevice>, extents: Extents) -> Road {
        Road { waiter: Waiter::new(device.clone()), device, extents }
    }

    pub(super) fn device(&self) -> Arc<dyn BlockDevice> {
        self.device.clone()
    }

    pub(super) fn extents(&self) -> &Extents {
        &self.extents
    }

    fn pieces(&self, at: u64, bytes: u64) -> Result<Vec<std::ops::Range<u64>>, Error> {
        let end = at.checked_add(bytes).ok_or(Error::OutOfRange)?;
        let pieces: Vec<_> = self.extents.pieces(at / UNIT..end / UNIT).collect();
        let whole = pieces.iter().map(|piece| piece.end - piece.start).sum::<u64>();
        match (at | bytes).is_multiple_of(UNIT) && whole == bytes / UNIT {
            true => Ok(pieces),
            false => Err(Error::OutOfRange),
        }
    }
}

impl PoolBytes for Road {
    fn read(&self, at: u64, bytes: usize) -> Result<Buffer, Error> {
        let pieces = self.pieces(at, bytes as u64)?;
        if let [piece] = &pieces[..] {
            return self.waiter.read(Sector(piece.start), bytes);
        }
        let (mut all, mut done) = (Buffer::zeroed(bytes), 0);
        for piece in pieces {
            let length = ((piece.end - piece.start) * UNIT) as usize;
            let part = self.waiter.read(Sector(piece.start), length)?;
            all[done..done + length].copy_from_slice(&part);
            done += length;
        }
        Ok(all)
    }

    fn write(&self, at: u64, data: Buffer) -> Result<(), Error> {
        let mut done = 0;
        for piece in self.pieces(at, data.len() as u64)? {
            let length = ((piece.end - piece.start) * UNIT) as usize;
            let part = Buffer::copy_of(&data[done..done + length]);
            self.waiter.write(Sector(piece.start), part, true)?;
            done += length;
        }
        Ok(())
    }

    fn zero(&self, at: u64, bytes: u64) -> Result<(), Error> {
        for piece in self.pieces(at, bytes)? {
            let count = piece.end - piece.start;
            self.waiter.write_zeroes(Sector(piece.start), count, false)?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Error> {
        self.waiter.flush()
    }
}

/// What is said of a volume, to whoever wants to know.
pub type Teller = Box<dyn Fn(&str) + Send + Sync>;

/// What an open volume's channels and its clerk share.
pub(super) struct Shared {
    pub(super) layout: Layout,
    pub(super) volume: Volume,
    pool: Id,
    pub(super) chunks: Chunks,
    /// The disk, if it may be used, then the file; in tests a medium alone.
    roads: Vec<Road>,
    road: AtomicUsize,
    stopped: AtomicBool,
    pub(super) desk: Desk,
    office: Mutex<()>,
    syncer: Syncer,
    /// Other processes, and the pin. `None`: neither is there, as in tests.
    hold: Option<Hold>,
    tell: Teller,
}

impl Shared {
    pub(super) fn new(
        pool: Id,
        id: &Id,
        layout: Layout,
        roads: Vec<Road>,
        hold: Option<Hold>,
        tell: Teller,
    ) -> Result<Shared, DirectoryError> {
        let first = roads.first().ok_or(DirectoryError::NoVolume)?;
        let directory = {
            let _lock = lock(hold.as_ref())?;
            Directory::load(first, layout, pool)?
        };
        let volume = directory.find(id)?;
        let chunks = Chunks::new(&directory.chunks_of(&volume)?);
        Ok(Shared {
            layout,
            volume,
            pool,
            chunks,
            roads,
            road: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            desk: Desk::default(),
            office: Mutex::default(),
            syncer: Syncer::default(),
            hold,
            tell,
        })
    }

    /// The road that requests take now: its number.
    #[inline]
    pub(super) fn road_number(&self) -> usize {
        self.road.load(Ordering::Acquire)
    }

    pub(super) fn road(&self, number: usize) -> &Road {
        &self.roads[number]
    }

    /// Whether requests go past the file system: the last road is the file.
    pub(super) fn is_on_disk(&self) -> bool {
        self.hold.is_some() && self.road_number() + 1 < self.roads.len()
    }

    fn current(&self) -> &Road {
        self.road(self.road_number())
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn stop(&self, why: &str) {
        if !self.stopped.swap(true, Ordering::AcqRel) {
            (self.tell)(why);
        }
    }

    fn check_stopped(&self) -> Result<(), Error> {
        if self.is_stopped() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Makes durable what has completed, one sync for all who ask meanwhile.
    pub(super) fn flush(&self) -> Result<(), Error> {
        self.check_stopped()?;
        let result = self.syncer.sync(|| {
            let result = self.current().flush();
            // What went through a map that is not pinned may be nowhere.
            self.look();
            result.and(self.check_stopped())
        });
        if result.is_err() {
            self.stopped.store(true, Ordering::Release);
        }
        result
    }

    /// A discard or write-zeroes: how many of its sectors are done. One that takes long goes on
    /// from there in another turn.
    pub(super) fn zero(&self, op: Op, sector: Sector, count: u64) -> Result<u64, Error> {
        self.check_stopped()?;
        let _office = self.office.lock();
        let gives_back = matches!(op, Op::Discard | Op::WriteZeroes { unmap: true, .. });
        let chunk_sectors = self.layout.chunk_bytes / UNIT;
        let (begin, mut end) = (sector.0 / chunk_sectors, sector.0 + count);
        if !gives_back {
            end = end.min((begin + TURN_CHUNKS) * chunk_sectors);
        }
        let indices = begin as u32..end.div_ceil(chunk_sectors) as u32;
        let is_filled = |index: &u32| !gives_back && self.chunks.look(*index).is_none();
        // A chunk is taken with zeros in it.
        let holes: Vec<u32> = indices.clone().filter(is_filled).collect();
        self.fill_holes(&holes)?;
        let mut whole = Vec::new();
        for index in indices {
            let first = u64::from(index) * chunk_sectors;
            let last = (first + chunk_sectors).min(self.volume.size / UNIT);
            let part = sector.0.max(first)..end.min(last);
            match gives_back && part == (first..last) {
                true => whole.push(index),
                false if holes.contains(&index) => {}
                false => self.zero_part(index, part.start - first..part.end - first)?,
            }
        }
        self.release(whole)?;
        if matches!(op, Op::WriteZeroes { fua: true, .. }) {
            self.current().flush()?;
        }
        Ok(end - sector.0)
    }

    /// Zeros by hand. Sectors count from the chunk's start.
    fn zero_part(&self, index: u32, part: std::ops::Range<u64>) -> Result<(), Error> {
        // Nobody but us closes chunks, so it is open.
        let Found::Chunk(chunk) = self.chunks.enter(index) else { return Ok(()) };
        let at = self.layout.chunk_at(chunk) + part.start * UNIT;
        let result = self.current().zero(at, (part.end - part.start) * UNIT);
        self.chunks.leave(index);
        result
    }

    /// Gives chunks back to the pool file.
    fn release(&self, mut indices: Vec<u32>) -> Result<(), Error> {
        indices.retain(|index| self.chunks.look(*index).is_some());
        if indices.is_empty() {
            return Ok(());
        }
        indices.iter().for_each(|index| self.chunks.close(*index));
        let until = Instant::now() + DISCARD_TIME_MAX;
        let (empty, busy): (Vec<u32>, Vec<u32>) =
            indices.into_iter().partition(|index| self.chunks.drain(*index, until));
        for index in busy {
            self.chunks.open(index);
            self.zero_part(index, 0..self.chunk_sectors(index))?;
        }
        let chunks: Vec<u32> = empty.iter().filter_map(|index| self.chunks.look(*index)).collect();
        let freed = self.change(|directory, bytes| directory.free(bytes, &chunks));
        if freed.is_err() {
            self.stop("its directory cannot be written: stopped");
        }
        // After a failure nothing is ever sent there: the volume is stopped.
        empty.iter().for_each(|index| self.chunks.open_as(*index, None));
        freed.map_err(error_of)
    }

    fn chunk_sectors(&self, index: u32) -> u64 {
        let first = u64::from(index) * self.layout.chunk_bytes;
        (self.volume.size - first).min(self.layout.chunk_bytes) / UNIT
    }

    /// Gives a hole its chunk.
    pub(super) fn fill(&self, index: u32) -> Result<(), Error> {
        self.check_stopped()?;
        let _office = self.office.lock();
        match self.chunks.look(index) {
            Some(_) => Ok(()),
            None => self.fill_holes(&[index]),
        }
    }

    /// Gives all of these holes their chunks, or none. With the office held.
    fn fill_holes(&self, indices: &[u32]) -> Result<(), Error> {
        if indices.is_empty() {
            return Ok(());
        }
        match self.change(|directory, bytes| directory.take(bytes, &self.volume, indices)) {
            Ok(chunks) => {
                for (index, chunk) in indices.iter().zip(chunks) {
                    self.chunks.open_as(*index, Some(chunk));
                }
                Ok(())
            }
            Err(DirectoryError::NoChunks { .. }) => Err(Error::NoSpace),
            Err(error) => {
                self.stop("its directory cannot be written: stopped");
                Err(error_of(error))
            }
        }
    }

    /// Reads the directory as it is now, with the lock that all processes respect, and changes it.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Directory, &dyn PoolBytes) -> Result<T, DirectoryError>,
    ) -> Result<T, DirectoryError> {
        let _lock = lock(self.hold.as_ref())?;
        let road = self.current();
        let mut directory = Directory::load_to_change(road, self.layout, self.pool)?;
        change(&mut directory, road)
    }

    /// Looks whether the pin is there, and takes the other road if it is not.
    pub(super) fn look(&self) {
        let Some(hold) = &self.hold else { return };
        if self.is_on_disk() && !self.is_stopped() && !hold.is_pinned() {
            self.leave_the_disk(hold);
        }
    }

    #[cold]
    fn leave_the_disk(&self, hold: &Hold) {
        let _office = self.office.lock();
        if !self.is_on_disk() || hold.is_pinned() {
            return;
        }
        let all = 0..self.chunks.count();
        all.clone().for_each(|index| self.chunks.close(index));
        let until = Instant::now() + DRAIN_TIME_MAX;
        let empty = all.clone().all(|index| self.chunks.drain(index, until));
        if !empty {
            self.stop("its pool file is not pinned any more, and requests do not end: stopped");
        } else if hold.map().as_ref() != Ok(self.roads[0].extents()) {
            self.stop("its pool file was moved on the disk while in use: stopped");
        } else if hold.use_file() {
            self.road.store(self.roads.len() - 1, Ordering::Release);
            (self.tell)(
                "its pool file is not pinned any more (swapoff?): goes on through the file",
            );
        } else if !hold.is_pinned() {
            self.stop("its pool file is not pinned any more: stopped");
        }
        all.for_each(|index| self.chunks.open(index));
    }
}

fn lock(hold: Option<&Hold>) -> Result<Option<super::hold::Locked<'_>>, Error> {
    hold.map(|hold| hold.lock_directory().map_err(Error::Medium)).transpose()
}

fn error_of(error: DirectoryError) -> Error {
    match error {
        DirectoryError::Medium(error) => error,
        _ => Error::Medium(Errno::EIO),
    }
}

/// One sync for all who want one.
#[derive(Default)]
struct Syncer {
    state: Mutex<Rounds>,
    ended: Condvar,
}

#[derive(Default)]
struct Rounds {
    begun: u64,
    ended: u64,
    running: bool,
    /// Of the last one, or of the first that failed.
    failed: Option<Error>,
}

impl Syncer {
    /// Comes back when a sync that began after this call has ended.
    fn sync(&self, sync: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let mut rounds = self.state.lock();
        let wanted = rounds.begun + 1;
        while rounds.running {
            rounds = self.ended.wait(rounds);
            if rounds.ended >= wanted {
                return rounds.failed.map_or(Ok(()), Err);
            }
        }
        rounds.running = true;
        rounds.begun += 1;
        let round = rounds.begun;
        drop(rounds);
        let result = sync();
        let mut rounds = self.state.lock();
        rounds.running = false;
        rounds.ended = round;
        rounds.failed = rounds.failed.or(result.err());
        self.ended.notify_all();
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_base::sync::atomic::AtomicU64;
    use polylane_base::sync::thread;

    #[test]
    fn syncs_are_shared_by_those_who_came_before_they_began() {
        let (syncer, count) = (Syncer::default(), AtomicU64::new(0));
        let sync = || {
            count.fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(5));
            Ok(())
        };
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        let before = count.load(Ordering::SeqCst);
                        syncer.sync(sync).expect("sync");
                        assert!(count.load(Ordering::SeqCst) > before);
                    }
                });
            }
        });
        let done = count.load(Ordering::SeqCst);
        assert!((5..40).contains(&done), "{done} syncs for 40 that asked");
        assert_eq!(syncer.sync(|| Err(Error::Stopped)), Err(Error::Stopped));
    }
}
