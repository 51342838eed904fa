//! Locks of the cluster, as the calls by handle have them: POSIX locks, each of an owner.
//!
//! | of a program | in the cluster |
//! |---|---|
//! | `fcntl(F_SETLK)`, `F_OFD_SETLK` | a lock of the same range |
//! | `flock(2)` | a lock of the byte [`FLOCK_AT`] |
//!
//! A lock to the end of the file ends before [`FLOCK_AT`]. libcephfs has no flock(2) by handle:
//! lanes see each other's, other clients do not.
//!
//! An owner is 64 bits of what the VFS calls its owner and family.

use std::hash::{DefaultHasher, Hash, Hasher};

use libc::{c_int, c_short, flock64, off64_t};
use polylane_base::{Errno, Ino, Result};
use polylane_vfs::fs::SharedLocks;
use polylane_vfs::{LockFamily, LockKind, LockOwner, LockRequest};

use crate::fs::CephFs;

/// The byte that stands for a file's flock(2) lock: the last one but one that a file can have.
const FLOCK_AT: u64 = i64::MAX as u64 - 1;

/// Of the cluster, for an owner of the VFS.
fn owner_of(lock: &LockRequest) -> u64 {
    let mut hasher = DefaultHasher::new();
    (lock.owner.0, lock.family as u8).hash(&mut hasher);
    hasher.finish()
}

/// A lock as libcephfs takes it.
fn flock(lock: &LockRequest) -> Result<flock64> {
    let kind: c_int = match lock.kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    let (start, end) = match lock.family {
        LockFamily::Flock => (FLOCK_AT, FLOCK_AT),
        LockFamily::Posix | LockFamily::Ofd => (lock.start, lock.end.min(FLOCK_AT - 1)),
    };
    if start > end {
        return Err(Errno::EOVERFLOW);
    }
    let signed = |value: u64| off64_t::try_from(value).map_err(|_| Errno::EOVERFLOW);
    Ok(flock64 {
        l_type: kind as c_short,
        l_whence: libc::SEEK_SET as c_short,
        l_start: signed(start)?,
        l_len: signed(end - start + 1)?,
        l_pid: lock.pid.cast_signed(),
    })
}

/// What stands in the way of a lock, if that is one.
fn request(asked: &LockRequest, found: &flock64) -> Option<LockRequest> {
    let kind = match c_int::from(found.l_type) {
        libc::F_RDLCK => LockKind::Read,
        libc::F_WRLCK => LockKind::Write,
        _ => return None,
    };
    let start = found.l_start.cast_unsigned();
    let end = match found.l_len.cast_unsigned() {
        0 => u64::MAX,
        len => start.saturating_add(len - 1),
    };
    // To the end of the file, as one of ours.
    let end = if end >= FLOCK_AT - 1 { u64::MAX } else { end };
    let (owner, pid) = (LockOwner(0), found.l_pid.cast_unsigned());
    Some(LockRequest { owner, family: asked.family, kind, start, end, pid, user: None })
}

impl SharedLocks for CephFs {
    fn set(&self, ino: Ino, lock: &LockRequest) -> Result<()> {
        let node = self.inodes().get(ino)?;
        match (lock.kind, node.locks_handle(lock.kind != LockKind::Unlock)?) {
            (_, Some(file)) => file.lock(flock(lock)?, owner_of(lock)),
            (_, None) => Ok(()),
        }
    }

    fn get(&self, ino: Ino, lock: &LockRequest) -> Result<Option<LockRequest>> {
        let node = self.inodes().get(ino)?;
        let file = node.locks_handle(true)?.ok_or(Errno::EIO)?;
        let found = file.lock_in_the_way(flock(lock)?, owner_of(lock))?;
        Ok(request(lock, &found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(family: LockFamily, start: u64, end: u64) -> LockRequest {
        let (kind, pid, user) = (LockKind::Write, 7, None);
        LockRequest { owner: LockOwner(1), family, kind, start, end, pid, user }
    }

    #[test]
    fn ranges_come_back_as_they_were_and_flock_is_apart_from_them() {
        for (start, end) in [(0, 0), (5, 9), (0, u64::MAX), (1 << 40, u64::MAX)] {
            let asked = lock(LockFamily::Posix, start, end);
            let sent = flock(&asked).expect("in range");
            assert!(sent.l_start + sent.l_len <= FLOCK_AT.cast_signed(), "{start} {end}");
            let back = request(&asked, &sent).expect("a lock");
            assert_eq!((back.start, back.end, back.pid), (start, end, 7));
        }
        let whole = flock(&lock(LockFamily::Flock, 0, 0)).expect("in range");
        assert_eq!((whole.l_start.cast_unsigned(), whole.l_len), (FLOCK_AT, 1));
        assert!(flock(&lock(LockFamily::Posix, u64::MAX, u64::MAX)).is_err());
        let posix = lock(LockFamily::Posix, 0, 0);
        assert_ne!(owner_of(&posix), owner_of(&lock(LockFamily::Ofd, 0, 0)));
    }
}
