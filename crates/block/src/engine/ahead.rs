//! Streams of small writes: which there are, and how far space is made ahead of each.
//!
//! Small writes into holes pay for the host's allocation each; large ones pay it once per megabyte,
//! and zeros written ahead of them would double what goes to the disk. So only streams of small
//! pieces have their space made ahead, and only where making it takes far less time than the
//! stream took to come along without (`bench run stream`): not where the disk is as fast as memory.

use std::ops::Range;

use crate::qos::Nanos;

/// Streams that are followed per channel.
const STREAMS: usize = 8;

/// Pieces in a row that make a stream.
const PIECES_MIN: u64 = 8;

/// Space is made where that takes this many times less than the stream took without it.
const GAIN_MIN: u64 = 3;

/// A stream's pace is taken over this part of what is made ahead of it.
const PACE_PART: u64 = 16;

/// Mean sectors per piece, at most, of a stream of small ones: 32 KiB.
const PIECE_SECTORS_MAX: u64 = 64;

#[derive(Clone, Copy, Default, Debug)]
struct Stream {
    /// Where its last piece began.
    last: u64,
    /// Where it goes on; 0: no stream.
    next: u64,
    sectors: u64,
    pieces: u64,
    /// Space is made, or asked for, up to here.
    made: u64,
    /// When it was last seen.
    seen: u64,
    pace: Pace,
}

/// How fast a stream comes along without space made ahead of it.
#[derive(Clone, Copy, Default, Debug)]
enum Pace {
    #[default]
    Unknown,
    /// From this sector, at this time.
    Since(u64, Nanos),
    /// Picoseconds per sector.
    Known(u64),
}

/// What making space is known to take.
pub(super) struct Cost<'a> {
    /// Picoseconds per sector; `None`: nothing was made yet.
    pub(super) per_sector: Option<u64>,
    /// Whether space is made whatever it takes.
    pub(super) any: bool,
    /// The time now.
    pub(super) clock: &'a dyn Fn() -> Nanos,
}

