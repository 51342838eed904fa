//! The locks held on one file: ranges, conflicts, splitting and joining. Pure.
//!
//! A lock stands with its holder, where its neighbours are found, and by its kind, where conflicts
//! are found ([`ByKind`]). Both take logarithmic time in the number of locks, also where all locks
//! in the way of a request are its holder's own, and are none.
//!
//! # Invariants
//!
//! - Ranges of one owner and family are disjoint; adjacent ones are of different kinds.
//! - A turn is the first lock of a kind, by start, or one whose holder is not that of the lock
//!   before it.
//! - A user's count ([`UserCounts`]) is the number of its ranges, over all files.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included};

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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct End(u64, u64);

impl Ord for End {
    fn cmp(&self, other: &End) -> std::cmp::Ordering {
        #[cfg(test)]
        tests::count_comparison();
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &End) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

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
    shared: ByKind,
    exclusive: ByKind,
    last_number: u64,
}

/// Locks of one kind, of all holders.
#[derive(Default)]
struct ByKind {
    /// By their first bytes.
    starts: BTreeMap<End, LockRequest>,
    /// Which of them begins a row of locks of one holder.
    turns: BTreeSet<End>,
    /// What they cover.
    intervals: IntervalMap<End, ()>,
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
            (request.kind, list.exclusive.others_on(&request), list.shared.others_on(&request));
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
        let exclusive = list.exclusive.others_on(&request).next();
        let shared = match request.kind {
            LockKind::Write => list.shared.others_on(&request).next(),
            _ => None,
        };
        exclusive.into_iter().chain(shared).min_by_key(|lock| lock.start)
    }

    /// Sets or removes the range, whatever stands in the way. What the holder had there before is
    /// replaced; neighbours of the same kind are joined. Whether that makes room for others.
    /// `ENOLCK`, and nothing changes: its user has no more locks left, where `counts` are to be
    /// looked at.
    pub(super) fn apply(
        &mut self,
        request: &LockRequest,
        counts: &mut UserCounts,
        limited: bool,
    ) -> Result<bool> {
        let new = normal(request);
        self.list_mut(new.family).apply(new, counts, limited)
    }

    /// Whether [`apply`](Self::apply) would find room for the user's locks. `ENOLCK`: no.
    pub(super) fn check(&self, request: &LockRequest, counts: &UserCounts) -> Result<()> {
        let new = normal(request);
        let (former, kept) = self.list(new.family).plan(new);
        counts.check(new.user, kept.len().saturating_sub(former.len()))
    }

    /// What the holder of `request` has in its range, cut to it, by start.
    pub(super) fn held_in(&self, request: &LockRequest) -> Vec<LockRequest> {
        let range = normal(request);
        let touched = self.list(range.family).touched_by(&range).into_iter();
        let cut = touched.map(|held| LockRequest {
            start: held.start.max(range.start),
            end: held.end.min(range.end),
            ..held
        });
        cut.filter(|held| held.start <= held.end).collect()
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

    /// The holder's locks that a request touches, and those that it has instead afterwards.
    fn plan(&self, mut new: LockRequest) -> (Vec<LockRequest>, Vec<LockRequest>) {
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
        (former, kept)
    }

    fn apply(&mut self, new: LockRequest, counts: &mut UserCounts, limited: bool) -> Result<bool> {
        let (former, kept) = self.plan(new);
        if limited {
            counts.check(new.user, kept.len().saturating_sub(former.len()))?;
        }
        former.iter().for_each(|lock| self.remove(lock, counts));
        kept.iter().for_each(|lock| self.add(*lock, counts));
        let weaker =
            |held: &LockRequest| held.kind == LockKind::Write || new.kind == LockKind::Unlock;
        Ok(new.kind != LockKind::Write && former.iter().any(weaker))
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
        self.by_kind(lock.kind).insert(lock, number);
        counts.add(lock.user);
    }

    fn remove(&mut self, lock: &LockRequest, counts: &mut UserCounts) {
        let Some(own) = self.holders.get_mut(&holder(lock)) else { return };
        let Some((number, lock)) = own.remove(&lock.start) else { return };
        if own.is_empty() {
            self.holders.remove(&holder(&lock));
        }
        self.by_kind(lock.kind).remove(&lock, number);
        counts.remove(lock.user);
    }

    fn drop_owner(&mut self, owner: LockOwner, counts: &mut UserCounts) -> bool {
        let gone: Vec<Holder> = self.of_owner(owner).collect();
        for holder in &gone {
            for (_, (number, lock)) in self.holders.remove(holder).into_iter().flatten() {
                self.by_kind(lock.kind).remove(&lock, number);
                counts.remove(lock.user);
            }
        }
        !gone.is_empty()
    }

    fn by_kind(&mut self, kind: LockKind) -> &mut ByKind {
        if kind == LockKind::Write { &mut self.exclusive } else { &mut self.shared }
    }
}

impl ByKind {
    fn insert(&mut self, lock: LockRequest, number: u64) {
        let at = End(lock.start, number);
        self.starts.insert(at, lock);
        self.intervals.insert(at..End(lock.end, u64::MAX), ());
        self.take_turn(at);
        self.take_turn_after(at);
    }

    fn remove(&mut self, lock: &LockRequest, number: u64) {
        let at = End(lock.start, number);
        self.starts.remove(&at);
        self.intervals.remove(at..End(lock.end, u64::MAX));
        self.turns.remove(&at);
        self.take_turn_after(at);
    }

