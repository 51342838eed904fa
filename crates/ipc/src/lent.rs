//! POSIX locks on loan: while a process is alone with the locks of a file, it keeps them itself, in
//! the file's view, and changes them without a request. `docs/design/client-cache.md`.
//!
//! # Invariants
//!
//! - There are two sets of locks. Which one counts is told by the count of the gate, and who is
//!   inside changes the other, so that who finds the gate shut when it leaves has changed nothing.
//! - The service believes nothing of it but that its client has these locks of this file.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::memory::{Memory, Word64};
use crate::view::{BUSY, LOCKS, SHUT, VIEW_BYTES, Views};

/// Most ranges that a process can have on loan of a file.
pub const RANGES_MAX: usize = 7;

/// Offsets in a view.
const GATE: usize = LOCKS;
const LENT: usize = LOCKS + 8;
const SETS: usize = LOCKS + 16;
const RANGE_BYTES: usize = 16;
const SET_BYTES: usize = RANGES_MAX * RANGE_BYTES;

const _: () = assert!(SETS + 2 * SET_BYTES <= VIEW_BYTES);

/// Of [`LENT`]: the client may read-lock; it may write-lock, too.
const READS: u64 = 1;
const WRITES: u64 = 2;
/// Beside the first byte of a range: it is write-locked.
const WRITE: u64 = 1 << 63;

/// A locked range of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First byte, at most `i64::MAX`.
    pub start: u64,
    /// Last byte, inclusive; `u64::MAX`: to the end, however far the file grows.
    pub end: u64,
    /// Write-locked; else read-locked.
    pub write: bool,
}

/// The locks that one process has of one file: disjoint, adjacent ones of different kinds, in no
/// order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Locks {
    ranges: [Option<Range>; RANGES_MAX],
}

impl Locks {
    /// The locked ranges.
    pub fn ranges(&self) -> impl Iterator<Item = Range> + '_ {
        self.ranges.iter().flatten().copied()
    }

    /// Locks a range as fcntl(2) does, whatever kind it had before. False: there would be too many
    /// ranges, and nothing is changed.
    #[must_use]
    pub fn lock(&mut self, range: Range) -> bool {
        self.replace((range.start, range.end), Some(range.write))
    }

    /// Gives a range back; false as [`Locks::lock`].
    #[must_use]
    pub fn unlock(&mut self, start: u64, end: u64) -> bool {
        self.replace((start, end), None)
    }

    fn replace(&mut self, (mut start, mut end): (u64, u64), kind: Option<bool>) -> bool {
        let (mut kept, mut count) = ([None; RANGES_MAX + 2], 0);
        let mut keep = |range: Range| {
            kept[count.min(RANGES_MAX + 1)] = Some(range);
            count += 1;
        };
        let (cut_start, cut_end) = (start, end);
        for held in self.ranges.iter().flatten().copied() {
            let touches =
                held.start <= end.saturating_add(1) && start <= held.end.saturating_add(1);
            if kind == Some(held.write) && touches {
                (start, end) = (start.min(held.start), end.max(held.end));
            } else if held.end < cut_start || cut_end < held.start {
                keep(held);
            } else {
                if held.start < cut_start {
                    keep(Range { end: cut_start - 1, ..held });
                }
                if held.end > cut_end {
                    keep(Range { start: cut_end + 1, ..held });
                }
            }
        }
        if let Some(write) = kind {
            keep(Range { start, end, write });
        }
        let fits = count <= RANGES_MAX;
        if fits {
            self.ranges.copy_from_slice(&kept[..RANGES_MAX]);
        }
        fits
    }
}

impl<M: Memory> Views<M> {
    fn lock_set(&self, view: u32, gate: u64) -> usize {
        self.view(view, SETS + SET_BYTES * (gate % 2) as usize)
    }

