//! What a supervisor waits for.

use std::os::fd::AsFd;
use std::time::Duration;

use polylane_sys::footprint;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::Timespec;

use super::{Service, Supervisor, wait_failed};
use crate::failure::Result;
use crate::share::member::Member;
use crate::stats::Listener;
use crate::upgrade::Control;

/// What `wait` found.
pub(super) struct Ready {
    pub(super) init: bool,
    pub(super) service: bool,
    pub(super) from_service: bool,
    pub(super) from_init: bool,
    pub(super) signals: bool,
    pub(super) said: bool,
    pub(super) questions: bool,
    pub(super) control: bool,
    pub(super) share: bool,
    pub(super) copier: bool,
    pub(super) keeper: bool,
}

impl Supervisor {
    /// Waits until there is something to do, or for `timeout`.
    pub(super) fn wait(
        &self,
        service: &Service,
        (listener, control): (&Listener, &Control),
        timeout: Option<Duration>,
    ) -> Result<Ready> {
        let watched = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds = vec![
            watched(self.init.as_fd()),
            watched(service.process.as_fd()),
            watched(service.link.as_fd()),
            watched(self.link.as_fd()),
            watched(self.signals.as_fd()),
        ];
        // One that is not there is the init's in its place, which is looked at first.
        let (share, copier) = (self.member.as_ref().and_then(Member::link), self.copies.as_fd());
        let control = control.as_fd();
        let keeper = self.keeper.end();
        let others = [share, copier, control, keeper];
        fds.extend(others.map(|fd| watched(fd.unwrap_or(self.init.as_fd()))));
        fds.push(watched(self.relay.as_fd()));
        let questions_at = fds.len();
        fds.extend(listener.fds().map(watched));
        let instances_at = fds.len();
        fds.extend(self.instances.fds().map(watched));
        let timeout = timeout.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            // The first time that there is nothing to do its start is over.
            Ok(0) if !self.has_rested.replace(true) => footprint::unmap_program(),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(wait_failed(error.into())),
        }
        let is = |fd: &PollFd<'_>| !fd.revents().is_empty();
        Ok(Ready {
            init: is(&fds[0]),
            service: is(&fds[1]),
            from_service: is(&fds[2]),
            from_init: is(&fds[3]),
            signals: is(&fds[4]),
            share: share.is_some() && is(&fds[5]),
            copier: copier.is_some() && is(&fds[6]),
            control: control.is_some() && is(&fds[7]),
            keeper: keeper.is_some() && is(&fds[8]),
            said: is(&fds[9]),
            questions: fds[questions_at..instances_at].iter().any(is),
        })
    }
}
