//! stat, statx, access.

use std::ffi::{c_char, c_uint};

use libc::{AT_FDCWD, AT_SYMLINK_NOFOLLOW, c_int};

use super::{answer, arg, hooks};
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::ops::stat::{self as ops, Stat};
use crate::ops::state::STATE;
use crate::session::owners;

/// Stores what a stat call found.
///
/// # Safety
///
/// Valid for a write, or one where no memory can be.
#[inline]
unsafe fn store(found: Outcome<Stat>, into: *mut libc::stat) -> Outcome<c_int> {
    let Stat { attr, device, .. } = found?;
    if arg::is_nowhere(into) {
        return Err(Detour::Kernel);
    }
    // SAFETY: a stat is plain data, for which zeros are valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_dev = device;
    stat.st_ino = attr.ino;
    stat.st_mode = attr.mode;
    stat.st_nlink = attr.nlink.into();
    (stat.st_uid, stat.st_gid) = owners::shown(attr.uid, attr.gid);
    stat.st_rdev = attr.rdev;
    stat.st_size = attr.size as i64;
    stat.st_blksize = attr.blksize.into();
    stat.st_blocks = attr.blocks as i64;
    (stat.st_atime, stat.st_atime_nsec) = (attr.sec[0], attr.nsec[0].into());
    (stat.st_mtime, stat.st_mtime_nsec) = (attr.sec[1], attr.nsec[1].into());
    (stat.st_ctime, stat.st_ctime_nsec) = (attr.sec[2], attr.nsec[2].into());
    // SAFETY: not null; the caller vouches for the rest.
    unsafe { into.write_unaligned(stat) };
    Ok(0)
}

/// What statx is asked for that the kernel alone knows: the mount's numbers, the old (Linux 5.8)
/// and the unique one (6.8).
const KERNELS: c_uint = libc::STATX_MNT_ID | 0x4000;

/// Attributes of mounts that the kernel knows of every file whether it has them.
const MOUNT_ATTRIBUTES: c_int =
    libc::STATX_ATTR_MOUNT_ROOT | libc::STATX_ATTR_AUTOMOUNT | STATX_ATTR_DAX;
/// Linux 5.8.
const STATX_ATTR_DAX: c_int = 0x0020_0000;

/// Adds what the kernel does not know of a file of a FUSE mount.
fn put_attributes(known: u32, found: &Stat, x: &mut libc::statx) {
    x.stx_attributes |= u64::from(found.attr.flags & known);
    x.stx_attributes_mask |= u64::from(known);
}

/// Stores what statx found. The mask says what is valid: the basic fields, and the creation time
/// where it was asked for, as the kernel's FUSE does it.
///
/// # Safety
///
/// Valid for a write, or one where no memory can be.
unsafe fn store_x(found: &Stat, mask: c_uint, into: *mut libc::statx) -> Outcome<c_int> {
    let Stat { attr, device, .. } = *found;
    if arg::is_nowhere(into) {
        return Err(Detour::Kernel);
    }
    let known = found.attributes()?;
    let stamp = |n: usize| {
        // SAFETY: plain data.
        let mut stamp: libc::statx_timestamp = unsafe { std::mem::zeroed() };
        (stamp.tv_sec, stamp.tv_nsec) = (attr.sec[n], attr.nsec[n]);
        stamp
    };
    // SAFETY: plain data.
    let mut x: libc::statx = unsafe { std::mem::zeroed() };
    x.stx_mask = libc::STATX_BASIC_STATS | mask & libc::STATX_BTIME;
    // It has none of these; the root of the mount is the kernel's to tell of.
    x.stx_attributes_mask = MOUNT_ATTRIBUTES as u64;
    put_attributes(known, found, &mut x);
    x.stx_blksize = attr.blksize;
    x.stx_nlink = attr.nlink;
    (x.stx_uid, x.stx_gid) = owners::shown(attr.uid, attr.gid);
    x.stx_mode = attr.mode as u16;
    x.stx_ino = attr.ino;
    x.stx_size = attr.size;
    x.stx_blocks = attr.blocks;
    (x.stx_atime, x.stx_mtime, x.stx_ctime) = (stamp(0), stamp(1), stamp(2));
    if mask & libc::STATX_BTIME != 0 {
        x.stx_btime = stamp(3);
    }
    (x.stx_rdev_major, x.stx_rdev_minor) = (libc::major(attr.rdev), libc::minor(attr.rdev));
    (x.stx_dev_major, x.stx_dev_minor) = (libc::major(device), libc::minor(device));
    // SAFETY: not null; the caller vouches for the rest.
    unsafe { into.write_unaligned(x) };
    Ok(0)
}

