//! An attachment's part of the device that its volume is on.

use std::time::Duration;

use crate::cgroup;
use crate::failure::Result;
use crate::keeper::{Duty, Keeper};
use crate::names;
use crate::share::member::Member;
use crate::share::profile::Profile;
use crate::share::{Meeting, Policy, Wanted};
use crate::wait::wait_for;

/// An attachment's part of its device.
pub(super) enum Share {
    /// It is to have one: where, what, and how lanes share there.
    Asked(Meeting, Box<Profile>, Wanted, Policy),
    /// Its lane, and the process that coordinates the device when nobody else does.
    Joined(Box<Member>, Box<Keeper>),
}

impl Share {
    /// Joins the others on the device, for the attachment `id`.
    pub(super) fn join(self, id: &str) -> Result<Share> {
        let Share::Asked(meeting, profile, wanted, policy) = self else { return Ok(self) };
        let io_dir = cgroup::io_dir(id);
        let helper = Keeper::start(Duty {
            dir: names::runtime_dir(),
            name: None,
            groups: io_dir.iter().cloned().collect(),
            shares: Some((meeting.clone(), *profile)),
        })?;
        let mut member = Member::new(meeting, id, wanted, Some(policy));
        member.join()?;
        member.watch_io(io_dir);
        Ok(Share::Joined(Box::new(member), Box::new(helper)))
    }

    pub(super) fn member(&self) -> Option<&Member> {
        match self {
            Share::Joined(member, _) => Some(member),
            Share::Asked(..) => None,
        }
    }

    /// Hears what is new for the engine `pid`, joins again where it lost its place; whether it has
    /// another lane.
    pub(super) fn keep(&mut self, pid: u32) -> bool {
        let Share::Joined(member, helper) = self else { return false };
        if helper.end().is_some_and(|end| wait_for(end, Duration::ZERO)) {
            helper.replace(None);
        }
        if member.link().is_some_and(|link| wait_for(link, Duration::ZERO)) {
            member.news();
        }
        let joined = member.link().is_none() && member.rejoin();
        member.keep_io(pid);
        joined
    }

    /// After the end of the engine.
    pub(super) fn end(mut self) {
        if let Share::Joined(member, _) = &mut self {
            member.end_io();
        }
    }
}
