//! One descriptor that says when a channel has something, for front ends that wait for more than
//! that: the medium's channel, the gate of the map, the time of the next turn.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use polylane_base::Result;
use polylane_sys::event::{Epoll, Interest};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::qos::Nanos;

pub(super) struct Events {
    epoll: Epoll,
    timer: OwnedFd,
}

impl Events {
    pub(super) fn new(below: BorrowedFd<'_>, gate: &OwnedFd) -> Result<Events> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|error| polylane_base::Errno(error.raw_os_error()))?;
        let epoll = Epoll::new()?;
        epoll.add(below, 0, Interest::Level)?;
        // Many channels watch the gate, so none may read it.
        epoll.add(gate, 1, Interest::Edge)?;
        epoll.add(&timer, 2, Interest::Level)?;
        Ok(Events { epoll, timer })
    }

    /// Readable from this time of the monotonic clock on; `None`: not on account of time.
    pub(super) fn alarm(&self, at: Option<Nanos>) {
        // A time of 0 would disarm it.
        let at = at.map_or(0, |at| at.max(1));
        let time = |nanos: Nanos| Timespec {
            tv_sec: (nanos / 1_000_000_000) as i64,
            tv_nsec: (nanos % 1_000_000_000) as i64,
        };
        let alarm = Itimerspec { it_interval: time(0), it_value: time(at) };
        // Fails for times that cannot be, and ours can.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &alarm);
    }

    /// Takes the gate's edges.
    pub(super) fn drain(&self) {
        let _ = self.epoll.wait(&mut Vec::new(), Some(Duration::ZERO));
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
