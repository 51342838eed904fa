//! Requests, completions and the seam between whoever wants blocks and whoever has them.
//!
//! # The contract
//!
//! *Durability.* A write is durable once a flush submitted **after its completion** has completed,
//! or when it carried `fua` and has completed. After a power cut every sector holds the content of
//! its last durable write or of any later one that was submitted, whole: sectors never tear,
//! requests larger than a sector may.
//!
//! *Order.* Requests in flight together are unordered, also when they overlap. Whoever needs order
//! waits for a completion. A read that starts after a write completed sees it or a later one.
//!
//! *Errors.* A request completes exactly once. After a failed write the sectors hold old or new
//! content. After a failed flush nothing that was not durable before may be taken for durable,
//! however often the flush is repeated: the device answers [`Error::Stopped`] until it is opened
//! again.
//!
//! *Discard* leaves the sectors reading as zeros and may give their space back. *Write-zeroes*
//! reads back as zeros; with `unmap` it may give space back too.
//!
//! *Threads.* A device is shared and immutable while open; a channel belongs to one thread at a
//! time. Two channels share no lock on the data path.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use polylane_base::Errno;
use polylane_sys::buffer::Buffer;

/// Bytes in a sector, the unit of addresses and sizes at this seam.
pub const SECTOR_BYTES: usize = 512;

/// A position on a device, in units of [`SECTOR_BYTES`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Sector(pub u64);

impl Sector {
    /// The sector that begins at `offset` bytes; `None` when none does.
    pub const fn at_byte(offset: u64) -> Option<Sector> {
        match offset.is_multiple_of(SECTOR_BYTES as u64) {
            true => Some(Sector(offset / SECTOR_BYTES as u64)),
            false => None,
        }
    }

    /// Its first byte. `None` past 2^64.
    pub const fn byte(self) -> Option<u64> {
        self.0.checked_mul(SECTOR_BYTES as u64)
    }
}

/// What to do with a range of sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Fill the buffers from the device.
    Read,
    /// Store the buffers; durable at completion with `fua`.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Make the range read as zeros, without buffers.
    WriteZeroes {
        /// The space may be given back.
        unmap: bool,
        /// Durable at completion.
        fua: bool,
    },
    /// The range is not needed any more: it reads as zeros and its space may be given back.
    Discard,
    /// Make all completed writes durable. Has no range.
    Flush,
}

/// Why a request, or opening a device, failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The range reaches past the end, or its length disagrees with the buffers.
    OutOfRange,
    /// A change of a read-only device.
    ReadOnly,
    /// The operation does not exist here (`EOPNOTSUPP`).
    Unsupported,
    /// No space is left under the image (`ENOSPC`); what was acknowledged before is safe.
    NoSpace,
    /// The medium failed.
    Medium(Errno),
    /// An earlier failure stopped the device; open it again.
    Stopped,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::OutOfRange => f.write_str("range outside the device"),
            Error::ReadOnly => f.write_str("device is read-only"),
            Error::Unsupported => f.write_str("operation not supported by the device"),
            Error::NoSpace => f.write_str("no space left under the volume"),
            Error::Medium(errno) => write!(f, "medium failed: {errno}"),
            Error::Stopped => f.write_str("device stopped after an earlier failure; open it again"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for Errno {
    fn from(error: Error) -> Errno {
        match error {
            Error::OutOfRange => Errno::EINVAL,
            Error::ReadOnly => Errno::EROFS,
            Error::Unsupported => Errno::EOPNOTSUPP,
            Error::NoSpace => Errno::ENOSPC,
            Error::Medium(_) | Error::Stopped => Errno::EIO,
        }
    }
}

/// Proof that a request was made and not yet answered. Dropping it unanswered is a bug of ours, so
/// it panics in tests and counts for nothing else.
#[derive(Debug)]
struct Ticket {
    answered: bool,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        debug_assert!(
            self.answered || std::thread::panicking(),
            "a block request was dropped without completion"
        );
    }
}

/// A request: a value that only moves forward, from its maker to the completion.
///
/// It owns its buffers until then. `data` holds whole sectors, `count` of them in total for reads
/// and writes; it is empty for every other operation.
#[derive(Debug)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// First sector.
    pub sector: Sector,
    /// Number of sectors; 0 for a flush.
    pub count: u64,
    /// The memory to fill or store, in order.
    pub data: Vec<Buffer>,
    /// The maker's own number for it, given back in the completion.
    pub tag: u64,
    ticket: Ticket,
}

impl Request {
    /// A request whose `count` is what the buffers hold.
    pub fn with_data(op: Op, sector: Sector, data: Vec<Buffer>, tag: u64) -> Self {
        let bytes: usize = data.iter().map(|buffer| buffer.len()).sum();
        Request {
            op,
            sector,
            count: (bytes / SECTOR_BYTES) as u64,
            data,
            tag,
            ticket: Ticket { answered: false },
        }
    }

    /// A request about a range, without buffers.
    pub fn without_data(op: Op, sector: Sector, count: u64, tag: u64) -> Self {
        Request { op, sector, count, data: Vec::new(), tag, ticket: Ticket { answered: false } }
    }

    /// Whether the request changes the device.
    pub fn is_change(&self) -> bool {
        !matches!(self.op, Op::Read | Op::Flush)
    }

