//! POSIX, open-file-description and flock locks. The table is the service's, but for POSIX locks
//! that it lends (`docs/design/client-cache.md`); here are the ranges and the waiting.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use polylane_base::Errno;
use polylane_ipc::CallError;
use polylane_ipc::lent;
use polylane_ipc::message::{LockFlags, Message, Op, Reply, TransferFlags};

use super::lock_range::{Range, found, kernel_size, message};
use super::lock_wait::{Interruptible, wait_by_asking};
use super::state::{Lane, State};
use super::{file, offset, one_shot};
use crate::fd::record::{FileBits, Record};
use crate::fd::table::Pin;
use crate::kernel::config;
use crate::kernel::outcome::{Detour, Lost, Outcome};
use crate::rights::view;
use crate::session::{Alive, Mailbox, Session, call, namespace};

/// `F_SETLK`, `F_SETLKW` and their OFD forms.
pub(crate) fn set(
    state: &'static State,
    fd: RawFd,
    range: Range,
    ofd: bool,
    wait: bool,
) -> Outcome<()> {
    match one_shot::is_needed(state, fd) {
        true => one_shot::set(state, fd, range, ofd, wait),
        false => by_service(state, fd, || set_once(state, fd, range, ofd, wait)),
    }
}

fn set_once(state: &'static State, fd: RawFd, range: Range, ofd: bool, wait: bool) -> Outcome<()> {
    let file = find(state, fd)?;
    let asked = request(state, &file, fd, range, ofd, Op::Lock);
    let (session, mut message) = file::or_kernel(state, &file, asked)?;
    if !ofd && range.kind != libc::F_UNLCK {
        // Each close takes the process's locks of its file away: one that is still on its way must
        // not take this one.
        state.get().lane(session.lane).slots.settle(session)?;
    }
    match ofd {
        true => _ = file.set(FileBits::LOCKED),
        false => {
            let asked = state.get().has_locked.fetch_add(1, Ordering::Relaxed);
            if set_lent(session, &file, &message) {
                return Ok(());
            }
            message.flags |= wish(asked).bits();
        }
    }
    if wait && range.kind != libc::F_UNLCK {
        return wait_for(session, &file, message);
    }
    let reply = call::plain(session, message)?;
    view::learn(session, &file, TransferFlags::SHOW, reply.handle);
    Ok(())
}

/// Has the locks of the file lent to a process that takes them more than a few times.
fn wish(asked: u32) -> LockFlags {
    if asked >= config::views() { LockFlags::LEND } else { LockFlags::empty() }
}

/// Sets or gives up POSIX locks that are lent.
fn set_lent(session: &'static Session, file: &Record, message: &Message) -> bool {
    let (kind, start) = (message.mode as i32, message.offset);
    let end = message.length.checked_sub(1).map_or(u64::MAX, |more| start + more);
    let wrong_mode = match kind {
        libc::F_RDLCK => libc::O_WRONLY,
        libc::F_WRLCK => libc::O_RDONLY,
        _ => -1,
    };
    let write = kind == libc::F_WRLCK;
    file.access_mode() != wrong_mode
        && view::change_locks(session, file, write, |locks| match kind {
            libc::F_UNLCK => locks.unlock(start, end),
            _ => locks.lock(lent::Range { start, end, write }),
        })
}

/// `F_GETLK` and its OFD form.
pub(crate) fn get(state: &'static State, fd: RawFd, range: Range, ofd: bool) -> Outcome<Range> {
    match one_shot::is_needed(state, fd) {
        true => one_shot::get(state, fd, range, ofd),
        false => by_service(state, fd, || get_once(state, fd, range, ofd)),
    }
}

fn get_once(state: &'static State, fd: RawFd, range: Range, ofd: bool) -> Outcome<Range> {
    let file = find(state, fd)?;
    let asked = request(state, &file, fd, range, ofd, Op::GetLock);
    let (session, message) = file::or_kernel(state, &file, asked)?;
    if !ofd && view::has_locks(session, &file) {
        return Ok(Range { kind: libc::F_UNLCK, ..range });
    }
    Ok(found(&call::plain(session, message)?, range))
}

/// `flock(2)`.
pub(crate) fn flock(state: &'static State, fd: RawFd, operation: i32) -> Outcome<()> {
    let kind = match operation & !libc::LOCK_NB {
        libc::LOCK_SH => libc::F_RDLCK,
        libc::LOCK_EX => libc::F_WRLCK,
        libc::LOCK_UN => libc::F_UNLCK,
        _ => return Err(Detour::Kernel),
    };
    let wait = operation & libc::LOCK_NB == 0;
    match one_shot::is_needed(state, fd) {
        true => one_shot::flock(state, fd, kind, wait),
        false => by_service(state, fd, || flock_once(state, fd, kind, wait)),
    }
}

fn flock_once(state: &'static State, fd: RawFd, kind: i32, wait: bool) -> Outcome<()> {
    let file = find(state, fd)?;
    if file.is(FileBits::DIRECTORY) {
        file.set(FileBits::LOCKED);
        return Err(Detour::Kernel);
    }
    let (session, handle) = file::usable(state, &file, fd)?;
    file.set(FileBits::LOCKED);
    let (flags, mode) = (LockFlags::FLOCK.bits(), kind as u32);
    let message = Message { handle, flags, mode, ..Message::new(Op::Lock) };
    if kind == libc::F_UNLCK || !wait {
        return call::plain(session, message).map(|_| ());
    }
    wait_for(session, &file, message)
}

