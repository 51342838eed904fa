//! Requests under way, in memory that the frontend keeps for us: after a kill -9 the next process
//! finds there what the guest still waits for.
//!
//! One area per queue, each a multiple of 64 bytes (vhost-user protocol, "Inflight I/O tracking",
//! split ring):
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | features, 0 |
//! | 8..10 | version, 1 |
//! | 10..12 | descriptors |
//! | 12..14 | head that was answered last |
//! | 14..16 | the used ring's index after it |
//! | 16.. | per descriptor 16 bytes: under way (1), …, a counter (8) |
//!
//! Behind the last area, 64 bytes of ours:
//!
//! | bytes | field |
//! |---|---|
//! | 0..4 | the guest has switched its write cache off (1) |
//! | 8..16 | sectors of the device that the frontend read last; 0: none yet |
//!
//! # Order
//!
//! taken: counter, under way. answered: last head, *used ring*, not under way, index. A process
//! that dies in between leaves an index that differs from the used ring's: then the last head was
//! answered and its mark is taken away by the next process.
//!
//! The frontend can write here what it likes: a head is used as an index below the ring's size,
//! everything else is only compared.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};

use polylane_base::Errno;
use polylane_base::sync::Arc;
use polylane_sys::region::Region;

const HEADER_BYTES: usize = 16;
const SLOT_BYTES: usize = 16;
const ALIGNMENT: usize = 64;
/// Behind the areas.
const OWN_BYTES: usize = 64;
const VERSION: u32 = 1;
/// Queues and their sizes, at most.
const QUEUES_MAX: u16 = super::QUEUES_MAX;
pub(super) const SIZE_MAX: u16 = 1024;

/// The areas of all queues.
#[derive(Clone)]
pub(super) struct Inflight {
    region: Arc<Region>,
    size: u16,
    queues: u16,
}

fn area_bytes(size: u16) -> usize {
    (HEADER_BYTES + SLOT_BYTES * usize::from(size)).next_multiple_of(ALIGNMENT)
}

/// Bytes for all queues; `None` for more than there can be.
pub(super) fn bytes(queues: u16, size: u16) -> Option<usize> {
    let known = (1..=QUEUES_MAX).contains(&queues) && (1..=SIZE_MAX).contains(&size);
    known.then(|| area_bytes(size) * usize::from(queues) + OWN_BYTES)
}

impl Inflight {
    /// Fresh memory, and the descriptor for the frontend to keep.
    ///
    /// # Errors
    /// Nonsense was asked for, or the host has no memory.
    pub(super) fn create(queues: u16, size: u16) -> io::Result<(Inflight, OwnedFd)> {
        let len = bytes(queues, size).ok_or(io::ErrorKind::InvalidInput)?;
        let (region, fd) = Region::create("vhost-user-inflight", len)?;
        Ok((Inflight { region: Arc::new(region), size, queues }, fd))
    }

    /// Memory that an earlier process made.
    ///
    /// # Errors
    /// It is too small, can shrink, or cannot be mapped.
    pub(super) fn attach(fd: OwnedFd, queues: u16, size: u16) -> io::Result<Inflight> {
        let len = bytes(queues, size).ok_or(Errno::EINVAL)?;
        Ok(Inflight { region: Arc::new(Region::attach(fd, len)?), size, queues })
    }

    /// Where our own fields begin.
    fn own(&self) -> usize {
        area_bytes(self.size) * usize::from(self.queues)
    }

    fn switch(&self) -> &AtomicU32 {
        self.region.word32(self.own())
    }

    /// Keeps for the next process what size the frontend knows.
    pub(super) fn keep_sectors_told(&self, count: u64) {
        self.region.word64(self.own() + 8).store(count, Ordering::Release);
    }

    /// What size it knew, when an earlier process last told it.
    pub(super) fn sectors_told(&self) -> Option<u64> {
        Some(self.region.word64(self.own() + 8).load(Ordering::Acquire)).filter(|count| *count > 0)
    }

    /// Keeps for the next process whether the guest has switched its write cache off.
    pub(super) fn keep_switched_off(&self, off: bool) {
        self.switch().store(u32::from(off), Ordering::Release);
    }

