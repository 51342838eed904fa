//! File-system blocks on a block device: the only module that knows sectors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use polylane_base::sync::Mutex;
use polylane_block::device::{Allocation, Op, Request, SECTOR_BYTES, Sector};
use polylane_block::wait::{UnderWay, Waiter};
use polylane_block::{BlockDevice, Error as DeviceError};
use polylane_sys::buffer::Buffer;

use crate::format::DeviceBlock;

/// Zeros that are written at a time.
const BACKED_BYTES: u64 = 1 << 20;

/// Smallest write that takes a spare buffer: below it, fresh memory comes from a free list.
const SPARE_BYTES_MIN: usize = 64 << 10;

/// Spare buffers that are kept: what is deferred takes so many large ones.
const SPARE_MAX: usize = 4;

/// Deferred bytes at most: with more, all of them are written.
const DEFERRED_BYTES_MAX: usize = 4 << 20;

type Result<T> = std::result::Result<T, DeviceError>;

/// A device in units of one file system's blocks. Thread-safe; calls wait for the device.
pub struct BlockIo {
    waiter: Waiter,
    block_bytes: usize,
    block_count: u64,
    /// Writes in place that have ended: they are durable after a flush that begins later.
    written: AtomicU64,
    /// How many of them are known to be durable.
    flushed: AtomicU64,
    /// Writes in place that the next body of the log takes along: [`BlockIo::defer`]. Held while
    /// they are written.
    deferred: Mutex<Vec<Run>>,
    /// How many runs these are. Falls after they were written.
    deferred_count: AtomicUsize,
    /// Buffers for large writes: fresh memory costs more than what is copied into it.
    spare: Mutex<Vec<Buffer>>,
}

/// Blocks that lie side by side.
type Run = (DeviceBlock, Vec<Buffer>);

/// A write in place that was sent. Dropping it waits, too.
#[must_use]
pub struct Sent<'a> {
    io: &'a BlockIo,
    under_way: Option<UnderWay<'a>>,
}

impl Sent<'_> {
    /// Waits for the write and gives its buffer back.
    ///
    /// # Errors
    /// The device's.
    pub fn wait(mut self) -> Result<Buffer> {
        self.under_way.take().ok_or(DeviceError::Stopped)?.wait()
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        drop(self.under_way.take());
        self.io.note_written();
    }
}

impl BlockIo {
    /// Tells the device that `count` blocks from `first` on are the journal's.
    pub fn mark_journal(&self, first: DeviceBlock, count: u32) {
        let sectors = (self.block_bytes / SECTOR_BYTES) as u64;
        let (sector, count) = (first.0.saturating_mul(sectors), u64::from(count) * sectors);
        self.waiter.device().mark_journal(Sector(sector), count);
    }

    /// `device` in blocks of `block_bytes` bytes, `block_count` of them.
    pub fn new(device: Arc<dyn BlockDevice>, block_bytes: u32, block_count: u64) -> Self {
        let waiter = Waiter::new(device);
        let (written, flushed) = (AtomicU64::new(0), AtomicU64::new(0));
        let (deferred, spare) = (Mutex::default(), Mutex::default());
        BlockIo {
            waiter,
            block_bytes: block_bytes as usize,
            block_count,
            written,
            flushed,
            deferred,
            deferred_count: AtomicUsize::new(0),
            spare,
        }
    }

    /// Bytes in a block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Blocks in the file system.
    pub fn block_count(&self) -> u64 {
        self.block_count
    }

    fn sectors(&self) -> u64 {
        (self.block_bytes / SECTOR_BYTES) as u64
    }

    fn sector(&self, block: DeviceBlock) -> Result<Sector> {
        let start = block.0.checked_mul(self.sectors()).map(Sector);
        start.filter(|_| block.0 < self.block_count).ok_or(DeviceError::OutOfRange)
    }

    /// Reads one block.
    pub fn read(&self, block: DeviceBlock) -> Result<Buffer> {
        self.write_deferred_in(block, 1)?;
        self.waiter.read(self.sector(block)?, self.block_bytes)
    }

