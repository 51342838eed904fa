//! The life of an open file: found, bound, shared with other processes, closed.
//!
//! # Offsets
//!
//! A file that this process alone can reach keeps its offset here ("private"). As soon as anybody
//! else may use the kernel's descriptor - another process, stdio inside libc, a system call that is
//! not hooked - the offset is *published*: stored in the kernel's file position, which counts from
//! then on (`KERNEL_OFFSET`), for good. Descriptors 0 to 2 are stdio's and start published; so does
//! every descriptor that was inherited.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::Ordering;

use polylane_base::Errno;
use polylane_ipc::message::{APPENDS, Message, Op, SAYS_APPENDS};
use rustix::fs::{SeekFrom, seek};

use crate::fd::preopened::Slot;
use crate::fd::rings;
use crate::fd::table::{Entry, Glance, Pin, Record, bit};
use crate::kernel::config;
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::ops::{lock, own};
use crate::rights::handles;
use crate::rights::lease;
use crate::rights::view;
use crate::session::call;
use crate::session::path;
use crate::session::{self, Mark, Session};
use crate::state;

/// The open file that `fd` means; an unknown number is looked at.
#[inline]
pub(crate) fn find(fd: RawFd) -> Outcome<Pin> {
    path::mount()?;
    let state = state::get();
    match state.records.find(&state.table, fd) {
        Ok(pin) if !rings::close_unseen() || rings::is_still(fd, &pin) => Ok(pin),
        Ok(_) => {
            forget(fd);
            look_at(fd)
        }
        Err(Entry::Unknown) if fd >= 0 => look_at(fd),
        Err(_) => Err(Detour::Kernel),
    }
}

/// A look at the open file that `fd` is known to mean, for what is read of its view.
#[inline]
pub(crate) fn glance(fd: RawFd) -> Option<Glance> {
    path::mount().ok()?;
    let state = state::started().filter(|_| !rings::close_unseen())?;
    state.records.glance(&state.table, fd)
}

/// The open file that `fd` is known to mean.
#[inline]
pub(crate) fn find_known(fd: RawFd) -> Option<Pin> {
    path::mount().ok()?;
    let state = state::started()?;
    state.records.find(&state.table, fd).ok()
}

/// A file ready for a request: its session and handle.
#[inline]
pub(crate) fn usable(file: &Record, fd: RawFd) -> Outcome<(&'static Session, u64)> {
    let session = path::ready()?;
    if file.session.load(Ordering::Acquire) != session.number {
        attach(file, fd, session)?;
    }
    Ok((session, file.handle.load(Ordering::Relaxed)))
}

/// Whether `fd` is a regular file or a directory of the lane; no session is needed.
pub(crate) fn is_of_lane(fd: RawFd) -> bool {
    let Ok(device) = path::mount().and_then(|_| path::device()) else { return false };
    match state::get().table.get(fd) {
        Entry::Record(_) if !rings::close_unseen() => return true,
        Entry::Foreign => return false,
        _ => {}
    }
    real::kind_cached(fd)
        .is_ok_and(|(of, kind, _)| of == device && matches!(kind, libc::S_IFREG | libc::S_IFDIR))
}

/// Whether `fd` is a directory that is not known here.
pub(crate) fn is_unknown_directory(fd: RawFd) -> bool {
    let is_directory = |(_, kind, _)| kind == libc::S_IFDIR;
    let unknown = |state: &state::Fields| state.table.get(fd) == Entry::Unknown;
    state::started().is_some_and(unknown) && real::kind_cached(fd).is_ok_and(is_directory)
}

/// Whether the kernel is to sync `fd`: a directory that this process opened, and did not sync yet.
/// Programs open one to sync what they did in it and close it again: to learn of it would cost as
/// many trips as the kernel's way, and two requests more.
pub(crate) fn is_synced_once(fd: RawFd) -> bool {
    let fresh = state::started().is_some_and(|state| state.table.is_fresh(fd));
    let once = fresh && path::mount().is_ok() && is_unknown_directory(fd);
    if once {
        is_copied(fd);
    }
    once
}

/// A descriptor that came from another process: if it is one of the lane, the service learns at
/// once that it has, whatever the patience.
pub(crate) fn take_over(fd: RawFd) -> Outcome<()> {
    if is_of_lane(fd) {
        state::get().sessions.hurry();
        find(fd)?;
    }
    Ok(())
}

