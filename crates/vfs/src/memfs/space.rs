//! What an instance may use: bytes and inodes, counted exactly.
//!
//! Also keeps a few freed pages for the next use: a small file that comes and goes would
//! otherwise make the allocator trim and fault the same memory again and again.
//!
//! The counters are lock-free; `spare` is a leaf lock, held for a push or a pop. A caller takes
//! before it uses memory, and gives back after it has freed it, so the counters never claim less
//! than is in use.

use polylane_base::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page, the unit of allocation.
pub(super) const PAGE_SIZE: u64 = 4096;

/// The bytes of a page. A box of its own: what is freed in the middle goes back at once.
pub(super) type PageBytes = Box<[u8; PAGE_SIZE as usize]>;

/// Freed pages that are kept: 512 KiB, what a small transaction touches.
const SPARE_MAX: usize = 128;

/// The two budgets of one instance.
pub(super) struct Space {
    bytes: Budget,
    inodes: Budget,
    spare: Mutex<Vec<PageBytes>>,
}

impl Space {
    /// Nothing used yet.
    pub(super) fn new(bytes_limit: u64, inode_limit: u64) -> Space {
        let (bytes, inodes) = (Budget::new(bytes_limit), Budget::new(inode_limit));
        Space { bytes, inodes, spare: Mutex::default() }
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

    /// Takes inodes; false when fewer are left.
    pub(super) fn take_inodes(&self, count: u32) -> bool {
        self.inodes.take(count.into())
    }

    /// Gives inodes back.
    pub(super) fn give_inodes(&self, count: u32) {
        self.inodes.give(count.into());
    }

    /// Gives one inode back.
    pub(super) fn give_inode(&self) {
        self.inodes.give(1);
    }

    /// Memory for a page that was paid for: zeros, or with `dirty` any bytes.
    pub(super) fn page(&self, dirty: bool) -> PageBytes {
        let Some(mut page) = self.spare.lock().pop() else { return zeroed() };
        if !dirty {
            page.fill(0);
        }
        page
    }

    /// Takes back the memory of pages.
    pub(super) fn recycle(&self, mut pages: impl Iterator<Item = PageBytes>) {
        {
            let mut spare = self.spare.lock();
            let room = SPARE_MAX.saturating_sub(spare.len());
            spare.extend(pages.by_ref().take(room));
        }
        pages.for_each(drop);
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

/// A page of zeros, made on the heap.
fn zeroed() -> PageBytes {
    match vec![0; PAGE_SIZE as usize].into_boxed_slice().try_into() {
        Ok(page) => page,
        Err(_) => unreachable!("the length is the array's"),
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