    /// Reads `count` adjacent blocks.
    pub fn read_run(&self, block: DeviceBlock, count: usize) -> Result<Buffer> {
        self.write_deferred_in(block, count as u64)?;
        self.waiter.read(self.sector(block)?, count * self.block_bytes)
    }

    /// Notes that a write in place has ended.
    fn note_written(&self) {
        self.written.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether every write in place that has ended is durable, and none is deferred.
    pub fn is_flushed(&self) -> bool {
        // What is flushed was written: read in this order, equal counts were equal once. What is
        // deferred no longer was written.
        let deferred = self.is_deferring();
        let flushed = self.flushed.load(Ordering::Acquire);
        !deferred && flushed == self.written.load(Ordering::Acquire)
    }

    /// Whether writes are deferred.
    pub fn is_deferring(&self) -> bool {
        self.deferred_count.load(Ordering::Acquire) > 0
    }

    /// Prepares for deferring a write of `count` blocks from `block` on: writes what is deferred
    /// of these blocks, and all of it where it is much.
    ///
    /// # Errors
    /// The device's.
    pub fn prepare_to_defer(&self, block: DeviceBlock, count: u32) -> Result<()> {
        self.write_deferred_in(block, count.into())?;
        let mut deferred = self.deferred.lock();
        let bytes: usize = deferred.iter().map(|(_, data)| data[0].len()).sum();
        match bytes + count as usize * self.block_bytes > DEFERRED_BYTES_MAX {
            true => self.write_taken(&mut deferred, Vec::new()).1,
            false => Ok(()),
        }
    }

    /// Takes a write in place that goes out with the next body of the log
    /// ([`BlockIo::write_body`]), before the next flush, or before anybody reads or writes these
    /// blocks, whichever is first. Whole blocks from `block` on, which the caller knows to have
    /// room on the medium ([`BlockIo::has_room`]) and has prepared for.
    pub fn defer(&self, block: DeviceBlock, data: Buffer) {
        let mut deferred = self.deferred.lock();
        deferred.push((block, vec![data]));
        self.deferred_count.store(deferred.len(), Ordering::Release);
    }

    /// Writes what is deferred.
    ///
    /// # Errors
    /// The device's; what it had no room for stays deferred.
    pub fn write_deferred(&self) -> Result<()> {
        if !self.is_deferring() {
            return Ok(());
        }
        self.write_taken(&mut self.deferred.lock(), Vec::new()).1
    }

    /// The same if any of `count` blocks from `block` on is among it.
    fn write_deferred_in(&self, block: DeviceBlock, count: u64) -> Result<()> {
        if !self.is_deferring() {
            return Ok(());
        }
        let mut deferred = self.deferred.lock();
        let meets = |(start, data): &Run| {
            let blocks = (data[0].len() / self.block_bytes) as u64;
            start.0 < block.0 + count && block.0 < start.0 + blocks
        };
        if deferred.iter().any(meets) {
            return self.write_taken(&mut deferred, Vec::new()).1;
        }
        Ok(())
    }

    /// Writes runs of the log, together with what is deferred, and waits for all. Gives the runs'
    /// buffers back as [`BlockIo::write_all`] does.
    pub fn write_body(&self, runs: Vec<Run>) -> (Vec<Buffer>, Result<()>) {
        match self.is_deferring() {
            true => self.write_taken(&mut self.deferred.lock(), runs),
            false => self.write_runs(runs, false),
        }
    }

    /// Writes `runs` and, in the same batch, what is `deferred`, which it is no longer if all went
    /// well. Gives the buffers of `runs` back.
    fn write_taken(
        &self,
        deferred: &mut Vec<Run>,
        mut runs: Vec<Run>,
    ) -> (Vec<Buffer>, Result<()>) {
        let first: usize = runs.iter().map(|(_, data)| data.len()).sum();
        let places: Vec<_> = deferred.iter().map(|(block, _)| *block).collect();
        runs.append(deferred);
        let (mut buffers, result) = self.write_runs(runs, false);
        self.note_written();
        let data = buffers.split_off(first.min(buffers.len()));
        match result.is_ok() {
            true => data.into_iter().for_each(|data| self.keep_buffer(data)),
            false => deferred.extend(places.into_iter().zip(data.into_iter().map(|it| vec![it]))),
        }
        self.deferred_count.store(deferred.len(), Ordering::Release);
        (buffers, result)
    }

    /// A buffer of `len` bytes with anything in it that was written to the device before, to be
    /// given back by [`BlockIo::keep_buffer`], or deferred.
    pub fn buffer(&self, len: usize) -> Buffer {
        if len < SPARE_BYTES_MIN {
            return Buffer::zeroed(len);
        }
        let mut spare = self.spare.lock();
        let fits = spare.iter().position(|buffer| buffer.capacity() >= len);
        let found = fits.map(|at| spare.swap_remove(at));
        drop(spare);
        let mut buffer = found.unwrap_or_else(|| Buffer::zeroed(len.next_power_of_two()));
        buffer.set_len(len);
        buffer
    }

    /// Keeps a large buffer for the next write.
    pub fn keep_buffer(&self, buffer: Buffer) {
        if buffer.capacity() < SPARE_BYTES_MIN {
            return;
        }
        let mut spare = self.spare.lock();
        spare.push(buffer);
        if spare.len() > SPARE_MAX {
            let least = (0..spare.len()).min_by_key(|at| spare[*at].capacity());
            least.map(|at| spare.swap_remove(at));
        }
    }

    /// Writes whole blocks from `block` on; not durable before a flush.
    pub fn write(&self, block: DeviceBlock, data: Buffer) -> Result<Buffer> {
        self.write_deferred_in(block, (data.len() / self.block_bytes) as u64)?;
        let written = self.waiter.write(self.sector(block)?, data, false);
        self.note_written();
        written
    }

    /// Sends whole blocks from `block` on, without waiting.
    pub fn begin_write(&self, block: DeviceBlock, data: Buffer) -> Result<Sent<'_>> {
        self.write_deferred_in(block, (data.len() / self.block_bytes) as u64)?;
        let under_way = Some(self.waiter.begin_write(self.sector(block)?, data));
        Ok(Sent { io: self, under_way })
    }

