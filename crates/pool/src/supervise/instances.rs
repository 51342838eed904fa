//! Further lanes of the service, as its supervisor has them: each has doors, a volume, a handover
//! and a line to the service of its own, and goes on when the service is started again.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use polylane_sys::scm;
use polylane_volume::held::{Ask, files_of};
use polylane_volume::log;

use super::{Doors, FLUSH_TIME_MAX, START_TIME_MAX, Service, Supervisor};
use crate::build::Handed;
use crate::copying::{Copies, Target};
use crate::failure::{Failure, Result, say};
use crate::instance::{Joined, Joining, Left};
use crate::link::{FromService, Link, ToInit, ToService};
use crate::lower::Lower;
use crate::names;
use crate::process::Process;
use crate::service_line::ServiceLine;
use crate::share::member::Member;
use crate::share::profile::Profile;
use crate::share::{Meeting, Policy, Wanted};
use crate::solidify::Solidifying;
use crate::spec::{self, PoolSpec};
use crate::wait::{self, wait_for};
use crate::watchdog::Watchdog;
use crate::witness;

/// How long a service that was started for further lanes waits for the first of them.
const FIRST_TIME_MAX: Duration = Duration::from_secs(60);

/// How far a lane is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Starting,
    Serving,
    /// The service was told to end it.
    Ending,
}

/// A further lane.
#[derive(Debug)]
pub(crate) struct Instance {
    /// What no other lane of the service has had.
    id: u32,
    spec: PoolSpec,
    handed: Handed,
    doors: Doors,
    /// What each service leaves to the next.
    handover: OwnedFd,
    watchdog: Watchdog,
    /// Its place among the lanes of its device.
    member: Option<Member>,
    copies: Copies,
    solidifying: Solidifying,
    stage: Stage,
    /// Since when it is that far.
    since: Instant,
    link: ServiceLine,
    /// Looks at processes for the service.
    witness: witness::Late,
    /// The command that waits until it serves.
    starter: Option<OwnedFd>,
    /// Commands that wait for its end.
    enders: Vec<OwnedFd>,
    run_dir: RunDir,
}

/// Where a lane's run directory is mounted. Dropped, it is gone.
#[derive(Debug)]
struct RunDir(PathBuf);

impl Drop for RunDir {
    fn drop(&mut self) {
        names::remove_run_dir(&names::runtime_dir(), names::lane_of(&self.0));
    }
}

/// The further lanes of a service.
#[derive(Debug)]
pub(crate) struct Instances {
    all: Vec<Instance>,
    /// The service is there for them alone, and ends with the last one.
    ends_with_last: bool,
    since: Instant,
    /// It ends, and takes no more in.
    ends: bool,
    /// Why lanes were lost whose end no command has asked for yet.
    lost: BTreeMap<u32, String>,
}

impl Instances {
    /// None yet. With `ends_with_last` the service is there for them alone.
    pub(crate) fn new(ends_with_last: bool) -> Instances {
        let (since, lost) = (Instant::now(), BTreeMap::new());
        Instances { all: Vec::new(), ends_with_last, since, ends: false, lost }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        self.all.len() as u32
    }

