//! File locks, and the interruption of those who wait for one.
//!
//! A waiting lock holds no thread: the file door parks it, and whoever makes room sends the reply.
//! The kernel may interrupt a wait at any moment, also before it was parked:
//!
//! ```text
//!   SETLKW ── enter ──► Entered ── set_lock: parked ──► Parked(ticket) ── granted ──► gone, reply
//!                          │ INTERRUPT                      │ INTERRUPT
//!                          ▼                                ▼
//!                     Interrupted ── parked ──────────► cancel ──► gone, reply EINTR
//! ```
//!
//! # Invariants
//!
//! - Whoever takes a wait out of [`Waits`] replies; nobody else does.
//! - An INTERRUPT that overtakes its request is remembered, in a bounded list.
//!
//! # Locking
//!
//! `Waits::state` is a leaf; no reply is sent and no lock of the file door taken under it.

use std::collections::{BTreeMap, VecDeque};

use polylane_base::sync::{Arc, Mutex};
use polylane_base::{Errno, Result, Uid};
use polylane_vfs::handover::InFlight;
use polylane_vfs::{LockFamily, LockKind, LockOutcome, LockOwner, LockRequest, OpenFile, Ticket};

use super::ops::{Call, End, Exit, Outcome};
use super::protocol::LK_FLOCK;
use super::request::LockIn;
use super::session::Session;
use crate::kept::{self, Given, Whose};

/// The kernel's `OFFSET_MAX`: to the end of the file, however far it grows.
const OFFSET_MAX: u64 = i64::MAX as u64;
/// Interrupts remembered that came before their requests. The two are read microseconds apart, by
/// at most a few threads.
const EARLY_MAX: usize = 64;

/// A process's locks, as the kernel scrambled the process.
fn posix_owner(owner: u64) -> LockOwner {
    LockOwner(KERNELS | u128::from(owner))
}

/// High bits of the owners that the kernel names.
const KERNELS: u128 = 0xF05E << 112;

/// Whether a lock came through the kernel.
pub(crate) fn is_kernels(owner: LockOwner) -> bool {
    owner.0 & KERNELS == KERNELS
}

enum Wait {
    Entered,
    Parked(Ticket),
    Interrupted,
}

#[derive(Default)]
struct WaitState {
    waits: BTreeMap<u64, Wait>,
    early: VecDeque<u64>,
    /// They are the next service's.
    left: bool,
}

/// The lock requests of one session that wait, by their unique number. Thread-safe.
#[derive(Default)]
pub(super) struct Waits {
    state: Mutex<WaitState>,
    /// Where the next service finds the oldest of them.
    in_flight: Option<Arc<InFlight>>,
}

impl Waits {
    pub(super) fn new(in_flight: Option<Arc<InFlight>>) -> Waits {
        Waits { in_flight, ..Waits::default() }
    }

    /// Writes down the oldest.
    fn tell(&self, state: &WaitState) {
        if let Some(in_flight) = self.in_flight.as_ref().filter(|_| !state.left) {
            in_flight.waits_since(state.waits.keys().next().copied());
        }
    }

    /// A request is about to wait.
    fn enter(&self, unique: u64) {
        let mut state = self.state.lock();
        let before = state.early.len();
        state.early.retain(|early| *early != unique);
        let interrupted = state.early.len() < before;
        state.waits.insert(unique, if interrupted { Wait::Interrupted } else { Wait::Entered });
        self.tell(&state);
    }

    /// A request was parked. True when it must be cancelled now.
    fn park(&self, unique: u64, ticket: Ticket) -> bool {
        match self.state.lock().waits.get_mut(&unique) {
            Some(wait @ Wait::Entered) => {
                *wait = Wait::Parked(ticket);
                false
            }
            Some(Wait::Interrupted) => true,
            Some(Wait::Parked(_)) | None => false,
        }
    }

    /// A request ends. False when it has ended already.
    fn leave(&self, unique: u64) -> bool {
        let mut state = self.state.lock();
        let was_there = state.waits.remove(&unique).is_some();
        self.tell(&state);
        was_there
    }

    /// Leaves them all to the next service, unanswered: locks that this one's end sets free are not
    /// theirs.
    pub(super) fn leave_all(&self) {
        let mut state = self.state.lock();
        state.left = true;
        state.waits.clear();
    }

    /// The kernel interrupts a request: the ticket to cancel, if there is one yet.
    fn interrupt(&self, unique: u64) -> Option<Ticket> {
        let mut state = self.state.lock();
        match state.waits.get_mut(&unique) {
            Some(Wait::Parked(ticket)) => return Some(*ticket),
            Some(wait) => *wait = Wait::Interrupted,
            None => {
                if state.early.len() == EARLY_MAX {
                    state.early.pop_front();
                }
                state.early.push_back(unique);
            }
        }
        None
    }
}

