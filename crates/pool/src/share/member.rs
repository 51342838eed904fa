//! A lane's connection to the coordinator of its device.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use polylane_base::sync::thread;
use polylane_block::qos::governed::{Governor, SharedLane};
use polylane_block::qos::lane::Lane;
use polylane_block::qos::page::{Mapped, PAGE_BYTES};
use polylane_sys::{Region, scm};

use super::{FromCoordinator, MESSAGE_BYTES_MAX, Meeting, Policy, ToCoordinator, Wanted};
use crate::failure::{Failure, Result, say};
use crate::keeper::wait_for;

/// How long a coordinator may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(300);

/// How long the first joining may take before the lane goes on without.
const FIRST_TIME_MAX: Duration = Duration::from_secs(2);

/// Time between two tries.
const RETRY: Duration = Duration::from_millis(5);

/// A lane's place among those of its device. Lost, it is taken again.
#[derive(Debug)]
pub(crate) struct Member {
    meeting: Meeting,
    pool: String,
    wanted: Wanted,
    policy: Policy,
    link: Option<OwnedFd>,
    /// The page, and the one with the lock that all lanes share.
    pages: Vec<OwnedFd>,
}

/// What became of a try to join.
enum Tried {
    Joined(OwnedFd, Vec<OwnedFd>),
    Refused(String),
    Nobody,
}

impl Member {
    /// A lane that is not joined yet.
    pub(crate) fn new(meeting: Meeting, pool: &str, wanted: Wanted, policy: Policy) -> Member {
        let pool = pool.to_string();
        Member { meeting, pool, wanted, policy, link: None, pages: Vec::new() }
    }

    /// Joins for the first time.
    ///
    /// # Errors
    /// The device's lanes share it in another way.
    pub(crate) fn join(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            match self.try_join() {
                Tried::Joined(link, pages) => {
                    (self.link, self.pages) = (Some(link), pages);
                    return Ok(());
                }
                Tried::Refused(why) => return Err(Failure::failed(why)),
                Tried::Nobody if start.elapsed() > FIRST_TIME_MAX => {
                    say(format_args!(
                        "device {}: nobody coordinates its shares: going on without",
                        self.meeting.name()
                    ));
                    return Ok(());
                }
                Tried::Nobody => thread::sleep(RETRY),
            }
        }
    }

    /// Tries to join again; whether it worked.
    pub(crate) fn rejoin(&mut self) -> bool {
        if let Tried::Joined(link, pages) = self.try_join() {
            (self.link, self.pages) = (Some(link), pages);
        }
        self.link.is_some()
    }

    fn try_join(&self) -> Tried {
        let Ok(link) = scm::connect(&self.meeting.socket()) else { return Tried::Nobody };
        let message = ToCoordinator::Join {
            pool: self.pool.clone(),
            wanted: self.wanted,
            policy: self.policy,
        };
        match exchange(&link, &message) {
            Some((FromCoordinator::Joined, pages)) if !pages.is_empty() => {
                Tried::Joined(link, pages)
            }
            Some((FromCoordinator::Refused(why), _)) => Tried::Refused(why),
            _ => Tried::Nobody,
        }
    }

    /// The connection, while there is one. It becomes readable when it has news or ends.
    pub(crate) fn link(&self) -> Option<BorrowedFd<'_>> {
        self.link.as_ref().map(AsFd::as_fd)
    }

    /// When to call [`rejoin`](Member::rejoin), if at all.
    pub(crate) fn retry_in(&self) -> Option<Duration> {
        self.link.is_none().then_some(RETRY)
    }

    /// Reads the news; the connection may be over after that.
    pub(crate) fn news(&mut self) {
        let Some(link) = &self.link else { return };
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        match scm::try_receive(link, &mut bytes) {
            Ok(got) if got.count > 0 => {
                if let Ok(FromCoordinator::Changed(wanted)) =
                    serde_json::from_slice(&bytes[..got.count])
                {
                    self.wanted = wanted;
                }
            }
            Err(polylane_base::Errno::EAGAIN | polylane_base::Errno::EINTR) => {}
            Ok(_) | Err(_) => self.link = None,
        }
    }

    /// What the lane is to have.
    pub(crate) fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// For people: the device, how it is shared, what was asked for.
    pub(crate) fn describe(&self) -> serde_json::Value {
        serde_json::json!({
            "device": self.meeting.name(),
            "policy": self.policy.name(),
            "joined": self.link.is_some(),
            "wanted": self.wanted,
        })
    }

    /// What a service needs: the connection, to keep it, then the pages. Empty without a lane.
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let fds = self.link.iter().chain(&self.pages);
        if self.link.is_some() { fds.map(AsFd::as_fd).collect() } else { Vec::new() }
    }
}

/// One question, one answer.
pub(super) fn ask(socket: &Path, message: &ToCoordinator) -> Option<FromCoordinator> {
    let link = scm::connect(socket).ok()?;
    exchange(&link, message).map(|(answer, _)| answer)
}

fn exchange(link: &OwnedFd, message: &ToCoordinator) -> Option<(FromCoordinator, Vec<OwnedFd>)> {
    scm::send(link, &serde_json::to_vec(message).ok()?, &[]).ok()?;
    if !wait_for(link.as_fd(), ANSWER_TIME_MAX) {
        return None;
    }
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let got = scm::receive(link, &mut bytes).ok()?;
    let answer = serde_json::from_slice(bytes.get(..got.count)?).ok()?;
    Some((answer, got.fds))
}

/// In a service: goes on with what a member's [`fds`](Member::fds) were; the connection, which is
/// to be kept as long as the lane.
///
/// # Errors
/// The descriptors are not what they should be.
pub(crate) fn adopt(governor: &Governor, fds: Vec<OwnedFd>) -> polylane_base::Result<OwnedFd> {
    let mut fds = fds.into_iter();
    let missing = || polylane_base::Errno::EPROTO;
    let link = fds.next().ok_or_else(missing)?;
    let page = Mapped(Region::attach(fds.next().ok_or_else(missing)?, PAGE_BYTES)?);
    let lock = fds.next().map(|fd| Region::attach(fd, PAGE_BYTES)).transpose()?.map(Mapped);
    let lane: SharedLane = Lane::new(page, lock);
    governor.set(Some(lane));
    Ok(link)
}
