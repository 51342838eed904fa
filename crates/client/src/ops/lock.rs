//! POSIX, open-file-description and flock locks. The table is the service's, but for POSIX locks
//! that it lends (`docs/design/client-cache.md`); here are the ranges and the waiting.

use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use polylane_base::Errno;
use polylane_ipc::lent::{self, Locks};
use polylane_ipc::message::{LOCK_FLOCK, LOCK_LEND, LOCK_OFD, LOCK_WAIT, Message, Op, Reply, SHOW};
use polylane_ipc::{CallError, Watch};
use rustix::thread::{NanosleepRelativeResult, Timespec, nanosleep};

use super::{offset, one_shot};
use crate::fd::file;
use crate::fd::table::{Pin, Record, bit};
use crate::kernel::config;
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::kernel::thread;
use crate::rights::view;
use crate::session::call;
use crate::session::path;
use crate::session::{Alive, Mailbox, Session};
use crate::state;

/// A wait for a lock that is to begin again, after the handlers of signals ran.
pub(crate) const AGAIN: Errno = Errno(libc::ERESTART);

/// A `struct flock` without its padding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub(crate) kind: i32,
    /// `SEEK_SET`, `SEEK_CUR` or `SEEK_END`.
    pub(crate) whence: i32,
    /// Relative to `whence`.
    pub(crate) start: i64,
    /// 0: to the end; negative: the bytes before `start`.
    pub(crate) len: i64,
    /// Of the holder; 0 for open-file-description locks.
    pub(crate) pid: i32,
}

/// `F_SETLK`, `F_SETLKW` and their OFD forms.
pub(crate) fn set(fd: RawFd, range: Range, ofd: bool, wait: bool) -> Outcome<()> {
    match one_shot::is_needed(fd) {
        true => one_shot::set(fd, range, ofd, wait),
        false => by_service(|| set_once(fd, range, ofd, wait)),
    }
}

fn set_once(fd: RawFd, range: Range, ofd: bool, wait: bool) -> Outcome<()> {
    let file = find(fd)?;
    let asked = request(&file, fd, range, ofd, Op::Lock);
    let (session, mut message) = file::or_kernel(&file, asked)?;
    if !ofd && range.kind != libc::F_UNLCK {
        // Each close takes the process's locks of its file away: one that is still on its way must
        // not take this one.
        state::get().slots.settle(session)?;
    }
    match ofd {
        true => _ = file.set(bit::LOCKED),
        false => {
            let asked = state::get().has_locked.fetch_add(1, Ordering::Relaxed);
            if set_lent(session, &file, &message) {
                return Ok(());
            }
            message.flags |= wish(asked);
        }
    }
    if wait && range.kind != libc::F_UNLCK {
        return wait_for(session, &file, message);
    }
    let reply = call::plain(session, message)?;
    view::learn(session, &file, SHOW, reply.handle);
    Ok(())
}

