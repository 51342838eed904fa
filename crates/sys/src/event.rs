//! Event descriptors and epoll, as the workers use them.
//!
//! An event descriptor that a client holds too is never read by the service: the client could drain
//! it or switch it to blocking. Workers watch it edge-triggered, where every write is one event.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use polylane_base::Result;
use rustix::event::{EventfdFlags, Timespec, epoll};

use crate::region::errno;

/// A new non-blocking, close-on-exec eventfd.
pub fn eventfd() -> Result<OwnedFd> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(errno)
}

/// Adds one to an eventfd. Failure means that it is full, hence already signalled, or that it is
/// not ours any more; both are nothing the caller can mend. Async-signal-safe.
pub fn notify(fd: impl AsFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Takes the count of an eventfd that no peer holds; 0 when there was none.
pub fn drain(fd: impl AsFd) -> u64 {
    let mut count = [0; 8];
    match rustix::io::read(fd, &mut count) {
        Ok(8) => u64::from_ne_bytes(count),
        _ => 0,
    }
}

/// What is watched, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interest {
    /// Readable or closed, as long as it is so.
    Level,
    /// Readable or closed, once per change. For descriptors shared with a client.
    Edge,
    /// Closed by the peer only; of a socket that receives no more as well.
    Hangup,
    /// Readable or closed, once: then it is [`Interest::Nothing`], until it is changed.
    Once,
    /// Nothing, for now.
    Nothing,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        let readable = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        match self {
            Interest::Level => readable,
            Interest::Edge => readable | epoll::EventFlags::ET,
            Interest::Hangup => epoll::EventFlags::empty(),
            Interest::Once => readable | epoll::EventFlags::ONESHOT,
            Interest::Nothing => epoll::EventFlags::ONESHOT,
        }
    }
}

/// One readiness report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ready {
    /// The token given to [`Epoll::add`].
    pub token: u64,
    /// There is something to read.
    pub readable: bool,
    /// The peer is gone, or the descriptor is in error.
    pub hangup: bool,
}

/// A set of watched descriptors. Thread-safe.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// An empty set.
    pub fn new() -> Result<Self> {
        epoll::create(epoll::CreateFlags::CLOEXEC).map(Epoll).map_err(errno)
    }

    /// Watches `fd`; reports carry `token`. The descriptor leaves the set when its last copy is
    /// closed or by [`Epoll::remove`]: a copy that a client holds keeps it in, so remove before
    /// closing.
    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<()> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.0, fd, data, interest.flags()).map_err(errno)
    }

    /// Watches `fd`, which is in the set, for something else.
    pub fn change(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<()> {
        let data = epoll::EventData::new_u64(token);
        epoll::modify(&self.0, fd, data, interest.flags()).map_err(errno)
    }

    /// Watches `fd` no longer.
    pub fn remove(&self, fd: impl AsFd) -> Result<()> {
        epoll::delete(&self.0, fd).map_err(errno)
    }

    /// Waits until something is ready or the time is over (`None`: for ever) and appends at most 64
    /// reports to `ready`. A signal ends it early with none.
    pub fn wait(&self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> Result<()> {
        let timeout = timeout.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        let none = epoll::Event { flags: epoll::EventFlags::empty(), data: DATA_NONE };
        let mut events = [none; 64];
        let count = match epoll::wait(&self.0, &mut events[..], timeout.as_ref()) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(errno(error)),
        };
        ready.extend(events[..count].iter().map(report));
        Ok(())
    }
}

const DATA_NONE: epoll::EventData = epoll::EventData::new_u64(0);

fn report(event: &epoll::Event) -> Ready {
    let (flags, data) = (event.flags, event.data);
    let gone = epoll::EventFlags::HUP | epoll::EventFlags::RDHUP | epoll::EventFlags::ERR;
    Ready {
        token: data.u64(),
        readable: flags.contains(epoll::EventFlags::IN),
        hangup: flags.intersects(gone),
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edge_reports_each_write_without_a_read() {
        let (epoll, event) = (Epoll::new().unwrap(), eventfd().unwrap());
        epoll.add(&event, 9, Interest::Edge).unwrap();
        for _ in 0..3 {
            notify(&event);
            let mut ready = Vec::new();
            epoll.wait(&mut ready, Some(Duration::from_secs(5))).unwrap();
            assert_eq!(ready, [Ready { token: 9, readable: true, hangup: false }]);
            ready.clear();
            epoll.wait(&mut ready, Some(Duration::ZERO)).unwrap();
            assert!(ready.is_empty());
        }
        assert_eq!(drain(&event), 3);
        assert_eq!(drain(&event), 0);
    }

    /// A set in a set: who waits for the outer one is woken once for each time it is asked for, and
    /// leaves the report to the inner one.
    #[test]
    fn once_reports_once_for_each_time_it_is_asked_for() {
        let (inner, outer, event) = (Epoll::new().unwrap(), Epoll::new().unwrap(), eventfd());
        let event = event.unwrap();
        inner.add(&event, 1, Interest::Edge).unwrap();
        outer.add(&inner, 2, Interest::Nothing).unwrap();
        let count = |set: &Epoll| {
            let mut ready = Vec::new();
            set.wait(&mut ready, Some(Duration::ZERO)).unwrap();
            ready.len()
        };
        notify(&event);
        assert_eq!(count(&outer), 0, "not asked for");
        outer.change(&inner, 2, Interest::Once).unwrap();
        assert_eq!((count(&outer), count(&outer)), (1, 0));
        assert_eq!((count(&inner), count(&inner)), (1, 0));
        outer.change(&inner, 2, Interest::Once).unwrap();
        outer.change(&inner, 2, Interest::Nothing).unwrap();
        notify(&event);
        assert_eq!((count(&outer), count(&inner)), (0, 1));
    }
}
