//! File-system blocks on a block device: the only module that knows sectors.

use std::sync::Arc;

use polylane_block::device::{Allocation, Op, Request, SECTOR_BYTES, Sector};
use polylane_block::wait::{UnderWay, Waiter};
use polylane_block::{BlockDevice, Error as DeviceError};
use polylane_sys::buffer::Buffer;

use crate::format::DeviceBlock;

/// Zeros that are written at a time.
const BACKED_BYTES: u64 = 1 << 20;

type Result<T> = std::result::Result<T, DeviceError>;

/// A device in units of one file system's blocks. Thread-safe; calls wait for the device.
pub struct BlockIo {
    waiter: Waiter,
    block_bytes: usize,
    block_count: u64,
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
        BlockIo { waiter: Waiter::new(device), block_bytes: block_bytes as usize, block_count }
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
        self.waiter.read(self.sector(block)?, self.block_bytes)
    }

    /// Reads `count` adjacent blocks.
    pub fn read_run(&self, block: DeviceBlock, count: usize) -> Result<Buffer> {
        self.waiter.read(self.sector(block)?, count * self.block_bytes)
    }

    /// Writes whole blocks from `block` on; not durable before a flush.
    pub fn write(&self, block: DeviceBlock, data: Buffer) -> Result<Buffer> {
        self.waiter.write(self.sector(block)?, data, false)
    }

    /// Sends whole blocks from `block` on, without waiting.
    pub fn begin_write(&self, block: DeviceBlock, data: Buffer) -> Result<UnderWay<'_>> {
        Ok(self.waiter.begin_write(self.sector(block)?, data))
    }

    /// Writes whole blocks, durable on return.
    pub fn write_durable(&self, block: DeviceBlock, data: Buffer) -> Result<Buffer> {
        self.waiter.write(self.sector(block)?, data, true)
    }

    /// Writes many runs together and waits for all of them. Gives all buffers back, in order, also
    /// when a request failed: a medium without room may have some later. Of several failures the
    /// worst is told.
    pub fn write_all(&self, runs: Vec<(DeviceBlock, Vec<Buffer>)>) -> (Vec<Buffer>, Result<()>) {
        let mut requests = Vec::with_capacity(runs.len());
        for (block, data) in runs {
            // Out of range for the device, where it is for us.
            let sector = self.sector(block).unwrap_or(Sector(u64::MAX));
            let tag = requests.len() as u64;
            requests.push(Request::with_data(Op::Write { fua: false }, sector, data, tag));
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

    /// Makes completed writes durable.
    pub fn flush(&self) -> Result<()> {
        self.waiter.flush()
    }

    /// Makes blocks read as zeros.
    pub fn zero(&self, block: DeviceBlock, count: u64) -> Result<()> {
        self.waiter.write_zeroes(self.sector(block)?, count * self.sectors(), false)
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
            (Allocation::Hole, 0) => Ok(1),
            (Allocation::Hole, blocks) => {
                let blocks = blocks.min(wanted).min(BACKED_BYTES / self.block_bytes as u64);
                self.write(block, Buffer::zeroed(blocks as usize * self.block_bytes))?;
                Ok(blocks)
            }
        }
    }

    /// Gives blocks up.
    pub fn discard(&self, block: DeviceBlock, count: u64) -> Result<()> {
        self.waiter.discard(self.sector(block)?, count * self.sectors())
    }
}