    /// Notes whether this lock begins a row.
    fn take_turn(&mut self, at: End) {
        let before = self.starts.range(..at).next_back().map(|(_, lock)| holder(lock));
        match self.starts.get(&at).map(holder) == before {
            true => self.turns.remove(&at),
            false => self.turns.insert(at),
        };
    }

    fn take_turn_after(&mut self, at: End) {
        let after = self.starts.range((Excluded(at), Included(LAST))).next();
        if let Some(after) = after.map(|(at, _)| *at) {
            self.take_turn(after);
        }
    }

    /// The locks of other holders that overlap a request, by start.
    fn others_on<'h>(
        &'h self,
        request: &LockRequest,
    ) -> impl Iterator<Item = &'h LockRequest> + use<'h> {
        let (own, mut at) = (holder(request), End(request.start, 0));
        let last = End(request.end.max(request.start), u64::MAX);
        // Its holder has one of them at most.
        let over = self.intervals.intervals(at..=at).map(|interval| interval.start);
        let over = over.filter_map(|start| self.starts.get(&start));
        let over = over.filter(move |held| holder(held) != own);
        let within = std::iter::from_fn(move || {
            let (mut first, mut held) = self.starts.range(at..=last).next()?;
            if holder(held) == own {
                first = self.turns.range((Excluded(*first), Included(last))).next()?;
                held = self.starts.get(first)?;
            }
            at = End(first.0, first.1 + 1);
            Some(held)
        });
        over.chain(within)
    }
}

/// Behind the start of any lock.
const LAST: End = End(u64::MAX, u64::MAX);

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
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Comparisons of ends by this thread.
        static COMPARED: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn count_comparison() {
        COMPARED.with(|count| count.set(count.get() + 1));
    }

    /// What `work` returns, and how many ends it compares.
    fn counted<R>(work: impl FnOnce() -> R) -> (R, u64) {
        let before = COMPARED.get();
        let result = work();
        (result, COMPARED.get() - before)
    }

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

    /// Each question costs some times the logarithm, 14, whoever holds the locks.
    #[test]
    fn a_user_s_many_locks_are_looked_through_in_logarithmic_time() {
        use LockKind::{Read, Unlock, Write};
        const MANY: u64 = if cfg!(miri) { 512 } else { LOCKS_PER_USER_MAX as u64 };
        const MOST: u64 = 400;
        let cheap = |what: &str, (found, compared): (Option<u64>, u64), expected| {
            assert_eq!(found, expected, "{what}");
            assert!(compared <= MOST, "{what}: {compared} comparisons");
        };
        for kind in [Read, Write] {
            let mut held = Held::default();
            (0..MANY).for_each(|n| held.set(&lock(1, kind, 4 * n, 4 * n + 2)));
            let ask = |held: &Held, owner, start, end| {
                let request = lock(owner, Write, start, end);
                counted(|| held.first_conflict(&request).map(|found| found.start))
            };
            let (middle, end) = (2 * MANY, 4 * MANY);
            cheap("another's, in the middle", ask(&held, 2, middle + 1, middle + 1), Some(middle));
            cheap("another's, a gap", ask(&held, 2, middle + 3, middle + 3), None);
            cheap("another's, behind all", ask(&held, 2, end, u64::MAX), None);
            cheap("another's, the whole file", ask(&held, 2, 0, u64::MAX), Some(0));
            cheap("its own, the whole file", ask(&held, 1, 0, u64::MAX), None);
            held.set(&lock(3, kind, end, end));
            cheap("one behind all its own", ask(&held, 1, 0, u64::MAX), Some(end));
            cheap("none within its own", ask(&held, 1, 0, end - 1), None);
            held.set(&lock(3, Unlock, end, end));
            for (start, kind) in [(middle, Unlock), (middle, kind), (middle + 1, Unlock)] {
                let (_, compared) = counted(|| held.set(&lock(1, kind, start, start)));
                // One goes and up to two come.
                assert!(compared <= 3 * MOST, "{compared} comparisons to set one");
            }
        }
    }

    /// Many holders of one lock each on the same bytes, and in turns.
    #[test]
    fn many_holders_are_looked_through_in_logarithmic_time() {
        const MANY: u64 = if cfg!(miri) { 512 } else { LOCKS_PER_USER_MAX as u64 };
        let mut held = Held::default();
        for n in 0..MANY {
            held.set(&lock(1 + u128::from(n % 2), LockKind::Read, 4 * n, 4 * n + 2));
            held.set(&lock(3 + u128::from(n), LockKind::Read, u64::MAX - 1, u64::MAX));
        }
        for (owner, first) in [(1, 4), (2, 0), (3, 0)] {
            let request = lock(owner, LockKind::Write, 0, u64::MAX);
            let (found, compared) = counted(|| held.first_conflict(&request).map(|l| l.start));
            assert_eq!(found, Some(first));
            assert!(compared <= 400, "{compared} comparisons");
        }
        let late = lock(3, LockKind::Write, u64::MAX, u64::MAX);
        let (found, compared) = counted(|| held.first_conflict(&late).map(|l| l.start));
        assert_eq!(found, Some(u64::MAX - 1));
        assert!(compared <= 400, "{compared} comparisons");
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
