//! The two places where a file's offset can be, and the moves that both know.
//!
//! A published offset lives in the kernel and other processes move it too. A read claims what it
//! got by adding to the position, and looks whether it was still where the read started; a write
//! reserves its range first. Adding is atomic in the kernel, so no two of them get the same bytes.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use polylane_base::Errno;
use polylane_ipc::message::{Message, Op};
use rustix::fs::{SeekFrom, seek};

use super::state::State;
use super::{file, stat};
use crate::fd::record::{FileBits, Record};
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::rights::view;
use crate::session::call;

/// Adds `count` to the kernel's position; returns the position before.
pub(crate) fn advance(fd: RawFd, count: i64) -> Outcome<u64> {
    let after = seek(real::borrow(fd), SeekFrom::Current(count))?;
    Ok(after.wrapping_sub(count as u64))
}

/// Sets the kernel's position.
pub(crate) fn set(fd: RawFd, offset: u64) -> Outcome<()> {
    seek(real::borrow(fd), SeekFrom::Start(offset))?;
    Ok(())
}

/// `lseek(2)`.
pub(crate) fn lseek(state: &'static State, fd: RawFd, offset: i64, whence: i32) -> Outcome<i64> {
    let file = file::find(state, fd)?;
    if file.is(FileBits::DIRECTORY) {
        return Err(Detour::Kernel);
    }
    let done = seek_in(state, &file, fd, offset, whence);
    file::or_kernel(state, &file, done)
}

fn seek_in(
    state: &'static State,
    file: &Record,
    fd: RawFd,
    offset: i64,
    whence: i32,
) -> Outcome<i64> {
    let _guard = file.offset_lock.lock();
    let kernel = file.is(FileBits::KERNEL_OFFSET);
    let target = match whence {
        libc::SEEK_SET | libc::SEEK_CUR if kernel => return Err(Detour::Kernel),
        libc::SEEK_SET => Some(offset),
        libc::SEEK_CUR => (file.offset.load(Ordering::Relaxed) as i64).checked_add(offset),
        libc::SEEK_END => size(state, file, fd)?.checked_add(offset),
        libc::SEEK_DATA | libc::SEEK_HOLE => Some(find(state, file, fd, offset, whence)?),
        _ => return Err(Detour::Kernel),
    };
    let target = target.ok_or(Errno::EINVAL)?;
    let unsigned = u64::try_from(target).map_err(|_| Errno::EINVAL)?;
    file.leaves_end();
    match kernel {
        true => set(fd, unsigned)?,
        false => file.offset.store(unsigned, Ordering::Relaxed),
    }
    Ok(target)
}

/// Size of a file.
pub(crate) fn size(state: &'static State, file: &Record, fd: RawFd) -> Outcome<i64> {
    let (session, handle) = file::usable(state, file, fd)?;
    let attr = match view::attr(session, file) {
        Some(attr) => attr,
        None => stat::ask(session, file, handle)?.ok_or(Detour::Kernel)?,
    };
    i64::try_from(attr.size).map_err(|_| Errno::EOVERFLOW.into())
}

/// The next data or hole.
fn find(state: &'static State, file: &Record, fd: RawFd, offset: i64, whence: i32) -> Outcome<i64> {
    let (session, handle) = file::usable(state, file, fd)?;
    let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
    let message = Message { handle, offset, flags: whence as u32, ..Message::new(Op::Seek) };
    let reply = call::plain(session, message)?;
    i64::try_from(reply.value[0]).map_err(|_| Errno::EOVERFLOW.into())
}

/// Where the file's own offset is now.
pub(crate) fn current(file: &Record, fd: RawFd) -> Outcome<i64> {
    let _guard = file.offset_lock.lock();
    let offset = match file.is(FileBits::KERNEL_OFFSET) {
        true => advance(fd, 0)?,
        false => file.offset.load(Ordering::Relaxed),
    };
    i64::try_from(offset).map_err(|_| Errno::EOVERFLOW.into())
}

/// An offset that a caller gave, or the file's own.
pub(crate) fn given_or_current(file: &Record, fd: RawFd, given: Option<i64>) -> Outcome<u64> {
    let offset = match given {
        Some(offset) => offset,
        None => current(file, fd)?,
    };
    u64::try_from(offset).map_err(|_| Errno::EINVAL.into())
}

/// Moves the file's own offset.
pub(crate) fn store(file: &Record, fd: RawFd, offset: u64) -> Outcome<()> {
    let _guard = file.offset_lock.lock();
    file.leaves_end();
    match file.is(FileBits::KERNEL_OFFSET) {
        true => set(fd, offset),
        false => {
            file.offset.store(offset, Ordering::Relaxed);
            Ok(())
        }
    }
}
