//! The supervisor's loop: one thread that waits for its children, signals and statistics clients.
//!
//! It holds the FUSE device and the listening socket for the whole life of the mount, so a service
//! that dies is replaced under the running tenant. It holds nothing *on* the mount: that would hang
//! when no service answers.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use polylane_front::fuse;
use polylane_sys::ns::{self, Fork, Namespaces, SignalFd};
use polylane_volume::held::Ask;
use polylane_volume::log;
use rustix::event::{PollFd, PollFlags};

use crate::build::Handed;
use crate::cgroup;
use crate::copying::Copies;
use crate::failure::{FAILED, Failure, Result, say};
use crate::init;
use crate::keeper::{Keeper, Leftovers};
use crate::link::{CARRIES, FromInit, FromService, Link, ToInit, ToService};
use crate::names;
use crate::process::{self, Ended, Process};
use crate::relay::Relay;
use crate::service_line::ServiceLine;
use crate::share::member::Member;
use crate::signals::pass_signals;
use crate::solidify::Solidifying;
use crate::spec::{Backing, PoolSpec};
use crate::stats::{Listener, RUNNING};
use crate::upgrade::Control;
use crate::wait::{wait_either, wait_for};
use crate::watchdog::Watchdog;
use crate::witness;

mod instances;
mod late;
mod orders;
mod ready;

pub(crate) use instances::Instances;
use late::{Deadline, Late};
pub(crate) use late::{KILLED_TIME_MAX, TERMINATION_TIME_MAX};
pub(crate) use orders::AtEnd;

/// How long a service may take to start.
const START_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a service may take to make everything durable at the end.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(300);

/// As [`FLUSH_TIME_MAX`], for a lane in RAM, which has nothing to write back.
const MEMORY_FLUSH_TIME_MAX: Duration = Duration::from_secs(5);

/// A service that dies this often ...
const RESTARTS_MAX: usize = 10;
/// ... within this time is not started again.
const RESTARTS_WINDOW: Duration = Duration::from_secs(30);

/// The descriptors that outlive every service.
#[derive(Debug)]
pub(crate) struct Doors {
    /// The FUSE device of the live mount.
    pub(crate) fuse: OwnedFd,
    /// The listening socket in the lane's run directory.
    pub(crate) socket: OwnedFd,
}

/// Everything that one `polylane run` owns. Dropped, all of it is gone: fields go in this order.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(crate) init: Process,
    pub(crate) link: Link,
    pub(crate) spec: PoolSpec,
    pub(crate) handed: Handed,
    pub(crate) groups: cgroup::Plan,
    pub(crate) signals: SignalFd,
    /// Its lane's place among those of its device.
    pub(crate) member: Option<Member>,
    pub(crate) restarts: Vec<Instant>,
    /// Somebody copies its volume.
    pub(crate) copies: Copies,
    /// A command waits for its upper to be whole.
    pub(crate) solidifying: Solidifying,
    /// What each service leaves to the next.
    pub(crate) handover: OwnedFd,
    pub(crate) watchdog: Watchdog,
    /// What services say to people.
    pub(crate) relay: Relay,
    /// The program of the services, when it is not this one.
    pub(crate) program: Option<OwnedFd>,
    pub(crate) leftovers: Leftovers,
    pub(crate) keeper: Keeper,
    /// The command that unmounts the lane.
    pub(crate) unmounting: Option<OwnedFd>,
    pub(crate) at_end: AtEnd,
    /// What the first process of a lane that lasts waits for: a session of a process that sees the
    /// same mounts as it does.
    pub(crate) at_home: Option<OwnedFd>,
    /// Further lanes of the service.
    pub(crate) instances: Instances,
    /// It has waited for something in vain.
    pub(crate) has_rested: Cell<bool>,
}

/// A running service and the line to it.
#[derive(Debug)]
struct Service {
    link: ServiceLine,
    process: Process,
    /// Looks at processes for it.
    _witness: Process,
    /// It came up.
    ready: bool,
    /// What it speaks with the library.
    wire: u32,
}

