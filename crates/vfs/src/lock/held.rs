//! The locks held on one file: ranges, conflicts, splitting and joining. Pure.
//!
//! A lock stands in two places: with its holder, where its neighbours are found, and in a tree of
//! intervals by kind, where conflicts are found. Both take logarithmic time in the number of locks.
//!
//! # Invariants
//!
//! - Ranges of one owner and family are disjoint; adjacent ones are of different kinds.
//! - A user's count ([`UserCounts`]) is the number of its ranges, over all files.

use std::collections::BTreeMap;

use iset::IntervalMap;
use polylane_base::{Errno, Result, Uid};
use rustc_hash::FxHashMap;

use super::{LOCKS_PER_USER_MAX, LockFamily, LockKind, LockOwner, LockRequest};

/// How many locks each user holds or awaits.
#[derive(Default)]
pub(super) struct UserCounts(FxHashMap<Uid, usize>);

impl UserCounts {
    /// One more lock, or one more that waits.
    pub(super) fn add(&mut self, user: Option<Uid>) {
        if let Some(user) = user {
            *self.0.entry(user).or_default() += 1;
        }
    }

    /// One less.
    pub(super) fn remove(&mut self, user: Option<Uid>) {
        let Some(user) = user else { return };
        if let Some(count) = self.0.get_mut(&user) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.0.remove(&user);
            }
        }
    }

    /// Whether a user may have so many more. `ENOLCK`: no.
    pub(super) fn check(&self, user: Option<Uid>, more: usize) -> Result<()> {
        let count = user.and_then(|user| self.0.get(&user)).copied().unwrap_or(0);
        match more > 0 && user.is_some() && count + more > LOCKS_PER_USER_MAX {
            true => Err(Errno::ENOLCK),
            false => Ok(()),
        }
    }
}

/// The locks held on one file.
#[derive(Default)]
pub(super) struct Held {
    /// POSIX and OFD locks: they see each other.
    ranges: Ranges,
    /// flock(2) locks, of the whole file.
    whole: Ranges,
}

/// An end of an interval: a byte, and a number that tells equal ones apart.
type End = (u64, u64);

/// The family as a number, since families have no order.
type Holder = (LockOwner, u8);

fn holder(lock: &LockRequest) -> Holder {
    (lock.owner, lock.family as u8)
}

/// Locks that see each other.
#[derive(Default)]
struct Ranges {
    /// By holder and first byte, with the number of each.
    holders: BTreeMap<Holder, BTreeMap<u64, (u64, LockRequest)>>,
    shared: IntervalMap<End, LockRequest>,
    exclusive: IntervalMap<End, LockRequest>,
    last_number: u64,
}

/// flock(2) locks are ranges that cover everything.
fn normal(request: &LockRequest) -> LockRequest {
    match request.family {
        LockFamily::Flock => LockRequest { start: 0, end: u64::MAX, ..*request },
        _ => *request,
    }
}