impl Stream {
    /// Whether space ahead is a gain, as far as that is known: it is tried once to find out.
    fn gains(&mut self, ahead: u64, cost: &Cost<'_>) -> bool {
        match (self.pace, cost.per_sector) {
            _ if cost.any => true,
            (Pace::Unknown, _) => {
                self.pace = Pace::Since(self.next, (cost.clock)());
                false
            }
            (Pace::Since(from, _), _) if self.next < from + (ahead / PACE_PART).max(1) => false,
            (Pace::Since(from, since), _) => {
                let took = (cost.clock)().saturating_sub(since);
                self.pace = Pace::Known(took.saturating_mul(1000) / (self.next - from));
                self.gains(ahead, cost)
            }
            (Pace::Known(_), None) => self.made <= self.next,
            (Pace::Known(pace), Some(cost)) => cost.saturating_mul(GAIN_MIN) <= pace,
        }
    }
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
    pub(super) fn note(
        &mut self,
        sectors: &Range<u64>,
        ahead: u64,
        cost: &Cost<'_>,
    ) -> Option<Range<u64>> {
        self.now += 1;
        let now = self.now;
        // A program that appends less than a block and syncs writes the last block again.
        let goes_on = |stream: &&mut Stream| (stream.last..=stream.next).contains(&sectors.start);
        let found = self.streams.iter_mut().find(goes_on);
        let Some(stream) = found.filter(|stream| stream.pieces > 0) else {
            let oldest = self.streams.iter_mut().min_by_key(|stream| stream.seen)?;
            let (last, next, length) = (sectors.start, sectors.end, sectors.end - sectors.start);
            let (pieces, made, seen, pace) = (1, next, now, Pace::Unknown);
            *oldest = Stream { last, next, sectors: length, pieces, made, seen, pace };
            return None;
        };
        stream.seen = now;
        if sectors.end <= stream.next {
            return None;
        }
        stream.sectors += sectors.end - stream.next;
        stream.last = sectors.start;
        stream.next = sectors.end;
        stream.pieces += 1;
        let small = stream.sectors <= stream.pieces * PIECE_SECTORS_MAX;
        // Half of it is used up before more is asked for, so that asking is rare.
        let due = stream.made < stream.next + ahead / 2;
        if stream.pieces < PIECES_MIN || !small || !due || !stream.gains(ahead, cost) {
            return None;
        }
        let from = stream.made.max(stream.next);
        // To find out what it takes, a little is enough.
        let known = cost.any || cost.per_sector.is_some();
        stream.made = stream.next + if known { ahead } else { (ahead / PACE_PART).max(1) };
        Some(from..stream.made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Cost<'_> = Cost { per_sector: None, any: true, clock: &|| 0 };

    #[test]
    fn space_is_made_where_that_is_a_gain() {
        // A piece of 8 sectors each 8 µs: a sector takes 1 µs.
        let stream = |per_sector: Option<u64>| {
            let (now, mut streams) = (std::cell::Cell::new(0), Streams::default());
            let clock = || now.get();
            let cost = Cost { per_sector, any: false, clock: &clock };
            let asked = (0..1024u64).filter_map(|at| {
                now.set(at * 8000);
                streams.note(&(at * 8..at * 8 + 8), 4096, &cost)
            });
            asked.map(|asked| asked.end - asked.start).sum::<u64>()
        };
        assert!(stream(Some(300_000)) > 8 * 1024, "three times less");
        assert_eq!(stream(Some(400_000)), 0);
        // What it takes is found out; as long as it is not known, no more than that is made.
        let tried = stream(None);
        assert!((1..=8 * 1024).contains(&tried), "{tried}");
    }

    /// What is asked for by `count` pieces of `length` sectors from `start` on.
    fn asked(streams: &mut Streams, start: u64, length: u64, count: u64) -> Vec<Range<u64>> {
        let piece = |at| start + at * length..start + (at + 1) * length;
        (0..count).filter_map(|at| streams.note(&piece(at), 4096, &ANY)).collect()
    }

    #[test]
    fn a_stream_of_small_pieces_is_followed_without_gaps() {
        let asked = asked(&mut Streams::default(), 800, 8, 1024);
        assert!(asked.len() <= 5, "{asked:?}");
        assert!(asked.windows(2).all(|pair| pair[0].end == pair[1].start), "{asked:?}");
        assert_eq!(asked.last().map(|last| last.end > 800 + 8 * 1024), Some(true));
    }

    #[test]
    fn a_last_block_that_is_written_again_belongs_to_the_stream() {
        let (mut once, mut again) = (Streams::default(), Streams::default());
        let expected = asked(&mut once, 800, 8, 1024);
        let pieces = (0..1024 * 4).map(|piece| 800 + piece / 4 * 8..808 + piece / 4 * 8);
        let found: Vec<_> = pieces.filter_map(|piece| again.note(&piece, 4096, &ANY)).collect();
        assert_eq!(found, expected);
        // The end of one piece lies in the next.
        let pieces = (0..1024).map(|piece| 800 + piece * 8..816 + piece * 8);
        assert!(pieces.filter_map(|piece| once.note(&piece, 4096, &ANY)).count() > 0);
    }

    #[test]
    fn large_pieces_and_scattered_ones_ask_for_nothing() {
        let mut streams = Streams::default();
        assert_eq!(asked(&mut streams, 0, 256, 1000), []);
        for at in 0..1000u64 {
            let sector = at.wrapping_mul(7919) % 100_000 * 8;
            assert_eq!(streams.note(&(sector..sector + 8), 4096, &ANY), None);
        }
    }

    #[test]
    fn streams_beside_each_other_are_told_apart() {
        let mut streams = Streams::default();
        let mut count = 0;
        for piece in 0..100 {
            for stream in 0..4u64 {
                let at = stream << 20 | (piece * 8);
                count += usize::from(streams.note(&(at..at + 8), 4096, &ANY).is_some());
            }
        }
        assert_eq!(count, 4);
    }
}