impl Service {
    /// Passes on what a copy of the volume asks for.
    fn copier(&self) -> impl Fn(Ask, &[BorrowedFd<'_>]) {
        // A service that does not read it has ended, which shows at its process.
        |ask, fds| {
            let _ = self.link.send(&ToService::Copy(ask), fds);
        }
    }
}

impl Supervisor {
    /// Lets the init mount the lane and answers FUSE_INIT. `None` when the init ended instead; it
    /// has said why.
    pub(crate) fn begin(&mut self, fuse: Option<OwnedFd>) -> Result<Option<Doors>> {
        let failed = |error| Failure::because("tenant", "talk to its first process", error);
        if self.link.send(&ToInit::Begin, &[]).is_err() {
            return Ok(None);
        }
        let Some((FromInit::Mounted(device), fds)) = self.next_from_init().map_err(failed)? else {
            return Ok(None);
        };
        let mut fds = fds.into_iter();
        let (socket, opened) = (fds.next(), fds.next());
        let (Some(socket), Some(fuse)) = (socket, fuse.or(opened)) else {
            return Err(Failure::failed("tenant: its first process sent no descriptors"));
        };
        let backing = &self.spec.backing;
        // As `Character::acls` of what serves it.
        let acls = !matches!(backing, Backing::Dir | Backing::Ceph { .. });
        let PoolSpec { id_maps, kernel_cache, .. } = self.spec;
        let wants = fuse::Wants { acls, id_maps, kernel_cache };
        self.spec.fuse = Some(init::negotiate(&fuse, wants)?);
        // COMMAND, who may mount what it likes, does not run yet.
        self.spec.device = device.map(|(major, minor)| format!("{major}:{minor}"));
        Ok(Some(Doors { fuse, socket }))
    }

    /// The next message of the init, `None` at its end, which shows on the pidfd.
    fn next_from_init(&self) -> polylane_base::Result<Option<(FromInit, Vec<OwnedFd>)>> {
        let mut fds =
            [PollFd::new(&self.link, PollFlags::IN), PollFd::new(&self.init, PollFlags::IN)];
        while rustix::event::poll(&mut fds, None) == Err(rustix::io::Errno::INTR) {}
        match fds[0].revents().is_empty() {
            false => self.link.receive(),
            true => Ok(None),
        }
    }

    /// The status of an init that ended before there was a lane.
    pub(crate) fn end_early(mut self) -> Result<u8> {
        let ended = self.init.wait().map_err(wait_failed)?;
        Ok(ended.status())
    }

    /// Serves the lane until COMMAND has ended; its status.
    pub(crate) fn run(mut self, doors: Doors) -> Result<u8> {
        let mut service = self.start_service(&doors)?;
        if !service.ready {
            return Err(Failure::failed("service: it ended before it was ready"));
        }
        let listener = Listener::new(&self.leftovers.name.stats_socket());
        let control = Control::new(&self.leftovers.name.control_socket());
        let _ = self.link.send(&ToInit::Serving, &[]);
        let ended = self.watch(&doors, &mut service, (listener, control))?;
        self.at_end.0();
        let durable = self.shut_down(service);
        self.answer_unmount(match durable {
            true => Ok("everything is durable".to_string()),
            false => Err("unmounted, but not everything could be written back".to_string()),
        });
        Ok(match (durable, ended.status()) {
            (true, status) => status,
            (false, 0) => FAILED,
            (false, status) => status,
        })
    }

