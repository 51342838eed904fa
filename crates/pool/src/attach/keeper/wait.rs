//! What a keeper's loop waits for.

use std::os::fd::{AsFd, OwnedFd};

use polylane_sys::ns::SignalFd;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::Timespec;

use super::super::served::Engine;
use super::super::share::Share;
use super::{Keeper, LOOK_AGAIN};
use crate::link::Link;
use crate::share::member::Member;

/// What the loop waits for.
pub(super) enum Event {
    /// The engine's process ended.
    Death,
    /// The engine says something.
    Engine,
    /// A command connects.
    Client,
    /// Its part of the device may have changed.
    Share,
    /// The command that copies the volume says something, or is gone.
    Copier,
    /// The command that makes the attachment says something, or is gone.
    Maker,
    /// The device has lost a connection to the engine.
    Lost,
    /// A helper has ended.
    Helper,
    /// An engine said something to its standard error.
    Said,
    /// A signal.
    Signal,
}

impl Keeper {
    /// The next event.
    pub(super) fn wait(
        &self,
        engine: &Engine,
        listener: &OwnedFd,
        signals: &SignalFd,
        maker: Option<&Link>,
    ) -> Event {
        loop {
            if !engine.early.borrow().is_empty() {
                return Event::Engine;
            }
            let (process, copier) = (engine.process.as_fd(), self.copies.as_fd());
            let links = self.door.links.as_ref().map(AsFd::as_fd);
            let member = self.share.as_ref().and_then(Share::member);
            let share = member.and_then(Member::link);
            let helper = self.helpers.first().map(AsFd::as_fd);
            let said = self.relay.as_ref().map(AsFd::as_fd);
            let mut fds = [
                process,
                engine.link.as_fd(),
                listener.as_fd(),
                signals.as_fd(),
                maker.map_or(process, AsFd::as_fd),
                copier.unwrap_or(process),
                links.unwrap_or(process),
                share.unwrap_or(process),
                helper.unwrap_or(process),
                said.unwrap_or(process),
            ]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let limit = member.map(|member| member.retry_in().unwrap_or(LOOK_AGAIN));
            let limit = limit.map(|limit| Timespec {
                tv_sec: limit.as_secs() as i64,
                tv_nsec: limit.subsec_nanos().into(),
            });
            match poll(&mut fds, limit.as_ref()) {
                Ok(0) => return Event::Share,
                Ok(_) => {}
                Err(_) => continue,
            }
            let is = |index: usize| !fds[index].revents().is_empty();
            match () {
                () if is(0) => return Event::Death,
                () if is(1) => return Event::Engine,
                () if is(3) && matches!(signals.next(), Ok(Some(_))) => return Event::Signal,
                () if maker.is_some() && is(4) => return Event::Maker,
                () if copier.is_some() && is(5) => return Event::Copier,
                () if links.is_some() && is(6) => return Event::Lost,
                () if share.is_some() && is(7) => return Event::Share,
                () if helper.is_some() && is(8) => return Event::Helper,
                () if is(2) => return Event::Client,
                () if said.is_some() && is(9) => return Event::Said,
                () => {}
            }
        }
    }
}
