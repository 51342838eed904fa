//! Who owns POSIX locks: a process, found again by the owner that its locks carry.
//!
//! The kernel drops the locks of a process before anybody can learn that it is gone. Here its end
//! comes by a pidfd, to another thread: whoever meets a lock in the way asks first whether its
//! owner lives.
//!
//! # Locking
//!
//! `by_owner` is a leaf.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use polylane_base::sync::{Arc, Mutex, Weak};
use polylane_vfs::LockOwner;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::session::Process;

/// Processes by lock owner. Thread-safe.
#[derive(Debug, Default)]
pub(super) struct Holders {
    by_owner: Mutex<HashMap<u128, Weak<Process>>>,
}

impl Holders {
    /// A process that may take locks from now on.
    pub(super) fn add(&self, process: &Arc<Process>) {
        self.by_owner.lock().insert(process.owner.0, Arc::downgrade(process));
    }

    /// A process that is gone and has no locks any more.
    pub(super) fn remove(&self, owner: LockOwner) {
        self.by_owner.lock().remove(&owner.0);
    }

    /// The process of a lock's owner if it is gone.
    pub(super) fn dead(&self, owner: LockOwner) -> Option<Arc<Process>> {
        let process = self.by_owner.lock().get(&owner.0).and_then(Weak::upgrade)?;
        is_readable(&process.pidfd).then_some(process)
    }
}

/// Whether a pidfd says that its process is gone.
pub(super) fn is_readable(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
}
