//! A directory's names in memory: by their positions in a listing.

use std::collections::BTreeMap;

/// Where an entry lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Spot {
    pub(super) block: u32,
    pub(super) offset: u16,
}

/// The names at one position: one, but for collisions of the whole hash.
enum Spots {
    One(Spot),
    Many(Vec<Spot>),
}

impl Spots {
    fn all(&self) -> &[Spot] {
        match self {
            Spots::One(spot) => std::slice::from_ref(spot),
            Spots::Many(spots) => spots,
        }
    }
}

/// Every name's place, in the order of a listing.
#[derive(Default)]
pub(super) struct Names(BTreeMap<u64, Spots>);

impl Names {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The places at `position`.
    pub(super) fn at(&self, position: u64) -> &[Spot] {
        self.0.get(&position).map_or(&[], Spots::all)
    }

    /// All names from a position on.
    pub(super) fn from(&self, position: u64) -> impl Iterator<Item = (u64, Spot)> + '_ {
        let found = self.0.range(position..);
        found.flat_map(|(at, spots)| spots.all().iter().map(|spot| (*at, *spot)))
    }

    pub(super) fn insert(&mut self, position: u64, spot: Spot) {
        let slot = self.0.entry(position).or_insert(Spots::One(spot));
        match slot {
            Spots::One(same) if *same == spot => {}
            Spots::One(other) => *slot = Spots::Many(vec![*other, spot]),
            Spots::Many(spots) => spots.push(spot),
        }
    }

    pub(super) fn remove(&mut self, position: u64, spot: Spot) {
        let gone = match self.0.get_mut(&position) {
            None => false,
            Some(Spots::One(only)) => *only == spot,
            Some(Spots::Many(spots)) => {
                spots.retain(|other| *other != spot);
                spots.is_empty()
            }
        };
        if gone {
            self.0.remove(&position);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_equal_hash_are_kept_apart() {
        let spot = |offset| Spot { block: 1, offset };
        let mut names = Names::default();
        for offset in [12, 24, 36] {
            names.insert(7, spot(offset));
        }
        names.insert(9, spot(48));
        assert_eq!(names.at(7), [spot(12), spot(24), spot(36)]);
        names.remove(7, spot(24));
        names.remove(7, spot(99));
        assert_eq!(names.from(7).count(), 3);
        names.remove(7, spot(12));
        names.remove(7, spot(36));
        assert_eq!(names.from(0).collect::<Vec<_>>(), [(9, spot(48))]);
        names.remove(9, spot(48));
        assert!(names.is_empty());
    }
}
