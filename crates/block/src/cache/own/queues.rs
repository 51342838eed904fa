//! S3-FIFO (Yang et al., SOSP'23): which block leaves the cache.
//!
//! A new block enters the *small* queue, a tenth of the cache. At its end it goes on to the *main*
//! queue if it was used again, else out, and its number to the *ghosts*; a block whose number is
//! there enters the main queue at once. One bit says "used again": below a cache of the guest's own
//! more bits do worse (the authors' finding for block devices).
//!
//! Blocks that may not go (dirty, on their way) are passed over.

use std::collections::VecDeque;

use rustc_hash::FxHashSet;

/// Share of the small queue: one in this many blocks.
const SMALL_SHARE: usize = 10;

/// Blocks looked at in each queue before the search is given up: a cache full of dirty blocks must
/// not cost a walk through all of them per write.
const LOOKS: usize = 64;

/// Where a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Place {
    #[default]
    Small,
    Main,
}

/// What the search for a victim asks of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    /// It may not go.
    Pinned,
    /// It was used since it was last looked at; the mark is taken away by looking.
    Used,
    /// It may go. Its number follows.
    Idle(u64),
}

/// The queues, of frame numbers.
pub(super) struct Queues {
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    small_max: usize,
    ghosts: VecDeque<u64>,
    ghost_set: FxHashSet<u64>,
    ghost_max: usize,
}

impl Queues {
    pub(super) fn new(frames: usize) -> Queues {
        Queues {
            small: VecDeque::new(),
            main: VecDeque::new(),
            small_max: (frames / SMALL_SHARE).max(1),
            ghosts: VecDeque::new(),
            ghost_set: FxHashSet::default(),
            ghost_max: frames,
        }
    }

    /// Takes a block in; `cold`: to go next.
    pub(super) fn insert(&mut self, frame: u32, block: u64, cold: bool) {
        match (cold, self.ghost_set.remove(&block)) {
            (true, _) => self.small.push_front(frame),
            (false, true) => self.main.push_back(frame),
            (false, false) => self.small.push_back(frame),
        }
    }

    /// Finds a block that goes, and forgets it.
    pub(super) fn evict(&mut self, mut look: impl FnMut(u32) -> Look) -> Option<u32> {
        let first = match self.small.len() > self.small_max || self.main.is_empty() {
            true => [Place::Small, Place::Main],
            false => [Place::Main, Place::Small],
        };
        first.into_iter().find_map(|place| self.evict_from(place, &mut look))
    }

    fn evict_from(&mut self, place: Place, look: &mut impl FnMut(u32) -> Look) -> Option<u32> {
        for _ in 0..LOOKS {
            let queue = match place {
                Place::Small => &mut self.small,
                Place::Main => &mut self.main,
            };
            let frame = queue.pop_front()?;
            match (look(frame), place) {
                (Look::Pinned, _) => queue.push_back(frame),
                (Look::Used, _) => self.main.push_back(frame),
                (Look::Idle(block), Place::Small) => {
                    self.remember(block);
                    return Some(frame);
                }
                (Look::Idle(_), Place::Main) => return Some(frame),
            }
        }
        None
    }

    fn remember(&mut self, block: u64) {
        if !self.ghost_set.insert(block) {
            return;
        }
        self.ghosts.push_back(block);
        while self.ghosts.len() > self.ghost_max {
            if let Some(oldest) = self.ghosts.pop_front() {
                self.ghost_set.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs numbers through a cache of `frames` blocks; how many were found.
    fn hits(frames: usize, accesses: impl Iterator<Item = u64>) -> usize {
        let mut queues = Queues::new(frames);
        let mut held: Vec<(u64, bool)> = Vec::new();
        let mut count = 0;
        for block in accesses {
            if let Some(slot) = held.iter_mut().find(|slot| slot.0 == block) {
                slot.1 = true;
                count += 1;
                continue;
            }
            let frame = match held.len() < frames {
                true => {
                    held.push((block, false));
                    held.len() - 1
                }
                false => {
                    let look = |frame: u32| {
                        let slot = &mut held[frame as usize];
                        let used = std::mem::take(&mut slot.1);
                        if used { Look::Used } else { Look::Idle(slot.0) }
                    };
                    let frame = queues.evict(look).expect("nothing is pinned") as usize;
                    held[frame] = (block, false);
                    frame
                }
            };
            queues.insert(frame as u32, block, false);
        }
        count
    }

    #[test]
    fn a_scan_does_not_push_out_what_is_used() {
        let warm = (0..3).flat_map(|_| 0..50);
        let scan = 1000..1500;
        let again = 0..50;
        assert!(hits(100, warm.chain(scan).chain(again)) >= 100 + 45);
    }

    #[test]
    fn what_is_pinned_stays_and_a_full_cache_of_it_says_so() {
        let mut queues = Queues::new(4);
        (0..4).for_each(|frame| queues.insert(frame, u64::from(frame), false));
        assert_eq!(queues.evict(|_| Look::Pinned), None);
        let one = |frame| if frame == 2 { Look::Idle(2) } else { Look::Pinned };
        assert_eq!(queues.evict(one), Some(2));
        queues.insert(2, 9, true);
        assert_eq!(queues.evict(|frame| Look::Idle(u64::from(frame))), Some(2), "cold goes first");
    }
}
