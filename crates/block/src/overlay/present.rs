//! The map in memory: which blocks are here, and which pages of it are newer than on the medium.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use polylane_base::record;
use polylane_sys::buffer::Buffer;
use zerocopy::little_endian::U64;

use super::{PAGE_BLOCKS, PAGE_BYTES};

const WORDS_PER_PAGE: usize = PAGE_BYTES / size_of::<U64>();

/// One bit per block. Bits are only ever set.
pub(super) struct Present {
    words: Vec<AtomicU64>,
    changed: Vec<AtomicBool>,
}

impl Present {
    /// `bytes` bytes of zeros, whole pages.
    pub(super) fn new(bytes: usize) -> Present {
        let changed = (0..bytes / PAGE_BYTES).map(|_| AtomicBool::new(false)).collect();
        Present { words: (0..bytes / 8).map(|_| AtomicU64::new(0)).collect(), changed }
    }

    pub(super) fn page_count(&self) -> usize {
        self.changed.len()
    }

    /// Takes a page as it is on the medium.
    pub(super) fn load(&self, page: usize, bytes: &[u8]) {
        let words = &self.words[page * WORDS_PER_PAGE..][..WORDS_PER_PAGE];
        for (word, stored) in words.iter().zip(record::slice::<U64>(bytes, 0, WORDS_PER_PAGE)) {
            word.store(stored.get(), Ordering::Relaxed);
        }
    }

    /// Whether a block is here.
    pub(super) fn has(&self, block: u64) -> bool {
        let word = self.words[(block / 64) as usize].load(Ordering::Acquire);
        word >> (block % 64) & 1 == 1
    }

    /// Whether all of these are here.
    pub(super) fn has_all(&self, blocks: Range<u64>) -> bool {
        blocks.into_iter().all(|block| self.has(block))
    }

    /// The longest run from the start of `blocks` that is all here, or all absent: its end, and
    /// which.
    pub(super) fn run(&self, blocks: Range<u64>) -> (u64, bool) {
        let here = self.has(blocks.start);
        let end = (blocks.start + 1..blocks.end).find(|block| self.has(*block) != here);
        (end.unwrap_or(blocks.end), here)
    }

    /// These are here now.
    pub(super) fn set(&self, blocks: Range<u64>) {
        for block in blocks {
            let word = &self.words[(block / 64) as usize];
            let bit = 1 << (block % 64);
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::AcqRel);
                self.touch((block / PAGE_BLOCKS) as usize);
            }
        }
    }

    /// A page is newer than on the medium (again, when its writing failed).
    pub(super) fn touch(&self, page: usize) {
        self.changed[page].store(true, Ordering::Release);
    }

    /// Whether a page with one of these blocks is newer than on the medium.
    pub(super) fn is_changed(&self, blocks: &Range<u64>) -> bool {
        let pages = blocks.start / PAGE_BLOCKS..blocks.end.div_ceil(PAGE_BLOCKS);
        pages.into_iter().any(|page| self.changed[page as usize].load(Ordering::Acquire))
    }

    /// Copies of the pages that are newer than on the medium; they count as written from here on.
    pub(super) fn take_changed(&self) -> Vec<(usize, Buffer)> {
        let taken = |page: &usize| self.changed[*page].swap(false, Ordering::AcqRel);
        (0..self.changed.len()).filter(taken).map(|page| (page, self.copy(page))).collect()
    }

    fn copy(&self, page: usize) -> Buffer {
        let mut copy = Buffer::zeroed(PAGE_BYTES);
        let words = &self.words[page * WORDS_PER_PAGE..][..WORDS_PER_PAGE];
        let stored = record::slice_mut::<U64>(&mut copy, 0, WORDS_PER_PAGE);
        for (word, stored) in words.iter().zip(stored) {
            stored.set(word.load(Ordering::Acquire));
        }
        copy
    }

    /// Blocks that are here.
    pub(super) fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_survive_the_way_to_a_page_and_back() {
        let present = Present::new(2 * PAGE_BYTES);
        present.set(5..7);
        present.set(PAGE_BLOCKS - 1..PAGE_BLOCKS + 3);
        assert_eq!(
            (present.count(), present.run(0..9), present.run(5..9)),
            (6, (5, false), (7, true))
        );
        let pages = present.take_changed();
        assert_eq!(pages.len(), 2);
        assert!(present.take_changed().is_empty());
        present.set(5..6);
        assert!(present.take_changed().is_empty(), "nothing new");
        let again = Present::new(2 * PAGE_BYTES);
        pages.iter().for_each(|(page, bytes)| again.load(*page, bytes));
        assert!(again.has_all(PAGE_BLOCKS - 1..PAGE_BLOCKS + 3) && again.count() == 6);
        again.touch(1);
        assert_eq!(again.take_changed()[0].0, 1);
    }
}
