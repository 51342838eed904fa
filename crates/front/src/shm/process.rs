//! Client processes, and the owners of POSIX locks that they are.
//!
//! The kernel drops the locks of a process before anybody can learn that it is gone. Here its end
//! comes by a pidfd, to another thread: a request that meets a lock in its way asks first whether
//! the lock's owner lives, and finds the process by the owner that its locks carry.
//!
//! # Locking
//!
//! `by_owner` is a leaf.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;

use polylane_base::sync::atomic::{AtomicBool, Ordering};
use polylane_base::sync::{Arc, Mutex, Weak};
use polylane_vfs::LockOwner;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Config;
use crate::lane::Lane;

/// A client process. Outlives its sessions, so that POSIX locks survive exec.
#[derive(Debug)]
pub(super) struct Process {
    /// Its number as we see it.
    pub(super) pid: u32,
    /// Who it was at its first session; `None`: a former service knew it.
    pub(super) user: Option<u32>,
    /// Readable once the process is gone.
    pub(super) pidfd: OwnedFd,
    /// Its own, unlike that of any other process that ever was.
    pub(super) number: u64,
    /// Owner of its POSIX locks.
    pub(super) owner: LockOwner,
    /// It is gone: set before its locks are dropped, looked at after one was set.
    pub(super) gone: AtomicBool,
    /// It has asked for a POSIX lock.
    pub(super) locks: AtomicBool,
    /// It and the others.
    pub(super) holders: Arc<Holders>,
}

impl Process {
    /// The process is gone, and with it every lock it has or will still be given.
    pub(super) fn bury(&self, lane: &Lane) {
        self.gone.store(true, Ordering::SeqCst);
        self.drop_locks(lane);
        self.holders.remove(self.owner);
    }

    fn drop_locks(&self, lane: &Lane) {
        lane.kept.drop_process(self.number);
        lane.vfs.drop_owner(self.owner);
    }

    /// After a lock was set for it: if it was buried in between, the lock goes too.
    pub(super) fn check_alive(&self, lane: &Lane) {
        if self.gone.load(Ordering::SeqCst) {
            self.drop_locks(lane);
        }
    }
}

/// Processes that are forgotten at a time once there are too many.
const FORGOTTEN_AT_ONCE: usize = 64;

/// Processes that are known, by their numbers.
pub(super) type Known = HashMap<u32, Arc<Process>>;

/// Whose processes are too many for one more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Full {
    /// Those of this user.
    Of(u32),
    /// Those of all users together.
    All,
}

impl Full {
    /// Whether one more process, of this user, is too many.
    pub(super) fn for_one_of(known: &Known, user: u32, config: &Config) -> Option<Full> {
        let of_user_max = config.processes_per_uid_max;
        let is_own = |process: &&Arc<Process>| process.user == Some(user);
        // First: a user with too many sessions makes room among their own.
        if known.len() >= of_user_max && known.values().filter(is_own).count() >= of_user_max {
            return Some(Full::Of(user));
        }
        (known.len() >= config.processes_max).then_some(Full::All)
    }

    /// Some of them that are not `busy`, with a session, and never asked for a lock.
    pub(super) fn idle(self, known: &Known, busy: &HashSet<u32>) -> Vec<u32> {
        let is_idle = |process: &&Arc<Process>| {
            (self == Full::All || process.user.map(Full::Of) == Some(self))
                && !busy.contains(&process.pid)
                && !process.locks.load(Ordering::SeqCst)
        };
        let idle = known.values().filter(is_idle).map(|process| process.pid);
        idle.take(FORGOTTEN_AT_ONCE).collect()
    }
}

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
    fn remove(&self, owner: LockOwner) {
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

#[cfg(test)]
mod tests {
    use polylane_base::rng::Rng;

    use super::*;
    use crate::lane::locks::process_owner;

    const LIMITS: (usize, usize) = (1000, 10);

    fn process(pid: u32, user: u32, holders: &Arc<Holders>) -> Arc<Process> {
        let number = u64::from(pid);
        Arc::new(Process {
            pid,
            user: Some(user),
            pidfd: std::fs::File::open("/dev/null").expect("open").into(),
            number,
            owner: process_owner(number),
            gone: AtomicBool::new(false),
            locks: AtomicBool::new(false),
            holders: holders.clone(),
        })
    }

    /// However few of the user's own are idle, and however many of others.
    #[test]
    fn a_user_with_too_many_processes_makes_room_among_his_own() {
        let (processes_max, processes_per_uid_max) = LIMITS;
        let config = Config { processes_max, processes_per_uid_max, ..Config::default() };
        let (holders, mut rng) = (Arc::default(), Rng::new(1));
        let mut known = Known::new();
        let mut add = |known: &mut Known, user| {
            let pid = rng.next_u64() as u32;
            known.insert(pid, process(pid, user, &holders));
            pid
        };
        let own: Vec<u32> = (0..processes_per_uid_max).map(|_| add(&mut known, 1)).collect();
        (0..processes_max / 2).for_each(|n| _ = add(&mut known, 2 + n as u32));
        assert_eq!(Full::for_one_of(&known, 2, &config), None);
        let (idle, others) = own.split_at(2);
        known[&others[0]].locks.store(true, Ordering::SeqCst);
        let busy: HashSet<u32> = others[1..].iter().copied().collect();
        let made = |known: &Known, user| {
            let full = Full::for_one_of(known, user, &config)?;
            Some((full, full.idle(known, &busy)))
        };
        for is_full in [false, true] {
            let (full, mut found) = made(&known, 1).expect("full");
            found.sort_unstable();
            let mut expected = idle.to_vec();
            expected.sort_unstable();
            assert_eq!((full, found), (Full::Of(1), expected), "all are full: {is_full}");
            while known.len() < processes_max {
                let user = 2 + known.len() as u32;
                add(&mut known, user);
            }
        }
        let (full, found) = made(&known, 2).expect("full");
        assert_eq!((full, found.len()), (Full::All, FORGOTTEN_AT_ONCE));
    }
}
