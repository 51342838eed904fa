//! What a road sleeps on: the descriptors of the channels below it and a bell of its own, rung by
//! other roads when they let go of something. One descriptor stands for all of them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use polylane_sys::event;
use rustix::event::{PollFd, PollFlags, Timespec, epoll};

/// A sleeper looks again after this time, in case a descriptor could not be had.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

pub(super) struct Bell {
    all: Option<OwnedFd>,
    /// Every channel below has a descriptor in `all`.
    complete: bool,
    own: Option<Arc<OwnedFd>>,
}

impl Bell {
    /// A bell for what has these descriptors. Where the host has none left it does without: its
    /// owner then looks again and again.
    pub(super) fn new(events: &[Option<BorrowedFd<'_>>]) -> Bell {
        let own = event::eventfd().ok().map(Arc::new);
        let all = epoll::create(epoll::CreateFlags::CLOEXEC).ok();
        let mut complete = all.is_some() && own.is_some();
        let own_event = own.as_ref().map(|fd| fd.as_fd());
        for fd in events.iter().copied().chain([own_event]) {
            let added = all.as_ref().zip(fd).map(|(all, fd)| {
                let data = epoll::EventData::new_u64(0);
                epoll::add(all, fd, data, epoll::EventFlags::IN).is_ok()
            });
            complete &= added == Some(true);
        }
        Bell { all, complete, own }
    }

    /// Has those ring it who are going to ring these.
    pub(super) fn join(&self, ropes: &mut Vec<Arc<OwnedFd>>) {
        if let Some(own) = &self.own
            && !ropes.iter().any(|rope| Arc::ptr_eq(rope, own))
        {
            ropes.push(own.clone());
        }
    }

    /// Stops ringing, until somebody rings again.
    pub(super) fn silence(&self) {
        if let Some(own) = &self.own {
            event::drain(&**own);
        }
    }

    /// The descriptor that stands for all, if it does.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.all.as_ref().filter(|_| self.complete).map(|all| all.as_fd())
    }

    /// Sleeps until something rings. False: there is no such thing here.
    pub(super) fn wait(&self) -> bool {
        let Some(fd) = self.fd() else { return false };
        let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK_AGAIN.as_nanos() as i64 };
        let _ = rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout));
        true
    }
}

/// Rings all bells and forgets them.
pub(super) fn ring_all(ropes: &mut Vec<Arc<OwnedFd>>) {
    ropes.drain(..).for_each(|rope| event::notify(&*rope));
}

/// A nap for whoever has nothing to sleep on.
pub(super) fn nap() {
    std::thread::sleep(Duration::from_micros(50));
}
