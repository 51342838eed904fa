//! A lane's connection to the coordinator of its device, and the control group by which that sees
//! what the lane's process does there.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use polylane_base::sync::thread;
use polylane_block::qos::depth::Counted;
use polylane_block::qos::governed::{Governor, SharedLane};
use polylane_block::qos::lane::Lane;
use polylane_block::qos::page::{Mapped, PAGE_BYTES, Terms, flag};
use polylane_sys::{Region, scm};

use super::{FromCoordinator, MESSAGE_BYTES_MAX, Meeting, Policy, ToCoordinator, Wanted};
use crate::bound::{Bound, Group, Number};
use crate::cgroup;
use crate::failure::{Failure, Result, say};
use crate::wait::wait_for;

/// How long a coordinator may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(300);

/// How long the first joining may take before the lane goes on without.
const FIRST_TIME_MAX: Duration = Duration::from_secs(2);

/// Time between two tries.
const RETRY: Duration = Duration::from_millis(5);

/// A lane that lives no longer needs no group: to enter one takes the kernel milliseconds.
const WATCHED_AFTER: Duration = Duration::from_secs(1);

/// The group in which what a lane's process does is counted.
#[derive(Debug)]
struct Watch {
    dir: PathBuf,
    since: Instant,
    /// The process that is in it, once there is one.
    inside: Option<(Group, u32)>,
    /// The coordinator was told of it.
    told: bool,
}

/// A lane's place among those of its device. Lost, it is taken again.
#[derive(Debug)]
pub(crate) struct Member {
    meeting: Meeting,
    pool: String,
    wanted: Wanted,
    policy: Policy,
    /// Another policy will do too: none was asked for.
    any: bool,
    link: Option<OwnedFd>,
    /// The page, and the other descriptor that comes with [`FromCoordinator::Joined`].
    pages: Vec<OwnedFd>,
    watch: Option<Watch>,
}

/// What became of a try to join.
enum Tried {
    Joined(OwnedFd, Vec<OwnedFd>),
    Refused(String),
    Nobody,
}