    /// The set that counts at a gate. Whatever lies there: what is no range is none.
    fn read_locks(&self, view: u32, gate: u64) -> Locks {
        let (at, mut locks) = (self.lock_set(view, gate), Locks::default());
        for (n, range) in locks.ranges.iter_mut().enumerate() {
            let word =
                |part: usize| self.memory.word64(at + n * RANGE_BYTES + 8 * part).load(Relaxed);
            let (first, end) = (word(0), word(1));
            let found = Range { start: first & !WRITE, end, write: first & WRITE != 0 };
            let sound = found.start <= end && (end <= i64::MAX as u64 || end == u64::MAX);
            *range = sound.then_some(found);
        }
        locks
    }

    fn write_locks(&self, view: u32, gate: u64, locks: &Locks) {
        let at = self.lock_set(view, gate);
        for (n, range) in locks.ranges.iter().enumerate() {
            // No range ends before it starts.
            let (first, end) = range.map_or((1, 0), |range| {
                (range.start | if range.write { WRITE } else { 0 }, range.end)
            });
            self.memory.word64(at + n * RANGE_BYTES).store(first, Relaxed);
            self.memory.word64(at + n * RANGE_BYTES + 8).store(end, Relaxed);
        }
    }

    /// Of the client: whether it is alone with the locks of the file, so that none is in its way.
    #[inline]
    pub fn has_locks(&self, view: u32) -> bool {
        self.memory.word64(self.view(view, LENT)).load(Acquire) != 0
            && self.memory.word64(self.view(view, GATE)).load(Acquire) & SHUT == 0
    }

    /// Of the client: changes its locks, which needs leave to write-lock if it `writes`. False:
    /// they are not on loan, another thread is there, or `change` said false; nothing is changed.
    #[inline]
    pub fn change_locks(
        &self,
        view: u32,
        writes: bool,
        change: impl FnOnce(&mut Locks) -> bool,
    ) -> bool {
        let needed = if writes { READS | WRITES } else { READS };
        let gate = self.memory.word64(self.view(view, GATE));
        let seen = gate.load(Relaxed);
        let lent = self.memory.word64(self.view(view, LENT)).load(Acquire);
        let open = seen & (SHUT | BUSY) == 0 && lent & needed == needed;
        if !open || gate.compare_exchange(seen, seen | BUSY, Acquire, Relaxed).is_err() {
            return false;
        }
        let mut locks = self.read_locks(view, seen);
        let changed = change(&mut locks);
        let next = if changed { (seen + 1) & !(SHUT | BUSY) } else { seen };
        if changed {
            self.write_locks(view, next, &locks);
        }
        match gate.compare_exchange(seen | BUSY, next, Release, Relaxed) {
            Ok(_) => changed,
            Err(_) => {
                // Shut meanwhile. Nobody else is inside.
                gate.store(seen | SHUT, Release);
                false
            }
        }
    }

    /// Of the client, when the service is gone: the locks that it had on loan, once. `None`: the
    /// service took them back before.
    pub fn keep_locks(&self, view: u32) -> Option<Locks> {
        let seen = self.memory.word64(self.view(view, GATE)).fetch_or(SHUT, AcqRel);
        let lent = self.memory.word64(self.view(view, LENT)).swap(0, AcqRel);
        (lent != 0).then(|| self.read_locks(view, seen))
    }

    /// Of the service: whether nobody is inside, so that locks can be lent.
    pub fn locks_left(&self, view: u32) -> bool {
        self.memory.word64(self.view(view, GATE)).load(Acquire) & BUSY == 0
    }

    /// Of the service: lends the locks of a file, of which the client has these now. Nobody may be
    /// inside.
    pub fn lend_locks(&self, view: u32, held: &Locks, writes: bool) {
        let gate = self.memory.word64(self.view(view, GATE));
        let count = gate.load(Relaxed) & !(SHUT | BUSY);
        self.write_locks(view, count, held);
        gate.store(count, Release);
        let lent = if writes { READS | WRITES } else { READS };
        self.memory.word64(self.view(view, LENT)).store(lent, Release);
    }

    /// Of the service: lets nobody in from now on; what the client has by its own account.
    pub fn take_locks(&self, view: u32) -> Locks {
        let seen = self.memory.word64(self.view(view, GATE)).fetch_or(SHUT, AcqRel);
        self.read_locks(view, seen)
    }

