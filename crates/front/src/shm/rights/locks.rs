//! POSIX locks on loan: a client whose process is alone with the locks of a file keeps them in the
//! file's view, until somebody else asks.
//!
//! # The next service
//!
//! What the client holds at any moment only it knows. So while the locks of a file are lent, the
//! record of what is held says that its process has all of it write-locked: nobody else gets a lock
//! after this service died. The client gives back what it does not hold when it comes to the next.

use polylane_base::sync::atomic::Ordering;
use polylane_base::sync::{Mutex, Weak};
use polylane_ipc::lent::{Locks, Range};
use polylane_vfs::{LockFamily, LockKind, LockLender, LockRequest, Node, OpenFile};

use super::shown::{LentLocks, Shown};
use crate::lane::locks::Given;
use crate::shm::connection::Connection;
use crate::shm::files::OpenFiles;

/// The loans of locks of one session. Thread-safe.
pub(super) struct LockLoans {
    /// Held while a loan ends: a second caller finds it ended.
    ending: Mutex<()>,
    /// What ends them when another process asks for a lock.
    lender: Weak<dyn LockLender>,
}

impl LockLoans {
    /// None yet; `lender` is told when one is to end.
    pub(super) fn new(lender: Weak<dyn LockLender>) -> LockLoans {
        LockLoans { ending: Mutex::default(), lender }
    }

    /// Lends the POSIX locks of an open file, shown by the view `number`, of which this client was
    /// just given one. `given`: that lock as the next service is to know it.
    pub(super) fn lend(
        &self,
        (shown, connection): (&Shown, &Connection),
        number: u32,
        file: &OpenFile,
        (given, pid): (Option<Given>, u32),
    ) {
        let lender = self.lender.clone();
        let writes = file.flags() & libc::O_ACCMODE != libc::O_RDONLY;
        let owner = connection.process.owner;
        connection.lane.vfs.lend_locks(file.node(), owner, (lender, number), &mut |loan, held| {
            let Some(locks) = to_lend(held, writes) else { return false };
            let mut state = shown.lock();
            let left = connection.channel.views().locks_left(number);
            let Some(view) = state.get(number).filter(|view| view.watched && left) else {
                return false;
            };
            if let Some(given) = given {
                let kind = LockKind::Write;
                connection.lane.kept.set(Given { start: 0, end: u64::MAX, kind, ..given });
            }
            view.locks = Some(LentLocks { loan, writes, given, pid });
            connection.channel.views().lend_locks(number, &locks, writes);
            true
        });
    }

    /// Ends the loan of the locks of a view's file, if there is one.
    pub(super) fn end(&self, (shown, connection): (&Shown, &Connection), number: u32) {
        let _turn = self.ending.lock();
        let mut state = shown.lock();
        let Some(made) = state.get(number).and_then(|view| view.locks.take()) else { return };
        let locks = connection.channel.views().take_locks(number);
        drop(state);
        let requests = requests(connection, &made, &locks);
        if let Some(given) = made.given {
            for (start, end, kind) in changes_of_whole(&requests) {
                connection.lane.kept.set(Given { start, end, kind, ..given });
            }
        }
        connection.lane.vfs.take_back_locks(made.loan, &requests);
        if connection.lane.kept.is_open() {
            connection.channel.views().end_locks(number);
        }
        // It may have been buried meanwhile.
        let gone = connection.process.gone.load(Ordering::SeqCst);
        if let Some(given) = made.given.filter(|_| gone) {
            connection.lane.kept.drop_all(given.whose);
        }
        connection.process.check_alive(&connection.lane);
    }
}

/// The session ends, and its client keeps no locks of a file itself any more: notes by which open
/// file it took those that it has, where that is certain.
pub(super) fn note_locker(connection: &Connection, files: &OpenFiles, node: &Node) {
    let file = connection.process.locks.load(Ordering::SeqCst).then(|| files.sole_file(node));
    if let Some(file) = file.flatten() {
        file.note_locker(connection.process.owner);
    }
}

/// What the client claims to hold, as far as it may.
fn requests(connection: &Connection, made: &LentLocks, locks: &Locks) -> Vec<LockRequest> {
    let (owner, family, pid) = (connection.process.owner, LockFamily::Posix, made.pid);
    let user = Some(connection.cred.uid);
    let may = |range: &Range| made.writes || !range.write;
    let request = |Range { start, end, write }| {
        let kind = if write { LockKind::Write } else { LockKind::Read };
        LockRequest { owner, family, kind, start, end, pid, user }
    };
    let mut requests: Vec<_> = locks.ranges().filter(may).map(request).collect();
    requests.sort_unstable_by_key(|request| request.start);
    requests
}

/// What a process holds, if that can be lent by an open file that `writes` or does not: the loan
/// gives back what that file may hold, and the process may have locked more by another one.
fn to_lend(held: &[LockRequest], writes: bool) -> Option<Locks> {
    let mut locks = Locks::default();
    let mut add = |held: &LockRequest| {
        let (start, end, write) = (held.start, held.end, held.kind == LockKind::Write);
        (writes || !write) && locks.lock(Range { start, end, write })
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

    #[test]
    fn what_a_loan_could_not_give_back_is_not_lent() {
        let lock = |kind| {
            let (owner, family) = (LockOwner(1), LockFamily::Posix);
            LockRequest { owner, family, kind, start: 0, end: 9, pid: 0, user: None }
        };
        let (read, write) = (lock(LockKind::Read), lock(LockKind::Write));
        assert!(to_lend(&[read], false).is_some());
        assert!(to_lend(&[write], true).is_some());
        assert!(to_lend(&[read, write], false).is_none());
    }
}
