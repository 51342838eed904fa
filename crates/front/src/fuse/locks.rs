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
//! - Whoever takes a wait out of `Waits` replies; nobody else does.
//! - An INTERRUPT that overtakes its request is remembered, in a bounded list.

use polylane_base::sync::Arc;
use polylane_base::{Errno, Result, Uid};
use polylane_vfs::{LockFamily, LockKind, LockOutcome, LockOwner, LockRequest, OpenFile};

use super::call::{Call, End, Exit, Outcome};
use super::flags::LockFlags;
use super::records::{InterruptIn, LkOut};
use super::request::LockIn;
use super::session::Session;
use crate::lane::locks::{Given, Whose, kernels_owner, process_owner};

/// The kernel's `OFFSET_MAX`: to the end of the file, however far it grows.
const OFFSET_MAX: u64 = i64::MAX as u64;
impl Call<'_> {
    /// Who a POSIX lock of this request belongs to.
    pub(super) fn posix_owner(&self, owner: u64) -> LockOwner {
        kernels_owner(owner)
    }

    /// flock(2) locks belong to the open file, whichever door they come through. `F_OFD_SETLK`
    /// cannot be told from `F_SETLK`: the kernel sends an owner of its own per open file, and that
    /// is enough.
    fn lock_request(&self, lock: &LockIn, file: &OpenFile) -> Result<LockRequest> {
        let flock = lock.flags.contains(LockFlags::FLOCK);
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
    let kind = (kind as u32).into();
    call.out.record(&LkOut { start: start.into(), end: end.into(), kind, pid: pid.into() });
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

/// Sets a lock again that a former service gave. False: it cannot be.
pub(super) fn lock_again(session: &Session, given: &Given) -> bool {
    let Some((file, owner, family)) = holder(session, given) else { return false };
    let Given { whose, start, end, kind, pid, .. } = *given;
    // It was within its user's limit when it was given.
    let request = LockRequest { owner, family, kind, start, end, pid, user: None };
    let outcome = session.lane.vfs.set_lock(file.node(), request, None);
    let given = matches!(outcome, LockOutcome::Done(Ok(())));
    if given && matches!(whose, Whose::Posix { .. }) {
        note(&file, &request);
    }
    given
}

/// The open file by which a former service gave a lock, and who has it now.
fn holder(session: &Session, given: &Given) -> Option<(Arc<OpenFile>, LockOwner, LockFamily)> {
    let of_kernel = || session.handles.get(given.by);
    let handover = session.lane.handover.as_ref()?;
    match given.whose {
        Whose::Flock { .. } => {
            let file = of_kernel().ok()?.file().ok()?;
            let owner = file.lock_owner(LockFamily::Flock);
            Some((file, owner, LockFamily::Flock))
        }
        Whose::Posix { owner, .. } => {
            let file = of_kernel().ok()?.file().ok()?;
            Some((file, kernels_owner(owner), LockFamily::Posix))
        }
        Whose::Process { process, .. } => {
            let owner = process_owner(process);
            handover.lives(process).then_some(())?;
            Some((handover.reopened(given.by)?, owner, LockFamily::Posix))
        }
        Whose::File { tag, flock } => {
            let file = handover.reopened(tag)?;
            let family = if flock { LockFamily::Flock } else { LockFamily::Ofd };
            session.lane.kept.follow(&file)?;
            let owner = file.lock_owner(family);
            Some((file, owner, family))
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
    let unique = call.args.record::<InterruptIn>()?.unique.get();
    let session: &Arc<_> = call.session;
    if let Some(ticket) = session.waits.interrupt(unique)
        && session.lane.vfs.cancel_lock(ticket)
        && session.waits.leave(unique)
    {
        session.device.fail(unique, Errno::EINTR);
    }
    Ok(Outcome::Silent)
}