    /// Writes whole blocks, durable on return.
    pub fn write_durable(&self, block: DeviceBlock, data: Buffer) -> Result<Buffer> {
        self.write_deferred_in(block, (data.len() / self.block_bytes) as u64)?;
        self.waiter.write(self.sector(block)?, data, true)
    }

    /// Writes many runs together and waits for all of them; for what the caller flushes itself.
    /// Gives all buffers back, in order, also when a request failed: a medium without room may have
    /// some later. Of several failures the worst is told.
    pub fn write_all(&self, runs: Vec<(DeviceBlock, Vec<Buffer>)>) -> (Vec<Buffer>, Result<()>) {
        self.write_runs(runs, false)
    }

    /// The same, durable on return: of several runs none is before all are.
    pub fn write_all_durable(
        &self,
        runs: Vec<(DeviceBlock, Vec<Buffer>)>,
    ) -> (Vec<Buffer>, Result<()>) {
        let alone = runs.len() == 1;
        let (buffers, written) = self.write_runs(runs, alone);
        match written {
            Ok(()) if !alone => (buffers, self.flush()),
            result => (buffers, result),
        }
    }

    fn write_runs(
        &self,
        runs: Vec<(DeviceBlock, Vec<Buffer>)>,
        fua: bool,
    ) -> (Vec<Buffer>, Result<()>) {
        let mut requests = Vec::with_capacity(runs.len());
        for (block, data) in runs {
            // Out of range for the device, where it is for us.
            let sector = self.sector(block).unwrap_or(Sector(u64::MAX));
            let tag = requests.len() as u64;
            requests.push(Request::with_data(Op::Write { fua }, sector, data, tag));
        }
        let mut done = self.waiter.all(requests);
        done.sort_by_key(|completion| completion.tag);
        let (mut buffers, mut result) = (Vec::new(), Ok(()));
        for completion in done {
            buffers.extend(completion.data);
            match completion.result {
                Err(DeviceError::NoSpace) if result.is_err() => {}
                Err(error) => result = Err(error),
                Ok(()) => {}
            }
        }
        (buffers, result)
    }

