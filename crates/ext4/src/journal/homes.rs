//! Which homes take room on the medium already, so that a commit asks it for the others only.

use rustc_hash::FxHashMap;

use super::Freed;
use crate::format::DeviceBlock;

/// The homes that are known to take room: a bit each, 64 in a word.
#[derive(Default)]
pub(super) struct Homes(FxHashMap<u64, u64>);

impl Homes {
    /// Whether `home` is known to take room.
    pub(super) fn has(&self, home: DeviceBlock) -> bool {
        self.0.get(&(home.0 / 64)).is_some_and(|word| word & 1 << (home.0 % 64) != 0)
    }

    /// `home` takes room now.
    pub(super) fn add(&mut self, home: DeviceBlock) {
        *self.0.entry(home.0 / 64).or_default() |= 1 << (home.0 % 64);
    }

    /// The blocks of `run` were given back to the medium: they may have lost their room.
    pub(super) fn lose(&mut self, run: Freed) {
        let (start, end) = (run.start.0, run.start.0 + u64::from(run.count));
        let (first, last) = (start / 64, end.div_ceil(64));
        // The bits of a word that stand for none of them.
        let kept = |at: u64| {
            let (from, to) = (start.max(at * 64) - at * 64, end.min(at * 64 + 64) - at * 64);
            !(u64::MAX >> (64 - (to - from)) << from)
        };
        if last - first > self.0.len() as u64 {
            self.0.retain(|at, word| {
                *word &= if (first..last).contains(at) { kept(*at) } else { u64::MAX };
                *word != 0
            });
            return;
        }
        for at in first..last {
            if let Some(word) = self.0.get_mut(&at) {
                *word &= kept(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use polylane_base::rng::Rng;

    use super::*;

    #[test]
    fn homes_agree_with_a_set() {
        const BLOCKS: u64 = 700;
        let mut rng = Rng::new(34);
        let (mut homes, mut model) = (Homes::default(), BTreeSet::new());
        for _ in 0..if cfg!(miri) { 40 } else { 4000 } {
            let start = rng.below(BLOCKS);
            let most = if rng.percent(20) { BLOCKS } else { 70 };
            let count = 1 + rng.below(most);
            match rng.percent(60) {
                true => {
                    homes.add(DeviceBlock(start));
                    model.insert(start);
                }
                false => {
                    homes.lose(Freed { start: DeviceBlock(start), count: count as u32 });
                    model.retain(|home| !(start..start + count).contains(home));
                }
            }
            let at = rng.below(BLOCKS);
            assert_eq!(homes.has(DeviceBlock(at)), model.contains(&at));
        }
        assert!((0..BLOCKS).all(|at| homes.has(DeviceBlock(at)) == model.contains(&at)));
    }
}
