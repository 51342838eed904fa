//! Work that may wait for a lane's service, or for another file system: in a process of its own,
//! for a limited time.
//!
//! A service that was stopped or taken over may never answer, and the kernel does not let go of a
//! process that waits for a request which the service has read. So the caller does not wait itself.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use polylane_base::Errno;
use polylane_base::sync::thread;
use polylane_sys::ns::{self, Fork, Namespaces};
use rustix::fs::{Mode, OFlags};

use crate::link::Link;
use crate::process::Process;
use crate::wait::wait_for;

/// How long a service may take to make everything durable.
pub(crate) const SYNC_TIME_MAX: Duration = Duration::from_secs(300);

/// As long as that where the mount goes away in any case.
pub(crate) const LAZY_SYNC_TIME_MAX: Duration = Duration::from_secs(10);

/// How long closing a mount may take before its process goes on alone.
const CLOSE_TIME_MAX: Duration = Duration::from_millis(50);

/// Does `work`, which uses none of the caller's descriptors. A caller with threads cannot fork;
/// there a thread does it, which ends with the caller at the latest.
///
/// # Errors
/// What `work` says; `ETIMEDOUT`: it takes longer than `limit`.
pub fn within(
    limit: Duration,
    work: impl FnOnce() -> rustix::io::Result<()> + Send + 'static,
) -> Result<(), Errno> {
    answer(limit, || work().map(|()| None)).map(drop)
}

/// The descriptor that `open` has made.
///
/// # Errors
/// As [`within`].
pub(crate) fn opened_within(
    limit: Duration,
    open: impl FnOnce() -> rustix::io::Result<OwnedFd> + Send + 'static,
) -> Result<OwnedFd, Errno> {
    answer(limit, || open().map(Some))?.ok_or(Errno(libc::EIO))
}

fn answer(
    limit: Duration,
    work: impl FnOnce() -> rustix::io::Result<Option<OwnedFd>> + Send + 'static,
) -> Result<Option<OwnedFd>, Errno> {
    // By a message, since the caller may ignore its children's ends.
    let (own, other) = Link::pair()?;
    match ns::fork(Namespaces::default()) {
        Err(_) => in_a_thread(limit, work),
        Ok(Fork::Child) => {
            let made = alone(&[other.as_fd()]).and_then(|()| work());
            let status = made.as_ref().err().map_or(0, |error| error.raw_os_error());
            let made = made.ok().flatten();
            let fds: Vec<_> = made.iter().map(AsFd::as_fd).collect();
            let _ = other.send(&status, &fds);
            ns::exit_now(0)
        }
        Ok(Fork::Parent(child)) => {
            drop(other);
            let mut process = Process::new(child);
            if !wait_for(own.as_fd(), limit) {
                process.kill();
                process.release();
                return Err(Errno(libc::ETIMEDOUT));
            }
            let _ = process.wait();
            match own.receive::<i32>() {
                Ok(Some((0, mut fds))) => Ok(fds.pop()),
                Ok(Some((errno, _))) => Err(Errno(errno)),
                _ => Err(Errno(libc::EIO)),
            }
        }
    }
}

fn in_a_thread(
    limit: Duration,
    work: impl FnOnce() -> rustix::io::Result<Option<OwnedFd>> + Send + 'static,
) -> Result<Option<OwnedFd>, Errno> {
    let (done, end) = mpsc::channel();
    thread::Builder::new().spawn(move || done.send(work()))?;
    match end.recv_timeout(limit) {
        Ok(done) => done.map_err(|error| Errno(error.raw_os_error())),
        Err(_) => Err(Errno(libc::ETIMEDOUT)),
    }
}

/// Closes mounts. The kernel has who closes a mount last wait until its service has everything.
pub(crate) fn close(mounts: Vec<OwnedFd>) {
    if mounts.is_empty() {
        return;
    }
    if let Err(mounts) = close_apart(mounts) {
        // Where no thread can be made either they are closed here.
        let _ = thread::Builder::new().spawn(move || drop(mounts));
    }
}

/// Has a process close files, whose last close may never return.
///
/// # Errors
/// The files, where no process can be made.
pub(crate) fn close_apart(files: Vec<OwnedFd>) -> Result<(), Vec<OwnedFd>> {
    let forked = Link::pair().map(|pair| (pair, ns::fork(Namespaces::default())));
    let ((own, other), child) = match forked {
        Ok((pair, Ok(child))) => (pair, child),
        _ => return Err(files),
    };
    match child {
        Fork::Child => {
            drop(own);
            let kept = files.iter().map(AsFd::as_fd).chain([other.as_fd()]).collect::<Vec<_>>();
            let _ = alone(&kept);
            // The caller has closed them then.
            let _ = other.receive::<()>();
            ns::exit_now(0)
        }
        Fork::Parent(child) => {
            drop((files, other, own));
            let mut process = Process::new(child);
            match wait_for(process.as_fd(), CLOSE_TIME_MAX) {
                true => drop(process.wait()),
                false => process.release(),
            }
            Ok(())
        }
    }
}

/// Lets go of the caller's files but for `kept`: others wait for the end of its output.
fn alone(kept: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    drop(null);
    ns::keep_only(kept).map_err(|_| rustix::io::Errno::IO)
}

/// Has the kernel send what it still holds of the mapped files of the lane at `path`, and its
/// service write everything.
///
/// # Errors
/// As [`within`].
pub(crate) fn sync(path: &Path, limit: Duration) -> Result<(), Errno> {
    let path = path.to_path_buf();
    within(limit, move || {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&path, flags, Mode::empty())?;
        rustix::fs::syncfs(&root)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn work_is_done_fails_or_takes_too_long() {
        let long = Duration::from_secs(20);
        assert_eq!(within(long, || Ok(())), Ok(()));
        assert_eq!(within(long, || Err(rustix::io::Errno::NOSPC)), Err(Errno(libc::ENOSPC)));
        let start = Instant::now();
        let stuck = || {
            loop {
                std::thread::sleep(Duration::from_secs(60));
            }
        };
        let done = within(Duration::from_millis(20), stuck);
        assert_eq!(done, Err(Errno(libc::ETIMEDOUT)));
        assert!(start.elapsed() < long);
        let opened = opened_within(long, || {
            rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        });
        assert_eq!(rustix::io::write(opened.expect("opened"), b"1"), Ok(1));
    }
}
