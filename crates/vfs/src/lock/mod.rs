//! POSIX, open-file-description and flock locks.
//!
//! | file | what |
//! |---|---|
//! | `by.rs` | locks and the open files that they were taken by |
//! | `held.rs` | the locks of one file: ranges and conflicts; pure |
//! | `shared.rs` | locks that other hosts see: the file system decides |
//! | `table.rs` | all files of a VFS: who holds, who waits, who would wait for itself |
//!
//! A request that has to wait is parked, never held by a thread: the thread that makes room grants
//! it and tells the waiter.

mod by;
mod held;
pub(crate) mod shared;
mod table;

pub(crate) use by::By;
pub(crate) use shared::Shared;
pub(crate) use table::LockTable;

use polylane_base::sync::Weak;
use polylane_base::{Errno, Result};

use crate::inode::{LOCKED, Node};
pub use crate::lock_request::{LockFamily, LockKind, LockOwner, LockRequest};
use crate::vfs::Vfs;

/// Locks that one user may hold or await on the files of one VFS; one more is `ENOLCK`.
pub const LOCKS_PER_USER_MAX: usize = 16_384;

/// Told once how a parked request ended. Runs on the thread that made room, after all locks of the
/// VFS were dropped; it must only post a reply.
pub type LockWaiter = Box<dyn FnOnce(Result<()>) + Send>;

/// Names a parked request of one [`Vfs`]. Never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ticket(pub u64);

/// Names a loan of the POSIX locks of a file to one process. Never used again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockLoan {
    /// `Inode::id`.
    file: u64,
    number: u64,
}

/// A front end's session that keeps locks which were lent to its client.
pub trait LockLender: Send + Sync {
    /// Ends the loan of the locks of the file with that view: [`Vfs::take_back_locks`] before this
    /// returns, unless another thread did. Called without locks of the VFS.
    fn end_lock_loan(&self, view: u32);
}

/// How a lock request went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockOutcome {
    /// Finished; the waiter's closure was dropped unused. `EAGAIN`: somebody is in the way.
    Done(Result<()>),
    /// Waits. The closure may run before this is even returned.
    Parked(Ticket),
}

impl Vfs {
    /// Sets, changes or removes a lock on `node`. Somebody in the way: with `wait` the request is
    /// parked and the closure told later, without it fails with `EAGAIN`. `EDEADLK` when a parked
    /// POSIX request would wait for itself; `EINVAL` for a range that ends before it starts;
    /// `ENOLCK` where the request would give its user more than [`LOCKS_PER_USER_MAX`] locks.
    pub fn set_lock(
        &self,
        node: &Node,
        request: LockRequest,
        wait: Option<LockWaiter>,
    ) -> LockOutcome {
        self.begin();
        if request.family != LockFamily::Flock && request.start > request.end {
            return LockOutcome::Done(Err(Errno::EINVAL));
        }
        if request.kind == LockKind::Unlock && !node.has(LOCKED) {
            return LockOutcome::Done(Ok(()));
        }
        node.raise(LOCKED);
        match shared::set(node, request, wait) {
            Ok(outcome) => outcome,
            Err(wait) => self.core.locks.set(node.id, request, wait),
        }
    }

    /// Lends `owner` the POSIX locks of `node`: from now on it changes them without a word, until
    /// [`LockLender::end_lock_loan`] is called, as it is before anybody else asks about them. Only
    /// if nobody else has or awaits any, and if `begin` says so: it is told the loan and what the
    /// owner holds, with the table locked, and must take no lock of the VFS.
    pub fn lend_locks(
        &self,
        node: &Node,
        owner: LockOwner,
        lender: (Weak<dyn LockLender>, u32),
        begin: &mut dyn FnMut(LockLoan, &[LockRequest]) -> bool,
    ) {
        // What other hosts are to see, no client keeps for itself.
        if self.core.fs.shared_locks().is_none() {
            self.core.locks.lend(node.id, owner, lender, begin);
        }
    }

    /// A loan is over, and its owner has these locks: POSIX locks of its own. Nothing happens if it
    /// was over before, because its owner was dropped.
    pub fn take_back_locks(&self, loan: LockLoan, locks: &[LockRequest]) {
        self.core.locks.take_back(loan, locks);
    }

    /// Takes back a parked request: true when it was still parked. Its closure is then never
    /// called, and the caller answers itself.
    pub fn cancel_lock(&self, ticket: Ticket) -> bool {
        self.core.shared_locks.cancel(&self.core, ticket) || self.core.locks.cancel(ticket)
    }

    /// The first lock on `node` that stands in the way of `request` (`F_GETLK`).
    pub fn get_lock(&self, node: &Node, request: &LockRequest) -> Option<LockRequest> {
        self.begin();
        match shared::get(node, request) {
            Some(found) => found,
            None if node.has(LOCKED) => self.core.locks.get(node.id, request),
            None => None,
        }
    }

    /// Drops every lock of `owner` on `node`, as close(2) does; cheap where there are none. Parked
    /// OFD and flock requests of the owner end with `EINTR`: their open file is gone.
    pub fn drop_locks(&self, node: &Node, owner: LockOwner) {
        if node.has(LOCKED) {
            shared::drop_on(node, owner);
        }
    }

    /// Drops every lock of `owner` on all files; its parked requests end with `EINTR`.
    pub fn drop_owner(&self, owner: LockOwner) {
        shared::drop_owner(&self.core, owner);
    }
}
