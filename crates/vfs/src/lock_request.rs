//! What a lock is, held or asked for, and who decides where other hosts see it.

use polylane_base::{Ino, Result, Uid};

/// Who holds or wants a lock. Front ends choose: the process for POSIX locks, the open file for the
/// two others. Owners of different families must differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LockOwner(pub u128);

/// Which set of rules a lock follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LockFamily {
    /// `fcntl(F_SETLK)`: per process; conflicts with `Ofd`; deadlocks are detected.
    Posix,
    /// `fcntl(F_OFD_SETLK)`: per open file; conflicts with `Posix`.
    Ofd,
    /// `flock(2)`: per open file, whole file; conflicts with `Flock` only.
    Flock,
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
    /// None: gives the range back.
    Unlock,
}

/// A lock that is held or asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockRequest {
    /// Who.
    pub owner: LockOwner,
    /// By which rules.
    pub family: LockFamily,
    /// What.
    pub kind: LockKind,
    /// First byte. Ignored for `Flock`.
    pub start: u64,
    /// Last byte, inclusive; `u64::MAX` is "to the end, however far it grows". Ignored for `Flock`.
    pub end: u64,
    /// Process to name in `F_GETLK`, by its number in the namespace that the front ends share.
    pub pid: u32,
    /// The user that it counts for, up to
    /// [`LOCKS_PER_USER_MAX`](crate::lock::LOCKS_PER_USER_MAX). `None`: it counts for no user.
    pub user: Option<Uid>,
}

/// Locks of a file system's regular files that other hosts see. The VFS asks for each of its
/// programs' locks, and keeps none that was not granted.
pub trait SharedLocks: Send + Sync {
    /// Sets, changes or gives up a lock without waiting; `EAGAIN`: somebody is in the way. What an
    /// owner has of another kind in the range is replaced, as by fcntl(2).
    fn set(&self, ino: Ino, lock: &LockRequest) -> Result<()>;

    /// The first lock in the way of this one.
    fn get(&self, ino: Ino, lock: &LockRequest) -> Result<Option<LockRequest>>;
}
