//! An open image as a device: requests go to librbd, and a thread of librbd calls back.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use polylane_base::Errno;
use polylane_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use polylane_base::sync::{Arc, Mutex, thread};
use polylane_block::device::SECTOR_BYTES;
use polylane_block::file::Totals;
use polylane_block::medium::{Medium, Run};
use polylane_block::remote::Remote;
use polylane_block::{BlockDevice, Channel, Completion, Error, Op, Request, Submitted};
use polylane_sys::event;
use rustix::event::{PollFd, PollFlags};

use super::configured::Durable;
use super::settings::Failure;
use crate::ffi::{BARRED, Image, Work};

/// Requests that a channel has under way at most.
const IN_FLIGHT_MAX: usize = 256;

/// An open image. Thread-safe.
pub struct RbdDevice {
    image: Image,
    sectors: AtomicU64,
    /// `None`: it is read alone.
    durable: Option<Durable>,
    is_stopped: Arc<AtomicBool>,
    totals: Mutex<Totals>,
}

impl RbdDevice {
    /// Takes an open image over.
    pub(super) fn new(image: Image, durable: Option<Durable>) -> Result<Arc<RbdDevice>, Failure> {
        let size = image.size().map_err(|errno| Failure::Call("ask for its size", errno))?;
        Ok(Arc::new(RbdDevice {
            image,
            sectors: AtomicU64::new(size / SECTOR_BYTES as u64),
            durable,
            is_stopped: Arc::new(AtomicBool::new(false)),
            totals: Mutex::new(Totals::default()),
        }))
    }

    fn count(&self, request: &Request) {
        let mut totals = self.totals.lock();
        let bytes = request.count * SECTOR_BYTES as u64;
        match request.op {
            Op::Read => {
                (totals.reads, totals.read_bytes) = (totals.reads + 1, totals.read_bytes + bytes)
            }
            Op::Write { fua } => {
                (totals.writes, totals.written_bytes) =
                    (totals.writes + 1, totals.written_bytes + bytes);
                totals.durable_writes += u64::from(fua);
            }
            Op::WriteZeroes { .. } | Op::Discard => totals.zeroings += 1,
            Op::Flush => totals.flushes += 1,
        }
    }
}

impl BlockDevice for RbdDevice {
    fn sector_count(&self) -> u64 {
        self.sectors.load(Ordering::Relaxed)
    }

    fn read_only(&self) -> bool {
        self.durable.is_none()
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        // Without descriptors nothing that needs one could wait.
        let event = event::eventfd().ok();
        let done = Arc::new(Done { ended: Mutex::new(Ended::default()), event });
        Box::new(RbdChannel { device: self, done, in_flight: 0 })
    }
}

impl Medium for RbdDevice {
    fn runs(&self, _: Range<u64>) -> Result<Vec<Run>, Error> {
        Err(Error::Unsupported)
    }

    fn allocate(&self, _: Range<u64>) -> Result<(), Error> {
        Err(Error::Unsupported)
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }
}

