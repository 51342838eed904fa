//! A device on a host file (or host block device): io_uring with O_DIRECT, or what the host allows.
//!
//! # Three descriptors
//!
//! `io` carries the data, O_DIRECT where the file system has it. `plain` is the same file opened
//! without: it does what direct I/O refuses (requests that are not aligned as the host's disk
//! wants), syncs, and gives space back. The kernel keeps both coherent. `lock` holds the lock on
//! the volume and is no ring's: the kernel keeps the files of a ring open for a while after its
//! process has ended.
//!
//! # What maps to what
//!
//! | request | file |
//! |---|---|
//! | read, write | read, write; FUA is `RWF_DSYNC`, where that is refused fdatasync behind it |
//! | flush | fdatasync |
//! | discard | fallocate: punch a hole |
//! | write-zeroes | fallocate: zero the range, or punch a hole with `unmap`; else write zeros |
//!
//! # Disks and pool files
//!
//! The [bypass](crate::bypass) has two devices of its own kind: the host's disk, past its file
//! system, whose syncs go to a file on it; and the pool file, no block of which may change what it
//! is. On both, zeros are written by hand.
//!
//! # Invariants
//!
//! - A failed flush stops the device: the kernel reports a lost page once, so a second flush that
//!   succeeds proves nothing. So does a failed durable write, unless the host had no room for it.
//! - The kernel reports a lost page once to each open file. Durable writes go through `io` and
//!   flushes through `plain`, so what a durable write was told the next flush is told as well.
//! - The device does not read or write before all direct I/O that a former, killed owner left in
//!   flight has ended ([`FileDevice::open`]).
//!
//! # Locking
//!
//! `counters` is taken to make a channel and to sum up, never for a request.

mod calls;
mod counters;
mod ring;
mod space;
mod task;

use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use polylane_base::sync::Mutex;
use polylane_base::{Errno, Result};
use polylane_sys::uring::Ring;
use rustix::fs::{AtFlags, FallocateFlags, OFlags, SeekFrom, StatxFlags};

use crate::device::{Allocation, BlockDevice, Channel, Error, Op, SECTOR_BYTES, Sector};

use counters::Counters;
pub use counters::Totals;

/// Requests in flight per channel.
const DEPTH: u32 = 64;

/// Has a process that is about to confine itself make the rings of `count` channels; channels
/// beyond that are [`Way::Calls`]'.
pub fn reserve_rings(count: usize) {
    polylane_sys::uring::reserve(count, DEPTH);
}

/// `f_type` of a file system in memory.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Alignment of direct I/O where the kernel does not say: enough for every disk.
const DIRECT_ALIGNMENT: u64 = 4096;

/// The descriptors of one file, each an open file of its own.
#[derive(Debug)]
pub struct Files {
    /// For data; O_DIRECT where the host has it.
    pub io: OwnedFd,
    /// The same file, for syncs and space, and for data that `io` does not take; without O_DIRECT
    /// unless `io` takes all.
    pub plain: OwnedFd,
    /// The same file, with the lock of [`image`](crate::image).
    pub lock: OwnedFd,
}

/// How requests reach the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// A ring per channel, and system calls where rings are not allowed or the file is in memory.
    Ring,
    /// preadv2(2) and pwritev2(2), which wait.
    Calls,
}

/// What a device is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A file that may change in every way.
    File,
    /// A file whose blocks stay as they are.
    Pool,
    /// The disk under a file system, of which `plain` is a file.
    Disk,
}

/// A device on a file. See the [module](self).
#[derive(Debug)]
pub struct FileDevice {
    files: Files,
    kind: Kind,
    /// Offsets and lengths that are multiples of this go through `io`; `None`: all of them.
    direct_alignment: Option<u64>,
    sectors: AtomicU64,
    read_only: bool,
    /// The file lies in memory: direct I/O is copying too.
    in_memory: bool,
    way: Way,
    /// Some channel is a ring.
    rings: AtomicBool,
    /// The host's file system does not say what lies in its page cache.
    hides_cache: AtomicBool,
    /// The host has refused a write that is durable by itself.
    refuses_durable: AtomicBool,
    /// The host has refused to zero a range; to make it a hole.
    lacks_zero_range: AtomicBool,
    lacks_holes: AtomicBool,
    stopped: AtomicBool,
    counters: Mutex<Vec<Arc<Counters>>>,
}

impl FileDevice {
    /// Opens the device: its size is the file's, in whole sectors. A file that is not opened for
    /// writing makes a read-only device.
    ///
    /// # Errors
    /// The host's.
    pub fn open(files: Files, way: Way) -> Result<Arc<FileDevice>> {
        let flags = rustix::fs::fcntl_getfl(&files.io).map_err(errno)?;
        let read_only = flags & OFlags::ACCMODE == OFlags::RDONLY;
        if !read_only {
            wait_for_direct_io(&files.plain);
        }
        let direct_alignment = match flags.contains(OFlags::DIRECT) {
            true => Some(direct_alignment(&files.io)),
            false => None,
        };
        let bytes = rustix::fs::seek(&files.plain, SeekFrom::End(0)).map_err(errno)?;
        let device = FileDevice::new(files, Kind::File, direct_alignment, bytes, way);
        Ok(Arc::new(FileDevice { read_only, ..device }))
    }

