//! POSIX locks on loan: a client whose process is alone with the locks of a file keeps them in the
//! file's view, until somebody else asks.
//!
//! # The next service
//!
//! What the client holds at any moment only it knows. So while the locks of a file are lent, the
//! record of what is held says that its process has all of it write-locked: nobody else gets a lock
//! after this service died. The client gives back what it does not hold when it comes to the next.

use polylane_base::sync::atomic::Ordering;
use polylane_base::sync::{Arc, Weak};
use polylane_ipc::lent::{Locks, Range};
use polylane_vfs::{LockFamily, LockKind, LockLender, LockLoan, LockRequest, Node, OpenFile};

use super::super::request::Handle;
use super::super::session::Session;
use crate::kept::Given;

/// A loan of locks as it was made.
pub(super) struct LockLoanMade {
    loan: LockLoan,
    /// The client may write-lock.
    writes: bool,
    /// What is to be kept for the next service, but for the range.
    given: Option<Given>,
    /// The process, as the lane's tenant numbers it.
    pid: u32,
}

impl Session {
    /// Lends the POSIX locks of an open file, of which this client was just given one. Returns the
    /// number of the file's view plus one, 0 for none. `given`: that lock as the next service is to
    /// know it.
    pub(in super::super) fn lend_locks(
        self: &Arc<Self>,
        handle: Handle,
        file: &OpenFile,
        (given, pid): (Option<Given>, u32),
    ) -> u64 {
        let Some(number) = self.view_of(handle, file.node()) else { return 0 };
        let weak: Weak<Session> = Arc::downgrade(self);
        let writes = file.flags() & libc::O_ACCMODE != libc::O_RDONLY;
        let owner = self.process.owner;
        self.lane.vfs.lend_locks(file.node(), owner, (weak, number), &mut |loan, held| {
            let Some(locks) = to_lend(held) else { return false };
            let mut state = self.views.state.lock();
            let left = self.channel.views().locks_left(number);
            let Some(view) = state.get(number).filter(|view| view.watched && left) else {
                return false;
            };
            if let Some(given) = given {
                let kind = LockKind::Write;
                self.lane.kept.set(Given { start: 0, end: u64::MAX, kind, ..given });
            }
            view.locks = Some(LockLoanMade { loan, writes, given, pid });
            self.channel.views().lend_locks(number, &locks, writes);
            true
        });
        u64::from(number) + 1
    }
}

impl Session {
    /// The session ends, and its client keeps no locks of a file itself any more: by which open
    /// file it took those that it has, where that is certain.
    pub(super) fn note_locker(&self, node: &Node) {
        let file = self.process.locks.load(Ordering::SeqCst).then(|| self.sole_file(node));
        if let Some(file) = file.flatten() {
            file.note_locker(self.process.owner);
        }
    }
}

impl LockLender for Session {
    fn end_lock_loan(&self, number: u32) {
        let _turn = self.views.ending_locks.lock();
        let mut state = self.views.state.lock();
        let Some(made) = state.get(number).and_then(|view| view.locks.take()) else { return };
        let locks = self.channel.views().take_locks(number);
        drop(state);
        let requests = self.requests(&made, &locks);
        if let Some(given) = made.given {
            for (start, end, kind) in changes_of_whole(&requests) {
                self.lane.kept.set(Given { start, end, kind, ..given });
            }
        }
        self.lane.vfs.take_back_locks(made.loan, &requests);
        if self.lane.kept.is_open() {
            self.channel.views().end_locks(number);
        }
        // It may have been buried meanwhile.
        if let Some(given) = made.given.filter(|_| self.process.gone.load(Ordering::SeqCst)) {
            self.lane.kept.drop_all(given.whose);
        }
        self.process.check_alive(&self.lane);
    }
}

impl Session {
    /// What the client claims to hold, as far as it may.
    fn requests(&self, made: &LockLoanMade, locks: &Locks) -> Vec<LockRequest> {
        let (owner, family, pid) = (self.process.owner, LockFamily::Posix, made.pid);
        let user = Some(self.cred.uid);
        let may = |range: &Range| made.writes || !range.write;
        let request = |Range { start, end, write }| {
            let kind = if write { LockKind::Write } else { LockKind::Read };
            LockRequest { owner, family, kind, start, end, pid, user }
        };
        let mut requests: Vec<_> = locks.ranges().filter(may).map(request).collect();
        requests.sort_unstable_by_key(|request| request.start);
        requests
    }
}

/// What a process holds, if that can be lent.
fn to_lend(held: &[LockRequest]) -> Option<Locks> {
    let mut locks = Locks::default();
    let mut add = |held: &LockRequest| {
        let (start, end) = (held.start, held.end);
        locks.lock(Range { start, end, write: held.kind == LockKind::Write })
    };
    let fits = held.iter().all(&mut add);
    fits.then_some(locks)
}

/// What has to be set, one after the other, to come from a lock of all of a file to `locks`, which
/// are disjoint and sorted by start, with none of them missing at any time.
fn changes_of_whole(locks: &[LockRequest]) -> Vec<(u64, u64, LockKind)> {
    let mut changes: Vec<_> = locks.iter().map(|lock| (lock.start, lock.end, lock.kind)).collect();
    let mut next = Some(0);
    for lock in locks {
        if let Some(start) = next.filter(|&start| start < lock.start) {
            changes.push((start, lock.start - 1, LockKind::Unlock));
        }
        next = next.and_then(|next| Some(next.max(lock.end.checked_add(1)?)));
    }
    changes.extend(next.map(|start| (start, u64::MAX, LockKind::Unlock)));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_vfs::LockOwner;

    #[test]
    fn what_is_not_held_is_given_back_last() {
        let lock = |(start, end)| {
            let (owner, family, kind) = (LockOwner(1), LockFamily::Posix, LockKind::Read);
            LockRequest { owner, family, kind, start, end, pid: 0, user: None }
        };
        let (read, unlock) = (LockKind::Read, LockKind::Unlock);
        let changes = |locks: &[(u64, u64)]| {
            changes_of_whole(&locks.iter().copied().map(lock).collect::<Vec<_>>())
        };
        assert_eq!(changes(&[]), [(0, u64::MAX, unlock)]);
        assert_eq!(changes(&[(0, u64::MAX)]), [(0, u64::MAX, read)]);
        assert_eq!(
            changes(&[(0, 4), (7, 9), (10, 12)]),
            [(0, 4, read), (7, 9, read), (10, 12, read), (5, 6, unlock), (13, u64::MAX, unlock)]
        );
        assert_eq!(changes(&[(5, u64::MAX)]), [(5, u64::MAX, read), (0, 4, unlock)]);
        // A hostile client's overlap.
        assert_eq!(changes(&[(0, 9), (3, 4)]).last(), Some(&(10, u64::MAX, unlock)));
    }
}