/// Has the locks of the file lent to a process that takes them more than a few times.
fn wish(asked: u32) -> u32 {
    if asked >= config::views() { LOCK_LEND } else { 0 }
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
pub(crate) fn get(fd: RawFd, range: Range, ofd: bool) -> Outcome<Range> {
    match one_shot::is_needed(fd) {
        true => one_shot::get(fd, range, ofd),
        false => by_service(|| get_once(fd, range, ofd)),
    }
}

fn get_once(fd: RawFd, range: Range, ofd: bool) -> Outcome<Range> {
    let file = find(fd)?;
    let asked = request(&file, fd, range, ofd, Op::GetLock);
    let (session, message) = file::or_kernel(&file, asked)?;
    if !ofd && view::has_locks(session, &file) {
        return Ok(Range { kind: libc::F_UNLCK, ..range });
    }
    Ok(found(&call::plain(session, message)?, range))
}

/// The lock that is in the way of `range`, or that none is.
pub(super) fn found(reply: &Reply, range: Range) -> Range {
    let found = reply.value;
    if found[0] as i32 == libc::F_UNLCK {
        return Range { kind: libc::F_UNLCK, ..range };
    }
    Range {
        kind: found[0] as i32,
        whence: libc::SEEK_SET,
        start: found[1] as i64,
        len: found[2] as i64,
        pid: found[3] as i32,
    }
}

/// `flock(2)`.
pub(crate) fn flock(fd: RawFd, operation: i32) -> Outcome<()> {
    let kind = match operation & !libc::LOCK_NB {
        libc::LOCK_SH => libc::F_RDLCK,
        libc::LOCK_EX => libc::F_WRLCK,
        libc::LOCK_UN => libc::F_UNLCK,
        _ => return Err(Detour::Kernel),
    };
    let wait = operation & libc::LOCK_NB == 0;
    match one_shot::is_needed(fd) {
        true => one_shot::flock(fd, kind, wait),
        false => by_service(|| flock_once(fd, kind, wait)),
    }
}

fn flock_once(fd: RawFd, kind: i32, wait: bool) -> Outcome<()> {
    let file = find(fd)?;
    if file.is(bit::DIRECTORY) {
        return Err(Detour::Kernel);
    }
    let (session, handle) = file::usable(&file, fd)?;
    file.set(bit::LOCKED);
    let (flags, mode) = (LOCK_FLOCK, kind as u32);
    let message = Message { handle, flags, mode, ..Message::new(Op::Lock) };
    if kind == libc::F_UNLCK || !wait {
        return call::plain(session, message).map(|_| ());
    }
    wait_for(session, &file, message)
}

/// Locks are not taken by the kernel's way while the service is away, nor because another thread
/// left the session meanwhile: the next one is asked.
fn by_service<T>(part: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let sessions = &state::get().sessions;
    let before = sessions.present();
    match part() {
        Err(Detour::Kernel) if sessions.is_lost() || before.is_some_and(Session::is_lost) => {
            Err(Detour::Lost(0))
        }
        done => done,
    }
}

/// The file to lock. A process must take all its locks on one road: the kernel's FUSE and the
/// service know it by different names, and its own lock would be in its way. So no thread takes the
/// kernel's because another one is connecting.
fn find(fd: RawFd) -> Outcome<Pin> {
    path::mount()?;
    let sessions = &state::get().sessions;
    sessions.hurry();
    if path::is_at_home() {
        sessions.get_together()?;
    }
    file::find(fd)
}

/// A descriptor that the kernel opened may be one of a file with locks: it is looked at before it
/// is closed, in a process that takes locks.
pub(crate) fn find_for_close(fd: RawFd) {
    let Some(state) = state::started() else { return };
    if state.has_locked.load(Ordering::Relaxed) == 0 {
        return;
    }
    // None has locks.
    if file::is_unknown_directory(fd) {
        return;
    }
    if one_shot::is_needed(fd) {
        return one_shot::give_up(fd);
    }
    // Whatever cannot be found has no locks that the service knows. What is found is attached to
    // the present one, which has the locks of a former one.
    if let Ok(file) = file::find(fd)
        && !file.is(bit::DIRECTORY)
        && (!state.sessions.is_lost() || state.sessions.await_next())
    {
        let _ = file::usable(&file, fd);
    }
}

/// Any close of a file gives up the process's POSIX locks on it. Answered before the close returns:
/// another process may count on it.
pub(crate) fn give_up(file: &Record) {
    let Some(state) = state::started() else { return };
    if state.has_locked.load(Ordering::Relaxed) == 0 || file.is(bit::DIRECTORY) {
        return;
    }
    let Some(session) = state.sessions.present() else { return };
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
    file: &Record,
    fd: RawFd,
    range: Range,
    ofd: bool,
    op: Op,
) -> Outcome<(&'static Session, Message)> {
    if file.is(bit::DIRECTORY) {
        return Err(Detour::Kernel);
    }
    if ofd && range.pid != 0 {
        return Err(Errno::EINVAL.into());
    }
    let (session, handle) = file::usable(file, fd)?;
    let base = match range.whence {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => offset::current(file, fd)?,
        libc::SEEK_END => offset::size(file, fd).or_else(|_| kernel_size(fd))?,
        _ => return Err(Errno::EINVAL.into()),
    };
    Ok((session, message(handle, base, range, ofd, op)?))
}

/// The size of a file as the kernel asks for it.
pub(super) fn kernel_size(fd: RawFd) -> Outcome<i64> {
    Ok(rustix::fs::fstat(real::borrow(fd))?.st_size)
}

/// What is asked about a range that starts at `base`.
pub(super) fn message(
    handle: u64,
    base: i64,
    range: Range,
    ofd: bool,
    op: Op,
) -> Result<Message, Errno> {
    let (offset, length) = absolute(base, range.start, range.len)?;
    let flags = if ofd { LOCK_OFD } else { 0 };
    let mode = range.kind as u32;
    Ok(Message { handle, offset, length, flags, mode, ..Message::new(op) })
}

/// First byte and length (0: to the end) of a range, as fcntl_locking(2) defines them.
fn absolute(base: i64, start: i64, len: i64) -> Result<(u64, u64), Errno> {
    let start = base.checked_add(start).ok_or(Errno::EOVERFLOW)?;
    let (start, len) = match len {
        len if len < 0 => (start.checked_add(len).ok_or(Errno::EINVAL)?, len.unsigned_abs()),
        len => (start, len as u64),
    };
    let start = u64::try_from(start).map_err(|_| Errno::EINVAL)?;
    if len > 0 && start.checked_add(len - 1).is_none_or(|last| last > i64::MAX as u64) {
        return Err(Errno::EOVERFLOW);
    }
    Ok((start, len))
}

/// Sets what this process had of a file that was lent to it by the service of a former session,
/// which died: the present one lets nobody else in until what is not held is given back.
pub(crate) fn reclaim(session: &'static Session, handle: u64, held: &Locks) {
    let set = |kind: i32, start: u64, end: Option<u64>| {
        let length = end.map_or(0, |end| end - start + 1);
        let (offset, mode) = (start, kind as u32);
        let message = Message { handle, offset, length, mode, ..Message::new(Op::Lock) };
        // What is held is this process's alone; should the service go too, its next one asks again.
        let _ = call::plain(session, message);
    };
    let to_the_end = |end: u64| Some(end).filter(|&end| end != u64::MAX);
    let mut gaps = Locks::default();
    let all = lent::Range { start: 0, end: u64::MAX, write: true };
    let mut known = gaps.lock(all);
    for range in held.ranges() {
        let kind = if range.write { libc::F_WRLCK } else { libc::F_RDLCK };
        set(kind, range.start, to_the_end(range.end));
        known &= gaps.unlock(range.start, range.end);
    }
    if known {
        gaps.ranges().for_each(|gap| set(libc::F_UNLCK, gap.start, to_the_end(gap.end)));
    }
}

/// Waits for a lock; a signal handler that was not installed with `SA_RESTART` ends the wait.
fn wait_for(session: &'static Session, file: &Record, message: Message) -> Outcome<()> {
    let Ok(mailbox) = session.mailbox() else {
        return wait_by_asking(session, || call::plain(session, message).map(drop));
    };
    let message = Message { flags: message.flags | LOCK_WAIT, ..message };
    let watch = Interruptible::new(session);
    match session.channel.call(mailbox.index, &message, &watch) {
        Err(CallError::Interrupted) => match cancel(&mailbox) {
            Err(Detour::Errno(Errno::EINTR)) => Err(watch.reason().into()),
            done => done,
        },
        other => {
            let reply = call::finish(&mailbox, &message, other)?;
            view::learn(session, file, SHOW, reply.handle);
            Ok(())
        }
    }
}

/// Pauses between questions for a lock that cannot be waited for otherwise.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(20);

/// Waits for a lock without a mailbox of the thread's own, by asking for it until it is free. So
/// nobody knows that this thread waits, and a deadlock is not found out.
pub(super) fn wait_by_asking(session: &Session, ask: impl Fn() -> Outcome<()>) -> Outcome<()> {
    let watch = Interruptible::new(session);
    let mut pause = FIRST_PAUSE;
    loop {
        match ask() {
            Err(Detour::Errno(Errno::EAGAIN)) => {}
            done => return done,
        }
        if watch.interrupted() {
            return Err(watch.reason().into());
        }
        let time = Timespec { tv_sec: 0, tv_nsec: i64::from(pause.subsec_nanos()) };
        // Whether the service lives shows when it is next asked.
        if matches!(nanosleep(&time), NanosleepRelativeResult::Ok) {
            watch.woken.set(Woken::InTime);
        }
        pause = (2 * pause).min(LAST_PAUSE);
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

/// What ended a sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Woken {
    /// Its time was up.
    InTime,
    /// Nothing that was told.
    Otherwise,
    /// The question "interrupted?" was asked and nothing has explained a wake-up since.
    Asked,
}

/// Tells a wait that a signal ended from one whose time was up: only the latter is followed by the
/// question whether the service lives.
struct Interruptible<'a> {
    alive: Alive<'a>,
    woken: Cell<Woken>,
}

impl<'a> Interruptible<'a> {
    fn new(session: &'a Session) -> Self {
        Interruptible { alive: Alive(session), woken: Cell::new(Woken::Otherwise) }
    }

    /// Why the wait was given up.
    fn reason(&self) -> Errno {
        match thread::has_come() {
            Some(signal) if !real::handler_restarts(signal) => Errno::EINTR,
            None if self.woken.get() == Woken::Asked => Errno::EINTR,
            _ => AGAIN,
        }
    }
}

impl Watch for Interruptible<'_> {
    fn alive(&self) -> bool {
        self.woken.set(Woken::InTime);
        self.alive.alive()
    }

    fn interrupted(&self) -> bool {
        if thread::has_come().is_some() {
            return true;
        }
        match self.woken.get() {
            // Whether this thread is to end can only be found out by ending it.
            Woken::InTime if thread::cancels() => true,
            Woken::Asked if real::handlers_interrupt() => true,
            _ => {
                self.woken.set(Woken::Asked);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_fcntl() {
        assert_eq!(absolute(0, 10, 5), Ok((10, 5)));
        assert_eq!(absolute(100, -10, 0), Ok((90, 0)));
        assert_eq!(absolute(0, 10, -5), Ok((5, 5)));
        assert_eq!(absolute(0, 10, -10), Ok((0, 10)));
        assert_eq!(absolute(0, 10, -11), Err(Errno::EINVAL));
        assert_eq!(absolute(0, -1, 0), Err(Errno::EINVAL));
        assert_eq!(absolute(i64::MAX, 1, 0), Err(Errno::EOVERFLOW));
        assert_eq!(absolute(0, i64::MAX, 1), Ok((i64::MAX as u64, 1)));
        assert_eq!(absolute(0, i64::MAX, 2), Err(Errno::EOVERFLOW));
        assert_eq!(absolute(0, 0, i64::MIN), Err(Errno::EINVAL));
    }
}