impl Remote for RbdDevice {
    fn totals(&self) -> Totals {
        *self.totals.lock()
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn grow(&self) -> Result<(), Error> {
        let size = self.image.size().map_err(Error::Medium)?;
        self.sectors.fetch_max(size / SECTOR_BYTES as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// What a channel's requests came to; threads of librbd add to it.
struct Done {
    ended: Mutex<Ended>,
    event: Option<OwnedFd>,
}

#[derive(Default)]
struct Ended {
    /// To be told.
    told: Vec<Completion>,
    /// Changes that are done, and are to be durable before they are told.
    to_flush: Vec<Completion>,
}

impl Ended {
    fn is_empty(&self) -> bool {
        self.told.is_empty() && self.to_flush.is_empty()
    }
}

impl Done {
    fn add(&self, add: impl FnOnce(&mut Ended)) {
        add(&mut self.ended.lock());
        if let Some(event) = &self.event {
            event::notify(event);
        }
    }
}

struct RbdChannel {
    device: Arc<RbdDevice>,
    done: Arc<Done>,
    in_flight: usize,
}

/// What librbd is to do for a request.
fn work(request: &Request) -> Option<Work> {
    let at = request.sector.byte()?;
    let len = request.count.checked_mul(SECTOR_BYTES as u64)?;
    Some(match request.op {
        Op::Read => Work::Read(at),
        Op::Write { .. } => Work::Write(at),
        Op::WriteZeroes { .. } | Op::Discard => Work::Zero(at, len),
        Op::Flush => Work::Flush,
    })
}

/// What a request came to.
fn outcome(op: Op, wanted: usize, result: Result<usize, Errno>) -> Result<(), Error> {
    match result {
        // Of an image that became smaller.
        Ok(count) if op == Op::Read && count < wanted => Err(Error::Medium(Errno::EIO)),
        Ok(_) => Ok(()),
        Err(Errno::ENOSPC | Errno::EDQUOT) => Err(Error::NoSpace),
        Err(Errno::EROFS) => Err(Error::ReadOnly),
        // What was given up in time is an error of the medium, as of a disk.
        Err(Errno::ETIMEDOUT) => Err(Error::Medium(Errno::EIO)),
        Err(errno) => Err(Error::Medium(errno)),
    }
}

/// Whether a request that is done is told when a flush behind it has ended.
fn is_flushed(durable: Option<Durable>, op: Op, result: Result<(), Error>) -> bool {
    let wanted = matches!(op, Op::Write { fua: true } | Op::WriteZeroes { fua: true, .. });
    wanted && durable == Some(Durable::Flushed) && result.is_ok()
}

impl RbdChannel {
    fn refused(&self, request: &Request) -> Option<Error> {
        if let Err(error) = request.validate(self.device.sector_count()) {
            return Some(error);
        }
        if request.is_change() && self.device.read_only() {
            return Some(Error::ReadOnly);
        }
        self.device.is_stopped().then_some(Error::Stopped)
    }

    /// Makes changes that are done durable, and tells them then.
    fn flush(&self, changes: Vec<Completion>) {
        let (done, is_stopped) = (self.done.clone(), self.device.is_stopped.clone());
        let ended = move |_, result| {
            let result = outcome(Op::Flush, 0, result);
            if result.is_err() {
                is_stopped.store(true, Ordering::Relaxed);
            }
            let told = changes.into_iter().map(|change| Completion { result, ..change });
            done.add(|ended| ended.told.extend(told));
        };
        self.device.image.start(Work::Flush, Vec::new(), Box::new(ended));
    }
}

impl Channel for RbdChannel {
    fn submit(&mut self, mut request: Request) -> Submitted {
        if let Some(error) = self.refused(&request) {
            return Submitted::Done(request.complete(Err(error)));
        }
        let Some(work) = work(&request) else {
            return Submitted::Done(request.complete(Err(Error::OutOfRange)));
        };
        if self.in_flight == IN_FLIGHT_MAX {
            return Submitted::Busy(request);
        }
        self.device.count(&request);
        self.in_flight += 1;
        let (done, is_stopped) = (self.done.clone(), self.device.is_stopped.clone());
        let (data, durable) = (std::mem::take(&mut request.data), self.device.durable);
        let wanted = data.iter().map(|buffer| buffer.len()).sum();
        let ended = move |data, result| {
            request.data = data;
            let result = outcome(request.op, wanted, result);
            // What was not durable before may never be; and a barred client stays so.
            let barred = result == Err(Error::Medium(BARRED));
            if barred || result.is_err() && request.op == Op::Flush {
                is_stopped.store(true, Ordering::Relaxed);
            }
            let flushed = is_flushed(durable, request.op, result);
            let completion = request.complete(result);
            done.add(|ended| match flushed {
                true => ended.to_flush.push(completion),
                false => ended.told.push(completion),
            });
        };
        self.device.image.start(work, data, Box::new(ended));
        Submitted::Pending
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if let Some(event) = &self.done.event {
            event::drain(event);
        }
        let Ended { mut told, to_flush } = std::mem::take(&mut *self.done.ended.lock());
        if !to_flush.is_empty() {
            self.flush(to_flush);
        }
        self.in_flight -= told.len();
        done.append(&mut told);
    }

    fn park(&mut self) {
        while self.in_flight > 0 && self.done.ended.lock().is_empty() {
            match &self.done.event {
                Some(event) => {
                    let mut fds = [PollFd::new(event, PollFlags::IN)];
                    let _ = rustix::event::poll(&mut fds, None);
                }
                None => thread::sleep(Duration::from_micros(100)),
            }
        }
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.done.event.as_ref().map(AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use polylane_block::Sector;

    use super::*;

    #[test]
    fn requests_become_work_in_bytes_and_results_errors() {
        let end = Request::without_data(Op::Discard, Sector(8), 16, 0);
        assert_eq!(work(&end), Some(Work::Zero(4096, 8192)));
        drop(end.complete(Ok(())));
        let flush = Request::without_data(Op::Flush, Sector(0), 0, 0);
        assert_eq!(work(&flush), Some(Work::Flush));
        drop(flush.complete(Ok(())));
        let far = Request::without_data(Op::Discard, Sector(u64::MAX), 1, 0);
        assert_eq!(work(&far), None);
        drop(far.complete(Ok(())));
        for (op, result, expected) in [
            (Op::Read, Ok(4096), Ok(())),
            (Op::Read, Ok(512), Err(Error::Medium(Errno::EIO))),
            (Op::Write { fua: true }, Ok(0), Ok(())),
            (Op::Write { fua: false }, Err(Errno::ENOSPC), Err(Error::NoSpace)),
            (Op::Flush, Err(BARRED), Err(Error::Medium(BARRED))),
        ] {
            assert_eq!(outcome(op, 4096, result), expected, "{op:?} {result:?}");
        }
    }

    #[test]
    fn durable_changes_alone_are_flushed_and_only_where_librbd_may_keep_them() {
        let zeroes = |fua| Op::WriteZeroes { unmap: true, fua };
        for (op, is_durable) in [
            (Op::Write { fua: true }, true),
            (zeroes(true), true),
            (Op::Write { fua: false }, false),
            (zeroes(false), false),
            (Op::Discard, false),
            (Op::Flush, false),
            (Op::Read, false),
        ] {
            assert_eq!(is_flushed(Some(Durable::Flushed), op, Ok(())), is_durable, "{op:?}");
            assert!(!is_flushed(Some(Durable::Flushed), op, Err(Error::NoSpace)), "{op:?}");
            assert!(!is_flushed(Some(Durable::AtOnce), op, Ok(())), "{op:?}");
        }
    }
}