impl Held {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.holders.is_empty() && self.whole.holders.is_empty()
    }

    /// The POSIX and OFD locks, by start, if they are all POSIX locks of `owner`'s.
    pub(super) fn only_of(&self, owner: LockOwner) -> Option<Vec<LockRequest>> {
        let own = (owner, LockFamily::Posix as u8);
        if self.ranges.holders.keys().any(|&other| other != own) {
            return None;
        }
        let locks = self.ranges.holders.values().flat_map(BTreeMap::values);
        Some(locks.map(|(_, lock)| *lock).collect())
    }

    fn list(&self, family: LockFamily) -> &Ranges {
        if family == LockFamily::Flock { &self.whole } else { &self.ranges }
    }

    fn list_mut(&mut self, family: LockFamily) -> &mut Ranges {
        if family == LockFamily::Flock { &mut self.whole } else { &mut self.ranges }
    }

    /// The held locks that stand in the way of `request`.
    pub(super) fn conflicts<'h>(
        &'h self,
        request: &LockRequest,
    ) -> impl Iterator<Item = &'h LockRequest> + 'h {
        let request = normal(request);
        let list = self.list(request.family);
        let (kind, exclusive, shared) =
            (request.kind, others_on(&list.exclusive, &request), others_on(&list.shared, &request));
        let exclusive = exclusive.take_while(move |_| kind != LockKind::Unlock);
        exclusive.chain(shared.take_while(move |_| kind == LockKind::Write))
    }

    /// The first byte's conflict: of [`Held::conflicts`] the one that starts first.
    pub(super) fn first_conflict(&self, request: &LockRequest) -> Option<&LockRequest> {
        let request = normal(request);
        if request.kind == LockKind::Unlock {
            return None;
        }
        let list = self.list(request.family);
        let exclusive = others_on(&list.exclusive, &request).next();
        let shared = match request.kind {
            LockKind::Write => others_on(&list.shared, &request).next(),
            _ => None,
        };
        exclusive.into_iter().chain(shared).min_by_key(|lock| lock.start)
    }

    /// Sets or removes the range, whatever stands in the way. What the holder had there before is
    /// replaced; neighbours of the same kind are joined. `ENOLCK`, and nothing changes: its user
    /// has no more locks left, where `counts` are to be looked at.
    pub(super) fn apply(
        &mut self,
        request: &LockRequest,
        counts: &mut UserCounts,
        limited: bool,
    ) -> Result<()> {
        let new = normal(request);
        self.list_mut(new.family).apply(new, counts, limited)
    }

    /// Removes every lock of `owner`; true when there was one.
    pub(super) fn drop_owner(&mut self, owner: LockOwner, counts: &mut UserCounts) -> bool {
        let ranges = self.ranges.drop_owner(owner, counts);
        self.whole.drop_owner(owner, counts) || ranges
    }

    /// Takes all locks off the counts, for a file that ends.
    pub(super) fn uncount(&self, counts: &mut UserCounts) {
        let holders = self.ranges.holders.values().chain(self.whole.holders.values());
        holders.flat_map(BTreeMap::values).for_each(|(_, lock)| counts.remove(lock.user));
    }

    /// Whether `owner` holds a lock.
    pub(super) fn has_owner(&self, owner: LockOwner) -> bool {
        self.ranges.of_owner(owner).next().is_some() || self.whole.of_owner(owner).next().is_some()
    }
}

impl Ranges {
    fn of_owner(&self, owner: LockOwner) -> impl Iterator<Item = Holder> {
        let range = (owner, 0)..=(owner, u8::MAX);
        self.holders.range(range).map(|(holder, _)| *holder)
    }

    fn apply(
        &mut self,
        mut new: LockRequest,
        counts: &mut UserCounts,
        limited: bool,
    ) -> Result<()> {
        let former = self.touched_by(&new);
        let mut kept = Vec::with_capacity(3);
        for held in &former {
            if held.kind == new.kind {
                new.start = new.start.min(held.start);
                new.end = new.end.max(held.end);
            } else {
                kept.extend(without(held, &new));
            }
        }
        kept.extend((new.kind != LockKind::Unlock).then_some(new));
        if limited {
            counts.check(new.user, kept.len().saturating_sub(former.len()))?;
        }
        former.iter().for_each(|lock| self.remove(lock, counts));
        kept.iter().for_each(|lock| self.add(*lock, counts));
        Ok(())
    }

    /// The holder's own locks that overlap `new` or lie beside it, by start.
    fn touched_by(&self, new: &LockRequest) -> Vec<LockRequest> {
        let Some(own) = self.holders.get(&holder(new)) else { return Vec::new() };
        let before = own.range(..new.start).next_back();
        let from = own.range(new.start..=new.end.saturating_add(1));
        let locks = before.into_iter().chain(from).map(|(_, (_, lock))| *lock);
        locks.filter(|held| touches(held, new)).collect()
    }

