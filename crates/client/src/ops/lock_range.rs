//! Ranges of locks, as fcntl(2) has them, and what is asked and answered about them.

use std::os::fd::RawFd;

use polylane_base::Errno;
use polylane_ipc::message::{LockFlags, Message, Op, Reply};

use crate::kernel::outcome::Outcome;
use crate::kernel::real;

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
    let flags = if ofd { LockFlags::OFD.bits() } else { 0 };
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