impl Call<'_> {
    /// Who a POSIX lock of this request belongs to.
    pub(super) fn posix_owner(&self, owner: u64) -> LockOwner {
        posix_owner(owner)
    }

    /// flock(2) locks belong to the open file, whichever door they come through. `F_OFD_SETLK`
    /// cannot be told from `F_SETLK`: the kernel sends an owner of its own per open file, and that
    /// is enough.
    fn lock_request(&self, lock: &LockIn, file: &OpenFile) -> Result<LockRequest> {
        let flock = lock.flags & LK_FLOCK != 0;
        let kind = match lock.kind as i32 {
            libc::F_RDLCK => LockKind::Read,
            libc::F_WRLCK => LockKind::Write,
            libc::F_UNLCK => LockKind::Unlock,
            _ => return Err(Errno::EINVAL),
        };
        let (owner, family) = match flock {
            true => (file.lock_owner(LockFamily::Flock), LockFamily::Flock),
            false => (self.posix_owner(lock.owner), LockFamily::Posix),
        };
        let end = if lock.end >= OFFSET_MAX { u64::MAX } else { lock.end };
        if lock.start > end {
            return Err(Errno::EINVAL);
        }
        let (start, user) = (lock.start, Some(Uid(self.header.uid)));
        Ok(LockRequest { owner, family, kind, start, end, pid: lock.pid, user })
    }
}

/// No process has this number in any namespace.
const NO_PROCESS: u32 = 0;

pub(super) fn getlk(call: &mut Call<'_>) -> End {
    let lock = LockIn::read(&mut call.args)?;
    let (_, file) = call.lockable(lock.fh)?;
    let request = call.lock_request(&lock, &file)?;
    let found = call.session.lane.vfs.get_lock(file.node(), &request);
    let (start, end, kind, pid) = match found {
        None => (lock.start, lock.end, libc::F_UNLCK, NO_PROCESS),
        Some(other) => {
            // An open file's. The kernel makes of it what it makes of processes that the asker
            // cannot see, 0: that it is an open file's, -1, cannot be said.
            let pid = if other.family == LockFamily::Ofd { NO_PROCESS } else { other.pid };
            (other.start, other.end.min(OFFSET_MAX), kind_number(other.kind), pid)
        }
    };
    call.out.u64(start).u64(end).u32(kind as u32).u32(pid);
    Ok(Outcome::Reply)
}

fn kind_number(kind: LockKind) -> i32 {
    match kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    }
}

pub(super) fn setlk(call: &mut Call<'_>, wait: bool) -> End {
    let lock = LockIn::read(&mut call.args)?;
    let (handle, file) = call.lockable(lock.fh)?;
    let request = call.lock_request(&lock, &file)?;
    let whose = match request.family {
        LockFamily::Flock => Whose::Flock { fh: lock.fh },
        _ => Whose::Posix { node_id: handle.node_id, owner: lock.owner },
    };
    let LockRequest { start, end, kind, pid, .. } = request;
    let given = Given { whose, by: lock.fh, start, end, kind, pid };
    match wait && request.kind != LockKind::Unlock {
        true => wait_for(call, &file, request, given),
        false => set_now(call, &file, request, given),
    }
}

/// A lock was given. What its owner has on the file goes with the open file by which it locked
/// last: for POSIX locks that is nothing (FLUSH took them), for those of open file descriptions
/// there is no other sign. RELEASE may come when an owner of the same number has locked by the next
/// open file: the process itself, or a description where the former one lay in the kernel's memory.
fn note(file: &OpenFile, request: &LockRequest) {
    if request.family == LockFamily::Posix && request.kind != LockKind::Unlock {
        file.note_locker(request.owner);
    }
}

impl Session {
    /// Sets a lock again that a former service gave. False: it cannot be.
    pub(super) fn lock_again(&self, given: &Given) -> bool {
        let Some((file, owner, family)) = self.holder(given) else { return false };
        let Given { whose, start, end, kind, pid, .. } = *given;
        // It was within its user's limit when it was given.
        let request = LockRequest { owner, family, kind, start, end, pid, user: None };
        let outcome = self.lane.vfs.set_lock(file.node(), request, None);
        let given = matches!(outcome, LockOutcome::Done(Ok(())));
        if given && matches!(whose, Whose::Posix { .. }) {
            note(&file, &request);
        }
        given
    }

