//! The lock table of one VFS: what is held on which inode, who waits, who would wait for itself.
//!
//! One mutex guards it all: it is held for a few comparisons, and never while a waiter is told.
//!
//! # Invariants
//!
//! - A parked request has at least one conflict: every removal of a lock looks at the waiters of
//!   the file, in the order in which they came, and grants those that have none left.
//! - A waiter is told exactly once, unless it is cancelled: then never.
//! - While the locks of a file are lent, nobody but their owner holds or awaits one that sees them;
//!   who asks for one has the loan ended first. Its number tells a loan from the one before.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

use rustc_hash::{FxHashMap, FxHashSet};

use polylane_base::sync::{Mutex, Weak};
use polylane_base::{Errno, Result, Uid};

use super::held::{Held, UserCounts};
use super::{LockFamily, LockKind, LockLender, LockLoan, LockOutcome, LockOwner, LockRequest};
use super::{LockWaiter, Ticket};

struct Parked {
    request: LockRequest,
    tell: LockWaiter,
}

/// One process keeps its POSIX locks of a file itself; nobody else has any that see them.
struct Lent {
    number: u64,
    owner: LockOwner,
    lender: Weak<dyn LockLender>,
    view: u32,
}

#[derive(Default)]
struct File {
    held: Held,
    /// In the order in which they came.
    parked: BTreeMap<Ticket, Parked>,
    /// How many of these each owner has.
    waiting: FxHashMap<LockOwner, usize>,
    lent: Option<Lent>,
    /// By which open file a process took POSIX locks last, while it does not keep them itself.
    by: FxHashMap<LockOwner, usize>,
}