hooks! {
    /// `stat`
    ["stat", "stat64"]
    fn stat(path: *const c_char, into: *mut libc::stat) -> c_int {
        answer!(
            // SAFETY: a C string and a buffer, by contract.
            unsafe { store(ops::stat(&STATE, AT_FDCWD, arg::text(path)?, 0), into) },
            real::stat(path, into)
        )
    }

    /// `lstat`
    ["lstat", "lstat64"]
    fn lstat(path: *const c_char, into: *mut libc::stat) -> c_int {
        answer!(
            // SAFETY: a C string and a buffer, by contract.
            unsafe {
                let path = arg::text(path)?;
                store(ops::stat(&STATE, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW), into)
            },
            real::lstat(path, into)
        )
    }

    /// `fstat`
    ["fstat", "fstat64", "__fstat64"]
    fn fstat(fd: c_int, into: *mut libc::stat) -> c_int {
        // SAFETY: a buffer, by contract.
        answer!(unsafe { store(ops::fstat(&STATE, fd), into) }, real::fstat(fd, into))
    }

    /// `fstatat`
    ["fstatat", "fstatat64"]
    fn fstatat(dir: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int) -> c_int {
        answer!(
            // SAFETY: a C string and a buffer, by contract.
            unsafe { store(ops::stat(&STATE, dir, arg::text(path)?, flags), into) },
            real::fstatat(dir, path, into, flags)
        )
    }

    /// What `stat` was before glibc 2.33.
    ["__xstat", "__xstat64"]
    fn xstat(version: c_int, path: *const c_char, into: *mut libc::stat) -> c_int {
        answer!(
            // SAFETY: a C string and a buffer, by contract.
            unsafe { store(ops::stat(&STATE, AT_FDCWD, arg::text(path)?, known(version)?), into) },
            real::__xstat(version, path, into)
        )
    }

    /// As above.
    ["__lxstat", "__lxstat64"]
    fn lxstat(version: c_int, path: *const c_char, into: *mut libc::stat) -> c_int {
        answer!(
            {
                let flags = AT_SYMLINK_NOFOLLOW | known(version)?;
                // SAFETY: a C string and a buffer, by contract.
                unsafe { store(ops::stat(&STATE, AT_FDCWD, arg::text(path)?, flags), into) }
            },
            real::__lxstat(version, path, into)
        )
    }

    /// As above.
    ["__fxstat", "__fxstat64"]
    fn fxstat(version: c_int, fd: c_int, into: *mut libc::stat) -> c_int {
        answer!(
            {
                known(version)?;
                // SAFETY: a buffer, by contract.
                unsafe { store(ops::fstat(&STATE, fd), into) }
            },
            real::__fxstat(version, fd, into)
        )
    }

    /// As above.
    ["__fxstatat", "__fxstatat64"]
    fn fxstatat(
        version: c_int, dir: c_int, path: *const c_char, into: *mut libc::stat, flags: c_int
    ) -> c_int {
        answer!(
            // SAFETY: a C string and a buffer, by contract.
            unsafe {
                let path = arg::text(path)?;
                store(ops::stat(&STATE, dir, path, flags | known(version)?), into)
            },
            real::__fxstatat(version, dir, path, into, flags)
        )
    }

    /// `statx`
    ["statx"]
    fn statx(
        dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, into: *mut libc::statx
    ) -> c_int {
        let mut here = None;
        answer!(
            {
                // Bits that exist today and are not known here make no difference to a file system
                // that does not have them; the reserved one is for the kernel to refuse.
                if mask & libc::STATX__RESERVED as c_uint != 0 {
                    return Err(Detour::Kernel);
                }
                // SAFETY: a C string, by contract.
                let found = ops::stat(&STATE, dir, unsafe { arg::text(path)? }, flags)?;
                // What belongs to the mount, the kernel knows.
                if mask & KERNELS != 0 || found.is_of_root()? {
                    here = Some((found.attributes()?, found));
                    return Err(Detour::Kernel);
                }
                // SAFETY: a buffer, by contract.
                unsafe { store_x(&found, mask, into) }
            },
            {
                let rc = real::statx(dir, path, flags, mask, into);
                if let (0, Some((known, found))) = (rc, &here) {
                    put_attributes(*known, found, &mut *into);
                }
                rc
            }
        )
    }

    /// `access`
    ["access"]
    fn access(path: *const c_char, mode: c_int) -> c_int {
        answer!(
            // SAFETY: a C string, by contract.
            ops::access(&STATE, AT_FDCWD, unsafe { arg::text(path)? }, mode, 0).map(|()| 0),
            real::access(path, mode)
        )
    }

    /// `eaccess`
    ["eaccess", "euidaccess"]
    fn eaccess(path: *const c_char, mode: c_int) -> c_int {
        answer!(
            // SAFETY: a C string, by contract.
            ops::access(&STATE, AT_FDCWD, unsafe { arg::text(path)? }, mode, libc::AT_EACCESS)
                .map(|()| 0),
            real::eaccess(path, mode)
        )
    }

    /// `faccessat`
    ["faccessat"]
    fn faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
        answer!(
            // SAFETY: a C string, by contract.
            ops::access(&STATE, dir, unsafe { arg::text(path)? }, mode, flags).map(|()| 0),
            real::faccessat(dir, path, mode, flags)
        )
    }
}

/// 0 for the one version of `struct stat` on 64-bit machines.
fn known(version: c_int) -> Outcome<c_int> {
    match version {
        0 | 1 => Ok(0),
        _ => Err(Detour::Kernel),
    }
}
