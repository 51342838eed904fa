//! The locks held on one file: ranges, conflicts, splitting and joining. Pure.
//!
//! # Invariants
//!
//! - Ranges of one owner and family are disjoint; adjacent ones are of different kinds.

use super::{LockFamily, LockKind, LockOwner, LockRequest};

/// The locks held on one file, sorted by start.
#[derive(Default)]
pub(super) struct Held {
    /// POSIX and OFD locks: they see each other.
    ranges: Vec<LockRequest>,
    /// flock(2) locks, of the whole file.
    whole: Vec<LockRequest>,
}

/// flock(2) locks are ranges that cover everything.
fn normal(request: &LockRequest) -> LockRequest {
    match request.family {
        LockFamily::Flock => LockRequest { start: 0, end: u64::MAX, ..*request },
        _ => *request,
    }
}

fn same_holder(a: &LockRequest, b: &LockRequest) -> bool {
    a.owner == b.owner && a.family == b.family
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.whole.is_empty()
    }

    /// POSIX and OFD locks, by start.
    pub(super) fn ranges(&self) -> &[LockRequest] {
        &self.ranges
    }

    fn list(&self, family: LockFamily) -> &Vec<LockRequest> {
        if family == LockFamily::Flock { &self.whole } else { &self.ranges }
    }

    fn list_mut(&mut self, family: LockFamily) -> &mut Vec<LockRequest> {
        if family == LockFamily::Flock { &mut self.whole } else { &mut self.ranges }
    }

    /// The held locks that stand in the way of `request`, by start.
    pub(super) fn conflicts<'h>(
        &'h self,
        request: &LockRequest,
    ) -> impl Iterator<Item = &'h LockRequest> + 'h {
        let request = normal(request);
        self.list(request.family).iter().filter(move |held| {
            let exclusive = held.kind == LockKind::Write || request.kind == LockKind::Write;
            request.kind != LockKind::Unlock
                && exclusive
                && !same_holder(held, &request)
                && held.start <= request.end
                && request.start <= held.end
        })
    }

    /// Sets or removes the range, whatever stands in the way. What the holder had there before is
    /// replaced; neighbours of the same kind are joined.
    pub(super) fn apply(&mut self, request: &LockRequest) {
        let mut new = normal(request);
        let list = self.list_mut(new.family);
        let mut kept = Vec::with_capacity(list.len() + 2);
        for held in list.drain(..) {
            if !same_holder(&held, &new) {
                kept.push(held);
            } else if held.kind == new.kind && touches(&held, &new) {
                new.start = new.start.min(held.start);
                new.end = new.end.max(held.end);
            } else {
                kept.extend(without(&held, &new));
            }
        }
        if new.kind != LockKind::Unlock {
            kept.push(new);
        }
        kept.sort_by_key(|held| held.start);
        *list = kept;
    }

    /// Removes every lock of `owner`; true when there was one.
    pub(super) fn drop_owner(&mut self, owner: LockOwner) -> bool {
        let before = self.ranges.len() + self.whole.len();
        self.ranges.retain(|held| held.owner != owner);
        self.whole.retain(|held| held.owner != owner);
        before != self.ranges.len() + self.whole.len()
    }

    /// Whether `owner` holds a lock.
    pub(super) fn has_owner(&self, owner: LockOwner) -> bool {
        self.ranges.iter().chain(&self.whole).any(|held| held.owner == owner)
    }
}

/// Overlapping or adjacent.
fn touches(a: &LockRequest, b: &LockRequest) -> bool {
    a.start <= b.end.saturating_add(1) && b.start <= a.end.saturating_add(1)
}