/// The first look at a descriptor: is it a file or directory of the lane?
#[cold]
fn look_at(fd: RawFd) -> Outcome<Pin> {
    let state = state::get();
    let (device, kind, node) = real::kind_cached(fd).map_err(|_| Detour::Kernel)?;
    let (file, directory) = (kind == libc::S_IFREG, kind == libc::S_IFDIR);
    if !(file || directory) || device != path::device()? {
        state.table.learn(fd, Entry::Foreign);
        return Err(Detour::Kernel);
    }
    let session = path::ready()?;
    let record = state.records.allocate().ok_or(Detour::Kernel)?;
    record.node.store(node, Ordering::Relaxed);
    record.set(bit::KERNEL_OFFSET | if directory { bit::DIRECTORY } else { 0 });
    if !state.table.is_fresh(fd) {
        record.set(bit::COMMON);
    }
    if attach(&record, fd, session).is_err() {
        // Such as an O_PATH descriptor, which cannot be asked for a ticket.
        state.table.learn(fd, Entry::Foreign);
        return Err(Detour::Kernel);
    }
    // Another thread may have been as fast; one record stays.
    let mine = record.again().into_entry();
    let learned = state.table.learn(fd, mine);
    // The number may have been closed since it was looked at.
    let wrong = || real::node_cached(fd) != Ok(node) && state.table.unlearn(fd, mine);
    if !learned || wrong() {
        drop(state.records.adopt(mine));
    }
    Ok(record)
}

/// Whether changes of the file may have been in the stream of a service that died: they are lost.
fn lost_bytes(file: &Record) -> bool {
    lease::is_streamed(file.handle.load(Ordering::Relaxed))
        && session::of(file.session.load(Ordering::Relaxed))
            .filter(|former| former.is_own())
            .is_some_and(|former| !former.channel.stream().is_all_done())
}

/// Gives a record a handle of this session, by the ticket of its descriptor.
#[cold]
fn attach(file: &Record, fd: RawFd, session: &'static Session) -> Outcome<()> {
    let _guard = file.offset_lock.lock();
    if file.session.load(Ordering::Acquire) == session.number {
        return Ok(());
    }
    if lost_bytes(file) {
        return Err(Errno::EIO.into());
    }
    // Who hears of F_SETFL last is the service.
    let status = match file.is(bit::KERNEL_OFFSET) {
        true => real::status_flags(fd)?,
        false => file.flags.load(Ordering::Relaxed) as i32,
    };
    let errno = real::errno();
    let ticket = real::identify(fd);
    real::set_errno(errno);
    let ticket = u128::from_le_bytes(ticket.ok_or(Detour::Kernel)?);
    let mut message = Message::new(Op::Redeem);
    message.arg[0] = ticket as u64;
    message.arg[1] = (ticket >> 64) as u64;
    let reply = call::plain(session, message).map_err(|_| Detour::Kernel)?;
    let former = session::of(file.session.load(Ordering::Relaxed)).filter(|one| one.is_own());
    if let Some(held) = former.and_then(|former| view::keep_locks(former, file)) {
        lock::reclaim(session, reply.handle, &held);
    }
    let told = reply.value[0] as i32;
    let flags = told & !STATUS_FLAGS | status & STATUS_FLAGS;
    if (flags ^ told) & libc::O_APPEND != 0 && !file.is(bit::DIRECTORY) {
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

/// The slot of a file.
pub(crate) fn slot(file: &Record) -> Option<&'static Slot> {
    let index = file.slot.load(Ordering::Relaxed).checked_sub(1)?;
    state::get().slots.get(index)
}

/// Before a write: takes the status flags over from the kernel where others may have changed them.
/// What the service is to be told of them with the write.
#[inline]
pub(crate) fn status_now(file: &Record, fd: RawFd) -> Outcome<u32> {
    if file.is(bit::COMMON) { take_status(file, fd) } else { Ok(0) }
}

fn take_status(file: &Record, fd: RawFd) -> Outcome<u32> {
    let (known, now) = (file.flags.load(Ordering::Relaxed) as i32, real::status_flags(fd)?);
    if (known ^ now) & STATUS_FLAGS != 0 {
        let flags = known & !STATUS_FLAGS | now & STATUS_FLAGS;
        file.flags.store(flags as u32, Ordering::Relaxed);
    }
    let appends = if now & libc::O_APPEND != 0 { APPENDS } else { 0 };
    Ok(SAYS_APPENDS | appends)
}

/// Makes the kernel's file position count. Whether it did not before: then the kernel has heard of
/// the file's size just now.
pub(crate) fn publish(file: &Record) -> bool {
    if file.is(bit::KERNEL_OFFSET) {
        return false;
    }
    let _guard = file.offset_lock.lock();
    let Some(slot) = slot(file).filter(|_| !file.is(bit::KERNEL_OFFSET)) else { return false };
    let fd = real::borrow(slot.master());
    // A private offset was checked when it was set: the kernel takes it.
    let _ = seek(fd, SeekFrom::Start(file.offset.load(Ordering::Relaxed)));
    let flags = file.flags.load(Ordering::Relaxed) as i32 & STATUS_FLAGS;
    if flags != 0 {
        let _ = rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::from_bits_retain(flags as u32));
        file.set(bit::FLAGGED);
    }
    tell_size(fd);
    file.leaves_end();
    file.set(bit::KERNEL_OFFSET);
    true
}

