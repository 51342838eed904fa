//! The working directory as a handle of the service.
//!
//! The kernel's working directory is always right, because hooked calls change it for real. Which
//! directory of the lane it is, is found out at the first relative path after a change, by asking
//! the kernel for its path and the service for that path. The inode numbers must agree: a rename by
//! another program can make the kernel's path stale.
//!
//! # Invariants
//!
//! - A change clears the entry; whoever finds out about the former directory meanwhile notices that
//!   `changes` moved and takes its finding back.

use std::sync::atomic::{AtomicU32, Ordering};

use polylane_ipc::message::PATH_BYTES_MAX;

use crate::fd::table::{Entry, Pin, Records};
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::kernel::thread;

/// Zero is "not known".
pub(crate) struct Cwd {
    /// As an entry of the descriptor table: unknown, foreign, or a directory's record.
    entry: AtomicU32,
    /// Counts changes of the directory.
    changes: AtomicU32,
    /// This process removed a directory that the kernel knows: it may be, or become, this one.
    may_be_removed: AtomicU32,
}

impl Cwd {
    pub(crate) const fn new() -> Self {
        Cwd {
            entry: AtomicU32::new(0),
            changes: AtomicU32::new(0),
            may_be_removed: AtomicU32::new(0),
        }
    }

    /// The directory's record; `Kernel` when it is outside the lane. `open` finds out which it is:
    /// an errno says that it cannot be opened now.
    #[inline]
    pub(crate) fn get(
        &self,
        records: &'static Records,
        open: impl FnOnce() -> Outcome<Pin>,
    ) -> Outcome<Pin> {
        match records.find_word(&self.entry) {
            Ok(pin) => Ok(pin),
            Err(Entry::Unknown) => self.find_out(records, open),
            Err(_) => Err(Detour::Kernel),
        }
    }

    /// To be called after every change of the directory.
    pub(crate) fn changed(&self, records: &'static Records) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        let old = Entry::from_word(self.entry.swap(Entry::Unknown.to_word(), Ordering::AcqRel));
        drop(records.adopt(old));
    }

    /// To be called after a directory was removed that the kernel knows.
    pub(crate) fn may_be_removed(&self) {
        self.may_be_removed.store(1, Ordering::Relaxed);
    }

    /// Before the kernel is asked for the directory's path: it finds out whether that is gone.
    pub(crate) fn look_again(&self) {
        if self.may_be_removed.load(Ordering::Relaxed) != 0 {
            let mut path = [0; PATH_BYTES_MAX + 1];
            if let Some(path) = thread::slow(|| real::working_directory(&mut path)) {
                real::look(libc::AT_FDCWD, path);
            }
        }
    }

    #[cold]
    fn find_out(
        &self,
        records: &'static Records,
        open: impl FnOnce() -> Outcome<Pin>,
    ) -> Outcome<Pin> {
        let changes = self.changes.load(Ordering::Acquire);
        let found = open();
        let entry = match &found {
            Ok(pin) => pin.again().into_entry(),
            Err(Detour::Errno(_)) => return Err(Detour::Kernel),
            Err(_) => Entry::Foreign,
        };
        let unknown = Entry::Unknown.to_word();
        let (done, else_) = (Ordering::AcqRel, Ordering::Relaxed);
        let stored = self.entry.compare_exchange(unknown, entry.to_word(), done, else_).is_ok();
        if !stored {
            drop(records.adopt(entry));
        }
        if self.changes.load(Ordering::Acquire) != changes {
            // Another thread changed the directory meanwhile; what was stored may be the former
            // one.
            self.changed(records);
            return Err(Detour::Kernel);
        }
        found
    }
}