/// What remains of `held` outside of `cut`.
fn without(held: &LockRequest, cut: &LockRequest) -> impl Iterator<Item = LockRequest> {
    let apart = held.end < cut.start || cut.end < held.start;
    let left = match (apart, cut.start.checked_sub(1)) {
        (true, _) => Some(*held),
        (false, Some(end)) if held.start <= end => Some(LockRequest { end, ..*held }),
        _ => None,
    };
    let right = match (apart, cut.end.checked_add(1)) {
        (false, Some(start)) if start <= held.end => Some(LockRequest { start, ..*held }),
        _ => None,
    };
    left.into_iter().chain(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(owner: u128, kind: LockKind, start: u64, end: u64) -> LockRequest {
        let family = LockFamily::Posix;
        LockRequest { owner: LockOwner(owner), family, kind, start, end, pid: owner as u32 }
    }

    fn shape(held: &Held) -> Vec<(u128, LockKind, u64, u64)> {
        held.ranges.iter().map(|l| (l.owner.0, l.kind, l.start, l.end)).collect()
    }

    #[test]
    fn ranges_split_join_and_change_kind() {
        use LockKind::{Read, Unlock, Write};
        let mut held = Held::default();
        held.apply(&lock(1, Write, 0, u64::MAX));
        held.apply(&lock(1, Unlock, 10, 19));
        assert_eq!(shape(&held), [(1, Write, 0, 9), (1, Write, 20, u64::MAX)]);
        held.apply(&lock(1, Read, 15, 24));
        assert_eq!(shape(&held), [(1, Write, 0, 9), (1, Read, 15, 24), (1, Write, 25, u64::MAX)]);
        held.apply(&lock(1, Write, 10, 24));
        assert_eq!(shape(&held), [(1, Write, 0, u64::MAX)]);
        held.apply(&lock(1, Unlock, 0, u64::MAX));
        assert!(held.is_empty());
    }

    #[test]
    fn owners_and_families_are_kept_apart() {
        use LockKind::{Read, Write};
        let mut held = Held::default();
        held.apply(&lock(1, Read, 0, 9));
        held.apply(&lock(2, Read, 5, 14));
        assert_eq!(held.conflicts(&lock(3, Read, 0, 99)).count(), 0);
        assert_eq!(held.conflicts(&lock(3, Write, 0, 99)).count(), 2);
        assert_eq!(held.conflicts(&lock(1, Write, 0, 4)).count(), 0);
        assert_eq!(held.conflicts(&lock(1, Write, 0, 5)).count(), 1);
        let ofd = LockRequest { family: LockFamily::Ofd, ..lock(1, Write, 0, 0) };
        assert_eq!(held.conflicts(&ofd).count(), 1, "OFD and POSIX locks see each other");
        let flock = LockRequest { family: LockFamily::Flock, ..lock(9, Write, 3, 3) };
        assert_eq!(held.conflicts(&flock).count(), 0, "flock sees flock only");
    }

    /// Random requests against a table of bytes.
    #[test]
    fn ranges_equal_a_table_of_bytes() {
        use LockKind::{Read, Unlock, Write};
        let mut rng = polylane_base::rng::Rng::new(7);
        let mut held = Held::default();
        let mut bytes = [[Unlock; 32]; 3];
        for step in 0..if cfg!(miri) { 50 } else { 5000 } {
            let owner = rng.below(3) as usize;
            let kind = *rng.pick(&[Read, Write, Unlock]);
            let (a, b) = (rng.below(32), rng.below(32));
            let (start, end) = (a.min(b), a.max(b));
            held.apply(&lock(owner as u128, kind, start, end));
            bytes[owner][start as usize..=end as usize].fill(kind);
            for (owner, table) in bytes.iter().enumerate() {
                for (at, &kind) in table.iter().enumerate() {
                    let covers = |l: &&LockRequest| {
                        l.owner.0 == owner as u128 && l.start <= at as u64 && at as u64 <= l.end
                    };
                    let found: Vec<_> = held.ranges.iter().filter(covers).collect();
                    let expected = usize::from(kind != Unlock);
                    assert_eq!(found.len(), expected, "step {step} owner {owner} byte {at}");
                    assert!(found.iter().all(|l| l.kind == kind), "step {step}");
                }
            }
        }
    }
}
