//! Which units of a file were written, be it with zeros: the others are holes, or space that was
//! only set aside.

use std::fs::File;
use std::hash::{Hash, Hasher};
use std::ops::Range;

use rustix::fs::{SeekFrom, seek};

use super::UNIT;

/// See the [module](self). It makes no difference to what a reader sees, and none when contents are
/// compared.
#[derive(Clone, Default, Debug)]
pub(super) struct Written(Vec<Range<u64>>);

impl PartialEq for Written {
    fn eq(&self, _: &Written) -> bool {
        true
    }
}

impl Eq for Written {}

impl Hash for Written {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Written {
    /// As the host says.
    pub(super) fn of(file: &File) -> Written {
        let (mut found, mut at) = (Written::default(), 0);
        while let Ok(start) = seek(file, SeekFrom::Data(at)) {
            at = seek(file, SeekFrom::Hole(start)).expect("an end");
            found.add(start / UNIT as u64..at.div_ceil(UNIT as u64));
        }
        found
    }

    pub(super) fn add(&mut self, units: Range<u64>) {
        if units.is_empty() {
            return;
        }
        let touches = |other: &Range<u64>| other.start <= units.end && units.start <= other.end;
        let first = self.0.partition_point(|other| other.end < units.start);
        let count = self.0[first..].iter().take_while(|other| touches(other)).count();
        let joined = self.0[first..first + count]
            .iter()
            .fold(units.clone(), |all, other| all.start.min(other.start)..all.end.max(other.end));
        self.0.splice(first..first + count, [joined]);
    }

    pub(super) fn remove(&mut self, units: Range<u64>) {
        let parts = self.0.iter().flat_map(|part| {
            let before = part.start..part.end.min(units.start);
            [before, part.start.max(units.end)..part.end]
        });
        self.0 = parts.filter(|part| !part.is_empty()).collect();
    }

    pub(super) fn units(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().cloned().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_a_set() {
        let (mut written, mut set) = (Written::default(), std::collections::BTreeSet::new());
        let mut rng = polylane_base::rng::Rng::new(5);
        for _ in 0..2000 {
            let start = rng.below(60);
            let range = start..start + rng.below(9);
            if rng.below(2) == 0 {
                written.add(range.clone());
                set.extend(range);
            } else {
                written.remove(range.clone());
                set.retain(|unit| !range.contains(unit));
            }
            assert!(written.units().eq(set.iter().copied()), "{written:?}");
        }
    }
}