    /// Checks the request against a device of `sectors` sectors: range, buffer sizes, shape.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    pub fn validate(&self, sectors: u64) -> Result<(), Error> {
        let end = self.sector.0.checked_add(self.count).ok_or(Error::OutOfRange)?;
        let bytes: usize = self.data.iter().map(|buffer| buffer.len()).sum();
        let whole = self.data.iter().all(|buffer| buffer.len().is_multiple_of(SECTOR_BYTES));
        let shape = match self.op {
            Op::Read | Op::Write { .. } => whole && bytes as u64 / 512 == self.count && bytes > 0,
            Op::WriteZeroes { .. } | Op::Discard => bytes == 0 && self.count > 0,
            Op::Flush => bytes == 0 && self.count == 0,
        };
        if shape && end <= sectors { Ok(()) } else { Err(Error::OutOfRange) }
    }

    /// Ends the request.
    pub fn complete(self, result: Result<(), Error>) -> Completion {
        let Request { op, data, tag, mut ticket, .. } = self;
        ticket.answered = true;
        Completion { op, data, tag, result }
    }
}

/// An answered request, with its buffers.
#[derive(Debug)]
pub struct Completion {
    /// What was asked for.
    pub op: Op,
    /// The buffers of the request; filled after a successful read.
    pub data: Vec<Buffer>,
    /// The maker's number.
    pub tag: u64,
    /// How it ended.
    pub result: Result<(), Error>,
}

/// What became of a submission.
#[derive(Debug)]
pub enum Submitted {
    /// Answered at once.
    Done(Completion),
    /// Under way; `poll` will yield it.
    Pending,
    /// The channel is full; the same request comes back untouched. Poll, then try again.
    Busy(Request),
}

/// A device of sectors. Shared by all threads, immutable while open.
pub trait BlockDevice: Send + Sync {
    /// Its size. May grow while open (online resize), never shrinks.
    fn sector_count(&self) -> u64;

    /// Whether changes are refused.
    fn read_only(&self) -> bool {
        false
    }

    /// One more private road to it. The road keeps the device open.
    fn channel(self: Arc<Self>) -> Box<dyn Channel>;

    /// A road for one request at a time, whose sender waits for it: [`Channel::submit`] may block
    /// until the request is done.
    fn waiting_channel(self: Arc<Self>) -> Box<dyn Channel> {
        self.channel()
    }

    /// Whether the `count` sectors from `sector` on take space: what is known of the first of them,
    /// and of how many it holds, at least one of a range that is not empty. Where nothing is known
    /// all of it is [`Allocation::Data`]. Writes that have completed are seen.
    fn allocation(&self, _sector: Sector, count: u64) -> (Allocation, u64) {
        (Allocation::Data, count)
    }

    /// Gives sectors that take no space theirs, and changes no content: they read as before, and
    /// [`allocation`](BlockDevice::allocation) may say that they take none still. What takes space
    /// keeps it, until it is discarded.
    ///
    /// # Errors
    /// [`Error::NoSpace`], which may leave a part done; [`Error::Unsupported`] where only a write
    /// gives space, or where space that is not written costs as much.
    fn reserve(&self, _sector: Sector, _count: u64) -> Result<(), Error> {
        Err(Error::Unsupported)
    }

    /// Whether a write that has completed may wait in memory of the device's own: it gets its space
    /// on the medium, and may find none there, when a flush takes it there. One that is durable on
    /// completion has it.
    fn keeps_writes(&self) -> bool {
        false
    }

    /// Whether a discard or write-zeroes makes the device write zeros, as far as it knows by now:
    /// what limits writes is to count it as one.
    fn writes_zeros(&self, _op: Op) -> bool {
        false
    }

    /// Sectors that reads found in the host's page cache, and that they did not, since it was
    /// opened. `None`: reads do not go through it, or the host does not tell.
    fn page_cache_hits(&self) -> Option<(u64, u64)> {
        None
    }

    /// Its user writes a journal to these sectors: nobody reads it but after a crash, so a cache
    /// need not keep it.
    fn mark_journal(&self, _sector: Sector, _count: u64) {}

    /// Nobody will read these sectors: the host's page cache need not keep them. A hint, which
    /// changes no content; what waits for a flush stays. May take some microseconds.
    fn forget(&self, _sector: Sector, _count: u64) {}
}

/// What a range of sectors is to its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocation {
    /// It may hold anything.
    Data,
    /// It takes no space and reads as zeros.
    Hole,
    /// It takes no space and reads as what another device has there.
    Base,
}

/// One thread's road to a device. Nothing here blocks but [`Channel::park`].
pub trait Channel: Send {
    /// Starts a request. Invalid requests complete at once with an error.
    fn submit(&mut self, request: Request) -> Submitted;

    /// Moves finished requests to `done`.
    fn poll(&mut self, done: &mut Vec<Completion>);

    /// Sleeps until `poll` will yield something, or nothing is in flight.
    fn park(&mut self);

    /// A descriptor that poll(2) finds readable once `poll` has something to yield, for whoever
    /// waits for more than this channel; `poll` comes first, since it may start what was submitted.
    /// `None`: there is no such thing, [`park`](Channel::park) is the one way to wait.
    fn event(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// From now on [`rest`](Channel::rest) also ends when one of these descriptors, two at most,
    /// becomes readable: at every change, whether or not somebody reads them. To be called once.
    /// False: the channel cannot do that.
    fn watch(&mut self, _inputs: &[BorrowedFd<'_>]) -> bool {
        false
    }

    /// Starts what was submitted, without a `poll` first, and sleeps until `poll` has something to
    /// yield or a watched descriptor has become readable since it slept last; it may come back
    /// earlier. False, at once: not now, [`event`](Channel::event) is the way to wait.
    fn rest(&mut self) -> bool {
        false
    }
}
