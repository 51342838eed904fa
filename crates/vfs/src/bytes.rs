//! Bytes of files on their way between a libservice and whoever asks for them.

use polylane_base::{Errno, Ino, Result, Time};
use polylane_sys::room::Room;
use rustix::fs::FallocateFlags;

/// What `lseek(2)` looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeekFor {
    /// `SEEK_DATA`
    Data,
    /// `SEEK_HOLE`
    Hole,
}

/// What `fallocate(2)` is to do with a byte range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallocate {
    /// Reserve space; extend the size unless `keep_size`.
    Allocate {
        /// `FALLOC_FL_KEEP_SIZE`
        keep_size: bool,
    },
    /// `FALLOC_FL_PUNCH_HOLE`, always with keep-size.
    PunchHole,
    /// `FALLOC_FL_ZERO_RANGE`.
    ZeroRange {
        /// `FALLOC_FL_KEEP_SIZE`
        keep_size: bool,
    },
    /// `FALLOC_FL_COLLAPSE_RANGE`.
    CollapseRange,
    /// `FALLOC_FL_INSERT_RANGE`.
    InsertRange,
}

impl Fallocate {
    /// The mode of fallocate(2) that `flags` mean. `EOPNOTSUPP`.
    pub fn from_flags(flags: i32) -> Result<Fallocate> {
        let flags = FallocateFlags::from_bits_retain(flags.cast_unsigned());
        let keep = FallocateFlags::KEEP_SIZE;
        let keep_size = flags.contains(keep);
        match flags.difference(keep) {
            FallocateFlags::PUNCH_HOLE if keep_size => Ok(Fallocate::PunchHole),
            FallocateFlags::ZERO_RANGE => Ok(Fallocate::ZeroRange { keep_size }),
            FallocateFlags::COLLAPSE_RANGE if !keep_size => Ok(Fallocate::CollapseRange),
            FallocateFlags::INSERT_RANGE if !keep_size => Ok(Fallocate::InsertRange),
            rest if rest.is_empty() => Ok(Fallocate::Allocate { keep_size }),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}

/// Where read bytes go. Implemented over plain memory and over a client's request buffer.
pub trait Sink {
    /// Stores `bytes` at `at` bytes from the start of the request. In range by contract: the reader
    /// never yields more than it was asked for.
    fn put(&mut self, at: usize, bytes: &[u8]);

    /// Stores `len` zeros at `at`.
    fn zero(&mut self, at: usize, len: usize);

    /// Has `fill` store up to `len` bytes at `at` where they go in the end; it tells how many it
    /// has stored, from the start on. `None`: they cannot be stored there but by [`Sink::put`].
    fn fill(&mut self, at: usize, len: usize, fill: Fill<'_>) -> Option<Result<usize>> {
        let _ = (at, len, fill);
        None
    }
}

/// Stores bytes into a place that it is told; how many, from the start on.
pub type Fill<'a> = &'a mut dyn FnMut(Room<'_>) -> Result<usize>;

/// A part of a request's sink, from `by` bytes on.
pub struct Shifted<'a> {
    /// That of the request.
    pub sink: &'a mut dyn Sink,
    /// Where the part begins.
    pub by: usize,
}

impl Sink for Shifted<'_> {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.sink.put(self.by + at, bytes);
    }

    fn zero(&mut self, at: usize, len: usize) {
        self.sink.zero(self.by + at, len);
    }

    fn fill(&mut self, at: usize, len: usize, fill: Fill<'_>) -> Option<Result<usize>> {
        self.sink.fill(self.by + at, len, fill)
    }
}

/// Where written bytes come from. `get` may be called once per byte range only: the bytes may lie
/// in memory that a hostile peer changes between two looks.
pub trait Source {
    /// Bytes offered.
    fn len(&self) -> usize;

    /// Whether nothing is offered.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the `into.len()` bytes at `at` out. In range by contract.
    fn get(&mut self, at: usize, into: &mut [u8]);
}

/// One piece of a file that lies together on the medium, as FIEMAP tells of it. Bytes throughout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where it is in the file.
    pub offset: u64,
    /// Where it is on the medium.
    pub place: u64,
    /// How long it is.
    pub len: u64,
    /// Allocated, and reads as zeros.
    pub unwritten: bool,
}

/// The sync of a file that a write is a part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Syncing {
    /// Bytes that it saves with all its writes, in whole pages; stale as soon as it is told.
    pub bytes: u64,
    /// It saves the data, and of the state what finding the data takes.
    pub data_only: bool,
}

/// What is to be done when a sync that was left to another thread has ended, with what it answers.
pub type OnSynced = Box<dyn FnOnce(Result<()>) + Send>;

/// The thread that makes durable what a sync is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncLeft {
    /// It is durable.
    Done,
    /// Another thread, which tells.
    ToAnother,
    /// The caller alone.
    ToCaller,
}

/// The promise to make durable what others leave to the one that has it; they are told when it is
/// kept. That one takes no lock of a file system until then, as a thread that has the lock may wait
/// for this. Dropped, it is kept.
pub struct SyncLead(Option<Box<dyn FnOnce() -> Result<()> + Send>>);

impl SyncLead {
    /// One that is kept by `commit`.
    pub fn new(commit: impl FnOnce() -> Result<()> + Send + 'static) -> SyncLead {
        SyncLead(Some(Box::new(commit)))
    }

    /// Keeps it. Waits for the device.
    ///
    /// # Errors
    /// The file system's.
    pub fn keep(mut self) -> Result<()> {
        self.0.take().map_or(Ok(()), |commit| commit())
    }
}

impl Drop for SyncLead {
    fn drop(&mut self) {
        if let Some(commit) = self.0.take() {
            // Those that left theirs to it are told, and there is nobody else.
            let _ = commit();
        }
    }
}

/// Bytes of a file that were kept elsewhere since they were written, and when that was.
pub struct Late<'a> {
    /// The file.
    pub ino: Ino,
    /// Where the bytes belong.
    pub offset: u64,
    /// The bytes, at least one.
    pub source: &'a mut dyn Source,
    /// The modification and change times that the file is to have.
    pub times: [Time; 2],
}

impl Sink for &mut [u8] {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn zero(&mut self, at: usize, len: usize) {
        self[at..at + len].fill(0);
    }

    fn fill(&mut self, at: usize, len: usize, fill: Fill<'_>) -> Option<Result<usize>> {
        Some(fill(Room::of(&mut self[at..at + len])))
    }
}

impl Source for &[u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn get(&mut self, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self[at..at + into.len()]);
    }
}
