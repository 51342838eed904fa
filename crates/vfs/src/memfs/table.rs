//! The inode table: a slab that grows and never moves, one readers-writer lock per slot.
//!
//! Finding a slot takes no lock and touches no shared counter: segments of doubling size are made
//! once and stay. A freed slot is used again under a new generation. Memory of the table itself
//! (24 bytes per slot) is kept at the high-water mark; inodes are boxed and freed.
//!
//! # Locking
//!
//! `slot → slot` only for two directories of one rename, in ascending inode number; otherwise one
//! slot at a time. `free` is a leaf, held for a push or a pop.

use super::inode::Inode;
use crate::fs::Attr;
use polylane_base::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use polylane_base::{Errno, Ino, Result};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Slots of the first segment; segment `n` has `FIRST << n`.
const FIRST: u64 = 64;
/// Enough segments for 2^37 inodes.
const SEGMENTS: usize = 32;

/// A place for an inode.
#[derive(Default)]
pub(super) struct Slot {
    generation: u32,
    inode: Option<Box<Inode>>,
}

impl Slot {
    /// The inode here; `ESTALE` when the slot is empty.
    pub(super) fn get(&self) -> Result<&Inode> {
        self.inode.as_deref().ok_or(Errno::ESTALE)
    }

    /// The inode here, for change.
    pub(super) fn get_mut(&mut self) -> Result<&mut Inode> {
        self.inode.as_deref_mut().ok_or(Errno::ESTALE)
    }
}

/// All inodes of one instance. Inode numbers start at 1.
pub(super) struct Table {
    segments: [OnceLock<Box<[RwLock<Slot>]>>; SEGMENTS],
    grown: AtomicU64,
    free: Mutex<Vec<u64>>,
}

impl Table {
    /// An empty table.
    pub(super) fn new() -> Table {
        Table {
            segments: [const { OnceLock::new() }; SEGMENTS],
            grown: AtomicU64::new(0),
            free: Mutex::new(Vec::new()),
        }
    }

    /// Places an inode; its number and generation are filled in. The caller has paid for it.
    pub(super) fn insert(&self, mut inode: Box<Inode>) -> Result<Attr> {
        let index = match self.free.lock().pop() {
            Some(index) => index,
            None => self.grown.fetch_add(1, Ordering::Relaxed),
        };
        let (segment, at) = place(index);
        let slots = self.segments.get(segment).ok_or(Errno::ENOSPC)?;
        let slots = slots.get_or_init(|| empty_segment(FIRST << segment));
        let mut slot = slots[at].write();
        inode.attr.ino = Ino(index + 1);
        slot.generation = slot.generation.wrapping_add(1);
        inode.attr.generation = u64::from(slot.generation);
        let attr = inode.attr;
        slot.inode = Some(inode);
        Ok(attr)
    }

    /// A shared hold on a slot.
    pub(super) fn read(&self, ino: Ino) -> Result<RwLockReadGuard<'_, Slot>> {
        Ok(self.slot(ino)?.read())
    }

    /// The exclusive hold on a slot.
    pub(super) fn write(&self, ino: Ino) -> Result<RwLockWriteGuard<'_, Slot>> {
        Ok(self.slot(ino)?.write())
    }

    /// Takes the inode out if `condemned` says so. The slot may be used again once
    /// [`Table::release`] is called.
    pub(super) fn take(
        &self,
        ino: Ino,
        condemned: impl FnOnce(&Inode) -> bool,
    ) -> Option<Box<Inode>> {
        let mut slot = self.slot(ino).ok()?.write();
        match slot.inode.as_deref().is_some_and(condemned) {
            true => slot.inode.take(),
            false => None,
        }
    }

    /// Makes a slot that was emptied by [`Table::take`] available.
    pub(super) fn release(&self, ino: Ino) {
        self.free.lock().push(ino.0 - 1);
    }

    fn slot(&self, ino: Ino) -> Result<&RwLock<Slot>> {
        let index = ino.0.checked_sub(1).ok_or(Errno::ESTALE)?;
        let (segment, at) = place(index);
        let slots = self.segments.get(segment).and_then(OnceLock::get).ok_or(Errno::ESTALE)?;
        slots.get(at).ok_or(Errno::ESTALE)
    }
}

/// Where slot `index` is: (segment, position in it).
fn place(index: u64) -> (usize, usize) {
    let biased = index.saturating_add(FIRST);
    let segment = biased.ilog2() - FIRST.ilog2();
    (segment as usize, (biased - (FIRST << segment)) as usize)
}

fn empty_segment(count: u64) -> Box<[RwLock<Slot>]> {
    (0..count).map(|_| RwLock::default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_dense_and_segments_double() {
        assert_eq!(place(0), (0, 0));
        assert_eq!(place(63), (0, 63));
        assert_eq!(place(64), (1, 0));
        assert_eq!(place(191), (1, 127));
        assert_eq!(place(192), (2, 0));
        assert!(place(u64::MAX).0 >= SEGMENTS);
    }
}