    /// Of the service: the loan is over, and its locks are where the next service finds them.
    pub fn end_locks(&self, view: u32) {
        self.memory.word64(self.view(view, LENT)).store(0, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Mapped;
    use crate::view;
    use polylane_sys::Region;

    fn range(start: u64, end: u64, write: bool) -> Range {
        Range { start, end, write }
    }

    #[test]
    fn ranges_are_split_joined_and_replaced_as_bytes_are() {
        const BYTES: u64 = 24;
        let (mut locks, mut bytes) = (Locks::default(), [None; BYTES as usize]);
        let (mut seed, mut refused) = (9_u64, 0);
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            let start = (seed >> 33) % BYTES;
            let end = (start + (seed >> 40 & 3)).min(BYTES - 1);
            let kind = [None, Some(true), Some(false)][(seed >> 50) as usize % 3];
            let before = locks;
            let done = match kind {
                None => locks.unlock(start, end),
                Some(write) => locks.lock(range(start, end, write)),
            };
            let new = |n: u64, byte| if (start..=end).contains(&n) { kind } else { byte };
            let after: Vec<Option<bool>> = (0..).zip(bytes).map(|(n, byte)| new(n, byte)).collect();
            let runs = after.chunk_by(|a, b| a == b).filter(|run| run[0].is_some()).count();
            assert_eq!(done, runs <= RANGES_MAX, "{before:?} {start}..={end} {kind:?}");
            if !done {
                refused += 1;
                assert_eq!(locks, before);
                continue;
            }
            bytes.copy_from_slice(&after);
            assert_eq!(locks.ranges().count(), runs);
            for held in locks.ranges() {
                let mut its = bytes[held.start as usize..=held.end as usize].iter();
                assert!(its.all(|byte| *byte == Some(held.write)), "{locks:?} {bytes:?}");
            }
        }
        assert!(refused > 100, "{refused}");
        let mut locks = Locks::default();
        assert!(locks.lock(range(5, u64::MAX, true)) && locks.unlock(9, u64::MAX));
        assert_eq!(locks.ranges().collect::<Vec<_>>(), [range(5, 8, true)]);
    }

    #[test]
    fn what_is_changed_while_the_gate_is_shut_does_not_count() {
        let (region, _fd) = Region::create("lent", view::bytes(0)).unwrap();
        let views = Views { memory: Mapped::new(&region, 0), frames: 0 };
        let lock = |write| views.change_locks(3, write, |locks| locks.lock(range(1, 2, write)));
        assert!(!lock(false) && !views.has_locks(3), "not on loan");
        let mut held = Locks::default();
        assert!(held.lock(range(10, 20, false)));
        views.lend_locks(3, &held, false);
        assert!(views.has_locks(3) && lock(false) && !lock(true));
        assert!(!views.change_locks(3, false, |_| false));
        assert!(held.lock(range(1, 2, false)));
        let shut = |locks: &mut Locks| {
            assert!(!lock(false) && !views.locks_left(3), "one at a time");
            assert_eq!(views.take_locks(3), held);
            locks.unlock(0, 50)
        };
        assert!(!views.change_locks(3, false, shut));
        assert!(views.locks_left(3) && !lock(false) && !views.has_locks(3));
        assert_eq!(views.keep_locks(3), Some(held), "the service did not take them");
        assert_eq!(views.keep_locks(3), None, "once");
        views.lend_locks(3, &held, true);
        assert!(lock(true));
        views.take_locks(3);
        views.end_locks(3);
        assert_eq!(views.keep_locks(3), None);
    }

    #[test]
    fn what_is_no_range_is_none() {
        let (region, _fd) = Region::create("lent", view::bytes(0)).unwrap();
        let views = Views { memory: Mapped::new(&region, 0), frames: 0 };
        let words: Vec<u8> = [u64::MAX, 1 << 63, 5, 4, WRITE | 7, u64::MAX, 9, u64::MAX - 1]
            .into_iter()
            .flat_map(u64::to_le_bytes)
            .collect();
        region.copy_in(views.lock_set(0, 0), &words);
        let found: Vec<Range> = views.take_locks(0).ranges().filter(|held| held.end > 0).collect();
        assert_eq!(found, [range(7, u64::MAX, true)]);
    }
}
