//! Calls that change an inode's state, size or allocation, and those that make it durable.

use std::ffi::c_char;

use libc::{
    AT_FDCWD, AT_SYMLINK_NOFOLLOW, c_int, gid_t, mode_t, off_t, size_t, ssize_t, timespec, timeval,
    uid_t,
};

use super::{answer, arg, hooks};
use crate::kernel::outcome::{Detour, Outcome, Unanswered};
use crate::kernel::real;
use crate::ops::attr::{self as ops, Change, Stamp};
use crate::ops::state::STATE;

fn zero(done: Outcome<()>) -> Outcome<c_int> {
    done.map(|()| 0)
}

/// A change by path.
///
/// # Safety
///
/// A C string.
unsafe fn change(dir: c_int, path: *const c_char, what: Change, follow: bool) -> Outcome<c_int> {
    // SAFETY: by contract.
    zero(ops::change(&STATE, (dir, unsafe { arg::text(path)? }), what, follow))
}

/// Two time stamps as utimensat(2) takes them; none given means now.
///
/// # Safety
///
/// Null or two timespecs.
unsafe fn stamps(times: *const timespec) -> Outcome<Change> {
    // SAFETY: by contract.
    let Some(times) = (unsafe { arg::value(times.cast::<[_; 2]>())? }) else {
        return Ok(Change::Times(Stamp::Now, Stamp::Now));
    };
    let stamp = |time: &timespec| match time.tv_nsec {
        libc::UTIME_NOW => Ok(Stamp::Now),
        libc::UTIME_OMIT => Ok(Stamp::Keep),
        nsec @ 0..=999_999_999 => Ok(Stamp::At(time.tv_sec, nsec)),
        _ => Err(Detour::Kernel),
    };
    match (stamp(&times[0])?, stamp(&times[1])?) {
        // The kernel looks at nothing then, not even at the path.
        (Stamp::Keep, Stamp::Keep) => Err(Detour::Kernel),
        (atime, mtime) => Ok(Change::Times(atime, mtime)),
    }
}

/// As above, in microseconds.
///
/// # Safety
///
/// Null or two timevals.
unsafe fn stamps_us(times: *const timeval) -> Outcome<Change> {
    // SAFETY: by contract.
    let Some(times) = (unsafe { arg::value(times.cast::<[_; 2]>())? }) else {
        return Ok(Change::Times(Stamp::Now, Stamp::Now));
    };
    let stamp = |time: &timeval| match time.tv_usec {
        us @ 0..=999_999 => Ok(Stamp::At(time.tv_sec, us * 1000)),
        _ => Err(Detour::Kernel),
    };
    Ok(Change::Times(stamp(&times[0])?, stamp(&times[1])?))
}

