//! Mappings and copies inside the kernel.

use std::os::fd::RawFd;

use polylane_base::Errno;
use polylane_ipc::message::{MAP_SHARED, Message, Op};

use super::state::State;
use super::{file, limit, offset, own, share};
use crate::fd::record::FileBits;
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::session::call;

/// Before `fd` is mapped, `shared` or not: the mapping must be one of the file's own node, whose
/// pages everybody shares. `EACCES`: it may not be mapped so.
pub(crate) fn before_mapping(state: &'static State, fd: RawFd, shared: bool) -> Outcome<()> {
    let file = file::find(state, fd)?;
    if file.is(FileBits::DIRECTORY) {
        return Ok(());
    }
    if shared {
        let (session, handle) = file::usable(state, &file, fd)?;
        call::plain(session, Message { handle, flags: MAP_SHARED, ..Message::new(Op::Expose) })?;
    }
    if own::settle(state, &file).is_err() {
        // The slot's own node is mapped then: the mapping keeps it after the last close.
        share::share_one(state, fd);
    }
    Ok(())
}

/// Whether `from` is an open file of the lane and `to` takes a stream of bytes.
pub(crate) fn can_send(state: &'static State, to: RawFd, from: RawFd) -> Outcome<()> {
    if file::find(state, from)?.is(FileBits::DIRECTORY) {
        return Err(Detour::Kernel);
    }
    match real::kind_cached(to)?.1 {
        libc::S_IFSOCK | libc::S_IFIFO => Ok(()),
        _ => Err(Detour::Kernel),
    }
}

/// `copy_file_range` between two files of the lane. Offsets that are given are moved by the caller.
pub(crate) fn copy_range(
    state: &'static State,
    (from, from_at): (RawFd, Option<i64>),
    (to, to_at): (RawFd, Option<i64>),
    len: usize,
) -> Outcome<usize> {
    let (source, target) = (file::find(state, from)?, file::find(state, to)?);
    if source.is(FileBits::DIRECTORY)
        || target.is(FileBits::DIRECTORY)
        || limit::is_set_for(state, len)
    {
        return Err(Detour::Kernel);
    }
    if let Some(given) = [from_at, to_at].into_iter().flatten().find(|&given| given < 0) {
        // As Linux does it: unsigned.
        let ends = given.cast_unsigned().checked_add(len as u64);
        return Err(if ends.is_none() { Errno::EOVERFLOW } else { Errno::EINVAL }.into());
    }
    let (session, handle) = file::usable(state, &source, from)?;
    let (again, dir) = file::usable(state, &target, to)?;
    if session.number != again.number || from_at.is_none() && to_at.is_none() && from == to {
        return Err(Detour::Kernel);
    }
    let wrong = source.access_mode() == libc::O_WRONLY
        || target.access_mode() == libc::O_RDONLY
        || target.appends();
    if wrong {
        return Err(Errno::EBADF.into());
    }
    let start = offset::given_or_current(&source, from, from_at)?;
    let at = offset::given_or_current(&target, to, to_at)?;
    // Unsigned here, too.
    if start.max(at).checked_add(len as u64).is_none() {
        return Err(Errno::EOVERFLOW.into());
    }
    let mut message = Message::new(Op::CopyRange);
    (message.handle, message.dir, message.offset) = (handle, dir, start);
    message.arg[0] = at;
    message.length = len as u64;
    let count = call::count(&call::plain(session, message)?);
    if from_at.is_none() {
        offset::store(&source, from, start + count as u64)?;
    }
    if to_at.is_none() {
        offset::store(&target, to, at + count as u64)?;
    }
    Ok(count)
}