    /// The disk under a file system: `io` is the disk, opened with O_DIRECT; `plain` is a file on
    /// it, whose sync makes the disk's writes durable; `lock` is in every ring, and so stays open
    /// until all that a killed process left in flight has ended. Requests are of whole sectors of
    /// 512 bytes, which must be what the disk takes.
    ///
    /// # Errors
    /// The host's.
    pub fn open_disk(files: Files, way: Way) -> Result<Arc<FileDevice>> {
        let bytes = rustix::fs::seek(&files.io, SeekFrom::End(0)).map_err(errno)?;
        let alignment = Some(SECTOR_BYTES as u64);
        Ok(Arc::new(FileDevice::new(files, Kind::Disk, alignment, bytes, way)))
    }

    /// A file of which no block may move, go or become unwritten.
    ///
    /// # Errors
    /// The host's.
    pub fn open_pool(files: Files, way: Way) -> Result<Arc<FileDevice>> {
        let alignment = Some(direct_alignment(&files.io));
        let bytes = rustix::fs::seek(&files.plain, SeekFrom::End(0)).map_err(errno)?;
        Ok(Arc::new(FileDevice::new(files, Kind::Pool, alignment, bytes, way)))
    }

    fn new(
        files: Files,
        kind: Kind,
        direct_alignment: Option<u64>,
        bytes: u64,
        way: Way,
    ) -> FileDevice {
        let found = rustix::fs::fstatfs(&files.plain);
        let in_memory = found.is_ok_and(|found| found.f_type == TMPFS_MAGIC);
        FileDevice {
            files,
            kind,
            direct_alignment,
            sectors: AtomicU64::new(bytes / SECTOR_BYTES as u64),
            read_only: false,
            in_memory,
            way,
            rings: AtomicBool::new(false),
            hides_cache: AtomicBool::new(false),
            refuses_durable: AtomicBool::new(false),
            lacks_zero_range: AtomicBool::new(false),
            lacks_holes: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            counters: Mutex::default(),
        }
    }

    /// What all channels did, and how requests reach the disk.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals { direct: self.direct_alignment.is_some(), ..Totals::default() };
        self.counters.lock().iter().for_each(|counters| counters.add_to(&mut totals));
        totals.ring = self.rings.load(Ordering::Relaxed);
        totals.refuses_durable = self.refuses_durable.load(Ordering::Relaxed);
        totals
    }

    /// Takes the size of a file that was made longer. A shorter one changes nothing: a device never
    /// shrinks.
    ///
    /// # Errors
    /// The host's.
    pub fn grow(&self) -> Result<()> {
        let bytes = rustix::fs::fstat(&self.files.plain).map_err(errno)?.st_size;
        self.sectors.fetch_max(bytes as u64 / SECTOR_BYTES as u64, Ordering::AcqRel);
        Ok(())
    }

    /// Whether a failure stopped the device.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// What the host says of a range. `None` where it does not say.
    fn data_or_hole(&self, sector: Sector, count: u64) -> Option<(Allocation, u64)> {
        let start = sector.byte()?;
        let end = start.checked_add(count.checked_mul(SECTOR_BYTES as u64)?)?;
        let (allocation, until) = match rustix::fs::seek(&self.files.plain, SeekFrom::Data(start)) {
            Ok(data) if data > start => (Allocation::Hole, data),
            Ok(_) => {
                let hole = rustix::fs::seek(&self.files.plain, SeekFrom::Hole(start)).ok()?;
                (Allocation::Data, hole)
            }
            Err(rustix::io::Errno::NXIO) => (Allocation::Hole, end),
            Err(_) => return None,
        };
        let sectors = (until.min(end) - start) / SECTOR_BYTES as u64;
        match (sectors, allocation) {
            // Less than a sector of a hole: data follows within it.
            (0, _) => Some((Allocation::Data, 1)),
            _ => Some((allocation, sectors)),
        }
    }

    /// Whether a range may be zeroed by telling the host, which then need not write.
    fn host_zeroes(&self) -> bool {
        self.kind == Kind::File
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Which descriptor may carry `bytes` bytes at `offset`.
    fn file_for(&self, offset: u64, bytes: u64) -> usize {
        let fits = |alignment: u64| (offset | bytes).is_multiple_of(alignment);
        if self.kind == Kind::Disk {
            return IO;
        }
        match self.direct_alignment.is_none_or(fits) {
            true => IO,
            false => PLAIN,
        }
    }

    fn file(&self, index: usize) -> BorrowedFd<'_> {
        if index == IO { self.files.io.as_fd() } else { self.files.plain.as_fd() }
    }

    /// Whether the host copies what goes through that descriptor while its caller waits.
    fn copies(&self, index: usize) -> bool {
        index == PLAIN || self.direct_alignment.is_none() || self.in_memory
    }

    /// Whether reads are first looked for in the host's page cache, to tell what is found there.
    fn tells_hits(&self) -> bool {
        let through_cache = self.kind == Kind::File && self.direct_alignment.is_none();
        through_cache && !self.in_memory && !self.hides_cache.load(Ordering::Relaxed)
    }

    fn cannot_tell_hits(&self) {
        self.hides_cache.store(true, Ordering::Relaxed);
    }

    fn new_counters(&self) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        self.counters.lock().push(counters.clone());
        counters
    }
}

