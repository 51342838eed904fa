//! A device whose requests are written down, for detectors of journals to be judged on.
//!
//! One line a request, in the order of submission, as `polylane bench run pdc-trace` reads them:
//!
//! | column | |
//! |---|---|
//! | `time_us` | since the recorder was made |
//! | `op` | R, W, F(lush), D(iscard), Z (write-zeroes) |
//! | `fua` | 1: durable at completion |
//! | `offset`, `length` | bytes; 0 of a flush |
//! | `opening` | what the data begins with, by [`Opening::name`]; nothing where it is not known |
//!
//! No data is written down. A file that cannot take more ends the recording, not the device.
//!
//! # Locking
//!
//! `log` is held while a line is made, and while lines go to the file: when 64 KiB have come
//! together, at each flush, and at [`Recorder::finish`].

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use polylane_base::sync::Mutex;

use crate::cache::pdc::Opening;
use crate::device::{
    Allocation, BlockDevice, Channel, Completion, Error, Op, Request, SECTOR_BYTES, Sector,
    Submitted,
};

const BUFFER_BYTES: usize = 64 << 10;

/// The device. See the [module](self).
pub struct Recorder {
    device: Arc<dyn BlockDevice>,
    log: Mutex<Option<BufWriter<File>>>,
    began: Instant,
}

impl Recorder {
    /// Records what is asked of `device` at the end of `file`.
    pub fn new(device: Arc<dyn BlockDevice>, file: File) -> Arc<Recorder> {
        let mut log = BufWriter::with_capacity(BUFFER_BYTES, file);
        let named = writeln!(log, "# time_us,op,fua,offset,length,opening");
        let log = Mutex::new(named.is_ok().then_some(log));
        Arc::new(Recorder { device, log, began: Instant::now() })
    }

    /// Gives the file what it does not have yet; whether it has all there was.
    pub fn finish(&self) -> bool {
        self.log.lock().as_mut().is_some_and(|log| log.flush().is_ok())
    }

    fn record(&self, request: &Request) {
        let (op, fua) = match request.op {
            Op::Read => ('R', false),
            Op::Write { fua } => ('W', fua),
            Op::WriteZeroes { fua, .. } => ('Z', fua),
            Op::Discard => ('D', false),
            Op::Flush => ('F', false),
        };
        let data = request.data.first().map_or(&[][..], |buffer| &buffer[..]);
        let opening = if op == 'W' { Opening::of(data).name() } else { "" };
        let offset = request.sector.byte().unwrap_or(u64::MAX);
        let length = request.count.saturating_mul(SECTOR_BYTES as u64);
        let mut log = self.log.lock();
        let now_us = self.began.elapsed().as_micros();
        let lost = log.as_mut().is_some_and(|log| {
            let fua = u8::from(fua);
            let line = writeln!(log, "{now_us},{op},{fua},{offset},{length},{opening}");
            // What a guest made durable is written down even if this process is killed.
            line.is_err() || (op == 'F' && log.flush().is_err())
        });
        if lost {
            *log = None;
        }
    }

    fn channel_on(self: Arc<Self>, inner: Box<dyn Channel>) -> Box<dyn Channel> {
        Box::new(RecorderChannel { inner, recorder: self, refused: None })
    }
}

impl BlockDevice for Recorder {
    fn sector_count(&self) -> u64 {
        self.device.sector_count()
    }

    fn read_only(&self) -> bool {
        self.device.read_only()
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        let inner = self.device.clone().channel();
        self.channel_on(inner)
    }

    fn waiting_channel(self: Arc<Self>) -> Box<dyn Channel> {
        let inner = self.device.clone().waiting_channel();
        self.channel_on(inner)
    }

    fn allocation(&self, sector: Sector, count: u64) -> (Allocation, u64) {
        self.device.allocation(sector, count)
    }

    fn reserve(&self, sector: Sector, count: u64) -> Result<(), Error> {
        self.device.reserve(sector, count)
    }

    fn keeps_writes(&self) -> bool {
        self.device.keeps_writes()
    }

    fn forget(&self, sector: Sector, count: u64) {
        self.device.forget(sector, count);
    }

    fn mark_journal(&self, sector: Sector, count: u64) {
        self.device.mark_journal(sector, count);
    }
}

struct RecorderChannel {
    inner: Box<dyn Channel>,
    recorder: Arc<Recorder>,
    /// What was written down and then not taken: it comes again.
    refused: Option<(Op, Sector, u64)>,
}

impl Channel for RecorderChannel {
    fn submit(&mut self, request: Request) -> Submitted {
        let what = (request.op, request.sector, request.count);
        if self.refused.take() != Some(what) {
            self.recorder.record(&request);
        }
        let submitted = self.inner.submit(request);
        if matches!(submitted, Submitted::Busy(_)) {
            self.refused = Some(what);
        }
        submitted
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        self.inner.poll(done);
    }

    fn park(&mut self) {
        self.inner.park();
    }

    fn event(&self) -> Option<BorrowedFd<'_>> {
        self.inner.event()
    }

    fn watch(&mut self, inputs: &[BorrowedFd<'_>]) -> bool {
        self.inner.watch(inputs)
    }

    fn rest(&mut self) -> bool {
        self.inner.rest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::RamDevice;
    use crate::wait::Waiter;
    use polylane_sys::buffer::Buffer;

    #[test]
    fn requests_are_written_down_in_their_order() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("trace.csv");
        let file = File::create(&path).expect("create");
        let recorder = Recorder::new(Arc::new(RamDevice::new(64)), file);
        let waiter = Waiter::new(recorder.clone());
        let mut log = Buffer::zeroed(1024);
        log[..12].copy_from_slice(&[0xfe, 0xed, 0xba, 0xbe, 0, 0, 0, 1, 0, 0, 0, 2]);
        waiter.write(Sector(8), Buffer::zeroed(512), false).expect("write");
        waiter.write(Sector(9), log, true).expect("write");
        waiter.flush().expect("flush");
        waiter.read(Sector(8), 1024).expect("read");
        for kind in [1, 2, 4] {
            let mut block = Buffer::zeroed(512);
            block[..12].copy_from_slice(&[0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, kind, 0, 0, 0, 7]);
            waiter.write(Sector(0), block, false).expect("write");
        }
        assert!(recorder.finish());
        let text = std::fs::read_to_string(&path).expect("read");
        let lines = text.lines().skip(1).map(|line| line.split_once(',').expect("a time").1);
        let lines: Vec<&str> = lines.collect();
        assert_eq!(
            lines[..4],
            ["W,0,4096,512,", "W,1,4608,1024,xfs", "F,0,0,0,", "R,0,4096,1024,"]
        );
        assert_eq!(
            lines[4..],
            ["W,0,0,512,jbd2", "W,0,0,512,jbd2-commit", "W,0,0,512,jbd2-superblock"]
        );
    }

    #[test]
    fn a_file_that_takes_nothing_ends_the_recording_alone() {
        let Ok(full) = File::options().write(true).open("/dev/full") else { return };
        let recorder = Recorder::new(Arc::new(RamDevice::new(64)), full);
        let waiter = Waiter::new(recorder.clone());
        for _ in 0..4000 {
            waiter.flush().expect("flush");
        }
        assert!(!recorder.finish());
    }
}
