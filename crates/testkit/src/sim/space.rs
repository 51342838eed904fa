//! The blocks that a simulated disk has given space to, and how many it has.

use std::collections::BTreeSet;
use std::ops::Range;

use polylane_block::device::{Error, SECTOR_BYTES, Sector};
use polylane_block::medium::{Run, Space};

use super::image::{CHUNK_BYTES, Image};

/// Sectors in a block, the unit of space.
const BLOCK_SECTORS: u64 = (CHUNK_BYTES / SECTOR_BYTES) as u64;

/// Which blocks take space.
#[derive(Debug)]
pub(super) struct Blocks {
    mapped: BTreeSet<u64>,
    limit: u64,
}

impl Blocks {
    /// Those that are not all zeros take space; `limit` blocks are to be had, 0: any number.
    pub(super) fn of(image: &Image, limit: u64) -> Blocks {
        let mut block = vec![0; CHUNK_BYTES];
        let mut has_data = |number: &u64| {
            image.read(*number as usize * CHUNK_BYTES, &mut block);
            block.iter().any(|byte| *byte != 0)
        };
        let count = (image.len() / CHUNK_BYTES) as u64;
        let mapped = (0..count).filter(&mut has_data).collect();
        Blocks { mapped, limit: if limit == 0 { count } else { limit } }
    }

    pub(super) fn free(&self) -> u64 {
        self.limit.saturating_sub(self.mapped.len() as u64)
    }

    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Gives space to all blocks that the sectors touch.
    pub(super) fn map(&mut self, sectors: Range<u64>) -> Result<(), Error> {
        let blocks = sectors.start / BLOCK_SECTORS..sectors.end.div_ceil(BLOCK_SECTORS);
        let had = self.mapped.range(blocks.clone()).count() as u64;
        if blocks.end - blocks.start - had > self.free() {
            return Err(Error::NoSpace);
        }
        self.mapped.extend(blocks);
        Ok(())
    }

    /// Takes the space of all blocks that lie within the sectors.
    pub(super) fn unmap(&mut self, sectors: Range<u64>) {
        let first = sectors.start.div_ceil(BLOCK_SECTORS);
        for block in first..sectors.end / BLOCK_SECTORS {
            self.mapped.remove(&block);
        }
    }

    /// The runs of a range.
    pub(super) fn runs(&self, range: Range<u64>) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let block = at / BLOCK_SECTORS;
            let end = ((block + 1) * BLOCK_SECTORS).min(range.end);
            let mapped = self.mapped.contains(&block);
            let space = if mapped { Space::Written } else { Space::Hole };
            match runs.last_mut().filter(|last| last.space == space) {
                Some(last) => last.sectors.end = end,
                None => runs.push(Run { sectors: at..end, space, place: Some(Sector(at)) }),
            }
            at = end;
        }
        runs
    }
}
