//! Locks that other hosts see: the file system decides about each, and a request that waits is
//! asked for again.
//!
//! The table keeps what was granted, so that it is known what ends with a process or an open file.
//! Locks are asked for below first and written down then; what is given up is struck out first. So
//! no owner is granted what the table still has as another's.
//!
//! The file system does not tell of a lock that ends on another host: up to [`ASKERS_MAX`] threads
//! ask for what is waited for, each file by one of them, every [`PERIOD_MAX`] at the latest.
//! Requests that would wait for themselves are not found.
//!
//! # Locking
//!
//! `turn of a file → state → table`. A file's turn is held while the file system is asked about its
//! locks, which takes as long as the cluster does; it keeps the table's order of changes the same
//! as the cluster's. `state` and the table are never held then: a file whose answer does not come
//! holds up requests for that file alone, and none that parks, cancels or interrupts.
//!
//! A request that was granted stops to wait and is written down under one lock of `state`: an owner
//! that ends finds either the request or the lock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use polylane_base::sync::{Arc, Condvar, Mutex, thread};
use polylane_base::{Errno, Ino, Result};
use rustc_hash::FxHashMap;

use super::{LockFamily, LockKind, LockOutcome, LockOwner, LockRequest, LockWaiter, Ticket};
use crate::core::Core;
use crate::fs::{Kind, SharedLocks};
use crate::inode::{Inode, Node};

/// Between two questions for the locks of a file: twice as long each time.
const PERIOD_MIN: Duration = Duration::from_millis(2);
/// The longest.
const PERIOD_MAX: Duration = Duration::from_millis(100);

/// Most threads that ask: a cluster that answers needs one.
const ASKERS_MAX: usize = 4;

/// Set in tickets of requests that wait in here.
const OWN_TICKET: u64 = 1 << 63;

/// What waits for locks of other hosts. Empty where the file system shares none.
#[derive(Default)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Rung when a file is to be asked about earlier than was known.
    bell: Condvar,
}

#[derive(Default)]
struct State {
    /// Files with locks or waiting requests, by `Inode::id`.
    files: FxHashMap<u64, File>,
    /// The files of requests that wait.
    tickets: FxHashMap<Ticket, u64>,
    /// When which file is to be asked about; not those that a thread asks about now.
    queue: BTreeSet<(Instant, u64)>,
    last: u64,
    /// Threads that ask.
    askers: usize,
    /// Those of them that are at a file.
    busy: usize,
}

struct File {
    ino: Ino,
    turn: Arc<Mutex<()>>,
    /// In the order in which they came.
    waiting: BTreeMap<Ticket, Waiting>,
    /// Its place in the queue.
    due: Option<Instant>,
    period: Duration,
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
    let turn = core.shared_locks.turn(node);
    let turn = turn.lock();
    if request.kind == LockKind::Unlock {
        core.locks.record(node.id, request)?;
        let ended = below.set(node.ino(), request);
        drop(turn);
        core.shared_locks.ring(node.id);
        return ended;
    }
    core.locks.check(node.id, request)?;
    let answer = below.set(node.ino(), request);
    if answer == Err(Errno::EAGAIN) && request.family == LockFamily::Flock {
        give_up_other_kind(core, below, node, request.owner);
    }
    answer?;
    let recorded = core.locks.record(node.id, request);
    recorded.inspect_err(|_| undo(core, below, node, request))
}

/// A flock(2) that changes its kind and finds another lock in the way has let go of the former
/// lock: see flock(2). Otherwise two readers that want to write would wait for each other.
fn give_up_other_kind(core: &Core, below: &dyn SharedLocks, node: &Node, owner: LockOwner) {
    let all = nothing(owner, LockFamily::Flock);
    if core.locks.held_in(node.id, &all).is_empty() {
        return;
    }
    if core.locks.record(node.id, &all).is_ok() {
        // The other side lets go of what is left when the session ends.
        let _ = below.set(node.ino(), &all);
        core.shared_locks.ring(node.id);
    }
}

/// A lock was granted that its owner does not get: the user has too many, or the request was
/// cancelled meanwhile. The owner keeps what the table has. Call with the file's turn.
fn undo(core: &Core, below: &dyn SharedLocks, node: &Node, request: &LockRequest) {
    let mut from = Some(request.start);
    for held in core.locks.held_in(node.id, request) {
        if let (Some(start), Some(end)) = (from, held.start.checked_sub(1))
            && start <= end
        {
            give_back(below, node, &LockRequest { start, end, ..*request });
        }
        from = held.end.checked_add(1);
        if below.set(node.ino(), &held).is_err() {
            // A shared lock in place of an exclusive one: that is what the owner has then.
            let _ = core.locks.record(node.id, &LockRequest { kind: request.kind, ..held });
        }
    }
    if let Some(start) = from.filter(|&start| start <= request.end) {
        give_back(below, node, &LockRequest { start, ..*request });
    }
}

