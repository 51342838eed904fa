//! The blocks that a simulated disk has given space to, and how many it has.

use std::ops::Range;

use polylane_block::device::{Error, SECTOR_BYTES, Sector};
use polylane_block::medium::{Run, Space};

use super::image::{CHUNK_BYTES, Image};

/// Sectors in a block, the unit of space.
const BLOCK_SECTORS: u64 = (CHUNK_BYTES / SECTOR_BYTES) as u64;

/// Which blocks take space.
#[derive(Debug)]
pub(super) struct Blocks {
    mapped: Vec<bool>,
    taken: u64,
    limit: u64,
}

impl Blocks {
    /// Those that are not all zeros take space; `limit` blocks are to be had, 0: any number.
    pub(super) fn of(image: &Image, limit: u64) -> Blocks {
        let mapped = image.data();
        let taken = mapped.iter().filter(|mapped| **mapped).count() as u64;
        let limit = if limit == 0 { mapped.len() as u64 } else { limit };
        Blocks { mapped, taken, limit }
    }

    pub(super) fn free(&self) -> u64 {
        self.limit.saturating_sub(self.taken)
    }

    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Gives space to all blocks that the sectors touch.
    pub(super) fn map(&mut self, sectors: Range<u64>) -> Result<(), Error> {
        let (first, end) = (sectors.start / BLOCK_SECTORS, sectors.end.div_ceil(BLOCK_SECTORS));
        let free = self.free();
        let blocks = &mut self.mapped[first as usize..end as usize];
        let more = blocks.iter().filter(|mapped| !**mapped).count() as u64;
        if more > free {
            return Err(Error::NoSpace);
        }
        blocks.fill(true);
        self.taken += more;
        Ok(())
    }

    /// Takes the space of all blocks that lie within the sectors.
    pub(super) fn unmap(&mut self, sectors: Range<u64>) {
        let first = sectors.start.div_ceil(BLOCK_SECTORS);
        for block in first..sectors.end / BLOCK_SECTORS {
            self.taken -= u64::from(std::mem::take(&mut self.mapped[block as usize]));
        }
    }

    /// The runs of a range.
    pub(super) fn runs(&self, range: Range<u64>) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let block = at / BLOCK_SECTORS;
            let end = ((block + 1) * BLOCK_SECTORS).min(range.end);
            let mapped = self.mapped.get(block as usize) == Some(&true);
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
