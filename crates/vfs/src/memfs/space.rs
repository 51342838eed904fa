//! What an instance may use: bytes and inodes, counted exactly.
//!
//! Lock-free. Whoever wants to use takes first; whoever frees gives back after the memory is gone, so
//! the counters never claim less than is in use.

use std::sync::atomic::{AtomicU64, Ordering};

/// The two budgets of one instance.
pub(super) struct Space {
    bytes: Budget,
    inodes: Budget,
}

impl Space {
    /// Nothing used yet.
    pub(super) fn new(bytes_limit: u64, inode_limit: u64) -> Space {
        Space { bytes: Budget::new(bytes_limit), inodes: Budget::new(inode_limit) }
    }

    /// Takes bytes; false when fewer are left.
    pub(super) fn take_bytes(&self, count: u64) -> bool {
        self.bytes.take(count)
    }

    /// Gives bytes back.
    pub(super) fn give_bytes(&self, count: u64) {
        self.bytes.give(count);
    }

    /// Takes one inode (or one more name of one); false when none is left.
    pub(super) fn take_inode(&self) -> bool {
        self.inodes.take(1)
    }

    /// Gives one inode back.
    pub(super) fn give_inode(&self) {
        self.inodes.give(1);
    }

    /// Bytes: (limit, left).
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.bytes.limit, self.bytes.left())
    }

    /// Inodes: (limit, left).
    pub(super) fn inodes(&self) -> (u64, u64) {
        (self.inodes.limit, self.inodes.left())
    }
}

struct Budget {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    fn new(limit: u64) -> Budget {
        Budget { limit, used: AtomicU64::new(0) }
    }

    fn take(&self, count: u64) -> bool {
        let fits = |used: u64| used.checked_add(count).filter(|&sum| sum <= self.limit);
        self.used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fits).is_ok()
    }

    fn give(&self, count: u64) {
        if count > 0 {
            let before = self.used.fetch_sub(count, Ordering::AcqRel);
            assert!(before >= count, "gave back {count} of {before} in use");
        }
    }

    fn left(&self) -> u64 {
        self.limit - self.used.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_byte_can_be_taken_and_no_more() {
        let space = Space::new(10, 1);
        assert!(space.take_bytes(9));
        assert!(!space.take_bytes(2));
        assert!(space.take_bytes(1));
        assert!(!space.take_bytes(1));
        assert!(!space.take_bytes(u64::MAX));
        space.give_bytes(4);
        assert_eq!(space.bytes(), (10, 4));
        assert!(space.take_inode());
        assert!(!space.take_inode());
    }
}
