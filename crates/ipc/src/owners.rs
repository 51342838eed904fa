//! Numbers of users and groups as a client in a user namespace of its own sees them.
//!
//! The lane keeps the numbers of its tenant. A client of another user namespace is shown what the
//! kernel shows it: the numbers of its own maps, and the overflow numbers where these have none.

use polylane_base::{Errno, ID_RANGES_MAX, IdRange, Result};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

/// The maps of a client's user namespace.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Owners {
    /// Of users.
    pub users: Vec<IdRange>,
    /// Of groups.
    pub groups: Vec<IdRange>,
    /// What is shown for a user and a group that have no number.
    pub overflow: [u32; 2],
}

/// The number that is shown for `kept`.
fn shown(map: &[IdRange], kept: u32) -> Option<u32> {
    map.iter().find_map(|range| range.shown_of(kept))
}

impl Owners {
    /// A user's number as the client sees it.
    pub fn user(&self, kept: u32) -> u32 {
        shown(&self.users, kept).unwrap_or(self.overflow[0])
    }

    /// A group's number as the client sees it.
    pub fn group(&self, kept: u32) -> u32 {
        shown(&self.groups, kept).unwrap_or(self.overflow[1])
    }

    /// The two overflow numbers, how many lines each map has, the lines.
    pub fn to_bytes(&self) -> Vec<u8> {
        let [user, group] = self.overflow;
        let counts = [self.users.len(), self.groups.len()].map(|count| count as u32);
        let lines = self.users.iter().chain(&self.groups);
        let lines = lines.flat_map(|line| [line.shown, line.kept, line.count]);
        let words = [user, group].into_iter().chain(counts).chain(lines);
        words.flat_map(|word| U32::from(word).as_bytes().to_vec()).collect()
    }

    /// All of the bytes as maps.
    ///
    /// # Errors
    /// `EPROTO` for anything malformed.
    pub fn from_bytes(bytes: &[u8]) -> Result<Owners> {
        let words = <[U32]>::ref_from_bytes(bytes).map_err(|_| Errno::EPROTO)?;
        let mut words = words.iter().map(|word| word.get());
        let mut next = || words.next().ok_or(Errno::EPROTO);
        let overflow = [next()?, next()?];
        let (users, groups) = (next()? as usize, next()? as usize);
        if users > ID_RANGES_MAX || groups > ID_RANGES_MAX {
            return Err(Errno::EPROTO);
        }
        let mut line = || Ok(IdRange { shown: next()?, kept: next()?, count: next()? });
        let users = (0..users).map(|_| line()).collect::<Result<_>>()?;
        let groups = (0..groups).map(|_| line()).collect::<Result<_>>()?;
        match words.next() {
            None => Ok(Owners { users, groups, overflow }),
            Some(_) => Err(Errno::EPROTO),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_base::rng::Rng;

    fn line(shown: u32, kept: u32, count: u32) -> IdRange {
        IdRange { shown, kept, count }
    }

    fn sample() -> Owners {
        let users = vec![line(0, 100_000, 65_536), line(70_000, 5, 1)];
        Owners { users, groups: vec![line(0, 1000, 1)], overflow: [65_534, 65_533] }
    }

    #[test]
    fn numbers_are_those_of_the_maps() {
        let owners = sample();
        for (kept, shown) in [(100_000, 0), (100_007, 7), (165_535, 65_535), (5, 70_000)] {
            assert_eq!(owners.user(kept), shown);
        }
        for kept in [0, 4, 6, 99_999, 165_536, u32::MAX] {
            assert_eq!(owners.user(kept), 65_534, "{kept}");
        }
        assert_eq!((owners.group(1000), owners.group(0)), (0, 65_533));
    }

    #[test]
    fn all_numbers_are_shown_as_by_a_search_of_the_lines() {
        let mut rng = Rng::new(3);
        for _ in 0..200 {
            let mut below = |limit: u64| rng.below(limit) as u32;
            let users: Vec<IdRange> =
                (0..below(4)).map(|n| line(n * 100, below(300), below(60))).collect();
            let owners = Owners { users: users.clone(), ..sample() };
            for kept in 0..400 {
                let own = |line: &IdRange| (line.kept..line.kept + line.count).contains(&kept);
                let slow = users.iter().find(|line| own(line));
                let slow = slow.map_or(65_534, |line| line.shown + (kept - line.kept));
                assert_eq!(owners.user(kept), slow);
            }
        }
    }

    #[test]
    fn bytes_are_maps_or_an_error() {
        let good = sample().to_bytes();
        assert_eq!(Owners::from_bytes(&good), Ok(sample()));
        for len in 0..good.len() {
            assert_eq!(Owners::from_bytes(&good[..len]), Err(Errno::EPROTO), "cut at {len}");
        }
        assert_eq!(Owners::from_bytes(&[&good[..], &[0; 4]].concat()), Err(Errno::EPROTO));
        let many = Owners { users: vec![line(0, 0, 1); ID_RANGES_MAX + 1], ..sample() };
        assert_eq!(Owners::from_bytes(&many.to_bytes()), Err(Errno::EPROTO));
    }
}