/// Lets the kernel ask for the size of a file: sendfile, splice and access to mapped pages stop at
/// the size that the kernel last heard of, which is 0 for a slot that only the library has used.
pub(crate) fn tell_size(fd: BorrowedFd<'_>) {
    let _ = rustix::fs::fstat(fd);
}

/// What `F_SETFL` can set and a file of the lane honours or reports.
pub(crate) const STATUS_FLAGS: i32 = libc::O_APPEND | libc::O_NONBLOCK;

/// Passes a result on; what the kernel is to do after all needs the offset in the kernel.
#[inline]
pub(crate) fn or_kernel<T>(file: &Record, done: Outcome<T>) -> Outcome<T> {
    if done.as_ref().is_err_and(|error| *error == Detour::Kernel) {
        publish(file);
    }
    done
}

/// Publishes the offset of the file that `fd` means, for a call that the kernel or libc will do on
/// it.
pub(crate) fn publish_fd(fd: RawFd) {
    if let Some(file) = find_known(fd) {
        publish(&file);
    }
}

/// As [`publish_fd`], for a stream of libc's, which may change the status flags as well.
pub(crate) fn lend_to_libc(fd: RawFd) {
    match find_known(fd) {
        Some(file) => {
            publish(&file);
            file.set(bit::COMMON | bit::FLAGGED);
        }
        None => is_copied(fd),
    }
}

/// The process that gets copies of our descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heir {
    /// One that has all of them.
    Process,
    /// A program, which has those that no exec closes.
    Program,
}

/// To be called before other processes get copies of our descriptors: what they get is of the
/// files' own nodes. Where that cannot be done a slot is the file's for good.
pub(crate) fn share_all() {
    share_with(Heir::Process);
}

/// As [`share_all`], of what an heir gets.
pub(crate) fn share_with(heir: Heir) {
    let Some(state) = state::started().filter(|_| config::mount().is_some()) else { return };
    state.shares.fetch_add(1, Ordering::SeqCst);
    state.table.stale_all();
    let (mut any, mut kept) = (false, false);
    state.records.each(|file| {
        if file.slot.load(Ordering::Relaxed) == 0 {
            file.set(bit::COMMON);
        } else if !file.is(bit::SHARED) && (heir == Heir::Process || is_left_by_exec(file)) {
            any = true;
            kept |= !share(file);
        }
    });
    if any && let Some(session) = state.sessions.present() {
        // The slots of files at rest are not to belong to copies.
        handles::close_all(session);
    }
    if kept {
        tell_shared(state);
    }
}

/// Readies a file for others that get copies of its descriptor. False: its slot must be told to be
/// theirs.
fn share(file: &Pin) -> bool {
    let settled = own::settle(file).is_ok();
    if !settled {
        publish(file);
        file.set(bit::ESCAPED | bit::SHARED);
    }
    file.set(bit::COMMON);
    settled
}

/// To be called before a descriptor is sent to another process.
pub(crate) fn share_one(fd: RawFd) {
    let Some(state) = state::started().filter(|_| config::mount().is_some()) else { return };
    state.shares.fetch_add(1, Ordering::SeqCst);
    state.table.stale(fd);
    if let Some(file) = find_known(fd)
        && !file.is(bit::SHARED)
        && !share(&file)
    {
        tell_shared(state);
    }
}

/// Whether a number that means the file outlives an exec.
fn is_left_by_exec(file: &Pin) -> bool {
    let mut left = false;
    state::get().table.each_known(file.index(), |fd| left |= !real::closes_on_exec(fd));
    left
}

fn tell_shared(state: &'static state::Fields) {
    if let Some(session) = state.sessions.present() {
        // Without an answer the session is over, and bound slots belong to their descriptors
        // anyway.
        let _ = call::plain(session, Message::new(Op::ShareAll));
    }
}

/// Numbers may be closed where nobody sees it: what is open is kept open by them alone. To be
/// called when all is shared.
pub(crate) fn leave_to_numbers() {
    let Some(state) = state::started() else { return };
    state.records.each(|file| {
        let _guard = file.offset_lock.lock();
        let node = slot(file).and_then(|slot| real::node_cached(slot.master()).ok());
        if let Some(node) = node {
            file.node.store(node, Ordering::Relaxed);
            let place = file.slot.swap(0, Ordering::AcqRel) - 1;
            state.slots.release(place, None);
        }
    });
}

