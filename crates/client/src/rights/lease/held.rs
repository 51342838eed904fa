//! The path of a leased directory.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use zerocopy::FromZeros;
use zerocopy::little_endian::U64;

/// Bytes of the longest path of a leased directory.
pub(super) const PATH_BYTES_MAX: usize = 8 * PATH_WORDS;
const PATH_WORDS: usize = 16;

/// A directory: where its path starts, and the path.
#[derive(FromZeros)]
pub(super) struct Held {
    /// Length of the path plus one; 0: no lease.
    len: AtomicU32,
    start: AtomicU64,
    path: [AtomicU64; PATH_WORDS],
}

impl Held {
    pub(super) const fn new() -> Self {
        Held {
            len: AtomicU32::new(0),
            start: AtomicU64::new(0),
            path: [const { AtomicU64::new(0) }; PATH_WORDS],
        }
    }

    pub(super) fn clear(&self) {
        self.len.store(0, Relaxed);
    }

    pub(super) fn set(&self, start: u64, path: &[u8]) -> bool {
        self.start.store(start, Relaxed);
        for (word, bytes) in self.path.iter().zip(path.chunks(8)) {
            word.store(word_of(bytes), Relaxed);
        }
        self.len.store(path.len() as u32 + 1, Relaxed);
        true
    }

    #[inline]
    pub(super) fn is(&self, start: u64, path: &[u8]) -> bool {
        self.len.load(Relaxed) as usize == path.len() + 1
            && self.start.load(Relaxed) == start
            && self
                .path
                .iter()
                .zip(path.chunks(8))
                .all(|(word, b)| word.load(Relaxed) == word_of(b))
    }
}

fn word_of(bytes: &[u8]) -> u64 {
    let mut whole = [0; 8];
    whole[..bytes.len()].copy_from_slice(bytes);
    U64::from_bytes(whole).get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_known_again() {
        let held = Held::new();
        assert!(!held.is(5, b""));
        held.set(5, b"some/long/path");
        assert!(held.is(5, b"some/long/path"));
        assert!(!held.is(5, b"some/long/pat") && !held.is(4, b"some/long/path"));
        held.set(5, b"");
        assert!(held.is(5, b"") && !held.is(5, b"some/long/path"));
    }
}