    /// What has something to say: to be followed by [`Supervisor::hear_instances`].
    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.iter().flat_map(Instance::fds)
    }

    /// How long until a lane is to take its place among those of its device again.
    pub(super) fn retry_in(&self) -> Option<Duration> {
        self.all.iter().filter_map(|one| one.member.as_ref()?.retry_in()).min()
    }

    /// Whether the service hangs with one of them. A start replays a log and an end writes back,
    /// which may take long and no beat; the time of either is bounded.
    pub(super) fn hang(&mut self, service: u32) -> bool {
        let serving = self.all.iter_mut().filter(|one| one.stage == Stage::Serving);
        serving.filter_map(|one| one.watchdog.look(service).then_some(())).count() > 0
    }

    /// The one on that volume.
    pub(super) fn on(&mut self, target: Target) -> Option<&mut Instance> {
        let is_it = |one: &&mut Instance| {
            let own = one.handed.volume.first().and_then(|own| Target::of(&own.plain).ok());
            own == Some(target)
        };
        self.all.iter_mut().find(is_it)
    }

    /// What people are told of them.
    pub(super) fn describe(&self) -> serde_json::Value {
        let describe = |one: &Instance| {
            serde_json::json!({
                "mount": String::from_utf8_lossy(&one.spec.mount_path),
                "device": one.spec.device,
                "lane": one.spec.backing.name(),
                "share": one.member.as_ref().map(Member::describe),
            })
        };
        self.all.iter().map(describe).collect()
    }

    /// The service has ended, and with it what was under way in it. A lane that it has never served
    /// may be why, and is not tried again.
    pub(super) fn service_ended(&mut self) {
        self.forget_questions();
        for one in std::mem::take(&mut self.all) {
            match one.starter {
                Some(_) => one.report(Err("its service ended before it was served".into()), false),
                None => self.all.push(one),
            }
        }
    }

    /// The service answers no earlier question any more.
    pub(super) fn forget_questions(&mut self) {
        for one in &mut self.all {
            one.copies.server_ended();
            one.solidifying.service_ended();
        }
    }

    /// Waits until a service that has just started serves those that were served before; why it
    /// does not, of the first that it refuses.
    pub(super) fn refusal(&mut self) -> Option<String> {
        let end = Instant::now() + START_TIME_MAX;
        self.all.iter_mut().find_map(|one| one.refusal(end))
    }

    /// The next service is none of those before.
    ///
    /// # Errors
    /// There were too many.
    pub(super) fn next_incarnation(&mut self) -> Result<()> {
        for one in &mut self.all {
            let next = one.spec.incarnation.checked_add(1);
            one.spec.incarnation = next.ok_or_else(|| one.failed("its service died too often"))?;
        }
        Ok(())
    }

    /// Has a new service serve all of them.
    ///
    /// # Errors
    /// One line: there is no room for a line to it.
    pub(super) fn begin_again(&mut self, service: &Link, first: u32) -> Result<()> {
        self.all.iter_mut().try_for_each(|one| one.begin_again(service, first))
    }

    /// Has all of them make everything durable, and waits for that: for the next service, or for
    /// good. Whether it went well.
    pub(super) fn settle(&mut self, how: ToService) -> bool {
        for one in &mut self.all {
            let _ = one.link.send(&how, &[]);
        }
        let end = Instant::now() + FLUSH_TIME_MAX;
        // Each is waited for, also after one that failed.
        self.all.iter().filter(|one| !one.is_flushed(end)).count() == 0
    }

    /// Ends the lane of that number, for a command that waits for it.
    pub(super) fn leave(&mut self, client: OwnedFd, id: u32) {
        if let Some(one) = self.all.iter_mut().find(|one| one.id == id) {
            one.enders.push(client);
            return one.end();
        }
        // It has ended by itself.
        let ended = Left::Ended { is_last: self.ends };
        answer(&client, &self.lost.remove(&id).map_or(ended, Left::Lost));
    }

    /// Those that are gone with the service.
    pub(super) fn clear(&mut self) {
        for one in self.all.drain(..) {
            one.report(Err("its service has ended".to_string()), true);
        }
    }
}

impl Instance {
    fn failed(&self, why: &str) -> Failure {
        Failure::failed(format!("{}: {why}", self.name()))
    }

    /// The lane as messages name it.
    fn name(&self) -> String {
        let path = String::from_utf8_lossy(&self.spec.mount_path);
        format!("pool '{}': {}", self.spec.name, polylane_base::shown::Shown::new(&*path))
    }

    /// Sends the service all that it needs, with a new line to it.
    fn begin_again(&mut self, service: &Link, first: u32) -> Result<()> {
        let had_clients = self.witness.has_begun();
        (self.link, self.witness) = begin(service, first, &self.spec, &self.parts())?;
        if had_clients {
            // They come back at once, and this process may be busy with other lanes then.
            self.witness.begin();
        }
        self.watchdog.restart();
        self.enter(if self.stage == Stage::Serving { Stage::Starting } else { self.stage });
        Ok(())
    }

    fn enter(&mut self, stage: Stage) {
        (self.stage, self.since) = (stage, Instant::now());
    }

    /// What became of it if it takes too long to start or to end. The others go on, and so may its
    /// thread in the service, which finds nobody then.
    fn late(&self) -> Option<std::result::Result<(), String>> {
        let (limit, why) = match self.stage {
            Stage::Starting => (self.spec.start_time_max(START_TIME_MAX), "it does not start"),
            // The watchdog looks at it.
            Stage::Serving => return None,
            Stage::Ending => (FLUSH_TIME_MAX, "it is not written back in time"),
        };
        (self.since.elapsed() > limit).then(|| Err(why.to_string()))
    }

