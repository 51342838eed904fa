//! Locks. A worker never waits for one: a request that must wait is parked in the VFS, and the
//! thread that makes room posts its reply.

use polylane_base::sync::atomic::Ordering;
use polylane_base::{Errno, Result};
use polylane_ipc::MailboxIndex;
use polylane_ipc::message::{Reply, Status};
use polylane_vfs::{LockFamily, LockKind, LockOutcome, LockRequest, OpenFile};

use super::{Answer, Call, Failure, done};
use crate::lane::locks::{Given, Whose, is_kernels};
use crate::shm::request::{LockArgs, TO_THE_END};

/// Dead holders looked through for one request: those that died within moments of each other.
const DEAD_MAX: usize = 64;

impl Call<'_> {
    pub(super) fn lock(&mut self, args: &LockArgs) -> Answer {
        let refused = match args.kind {
            LockKind::Read => Some(libc::O_WRONLY),
            LockKind::Write => Some(libc::O_RDONLY),
            LockKind::Unlock => None,
        };
        let file = self.lockable(args.handle, args.family, refused)?;
        let request = self.request(&file, args);
        if args.family == LockFamily::Posix && args.kind != LockKind::Unlock {
            self.session.connection.process.locks.store(true, Ordering::SeqCst);
        }
        let given = self.to_keep(&file, &request);
        let mut answer = match args.wait && args.kind != LockKind::Unlock {
            false => self.lock_now(&file, request),
            true => self.lock_or_park(&file, request, given),
        };
        if let (Ok(_), Some(given)) = (&answer, given) {
            self.session.connection.lane.kept.set(given);
        }
        if answer.is_ok() && args.family == LockFamily::Posix && args.kind != LockKind::Unlock {
            file.note_locker(self.session.connection.process.owner);
        }
        let lends = args.lend && self.can_show() && !file.is_lost();
        if let (Ok(reply), true) = (&mut answer, lends) {
            reply.handle =
                self.session.rights().lend_locks(args.handle, &file, (given, request.pid));
        }
        self.session.connection.process.check_alive(&self.session.connection.lane);
        answer
    }

    /// What the next service is to know of a lock once it is given. `None`: nothing.
    fn to_keep(&self, file: &OpenFile, request: &LockRequest) -> Option<Given> {
        let (kept, process) =
            (&self.session.connection.lane.kept, &self.session.connection.process);
        let LockRequest { family, kind, start, end, pid, .. } = *request;
        let tag = kept.follow(file)?;
        let whose = match family {
            LockFamily::Posix => {
                if kind != LockKind::Unlock {
                    kept.note(process.number, process.pid, &process.pidfd);
                }
                Whose::Process {
                    ino: file.node().ino().0,
                    generation: file.node().generation(),
                    process: process.number,
                }
            }
            LockFamily::Ofd => Whose::File { tag, flock: false },
            LockFamily::Flock => Whose::File { tag, flock: true },
        };
        let (start, end) = match family {
            LockFamily::Flock => (0, u64::MAX),
            _ => (start, end),
        };
        Some(Given { whose, by: tag, start, end, kind, pid })
    }

    /// Locks or says `EAGAIN`, also when the lock in the way turns out to be a dead process's and
    /// another one lies behind it, and so on.
    fn lock_now(&self, file: &OpenFile, request: LockRequest) -> Answer {
        let mut settled = request.family == LockFamily::Posix;
        for _ in 0..DEAD_MAX {
            match self.vfs().set_lock(file.node(), request, None) {
                LockOutcome::Done(Err(Errno::EAGAIN)) if self.bury_holder(file, &request) => {}
                LockOutcome::Done(Err(Errno::EAGAIN)) if !settled => {
                    // The holder may be closed already, and the kernel about to say so.
                    self.blocking()?;
                    self.session.connection.lane.progress.settle();
                    settled = true;
                }
                done => return lock_reply(done),
            }
        }
        Err(Errno::EAGAIN.into())
    }

    /// Whether the lock in the way of `request` was a dead process's, and is gone now.
    fn bury_holder(&self, file: &OpenFile, request: &LockRequest) -> bool {
        let Some(found) = self.vfs().get_lock(file.node(), request) else { return true };
        let dead = self.session.connection.process.holders.dead(found.owner);
        if let Some(process) = &dead {
            process.bury(&self.session.connection.lane);
        }
        dead.is_some()
    }

    fn lock_or_park(&self, file: &OpenFile, request: LockRequest, given: Option<Given>) -> Answer {
        let parked = self.session.park(self.mailbox);
        let (waiter, kept) = (parked.clone(), self.session.connection.lane.kept.clone());
        let wake = move |result: Result<()>| {
            if let Some(pending) = waiter.take() {
                if let (Ok(()), Some(given)) = (result, given) {
                    kept.set(given);
                }
                pending.reply(&Reply::new(status(result)));
            }
        };
        match self.vfs().set_lock(file.node(), request, Some(Box::new(wake))) {
            LockOutcome::Parked(ticket) => {
                self.session.parked(&parked, ticket);
                Err(Failure::Parked)
            }
            finished => {
                if let Some(pending) = parked.take() {
                    pending.release();
                }
                lock_reply(finished)
            }
        }
    }

    pub(super) fn get_lock(&mut self, args: &LockArgs) -> Answer {
        let file = self.session.files.file(args.handle)?;
        let request = self.request(&file, args);
        let mut reply = done(0);
        let mut found = self.vfs().get_lock(file.node(), &request);
        for _ in 0..DEAD_MAX {
            if found.is_none() || !self.bury_holder(&file, &request) {
                break;
            }
            found = self.vfs().get_lock(file.node(), &request);
        }
        match found {
            None => reply.value[0] = libc::F_UNLCK as u64,
            Some(found) => {
                let mut told = describe(&found, args.family);
                if self.session.connection.other_numbers && told[3] != u64::from(u32::MAX) {
                    // As of a process that the client does not see.
                    told[3] = 0;
                }
                reply.value.iter_mut().zip(told).for_each(|(value, told)| *value = told);
            }
        }
        Ok(reply)
    }

    pub(super) fn cancel(&mut self, mailbox: u32) -> Answer {
        let found = self.session.cancel(MailboxIndex(mailbox));
        Ok(done(usize::from(found)))
    }

    fn request(&self, file: &OpenFile, args: &LockArgs) -> LockRequest {
        let owner = match args.family {
            LockFamily::Posix => self.session.connection.process.owner,
            LockFamily::Ofd | LockFamily::Flock => file.lock_owner(args.family),
        };
        let LockArgs { family, kind, start, end, .. } = *args;
        let pid = self.session.connection.shown;
        let user = Some(self.session.connection.cred.uid);
        LockRequest { owner, family, kind, start, end, pid, user }
    }
}

fn lock_reply(outcome: LockOutcome) -> Answer {
    match outcome {
        LockOutcome::Done(result) => Ok(result.map(|()| done(0))?),
        LockOutcome::Parked(_) => Err(Failure::Parked),
    }
}

fn status(result: Result<()>) -> Status {
    match result {
        Ok(()) => Status::Done(0),
        Err(errno) => Status::Failed(errno.0),
    }
}

/// Type, start, length (0: to the end) and process of a lock in the way of one of a family.
fn describe(found: &LockRequest, asked: LockFamily) -> [u64; 4] {
    let kind = match found.kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    let len = if found.end == TO_THE_END { 0 } else { found.end - found.start + 1 };
    // An open-file-description lock belongs to no process: F_GETLK says -1. Those that came through
    // the kernel cannot be told from others, and who asks for such by the kernel hears that, too.
    let nobodys =
        found.family == LockFamily::Ofd || asked == LockFamily::Ofd && is_kernels(found.owner);
    let pid = if nobodys { u32::MAX } else { found.pid };
    [kind as u64, found.start, len, u64::from(pid)]
}