    /// Makes completed writes durable, and deferred ones.
    pub fn flush(&self) -> Result<()> {
        self.write_deferred()?;
        let ended = self.written.load(Ordering::Acquire);
        self.waiter.flush()?;
        self.flushed.fetch_max(ended, Ordering::AcqRel);
        Ok(())
    }

    /// Has the medium give room to blocks that take none; what takes none reads as zeros, and does
    /// so afterwards. How many blocks from `block` on are known to take room then, at least one and
    /// `most` at most: of `wanted` it is seen to, as far as one request goes. Nobody else may write
    /// there meanwhile.
    pub fn back(&self, block: DeviceBlock, wanted: u64, most: u64) -> Result<u64> {
        let (sector, unit) = (self.sector(block)?, self.sectors());
        let (allocation, sectors) = self.waiter.device().allocation(sector, most * unit);
        match (allocation, (sectors / unit).min(most)) {
            // Where the host's blocks are smaller than ours, a part of one may be missing.
            (Allocation::Data, blocks) => Ok(blocks.max(1)),
            (Allocation::Hole | Allocation::Base, 0) => Ok(1),
            (Allocation::Base, blocks) => {
                match self.waiter.device().reserve(sector, blocks * unit) {
                    Ok(()) => Ok(blocks),
                    Err(DeviceError::NoSpace) => Err(DeviceError::NoSpace),
                    Err(_) => {
                        let read = |bytes| self.waiter.read(sector, bytes);
                        self.fill(sector, blocks.min(wanted), read)
                    }
                }
            }
            (Allocation::Hole, blocks) => {
                self.fill(sector, blocks.min(wanted), |bytes| Ok(Buffer::zeroed(bytes)))
            }
        }
    }

    /// Writes the first of `most` blocks with what is read there anyway, so that they take room of
    /// the device's own. How many.
    fn fill(
        &self,
        sector: Sector,
        most: u64,
        content: impl FnOnce(usize) -> Result<Buffer>,
    ) -> Result<u64> {
        let blocks = most.min(BACKED_BYTES / self.block_bytes as u64);
        let content = content(blocks as usize * self.block_bytes)?;
        // What is there does not change, so nothing waits for it to be durable. But what is in a
        // cache takes no room below: what comes next would replace it there.
        self.waiter.write(sector, content, self.waiter.device().keeps_writes())?;
        Ok(blocks)
    }

    /// The same for blocks whose content follows: of `most` blocks from `block` on, `wanted` are
    /// written with zeros only where the device cannot reserve space, or has none for all.
    pub fn reserve(&self, block: DeviceBlock, wanted: u64, most: u64) -> Result<u64> {
        let (sector, unit) = (self.sector(block)?, self.sectors());
        let most = most.min(self.block_count - block.0);
        let (allocation, sectors) = self.waiter.device().allocation(sector, most * unit);
        let blocks = (sectors / unit).min(most);
        // Hosts refuse for many reasons. The zeros find out whether one matters.
        if allocation != Allocation::Data
            && blocks > 0
            && self.waiter.device().reserve(sector, blocks * unit).is_ok()
        {
            return Ok(blocks);
        }
        self.back(block, wanted, wanted)
    }

    /// Whether `count` blocks from `block` on have room on the medium, which reserves it where that
    /// takes no write.
    pub fn has_room(&self, block: DeviceBlock, count: u64) -> bool {
        let (Ok(Sector(mut at)), unit) = (self.sector(block), self.sectors()) else { return false };
        let end = at + count * unit;
        while at < end {
            let (allocation, sectors) = self.waiter.device().allocation(Sector(at), end - at);
            let sectors = sectors.clamp(1, end - at);
            if allocation != Allocation::Data
                && self.waiter.device().reserve(Sector(at), sectors).is_err()
            {
                return false;
            }
            at += sectors;
        }
        true
    }

    /// Gives blocks up.
    pub fn discard(&self, block: DeviceBlock, count: u64) -> Result<()> {
        self.write_deferred_in(block, count)?;
        self.waiter.discard(self.sector(block)?, count * self.sectors())
    }
}
