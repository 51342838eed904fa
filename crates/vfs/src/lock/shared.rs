//! Locks that other hosts see: the file system decides about each, and who has to wait asks again.
//!
//! The table keeps what was granted, so that it is known what ends with a process or an open file.
//! Locks are asked for below first and written down then; what is given up is struck out first. So
//! no owner is granted what the table still has as another's.
//!
//! The file system does not tell of a lock that ends on another host: one thread asks for what is
//! waited for, every [`PERIOD_MAX`] at the latest, while any request waits. Requests that would
//! wait for themselves are not found.

use std::collections::BTreeMap;
use std::time::Duration;

use polylane_base::sync::{Arc, Condvar, Mutex, thread};
use polylane_base::{Errno, Ino, Result};
use rustc_hash::FxHashMap;

use super::{LockFamily, LockKind, LockOutcome, LockOwner, LockRequest, LockWaiter, Ticket};
use crate::core::Core;
use crate::fs::{Kind, SharedLocks};
use crate::inode::{Inode, Node};

/// Between two questions for the same lock: twice as long each time.
const PERIOD_MIN: Duration = Duration::from_millis(2);
/// The longest.
const PERIOD_MAX: Duration = Duration::from_millis(100);

/// Set in tickets of requests that wait in here.
const OWN_TICKET: u64 = 1 << 63;

/// What waits for locks of other hosts. Empty where the file system shares none.
#[derive(Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Rung when a lock ends in here.
    bell: Condvar,
}

#[derive(Default)]
struct State {
    /// In the order in which they came.
    waiting: BTreeMap<Ticket, Waiting>,
    last: u64,
    /// A thread asks for them.
    is_asked: bool,
    /// Files with locks, by `Inode::id`.
    files: FxHashMap<u64, Ino>,
    /// Something ended since the thread asked last.
    rung: bool,
}

struct Waiting {
    node: Node,
    request: LockRequest,
    tell: LockWaiter,
}

/// What decides about the locks of a file; `None`: its VFS alone.
fn below<'c>(core: &'c Core, inode: &Inode) -> Option<&'c dyn SharedLocks> {
    core.fs.shared_locks().filter(|_| inode.kind() == Kind::File)
}

/// All that an owner has on a file, given up.
fn nothing(owner: LockOwner, family: LockFamily) -> LockRequest {
    let (kind, start, end) = (LockKind::Unlock, 0, u64::MAX);
    LockRequest { owner, family, kind, start, end, pid: 0, user: None }
}

/// Sets a lock where other hosts see it; hands `wait` back where they do not.
pub(super) fn set(
    node: &Node,
    request: LockRequest,
    wait: Option<LockWaiter>,
) -> std::result::Result<LockOutcome, Option<LockWaiter>> {
    let core = &node.core;
    let Some(below) = below(core, node) else { return Err(wait) };
    Ok(match (ask(core, below, node, &request), wait) {
        (Err(Errno::EAGAIN), Some(tell)) => core.shared_locks.park(core, node, request, tell),
        (done, _) => LockOutcome::Done(done),
    })
}

fn ask(core: &Core, below: &dyn SharedLocks, node: &Node, request: &LockRequest) -> Result<()> {
    let shared = &core.shared_locks;
    if request.kind == LockKind::Unlock {
        core.locks.record(node.id, request)?;
        let ended = below.set(node.ino(), request);
        shared.ring();
        return ended;
    }
    below.set(node.ino(), request)?;
    shared.state.lock().files.insert(node.id, node.ino());
    let recorded = core.locks.record(node.id, request);
    recorded.inspect_err(|_| give_back(below, node.ino(), request))
}

/// Gives a lock back that its user may not have: it has too many.
fn give_back(below: &dyn SharedLocks, ino: Ino, request: &LockRequest) {
    // The other side lets go of it when the session ends, too.
    let _ = below.set(ino, &LockRequest { kind: LockKind::Unlock, ..*request });
}

/// The first lock in the way where other hosts see them; `None`: they do not.
pub(super) fn get(node: &Node, request: &LockRequest) -> Option<Option<LockRequest>> {
    let below = below(&node.core, node)?;
    Some(below.get(node.ino(), request).ok().flatten())
}

/// Drops every lock of `owner` on a file.
pub(crate) fn drop_on(inode: &Inode, owner: LockOwner) {
    let core = &inode.core;
    // First: what it waits for may be granted until then.
    core.shared_locks.interrupt(|waiting| {
        waiting.request.owner == owner
            && waiting.node.id == inode.id
            && waiting.request.family != LockFamily::Posix
    });
    let below = below(core, inode).filter(|_| core.locks.has_owner(inode.id, owner));
    core.locks.drop_on(inode.id, owner);
    if let Some(below) = below {
        give_up(below, inode.ino(), owner);
        core.shared_locks.ring();
    }
}

