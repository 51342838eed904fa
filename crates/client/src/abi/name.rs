//! Calls that make, remove, move or read names.

use std::ffi::{c_char, c_uint};

use libc::{AT_FDCWD, AT_REMOVEDIR, c_int, dev_t, mode_t, size_t, ssize_t};

use super::{answer, arg, hooks};
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::ops::name as ops;
use crate::ops::process;
use crate::ops::state::STATE;

fn zero(done: Outcome<()>) -> Outcome<c_int> {
    done.map(|()| 0)
}

hooks! {
    /// `mkdir`
    ["mkdir"]
    fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
        answer!(
            // SAFETY: a C string, by contract; so below.
            zero(ops::mkdir(&STATE, (AT_FDCWD, unsafe { arg::text(path)? }), mode)),
            real::mkdir(path, mode)
        )
    }

    /// `mkdirat`
    ["mkdirat"]
    fn mkdirat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int {
        answer!(
            // SAFETY: as above.
            zero(ops::mkdir(&STATE, (dir, unsafe { arg::text(path)? }), mode)),
            real::mkdirat(dir, path, mode)
        )
    }

    /// `mknod`
    ["mknod"]
    fn mknod(path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
        answer!(
            // SAFETY: as above.
            zero(ops::mknod(&STATE, (AT_FDCWD, unsafe { arg::text(path)? }), mode, device)),
            real::mknod(path, mode, device)
        )
    }

    /// `mknodat`
    ["mknodat"]
    fn mknodat(dir: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int {
        answer!(
            // SAFETY: as above.
            zero(ops::mknod(&STATE, (dir, unsafe { arg::text(path)? }), mode, device)),
            real::mknodat(dir, path, mode, device)
        )
    }

    /// What `mknod` was before glibc 2.33.
    ["__xmknod"]
    fn xmknod(version: c_int, path: *const c_char, mode: mode_t, device: *mut dev_t) -> c_int {
        answer!(
            // SAFETY: a C string and a number, by contract.
            zero(ops::mknod(&STATE, (AT_FDCWD, unsafe { arg::text(path)? }), mode, unsafe {
                arg::value(device)?.ok_or(Detour::Kernel)?
            })),
            real::__xmknod(version, path, mode, device)
        )
    }

    /// As above.
    ["__xmknodat"]
    fn xmknodat(
        version: c_int, dir: c_int, path: *const c_char, mode: mode_t, device: *mut dev_t
    ) -> c_int {
        answer!(
            // SAFETY: a C string and a number, by contract.
            zero(ops::mknod(&STATE, (dir, unsafe { arg::text(path)? }), mode, unsafe {
                arg::value(device)?.ok_or(Detour::Kernel)?
            })),
            real::__xmknodat(version, dir, path, mode, device)
        )
    }

    /// `mkfifo`
    ["mkfifo"]
    fn mkfifo(path: *const c_char, mode: mode_t) -> c_int {
        let kind = mode & 0o7777 | libc::S_IFIFO;
        answer!(
            // SAFETY: as above.
            zero(ops::mknod(&STATE, (AT_FDCWD, unsafe { arg::text(path)? }), kind, 0)),
            real::mkfifo(path, mode)
        )
    }

    /// `mkfifoat`
    ["mkfifoat"]
    fn mkfifoat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int {
        let kind = mode & 0o7777 | libc::S_IFIFO;
        answer!(
            // SAFETY: as above.
            zero(ops::mknod(&STATE, (dir, unsafe { arg::text(path)? }), kind, 0)),
            real::mkfifoat(dir, path, mode)
        )
    }

    /// `rmdir`
    ["rmdir"]
    fn rmdir(path: *const c_char) -> c_int {
        answer!(
            // SAFETY: as above.
            zero(ops::unlink(&STATE, (AT_FDCWD, unsafe { arg::text(path)? }), AT_REMOVEDIR)),
            real::rmdir(path)
        )
    }

    /// `unlink`
    ["unlink"]
    fn unlink(path: *const c_char) -> c_int {
        answer!(
            // SAFETY: as above.
            zero(ops::unlink(&STATE, (AT_FDCWD, unsafe { arg::text(path)? }), 0)),
            real::unlink(path)
        )
    }

    /// `unlinkat`
    ["unlinkat"]
    fn unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
        answer!(
            // SAFETY: as above.
            zero(ops::unlink(&STATE, (dir, unsafe { arg::text(path)? }), flags)),
            real::unlinkat(dir, path, flags)
        )
    }

    /// `remove`: unlink, and rmdir where that says it is a directory.
    ["remove"]
    fn remove(path: *const c_char) -> c_int {
        answer!(
            {
                // SAFETY: as above.
                let place = (AT_FDCWD, unsafe { arg::text(path)? });
                match ops::unlink(&STATE, place, 0) {
                    Err(crate::kernel::outcome::Detour::Errno(polylane_base::Errno::EISDIR)) => {
                        zero(ops::unlink(&STATE, place, AT_REMOVEDIR))
                    }
                    done => zero(done),
                }
            },
            real::remove(path)
        )
    }

    /// `rename`
    ["rename"]
    fn rename(from: *const c_char, to: *const c_char) -> c_int {
        answer!(
            {
                // SAFETY: as above.
                let (from, to) = unsafe { (arg::text(from)?, arg::text(to)?) };
                zero(ops::rename(&STATE, (AT_FDCWD, from), (AT_FDCWD, to), 0))
            },
            real::rename(from, to)
        )
    }

    /// `renameat`
    ["renameat"]
    fn renameat(
        from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char
    ) -> c_int {
        answer!(
            {
                // SAFETY: as above.
                let (from, to) = unsafe { (arg::text(from)?, arg::text(to)?) };
                zero(ops::rename(&STATE, (from_dir, from), (to_dir, to), 0))
            },
            real::renameat(from_dir, from, to_dir, to)
        )
    }

    /// `renameat2`
    ["renameat2"]
    fn renameat2(
        from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint
    ) -> c_int {
        answer!(
            {
                // SAFETY: as above.
                let (from, to) = unsafe { (arg::text(from)?, arg::text(to)?) };
                zero(ops::rename(&STATE, (from_dir, from), (to_dir, to), flags))
            },
            real::renameat2(from_dir, from, to_dir, to, flags)
        )
    }

    /// `link`
    ["link"]
    fn link(from: *const c_char, to: *const c_char) -> c_int {
        answer!(
            {
                // SAFETY: as above.
                let (from, to) = unsafe { (arg::text(from)?, arg::text(to)?) };
                zero(ops::link(&STATE, (AT_FDCWD, from), (AT_FDCWD, to), 0))
            },
            real::link(from, to)
        )
    }

    /// `linkat`
    ["linkat"]
    fn linkat(
        from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int
    ) -> c_int {
        answer!(
            {
                // SAFETY: as above.
                let (from, to) = unsafe { (arg::text(from)?, arg::text(to)?) };
                zero(ops::link(&STATE, (from_dir, from), (to_dir, to), flags))
            },
            real::linkat(from_dir, from, to_dir, to, flags)
        )
    }

    /// `symlink`
    ["symlink"]
    fn symlink(target: *const c_char, path: *const c_char) -> c_int {
        answer!(
            {
                // SAFETY: as above.
                let (target, path) = unsafe { (arg::text(target)?, arg::text(path)?) };
                zero(ops::symlink(&STATE, target, (AT_FDCWD, path)))
            },
            real::symlink(target, path)
        )
    }

    /// `symlinkat`
    ["symlinkat"]
    fn symlinkat(target: *const c_char, dir: c_int, path: *const c_char) -> c_int {
        answer!(
            {
                // SAFETY: as above.
                let (target, path) = unsafe { (arg::text(target)?, arg::text(path)?) };
                zero(ops::symlink(&STATE, target, (dir, path)))
            },
            real::symlinkat(target, dir, path)
        )
    }

    /// `readlink`
    ["readlink"]
    fn readlink(path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t {
        answer!(
            {
                // SAFETY: a C string and `size` bytes, by contract.
                let path = unsafe { arg::text(path)? };
                // SAFETY: as above.
                let into = unsafe { arg::sink_beside(&[path], into.cast(), size)? };
                ops::readlink(&STATE, (AT_FDCWD, path), into).map(|count| count as ssize_t)
            },
            real::readlink(path, into, size)
        )
    }

    /// `readlinkat`
    ["readlinkat"]
    fn readlinkat(dir: c_int, path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t {
        answer!(
            {
                // SAFETY: a C string and `size` bytes, by contract.
                let path = unsafe { arg::text(path)? };
                // SAFETY: as above.
                let into = unsafe { arg::sink_beside(&[path], into.cast(), size)? };
                ops::readlink(&STATE, (dir, path), into).map(|count| count as ssize_t)
            },
            real::readlinkat(dir, path, into, size)
        )
    }

    /// `readlink` under `_FORTIFY_SOURCE`.
    ["__readlink_chk"]
    fn readlink_chk(path: *const c_char, into: *mut c_char, size: size_t, room: size_t) -> ssize_t {
        if size > room {
            std::process::abort();
        }
        // SAFETY: as this function.
        unsafe { readlink(path, into, size) }
    }

    /// As above.
    ["__readlinkat_chk"]
    fn readlinkat_chk(
        dir: c_int, path: *const c_char, into: *mut c_char, size: size_t, room: size_t
    ) -> ssize_t {
        if size > room {
            std::process::abort();
        }
        // SAFETY: as this function.
        unsafe { readlinkat(dir, path, into, size) }
    }

    /// `chdir`: the kernel does it; where that is in the lane is found out when it is needed.
    ["chdir"]
    fn chdir(path: *const c_char) -> c_int {
        // SAFETY: the caller's own arguments.
        let rc = unsafe { real::chdir(path) };
        process::directory_changed(&STATE);
        rc
    }

    /// `fchdir`
    ["fchdir"]
    fn fchdir(fd: c_int) -> c_int {
        // SAFETY: the caller's own arguments.
        let rc = unsafe { real::fchdir(fd) };
        process::directory_changed(&STATE);
        rc
    }
}
