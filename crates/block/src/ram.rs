//! A device in memory: fast, volatile, and honest about the contract (flushes are no-ops because
//! nothing survives anyway). For tests, benches and `--medium mem`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use polylane_base::sync::RwLock;
use polylane_sys::buffer::Buffer;

use crate::device::{
    BlockDevice, Channel, Completion, Error, Op, Request, SECTOR_BYTES, Sector, Submitted,
};
use crate::medium::{Medium, Run, Space};

/// Bytes per allocation; absent chunks read as zeros.
const CHUNK_BYTES: usize = 64 << 10;
const CHUNK_SECTORS: u64 = (CHUNK_BYTES / SECTOR_BYTES) as u64;

/// A sparse RAM disk. One lock per 64 KiB, so that tenants' threads do not meet.
pub struct RamDevice {
    chunks: Vec<RwLock<Option<Buffer>>>,
    sectors: u64,
    read_only: AtomicBool,
}

impl RamDevice {
    /// A device of `sectors` sectors, all zeros.
    pub fn new(sectors: u64) -> Self {
        let chunks = (0..sectors.div_ceil(CHUNK_SECTORS)).map(|_| RwLock::new(None)).collect();
        RamDevice { chunks, sectors, read_only: AtomicBool::new(false) }
    }

    /// Refuses changes from now on, or takes them again.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::Relaxed);
    }

    /// Bytes of memory in use.
    pub fn allocated_bytes(&self) -> u64 {
        let used = self.chunks.iter().filter(|chunk| chunk.read().is_some()).count();
        (used * CHUNK_BYTES) as u64
    }

    fn execute(&self, request: &mut Request) -> Result<(), Error> {
        request.validate(self.sectors)?;
        if request.is_change() && self.read_only() {
            return Err(Error::ReadOnly);
        }
        let mut at = request.sector.0 as usize * SECTOR_BYTES;
        match request.op {
            Op::Flush => {}
            Op::Discard | Op::WriteZeroes { .. } => {
                self.zero(at, request.count as usize * SECTOR_BYTES);
            }
            Op::Read => {
                for buffer in &mut request.data {
                    self.read(at, buffer);
                    at += buffer.len();
                }
            }
            Op::Write { .. } => {
                for buffer in &request.data {
                    self.write(at, buffer);
                    at += buffer.len();
                }
            }
        }
        Ok(())
    }

    fn read(&self, mut at: usize, mut into: &mut [u8]) {
        while !into.is_empty() {
            let (chunk, start, len) = piece(at, into.len());
            let (head, rest) = into.split_at_mut(len);
            match &*self.chunks[chunk].read() {
                Some(bytes) => head.copy_from_slice(&bytes[start..start + len]),
                None => head.fill(0),
            }
            (into, at) = (rest, at + len);
        }
    }

    fn write(&self, mut at: usize, mut from: &[u8]) {
        while !from.is_empty() {
            let (chunk, start, len) = piece(at, from.len());
            let mut bytes = self.chunks[chunk].write();
            let bytes = bytes.get_or_insert_with(|| Buffer::zeroed(CHUNK_BYTES));
            bytes[start..start + len].copy_from_slice(&from[..len]);
            (from, at) = (&from[len..], at + len);
        }
    }

    fn zero(&self, mut at: usize, mut count: usize) {
        while count > 0 {
            let (chunk, start, len) = piece(at, count);
            let mut bytes = self.chunks[chunk].write();
            match (&mut *bytes, len) {
                (whole, CHUNK_BYTES) => *whole = None,
                (Some(bytes), _) => bytes[start..start + len].fill(0),
                (None, _) => {}
            }
            (count, at) = (count - len, at + len);
        }
    }
}

/// The chunk of byte `at`, the position in it, and how many of `len` bytes lie in it.
fn piece(at: usize, len: usize) -> (usize, usize, usize) {
    let start = at % CHUNK_BYTES;
    (at / CHUNK_BYTES, start, len.min(CHUNK_BYTES - start))
}

impl BlockDevice for RamDevice {
    fn sector_count(&self) -> u64 {
        self.sectors
    }

    fn read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        Box::new(RamChannel(self))
    }
}

impl Medium for RamDevice {
    fn runs(&self, range: Range<u64>) -> Result<Vec<Run>, Error> {
        let mut runs: Vec<Run> = Vec::new();
        for chunk in range.start / CHUNK_SECTORS..range.end.div_ceil(CHUNK_SECTORS) {
            let cell = self.chunks.get(chunk as usize).ok_or(Error::OutOfRange)?;
            let space = if cell.read().is_some() { Space::Written } else { Space::Hole };
            let sectors = (chunk * CHUNK_SECTORS).max(range.start)
                ..((chunk + 1) * CHUNK_SECTORS).min(range.end);
            match runs.last_mut().filter(|last| last.space == space) {
                Some(last) => last.sectors.end = sectors.end,
                None => {
                    let place = Some(Sector(sectors.start));
                    runs.push(Run { sectors, space, place });
                }
            }
        }
        Ok(runs)
    }

    fn allocate(&self, range: Range<u64>) -> Result<(), Error> {
        for chunk in range.start / CHUNK_SECTORS..range.end.div_ceil(CHUNK_SECTORS) {
            let cell = self.chunks.get(chunk as usize).ok_or(Error::OutOfRange)?;
            cell.write().get_or_insert_with(|| Buffer::zeroed(CHUNK_BYTES));
        }
        Ok(())
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }
}

struct RamChannel(Arc<RamDevice>);

impl Channel for RamChannel {
    fn submit(&mut self, mut request: Request) -> Submitted {
        let result = self.0.execute(&mut request);
        Submitted::Done(request.complete(result))
    }

    fn poll(&mut self, _done: &mut Vec<Completion>) {}

    fn park(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::Waiter;

    #[test]
    fn bytes_come_back_and_holes_are_zeros() {
        let device = Arc::new(RamDevice::new(1000));
        let waiter = Waiter::new(device.clone());
        let across = Sector(CHUNK_SECTORS - 1);
        waiter.write(across, Buffer::copy_of(&[7; 1024]), false).unwrap();
        let read = waiter.read(Sector(CHUNK_SECTORS - 2), 4 * SECTOR_BYTES).unwrap();
        assert!(read[..512].iter().all(|b| *b == 0) && read[512..1536].iter().all(|b| *b == 7));
        waiter.discard(across, 1).unwrap();
        assert!(waiter.read(across, 512).unwrap().iter().all(|b| *b == 0));
        assert_eq!(device.allocated_bytes(), 2 * CHUNK_BYTES as u64);
    }

    #[test]
    fn ranges_outside_and_changes_of_a_read_only_device_are_refused() {
        let device = Arc::new(RamDevice::new(8));
        let waiter = Waiter::new(device.clone());
        assert_eq!(waiter.read(Sector(8), 512).unwrap_err(), Error::OutOfRange);
        assert_eq!(waiter.read(Sector(u64::MAX), 512).unwrap_err(), Error::OutOfRange);
        assert_eq!(waiter.discard(Sector(0), 0).unwrap_err(), Error::OutOfRange);
        device.set_read_only(true);
        let refused = waiter.write(Sector(0), Buffer::zeroed(512), false);
        assert_eq!(refused.unwrap_err(), Error::ReadOnly);
        waiter.read(Sector(0), 4096).unwrap();
    }
}
