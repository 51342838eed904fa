//! When a lease is worth asking for: after changes one after the other in one directory, the more
//! of them the less the last leases were worth, and in a directory that was just made.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use zerocopy::FromZeros;

use crate::kernel::config;

/// Changes in one directory, one after the other, that a lease is asked for.
pub(super) const CHANGES: u32 = 8;
/// As many of them, after leases that were worth their while.
const CHANGES_MIN: u32 = 2;
/// Most of them, after leases that ended early.
const CHANGES_MAX: u32 = 1 << 16;

/// Changes one after the other in one directory.
#[derive(FromZeros)]
pub(super) struct Benefit {
    dir: AtomicU64,
    path: AtomicU64,
    count: AtomicU32,
    /// Doublings of how many it takes.
    doublings: AtomicU32,
    /// The last leases were worth their while: it takes but few.
    worth: AtomicU32,
    /// The directory that was made last, where its first file is to find a lease; 0: none.
    made: AtomicU64,
    /// The directory that was listed last, whose first file that is removed is to find one.
    listed: AtomicU64,
}

impl Benefit {
    pub(super) const fn new() -> Self {
        Benefit {
            dir: AtomicU64::new(0),
            path: AtomicU64::new(0),
            count: AtomicU32::new(0),
            doublings: AtomicU32::new(0),
            worth: AtomicU32::new(0),
            made: AtomicU64::new(0),
            listed: AtomicU64::new(0),
        }
    }

    /// Counts a change; whether it is time to ask for a lease. Threads that meet here may lose a
    /// count, no more.
    pub(super) fn count(&self, dir: u64, path: u64) -> bool {
        let same = self.dir.load(Relaxed) == dir && self.path.load(Relaxed) == path;
        if !same {
            self.dir.store(dir, Relaxed);
            self.path.store(path, Relaxed);
            self.count.store(0, Relaxed);
        }
        let count = self.count.load(Relaxed) + 1;
        let changes = match config::leases_eager() {
            true => CHANGES_MIN,
            false if self.worth.load(Relaxed) != 0 => CHANGES_MIN,
            false => (CHANGES << self.doublings.load(Relaxed)).min(CHANGES_MAX),
        };
        let due = count >= changes;
        self.count.store(if due { 0 } else { count }, Relaxed);
        due
    }

    /// A directory of this name was made.
    pub(super) fn made(&self, dir: u64, path: u64) {
        self.expect(&self.made, dir, path);
    }

    /// A directory of this name was listed from its begin.
    pub(super) fn listed(&self, dir: u64, path: u64) {
        self.expect(&self.listed, dir, path);
    }

    fn expect(&self, what: &AtomicU64, dir: u64, path: u64) {
        if self.worth.load(Relaxed) != 0 {
            what.store(Self::key(dir, path), Relaxed);
        }
    }

    /// Whether there is a directory that was made and not entered yet.
    pub(super) fn has_made(&self) -> bool {
        self.made.load(Relaxed) != 0
    }

    /// Whether there is a directory that was listed, and nothing removed from it yet.
    pub(super) fn has_listed(&self) -> bool {
        self.listed.load(Relaxed) != 0
    }

    /// Whether that directory was made last, and nothing in it since.
    pub(super) fn enters(&self, dir: u64, path: u64) -> bool {
        Self::comes(&self.made, dir, path)
    }

    /// Whether that directory was listed last, and nothing removed from it since.
    pub(super) fn empties(&self, dir: u64, path: u64) -> bool {
        Self::comes(&self.listed, dir, path)
    }

    fn comes(what: &AtomicU64, dir: u64, path: u64) -> bool {
        let comes = what.load(Relaxed) == Self::key(dir, path);
        if comes {
            what.store(0, Relaxed);
        }
        comes
    }

    fn key(dir: u64, path: u64) -> u64 {
        (dir.rotate_left(17) ^ path).max(1)
    }

    /// A lease is over.
    pub(super) fn judge(&self, worth: bool) {
        let doublings = if worth { 0 } else { (self.doublings.load(Relaxed) + 1).min(13) };
        self.doublings.store(doublings, Relaxed);
        self.worth.store(worth.into(), Relaxed);
        self.count.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_broken_by_another_directory_and_dearer_after_a_bad_lease() {
        let benefit = Benefit::new();
        let changes = |path: u64| (1..).find(|_| benefit.count(1, path)).unwrap();
        assert_eq!(changes(1), CHANGES);
        benefit.count(1, 1);
        assert_eq!(changes(2), CHANGES);
        benefit.judge(false);
        assert_eq!(changes(2), 2 * CHANGES);
        (0..40).for_each(|_| benefit.judge(false));
        assert_eq!(changes(2), CHANGES_MAX);
        benefit.judge(true);
        assert_eq!(changes(2), CHANGES_MIN);
        benefit.judge(false);
        assert_eq!(changes(2), 2 * CHANGES);
    }

    #[test]
    fn a_directory_is_entered_once_by_who_had_leases_that_were_worth_it() {
        let benefit = Benefit::new();
        benefit.made(1, 2);
        assert!(!benefit.enters(1, 2));
        benefit.judge(true);
        benefit.made(1, 2);
        assert!(!benefit.enters(1, 3) && !benefit.enters(2, 2));
        assert!(benefit.enters(1, 2) && !benefit.enters(1, 2));
    }

    #[test]
    fn a_listed_directory_is_emptied_once_by_who_had_leases_that_were_worth_it() {
        let benefit = Benefit::new();
        benefit.listed(1, 2);
        assert!(!benefit.has_listed() && !benefit.empties(1, 2));
        benefit.judge(true);
        benefit.listed(1, 2);
        assert!(benefit.has_listed() && !benefit.has_made() && !benefit.enters(1, 2));
        assert!(!benefit.empties(1, 3) && !benefit.empties(2, 2));
        assert!(benefit.empties(1, 2) && !benefit.empties(1, 2));
    }
}