    /// Whether it had, when an earlier process last looked.
    pub(super) fn was_switched_off(&self) -> bool {
        self.switch().load(Ordering::Acquire) == 1
    }

    /// One queue's area.
    pub(super) fn area(&self, queue: usize, size: u16) -> Option<Area> {
        let fits = queue < usize::from(self.queues) && size <= self.size;
        let base = queue * area_bytes(self.size);
        fits.then(|| Area { region: self.region.clone(), base, size, counter: 0 })
    }
}

/// One queue's requests under way. Used by that queue's thread.
pub(super) struct Area {
    region: Arc<Region>,
    base: usize,
    size: u16,
    counter: u64,
}

impl Area {
    fn word(&self, offset: usize) -> &AtomicU32 {
        self.region.word32(self.base + offset)
    }

    fn slot(&self, head: u16) -> usize {
        self.base + HEADER_BYTES + SLOT_BYTES * usize::from(head)
    }

    /// What an earlier process left under way, in the order in which it was taken, `used` being the
    /// used ring's index now.
    pub(super) fn recover(&mut self, used: u16) -> Vec<u16> {
        let last = self.word(12).load(Ordering::Acquire);
        if self.word(8).load(Ordering::Relaxed) & 0xffff != VERSION {
            self.word(8).store(VERSION | u32::from(self.size) << 16, Ordering::Relaxed);
        } else if (last >> 16) as u16 != used && (last as u16) < self.size {
            self.mark(last as u16, false);
        }
        self.word(12).store(last & 0xffff | u32::from(used) << 16, Ordering::Release);
        let under_way =
            |head: &u16| self.region.word64(self.slot(*head)).load(Ordering::Acquire) & 0xff != 0;
        let counter = |head: u16| self.region.word64(self.slot(head) + 8).load(Ordering::Relaxed);
        let found = (0..self.size).filter(under_way);
        let mut found: Vec<(u64, u16)> = found.map(|head| (counter(head), head)).collect();
        found.sort_unstable();
        self.counter = found.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        found.into_iter().map(|(_, head)| head).collect()
    }

    fn mark(&self, head: u16, under_way: bool) {
        self.region.word64(self.slot(head)).store(u64::from(under_way), Ordering::Release);
    }

    /// A request was taken from the ring.
    pub(super) fn taken(&mut self, head: u16) {
        if head < self.size {
            let counter = self.region.word64(self.slot(head) + 8);
            counter.store(self.counter, Ordering::Relaxed);
            self.counter = self.counter.wrapping_add(1);
            self.mark(head, true);
        }
    }

    /// A request is about to be put into the used ring.
    pub(super) fn answering(&self, head: u16) {
        let word = self.word(12);
        let index = word.load(Ordering::Relaxed) & 0xffff_0000;
        word.store(index | u32::from(head), Ordering::Release);
    }

    /// It was; `used` is the used ring's index now.
    pub(super) fn answered(&self, head: u16, used: u16) {
        if head < self.size {
            self.mark(head, false);
        }
        self.word(12).store(u32::from(head) | u32::from(used) << 16, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_under_way_is_found_in_its_order_by_the_next_process() {
        let (first, fd) = Inflight::create(2, 128).expect("create");
        let mut area = first.area(1, 128).expect("queue 1");
        assert!(area.recover(0).is_empty());
        [5, 3, 9, 7].into_iter().for_each(|head| area.taken(head));
        area.answering(3);
        area.answered(3, 1);
        // It dies between the used ring and the mark.
        area.answering(9);
        let next = Inflight::attach(fd, 2, 128).expect("attach");
        let mut area = next.area(1, 128).expect("queue 1");
        assert_eq!(area.recover(2), [5, 7]);
        assert_eq!(area.recover(2), [5, 7]);
        assert!(next.area(0, 128).expect("queue 0").recover(0).is_empty());
        assert!(next.area(2, 128).is_none());
        first.keep_switched_off(true);
        assert!(next.was_switched_off());
        assert_eq!(next.sectors_told(), None);
        first.keep_sectors_told(1 << 33);
        assert_eq!((next.sectors_told(), next.was_switched_off()), (Some(1 << 33), true));
        assert!(Inflight::create(0, 128).is_err());
        assert!(Inflight::create(2, u16::MAX).is_err());
    }
}