    /// The open file by which a former service gave a lock, and who has it now.
    fn holder(&self, given: &Given) -> Option<(Arc<OpenFile>, LockOwner, LockFamily)> {
        let of_kernel = || self.handles.get(given.by);
        let handover = self.lane.handover.as_ref()?;
        match given.whose {
            Whose::Flock { .. } => {
                let file = of_kernel().ok()?.file().ok()?;
                let owner = file.lock_owner(LockFamily::Flock);
                Some((file, owner, LockFamily::Flock))
            }
            Whose::Posix { owner, .. } => {
                let file = of_kernel().ok()?.file().ok()?;
                Some((file, posix_owner(owner), LockFamily::Posix))
            }
            Whose::Process { process, .. } => {
                let owner = kept::process_owner(process);
                handover.lives(process).then_some(())?;
                Some((handover.reopened(given.by)?, owner, LockFamily::Posix))
            }
            Whose::File { tag, flock } => {
                let file = handover.reopened(tag)?;
                let family = if flock { LockFamily::Flock } else { LockFamily::Ofd };
                self.lane.kept.follow(&file)?;
                let owner = file.lock_owner(family);
                Some((file, owner, family))
            }
        }
    }
}

/// A refusal is not final before the RELEASE of every descriptor that is closed already is done:
/// the locks of flock(2) and of open file descriptions, which the kernel sends as POSIX locks of an
/// owner of their own, end with it. The thread that may wait asks again after that.
fn set_now(call: &Call<'_>, file: &OpenFile, request: LockRequest, given: Given) -> End {
    let lane = &call.session.lane;
    if call.deferred {
        lane.progress.settle_read();
    }
    match lane.vfs.set_lock(file.node(), request, None) {
        LockOutcome::Done(Err(Errno::EAGAIN)) if !call.deferred => Err(Exit::Defer),
        LockOutcome::Done(result) => {
            result?;
            note(file, &request);
            call.session.lane.kept.set(given);
            Ok(Outcome::Reply)
        }
        // Never without a waiter.
        LockOutcome::Parked(_) => Ok(Outcome::Silent),
    }
}

fn wait_for(call: &Call<'_>, file: &Arc<OpenFile>, request: LockRequest, given: Given) -> End {
    let (unique, vfs) = (call.header.unique, &call.session.lane.vfs);
    let kept = call.session.lane.kept.clone();
    let (waits, device) = (call.session.waits.clone(), call.session.device.clone());
    waits.enter(unique);
    let by = Arc::downgrade(file);
    let granted = Box::new(move |result: Result<()>| {
        if waits.leave(unique) {
            match result {
                Ok(()) => {
                    by.upgrade().inspect(|file| note(file, &request));
                    kept.set(given);
                    device.reply(unique, &[]);
                }
                Err(errno) => device.fail(unique, errno),
            }
        }
    });
    let waits = &call.session.waits;
    match vfs.set_lock(file.node(), request, Some(granted)) {
        LockOutcome::Done(result) => {
            waits.leave(unique);
            result?;
            note(file, &request);
            call.session.lane.kept.set(given);
            Ok(Outcome::Reply)
        }
        LockOutcome::Parked(ticket) => {
            if waits.park(unique, ticket) && vfs.cancel_lock(ticket) && waits.leave(unique) {
                return Err(Errno::EINTR.into());
            }
            Ok(Outcome::Silent)
        }
    }
}

pub(super) fn interrupt(call: &mut Call<'_>) -> End {
    let unique = call.args.u64()?;
    let session: &Arc<_> = call.session;
    if let Some(ticket) = session.waits.interrupt(unique)
        && session.lane.vfs.cancel_lock(ticket)
        && session.waits.leave(unique)
    {
        session.device.fail(unique, Errno::EINTR);
    }
    Ok(Outcome::Silent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_finds_its_wait_in_every_state() {
        let waits = Waits::default();
        // Parked before the interrupt.
        waits.enter(2);
        assert!(!waits.park(2, Ticket(7)));
        assert_eq!(waits.interrupt(2), Some(Ticket(7)));
        assert!(waits.leave(2));
        assert!(!waits.leave(2));
        // Interrupted between entering and parking.
        waits.enter(4);
        assert_eq!(waits.interrupt(4), None);
        assert!(waits.park(4, Ticket(8)));
        assert!(waits.leave(4));
        // Interrupted before anything.
        assert_eq!(waits.interrupt(6), None);
        waits.enter(6);
        assert!(waits.park(6, Ticket(9)));
        // The early mark is used up.
        assert!(waits.leave(6));
        waits.enter(6);
        assert!(!waits.park(6, Ticket(10)));
    }

    #[test]
    fn early_interrupts_are_bounded() {
        let waits = Waits::default();
        (0..10_000).for_each(|unique| assert_eq!(waits.interrupt(unique), None));
        assert_eq!(waits.state.lock().early.len(), EARLY_MAX);
    }
}
