//! Who writes a stream of small pieces, and how far its space is to be made ahead of it.
//!
//! Small writes into holes pay for the host's allocation each; large ones pay it once per megabyte,
//! and zeros written ahead of them would double what goes to the disk. So only streams of small
//! pieces have their space made ahead (`bench run stream`).

use std::ops::Range;

/// Streams that are followed per channel.
const STREAMS: usize = 8;

/// Pieces in a row that make a stream.
const PIECES_MIN: u64 = 8;

/// Mean sectors per piece, at most, of a stream of small ones: 32 KiB.
const PIECE_SECTORS_MAX: u64 = 64;

#[derive(Clone, Copy, Default, Debug)]
struct Stream {
    /// Where it goes on; 0: no stream.
    next: u64,
    sectors: u64,
    pieces: u64,
    /// Space is made, or asked for, up to here.
    made: u64,
    /// When it was last seen.
    seen: u64,
}

/// The streams of one channel.
#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: [Stream; STREAMS],
    now: u64,
}

impl Streams {
    /// Takes a write in. The sectors whose space is to be made now, to be `ahead` sectors ahead of
    /// it.
    #[inline]
    pub(super) fn note(&mut self, sectors: &Range<u64>, ahead: u64) -> Option<Range<u64>> {
        self.now += 1;
        let now = self.now;
        let found = self.streams.iter_mut().find(|stream| stream.next == sectors.start);
        let Some(stream) = found.filter(|stream| stream.pieces > 0) else {
            let oldest = self.streams.iter_mut().min_by_key(|stream| stream.seen)?;
            let (next, length) = (sectors.end, sectors.end - sectors.start);
            *oldest = Stream { next, sectors: length, pieces: 1, made: next, seen: now };
            return None;
        };
        stream.next = sectors.end;
        stream.sectors += sectors.end - sectors.start;
        stream.pieces += 1;
        stream.seen = now;
        let small = stream.sectors <= stream.pieces * PIECE_SECTORS_MAX;
        // Half of it is used up before more is asked for, so that asking is rare.
        let due = stream.made < stream.next + ahead / 2;
        if stream.pieces < PIECES_MIN || !small || !due {
            return None;
        }
        let from = stream.made.max(stream.next);
        stream.made = stream.next + ahead;
        Some(from..stream.made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is asked for by `count` pieces of `length` sectors from `start` on.
    fn asked(streams: &mut Streams, start: u64, length: u64, count: u64) -> Vec<Range<u64>> {
        let piece = |at| start + at * length..start + (at + 1) * length;
        (0..count).filter_map(|at| streams.note(&piece(at), 4096)).collect()
    }

    #[test]
    fn a_stream_of_small_pieces_is_followed_without_gaps() {
        let asked = asked(&mut Streams::default(), 800, 8, 1024);
        assert!(asked.len() <= 5, "{asked:?}");
        assert!(asked.windows(2).all(|pair| pair[0].end == pair[1].start), "{asked:?}");
        assert_eq!(asked.last().map(|last| last.end > 800 + 8 * 1024), Some(true));
    }

    #[test]
    fn large_pieces_and_scattered_ones_ask_for_nothing() {
        let mut streams = Streams::default();
        assert_eq!(asked(&mut streams, 0, 256, 1000), []);
        for at in 0..1000u64 {
            let sector = at.wrapping_mul(7919) % 100_000 * 8;
            assert_eq!(streams.note(&(sector..sector + 8), 4096), None);
        }
    }

    #[test]
    fn streams_beside_each_other_are_told_apart() {
        let mut streams = Streams::default();
        let mut count = 0;
        for piece in 0..100 {
            for stream in 0..4u64 {
                let at = stream << 20 | (piece * 8);
                count += usize::from(streams.note(&(at..at + 8), 4096).is_some());
            }
        }
        assert_eq!(count, 4);
    }
}
