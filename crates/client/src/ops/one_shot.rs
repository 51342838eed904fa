//! Locks of a process that has used up its sessions: each by a connection of its own.
//!
//! The service knows what such a process has locked by the process, not by the session. By the
//! kernel's way it would be another owner: unable to unlock what it has, and in its own way.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use polylane_base::Errno;
use polylane_ipc::MailboxIndex;
use polylane_ipc::message::{LockFlags, Message, Op, Reply};
use rustix::fs::{SeekFrom, seek};
use zerocopy::little_endian::U64;

use super::file;
use super::lock_range::{self, Range};
use super::lock_wait;
use super::state::State;
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::kernel::thread;
use crate::session::{Alive, Session, call, namespace};

/// What a lock fails with that the service cannot be told of now.
const UNHEARD: Detour = Detour::Errno(Errno::ENOLCK);

/// Whether locks of this descriptor are set so.
pub(super) fn is_needed(state: &'static State, fd: RawFd) -> bool {
    namespace::any_lane().is_ok()
        && state.get().lanes().any(|lane| lane.sessions.are_used_up())
        && real::kind_cached(fd).is_ok_and(|(_, kind, _)| kind == libc::S_IFREG)
        && file::lane_of(state, fd)
            .is_some_and(|lane| lane.sessions.are_used_up() && namespace::is_at_home(lane.number()))
}

/// As `lock::set`.
pub(super) fn set(
    state: &'static State,
    fd: RawFd,
    range: Range,
    ofd: bool,
    wait: bool,
) -> Outcome<()> {
    if !ofd {
        state.get().has_locked.fetch_add(1, Ordering::Relaxed);
    }
    run(state, fd, |session| {
        let message = session.message(fd, range, ofd, Op::Lock)?;
        session.lock(message, wait && range.kind != libc::F_UNLCK)
    })
}

/// As `lock::get`.
pub(super) fn get(state: &'static State, fd: RawFd, range: Range, ofd: bool) -> Outcome<Range> {
    run(state, fd, |session| {
        let message = session.message(fd, range, ofd, Op::GetLock)?;
        Ok(lock_range::found(&session.ask(&message)?, range))
    })
}

/// As `lock::flock`.
pub(super) fn flock(state: &'static State, fd: RawFd, kind: i32, wait: bool) -> Outcome<()> {
    run(state, fd, |session| {
        let (handle, flags, mode) = (session.handle, LockFlags::FLOCK.bits(), kind as u32);
        let message = Message { handle, flags, mode, ..Message::new(Op::Lock) };
        session.lock(message, wait && kind != libc::F_UNLCK)
    })
}

/// As `lock::give_up`.
pub(super) fn give_up(state: &'static State, fd: RawFd) {
    // Without a service they are gone.
    let _ = run(state, fd, |session| {
        let (handle, mode) = (session.handle, libc::F_UNLCK as u32);
        session.ask(&Message { handle, mode, ..Message::new(Op::Lock) })
    });
}

/// Services that one call may lose.
const TRIES: u32 = 3;

/// Does `part` by a connection for that alone; once more when its service died, with the next.
fn run<T>(
    state: &'static State,
    fd: RawFd,
    part: impl Fn(&OneShotSession) -> Outcome<T>,
) -> Outcome<T> {
    let attempt = || OneShotSession::to(state, fd).and_then(|session| part(&session));
    (1..TRIES).map(|_| attempt()).find(|done| !matches!(done, Err(UNHEARD))).unwrap_or_else(attempt)
}

/// A connection about one open file.
struct OneShotSession {
    /// Taken when it is over.
    session: Option<Session>,
    mailbox: MailboxIndex,
    handle: u64,
}

impl OneShotSession {
    /// Connects and has the service find the open file of a descriptor. `ENOLCK`: it cannot be
    /// asked.
    fn to(state: &'static State, fd: RawFd) -> Outcome<OneShotSession> {
        let errno = real::errno();
        let ticket = real::identify(fd);
        real::set_errno(errno);
        let ticket: [U64; 2] = zerocopy::transmute!(ticket.ok_or(UNHEARD)?);
        let lane = file::lane_of(state, fd).ok_or(UNHEARD)?;
        let session = thread::slow(|| lane.sessions.aside()).map_err(|_| UNHEARD)?;
        let mailbox = session.channel.claim();
        let mut session =
            OneShotSession { session: Some(session), mailbox: MailboxIndex(0), handle: 0 };
        session.mailbox = mailbox.ok_or(UNHEARD)?;
        let mut message = Message::new(Op::Redeem);
        (message.arg[0], message.arg[1]) = (ticket[0].get(), ticket[1].get());
        session.handle = session.ask(&message).map_err(|_| UNHEARD)?.handle;
        Ok(session)
    }

    fn message(&self, fd: RawFd, range: Range, ofd: bool, op: Op) -> Outcome<Message> {
        if ofd && range.pid != 0 {
            return Err(Errno::EINVAL.into());
        }
        let base = match range.whence {
            libc::SEEK_SET => 0,
            libc::SEEK_CUR => seek(real::borrow(fd), SeekFrom::Current(0))?.cast_signed(),
            libc::SEEK_END => lock_range::kernel_size(fd)?,
            _ => return Err(Errno::EINVAL.into()),
        };
        Ok(lock_range::message(self.handle, base, range, ofd, op)?)
    }

    fn lock(&self, message: Message, wait: bool) -> Outcome<()> {
        let ask = || self.ask(&message).map(drop);
        match self.session.as_ref().filter(|_| wait) {
            Some(session) => lock_wait::wait_by_asking(session, ask),
            None => ask(),
        }
    }

    /// `ENOLCK`: the service died.
    fn ask(&self, message: &Message) -> Outcome<Reply> {
        let session = self.session.as_ref().ok_or(UNHEARD)?;
        let reply = session.channel.call(self.mailbox, message, &Alive(session));
        call::accept(reply.map_err(|_| UNHEARD)?)
    }
}

impl Drop for OneShotSession {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            thread::slow(|| session.finish());
        }
    }
}
