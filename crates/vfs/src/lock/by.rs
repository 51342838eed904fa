//! Locks and the open files that they were taken by: what ends with one.

use polylane_base::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::{LockFamily, LockOwner, shared};
use crate::file::OpenFile;

/// High bits of the lock owners that [`OpenFile::lock_owner`] gives; front ends use others.
const OPEN_FILE_OWNER: u128 = 0x4F46 << 112;

/// What may have been locked by an open file.
#[derive(Default, Debug)]
pub(crate) struct By {
    /// Somebody asked for its lock owner: there may be locks to drop.
    owner: AtomicBool,
    /// A process took POSIX locks by it.
    process: AtomicBool,
}

impl OpenFile {
    /// The owner of this opening's OFD or flock locks, unlike any other while it is open; they are
    /// dropped when it is closed. Not for `Posix` locks, whose owner is a process.
    pub fn lock_owner(&self, family: LockFamily) -> LockOwner {
        self.by.owner.store(true, Relaxed);
        LockOwner(OPEN_FILE_OWNER | (family as u128) << 64 | self.address() as u128)
    }

    /// A process took a POSIX lock by it. Should the kernel have no descriptor of it any more, the
    /// process has closed its own: see [`gone`](Self::gone).
    pub fn note_locker(&self, owner: LockOwner) {
        self.by.process.store(true, Relaxed);
        self.node().core.locks.note(self.node().id, owner, self.address());
    }

    /// The kernel has no descriptor of it any more: the locks that were taken by it are given up as
    /// by close(2), whoever still refers to it. Names who had noted POSIX locks by it.
    pub fn gone(&self) -> Vec<LockOwner> {
        self.drop_own_locks();
        if !self.by.process.load(Relaxed) {
            return Vec::new();
        }
        let lockers = self.node().core.locks.take_noted(self.node().id, self.address());
        lockers.iter().for_each(|owner| shared::drop_on(self.node(), *owner));
        lockers
    }

    /// It ends.
    pub(crate) fn end_locks(&self) {
        self.drop_own_locks();
        if self.by.process.load(Relaxed) {
            // The close has given its locks up.
            self.node().core.locks.take_noted(self.node().id, self.address());
        }
    }

    fn drop_own_locks(&self) {
        if !self.by.owner.load(Relaxed) {
            return;
        }
        for family in [LockFamily::Ofd, LockFamily::Flock] {
            shared::drop_on(self.node(), self.lock_owner(family));
        }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }
}
