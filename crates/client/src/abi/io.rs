//! read, write and their families; lseek; copies inside the kernel.

use std::ffi::c_void;

use libc::{c_int, c_uint, iovec, off_t, size_t, ssize_t};

use super::{answer, arg, cancel, hooks};
use crate::kernel::outcome::{Detour, Outcome, Unanswered};
use crate::kernel::real;
use crate::ops;
use crate::ops::file;
use crate::ops::io::Position;
use crate::ops::state::STATE;

/// The count as C returns it. It fits: no buffer is longer than `isize::MAX`.
fn count(done: Outcome<usize>) -> Outcome<ssize_t> {
    done.map(|count| count as ssize_t)
}

/// Offset and flags of `preadv2`: -1 is the file's own offset; flags are the kernel's.
fn position(offset: off_t, flags: c_int) -> Outcome<Position> {
    match (flags, offset) {
        (0, -1) => Ok(Position::Own),
        (0, offset) => Position::at(offset),
        _ => Err(Detour::Kernel),
    }
}

/// `RWF_DSYNC`, `RWF_SYNC`
const SYNCS: [c_int; 2] = [2, 4];
/// `RWF_APPEND`, `RWF_NOAPPEND`
const PLACES: [c_int; 2] = [0x10, 0x20];

/// Whether flags of `pwritev2` say where to write, and what they say: at the end? `None`: the
/// kernel knows.
fn place(flags: c_int) -> Option<bool> {
    let place = flags & !(SYNCS[0] | SYNCS[1]);
    PLACES.contains(&place).then_some(place == PLACES[0])
}

/// Writes where flags say, if they say that: at the end or at an offset, whatever the open file
/// does. Syncs as they say.
fn write_placed(
    fd: c_int,
    from: ops::io::Sources<'_, '_>,
    offset: off_t,
    flags: c_int,
) -> Outcome<usize> {
    let position = if offset == -1 { Position::Own } else { Position::at(offset)? };
    let count = match flags & !(SYNCS[0] | SYNCS[1]) {
        0 => ops::io::write(&STATE, fd, from, position)?,
        _ => {
            let at_end = place(flags).ok_or(Detour::Kernel)?;
            ops::io::write_placed(&STATE, fd, from, position, at_end)?
        }
    };
    if count > 0 && flags & (SYNCS[0] | SYNCS[1]) != 0 {
        ops::attr::fsync(&STATE, fd, flags & SYNCS[1] == 0)?;
    }
    Ok(count)
}

/// An optional offset that the kernel would read.
///
/// # Safety
///
/// Null or valid.
unsafe fn given(offset: *mut off_t) -> Outcome<Option<i64>> {
    // SAFETY: null or valid, by contract.
    unsafe { arg::value(offset) }
}

