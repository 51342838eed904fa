//! Descriptor numbers: dup, close, fcntl, flock, lockf.

use std::sync::atomic::Ordering::Relaxed;

use libc::{FILE, c_int, c_long, c_uint, off_t};
use polylane_base::Errno;

use super::{answer, arg, cancel, hooks};
use crate::kernel::outcome::{Detour, Outcome, Unanswered};
use crate::kernel::real;
use crate::kernel::thread;
use crate::ops::fd::Closing;
use crate::ops::file;
use crate::ops::lock_range::Range;
use crate::ops::state::STATE;
use crate::ops::{fd as ops, lock, oplock};

/// `fcntl` commands of Linux that the libc crate does not name on every target.
const F_OFD_GETLK: c_int = 36;
const F_OFD_SETLK: c_int = 37;
const F_OFD_SETLKW: c_int = 38;
/// Linux 6.12.
const F_CREATED_QUERY: c_int = 1028;
/// Flags of `close_range`, likewise.
const CLOSE_RANGE_UNSHARE: c_int = 2;
const CLOSE_RANGE_CLOEXEC: c_int = 4;

/// Closes with `close` after what was known of `fd` is cleared.
pub(super) fn ending(fd: c_int, close: impl FnOnce() -> c_int) -> c_int {
    match super::attempt(|| ops::closing(&STATE, fd)) {
        Ok(known) => {
            let rc = close();
            closed(known);
            rc
        }
        Err(Unanswered::Errno(errno)) => super::failed(errno.0),
        Err(Unanswered::Kernel) => close(),
    }
}

unsafe extern "C" {
    /// Bytes that a stream has buffered to be written (stdio_ext.h).
    fn __fpending(stream: *mut FILE) -> usize;
}

/// Before a stream is closed: what is buffered is written under the locks that go with its
/// descriptor, in a process that takes such. What was read ahead stays: to give it back would move
/// an offset that others may share, which libc's `fclose` does not do.
///
/// # Safety
///
/// An open stream that is the caller's to close.
pub(super) unsafe fn flush_under_locks(stream: *mut FILE) -> Result<(), Errno> {
    let locks = STATE.started().is_some_and(|state| state.has_locked.load(Relaxed) > 0);
    // SAFETY: by contract.
    if !locks || unsafe { __fpending(stream) == 0 || libc::fflush(stream) == 0 } {
        return Ok(());
    }
    Err(Errno(real::errno()))
}

/// Ends what a real close has ended. `errno` stays.
pub(super) fn closed(known: Closing) {
    let (mut known, errno) = (Some(known), real::errno());
    let _ = super::attempt(|| {
        drop(known.take());
        Ok(())
    });
    real::set_errno(errno);
}

/// Copies `fd` with `copy`, which returns the new number.
fn copying(fd: c_int, copy: impl FnOnce() -> c_int) -> c_int {
    if thread::is_inside() || STATE.started().is_none() {
        return copy();
    }
    let known = file::find_known(&STATE, fd).map(ops::Source::new);
    if known.is_none() {
        file::is_copied(&STATE, fd);
    }
    let new = copy();
    if new >= 0 && new != fd {
        ops::copied(&STATE, known, fd, new);
    }
    new
}

/// Copies `fd` to `new` with `copy`, which closes what was there.
fn replacing(fd: c_int, new: c_int, copy: impl FnOnce() -> c_int) -> c_int {
    if fd == new {
        return copy();
    }
    let replaced = ops::make_way(&STATE, new);
    let rc = copying(fd, copy);
    if rc >= 0 {
        replaced.closed(&STATE);
    }
    rc
}

/// A `struct flock` behind the third argument of `fcntl`.
///
/// # Safety
///
/// Null or valid.
unsafe fn range(lock: *const libc::flock) -> Outcome<Range> {
    // SAFETY: null or valid, by contract.
    let lock = unsafe { arg::value(lock)? }.ok_or(Detour::Kernel)?;
    Ok(Range {
        kind: lock.l_type.into(),
        whence: lock.l_whence.into(),
        start: lock.l_start,
        len: lock.l_len,
        pid: lock.l_pid,
    })
}

/// The lock commands of `fcntl`.
///
/// # Safety
///
/// Null or valid.
unsafe fn locking(fd: c_int, command: c_int, lock: *mut libc::flock) -> Outcome<c_int> {
    // SAFETY: by contract.
    let asked = unsafe { range(lock)? };
    let ofd = matches!(command, F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW);
    let wait = matches!(command, libc::F_SETLKW | F_OFD_SETLKW);
    if !matches!(asked.kind, libc::F_RDLCK | libc::F_WRLCK | libc::F_UNLCK) {
        return Err(Detour::Kernel);
    }
    if !matches!(command, libc::F_GETLK | F_OFD_GETLK) {
        return lock::set(&STATE, fd, asked, ofd, wait).map(|()| 0);
    }
    if !ofd && asked.kind == libc::F_UNLCK {
        // The kernel refuses it, of whatever file.
        return Err(Detour::Kernel);
    }
    let found = lock::get(&STATE, fd, asked, ofd)?;
    // SAFETY: by contract.
    let mut answer = unsafe { arg::value(lock)? }.ok_or(Detour::Kernel)?;
    answer.l_type = found.kind as _;
    if found.kind != libc::F_UNLCK {
        answer.l_whence = found.whence as _;
        (answer.l_start, answer.l_len, answer.l_pid) = (found.start, found.len, found.pid);
    }
    // SAFETY: as above.
    unsafe { lock.write_unaligned(answer) };
    Ok(0)
}