/// Locks are not taken by the kernel's way while the service is away, nor because another thread
/// left the session meanwhile: the next one is asked.
fn by_service<T>(
    state: &'static State,
    fd: RawFd,
    part: impl FnOnce() -> Outcome<T>,
) -> Outcome<T> {
    let Some(lane) = file::lane_of(state, fd) else { return part() };
    let before = lane.sessions.present();
    match part() {
        Err(Detour::Kernel) if lane.sessions.is_lost() || before.is_some_and(Session::is_lost) => {
            Err(Detour::Lost(Lost { lane: lane.number(), turn: 0 }))
        }
        done => done,
    }
}

/// The file to lock. A process must take all its locks on one road: the kernel's FUSE and the
/// service know it by different names, and its own lock would be in its way. So no thread takes the
/// kernel's because another one is connecting.
fn find(state: &'static State, fd: RawFd) -> Outcome<Pin> {
    let lane = file::lane_of(state, fd).ok_or(Detour::Kernel)?;
    lane.sessions.hurry();
    if namespace::is_at_home(lane.number()) {
        lane.ready_together()?;
    }
    file::find(state, fd)
}

/// A descriptor that the kernel opened may be one of a file with locks: it is looked at before it
/// is closed, in a process that takes locks.
pub(crate) fn find_for_close(state: &'static State, fd: RawFd) {
    let Some(fields) = state.started() else { return };
    if fields.has_locked.load(Ordering::Relaxed) == 0 {
        return;
    }
    // None has locks.
    if file::is_unknown_directory(state, fd) {
        return;
    }
    if one_shot::is_needed(state, fd) {
        return one_shot::give_up(state, fd);
    }
    // Whatever cannot be found has no locks that the service knows. What is found is attached to
    // the present one, which has the locks of a former one.
    if let Ok(file) = file::find(state, fd)
        && !file.is(FileBits::DIRECTORY)
        && is_served(fields.lane(file.lane()))
    {
        let _ = file::usable(state, &file, fd);
    }
}

/// Whether the service of a lane is there, perhaps after a while.
fn is_served(lane: &'static Lane) -> bool {
    !lane.sessions.is_lost() || lane.await_next()
}

/// Any close of a file gives up the process's POSIX locks on it. Answered before the close returns:
/// another process may count on it.
pub(crate) fn give_up(state: &'static State, file: &Record) {
    let Some(fields) = state.started() else { return };
    if fields.has_locked.load(Ordering::Relaxed) == 0 || file.is(FileBits::DIRECTORY) {
        return;
    }
    let Some(session) = fields.lane(file.lane()).sessions.present() else { return };
    if file.session.load(Ordering::Relaxed) == session.number {
        let (handle, mode) = (file.handle.load(Ordering::Relaxed), libc::F_UNLCK as u32);
        let message = Message { handle, mode, ..Message::new(Op::Lock) };
        if set_lent(session, file, &message) {
            return;
        }
        // No locks, no service: either way they are gone.
        let _ = call::plain(session, message);
    }
}

fn request(
    state: &'static State,
    file: &Record,
    fd: RawFd,
    range: Range,
    ofd: bool,
    op: Op,
) -> Outcome<(&'static Session, Message)> {
    if file.is(FileBits::DIRECTORY) {
        file.set(FileBits::LOCKED);
        return Err(Detour::Kernel);
    }
    if ofd && range.pid != 0 {
        return Err(Errno::EINVAL.into());
    }
    let (session, handle) = file::usable(state, file, fd)?;
    let base = match range.whence {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => offset::current(file, fd)?,
        libc::SEEK_END => offset::size(state, file, fd).or_else(|_| kernel_size(fd))?,
        _ => return Err(Errno::EINVAL.into()),
    };
    Ok((session, message(handle, base, range, ofd, op)?))
}

/// Waits for a lock; a signal handler that was not installed with `SA_RESTART` ends the wait.
fn wait_for(session: &'static Session, file: &Record, message: Message) -> Outcome<()> {
    let Ok(mailbox) = session.mailbox() else {
        return wait_by_asking(session, || call::plain(session, message).map(drop));
    };
    let message = Message { flags: message.flags | LockFlags::WAIT.bits(), ..message };
    let watch = Interruptible::new(session);
    match session.channel.call(mailbox.index, &message, &watch) {
        Err(CallError::Interrupted) => match cancel(&mailbox) {
            Err(Detour::Errno(Errno::EINTR)) => Err(watch.reason().into()),
            done => done,
        },
        other => {
            let reply = call::finish(&mailbox, &message, other)?;
            view::learn(session, file, TransferFlags::SHOW, reply.handle);
            Ok(())
        }
    }
}

/// Takes the request back. It may have been granted meanwhile.
fn cancel(mailbox: &Mailbox) -> Outcome<()> {
    let session = mailbox.session;
    let mut message = Message::new(Op::Cancel);
    message.arg[0] = mailbox.index.0.into();
    call::plain(session, message)?;
    let reply: Result<Reply, CallError> = session.channel.wait(mailbox.index, &Alive(session));
    call::finish(mailbox, &message, reply).map(|_| ())
}
