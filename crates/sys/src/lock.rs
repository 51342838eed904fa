//! Locks on byte ranges of a file that belong to the open file, not to the process (OFD locks).
#![expect(unsafe_code, reason = "UNSAFETY: fcntl(2) with a struct that rustix has no form for")]

use std::os::fd::{AsFd, AsRawFd};

use polylane_base::{Errno, Result};

/// Takes `length` bytes from `start` on for this open file alone. A process that inherits the
/// descriptor, or is sent it, shares the lock; the lock goes with the last one.
///
/// # Errors
/// `EAGAIN` when another open file has a lock there; `ENOLCK`, `EBADF`, ….
pub fn lock_range(file: impl AsFd, start: i64, length: i64) -> Result<()> {
    lock(file, start, length, libc::F_WRLCK)
}

/// As [`lock_range`], but together with others who do the same.
///
/// # Errors
/// `EAGAIN` when another open file has the range for itself alone; ….
pub fn share_range(file: impl AsFd, start: i64, length: i64) -> Result<()> {
    lock(file, start, length, libc::F_RDLCK)
}

/// Gives a range up that this open file has.
///
/// # Errors
/// `EBADF`, ….
pub fn unlock_range(file: impl AsFd, start: i64, length: i64) -> Result<()> {
    lock(file, start, length, libc::F_UNLCK)
}

fn lock(file: impl AsFd, start: i64, length: i64, kind: i32) -> Result<()> {
    // SAFETY: all-zero is a valid `flock`, and l_pid must be 0.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    (lock.l_start, lock.l_len) = (start, length);
    loop {
        // SAFETY: the descriptor is open, and the kernel reads one `flock`.
        let result =
            unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
        match result {
            0 => return Ok(()),
            _ => match Errno::from(std::io::Error::last_os_error()) {
                Errno::EINTR => {}
                Errno::EACCES => return Err(Errno::EAGAIN),
                errno => return Err(errno),
            },
        }
    }
}

/// Whether another open file has a lock in the range.
///
/// # Errors
/// `EBADF`, ….
pub fn is_locked(file: impl AsFd, start: i64, length: i64) -> Result<bool> {
    // SAFETY: all-zero is a valid `flock`, and l_pid must be 0.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    (lock.l_start, lock.l_len) = (start, length);
    // SAFETY: the descriptor is open, and the kernel reads and writes one `flock`.
    match unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } {
        0 => Ok(lock.l_type != libc::F_UNLCK as i16),
        _ => Err(Errno::from(std::io::Error::last_os_error())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_belongs_to_one_open_file() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("f");
        std::fs::write(&path, "x").expect("write");
        let open = || std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("open");
        let (one, other) = (open(), open());
        lock_range(&one, 100, 10).expect("free");
        lock_range(&one, 100, 10).expect("its own");
        assert_eq!(lock_range(&other, 105, 1), Err(Errno::EAGAIN));
        assert_eq!((is_locked(&other, 0, 101), is_locked(&other, 0, 9)), (Ok(true), Ok(false)));
        lock_range(&other, 110, 1).expect("beside it");
        let copy = one.try_clone().expect("dup");
        drop(one);
        assert_eq!(lock_range(&other, 100, 1), Err(Errno::EAGAIN));
        drop(copy);
        lock_range(&other, 100, 1).expect("free again");
        unlock_range(&other, 100, 1).expect("given up");
        lock_range(open(), 100, 1).expect("free, until this one is closed");
        lock_range(&other, 100, 1).expect("free again");
        let third = open();
        assert_eq!(share_range(&third, 100, 1), Err(Errno::EAGAIN));
        share_range(&other, 100, 1).expect("its own");
        share_range(&third, 100, 1).expect("together");
    }
}