/// `lockf`, which is `fcntl` on the section that starts at the offset.
fn lockf_section(fd: c_int, command: c_int, len: off_t) -> Outcome<c_int> {
    let section = |kind| Range { kind, whence: libc::SEEK_CUR, start: 0, len, pid: 0 };
    match command {
        libc::F_LOCK => lock::set(&STATE, fd, section(libc::F_WRLCK), false, true)?,
        libc::F_TLOCK => lock::set(&STATE, fd, section(libc::F_WRLCK), false, false)?,
        libc::F_ULOCK => lock::set(&STATE, fd, section(libc::F_UNLCK), false, false)?,
        libc::F_TEST => {
            let found = lock::get(&STATE, fd, section(libc::F_WRLCK), false)?;
            if found.kind != libc::F_UNLCK {
                return Err(polylane_base::Errno::EACCES.into());
            }
        }
        _ => return Err(Detour::Kernel),
    }
    Ok(0)
}

hooks! {
    /// `close`
    ["close", "__close"]
    fn close(fd: c_int) -> c_int {
        cancel::point();
        // SAFETY: the caller's own argument.
        ending(fd, || unsafe { real::close(fd) })
    }

    /// `fclose` closes past our hook.
    ["fclose"]
    fn fclose(stream: *mut FILE) -> c_int {
        // SAFETY: an open stream, by contract.
        let fd = unsafe { libc::fileno(stream) };
        if fd < 0 {
            // SAFETY: the caller's own argument; a stream without a descriptor.
            return unsafe { real::fclose(stream) };
        }
        // SAFETY: the caller's own argument.
        let flushed = unsafe { flush_under_locks(stream) };
        // SAFETY: the caller's own argument.
        let rc = ending(fd, || unsafe { real::fclose(stream) });
        // What could not be written is gone with the flush, and fclose says nothing of it.
        match flushed {
            Err(errno) if rc == 0 => super::failed(errno.0),
            _ => rc,
        }
    }

    /// `close_range`. Whose numbers they are is settled before; what is to be closed by exec only
    /// is the kernel's.
    ["close_range"]
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        let known = flags & !(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC) == 0;
        let valid = known && first <= last;
        if valid && flags & CLOSE_RANGE_UNSHARE != 0 && super::process::unshare_numbers() != 0 {
            return -1;
        }
        let flags = if valid { flags & !CLOSE_RANGE_UNSHARE } else { flags };
        answer!(
            match flags {
                0 if valid => ops::close_range(&STATE, first, last).map(|()| 0),
                _ => Err(Detour::Kernel),
            },
            real::close_range(first, last, flags)
        )
    }

    /// `closefrom`
    ["closefrom"]
    fn closefrom(first: c_int) -> () {
        // SAFETY: as this function; it has no way to fail.
        let _ = unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
    }

    /// `dup`
    ["dup"]
    fn dup(fd: c_int) -> c_int {
        // SAFETY: the caller's own argument.
        copying(fd, || unsafe { real::dup(fd) })
    }

    /// `dup2`
    ["dup2", "__dup2"]
    fn dup2(fd: c_int, new: c_int) -> c_int {
        // SAFETY: the caller's own arguments.
        replacing(fd, new, || unsafe { real::dup2(fd, new) })
    }

    /// `dup3`
    ["dup3"]
    fn dup3(fd: c_int, new: c_int, flags: c_int) -> c_int {
        // SAFETY: the caller's own arguments.
        replacing(fd, new, || unsafe { real::dup3(fd, new, flags) })
    }

    /// `fcntl(fd, command, ...)`: a table.
    ["fcntl", "fcntl64", "__fcntl"]
    fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
        if matches!(command, libc::F_SETLKW | F_OFD_SETLKW) {
            cancel::point();
        }
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                // SAFETY: the caller's own arguments.
                copying(fd, || unsafe { real::fcntl(fd, command, argument) })
            }
            libc::F_GETFL => answer!(ops::flags(&STATE, fd), real::fcntl(fd, command, argument)),
            F_CREATED_QUERY => {
                let made = super::attempt(|| ops::was_made(&STATE, fd));
                // Linux before 6.12 knows no such command.
                // SAFETY: the caller's own arguments.
                match (unsafe { real::fcntl(fd, command, argument) }, made) {
                    (0.., Ok(made)) => made,
                    (told, _) => told,
                }
            }
            libc::F_SETFL => answer!(
                ops::set_flags(&STATE, fd, argument as c_int),
                real::fcntl(fd, command, argument)
            ),
            libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW | F_OFD_GETLK | F_OFD_SETLK
            | F_OFD_SETLKW => answer!(
                waiting
                // SAFETY: null or a struct flock, by contract.
                unsafe { locking(fd, command, argument as *mut libc::flock) },
                real::fcntl(fd, command, argument)
            ),
            libc::F_SETLEASE if argument as c_int != libc::F_UNLCK => answer!(
                // What is ready for a lease gets it from the kernel.
                oplock::begins(&STATE, fd, argument as c_int).and(Err(Detour::Kernel)),
                real::fcntl(fd, command, argument)
            ),
            // SAFETY: the caller's own arguments.
            _ => unsafe { real::fcntl(fd, command, argument) },
        }
    }

    /// `flock`
    ["flock"]
    fn flock(fd: c_int, operation: c_int) -> c_int {
        answer!(waiting lock::flock(&STATE, fd, operation).map(|()| 0), real::flock(fd, operation))
    }

    /// `lockf`
    ["lockf", "lockf64"]
    fn lockf(fd: c_int, command: c_int, len: off_t) -> c_int {
        answer!(waiting lockf_section(fd, command, len), real::lockf(fd, command, len))
    }
}