    /// Why the service that has just started does not serve it; `None`: it does, or it was never
    /// served, which the command that waits for it is told.
    fn refusal(&mut self, end: Instant) -> Option<String> {
        while self.stage == Stage::Starting && self.starter.is_none() {
            if !wait_for(self.link.as_fd(), end.saturating_duration_since(Instant::now())) {
                return Some(self.failed("it does not start").line);
            }
            match self.link.receive_words::<FromService>() {
                Ok(Some(FromService::Ready { .. })) => self.serves(),
                Ok(Some(FromService::Failed(line) | FromService::Misused(line))) => {
                    return Some(self.failed(&line).line);
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => return Some(self.failed("its thread ended").line),
            }
        }
        None
    }

    /// What has something to say.
    fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let share = self.member.as_ref().and_then(Member::link);
        let all = [Some(self.link.as_fd()), share, self.copies.as_fd(), self.witness.as_fd()];
        all.into_iter().flatten()
    }

    fn parts(&self) -> Parts<'_> {
        Parts { doors: &self.doors, handover: &self.handover, handed: &self.handed }
    }

    /// Hears the service; what became of the lane, if it is gone.
    fn hear(&mut self, service: &Process) -> Option<std::result::Result<(), String>> {
        while wait_for(self.link.as_fd(), Duration::ZERO) {
            match self.link.receive_words::<FromService>() {
                Ok(Some(FromService::Ready { .. })) => self.serves(),
                Ok(Some(FromService::Failed(line) | FromService::Misused(line))) => {
                    return Some(Err(line));
                }
                Ok(Some(FromService::Flushed(errno))) => {
                    let why = |errno| {
                        let errno = polylane_base::Errno(errno);
                        format!("not everything could be written back: {errno}")
                    };
                    return Some(errno.map_or(Ok(()), |errno| Err(why(errno))));
                }
                Ok(Some(FromService::Unmounted)) => self.end(),
                Ok(Some(FromService::Solid(outcome))) => self.solidifying.answered(outcome),
                Ok(Some(FromService::Copied(answer))) => {
                    if self.copies.answered(answer, &copier(&self.link)) {
                        service.kill();
                    }
                }
                Ok(Some(FromService::Stats(_))) => {}
                // It was never served: the others go on. Where one was, the whole service may have
                // ended: its lines close before its process shows that.
                Ok(None) if self.starter.is_some() => {
                    return Some(Err("its thread in the service ended".to_string()));
                }
                // Its thread is gone, or the service is not itself any more: the next one goes on.
                Ok(None) | Err(_) => {
                    service.kill();
                    return None;
                }
            }
        }
        let is_ready =
            |fd: Option<BorrowedFd<'_>>| fd.is_some_and(|fd| wait_for(fd, Duration::ZERO));
        if is_ready(self.copies.as_fd()) {
            self.copies.hear(&mut self.handed, &copier(&self.link));
        }
        if is_ready(self.member.as_ref().and_then(Member::link)) {
            self.hear_share();
        }
        if is_ready(self.witness.as_fd()) {
            self.witness.hear();
        }
        self.late()
    }

    fn serves(&mut self) {
        if let Some(starter) = self.starter.take() {
            answer(&starter, &Joined::Serves);
        }
        self.share();
        match self.stage {
            Stage::Ending => drop(self.link.send(&ToService::Shutdown, &[])),
            _ => {
                self.enter(Stage::Serving);
                self.watchdog.begin();
            }
        }
    }

    /// The service makes everything durable and lets go of the lane.
    fn end(&mut self) {
        if self.stage != Stage::Ending {
            self.enter(Stage::Ending);
            let _ = self.link.send(&ToService::Shutdown, &[]);
        }
    }

    /// Tells the service which share of the device the lane has.
    fn share(&self) {
        let fds = self.member.as_ref().map(Member::fds).unwrap_or_default();
        if !fds.is_empty() {
            let _ = self.link.send(&ToService::Share, &fds);
        }
    }

    fn hear_share(&mut self) {
        let Some(member) = &mut self.member else { return };
        member.news();
        log::event("share", member.describe());
        self.spec.weight = member.wanted().weight.unwrap_or(self.spec.weight);
    }

    /// Takes its place among the lanes of its device again, where it has lost it.
    fn keep_share(&mut self) {
        if let Some(member) = &mut self.member
            && member.link().is_none()
            && member.rejoin()
        {
            log::event("share", member.describe());
            self.share();
        }
    }

    /// The answer to an order to settle, past other messages; whether all is durable.
    fn is_flushed(&self, end: Instant) -> bool {
        while wait_for(self.link.as_fd(), end.saturating_duration_since(Instant::now())) {
            match self.link.receive_words::<FromService>() {
                Ok(Some(FromService::Flushed(errno))) => {
                    if let Some(errno) = errno {
                        let why = polylane_base::Errno(errno);
                        say(self.failed(&format!("not everything could be written back: {why}")));
                    }
                    return errno.is_none();
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => break,
            }
        }
        false
    }

    /// Tells the commands that wait for it what became of it. Nothing of it is left then: its
    /// volume can be used at once.
    fn report(self, outcome: std::result::Result<(), String>, is_last: bool) {
        if let (Err(why), None) = (&outcome, &self.starter) {
            say(self.failed(why));
        }
        let Instance { starter, enders, run_dir, handed, doors, .. } = self;
        drop((run_dir, handed, doors));
        if let Some(starter) = &starter {
            let why = outcome.clone().err().unwrap_or_else(|| "it was unmounted".to_string());
            answer(starter, &Joined::Failed(why));
        }
        let left = match outcome {
            Ok(()) => Left::Ended { is_last },
            Err(why) => Left::Lost(why),
        };
        enders.iter().for_each(|ender| answer(ender, &left));
    }

    /// Begins a copy of its volume for a command.
    pub(super) fn copy(&mut self, client: Link, wish: (crate::copying::Wish, Target)) {
        self.copies.begin(client, wish, &self.handed, &copier(&self.link));
    }

    /// Has its upper made whole for a command.
    pub(super) fn solidify(&mut self, client: Link, target: Target) {
        self.solidifying.begin(client, target, (&self.handed, true, &*self.link));
    }
}