/// Drops every lock of `owner` on all files.
pub(super) fn drop_owner(core: &Core, owner: LockOwner) {
    // First: what it waits for may be granted until then.
    core.shared_locks.interrupt(|waiting| waiting.request.owner == owner);
    let files = match core.fs.shared_locks() {
        Some(_) => core.locks.files_of(owner),
        None => Vec::new(),
    };
    core.locks.drop_owner(owner);
    let Some(below) = core.fs.shared_locks() else { return };
    for id in files {
        let ino = core.shared_locks.state.lock().files.get(&id).copied();
        if let Some(ino) = ino {
            give_up(below, ino, owner);
        }
    }
    core.shared_locks.ring();
}

fn give_up(below: &dyn SharedLocks, ino: Ino, owner: LockOwner) {
    for family in [LockFamily::Posix, LockFamily::Ofd, LockFamily::Flock] {
        // The other side lets go of what is left when the session ends.
        let _ = below.set(ino, &nothing(owner, family));
    }
}

impl Shared {
    fn ring(&self) {
        let mut state = self.state.lock();
        if !state.waiting.is_empty() {
            state.rung = true;
            self.bell.notify_all();
        }
    }

    /// The inode ends.
    pub(crate) fn forget(&self, id: u64) {
        self.state.lock().files.remove(&id);
    }

    pub(super) fn cancel(&self, ticket: Ticket) -> bool {
        let found = self.state.lock().waiting.remove(&ticket);
        found.is_some()
    }

    /// Ends what waits and is `meant`, with `EINTR`.
    fn interrupt(&self, meant: impl Fn(&Waiting) -> bool) {
        let mut state = self.state.lock();
        let is_meant = |(ticket, it): (&Ticket, &Waiting)| meant(it).then_some(*ticket);
        let tickets: Vec<_> = state.waiting.iter().filter_map(is_meant).collect();
        let remove = |ticket: &Ticket| state.waiting.remove(ticket);
        let ended: Vec<_> = tickets.iter().filter_map(remove).collect();
        drop(state);
        ended.into_iter().for_each(|waiting| (waiting.tell)(Err(Errno::EINTR)));
    }

    fn park(
        &self,
        core: &Arc<Core>,
        node: &Node,
        request: LockRequest,
        tell: LockWaiter,
    ) -> LockOutcome {
        let mut state = self.state.lock();
        state.last += 1;
        let ticket = Ticket(OWN_TICKET | state.last);
        state.waiting.insert(ticket, Waiting { node: node.clone(), request, tell });
        if !state.is_asked {
            let core = core.clone();
            let begun = thread::Builder::new().name("lock-wait".to_string());
            if begun.spawn(move || core.shared_locks.keep_asking(&core)).is_err() {
                state.waiting.remove(&ticket);
                return LockOutcome::Done(Err(Errno::ENOLCK));
            }
            state.is_asked = true;
        }
        LockOutcome::Parked(ticket)
    }

    /// Asks for what is waited for until nobody waits. Nobody is let in meanwhile who would wait,
    /// or cancel: a question takes as long as one to the file system does.
    fn keep_asking(&self, core: &Core) {
        let Some(below) = core.fs.shared_locks() else { return };
        let mut period = PERIOD_MIN;
        let mut state = self.state.lock();
        loop {
            let mut told = Vec::new();
            state.rung = false;
            let asked: Vec<_> =
                state.waiting.iter().map(|(at, it)| (*at, it.node.clone(), it.request)).collect();
            for (ticket, node, request) in asked {
                let answer = below.set(node.ino(), &request);
                if answer == Err(Errno::EAGAIN) {
                    continue;
                }
                let answer = answer.and_then(|()| {
                    let recorded = core.locks.record(node.id, &request);
                    recorded.inspect_err(|_| give_back(below, node.ino(), &request))
                });
                state.files.insert(node.id, node.ino());
                told.extend(state.waiting.remove(&ticket).map(|waiting| (waiting, answer)));
            }
            if !told.is_empty() {
                period = PERIOD_MIN;
                drop(state);
                for (waiting, answer) in told {
                    (waiting.tell)(answer);
                    drop(waiting.node);
                }
                state = self.state.lock();
            }
            if state.waiting.is_empty() {
                state.is_asked = false;
                return;
            }
            let silent = |state: &mut State| !state.rung;
            (state, _) = self.bell.wait_timeout_while(state, period, silent);
            period = if state.rung { PERIOD_MIN } else { (period * 2).min(PERIOD_MAX) };
        }
    }
}
