//! The free extents of one group, in memory.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::bitmap;

/// Free extents of a group: by position and by size.
#[derive(Default)]
pub(super) struct FreeExtents {
    by_start: BTreeMap<u32, u32>,
    by_size: BTreeSet<(u32, u32)>,
}

impl FreeExtents {
    pub(super) fn from_bitmap(bits: &[u8], blocks: u32) -> Self {
        let mut free = FreeExtents::default();
        let mut at = 0;
        while let Some(start) = bitmap::first_clear(bits, at, blocks) {
            let end = bitmap::first_set(bits, start, blocks).unwrap_or(blocks);
            free.put(start, end - start);
            at = end;
        }
        free
    }

    fn put(&mut self, start: u32, count: u32) {
        self.by_start.insert(start, count);
        self.by_size.insert((count, start));
    }

    fn drop_extent(&mut self, start: u32, count: u32) {
        self.by_start.remove(&start);
        self.by_size.remove(&(count, start));
    }

    /// Adds a freed run and joins it with its neighbours.
    pub(super) fn add(&mut self, mut start: u32, mut count: u32) {
        if let Some((left, length)) = self.by_start.range(..start).next_back().map(|e| (*e.0, *e.1))
            && left + length == start
        {
            self.drop_extent(left, length);
            (start, count) = (left, count + length);
        }
        if let Some(length) = self.by_start.get(&(start + count)).copied() {
            self.drop_extent(start + count, length);
            count += length;
        }
        self.put(start, count);
    }

    /// Takes up to `want` blocks: at `goal` if it is free, else behind it if a run is long enough,
    /// else the smallest run that is, else the longest there is (if at least `least`).
    pub(super) fn take(&mut self, goal: u32, want: u32, least: u32) -> Option<(u32, u32)> {
        let (start, length, from) = self.pick(goal, want, least)?;
        let count = want.min(length - (from - start));
        self.drop_extent(start, length);
        if from > start {
            self.put(start, from - start);
        }
        let (end, taken_end) = (start + length, from + count);
        if taken_end < end {
            self.put(taken_end, end - taken_end);
        }
        Some((from, count))
    }

    /// All runs of at least `least` blocks.
    pub(super) fn at_least(&self, least: u32) -> Vec<(u32, u32)> {
        self.by_size.range((least, 0)..).map(|(count, start)| (*start, *count)).collect()
    }

    /// Takes exactly these blocks, if all of them are free.
    pub(super) fn take_exactly(&mut self, from: u32, count: u32) -> bool {
        let around = self.by_start.range(..=from).next_back().map(|(s, l)| (*s, *l));
        let Some((start, length)) = around.filter(|(s, l)| s + l >= from + count) else {
            return false;
        };
        self.drop_extent(start, length);
        if from > start {
            self.put(start, from - start);
        }
        if start + length > from + count {
            self.put(from + count, start + length - from - count);
        }
        true
    }

    fn pick(&self, goal: u32, want: u32, least: u32) -> Option<(u32, u32, u32)> {
        let around = self.by_start.range(..=goal).next_back().map(|(s, l)| (*s, *l));
        if let Some((start, length)) = around.filter(|(s, l)| s + l > goal)
            && start + length - goal >= want.min(length)
        {
            return Some((start, length, goal));
        }
        let behind = self.by_start.range(goal..).take(16).find(|(_, length)| **length >= want);
        if let Some((start, length)) = behind {
            return Some((*start, *length, *start));
        }
        let fit = self.by_size.range((want, 0)..).next().or_else(|| self.by_size.last());
        fit.filter(|(length, _)| *length >= least).map(|(length, start)| (*start, *length, *start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_base::rng::Rng;

    #[test]
    fn free_extents_agree_with_a_bitmap() {
        const BLOCKS: u32 = 1000;
        let mut rng = Rng::new(11);
        let mut bits = [0u8; 125];
        let mut free = FreeExtents::from_bitmap(&bits, BLOCKS);
        let mut taken: Vec<(u32, u32)> = Vec::new();
        for _ in 0..if cfg!(miri) { 50 } else { 5000 } {
            if rng.percent(55) {
                let (goal, want) = (rng.below(1000) as u32, 1 + rng.below(60) as u32);
                match free.take(goal, want, 1) {
                    Some((start, count)) => {
                        assert!(count <= want && bitmap::all_clear(&bits, start, count));
                        bitmap::set(&mut bits, start, count);
                        taken.push((start, count));
                    }
                    None => assert_eq!(bitmap::count_clear(&bits, BLOCKS), 0),
                }
            } else if !taken.is_empty() {
                let (start, count) = taken.swap_remove(rng.below(taken.len() as u64) as usize);
                bitmap::clear(&mut bits, start, count);
                free.add(start, count);
            }
            let fresh = FreeExtents::from_bitmap(&bits, BLOCKS);
            assert_eq!(free.by_start, fresh.by_start);
            assert_eq!(free.by_size, fresh.by_size);
        }
    }

    #[test]
    fn a_long_enough_run_is_found_when_there_is_one() {
        let mut free = FreeExtents::default();
        for (start, count) in [(0, 3), (10, 8), (30, 20)] {
            free.put(start, count);
        }
        assert_eq!(free.take(12, 4, 1), Some((12, 4)), "at the goal");
        assert_eq!(free.take(5, 15, 15), Some((30, 15)), "behind the goal");
        assert_eq!(free.take(100, 9, 9), None);
        assert_eq!(free.take(100, 9, 1), Some((45, 5)), "the longest there is");
    }
}
