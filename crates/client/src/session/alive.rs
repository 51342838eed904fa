//! Whether an answer may still come.

use polylane_ipc::Watch;

use super::Session;
use crate::kernel::real;

/// Whether the service lives, and serves this session still: its end of the socket is open.
pub(crate) struct Alive<'a>(pub(crate) &'a Session);

impl Watch for Alive<'_> {
    fn alive(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        if self.0.is_lost() {
            return false;
        }
        let fd = real::borrow(self.0.socket);
        let mut watched = [PollFd::new(&fd, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        poll(&mut watched, Some(&now)).is_err() || !watched[0].revents().intersects(gone)
    }
}
