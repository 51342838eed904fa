//! Descriptor numbers: dup, close, flags.
//!
//! The kernel does the real thing in every case; what is kept here is which file each number means.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use polylane_base::Errno;
use polylane_ipc::message::{Message, Op};

use super::state::{Fields, State};
use super::{file, lock, own, share};
use crate::fd::record::{FileBits, Record};
use crate::fd::rings;
use crate::fd::table::Pin;
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::kernel::reserved;
use crate::kernel::thread;
use crate::session::call;

/// What was known of a number that is about to be closed. Dropped after the real close.
pub(crate) struct Closing {
    state: &'static State,
    _file: Option<Pin>,
    /// -1: it is not the library's to keep account of.
    fd: RawFd,
}

impl Drop for Closing {
    fn drop(&mut self) {
        if let Some(fields) = self.state.started() {
            fields.table.closed(self.fd);
        }
    }
}

/// To be called before a close, whatever closes it. `EBADF` for the library's own descriptors.
pub(crate) fn closing(state: &'static State, fd: RawFd) -> Outcome<Closing> {
    if thread::is_inside() {
        return Ok(Closing { state, _file: None, fd: -1 });
    }
    if reserved::contains(fd) {
        return Err(Errno::EBADF.into());
    }
    rings::settle();
    lock::find_for_close(state, fd);
    let file = file::take_to_close(state, fd);
    if let Some(file) = &file {
        lock::give_up(state, file);
    }
    Ok(Closing { state, _file: file, fd })
}

/// What `dup2` closes: to be made before it, and told when it succeeded.
pub(crate) struct Replaced(Option<Pin>);

/// To be called before `dup2`: our own descriptor on that number moves out of the way, or, if it is
/// the channel's, the session is left. What is known of the number goes when the copy is installed.
pub(crate) fn make_way(state: &'static State, new: RawFd) -> Replaced {
    if thread::is_inside() {
        return Replaced(None);
    }
    if reserved::contains(new) && !moves_master(state.get(), new) {
        share::leave_sessions(state);
        reserved::forget(new);
    }
    lock::find_for_close(state, new);
    Replaced(file::find_known(state, new))
}

/// Moves the slot's or directory's master on `fd` away, if it is one.
fn moves_master(state: &'static Fields, fd: RawFd) -> bool {
    state.lanes().any(|lane| lane.slots.move_master(fd) || lane.directories.move_master(fd))
}

impl Replaced {
    /// The number was closed.
    pub(crate) fn closed(self, state: &'static State) {
        if let Some(file) = self.0 {
            lock::give_up(state, &file);
        }
    }
}

/// A file of which the kernel is about to copy a descriptor.
pub(crate) struct Source {
    file: Pin,
    /// It is of its own node already. Afterwards nothing can be told: the copy may be of the slot
    /// that the file had.
    settled: bool,
}

impl Source {
    /// To be made before the copy.
    pub(crate) fn new(file: Pin) -> Source {
        let settled = file.slot.load(Ordering::Acquire) == 0;
        Source { file, settled }
    }
}

/// `from`, which means `source` if anything, was copied to `new` by the kernel.
pub(crate) fn copied(state: &'static State, source: Option<Source>, from: RawFd, new: RawFd) {
    match source {
        Some(Source { file, settled: true }) if is_known(new) => file::install(state, new, file),
        Some(Source { file, .. }) if is_known(new) => {
            file::install(state, new, file.again());
            own::follow(&file, from, new);
        }
        Some(Source { file, .. }) if new >= 0 => {
            // A copy that is not in the table: nobody will see it go.
            share::share_one(state, from);
            own::follow(&file, from, new);
        }
        _ => file::forget(state, new),
    }
}

/// Whether a number can be noted in the table.
fn is_known(fd: RawFd) -> bool {
    fd >= 0 && (fd as usize) < crate::kernel::FDS_MAX
}

/// `F_GETFL`. Where the kernel's flags may be changed by others, the kernel knows best.
pub(crate) fn flags(state: &'static State, fd: RawFd) -> Outcome<i32> {
    let file = file::find_known(state, fd).ok_or(Detour::Kernel)?;
    if file.is(FileBits::KERNEL_OFFSET | FileBits::DIRECTORY) {
        return Err(Detour::Kernel);
    }
    Ok(file.flags.load(Ordering::Relaxed) as i32)
}

/// `F_CREATED_QUERY`. The kernel would tell of the slot's node, which its client made.
pub(crate) fn was_made(state: &'static State, fd: RawFd) -> Outcome<i32> {
    let file = file::find_known(state, fd).ok_or(Detour::Kernel)?;
    match file.is(FileBits::MADE) {
        true => Ok(1),
        false if file.slot.load(Ordering::Relaxed) > 0 => Ok(0),
        false => Err(Detour::Kernel),
    }
}

/// Flags that `F_SETFL` changes.
const SETTABLE: i32 =
    libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME | libc::O_ASYNC;

/// `F_SETFL`: told to the service, and to the kernel where its flags count.
pub(crate) fn set_flags(state: &'static State, fd: RawFd, flags: i32) -> Outcome<i32> {
    let file = file::find(state, fd)?;
    if file.is(FileBits::DIRECTORY) {
        return Err(Detour::Kernel);
    }
    if let Err(error) = tell_flags(state, &file, fd, flags) {
        // What the kernel makes of it, it alone will know.
        file::publish(state, &file);
        file.set(FileBits::COMMON | FileBits::FLAGGED);
        return Err(error);
    }
    match file.is(FileBits::KERNEL_OFFSET) {
        true => {
            file.set(FileBits::FLAGGED);
            Err(Detour::Kernel)
        }
        false => Ok(0),
    }
}

fn tell_flags(state: &'static State, file: &Record, fd: RawFd, flags: i32) -> Outcome<()> {
    let (session, handle) = file::usable(state, file, fd)?;
    let old = file.flags.load(Ordering::Relaxed) as i32;
    let new = old & !SETTABLE | flags & SETTABLE;
    if (old ^ new) & (libc::O_APPEND | libc::O_DIRECT) != 0 {
        let message = Message { handle, flags: new as u32, ..Message::new(Op::SetFlags) };
        call::plain(session, message)?;
    }
    file.flags.store(new as u32, Ordering::Relaxed);
    Ok(())
}

/// `close_range(2)` of numbers that are this process's: every number on its own where something is
/// known of it, the rest in runs between our own descriptors.
pub(crate) fn close_range(state: &'static State, first: u32, last: u32) -> Outcome<()> {
    let Some(fields) = state.started().filter(|_| !thread::is_inside()) else {
        return Err(Detour::Kernel);
    };
    for fd in first..last.saturating_add(1).min(fields.table.top()) {
        if reserved::contains(fd as RawFd) {
            continue;
        }
        lock::find_for_close(state, fd as RawFd);
        let known = file::take(state, fd as RawFd);
        if let Some(file) = known {
            lock::give_up(state, &file);
            real::close_quietly(fd as RawFd);
        }
    }
    let mut from = first;
    while let Some(own) = reserved::next(from).filter(|&own| own <= last) {
        if own > from {
            real::close_run(from, own - 1)?;
        }
        from = own + 1;
    }
    if from <= last {
        real::close_run(from, last)?;
    }
    Ok(())
}
