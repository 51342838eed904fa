//! The lock table of one VFS: what is held on which inode, who waits, who would wait for itself.
//!
//! One mutex guards it all: it is held for a few comparisons, and never while a waiter is told.
//!
//! # Invariants
//!
//! - A parked request has at least one conflict: every removal of a lock looks at the waiters of
//!   the file, in the order in which they came, and grants those that have none left.
//! - A waiter is told exactly once, unless it is cancelled: then never.

use rustc_hash::{FxHashMap, FxHashSet};

use polylane_base::sync::Mutex;
use polylane_base::{Errno, Result};

use super::held::Held;
use super::{LockFamily, LockKind, LockOutcome, LockOwner, LockRequest, LockWaiter, Ticket};

struct Parked {
    ticket: Ticket,
    request: LockRequest,
    tell: LockWaiter,
}

#[derive(Default)]
struct File {
    held: Held,
    parked: Vec<Parked>,
}

#[derive(Default)]
struct State {
    /// By `Inode::id`.
    files: FxHashMap<u64, File>,
    /// Files of parked requests.
    tickets: FxHashMap<Ticket, u64>,
    /// Files on which an owner holds or awaits something. May name more files than that.
    owners: FxHashMap<LockOwner, FxHashSet<u64>>,
    last_ticket: u64,
}

/// Locks of all inodes of one VFS.
#[derive(Default)]
pub(crate) struct LockTable(Mutex<State>);

/// Waiters to be told once the table is unlocked.
type Told = Vec<(LockWaiter, Result<()>)>;

fn tell(told: Told) {
    for (waiter, result) in told {
        waiter(result);
    }
}

impl LockTable {
    pub(crate) fn set(
        &self,
        file: u64,
        request: LockRequest,
        wait: Option<LockWaiter>,
    ) -> LockOutcome {
        let mut told = Told::new();
        let outcome = self.0.lock().set(file, request, wait, &mut told);
        tell(told);
        outcome
    }

    pub(crate) fn get(&self, file: u64, request: &LockRequest) -> Option<LockRequest> {
        let state = self.0.lock();
        state.files.get(&file)?.held.conflicts(request).next().copied()
    }

    pub(crate) fn cancel(&self, ticket: Ticket) -> bool {
        let cancelled = self.0.lock().cancel(ticket);
        cancelled.is_some()
    }

    pub(crate) fn drop_on(&self, file: u64, owner: LockOwner) {
        let mut told = Told::new();
        let open_file = |family| family != LockFamily::Posix;
        self.0.lock().drop_on(file, owner, open_file, &mut told);
        tell(told);
    }

    pub(crate) fn drop_owner(&self, owner: LockOwner) {
        let mut told = Told::new();
        self.0.lock().drop_owner(owner, &mut told);
        tell(told);
    }

    /// The inode ends. Nobody can hold or await a lock on it; what is left is a front end's slip.
    pub(crate) fn forget(&self, file: u64) {
        let mut told = Told::new();
        self.0.lock().forget(file, &mut told);
        tell(told);
    }
}

impl State {
    fn set(
        &mut self,
        id: u64,
        request: LockRequest,
        wait: Option<LockWaiter>,
        told: &mut Told,
    ) -> LockOutcome {
        let file = self.files.entry(id).or_default();
        if file.held.conflicts(&request).next().is_none() {
            file.held.apply(&request);
            if request.kind != LockKind::Unlock {
                self.owners.entry(request.owner).or_default().insert(id);
            }
            self.wake(id, told);
            self.tidy(id, request.owner);
            return LockOutcome::Done(Ok(()));
        }
        if request.family == LockFamily::Flock {
            self.give_up(id, &request, told);
        }
        let Some(waiter) = wait else {
            self.tidy(id, request.owner);
            return LockOutcome::Done(Err(Errno::EAGAIN));
        };
        if request.family == LockFamily::Posix && self.waits_for_itself(id, &request) {
            return LockOutcome::Done(Err(Errno::EDEADLK));
        }
        LockOutcome::Parked(self.park(id, request, waiter))
    }

    /// A flock(2) that changes its kind and finds somebody in the way has let go of the former
    /// lock: the change is not atomic, see flock(2).
    fn give_up(&mut self, id: u64, request: &LockRequest, told: &mut Told) {
        if let Some(file) = self.files.get_mut(&id) {
            file.held.apply(&LockRequest { kind: LockKind::Unlock, ..*request });
        }
        self.wake(id, told);
    }

