//! The host's calls as this libservice needs them: one component at a time, errors as [`Errno`].
//!
//! Every name is looked up relative to a held directory descriptor, in a way that can neither
//! follow a symbolic link nor leave the directory nor cross a mount: `openat2` with [`CONFINED`],
//! or calls that by nature act on the entry itself (`statx`, `fchownat` … with
//! `AT_SYMLINK_NOFOLLOW`, `unlinkat`,
//! `renameat2`, `mkdirat`).

use crate::fs::{Attr, Kind};
use polylane_base::{Errno, Gid, Ino, Result, Time, Uid};
use rustix::fs::{
    AtFlags, Mode, OFlags, ResolveFlags, Statx, StatxAttributes, StatxFlags, StatxTimestamp,
};
use std::os::fd::{AsFd, OwnedFd};

/// How names are resolved.
pub(super) const CONFINED: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_XDEV);
/// Tries of a call that a racing rename makes the kernel give up.
const TRIES: usize = 64;
/// Longest name.
const NAME_MAX: usize = 255;

/// What tells one host inode from all others, past and present: its birth time tells a reused inode
/// number from its former owner where the host keeps birth times.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    /// Device.
    pub(super) dev: (u32, u32),
    /// Inode number there.
    pub(super) ino: u64,
    pub(super) born: Time,
}

/// The state of a host inode.
pub(super) struct HostStat {
    /// Identity.
    pub(super) key: Key,
    /// State; `attr.ino` is the host's number.
    pub(super) attr: Attr,
    /// It is the root of another mount.
    pub(super) mount_root: bool,
}

/// Translates the error of a host call.
pub(super) fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

/// Refuses what is not one component. The contract of the seam excludes it; a host path must not
/// depend on that.
pub(super) fn component(name: &[u8]) -> Result<&[u8]> {
    match name {
        b"" | b"." | b".." => Err(Errno::EINVAL),
        _ if name.iter().any(|byte| matches!(byte, b'/' | 0)) => Err(Errno::EINVAL),
        _ if name.len() > NAME_MAX => Err(Errno::ENAMETOOLONG),
        _ => Ok(name),
    }
}

/// Opens one component of `dir`.
pub(super) fn open(dir: impl AsFd, name: &[u8], flags: OFlags, mode: u32) -> Result<OwnedFd> {
    // openat2 refuses flags that mean nothing beside O_PATH.
    let quiet = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NOCTTY };
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | quiet;
    let mode = Mode::from_bits_truncate(mode);
    for _ in 0..TRIES {
        match rustix::fs::openat2(dir.as_fd(), name, flags, mode, CONFINED) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            other => return other.map_err(errno),
        }
    }
    Err(Errno::EAGAIN)
}

/// The state of one entry of `dir`.
pub(super) fn stat_at(dir: impl AsFd, name: &[u8]) -> Result<HostStat> {
    statx(dir, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)
}

/// The state of an open inode.
pub(super) fn stat(fd: impl AsFd) -> Result<HostStat> {
    statx(fd, b"", AtFlags::EMPTY_PATH)
}

fn statx(fd: impl AsFd, name: &[u8], flags: AtFlags) -> Result<HostStat> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let found = rustix::fs::statx(fd, name, flags, wanted).map_err(errno)?;
    let kind = Kind::from_mode(u32::from(found.stx_mode)).ok_or(Errno::EIO)?;
    let has_birth = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
    let born = if has_birth { time(found.stx_btime) } else { Time::default() };
    let dev = (found.stx_dev_major, found.stx_dev_minor);
    Ok(HostStat {
        key: Key { dev, ino: found.stx_ino, born },
        attr: attr(&found, kind, born),
        mount_root: found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
    })
}

fn attr(found: &Statx, kind: Kind, born: Time) -> Attr {
    Attr {
        ino: Ino(found.stx_ino),
        generation: (born.sec as u64).wrapping_mul(1_000_000_000).wrapping_add(born.nsec.into()),
        kind,
        perm: u32::from(found.stx_mode) & 0o7777,
        nlink: found.stx_nlink,
        uid: Uid(found.stx_uid),
        gid: Gid(found.stx_gid),
        rdev: rustix::fs::makedev(found.stx_rdev_major, found.stx_rdev_minor),
        size: found.stx_size,
        blocks: found.stx_blocks,
        blksize: found.stx_blksize,
        atime: time(found.stx_atime),
        mtime: time(found.stx_mtime),
        ctime: time(found.stx_ctime),
        btime: born,
        // The host minds them itself.
        flags: 0,
    }
}

fn time(stamp: StatxTimestamp) -> Time {
    Time { sec: stamp.tv_sec, nsec: stamp.tv_nsec }
}