hooks! {
    /// `chmod`
    ["chmod"]
    fn chmod(path: *const c_char, mode: mode_t) -> c_int {
        answer!(
            // SAFETY: a C string, by contract; so below.
            unsafe { change(AT_FDCWD, path, Change::Mode(mode), true) },
            real::chmod(path, mode)
        )
    }

    /// `fchmod`
    ["fchmod"]
    fn fchmod(fd: c_int, mode: mode_t) -> c_int {
        answer!(zero(ops::change_open(&STATE, fd, Change::Mode(mode))), real::fchmod(fd, mode))
    }

    /// `fchmodat`: with flags, the kernel's business.
    ["fchmodat"]
    fn fchmodat(dir: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int {
        answer!(
            match flags {
                // SAFETY: as above.
                0 => unsafe { change(dir, path, Change::Mode(mode), true) },
                _ => Err(Detour::Kernel),
            },
            real::fchmodat(dir, path, mode, flags)
        )
    }

    /// `chown`
    ["chown"]
    fn chown(path: *const c_char, user: uid_t, group: gid_t) -> c_int {
        answer!(
            // SAFETY: as above.
            unsafe { change(AT_FDCWD, path, Change::Owner(user, group), true) },
            real::chown(path, user, group)
        )
    }

    /// `lchown`
    ["lchown"]
    fn lchown(path: *const c_char, user: uid_t, group: gid_t) -> c_int {
        answer!(
            // SAFETY: as above.
            unsafe { change(AT_FDCWD, path, Change::Owner(user, group), false) },
            real::lchown(path, user, group)
        )
    }

    /// `fchown`
    ["fchown"]
    fn fchown(fd: c_int, user: uid_t, group: gid_t) -> c_int {
        answer!(
            zero(ops::change_open(&STATE, fd, Change::Owner(user, group))),
            real::fchown(fd, user, group)
        )
    }

    /// `fchownat`
    ["fchownat"]
    fn fchownat(
        dir: c_int, path: *const c_char, user: uid_t, group: gid_t, flags: c_int
    ) -> c_int {
        answer!(
            {
                if flags & !AT_SYMLINK_NOFOLLOW != 0 {
                    return Err(Detour::Kernel);
                }
                // SAFETY: as above.
                unsafe { change(dir, path, Change::Owner(user, group), flags == 0) }
            },
            real::fchownat(dir, path, user, group, flags)
        )
    }

    /// `truncate`
    ["truncate", "truncate64"]
    fn truncate(path: *const c_char, len: off_t) -> c_int {
        answer!(
            // SAFETY: as above.
            unsafe { change(AT_FDCWD, path, Change::Size(len), true) },
            real::truncate(path, len)
        )
    }

    /// `ftruncate`
    ["ftruncate", "ftruncate64"]
    fn ftruncate(fd: c_int, len: off_t) -> c_int {
        answer!(zero(ops::truncate_open(&STATE, fd, len)), real::ftruncate(fd, len))
    }

    /// `fallocate`
    ["fallocate", "fallocate64"]
    fn fallocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int {
        answer!(
            zero(ops::fallocate(&STATE, fd, mode, offset, len)),
            real::fallocate(fd, mode, offset, len)
        )
    }

    /// `posix_fallocate`: returns the error instead of setting `errno`.
    ["posix_fallocate", "posix_fallocate64"]
    fn posix_fallocate(fd: c_int, offset: off_t, len: off_t) -> c_int {
        match super::attempt(|| ops::fallocate(&STATE, fd, 0, offset, len)) {
            Ok(()) => 0,
            Err(Unanswered::Errno(errno)) if errno != polylane_base::Errno::EOPNOTSUPP => errno.0,
            // SAFETY: the caller's own arguments.
            Err(_) => unsafe { real::posix_fallocate(fd, offset, len) },
        }
    }

    /// `posix_fadvise`: as `posix_fallocate`.
    ["posix_fadvise", "posix_fadvise64"]
    fn posix_fadvise(fd: c_int, offset: off_t, len: off_t, advice: c_int) -> c_int {
        match super::attempt(|| ops::advise(&STATE, fd, len, advice)) {
            Ok(()) => 0,
            Err(Unanswered::Errno(errno)) => errno.0,
            // SAFETY: the caller's own arguments.
            Err(Unanswered::Kernel) => unsafe {
                real::posix_fadvise(fd, offset, len, advice)
            },
        }
    }

    /// `readahead`
    ["readahead"]
    fn readahead(fd: c_int, offset: off_t, count: size_t) -> ssize_t {
        answer!(ops::read_ahead(&STATE, fd).map(|()| 0), real::readahead(fd, offset, count))
    }

    /// `fsync`
    ["fsync"]
    fn fsync(fd: c_int) -> c_int {
        answer!(zero(ops::fsync(&STATE, fd, false)), real::fsync(fd))
    }

    /// `fdatasync`
    ["fdatasync"]
    fn fdatasync(fd: c_int) -> c_int {
        answer!(zero(ops::fsync(&STATE, fd, true)), real::fdatasync(fd))
    }

    /// `syncfs`
    ["syncfs"]
    fn syncfs(fd: c_int) -> c_int {
        answer!(zero(ops::syncfs(&STATE, fd)), real::syncfs(fd))
    }

    /// `sync`: the lane's part alone. Other tenants' data is none of this one's business, and the
    /// kernel would have it wait for all of it.
    ["sync"]
    fn sync() -> () {
        // `sync` cannot fail: an error of the lane is told by the next fsync.
        if super::attempt(|| ops::sync(&STATE)).is_err_and(|error| error == Unanswered::Kernel) {
            rustix::fs::sync();
        }
    }

    /// `utimensat`: without a path, `dir` is the file.
    ["utimensat"]
    fn utimensat(
        dir: c_int, path: *const c_char, times: *const timespec, flags: c_int
    ) -> c_int {
        answer!(
            {
                if flags & !AT_SYMLINK_NOFOLLOW != 0 || path.is_null() {
                    return Err(Detour::Kernel);
                }
                // SAFETY: null or two timespecs, and a C string, by contract.
                unsafe { change(dir, path, stamps(times)?, flags == 0) }
            },
            real::utimensat(dir, path, times, flags)
        )
    }

    /// `futimens`
    ["futimens"]
    fn futimens(fd: c_int, times: *const timespec) -> c_int {
        answer!(
            // SAFETY: null or two timespecs, by contract.
            zero(ops::change_open(&STATE, fd, unsafe { stamps(times)? })),
            real::futimens(fd, times)
        )
    }

    /// `utimes`
    ["utimes"]
    fn utimes(path: *const c_char, times: *const timeval) -> c_int {
        answer!(
            // SAFETY: null or two timevals, and a C string, by contract.
            unsafe { change(AT_FDCWD, path, stamps_us(times)?, true) },
            real::utimes(path, times)
        )
    }

    /// `lutimes`
    ["lutimes"]
    fn lutimes(path: *const c_char, times: *const timeval) -> c_int {
        answer!(
            // SAFETY: as above.
            unsafe { change(AT_FDCWD, path, stamps_us(times)?, false) },
            real::lutimes(path, times)
        )
    }

    /// `futimes`
    ["futimes"]
    fn futimes(fd: c_int, times: *const timeval) -> c_int {
        answer!(
            // SAFETY: null or two timevals, by contract.
            zero(ops::change_open(&STATE, fd, unsafe { stamps_us(times)? })),
            real::futimes(fd, times)
        )
    }

    /// `futimesat`
    ["futimesat"]
    fn futimesat(dir: c_int, path: *const c_char, times: *const timeval) -> c_int {
        answer!(
            // SAFETY: null or two timevals, and a C string, by contract.
            unsafe { change(dir, path, stamps_us(times)?, true) },
            real::futimesat(dir, path, times)
        )
    }

    /// `utime`
    ["utime"]
    fn utime(path: *const c_char, times: *const libc::utimbuf) -> c_int {
        answer!(
            {
                // SAFETY: null or valid, by contract.
                let what = match unsafe { arg::value(times)? } {
                    None => Change::Times(Stamp::Now, Stamp::Now),
                    Some(times) => {
                        Change::Times(Stamp::At(times.actime, 0), Stamp::At(times.modtime, 0))
                    }
                };
                // SAFETY: a C string, by contract.
                unsafe { change(AT_FDCWD, path, what, true) }
            },
            real::utime(path, times)
        )
    }
}