    /// The loop proper: until the init has ended.
    fn watch(
        &mut self,
        doors: &Doors,
        service: &mut Service,
        (mut listener, control): (Listener, Control),
    ) -> Result<Ended> {
        let mut deadline: Deadline = None;
        loop {
            let timeout = deadline.map(|(at, _)| at.saturating_duration_since(Instant::now()));
            let retry = self.member.as_ref().and_then(Member::retry_in);
            let look = Some(self.watchdog.next_in());
            let retry = retry.into_iter().chain(self.instances.retry_in());
            let timeout = timeout.into_iter().chain(retry).chain(look).min();
            let ready = self.wait(service, (&listener, &control), timeout)?;
            if ready.init {
                return self.init.wait().map_err(wait_failed);
            }
            if let Some((at, late)) = deadline
                && Instant::now() >= at
            {
                deadline = self.too_late(late)?;
            }
            if ready.said {
                self.relay.pass();
            }
            self.relay.bound_log();
            if ready.service {
                self.copies.server_ended();
                self.solidifying.service_ended();
                self.instances.service_ended();
                self.replace(doors, service)?;
                listener.ask_again(&service.link);
                continue;
            }
            let pid = service.process.pid();
            if self.watchdog.look(pid) || self.instances.hang(pid) {
                say(format_args!("pool '{}': its service hangs: killed", self.spec.name));
                service.process.kill();
            }
            if ready.control
                && let Some(wish) = control.accept()
            {
                self.obey(wish, doors, service)?;
                listener.ask_again(&service.link);
            }
            if ready.from_service {
                self.hear_service(service, &mut listener);
            }
            if ready.keeper {
                self.keeper.replace(Some(service.process.as_fd()));
                log::event("keeper", serde_json::json!({ "replaced": true }));
            }
            self.keep_share(service, ready.share);
            self.hear_instances(service);
            if ready.questions {
                self.hear_questions(service, &mut listener);
            }
            if ready.copier {
                self.copies.hear(&mut self.handed, &service.copier());
            }
            if ready.from_init {
                deadline = self.hear_init(deadline);
            }
            if ready.signals && pass_signals(&self.signals, &self.link)? && deadline.is_none() {
                deadline = Late::Termination.after(TERMINATION_TIME_MAX);
            }
        }
    }

    /// Hears the service's answer to an earlier question.
    fn hear_service(&mut self, service: &Service, listener: &mut Listener) {
        match service.link.receive_words() {
            Ok(Some(FromService::Stats(stats))) => {
                listener.answer(&self.describe(stats, service.process.pid()));
            }
            Ok(Some(FromService::Solid(outcome))) => self.solidifying.answered(outcome),
            Ok(Some(FromService::Copied(answer))) => {
                let stuck = self.copies.answered(answer, &service.copier());
                if stuck {
                    service.process.kill();
                }
            }
            Err(CARRIES) => service.process.kill(),
            // Its end shows at its process.
            _ => {}
        }
    }

    /// Hears commands that connected.
    fn hear_questions(&mut self, service: &Service, listener: &mut Listener) {
        let heard = listener.hear();
        if heard.stats {
            let _ = service.link.send(&ToService::Stats, &[]);
        }
        for (client, target) in heard.solidifiers {
            let own = (&self.handed, !self.handed.lowers.is_empty(), &*service.link);
            match self.instances.on(target) {
                Some(instance) => instance.solidify(client, target),
                None => self.solidifying.begin(client, target, own),
            }
        }
        for (copier, wish, target) in heard.copiers {
            match self.instances.on(target) {
                Some(instance) => instance.copy(copier, (wish, target)),
                None => self.copies.begin(copier, (wish, target), &self.handed, &service.copier()),
            }
        }
    }

    /// Hears news of the lane's share, or takes its place again when the coordinator is gone.
    fn keep_share(&mut self, service: &Service, news: bool) {
        let Some(member) = &mut self.member else { return };
        if news {
            member.news();
            log::event("share", member.describe());
            if let Some(weight) = member.wanted().weight
                && self.spec.weight != weight
            {
                self.spec.weight = weight;
                self.groups.reweigh(weight);
            }
        }
        if member.link().is_none() && member.rejoin() {
            let _ = service.link.send(&ToService::Share, &member.fds());
            log::event("share", member.describe());
        }
        member.keep_io(service.process.pid());
    }

    /// A deadline has passed. An error ends everything: with the last descriptor of the FUSE device
    /// goes the mount's connection, and whoever waited for an answer gets an error.
    fn too_late(&mut self, late: Late) -> Result<Deadline> {
        match late {
            Late::Termination => {
                let _ = self.link.send(&ToInit::Signal(libc::SIGKILL), &[]);
                Ok(Late::Killed.after(KILLED_TIME_MAX))
            }
            Late::Killed => Err(Failure::failed(format!(
                "pool '{}': its processes do not end: the lane is cut off",
                self.spec.name
            ))),
            Late::Synced => Err(Failure::failed(format!(
                "pool '{}': mapped files could not be written back: the lane is cut off",
                self.spec.name
            ))),
        }
    }