hooks! {
    /// `read`
    ["read", "__read"]
    fn read(fd: c_int, into: *mut c_void, len: size_t) -> ssize_t {
        cancel::point();
        answer!(
            count({
                // SAFETY: `len` bytes to write, by contract.
                let into = unsafe { arg::sink(into, len)? };
                ops::io::read(&STATE, fd, &mut [into], Position::Own)
            }),
            real::read(fd, into, len)
        )
    }

    /// `read` under `_FORTIFY_SOURCE`.
    ["__read_chk"]
    fn read_chk(fd: c_int, into: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        check(len <= room);
        // SAFETY: as this function.
        unsafe { read(fd, into, len) }
    }

    /// `write`
    ["write", "__write"]
    fn write(fd: c_int, from: *const c_void, len: size_t) -> ssize_t {
        cancel::point();
        answer!(
            // SAFETY: `len` bytes to read, by contract.
            count(ops::io::write(&STATE, fd, &[unsafe { arg::source(from, len)? }], Position::Own)),
            real::write(fd, from, len)
        )
    }

    /// `pread`
    ["pread", "pread64", "__pread64"]
    fn pread(fd: c_int, into: *mut c_void, len: size_t, offset: off_t) -> ssize_t {
        cancel::point();
        answer!(
            // SAFETY: `len` bytes to write, by contract.
            count(ops::io::read_one(&STATE, fd, unsafe { arg::sink(into, len)? }, offset)),
            real::pread(fd, into, len, offset)
        )
    }

    /// `pread` under `_FORTIFY_SOURCE`.
    ["__pread_chk", "__pread64_chk"]
    fn pread_chk(fd: c_int, into: *mut c_void, len: size_t, offset: off_t, room: size_t)
        -> ssize_t
    {
        check(len <= room);
        // SAFETY: as this function.
        unsafe { pread(fd, into, len, offset) }
    }

    /// `pwrite`
    ["pwrite", "pwrite64", "__pwrite64"]
    fn pwrite(fd: c_int, from: *const c_void, len: size_t, offset: off_t) -> ssize_t {
        cancel::point();
        answer!(
            // SAFETY: `len` bytes to read, by contract.
            count(ops::io::write_one(&STATE, fd, unsafe { arg::source(from, len)? }, offset)),
            real::pwrite(fd, from, len, offset)
        )
    }

    /// `readv`
    ["readv"]
    fn readv(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t {
        cancel::point();
        answer!(
            // SAFETY: valid iovecs, by contract.
            count(unsafe {
                arg::with_sinks(parts, n, |to| ops::io::read(&STATE, fd, to, Position::Own))
            }),
            published(fd, || real::readv(fd, parts, n))
        )
    }

    /// `writev`
    ["writev"]
    fn writev(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t {
        cancel::point();
        answer!(
            // SAFETY: valid iovecs, by contract.
            count(unsafe {
                arg::with_sources(parts, n, |from| ops::io::write(&STATE, fd, from, Position::Own))
            }),
            published(fd, || real::writev(fd, parts, n))
        )
    }

    /// `preadv`
    ["preadv", "preadv64"]
    fn preadv(fd: c_int, parts: *const iovec, n: c_int, offset: off_t) -> ssize_t {
        cancel::point();
        answer!(
            {
                let position = Position::at(offset)?;
                // SAFETY: valid iovecs, by contract.
                count(unsafe {
                    arg::with_sinks(parts, n, |to| ops::io::read(&STATE, fd, to, position))
                })
            },
            real::preadv(fd, parts, n, offset)
        )
    }

    /// `pwritev`
    ["pwritev", "pwritev64"]
    fn pwritev(fd: c_int, parts: *const iovec, n: c_int, offset: off_t) -> ssize_t {
        cancel::point();
        answer!(
            {
                let position = Position::at(offset)?;
                // SAFETY: valid iovecs, by contract.
                count(unsafe {
                    arg::with_sources(parts, n, |from| ops::io::write(&STATE, fd, from, position))
                })
            },
            real::pwritev(fd, parts, n, offset)
        )
    }

    /// `preadv2`
    ["preadv2", "preadv64v2"]
    fn preadv2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t {
        cancel::point();
        answer!(
            {
                let position = position(offset, flags)?;
                // SAFETY: valid iovecs, by contract.
                count(unsafe {
                    arg::with_sinks(parts, n, |to| ops::io::read(&STATE, fd, to, position))
                })
            },
            {
                settle(&[fd]);
                real::preadv2(fd, parts, n, offset, flags)
            }
        )
    }

    /// `pwritev2`
    ["pwritev2", "pwritev64v2"]
    fn pwritev2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t {
        cancel::point();
        answer!(
            {
                // SAFETY: valid iovecs, by contract.
                count(unsafe {
                    arg::with_sources(parts, n, |from| match flags {
                        0 => ops::io::write(&STATE, fd, from, position(offset, flags)?),
                        _ => write_placed(fd, from, offset, flags),
                    })
                })
            },
            {
                settle(&[fd]);
                real::pwritev2(fd, parts, n, offset, flags)
            }
        )
    }

    /// `lseek`
    ["lseek", "lseek64", "__lseek"]
    fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t {
        answer!(ops::offset::lseek(&STATE, fd, offset, whence), real::lseek(fd, offset, whence))
    }

    /// `sendfile` at a given offset to a socket or a pipe is a read and a write: two trips fewer
    /// than the kernel makes. The kernel does the rest, on published offsets.
    ["sendfile", "sendfile64"]
    fn sendfile(to: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t {
        cancel::point();
        // SAFETY: null or valid, by contract.
        if let Ok(Some(at)) = unsafe { given(offset) }
            && let Some((sent, end)) = send(to, from, at, len)
        {
            // SAFETY: as above.
            unsafe { offset.write_unaligned(end) };
            return sent;
        }
        settle(&[from, to]);
        // SAFETY: the caller's own arguments.
        unsafe { real::sendfile(to, from, offset, len) }
    }

    /// `splice`: as `sendfile`.
    ["splice"]
    fn splice(
        from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t,
        flags: c_uint
    ) -> ssize_t {
        settle(&[from, to]);
        // SAFETY: the caller's own arguments.
        unsafe { real::splice(from, from_at, to, to_at, len, flags) }
    }

    /// `copy_file_range`
    ["copy_file_range"]
    fn copy_file_range(
        from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t,
        flags: c_uint
    ) -> ssize_t {
        answer!(
            {
                if flags != 0 {
                    return Err(Detour::Kernel);
                }
                // SAFETY: null or valid, by contract.
                let (source, target) = unsafe { (given(from_at)?, given(to_at)?) };
                let done = ops::map::copy_range(&STATE, (from, source), (to, target), len)?;
                // SAFETY: as above.
                unsafe {
                    advance(from_at, done);
                    advance(to_at, done);
                }
                count(Ok(done))
            },
            {
                settle(&[from, to]);
                real::copy_file_range(from, from_at, to, to_at, len, flags)
            }
        )
    }
}

/// Bytes that [`send`] takes at a time.
const SEND_BYTES: usize = 32 << 10;

/// Sends from a file of the lane to a socket or a pipe; what it returns, and where the next
/// one begins. `None`: not ours, nothing was done.
fn send(to: c_int, from: c_int, mut at: off_t, len: size_t) -> Option<(ssize_t, off_t)> {
    super::attempt(|| ops::map::can_send(&STATE, to, from)).ok()?;
    let errno = real::errno();
    let (mut bytes, mut sent) = ([0; SEND_BYTES], 0);
    while sent < len {
        let part = &mut bytes[..SEND_BYTES.min(len - sent)];
        let read =
            super::attempt(|| ops::io::read(&STATE, from, &mut [&mut *part], Position::at(at)?));
        let count = match read {
            Ok(0) => break,
            Ok(count) => count,
            Err(_) if sent > 0 => break,
            Err(Unanswered::Errno(errno)) => return Some((super::failed(errno.0), at)),
            Err(Unanswered::Kernel) => return None,
        };
        // SAFETY: so many bytes were read.
        let Ok(wrote) = usize::try_from(unsafe { real::write(to, part.as_ptr().cast(), count) })
        else {
            if sent > 0 {
                break;
            }
            return Some((-1, at));
        };
        (at, sent) = (at + wrote as off_t, sent + wrote);
        if wrote < count {
            break;
        }
    }
    // A call that has sent something has not failed.
    real::set_errno(errno);
    Some((sent as ssize_t, at))
}

/// Moves an offset that the caller gave.
///
/// # Safety
///
/// Null or valid.
unsafe fn advance(offset: *mut off_t, by: usize) {
    // SAFETY: null or valid, by contract.
    if let Ok(Some(at)) = unsafe { given(offset) } {
        // SAFETY: as above.
        unsafe { offset.write_unaligned(at + by as off_t) };
    }
}

/// Before a call that the kernel does by itself on descriptors.
fn settle(fds: &[c_int]) {
    fds.iter().for_each(|&fd| ops::own::settle_fd(&STATE, fd));
}

/// A call that the kernel does with the offset of `fd`.
fn published<T>(fd: c_int, call: impl FnOnce() -> T) -> T {
    file::publish_fd(&STATE, fd);
    call()
}

/// What libc does when a fortified call would overflow its buffer.
fn check(fits: bool) {
    if !fits {
        std::process::abort();
    }
}