    fn add(&mut self, lock: LockRequest, counts: &mut UserCounts) {
        self.last_number += 1;
        let number = self.last_number;
        self.holders.entry(holder(&lock)).or_default().insert(lock.start, (number, lock));
        self.tree(lock.kind).insert(interval(&lock, number), lock);
        counts.add(lock.user);
    }

    fn remove(&mut self, lock: &LockRequest, counts: &mut UserCounts) {
        let Some(own) = self.holders.get_mut(&holder(lock)) else { return };
        let Some((number, lock)) = own.remove(&lock.start) else { return };
        if own.is_empty() {
            self.holders.remove(&holder(&lock));
        }
        self.tree(lock.kind).remove(interval(&lock, number));
        counts.remove(lock.user);
    }

    fn drop_owner(&mut self, owner: LockOwner, counts: &mut UserCounts) -> bool {
        let gone: Vec<Holder> = self.of_owner(owner).collect();
        for holder in &gone {
            for (_, (number, lock)) in self.holders.remove(holder).into_iter().flatten() {
                self.tree(lock.kind).remove(interval(&lock, number));
                counts.remove(lock.user);
            }
        }
        !gone.is_empty()
    }

    fn tree(&mut self, kind: LockKind) -> &mut IntervalMap<End, LockRequest> {
        if kind == LockKind::Write { &mut self.exclusive } else { &mut self.shared }
    }
}

/// A lock's interval: unlike that of any other lock.
fn interval(lock: &LockRequest, number: u64) -> std::ops::Range<End> {
    (lock.start, number)..(lock.end, u64::MAX)
}

