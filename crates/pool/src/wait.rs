//! Waiting for descriptors, a limited time.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::Timespec;

/// Waits at most `limit` for a descriptor; whether it became readable.
pub(crate) fn wait_for(fd: BorrowedFd<'_>, limit: Duration) -> bool {
    wait_either(fd, fd, limit).0
}

/// Waits at most `limit` for one of two descriptors; which of them are readable.
pub(crate) fn wait_either(
    one: BorrowedFd<'_>,
    other: BorrowedFd<'_>,
    limit: Duration,
) -> (bool, bool) {
    let start = Instant::now();
    loop {
        let left = limit.saturating_sub(start.elapsed());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut fds = [one, other].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(1..) => return (!fds[0].revents().is_empty(), !fds[1].revents().is_empty()),
            _ => return (false, false),
        }
    }
}