/// Leaves the session: who we are has changed, or its descriptors are in the way. Files attach to
/// the next one when they are used.
pub(crate) fn leave_session() {
    if let Some(session) = state::started().and_then(|state| state.sessions.present()) {
        // First: nothing is made by the stream between the two.
        lease::leave(session);
    }
    share_all();
    if let Some(state) = state::started() {
        // Free slots are of no use to the next session, and those of files at rest hold these open.
        state.slots.shed();
        state.sessions.leave();
        state.cwd.changed();
    }
}

/// A number was given out by a call that the kernel did: what was known about it is stale.
#[inline]
pub(crate) fn forget(fd: RawFd) {
    drop(take(fd));
}

/// The kernel opens a file for a call of this process; returns its number as [`forget`] leaves it,
/// and remembers that no other process has a copy. What others can do to it need not be asked for.
pub(crate) fn opened_by(open: impl FnOnce() -> RawFd) -> RawFd {
    let now = |state: &state::Fields| {
        (state.shares.load(Ordering::SeqCst), state.sharing.load(Ordering::SeqCst))
    };
    let shares = || state::started().map(now);
    let before = shares();
    let fd = open();
    if fd >= 0
        && let Some(state) = state::started()
    {
        forget(fd);
        if path::mount().is_ok() && !rings::any() {
            state.table.set_fresh(fd);
            // Another thread is making a process, which may have a copy, or did so meanwhile.
            if shares() != before || before.is_some_and(|(_, sharing)| sharing > 0) {
                state.table.stale(fd);
            }
        }
    }
    fd
}

/// `fd`, of which nothing is known, is about to be copied or lent to libc: what is done to its open
/// file by another way will not be seen.
pub(crate) fn is_copied(fd: RawFd) {
    if let Some(state) = state::started() {
        state.table.stale(fd);
    }
}

/// Clears the entry of a number; its reference is the caller's, to be dropped after the real close.
#[inline]
pub(crate) fn take(fd: RawFd) -> Option<Pin> {
    let state = state::started()?;
    if state.table.is_blank(fd) {
        return None;
    }
    state.records.adopt(state.table.swap(fd, Entry::Unknown))
}

/// As [`take`], before the number is closed: what it means is not looked at until it is, which the
/// caller says.
pub(crate) fn take_to_close(fd: RawFd) -> Option<Pin> {
    let state = state::started()?;
    state.records.adopt(state.table.closes(fd))
}

/// Has `fd` mean `file`.
pub(crate) fn install(fd: RawFd, file: Pin) {
    let state = state::get();
    if fd <= libc::STDERR_FILENO {
        publish(&file);
    }
    let old = state.table.swap(fd, file.into_entry());
    drop(state.records.adopt(old));
}

/// A file was shared while it was being opened, before it was bound: say it again.
pub(crate) fn share_late(file: &Record) {
    if file.is(bit::SHARED) {
        tell_shared(state::get());
    }
}

/// The last reference is gone: the service closes the file, and its slot is free again unless it
/// escaped; or the file rests. Called by `Pin` only.
pub(crate) fn finish(file: &Record) {
    if handles::lies_down(file) {
        return;
    }
    let closed = close_handle(file).ok().filter(|_| !file.is(bit::ESCAPED));
    if let Some(index) = file.slot.load(Ordering::Relaxed).checked_sub(1) {
        if let Some(slot) = slot(file).filter(|_| closed.is_some() && file.is(bit::FLAGGED)) {
            let master = real::borrow(slot.master());
            let _ = rustix::fs::fcntl_setfl(master, rustix::fs::OFlags::empty());
        }
        state::get().slots.release(index, closed);
    }
}

/// Posts the close; nobody waits for it, unless others may be waiting for the file's locks.
fn close_handle(file: &Record) -> Outcome<Mark> {
    let handle = file.handle.load(Ordering::Relaxed);
    let number = file.session.load(Ordering::Relaxed);
    if number == 0 {
        // Never opened: the open failed, or was not answered.
        return Ok(Mark::default());
    }
    let session = state::get().sessions.present().ok_or(Detour::Kernel)?;
    if session.number != number {
        return Err(Detour::Kernel);
    }
    let streamed = lease::is_streamed(handle);
    if streamed && !file.is(bit::LOCKED) && lease::close(session, handle) {
        return Ok(Mark::default());
    }
    let message = Message { handle, ..Message::new(Op::Close) };
    let closed = match file.is(bit::LOCKED) {
        true => call::plain(session, message).map(|_| Mark::default()),
        false => session.post(&message),
    };
    if streamed {
        lease::closes(handle, Some(&closed));
    }
    closed
}