impl Member {
    /// A lane that is not joined yet. Without a policy it shares as the others on the device do, or
    /// by the default.
    pub(crate) fn new(
        meeting: Meeting,
        pool: &str,
        wanted: Wanted,
        policy: Option<Policy>,
    ) -> Member {
        let (any, policy) = (policy.is_none(), policy.unwrap_or_default());
        let pool = pool.to_string();
        Member { meeting, pool, wanted, policy, any, link: None, pages: Vec::new(), watch: None }
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
            if let Some(watch) = &mut self.watch {
                watch.told = false;
            }
        }
        self.link.is_some()
    }

    /// Its process may be counted and limited in a group that is to be there.
    pub(crate) fn watch_io(&mut self, dir: Option<PathBuf>) {
        let since = Instant::now();
        self.watch = dir.map(|dir| Watch { dir, since, inside: None, told: false });
    }

    /// Has the process of the lane counted after a while, and shows the coordinator where. What the
    /// host does not do is done without.
    pub(crate) fn keep_io(&mut self, pid: u32) {
        let Some(watch) = self.watch.as_mut().filter(|watch| watch.is_due()) else { return };
        if watch.inside.as_ref().is_none_or(|(_, inside)| *inside != pid) {
            match watch.enter(pid, self.meeting.number()) {
                Some(group) => watch.inside = Some((group, pid)),
                None => {
                    self.watch = None;
                    return;
                }
            }
        }
        if let (false, Some(_), Some((group, _))) = (watch.told, &self.link, &watch.inside) {
            // Once for each coordinator: one that does not answer is not asked again.
            watch.told = true;
            let message = ToCoordinator::Watch { pool: self.pool.clone() };
            let link = scm::connect(&self.meeting.socket());
            let _ = link.map(|link| exchange(&link, &message, &[group.as_fd()]));
        }
    }

    /// Removes the group, out of which the process has gone.
    pub(crate) fn end_io(&mut self) {
        if let Some(watch) = self.watch.take().filter(|watch| watch.inside.is_some()) {
            cgroup::remove(&[watch.dir]);
        }
    }

    /// What the kernel holds its process to, as the kernel has it.
    fn bound(&self) -> Option<Bound> {
        let (group, _) = self.watch.as_ref()?.inside.as_ref()?;
        group.bound(self.meeting.number())
    }

    /// Asks for a lane; where any policy will do, by one after the other.
    fn try_join(&mut self) -> Tried {
        let others = Policy::ALL.iter().filter(|policy| policy.rule().is_some());
        let others: Vec<Policy> = others.copied().filter(|_| self.any).collect();
        let mut tried = self.try_policy();
        for policy in others {
            if !matches!(tried, Tried::Refused(_)) {
                break;
            }
            self.policy = policy;
            tried = self.try_policy();
        }
        tried
    }

    fn try_policy(&self) -> Tried {
        let Ok(link) = scm::connect(&self.meeting.socket()) else { return Tried::Nobody };
        let message = ToCoordinator::Join {
            pool: self.pool.clone(),
            wanted: self.wanted,
            policy: self.policy,
        };
        match exchange(&link, &message, &[]) {
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

    /// When to call [`rejoin`](Member::rejoin) or [`keep_io`](Member::keep_io), if at all.
    pub(crate) fn retry_in(&self) -> Option<Duration> {
        let watch = self.watch.as_ref().filter(|watch| watch.inside.is_none());
        let due = watch.map(|watch| WATCHED_AFTER.saturating_sub(watch.since.elapsed()));
        self.link.is_none().then_some(RETRY).into_iter().chain(due).min()
    }

    /// Reads the news; the connection may be over after that.
    pub(crate) fn news(&mut self) {
        let Some(link) = &self.link else { return };
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        match scm::try_receive(link, &mut bytes) {
            Ok(got) if got.count > 0 => match serde_json::from_slice(&bytes[..got.count]) {
                Ok(FromCoordinator::Changed(wanted)) => self.wanted = wanted,
                Ok(FromCoordinator::Bound(bound)) => self.say_bound(bound),
                _ => {}
            },
            Err(polylane_base::Errno::EAGAIN | polylane_base::Errno::EINTR) => {}
            Ok(_) | Err(_) => self.link = None,
        }
    }

    fn say_bound(&self, bound: bool) {
        let (pool, device) = (&self.pool, self.meeting.name());
        match bound {
            true => say(format_args!(
                "pool '{pool}': its service does more at device {device} than it says: the kernel \
                 holds it to its share"
            )),
            false => say(format_args!(
                "pool '{pool}': the kernel holds its service back no more at device {device}"
            )),
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
            "watched": self.watch.as_ref().is_some_and(|watch| watch.inside.is_some()),
            "bound": self.bound(),
        })
    }

    /// What a service needs: the connection, to keep it, then what came with
    /// [`FromCoordinator::Joined`]. Empty without a lane.
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let fds = self.link.iter().chain(&self.pages);
        if self.link.is_some() { fds.map(AsFd::as_fd).collect() } else { Vec::new() }
    }
}

impl Watch {
    fn is_due(&self) -> bool {
        self.inside.is_some() || self.since.elapsed() >= WATCHED_AFTER
    }

    /// Moves the process into the group, which is made if it is not there.
    fn enter(&self, pid: u32, device: Number) -> Option<Group> {
        cgroup::make(&self.dir).ok()?;
        let group = Group::open(&self.dir)?;
        group.count(device).ok()?;
        // A process that has just ended is followed by another one.
        let _ = cgroup::enter(&self.dir, pid);
        Some(group)
    }
}

/// One question, one answer.
pub(crate) fn ask(socket: &Path, message: &ToCoordinator) -> Option<FromCoordinator> {
    let link = scm::connect(socket).ok()?;
    exchange(&link, message, &[]).map(|(answer, _)| answer)
}

fn exchange(
    link: &OwnedFd,
    message: &ToCoordinator,
    fds: &[BorrowedFd<'_>],
) -> Option<(FromCoordinator, Vec<OwnedFd>)> {
    scm::send(link, &serde_json::to_vec(message).ok()?, fds).ok()?;
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
    let locks = Terms::read(&page).is_some_and(|terms| terms.flags & flag::SHARED_LOCK != 0);
    let lane: SharedLane = match fds.next() {
        Some(lock) if locks => Lane::new(page, Some(Mapped(Region::attach(lock, PAGE_BYTES)?))),
        Some(depth) => {
            let counted = Counted::from(File::from(depth));
            Lane::new(page, None).with_depth(Some(Arc::new(counted)))
        }
        None => Lane::new(page, None),
    };
    governor.set(Some(lane));
    Ok(link)
}
