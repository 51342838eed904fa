//! Giving free space back to the device.

use std::sync::atomic::Ordering;

use super::{Allocator, Blocks};
use crate::error::Result;
use crate::format::{DeviceBlock, GroupIndex};
use crate::journal::Freed;

/// Blocks that nobody can have at a time: the others must not run out of space meanwhile.
const PIECE_BLOCKS_MAX: u32 = 1024;

impl Allocator {
    /// Hands every free run of at least `blocks_min` blocks to `discard`; nobody can have it
    /// meanwhile. Runs that are promised to others are left out. Returns the blocks handed over.
    ///
    /// # Errors
    /// The first of `discard`'s, the device's, or a corrupt bitmap.
    pub fn trim(
        &self,
        blocks_min: u32,
        discard: impl Fn(DeviceBlock, u32) -> Result<()>,
    ) -> Result<u64> {
        let mut total = 0;
        for index in (0..self.geometry.group_count).map(GroupIndex) {
            for (start, count) in self.free_runs(index, blocks_min)? {
                for at in (0..count).step_by(PIECE_BLOCKS_MAX as usize) {
                    let piece = (start + at, PIECE_BLOCKS_MAX.min(count - at));
                    total += u64::from(self.trim_piece(index, piece, &discard)?);
                }
            }
        }
        Ok(total)
    }

    fn free_runs(&self, index: GroupIndex, blocks_min: u32) -> Result<Vec<(u32, u32)>> {
        let mut group = self.group(index);
        if group.descriptor.free_blocks() < blocks_min {
            return Ok(Vec::new());
        }
        self.load_blocks(&mut group)?;
        let runs = group.blocks.as_ref().map(|blocks| blocks.free.at_least(blocks_min));
        Ok(runs.unwrap_or_default())
    }

    fn trim_piece(
        &self,
        index: GroupIndex,
        (start, count): (u32, u32),
        discard: impl Fn(DeviceBlock, u32) -> Result<()>,
    ) -> Result<u32> {
        if self.reserve(count.into(), Blocks::Kept).is_err() {
            return Ok(0);
        }
        let taken = {
            let mut group = self.group(index);
            group.blocks.as_mut().is_some_and(|blocks| blocks.free.take_exactly(start, count))
        };
        let mut result = Ok(0);
        if taken {
            self.free_blocks.fetch_sub(count.into(), Ordering::AcqRel);
            let first = DeviceBlock(self.geometry.first_block(index) + u64::from(start));
            result = discard(first, count).map(|()| count);
            self.release(&[Freed { start: first, count }]);
        }
        self.unreserve(count.into());
        result
    }
}
