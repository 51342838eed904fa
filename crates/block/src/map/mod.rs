//! Translation: what is known about where a volume's blocks lie on its medium.
//!
//! ```text
//!  engine ── a look at a chunk's word ──► known: go on, without a lock
//!     │
//!     └ not known, or to be made ──► job ──► a few translation threads for all lanes ──► medium
//!                                    awaited jobs before the others; one job per chunk
//! ```
//!
//! The map is a cache: the truth is the host's file system. It is divided into chunks; `chunk` has
//! the rules that keep what is known of each true while others change it.
//!
//! # Locking
//!
//! `Lane::closed` shared by every job at work; `Unit::queue` for a push or pop; `Gate::sleepers`.
//! No one inside another. A hit takes none.

mod chunk;
mod lane;
mod unit;

use std::ops::Range;
use std::sync::OnceLock;

use chunk::Chunk;
pub use chunk::State;
pub(crate) use lane::Lane;
pub(crate) use unit::{Job, Work, Worked};
pub use unit::{Unit, UnitOptions};

/// Chunks that are allocated together.
const PAGE_CHUNKS: u64 = 1024;

/// How much a volume may grow while it is open: this many times its size, and [`GROWTH_PAGES`].
const GROWTH_FACTOR: u64 = 4;
const GROWTH_PAGES: u64 = 1024;

/// All chunks of a volume. Those that nobody asked for take no memory.
#[derive(Debug)]
pub(crate) struct Map {
    pages: Vec<OnceLock<Box<[Chunk]>>>,
    shift: u32,
}

impl Map {
    /// A map of a volume of `sectors` sectors, in chunks of `1 << shift`; nothing is known yet.
    pub(crate) fn new(sectors: u64, shift: u32) -> Map {
        let pages = (sectors >> shift) / PAGE_CHUNKS + 1;
        let count = pages.saturating_mul(GROWTH_FACTOR).max(pages + GROWTH_PAGES);
        Map { pages: (0..count).map(|_| OnceLock::new()).collect(), shift }
    }

    /// Sectors that the map can speak of; a volume that grew beyond is to be opened again.
    pub(crate) fn sectors_max(&self) -> u64 {
        (self.pages.len() as u64 * PAGE_CHUNKS) << self.shift
    }

    /// The chunks that a range of sectors touches.
    #[inline]
    pub(crate) fn chunks(&self, sectors: &Range<u64>) -> Range<u64> {
        sectors.start >> self.shift..((sectors.end - 1) >> self.shift) + 1
    }

    /// The sectors of a chunk.
    pub(crate) fn sectors(&self, chunk: u64) -> Range<u64> {
        chunk << self.shift..(chunk + 1) << self.shift
    }

    #[inline]
    fn at(&self, chunk: u64) -> &Chunk {
        let page = &self.pages[(chunk / PAGE_CHUNKS) as usize];
        let fresh = || (0..PAGE_CHUNKS).map(|_| Chunk::default()).collect();
        &page.get_or_init(fresh)[(chunk % PAGE_CHUNKS) as usize]
    }

    /// What is known about a chunk.
    #[inline]
    pub(crate) fn state(&self, chunk: u64) -> State {
        self.at(chunk).state()
    }

    /// Whether all chunks of a range are known to be empty.
    #[inline]
    pub(crate) fn is_empty(&self, chunks: Range<u64>) -> bool {
        let mut chunks = chunks;
        chunks.all(|chunk| self.state(chunk) == State::Empty)
    }

    /// Enters all chunks of a range, or none: false when one is exclusive. `keeps`: the change
    /// moves nothing where all is written.
    #[inline]
    pub(crate) fn enter(&self, chunks: Range<u64>, keeps: bool) -> bool {
        for chunk in chunks.clone() {
            if !self.at(chunk).enter(keeps) {
                (chunks.start..chunk).for_each(|entered| self.at(entered).leave());
                return false;
            }
        }
        true
    }

    /// Leaves chunks that were entered.
    #[inline]
    pub(crate) fn leave(&self, chunks: Range<u64>) {
        chunks.for_each(|chunk| self.at(chunk).leave());
    }

    /// For a discard that entered one chunk: the generation since which it is alone in there.
    pub(crate) fn alone(&self, chunk: u64) -> Option<u32> {
        self.at(chunk).alone()
    }

    /// Leaves chunks, of which some gave all their space back, alone since a generation.
    pub(crate) fn leave_empty(&self, chunks: Range<u64>, empties: &[(u64, u32)]) {
        let mut empties = empties.iter().peekable();
        for chunk in chunks {
            match empties.next_if(|(emptied, _)| *emptied == chunk) {
                Some((_, since)) => self.at(chunk).leave_empty(*since),
                None => self.at(chunk).leave(),
            }
        }
    }

    /// Forgets all that is known.
    pub(crate) fn forget(&self) {
        for page in self.pages.iter().filter_map(OnceLock::get) {
            page.iter().for_each(Chunk::forget);
        }
    }

    /// Chunks that were made ahead and never written to; each is named once.
    pub(crate) fn take_ahead(&self) -> Vec<u64> {
        let pages = self.pages.iter().enumerate().filter_map(|(at, page)| Some((at, page.get()?)));
        let chunks = pages.flat_map(|(at, page)| {
            (at as u64 * PAGE_CHUNKS..).zip(page.iter()).filter(|(_, chunk)| chunk.take_ahead())
        });
        chunks.map(|(number, _)| number).collect()
    }
}