    fn park(&mut self, id: u64, request: LockRequest, tell: LockWaiter) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.owners.entry(request.owner).or_default().insert(id);
        self.tickets.insert(ticket, id);
        self.files.entry(id).or_default().parked.push(Parked { ticket, request, tell });
        ticket
    }

    /// Whether `request`'s owner, once parked, would wait for a lock of its own: follows, from
    /// every owner in the way, the POSIX requests that this owner has parked.
    fn waits_for_itself(&self, id: u64, request: &LockRequest) -> bool {
        let mut seen = FxHashSet::default();
        let mut todo = vec![(id, *request)];
        while let Some((id, wanted)) = todo.pop() {
            let Some(file) = self.files.get(&id) else { continue };
            for held in file.held.conflicts(&wanted) {
                if held.family != LockFamily::Posix || !seen.insert(held.owner) {
                    continue;
                }
                if held.owner == request.owner {
                    return true;
                }
                todo.extend(self.parked_of(held.owner));
            }
        }
        false
    }

    /// The parked POSIX requests of an owner.
    fn parked_of(&self, owner: LockOwner) -> Vec<(u64, LockRequest)> {
        let files = self.owners.get(&owner).into_iter().flatten();
        files
            .filter_map(|id| self.files.get(id).map(|file| (*id, file)))
            .flat_map(|(id, file)| file.parked.iter().map(move |parked| (id, parked.request)))
            .filter(|(_, wanted)| wanted.owner == owner && wanted.family == LockFamily::Posix)
            .collect()
    }

    /// Grants what can be granted on a file, first come first.
    fn wake(&mut self, id: u64, told: &mut Told) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let mut at = 0;
        while at < file.parked.len() {
            if file.held.conflicts(&file.parked[at].request).next().is_some() {
                at += 1;
                continue;
            }
            let parked = file.parked.remove(at);
            file.held.apply(&parked.request);
            self.tickets.remove(&parked.ticket);
            told.push((parked.tell, Ok(())));
            // A granted lock may replace an exclusive one of its owner by a shared one.
            at = 0;
        }
    }

    fn cancel(&mut self, ticket: Ticket) -> Option<Parked> {
        let id = self.tickets.remove(&ticket)?;
        let file = self.files.get_mut(&id)?;
        let at = file.parked.iter().position(|parked| parked.ticket == ticket)?;
        let parked = file.parked.remove(at);
        self.tidy(id, parked.request.owner);
        Some(parked)
    }

    /// Drops the locks of `owner` on a file, and its parked requests of the families that `ends`
    /// names.
    fn drop_on(
        &mut self,
        id: u64,
        owner: LockOwner,
        ends: impl Fn(LockFamily) -> bool,
        told: &mut Told,
    ) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let mine =
            |parked: &mut Parked| parked.request.owner == owner && ends(parked.request.family);
        for parked in file.parked.extract_if(.., mine) {
            self.tickets.remove(&parked.ticket);
            told.push((parked.tell, Err(Errno::EINTR)));
        }
        if file.held.drop_owner(owner) {
            self.wake(id, told);
        }
        self.tidy(id, owner);
    }

    fn drop_owner(&mut self, owner: LockOwner, told: &mut Told) {
        for id in self.owners.remove(&owner).into_iter().flatten() {
            self.drop_on(id, owner, |_| true, told);
        }
    }

    fn forget(&mut self, id: u64, told: &mut Told) {
        let Some(file) = self.files.remove(&id) else { return };
        for parked in file.parked {
            self.tickets.remove(&parked.ticket);
            told.push((parked.tell, Err(Errno::EINTR)));
        }
        self.owners.retain(|_, files| {
            files.remove(&id);
            !files.is_empty()
        });
    }

    /// Forgets what is empty.
    fn tidy(&mut self, id: u64, owner: LockOwner) {
        let Some(file) = self.files.get(&id) else { return };
        let waits = file.parked.iter().any(|parked| parked.request.owner == owner);
        let holds = file.held.has_owner(owner);
        let empty = file.held.is_empty() && file.parked.is_empty();
        if let Some(files) = self.owners.get_mut(&owner).filter(|_| !waits && !holds) {
            files.remove(&id);
            if files.is_empty() {
                self.owners.remove(&owner);
            }
        }
        if empty {
            self.files.remove(&id);
        }
    }
}