fn give_back(below: &dyn SharedLocks, node: &Node, range: &LockRequest) {
    // The other side lets go of it when the session ends, too.
    let _ = below.set(node.ino(), &LockRequest { kind: LockKind::Unlock, ..*range });
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
    core.shared_locks.interrupt(core, |waiting| {
        waiting.request.owner == owner
            && waiting.node.id == inode.id
            && waiting.request.family != LockFamily::Posix
    });
    match below(core, inode) {
        Some(below) => give_up(core, below, (inode.id, inode.ino()), owner),
        None => core.locks.drop_on(inode.id, owner),
    }
}

/// Drops every lock of `owner` on all files.
pub(super) fn drop_owner(core: &Core, owner: LockOwner) {
    // First: what it waits for may be granted until then.
    core.shared_locks.interrupt(core, |waiting| waiting.request.owner == owner);
    if let Some(below) = core.fs.shared_locks() {
        for id in core.locks.files_of(owner) {
            let ino = core.shared_locks.state.lock().files.get(&id).map(|file| file.ino);
            if let Some(ino) = ino {
                give_up(core, below, (id, ino), owner);
            }
        }
    }
    core.locks.drop_owner(owner);
}

/// Strikes out what an owner has on a file, then lets go of it below.
fn give_up(core: &Core, below: &dyn SharedLocks, (id, ino): (u64, Ino), owner: LockOwner) {
    if !core.locks.has_owner(id, owner) {
        return core.locks.drop_on(id, owner);
    }
    let turn = core.shared_locks.state.lock().files.get(&id).map(|file| file.turn.clone());
    let turn = turn.as_ref().map(|turn| turn.lock());
    core.locks.drop_on(id, owner);
    for family in [LockFamily::Posix, LockFamily::Ofd, LockFamily::Flock] {
        // The other side lets go of what is left when the session ends.
        let _ = below.set(ino, &nothing(owner, family));
    }
    drop(turn);
    core.shared_locks.ring(id);
}

impl Shared {
    /// The turn of a file.
    fn turn(&self, node: &Node) -> Arc<Mutex<()>> {
        self.state.lock().file(node).turn.clone()
    }

    /// A lock of a file ended in here: who waits for it is asked for at once.
    fn ring(&self, id: u64) {
        let mut state = self.state.lock();
        let Some(file) = state.files.get_mut(&id) else { return };
        file.period = PERIOD_MIN;
        if file.due.is_some() {
            state.queue(id, Instant::now());
            drop(state);
            self.bell.notify_one();
        }
    }

    /// The inode ends.
    pub(crate) fn forget(&self, id: u64) {
        let mut state = self.state.lock();
        state.take_off_queue(id);
        let gone = state.files.remove(&id);
        drop(state);
        drop(gone);
    }

    /// Takes back a request that waits here.
    pub(super) fn cancel(&self, core: &Core, ticket: Ticket) -> bool {
        let found = self.state.lock().take(ticket);
        if let Some(waiting) = &found {
            core.locks.end_wait(waiting.request.user);
        }
        found.is_some()
    }

    /// Ends what waits and is `meant`, with `EINTR`.
    fn interrupt(&self, core: &Core, meant: impl Fn(&Waiting) -> bool) {
        let mut state = self.state.lock();
        let is_meant = |(ticket, id): (&Ticket, &u64)| {
            let waiting = state.files.get(id)?.waiting.get(ticket)?;
            meant(waiting).then_some(*ticket)
        };
        let tickets: Vec<_> = state.tickets.iter().filter_map(is_meant).collect();
        let ended: Vec<_> = tickets.iter().filter_map(|ticket| state.take(*ticket)).collect();
        drop(state);
        for waiting in ended {
            core.locks.end_wait(waiting.request.user);
            (waiting.tell)(Err(Errno::EINTR));
        }
    }

    fn park(
        &self,
        core: &Arc<Core>,
        node: &Node,
        request: LockRequest,
        tell: LockWaiter,
    ) -> LockOutcome {
        if let Err(errno) = core.locks.begin_wait(request.user) {
            return LockOutcome::Done(Err(errno));
        }
        let mut state = self.state.lock();
        state.last += 1;
        let ticket = Ticket(OWN_TICKET | state.last);
        state.tickets.insert(ticket, node.id);
        let file = state.file(node);
        let is_asked_about = !file.waiting.is_empty();
        file.waiting.insert(ticket, Waiting { node: node.clone(), request, tell });
        if !is_asked_about {
            file.period = PERIOD_MIN;
            state.queue(node.id, Instant::now() + PERIOD_MIN);
        }
        if let Err(errno) = state.staff(core) {
            let waiting = state.take(ticket);
            drop(state);
            core.locks.end_wait(request.user);
            drop(waiting);
            return LockOutcome::Done(Err(errno));
        }
        drop(state);
        self.bell.notify_one();
        LockOutcome::Parked(ticket)
    }