/// Index of [`Files::io`] in a ring.
const IO: usize = 0;
/// Index of [`Files::plain`] in a ring.
const PLAIN: usize = 1;

impl BlockDevice for FileDevice {
    fn sector_count(&self) -> u64 {
        self.sectors.load(Ordering::Acquire)
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    /// A ring. On a file in memory a request is a copy, over when its system call is, and a ring
    /// would hand it to a thread of the kernel's own: tmpfs does not say that it never waits
    /// (`RWF_NOWAIT`). fio's reads of 4 KiB at queue depth 32: 32 thousand a second by a ring, and
    /// 99 by calls.
    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        let mut files = vec![self.file(IO), self.file(PLAIN)];
        if self.kind != Kind::File {
            files.push(self.files.lock.as_fd());
        }
        if self.way == Way::Ring
            && !self.in_memory
            && let Ok(ring) = Ring::new(DEPTH, &files)
        {
            self.rings.store(true, Ordering::Relaxed);
            return Box::new(ring::RingChannel::new(self, ring));
        }
        Box::new(calls::CallChannel::new(self))
    }

    /// A system call: where the kernel hands a ring's request to a thread of its own (fdatasync,
    /// and all I/O on some file systems), whoever waits for it pays for two more switches.
    fn waiting_channel(self: Arc<Self>) -> Box<dyn Channel> {
        Box::new(calls::CallChannel::new(self))
    }

    fn allocation(&self, sector: Sector, count: u64) -> (Allocation, u64) {
        self.data_or_hole(sector, count).unwrap_or((Allocation::Data, count))
    }

    /// In files on a disk: in memory reserved space is memory.
    fn reserve(&self, sector: Sector, count: u64) -> std::result::Result<(), Error> {
        match self.kind == Kind::File && !self.in_memory {
            true => self.reserve_space(sector.0..sector.0.saturating_add(count)),
            false => Err(Error::Unsupported),
        }
    }

    fn writes_zeros(&self, op: Op) -> bool {
        match op {
            Op::Read | Op::Write { .. } | Op::Flush => false,
            _ if !self.host_zeroes() => true,
            // Without holes it is refused.
            Op::Discard => false,
            Op::WriteZeroes { unmap: true, .. } => self.lacks_holes.load(Ordering::Relaxed),
            Op::WriteZeroes { unmap: false, .. } => self.lacks_zero_range.load(Ordering::Relaxed),
        }
    }

    fn page_cache_hits(&self) -> Option<(u64, u64)> {
        let totals = self.totals();
        let sectors = |bytes: u64| bytes / SECTOR_BYTES as u64;
        self.tells_hits().then(|| (sectors(totals.cached_bytes), sectors(totals.uncached_bytes)))
    }

    fn forget(&self, sector: Sector, count: u64) {
        let bytes = count.checked_mul(SECTOR_BYTES as u64).and_then(NonZeroU64::new);
        let (Some(start), false) = (sector.byte(), bytes.is_none() || self.in_memory) else {
            return;
        };
        // What the host does not do stays in its cache.
        let _ = rustix::fs::fadvise(&self.files.plain, start, bytes, rustix::fs::Advice::DontNeed);
    }
}

/// Waits until direct I/O that a killed process left in flight on this file has ended: a write of
/// its, landing later, would undo what is written from here on. fallocate(2) does that wait on
/// every file system that has it; allocating the first block, which every volume uses, changes
/// nothing. Where it is refused there is nothing to be done, and a full disk has waited all the
/// same.
fn wait_for_direct_io(file: &OwnedFd) {
    let _ = rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, DIRECT_ALIGNMENT);
}

fn direct_alignment(file: &OwnedFd) -> u64 {
    let told = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    match told {
        Ok(told) if told.stx_dio_offset_align > 0 => u64::from(told.stx_dio_offset_align),
        _ => DIRECT_ALIGNMENT,
    }
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

#[cfg(test)]
mod tests;