/// The locks of other holders in a tree that overlap a request, by start.
fn others_on<'h>(
    tree: &'h IntervalMap<End, LockRequest>,
    request: &LockRequest,
) -> impl Iterator<Item = &'h LockRequest> + use<'h> {
    let own = holder(request);
    let query = (request.start, 0)..=(request.end, u64::MAX);
    tree.values(query).filter(move |held| holder(held) != own)
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
        let user = Some(Uid(owner as u32));
        LockRequest { owner: LockOwner(owner), family, kind, start, end, pid: owner as u32, user }
    }

    fn shape(held: &Held) -> Vec<(u128, LockKind, u64, u64)> {
        ranges(held).map(|l| (l.owner.0, l.kind, l.start, l.end)).collect()
    }

    fn ranges(held: &Held) -> impl Iterator<Item = &LockRequest> {
        held.ranges.holders.values().flat_map(BTreeMap::values).map(|(_, lock)| lock)
    }

    impl Held {
        fn set(&mut self, request: &LockRequest) {
            self.apply(request, &mut UserCounts::default(), false).unwrap();
        }
    }

    #[test]
    fn ranges_split_join_and_change_kind() {
        use LockKind::{Read, Unlock, Write};
        let mut held = Held::default();
        held.set(&lock(1, Write, 0, u64::MAX));
        held.set(&lock(1, Unlock, 10, 19));
        assert_eq!(shape(&held), [(1, Write, 0, 9), (1, Write, 20, u64::MAX)]);
        held.set(&lock(1, Read, 15, 24));
        assert_eq!(shape(&held), [(1, Write, 0, 9), (1, Read, 15, 24), (1, Write, 25, u64::MAX)]);
        held.set(&lock(1, Write, 10, 24));
        assert_eq!(shape(&held), [(1, Write, 0, u64::MAX)]);
        held.set(&lock(1, Unlock, 0, u64::MAX));
        assert!(held.is_empty());
    }

    #[test]
    fn owners_and_families_are_kept_apart() {
        use LockKind::{Read, Write};
        let mut held = Held::default();
        held.set(&lock(1, Read, 0, 9));
        held.set(&lock(2, Read, 5, 14));
        assert_eq!(held.conflicts(&lock(3, Read, 0, 99)).count(), 0);
        assert_eq!(held.conflicts(&lock(3, Write, 0, 99)).count(), 2);
        assert_eq!(held.conflicts(&lock(1, Write, 0, 4)).count(), 0);
        assert_eq!(held.conflicts(&lock(1, Write, 0, 5)).count(), 1);
        let ofd = LockRequest { family: LockFamily::Ofd, ..lock(1, Write, 0, 0) };
        assert_eq!(held.conflicts(&ofd).count(), 1, "OFD and POSIX locks see each other");
        let flock = LockRequest { family: LockFamily::Flock, ..lock(9, Write, 3, 3) };
        assert_eq!(held.conflicts(&flock).count(), 0, "flock sees flock only");
    }

    #[test]
    fn a_user_has_so_many_locks_and_no_more() {
        use LockKind::{Read, Unlock, Write};
        let (mut held, mut counts) = (Held::default(), UserCounts::default());
        let at = |n: usize| lock(1, Read, 4 * n as u64, 4 * n as u64 + 2);
        for n in 0..LOCKS_PER_USER_MAX {
            held.apply(&at(n), &mut counts, true).unwrap();
        }
        let more = at(LOCKS_PER_USER_MAX);
        assert_eq!(held.apply(&more, &mut counts, true), Err(Errno::ENOLCK));
        let hole = lock(1, Unlock, 1, 1);
        assert_eq!(held.apply(&hole, &mut counts, true), Err(Errno::ENOLCK), "two of one");
        assert_eq!(held.apply(&lock(1, Write, 1, 1), &mut counts, true), Err(Errno::ENOLCK));
        held.apply(&lock(2, Read, 0, 9), &mut counts, true).unwrap();
        held.apply(&lock(1, Read, 3, 3), &mut counts, true).unwrap();
        held.apply(&more, &mut counts, true).unwrap();
        held.apply(&lock(1, Unlock, 0, u64::MAX), &mut counts, true).unwrap();
        assert!(!held.has_owner(LockOwner(1)) && held.has_owner(LockOwner(2)));
        assert!(held.drop_owner(LockOwner(2), &mut counts) && held.is_empty());
        assert!(counts.0.is_empty());
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
            held.set(&lock(owner as u128, kind, start, end));
            bytes[owner][start as usize..=end as usize].fill(kind);
            conflicts_are_those_of(&held, &bytes, &mut rng);
            for (owner, table) in bytes.iter().enumerate() {
                for (at, &kind) in table.iter().enumerate() {
                    let covers = |l: &&LockRequest| {
                        l.owner.0 == owner as u128 && l.start <= at as u64 && at as u64 <= l.end
                    };
                    let found: Vec<_> = ranges(&held).filter(covers).collect();
                    let expected = usize::from(kind != Unlock);
                    assert_eq!(found.len(), expected, "step {step} owner {owner} byte {at}");
                    assert!(found.iter().all(|l| l.kind == kind), "step {step}");
                }
            }
        }
    }

    /// A random question has the answer of the table of bytes, and the first is the first.
    fn conflicts_are_those_of(
        held: &Held,
        bytes: &[[LockKind; 32]; 3],
        rng: &mut polylane_base::rng::Rng,
    ) {
        let owner = rng.below(4) as usize;
        let kind = *rng.pick(&[LockKind::Read, LockKind::Write]);
        let (a, b) = (rng.below(32), rng.below(32));
        let request = lock(owner as u128, kind, a.min(b), a.max(b));
        let blocks = |other: &LockKind| match kind {
            LockKind::Read => *other == LockKind::Write,
            _ => *other != LockKind::Unlock,
        };
        let range = a.min(b) as usize..=a.max(b) as usize;
        let others = bytes.iter().enumerate().filter(|(other, _)| *other != owner);
        let expected = others.into_iter().any(|(_, table)| table[range.clone()].iter().any(blocks));
        assert_eq!(held.conflicts(&request).next().is_some(), expected);
        let first = held.first_conflict(&request).map(|found| found.start);
        assert_eq!(first, held.conflicts(&request).map(|found| found.start).min());
    }
}
