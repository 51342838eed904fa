//! Mappings and copies inside the kernel.
//!
//! A mapping must be one of the file's own node, whose pages everyone shares, not of a slot's. The
//! service gives the node a name for one use; what is opened under it is mapped and closed.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use polylane_base::Errno;
use polylane_ipc::message::{MAP_SHARED, Message, Op, SLOT_DIR};

use super::{limit, offset};
use crate::call;
use crate::config;
use crate::file;
use crate::lease;
use crate::outcome::{Detour, Outcome};
use crate::real;
use crate::table::{Record, bit};
use crate::thread;

/// A descriptor of the true node of the file that `fd` means, to be mapped (`shared`) and closed.
/// `Kernel`: map `fd` itself. `EACCES`: it may not be mapped so.
pub(crate) fn true_node(fd: RawFd, shared: bool) -> Outcome<RawFd> {
    let file = file::find(fd)?;
    if file.slot.load(Ordering::Relaxed) == 0 {
        return Err(Detour::Kernel);
    }
    expose(&file, fd, shared, file.access_mode()).inspect_err(|detour| {
        if !matches!(detour, Detour::Errno(Errno::EACCES)) {
            // The slot's own node is mapped then: the mapping keeps it after the last close.
            file::publish(&file);
            file.set(bit::ESCAPED);
            file::share_all();
        }
    })
}

/// The file that `fd` means, opened by the kernel with the same flags.
pub(super) fn open_true_node(file: &Record, fd: RawFd) -> Outcome<RawFd> {
    expose(file, fd, false, file.flags.load(Ordering::Relaxed) as i32)
}

fn expose(file: &Record, fd: RawFd, shared: bool, open_flags: i32) -> Outcome<RawFd> {
    let (session, handle) = file::usable(file, fd)?;
    lease::meet(file);
    let flags = if shared { MAP_SHARED } else { 0 };
    let asked = Message { handle, flags, ..Message::new(Op::Expose) };
    let name = call::plain(session, asked)?.value;
    let name = u128::from(name[0]) | u128::from(name[1]) << 64;
    let open_flags = open_flags | libc::O_CLOEXEC;
    thread::slow(|| open_exposed(&name.to_le_bytes(), open_flags)).map_err(|_| Detour::Kernel)
}

fn open_exposed(ticket: &[u8; 16], flags: i32) -> Outcome<RawFd> {
    let prefix = SLOT_DIR.as_bytes();
    let mut name = [0; SLOT_DIR.len() + 3 + 32];
    name[..prefix.len()].copy_from_slice(prefix);
    name[prefix.len()..prefix.len() + 3].copy_from_slice(b"/x-");
    for (two, byte) in name[prefix.len() + 3..].chunks_exact_mut(2).zip(ticket) {
        let digit = |value: u8| b"0123456789abcdef"[usize::from(value & 15)];
        two.copy_from_slice(&[digit(byte >> 4), digit(*byte)]);
    }
    let mut path = [0; config::MOUNT_BYTES_MAX + 96];
    let path = config::under_mount(&mut path, &name).ok_or(Detour::Kernel)?;
    Ok(real::open_file(path, flags)?)
}

/// Whether `from` is an open file of the lane and `to` takes a stream of bytes.
pub(crate) fn can_send(to: RawFd, from: RawFd) -> Outcome<()> {
    if file::find(from)?.is(bit::DIRECTORY) {
        return Err(Detour::Kernel);
    }
    match real::kind_cached(to)?.1 {
        libc::S_IFSOCK | libc::S_IFIFO => Ok(()),
        _ => Err(Detour::Kernel),
    }
}

/// `copy_file_range` between two files of the lane. Offsets that are given are moved by the caller.
pub(crate) fn copy_range(
    (from, from_at): (RawFd, Option<i64>),
    (to, to_at): (RawFd, Option<i64>),
    len: usize,
) -> Outcome<usize> {
    let (source, target) = (file::find(from)?, file::find(to)?);
    if source.is(bit::DIRECTORY) || target.is(bit::DIRECTORY) || limit::is_set() {
        return Err(Detour::Kernel);
    }
    if let Some(given) = [from_at, to_at].into_iter().flatten().find(|&given| given < 0) {
        // As Linux does it: unsigned.
        let ends = given.cast_unsigned().checked_add(len as u64);
        return Err(if ends.is_none() { Errno::EOVERFLOW } else { Errno::EINVAL }.into());
    }
    let (session, handle) = file::usable(&source, from)?;
    let (again, dir) = file::usable(&target, to)?;
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