#[derive(Default)]
struct State {
    /// By `Inode::id`.
    files: FxHashMap<u64, File>,
    /// Files of parked requests.
    tickets: FxHashMap<Ticket, u64>,
    /// Files on which an owner holds or awaits something. May name more files than that.
    owners: FxHashMap<LockOwner, FxHashSet<u64>>,
    counts: UserCounts,
    last_ticket: u64,
    last_loan: u64,
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
        let outcome = loop {
            let mut state = self.0.lock();
            match state.loan_of(file, request.family) {
                None => break state.set(file, request, wait, &mut told),
                Some(loan) => {
                    drop(state);
                    self.end_loan(loan);
                }
            }
        };
        tell(told);
        outcome
    }

    pub(crate) fn get(&self, file: u64, request: &LockRequest) -> Option<LockRequest> {
        loop {
            let state = self.0.lock();
            match state.loan_of(file, request.family) {
                None => return state.files.get(&file)?.held.first_conflict(request).copied(),
                Some(loan) => {
                    drop(state);
                    self.end_loan(loan);
                }
            }
        }
    }

    /// Lends `owner` the POSIX locks of a file, if it is alone with them and `begin`, which is told
    /// what it holds, says so.
    pub(crate) fn lend(
        &self,
        file: u64,
        owner: LockOwner,
        (lender, view): (Weak<dyn LockLender>, u32),
        begin: &mut dyn FnMut(LockLoan, &[LockRequest]) -> bool,
    ) {
        let mut state = self.0.lock();
        let number = state.last_loan + 1;
        let Some(place) = state.files.get_mut(&file) else { return };
        if place.lent.is_some() || !place.parked.is_empty() {
            return;
        }
        let Some(held) = place.held.only_of(owner) else { return };
        if begin(LockLoan { file, number }, &held) {
            place.lent = Some(Lent { number, owner, lender, view });
            place.by.clear();
            state.last_loan = number;
            state.owners.entry(owner).or_default().insert(file);
        }
    }

    /// A loan is over: these are the locks that its owner has. Nothing if it was over before.
    pub(crate) fn take_back(&self, loan: LockLoan, locks: &[LockRequest]) {
        let mut guard = self.0.lock();
        let state = &mut *guard;
        let Some(file) = state.files.get_mut(&loan.file) else { return };
        let Some(lent) = file.lent.take_if(|lent| lent.number == loan.number) else { return };
        let whole = LockRequest {
            owner: lent.owner,
            family: LockFamily::Posix,
            kind: LockKind::Unlock,
            start: 0,
            end: u64::MAX,
            pid: 0,
            user: None,
        };
        let mut apply = |lock: &LockRequest| {
            // Without a limit it cannot fail: what was lent is held.
            let _ = file.held.apply(lock, &mut state.counts, false);
        };
        apply(&whole);
        let own = |lock: &&LockRequest| {
            lock.owner == lent.owner && lock.family == LockFamily::Posix && lock.start <= lock.end
        };
        locks.iter().filter(own).for_each(apply);
        state.tidy(loan.file, lent.owner);
        drop(guard);
        drop(lent);
    }

    /// Has a loan ended by whom it was made for. Call without locks.
    fn end_loan(&self, (loan, lender, view): (LockLoan, Weak<dyn LockLender>, u32)) {
        if let Some(lender) = lender.upgrade() {
            lender.end_lock_loan(view);
        }
        // Its session is gone without a word, and the process with it.
        self.take_back(loan, &[]);
    }

    /// Has all loans ended. Call without locks.
    pub(crate) fn end_loans(&self) {
        let state = self.0.lock();
        let loans: Vec<_> = state.files.iter().filter_map(|(id, file)| file.loan(*id)).collect();
        drop(state);
        loans.into_iter().for_each(|loan| self.end_loan(loan));
    }

    /// Writes down what the file system granted, or takes back, whatever else is held.
    ///
    /// # Errors
    /// `ENOLCK`: it is more than its user may have.
    pub(super) fn record(&self, file: u64, request: &LockRequest) -> Result<()> {
        let mut guard = self.0.lock();
        let state = &mut *guard;
        let place = state.files.entry(file).or_default();
        let applied = place.held.apply(request, &mut state.counts, true).map(drop);
        if applied.is_ok() && request.kind != LockKind::Unlock {
            state.owners.entry(request.owner).or_default().insert(file);
        }
        state.tidy(file, request.owner);
        applied
    }

    /// Whether [`record`](Self::record) of what the file system may grant would find room.
    ///
    /// # Errors
    /// `ENOLCK`: it is more than its user may have.
    pub(super) fn check(&self, file: u64, request: &LockRequest) -> Result<()> {
        let state = self.0.lock();
        match state.files.get(&file) {
            Some(file) => file.held.check(request, &state.counts),
            None => state.counts.check(request.user, 1),
        }
    }

    /// A request waits outside of the table: it counts as one of its user's. `ENOLCK`: the user has
    /// too many.
    pub(super) fn begin_wait(&self, user: Option<Uid>) -> Result<()> {
        let mut state = self.0.lock();
        state.counts.check(user, 1)?;
        state.counts.add(user);
        Ok(())
    }

    /// It waits no longer.
    pub(super) fn end_wait(&self, user: Option<Uid>) {
        self.0.lock().counts.remove(user);
    }

    /// What the owner of a request holds in its range, cut to it, by start.
    pub(super) fn held_in(&self, file: u64, request: &LockRequest) -> Vec<LockRequest> {
        let state = self.0.lock();
        state.files.get(&file).map(|file| file.held.held_in(request)).unwrap_or_default()
    }

    /// Whether `owner` holds a lock on a file.
    pub(super) fn has_owner(&self, file: u64, owner: LockOwner) -> bool {
        self.0.lock().files.get(&file).is_some_and(|file| file.held.has_owner(owner))
    }

    /// The files on which `owner` holds a lock.
    pub(super) fn files_of(&self, owner: LockOwner) -> Vec<u64> {
        let state = self.0.lock();
        state.owners.get(&owner).into_iter().flatten().copied().collect()
    }

    pub(crate) fn cancel(&self, ticket: Ticket) -> bool {
        let cancelled = self.0.lock().cancel(ticket);
        cancelled.is_some()
    }

    pub(crate) fn drop_on(&self, file: u64, owner: LockOwner) {
        let mut told = Told::new();
        let open_file = |family| family != LockFamily::Posix;
        loop {
            let mut state = self.0.lock();
            match state.loan_to(file, owner) {
                None => break state.drop_on(file, owner, open_file, &mut told),
                Some(loan) => {
                    drop(state);
                    self.end_loan(loan);
                }
            }
        }
        tell(told);
    }

    /// A process took a POSIX lock by this open file.
    pub(crate) fn note(&self, file: u64, owner: LockOwner, by: usize) {
        if let Some(file) = self.0.lock().files.get_mut(&file) {
            file.by.insert(owner, by);
        }
    }

    /// An open file ends: who took POSIX locks by it last. They are named once.
    pub(crate) fn take_noted(&self, file: u64, by: usize) -> Vec<LockOwner> {
        let mut state = self.0.lock();
        let Some(file) = state.files.get_mut(&file) else { return Vec::new() };
        file.by.extract_if(|_, other| *other == by).map(|(owner, _)| owner).collect()
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

impl File {
    /// The loan of its locks, and who ends it.
    fn loan(&self, file: u64) -> Option<(LockLoan, Weak<dyn LockLender>, u32)> {
        let lent = self.lent.as_ref()?;
        Some((LockLoan { file, number: lent.number }, lent.lender.clone(), lent.view))
    }

    fn park(&mut self, ticket: Ticket, parked: Parked) {
        *self.waiting.entry(parked.request.owner).or_default() += 1;
        self.parked.insert(ticket, parked);
    }

    fn unpark(&mut self, ticket: Ticket) -> Option<Parked> {
        let parked = self.parked.remove(&ticket)?;
        let owner = parked.request.owner;
        if let Some(count) = self.waiting.get_mut(&owner) {
            *count -= 1;
            if *count == 0 {
                self.waiting.remove(&owner);
            }
        }
        Some(parked)
    }

    /// The parked requests of an owner, in the order in which they came.
    fn parked_of(&self, owner: LockOwner) -> impl Iterator<Item = (Ticket, &LockRequest)> {
        let count = self.waiting.get(&owner).copied().unwrap_or(0);
        let own = self.parked.iter().map(|(ticket, parked)| (*ticket, &parked.request));
        own.filter(move |(_, request)| request.owner == owner).take(count)
    }
}

impl State {
    /// The loan that must end before a request of that family.
    fn loan_of(
        &self,
        id: u64,
        family: LockFamily,
    ) -> Option<(LockLoan, Weak<dyn LockLender>, u32)> {
        self.files.get(&id).filter(|_| family != LockFamily::Flock)?.loan(id)
    }

    /// The loan to that owner.
    fn loan_to(&self, id: u64, owner: LockOwner) -> Option<(LockLoan, Weak<dyn LockLender>, u32)> {
        let file = self.files.get(&id)?;
        file.lent.as_ref().filter(|lent| lent.owner == owner)?;
        file.loan(id)
    }

    fn set(
        &mut self,
        id: u64,
        request: LockRequest,
        wait: Option<LockWaiter>,
        told: &mut Told,
    ) -> LockOutcome {
        let file = self.files.entry(id).or_default();
        if file.held.first_conflict(&request).is_none() {
            let makes_room = match file.held.apply(&request, &mut self.counts, true) {
                Ok(makes_room) => makes_room,
                Err(errno) => {
                    self.tidy(id, request.owner);
                    return LockOutcome::Done(Err(errno));
                }
            };
            if request.kind != LockKind::Unlock {
                self.owners.entry(request.owner).or_default().insert(id);
            }
            if makes_room {
                self.wake(id, told);
            }
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
        if let Err(errno) = self.counts.check(request.user, 1) {
            return LockOutcome::Done(Err(errno));
        }
        LockOutcome::Parked(self.park(id, request, waiter))
    }

    /// A flock(2) that changes its kind and finds somebody in the way has let go of the former
    /// lock: the change is not atomic, see flock(2).
    fn give_up(&mut self, id: u64, request: &LockRequest, told: &mut Told) {
        if let Some(file) = self.files.get_mut(&id) {
            let unlock = LockRequest { kind: LockKind::Unlock, ..*request };
            // A whole lock that goes leaves nothing behind that could be one too many.
            let _ = file.held.apply(&unlock, &mut self.counts, false);
        }
        self.wake(id, told);
    }

    fn park(&mut self, id: u64, request: LockRequest, tell: LockWaiter) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.owners.entry(request.owner).or_default().insert(id);
        self.tickets.insert(ticket, id);
        self.counts.add(request.user);
        self.files.entry(id).or_default().park(ticket, Parked { request, tell });
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
            .flat_map(|(id, file)| file.parked_of(owner).map(move |(_, request)| (id, *request)))
            .filter(|(_, wanted)| wanted.family == LockFamily::Posix)
            .collect()
    }

    /// Grants what can be granted on a file, first come first.
    fn wake(&mut self, id: u64, told: &mut Told) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let mut next = file.parked.keys().next().copied();
        while let Some(ticket) = next {
            next = file.parked.range((Excluded(ticket), Unbounded)).next().map(|(next, _)| *next);
            let waits = |parked: &Parked| file.held.first_conflict(&parked.request).is_some();
            if file.parked.get(&ticket).is_none_or(waits) {
                continue;
            }
            let Some(parked) = file.unpark(ticket) else { continue };
            self.counts.remove(parked.request.user);
            let granted = file.held.apply(&parked.request, &mut self.counts, true);
            self.tickets.remove(&ticket);
            if granted == Ok(true) {
                // It replaced an exclusive lock of its owner by a shared one.
                next = file.parked.keys().next().copied();
            }
            told.push((parked.tell, granted.map(drop)));
        }
    }

    fn cancel(&mut self, ticket: Ticket) -> Option<Parked> {
        let id = self.tickets.remove(&ticket)?;
        let file = self.files.get_mut(&id)?;
        let parked = file.unpark(ticket)?;
        self.counts.remove(parked.request.user);
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
        file.by.remove(&owner);
        let own = file.parked_of(owner).filter(|(_, request)| ends(request.family));
        for ticket in own.map(|(ticket, _)| ticket).collect::<Vec<_>>() {
            let Some(parked) = file.unpark(ticket) else { continue };
            self.tickets.remove(&ticket);
            self.counts.remove(parked.request.user);
            told.push((parked.tell, Err(Errno::EINTR)));
        }
        // Its own: the process is gone.
        let gone = file.lent.take_if(|lent| lent.owner == owner);
        if file.held.drop_owner(owner, &mut self.counts) {
            self.wake(id, told);
        }
        self.tidy(id, owner);
        drop(gone);
    }

    fn drop_owner(&mut self, owner: LockOwner, told: &mut Told) {
        for id in self.owners.remove(&owner).into_iter().flatten() {
            self.drop_on(id, owner, |_| true, told);
        }
    }

    fn forget(&mut self, id: u64, told: &mut Told) {
        let Some(file) = self.files.remove(&id) else { return };
        file.held.uncount(&mut self.counts);
        for (ticket, parked) in file.parked {
            self.tickets.remove(&ticket);
            self.counts.remove(parked.request.user);
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
        let waits = file.waiting.contains_key(&owner);
        let lent = file.lent.as_ref().is_some_and(|lent| lent.owner == owner);
        let holds = lent || file.held.has_owner(owner);
        let empty = file.held.is_empty() && file.parked.is_empty() && file.lent.is_none();
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