/// Passes on what a copy of a volume asks for.
fn copier(link: &Link) -> impl Fn(Ask, &[BorrowedFd<'_>]) {
    |ask, fds| {
        // A service that does not read it has ended, which shows at its process.
        let _ = link.send(&ToService::Copy(ask), fds);
    }
}

/// What a lane has that outlives a service.
struct Parts<'a> {
    doors: &'a Doors,
    handover: &'a OwnedFd,
    handed: &'a Handed,
}

/// Has the service serve a lane: the line to it, and who looks at processes for it.
fn begin(
    service: &Link,
    first: u32,
    spec: &PoolSpec,
    parts: &Parts<'_>,
) -> Result<(ServiceLine, witness::Late)> {
    let failed = |error: std::io::Error| Failure::because("lane", "hand it to its service", error);
    let (link, other) = Link::pair().map_err(|error| failed(error.into()))?;
    let (waiting, ends) = witness::Waiting::of(first, spec).map_err(failed)?;
    let spec = spec.to_fd()?;
    let Parts { doors, handover, handed } = parts;
    let mut fds = vec![other.as_fd(), spec.as_fd(), doors.fuse.as_fd(), doors.socket.as_fd()];
    fds.extend([handover.as_fd(), ends.line.as_fd(), ends.changes.as_fd()]);
    fds.extend(handed.descriptors());
    // A service that is gone shows at its process; the next one is told again.
    let _ = service.send(&ToService::Instance, &fds);
    Ok((ServiceLine::new(link), witness::Late::Waits(Box::new(waiting))))
}

fn answer(client: &OwnedFd, answer: &impl serde::Serialize) {
    if let Ok(bytes) = serde_json::to_vec(answer) {
        // A client that has gone away needs no answer.
        let _ = scm::send(client, &bytes, &[]);
    }
}

