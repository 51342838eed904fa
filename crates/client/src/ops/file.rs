//! What a number means: the open file behind it, found and attached to the present session.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use polylane_base::Errno;
use polylane_ipc::ioctl::UNFLAGGED;
use polylane_ipc::message::{Message, Op};
use zerocopy::little_endian::U64;

use super::state::{self, Lane, State};
use crate::fd::file::STATUS_FLAGS;
use crate::fd::preopened::Slot;
use crate::fd::record::{FileBits, Record};
use crate::fd::table::{Entry, Glance, Pin};
use crate::fd::{file, rings};
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::rights::lease::deferred_errors;
use crate::rights::{locks, view};
use crate::session::{self, Session, call, namespace};

/// The open file that `fd` means; an unknown number is looked at.
#[inline]
pub(crate) fn find(state: &'static State, fd: RawFd) -> Outcome<Pin> {
    namespace::any_lane()?;
    let fields = state.get();
    match fields.records().find(&fields.table, fd) {
        Ok(pin) if !rings::close_unseen() || is_still(fields, fd, &pin) => Ok(pin),
        Ok(_) => {
            forget(state, fd);
            look_at(state, fd)
        }
        Err(Entry::Unknown) if fd >= 0 => look_at(state, fd),
        Err(_) => Err(Detour::Kernel),
    }
}

/// Whether `fd` still means `file`, where descriptors are closed unseen.
#[cold]
fn is_still(fields: &'static state::Fields, fd: RawFd, file: &Pin) -> bool {
    let lane = fields.lane(file.lane());
    lane.device().is_ok_and(|device| rings::is_still(fd, file, &lane.slots, device))
}

/// A look at the open file that `fd` is known to mean, for what is read of its view.
#[inline]
pub(crate) fn glance(state: &'static State, fd: RawFd) -> Option<Glance> {
    namespace::any_lane().ok()?;
    let fields = state.started().filter(|_| !rings::close_unseen())?;
    fields.records().glance(&fields.table, fd)
}

/// The open file that `fd` is known to mean.
#[inline]
pub(crate) fn find_known(state: &'static State, fd: RawFd) -> Option<Pin> {
    namespace::any_lane().ok()?;
    let fields = state.started()?;
    fields.records().find(&fields.table, fd).ok()
}

/// A file ready for a request: its session and handle.
#[inline]
pub(crate) fn usable(
    state: &'static State,
    file: &Record,
    fd: RawFd,
) -> Outcome<(&'static Session, u64)> {
    let session = state.get().lane(file.lane()).ready()?;
    if file.session.load(Ordering::Acquire) != session.number {
        attach(file, fd, session)?;
    }
    Ok((session, file.handle.load(Ordering::Relaxed)))
}

