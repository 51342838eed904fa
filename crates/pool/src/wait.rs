//! Waiting for descriptors, a limited time.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::Timespec;

/// Waits at most `limit` for a descriptor; whether it became readable.
pub(crate) fn wait_for(fd: BorrowedFd<'_>, limit: Duration) -> bool {
    wait_either(fd, fd, limit).0
}

/// In which groups a descriptor is readable now: by one call, however many there are.
pub(crate) fn any_ready<'a, I: Iterator<Item = BorrowedFd<'a>>>(
    groups: impl Iterator<Item = I>,
) -> Vec<bool> {
    let (mut fds, mut ends) = (Vec::new(), Vec::new());
    for group in groups {
        fds.extend(group.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        ends.push(fds.len());
    }
    // What cannot be asked has nothing to say yet.
    let _ = rustix::event::poll(&mut fds, Some(&Timespec::default()));
    let starts = std::iter::once(&0).chain(&ends);
    let groups = starts.zip(&ends).map(|(start, end)| &fds[*start..*end]);
    groups.map(|group| group.iter().any(|fd| !fd.revents().is_empty())).collect()
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
