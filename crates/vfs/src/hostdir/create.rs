//! Making host inodes that end with the given owner and mode.
//!
//! What belongs to somebody else in the end is created for the service alone, given away, and only
//! then opened up by its mode. Whatever fails half-way is removed again.

use super::descriptors::Descriptors;
use super::host::{self, HostStat, errno};
use super::node::Held;
use crate::fs::{Kind, NewNode};
use polylane_base::{Errno, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use std::os::fd::{AsFd, OwnedFd};

/// Creates `name` in `dir`; returns a path descriptor and the final state.
pub(super) fn named(
    fds: &Descriptors,
    dir: &Held,
    name: &[u8],
    new: &NewNode<'_>,
) -> Result<(OwnedFd, HostStat)> {
    let settled = make(fds, dir, name, new)?.and_then(|fd| {
        let found = settle(fds, &fd, new)?;
        Ok((fd, found))
    });
    settled.inspect_err(|_| {
        let flags = if new.kind == Kind::Dir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        // The first error is the one to report; a leftover cannot be helped.
        let _ = rustix::fs::unlinkat(dir, name, flags);
    })
}

/// Creates a file without a name; returns a path descriptor and the final state.
pub(super) fn unnamed(
    fds: &Descriptors,
    dir: &Held,
    new: &NewNode<'_>,
) -> Result<(OwnedFd, HostStat)> {
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let fd = fds.roomy(|| host::open(dir, b".", flags, first_mode(new)))?;
    let path = fds.as_path(&fd)?;
    let found = settle(fds, &path, new)?;
    Ok((path, found))
}

/// Makes the entry. The inner result is what may fail once it is there: a path descriptor of it.
fn make(fds: &Descriptors, dir: &Held, name: &[u8], new: &NewNode<'_>) -> Result<Result<OwnedFd>> {
    let mode = Mode::from_bits_truncate(first_mode(new));
    let special = |kind| rustix::fs::mknodat(dir, name, kind, mode, new.rdev).map_err(errno);
    match new.kind {
        Kind::File => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
            let fd = fds.roomy(|| host::open(dir, name, flags, first_mode(new)))?;
            return Ok(fds.as_path(&fd));
        }
        Kind::Dir => rustix::fs::mkdirat(dir, name, mode).map_err(errno)?,
        Kind::Symlink => rustix::fs::symlinkat(new.target, dir, name).map_err(errno)?,
        Kind::Fifo => special(FileType::Fifo)?,
        Kind::Socket => special(FileType::Socket)?,
        Kind::Char => special(FileType::CharacterDevice)?,
        Kind::Block => special(FileType::BlockDevice)?,
    }
    Ok(fds.roomy(|| host::open(dir, name, OFlags::PATH, 0)))
}

/// The mode to create with: final when nothing is given away, else for the service alone.
fn first_mode(new: &NewNode<'_>) -> u32 {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    match new.uid.0 == uid.as_raw() && new.gid.0 == gid.as_raw() {
        true => new.perm & 0o777,
        false if new.kind == Kind::Dir => 0o700,
        false => 0o600,
    }
}

/// Gives what `fd` stands for its owner and mode, where it does not have them yet.
fn settle(fds: &Descriptors, fd: impl AsFd, new: &NewNode<'_>) -> Result<HostStat> {
    let found = host::stat(&fd)?;
    let ours = found.attr.uid.0 == rustix::process::geteuid().as_raw();
    if found.attr.kind != new.kind || !ours {
        // Somebody else put another thing under this name: not ours to give away.
        return Err(Errno::ESTALE);
    }
    let given = (found.attr.uid, found.attr.gid) != (new.uid, new.gid);
    if given {
        let (uid, gid) = (host_uid(new.uid)?, host_gid(new.gid)?);
        rustix::fs::chownat(&fd, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH).map_err(errno)?;
    }
    let chmod = new.kind != Kind::Symlink && found.attr.perm != new.perm & 0o7777;
    if chmod {
        fds.chmod(&fd, new.perm)?;
    }
    if given || chmod { host::stat(fd) } else { Ok(found) }
}

/// Gives the whiteout that a rename left as `name` its owner. Where the host refuses, or another
/// program has put something else there, that stays as it is: the rename is done.
pub(super) fn own_whiteout(fds: &Descriptors, dir: &Held, name: &[u8], new: &NewNode<'_>) {
    let left = fds.roomy(|| host::open(dir, name, OFlags::PATH, 0));
    let _ = left.and_then(|left| settle(fds, left, new));
}

/// A user id for the host; -1 means "unchanged" there and is refused.
pub(super) fn host_uid(uid: polylane_base::Uid) -> Result<rustix::fs::Uid> {
    match uid.0 {
        u32::MAX => Err(Errno::EINVAL),
        raw => Ok(rustix::fs::Uid::from_raw(raw)),
    }
}

/// A group id for the host; -1 means "unchanged" there and is refused.
pub(super) fn host_gid(gid: polylane_base::Gid) -> Result<rustix::fs::Gid> {
    match gid.0 {
        u32::MAX => Err(Errno::EINVAL),
        raw => Ok(rustix::fs::Gid::from_raw(raw)),
    }
}