    /// Starts a service in place of one that has died.
    fn replace(&mut self, doors: &Doors, service: &mut Service) -> Result<()> {
        let ended = service.process.wait().map_err(wait_failed)?;
        self.relay.pass();
        let now = Instant::now();
        self.restarts.retain(|at| now.duration_since(*at) < RESTARTS_WINDOW);
        self.restarts.push(now);
        let name = &self.spec.name;
        if self.restarts.len() > RESTARTS_MAX {
            return Err(Failure::failed(format!(
                "pool '{name}': its service died {RESTARTS_MAX} times in {} s: giving up",
                RESTARTS_WINDOW.as_secs()
            )));
        }
        say(format_args!("pool '{name}': its service {}: starting it again", process::how(ended)));
        if !self.spec.outlives_service() {
            say(format_args!(
                "pool '{name}': its files were in its service's memory: they are lost"
            ));
        }
        self.next_incarnation()?;
        *service = self.start_service(doors)?;
        Ok(())
    }

    /// Replaces a service that lives by one of another program, without an error to the lane's
    /// programs. What came of it; an error of this function is the end of the lane.
    fn upgrade(
        &mut self,
        doors: &Doors,
        service: &mut Service,
        program: OwnedFd,
    ) -> Result<std::result::Result<String, String>> {
        let name = self.spec.name.clone();
        if !self.spec.outlives_service() {
            return Ok(Err(format!(
                "pool '{name}': its files are in its service's memory: it cannot be replaced"
            )));
        }
        self.hand_over(service)?;
        let former = self.program.replace(program);
        let wire = service.wire;
        let refused = match self.start_service(doors) {
            Ok(started) if started.ready => {
                *service = started;
                let refused = self.instances.refusal();
                refused.as_ref().map_or(Ok(()), |_| self.hand_over(service))?;
                refused
            }
            Ok(_) => Some("it ended before it was ready".to_string()),
            Err(failure) => Some(failure.line),
        };
        if let Some(why) = refused {
            self.program = former;
            self.next_incarnation()?;
            *service = self.start_service(doors)?;
            return Ok(Err(format!("pool '{name}': the former program goes on: {why}")));
        }
        let words = match wire == service.wire {
            true => "",
            false => ": it speaks another version, so programs that run already use FUSE now",
        };
        Ok(Ok(format!("pool '{name}': its service is replaced{words}")))
    }

    /// Has a service that lives leave everything to the next one, and end.
    fn hand_over(&mut self, service: &mut Service) -> Result<()> {
        self.instances.settle(ToService::HandOver);
        let _ = service.link.send(&ToService::HandOver, &[]);
        let flushed = self.flushed(service, FLUSH_TIME_MAX);
        wait_for(service.process.as_fd(), START_TIME_MAX);
        service.process.kill();
        service.process.wait().map_err(wait_failed)?;
        // Its answers to them were passed over.
        self.copies.server_ended();
        self.solidifying.service_ended();
        self.instances.forget_questions();
        if flushed != Some(None) {
            say(format_args!(
                "pool '{}': not everything could be written back: started again",
                self.spec.name
            ));
        }
        self.next_incarnation()
    }

    fn next_incarnation(&mut self) -> Result<()> {
        let next = self.spec.incarnation.checked_add(1);
        self.spec.incarnation = next.ok_or_else(|| {
            Failure::failed(format!("pool '{}': its service died too often", self.spec.name))
        })?;
        self.instances.next_incarnation()
    }

