//! POSIX, open-file-description and flock locks.

use polylane_base::Result;

/// Who holds or wants a lock. Front ends choose: the process for POSIX locks, the open file for the
/// two others. Owners of different families must differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct LockOwner(pub u128);

/// Which set of rules a lock follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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
    /// Process to name in `F_GETLK`.
    pub pid: u32,
}

/// Told once how a parked request ended. Runs on the thread that made room, after all locks of the VFS
/// were dropped; it must only post a reply.
pub type LockWaiter = Box<dyn FnOnce(Result<()>) + Send>;

/// Names a parked request of one [`Vfs`](crate::Vfs). Never used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket(pub u64);

/// How a lock request went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockOutcome {
    /// Finished; the waiter's closure was dropped unused. `EAGAIN`: somebody is in the way.
    Done(Result<()>),
    /// Waits. The closure may run before this is even returned.
    Parked(Ticket),
}
