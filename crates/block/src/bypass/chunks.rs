//! What each chunk of an open volume is, and how many requests are in it.
//!
//! One word per chunk: the pool file's chunk, two marks, and a count. A request adds itself to the
//! count and looks at what it found; a mark sends it away again. So one addition is the whole of a
//! hit, and who closes a chunk sees when the last one has left.
//!
//! | bits | what |
//! |---|---|
//! | 0–31 | requests in it |
//! | 32–61 | the pool file's chunk |
//! | 62 | hole: it has no chunk, and reads as zeros |
//! | 63 | closed: somebody is about to change what it is |

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polylane_base::sync::thread;

const COUNT: u64 = (1 << 32) - 1;
const CHUNK_SHIFT: u32 = 32;
const HOLE: u64 = 1 << 62;
const CLOSED: u64 = 1 << 63;

/// Turns to give away before sleeping, when a chunk is about to be empty.
const YIELDS: u32 = 100;

/// What a request finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// It is in, and leaves later: the pool file's chunk.
    Chunk(u32),
    /// There is none.
    Hole,
    /// It is to come again.
    Closed,
}

/// All chunks of a volume.
#[derive(Debug)]
pub(super) struct Chunks(Vec<AtomicU64>);

fn high(chunk: Option<u32>) -> u64 {
    chunk.map_or(HOLE, |chunk| u64::from(chunk) << CHUNK_SHIFT)
}

impl Chunks {
    pub(super) fn new(chunks: &[Option<u32>]) -> Chunks {
        assert!(chunks.iter().flatten().all(|chunk| *chunk < 1 << 30), "fits in its bits");
        Chunks(chunks.iter().map(|chunk| AtomicU64::new(high(*chunk))).collect())
    }

    pub(super) fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// Enters a chunk, if there is one to be entered.
    #[inline]
    pub(super) fn enter(&self, index: u32) -> Found {
        let word = &self.0[index as usize];
        let found = word.fetch_add(1, Ordering::AcqRel);
        if found & (CLOSED | HOLE) == 0 {
            return Found::Chunk((found >> CHUNK_SHIFT) as u32);
        }
        word.fetch_sub(1, Ordering::AcqRel);
        if found & CLOSED != 0 { Found::Closed } else { Found::Hole }
    }

    /// Leaves a chunk that was entered.
    #[inline]
    pub(super) fn leave(&self, index: u32) {
        self.0[index as usize].fetch_sub(1, Ordering::AcqRel);
    }

    /// What a chunk is now.
    pub(super) fn look(&self, index: u32) -> Option<u32> {
        let word = self.0[index as usize].load(Ordering::Acquire);
        (word & HOLE == 0).then_some((word >> CHUNK_SHIFT) as u32 & ((1 << 30) - 1))
    }

    /// Lets nobody in any more.
    pub(super) fn close(&self, index: u32) {
        self.0[index as usize].fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Waits until nobody is in a closed chunk; whether that came to be in time.
    pub(super) fn drain(&self, index: u32, until: Instant) -> bool {
        let word = &self.0[index as usize];
        let mut turns = 0;
        while word.load(Ordering::Acquire) & COUNT != 0 {
            if Instant::now() > until {
                return false;
            }
            turns += 1;
            match turns < YIELDS {
                true => thread::yield_now(),
                false => thread::sleep(Duration::from_micros(100)),
            }
        }
        true
    }

    /// Opens a chunk as it is.
    pub(super) fn open(&self, index: u32) {
        self.0[index as usize].fetch_and(!CLOSED, Ordering::AcqRel);
    }

    /// Opens a chunk as something else. Those who look in and go away again stay counted.
    pub(super) fn open_as(&self, index: u32, chunk: Option<u32>) {
        let word = &self.0[index as usize];
        let change = |word| Some(high(chunk) | word & COUNT);
        let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_chunk_empties_and_opens_as_something_else() {
        let chunks = Chunks::new(&[Some(5), None]);
        assert_eq!((chunks.enter(0), chunks.enter(1)), (Found::Chunk(5), Found::Hole));
        assert_eq!((chunks.look(0), chunks.look(1), chunks.count()), (Some(5), None, 2));
        chunks.close(0);
        assert_eq!((chunks.enter(0), chunks.look(0)), (Found::Closed, Some(5)));
        assert!(!chunks.drain(0, Instant::now()));
        chunks.leave(0);
        assert!(chunks.drain(0, Instant::now()));
        chunks.open_as(0, None);
        assert_eq!(chunks.enter(0), Found::Hole);
        chunks.open_as(1, Some((1 << 30) - 1));
        assert_eq!(chunks.enter(1), Found::Chunk((1 << 30) - 1));
        chunks.close(1);
        chunks.open(1);
        assert_eq!(chunks.enter(1), Found::Chunk((1 << 30) - 1));
    }

    #[test]
    fn nobody_is_lost_between_threads() {
        let chunks = Chunks::new(&[Some(1)]);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..if cfg!(miri) { 100 } else { 20_000 } {
                        if let Found::Chunk(_) = chunks.enter(0) {
                            chunks.leave(0);
                        }
                    }
                });
            }
            for round in 0..if cfg!(miri) { 10 } else { 500 } {
                chunks.close(0);
                assert!(chunks.drain(0, Instant::now() + Duration::from_secs(30)));
                chunks.open_as(0, (round % 2 == 1).then_some(1));
            }
        });
        assert_eq!(chunks.0[0].load(Ordering::Relaxed) & COUNT, 0);
    }
}