impl Supervisor {
    /// Serves a lane of a command's, over the lowers of this one.
    pub(super) fn join(&mut self, client: OwnedFd, fds: Vec<OwnedFd>, service: &Service) {
        if self.instances.ends || self.unmounting.is_some() {
            return answer(&client, &Joined::Ends);
        }
        let mut fds = fds.into_iter();
        let joining = fds.next().map(spec::unseal::<Joining>);
        let (fuse, socket) = (fds.next(), fds.next());
        let (Some(Ok(joining)), Some(fuse), Some(socket)) = (joining, fuse, socket) else {
            return answer(&client, &Joined::Failed("lane: it came without its files".to_string()));
        };
        if !self.is_over(&joining.lowers) {
            return answer(&client, &Joined::Unlike);
        }
        let handed = Handed { volume: files_of(fds.collect()), ..Handed::default() };
        match self.add(joining, Doors { fuse, socket }, handed, service) {
            Ok(mut one) => {
                one.starter = Some(client);
                self.instances.all.push(one);
            }
            Err(failure) => answer(&client, &Joined::Failed(failure.line)),
        }
    }

    /// Whether these are the lowers of this lane.
    fn is_over(&self, lowers: &[Target]) -> bool {
        let own = self.handed.lowers.iter().map(|lower| match lower {
            Lower::Dir(dir) => Target::of(dir).ok(),
            Lower::Volume(files) => files.first().and_then(|own| Target::of(&own.plain).ok()),
            Lower::Ceph(_) | Lower::Union(_) => None,
        });
        self.instances.ends_with_last && own.eq(lowers.iter().copied().map(Some))
    }

    fn add(
        &mut self,
        joining: Joining,
        doors: Doors,
        handed: Handed,
        service: &Service,
    ) -> Result<Instance> {
        let Joining { id, mut spec, policy, weight, run_dir, .. } = joining;
        spec.name.clone_from(&self.spec.name);
        spec.lowers.clone_from(&self.spec.lowers);
        let member = self.member_of(&handed, policy, weight, service)?;
        let (handover, watchdog) = Watchdog::with_handover()?;
        let parts = Parts { doors: &doors, handover: &handover, handed: &handed };
        let (link, witness) = begin(&service.link, self.init.pid(), &spec, &parts)?;
        log::event("joined", serde_json::json!({ "device": spec.device }));
        Ok(Instance {
            id,
            spec,
            handed,
            doors,
            handover,
            watchdog,
            member,
            copies: Copies::default(),
            solidifying: Solidifying::default(),
            stage: Stage::Starting,
            since: Instant::now(),
            link,
            witness,
            starter: None,
            enders: Vec::new(),
            run_dir: RunDir(run_dir),
        })
    }

    /// The place of a lane's volume among those of its device, which is taken soon.
    fn member_of(
        &mut self,
        handed: &Handed,
        policy: Option<Policy>,
        weight: Option<u32>,
        service: &Service,
    ) -> Result<Option<Member>> {
        let own = handed.volume.first().filter(|_| policy != Some(Policy::None));
        let Some(files) = own else { return Ok(None) };
        let meeting = Meeting::of(&names::runtime_dir(), &files.plain)?;
        let profile = Profile::of(&meeting, &files.plain);
        self.keeper.coordinate((meeting.clone(), profile), service.process.as_fd());
        let wanted = Wanted { weight, ..Wanted::default() };
        Ok(Some(Member::new(meeting, &self.spec.name, wanted, policy)))
    }

    /// Hears what the service says of further lanes, and ends with the last of them.
    pub(super) fn hear_instances(&mut self, service: &Service) {
        let mut gone = Vec::new();
        let said = wait::any_ready(self.instances.all.iter().map(Instance::fds));
        let all = std::mem::take(&mut self.instances.all);
        for (mut one, said) in all.into_iter().zip(said) {
            one.keep_share();
            let outcome = if said { one.hear(&service.process) } else { one.late() };
            match outcome {
                Some(outcome) => gone.push((one, outcome)),
                None => self.instances.all.push(one),
            }
        }
        let is_over = gone.is_empty() && self.instances.since.elapsed() < FIRST_TIME_MAX;
        let is_last = self.instances.all.is_empty() && self.instances.ends_with_last && !is_over;
        if is_last && !self.instances.ends {
            self.instances.ends = true;
            let _ = self.link.send(&ToInit::Unmount { lazy: true }, &[]);
        }
        for (one, outcome) in gone {
            if let (None, Err(why)) = (&one.starter, &outcome) {
                // It may be mounted still.
                let _ = self.link.send(&ToInit::Lost(one.id), &[]);
                if one.enders.is_empty() {
                    self.instances.lost.insert(one.id, why.clone());
                }
            }
            one.report(outcome, is_last);
        }
    }
}

#[cfg(test)]
mod tests;