/// The lane of which `fd` is a regular file or a directory; no session is needed.
pub(crate) fn lane_of(state: &'static State, fd: RawFd) -> Option<&'static Lane> {
    namespace::any_lane().ok()?;
    let fields = state.get();
    match fields.table.get(fd) {
        Entry::Record(_) if !rings::close_unseen() => {
            if let Ok(file) = fields.records().find(&fields.table, fd) {
                return Some(fields.lane(file.lane()));
            }
        }
        Entry::Foreign => return None,
        _ => {}
    }
    let (device, kind, _) = real::kind_cached(fd).ok()?;
    let is_it = matches!(kind, libc::S_IFREG | libc::S_IFDIR);
    if is_it { fields.lane_on(device).ok()? } else { None }
}

/// Whether `fd` is a directory that is not known here.
pub(crate) fn is_unknown_directory(state: &'static State, fd: RawFd) -> bool {
    let is_directory = |(_, kind, _)| kind == libc::S_IFDIR;
    let unknown = |fields: &state::Fields| fields.table.get(fd) == Entry::Unknown;
    state.started().is_some_and(unknown) && real::kind_cached(fd).is_ok_and(is_directory)
}

/// The lane of a directory that the kernel opened for this process and of which nothing is known
/// here, if the kernel most likely remembers what it is asked of that lane: to learn of the
/// directory would cost three requests, and its close a fourth.
pub(crate) fn unlearned(state: &'static State, fd: RawFd) -> Option<&'static Lane> {
    let fields = state.started()?;
    let unknown = fields.table.get(fd) == Entry::Unknown && namespace::any_lane().is_ok();
    if !unknown || !fields.lanes().any(|lane| lane.kernel.knows()) {
        return None;
    }
    let (device, kind, _) = real::kind_cached(fd).ok()?;
    let lane = if kind == libc::S_IFDIR { fields.lane_on(device).ok()? } else { None };
    lane.filter(|lane| lane.kernel.knows())
}

/// Whether the kernel is to sync `fd`: a directory that this process opened, and did not sync yet.
/// Programs open one to sync what they did in it and close it again: to learn of it would cost as
/// many trips as the kernel's way, and two requests more.
pub(crate) fn is_synced_once(state: &'static State, fd: RawFd) -> bool {
    let fresh = state.started().is_some_and(|fields| fields.table.is_fresh(fd));
    let once = fresh && namespace::any_lane().is_ok() && is_unknown_directory(state, fd);
    if once {
        is_copied(state, fd);
    }
    once
}

/// A descriptor that came from another process: if it is one of a lane, the service learns at once
/// that it has, whatever the patience.
pub(crate) fn take_over(state: &'static State, fd: RawFd) -> Outcome<()> {
    if let Some(lane) = lane_of(state, fd) {
        lane.sessions.hurry();
        find(state, fd)?;
    }
    Ok(())
}

/// The first look at a descriptor: is it a file or directory of a lane?
#[cold]
fn look_at(state: &'static State, fd: RawFd) -> Outcome<Pin> {
    let fields = state.get();
    let (device, kind, node) = real::kind_cached(fd).map_err(|_| Detour::Kernel)?;
    let (file, directory) = (kind == libc::S_IFREG, kind == libc::S_IFDIR);
    let lane = if file || directory { fields.lane_on(device)? } else { None };
    let Some(lane) = lane else {
        fields.table.learn(fd, Entry::Foreign);
        return Err(Detour::Kernel);
    };
    let session = lane.ready()?;
    let record = fields.records().allocate(lane.number()).ok_or(Detour::Kernel)?;
    record.node.store(node, Ordering::Relaxed);
    record.set(
        FileBits::KERNEL_OFFSET | if directory { FileBits::DIRECTORY } else { FileBits::empty() },
    );
    if !fields.table.is_fresh(fd) {
        record.set(FileBits::COMMON);
    }
    if attach(&record, fd, session).is_err() {
        // Such as an O_PATH descriptor, which cannot be asked for a ticket.
        fields.table.learn(fd, Entry::Foreign);
        return Err(Detour::Kernel);
    }
    // Another thread may have been as fast; one record stays.
    let mine = record.again().into_entry();
    let learned = fields.table.learn(fd, mine);
    // The number may have been closed since it was looked at.
    let wrong = || real::node_cached(fd) != Ok(node) && fields.table.unlearn(fd, mine);
    if !learned || wrong() {
        drop(fields.records().adopt(mine));
    }
    Ok(record)
}

/// Gives a record a handle of this session, by the ticket of its descriptor.
#[cold]
fn attach(file: &Record, fd: RawFd, session: &'static Session) -> Outcome<()> {
    let _guard = file.offset_lock.lock();
    if file.session.load(Ordering::Acquire) == session.number {
        return Ok(());
    }
    if deferred_errors::has_lost_bytes(file) {
        return Err(Errno::EIO.into());
    }
    // F_SETFL tells the service last.
    let status = match file.is(FileBits::KERNEL_OFFSET) {
        true => real::status_flags(fd)?,
        false => file.flags.load(Ordering::Relaxed) as i32,
    };
    let errno = real::errno();
    let ticket = real::identify(fd);
    real::set_errno(errno);
    let ticket: [U64; 2] = zerocopy::transmute!(ticket.ok_or(Detour::Kernel)?);
    let mut message = Message::new(Op::Redeem);
    (message.arg[0], message.arg[1]) = (ticket[0].get(), ticket[1].get());
    let reply = call::plain(session, message).map_err(|_| Detour::Kernel)?;
    let former = session::of(file.session.load(Ordering::Relaxed)).filter(|one| one.is_own());
    if let Some(held) = former.and_then(|former| view::keep_locks(former, file)) {
        locks::reclaim(session, reply.handle, &held);
    }
    let told = reply.value[0] as i32;
    let status = match reply.value[0] & UNFLAGGED != 0 && file.session.load(Ordering::Relaxed) == 0
    {
        true => share_flags(fd, told),
        false => status,
    };
    let flags = told & !STATUS_FLAGS | status & STATUS_FLAGS;
    if (flags ^ told) & libc::O_APPEND != 0 && !file.is(FileBits::DIRECTORY) {
        let (handle, flags) = (reply.handle, flags as u32);
        call::plain(session, Message { handle, flags, ..Message::new(Op::SetFlags) })?;
    }
    file.flags.store(flags as u32, Ordering::Relaxed);
    file.handle.store(reply.handle, Ordering::Relaxed);
    file.view.store(0, Ordering::Relaxed);
    file.asked.store(0, Ordering::Relaxed);
    file.session.store(session.number, Ordering::Release);
    Ok(())
}

/// A descriptor that was taken from another process, which was not asked: it is a slot, whose open
/// file has flags that the kernel is told only now. Returns them.
fn share_flags(fd: RawFd, told: i32) -> i32 {
    let flags = rustix::fs::OFlags::from_bits_retain((told & STATUS_FLAGS) as u32);
    // Where the kernel does not take them, the service knows them still.
    let _ = rustix::fs::fcntl_setfl(real::borrow(fd), flags);
    told
}

/// The slot of a file.
pub(crate) fn slot(state: &'static State, file: &Record) -> Option<&'static Slot> {
    file::slot(&state.get().lane(file.lane()).slots, file)
}

/// Makes the kernel's file position count, as [`file::publish`].
pub(crate) fn publish(state: &'static State, file: &Record) -> bool {
    file::publish(&state.get().lane(file.lane()).slots, file)
}

/// Passes a result on; what the kernel is to do after all needs the offset in the kernel.
#[inline]
pub(crate) fn or_kernel<T>(state: &'static State, file: &Record, done: Outcome<T>) -> Outcome<T> {
    if done.as_ref().is_err_and(|error| *error == Detour::Kernel) {
        publish(state, file);
    }
    done
}

/// Publishes the offset of the file that `fd` means, for a call that the kernel or libc will do on
/// it.
pub(crate) fn publish_fd(state: &'static State, fd: RawFd) {
    if let Some(file) = find_known(state, fd) {
        publish(state, &file);
    }
}

/// As [`publish_fd`], for a stream of libc's, which may change the status flags as well.
pub(crate) fn lend_to_libc(state: &'static State, fd: RawFd) {
    match find_known(state, fd) {
        Some(file) => {
            publish(state, &file);
            file.set(FileBits::COMMON | FileBits::FLAGGED);
        }
        None => is_copied(state, fd),
    }
}

/// A number was given out by a call that the kernel did: what was known about it is stale.
#[inline]
pub(crate) fn forget(state: &'static State, fd: RawFd) {
    drop(take(state, fd));
}

/// The kernel opens a file for a call of this process; returns its number as [`forget`] leaves it,
/// and remembers that no other process has a copy. What others can do to it need not be asked for.
pub(crate) fn opened_by(state: &'static State, open: impl FnOnce() -> RawFd) -> RawFd {
    let now = |fields: &state::Fields| {
        (fields.shares.load(Ordering::SeqCst), fields.sharing.load(Ordering::SeqCst))
    };
    let shares = || state.started().map(now);
    let before = shares();
    let fd = open();
    if fd >= 0
        && let Some(fields) = state.started()
    {
        forget(state, fd);
        if namespace::any_lane().is_ok() && !rings::any() {
            fields.table.set_fresh(fd);
            // Another thread is making a process, which may have a copy, or did so meanwhile.
            if shares() != before || before.is_some_and(|(_, sharing)| sharing > 0) {
                fields.table.stale(fd);
            }
        }
    }
    fd
}

/// `fd`, of which nothing is known, is about to be copied or lent to libc: what is done to its open
/// file by another way will not be seen.
pub(crate) fn is_copied(state: &'static State, fd: RawFd) {
    if let Some(fields) = state.started() {
        fields.table.stale(fd);
    }
}

/// Clears the entry of a number; its reference is the caller's, to be dropped after the real close.
#[inline]
pub(crate) fn take(state: &'static State, fd: RawFd) -> Option<Pin> {
    let fields = state.started()?;
    if fields.table.is_blank(fd) {
        return None;
    }
    fields.records().adopt(fields.table.swap(fd, Entry::Unknown))
}

/// As [`take`], before the number is closed: what it means is not looked at until it is, which the
/// caller says.
pub(crate) fn take_to_close(state: &'static State, fd: RawFd) -> Option<Pin> {
    let fields = state.started()?;
    fields.records().adopt(fields.table.closes(fd))
}

/// Has `fd` mean `file`.
pub(crate) fn install(state: &'static State, fd: RawFd, file: Pin) {
    let fields = state.get();
    if fd <= libc::STDERR_FILENO {
        publish(state, &file);
    }
    let old = fields.table.swap(fd, file.into_entry());
    drop(fields.records().adopt(old));
}