    /// Starts a service process and waits until it serves.
    fn start_service(&mut self, doors: &Doors) -> Result<Service> {
        self.watchdog.restart();
        let failed = |error: std::io::Error| Failure::because("service", "start it", error);
        let (link, other) = Link::pair().map_err(|error| failed(error.into()))?;
        let link = ServiceLine::new(link);
        let (init, at_home) = (self.init.pid(), self.at_home.as_ref());
        let (_witness, ends) = witness::start(init, &self.spec, at_home).map_err(failed)?;
        self.spec.instances = self.instances.count();
        let spec = self.spec.to_fd()?;
        let mut fds = vec![
            ("--spec", spec.as_fd()),
            ("--fuse", doors.fuse.as_fd()),
            ("--socket", doors.socket.as_fd()),
            ("--control", other.as_fd()),
            ("--handover", self.handover.as_fd()),
            ("--witness", ends.line.as_fd()),
            ("--mounts", ends.changes.as_fd()),
        ];
        fds.extend(self.handed.options());
        let process = match ns::fork(Namespaces::default()).map_err(failed)? {
            Fork::Child => {
                let said = Some(self.relay.end());
                let names = names::identity(&names::runtime_dir());
                let words = ["--names", &names];
                let name = &self.spec.name;
                process::execute(self.program.as_ref(), "service", name, &words, &fds, said)
            }
            Fork::Parent(child) => Process::new(child),
        };
        drop((other, ends));
        self.instances.begin_again(&link, self.init.pid())?;
        self.groups.attach(process.pid(), cgroup::Leaf::Service);
        self.keeper.watch(process.as_fd());
        if !wait_for(link.as_fd(), self.spec.start_time_max(START_TIME_MAX)) {
            return Err(Failure::failed("service: it does not start"));
        }
        match link.receive_words::<FromService>() {
            Ok(Some(FromService::Ready { wire })) => {
                let (pid, starts) = (process.pid(), self.spec.incarnation);
                log::event("service", serde_json::json!({ "service_pid": pid, "starts": starts }));
                let fds = self.member.as_ref().map(Member::fds).unwrap_or_default();
                if !fds.is_empty() {
                    let _ = link.send(&ToService::Share, &fds);
                }
                Ok(Service { link, process, _witness, ready: true, wire })
            }
            Ok(Some(FromService::Failed(line))) => Err(Failure::failed(line)),
            Ok(Some(FromService::Misused(line))) => Err(Failure::usage(line)),
            // It died. That is for the loop to see, as at any later time.
            _ => Ok(Service { link, process, _witness, ready: false, wire: 0 }),
        }
    }

    /// Lets the service make everything durable and end; whether that went well. A signal that asks
    /// this process to end ends the waiting.
    fn shut_down(&mut self, service: Service) -> bool {
        let limit = match self.spec.backing {
            Backing::Mem { .. } => MEMORY_FLUSH_TIME_MAX,
            _ => FLUSH_TIME_MAX,
        };
        let others = self.instances.settle(ToService::Shutdown);
        self.instances.clear();
        let _ = service.link.send(&ToService::Shutdown, &[]);
        match self.flushed(&service, limit) {
            Some(None) => {
                wait_for(service.process.as_fd(), START_TIME_MAX);
                others
            }
            Some(Some(errno)) => {
                let why = polylane_base::Errno(errno);
                say(format_args!("lane: not everything could be written back: {why}"));
                false
            }
            // The drop of `service` kills it. What was in RAM is to go anyway.
            None if matches!(self.spec.backing, Backing::Mem { .. }) => true,
            None => {
                say("lane: its service ended without writing everything back");
                false
            }
        }
    }

    /// The answer to a shutdown, past answers to earlier questions; `None` when there is none in
    /// time.
    fn flushed(&self, service: &Service, limit: Duration) -> Option<Option<i32>> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match wait_either(service.link.as_fd(), self.signals.as_fd(), left) {
                (true, _) => match service.link.receive_words::<FromService>() {
                    Ok(Some(FromService::Flushed(errno))) => return Some(errno),
                    Ok(Some(_)) => {}
                    Ok(None) | Err(_) => return None,
                },
                (false, true)
                    if pass_signals(&self.signals, &self.link).is_ok_and(|ends| !ends) => {}
                (false, _) => return None,
            }
        }
    }

    /// A pool's statistics: the service's, and what the supervisor knows.
    fn describe(&self, service: serde_json::Value, service_pid: u32) -> serde_json::Value {
        serde_json::json!({
            "pool": self.spec.name,
            "state": RUNNING,
            "mount": String::from_utf8_lossy(&self.spec.mount_path),
            "cpus": self.spec.cpus.to_string(),
            "weight": self.spec.weight,
            "lane": self.spec.backing.name(),
            "pid": std::process::id(),
            "service_pid": service_pid,
            "service_restarts": self.spec.incarnation,
            "share": self.member.as_ref().map(Member::describe),
            "instances": self.instances.describe(),
            "service": service,
        })
    }
}

fn wait_failed(error: std::io::Error) -> Failure {
    Failure::because("tenant", "wait for it", error)
}