    /// Asks for what is waited for, file by file, until no file is in the queue.
    fn keep_asking(&self, core: &Arc<Core>) {
        let Some(below) = core.fs.shared_locks() else { return };
        let mut state = self.state.lock();
        loop {
            let Some((due, id)) = state.queue.first().copied() else {
                state.askers -= 1;
                return;
            };
            let now = Instant::now();
            if due > now {
                let is_first = |state: &mut State| state.queue.first() == Some(&(due, id));
                (state, _) = self.bell.wait_timeout_while(state, due - now, is_first);
                continue;
            }
            let asked = state.take_up(id);
            // The others would otherwise wait for this file's answer, too.
            let _ = state.staff(core);
            drop(state);
            let is_any_granted = self.ask_for(core, below, &asked);
            drop(asked);
            state = self.state.lock();
            state.put_down(id, is_any_granted);
        }
    }

    /// Asks for the requests that wait for one file, in their order; whether any was answered.
    fn ask_for(
        &self,
        core: &Core,
        below: &dyn SharedLocks,
        asked: &[(Ticket, Node, LockRequest)],
    ) -> bool {
        let mut is_any_answered = false;
        for (ticket, node, request) in asked {
            let turn = self.turn(node);
            let turn = turn.lock();
            if !self.state.lock().tickets.contains_key(ticket) {
                continue;
            }
            let answer = below.set(node.ino(), request);
            if answer == Err(Errno::EAGAIN) {
                continue;
            }
            let mut state = self.state.lock();
            let waiting = state.take(*ticket);
            let recorded = waiting.as_ref().map(|_| {
                core.locks.end_wait(request.user);
                answer.and_then(|()| core.locks.record(node.id, request))
            });
            drop(state);
            // It was cancelled meanwhile, or its user has too many.
            if answer.is_ok() && recorded != Some(Ok(())) {
                undo(core, below, node, request);
            }
            let answer = recorded.unwrap_or(answer);
            drop(turn);
            if let Some(waiting) = waiting {
                is_any_answered = true;
                (waiting.tell)(answer);
            }
        }
        is_any_answered
    }
}

impl State {
    fn file(&mut self, node: &Node) -> &mut File {
        self.files.entry(node.id).or_insert_with(|| File {
            ino: node.ino(),
            turn: Arc::default(),
            waiting: BTreeMap::new(),
            due: None,
            period: PERIOD_MIN,
        })
    }

    /// Takes a request out, and its file off the queue if no other waits for it.
    fn take(&mut self, ticket: Ticket) -> Option<Waiting> {
        let id = self.tickets.remove(&ticket)?;
        let file = self.files.get_mut(&id)?;
        let waiting = file.waiting.remove(&ticket)?;
        if file.waiting.is_empty() {
            self.take_off_queue(id);
        }
        Some(waiting)
    }

    fn queue(&mut self, id: u64, due: Instant) {
        self.take_off_queue(id);
        if let Some(file) = self.files.get_mut(&id) {
            file.due = Some(due);
            self.queue.insert((due, id));
        }
    }

    fn take_off_queue(&mut self, id: u64) {
        if let Some(due) = self.files.get_mut(&id).and_then(|file| file.due.take()) {
            self.queue.remove(&(due, id));
        }
    }

    /// A thread is at a file now: what waits for it.
    fn take_up(&mut self, id: u64) -> Vec<(Ticket, Node, LockRequest)> {
        self.take_off_queue(id);
        self.busy += 1;
        let waiting = self.files.get(&id).into_iter().flat_map(|file| &file.waiting);
        waiting.map(|(ticket, it)| (*ticket, it.node.clone(), it.request)).collect()
    }

    /// It has asked; the file is to be asked about again if anything still waits.
    fn put_down(&mut self, id: u64, is_any_granted: bool) {
        self.busy -= 1;
        let Some(file) = self.files.get_mut(&id).filter(|file| !file.waiting.is_empty()) else {
            return;
        };
        let period = if is_any_granted { PERIOD_MIN } else { file.period };
        file.period = (period * 2).min(PERIOD_MAX);
        if file.due.is_none() {
            self.queue(id, Instant::now() + period);
        }
    }

    /// Sees to it that a thread is free for what is in the queue. `ENOLCK`: there is none at all.
    fn staff(&mut self, core: &Arc<Core>) -> Result<()> {
        if self.queue.is_empty() || self.askers > self.busy || self.askers >= ASKERS_MAX {
            return Ok(());
        }
        let core = core.clone();
        let begun = thread::Builder::new().name("lock-wait".to_string());
        match begun.spawn(move || core.shared_locks.keep_asking(&core)) {
            Ok(_) => self.askers += 1,
            Err(_) if self.askers > 0 => {}
            Err(_) => return Err(Errno::ENOLCK),
        }
        Ok(())
    }
}
