//! The keeper of an attachment: a detached process that holds its volume and starts its engines.
//!
//! It holds nothing on the attached device and never touches it: it must be able to start an engine
//! while the device waits for one.
//!
//! # Invariants
//!
//! - It holds the record's lock as long as it lives.
//! - Before `Engaged` it ends with the command that started it (`run --kernel-fs` never says it);
//!   after that, with `Stop`, a SIGTERM or the other side of the door.

mod wait;

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use polylane_base::sync::thread;
use polylane_sys::ns::{self, Fork, Namespaces, SignalFd};
use polylane_sys::scm;
use polylane_volume::path_text;
use rustix::fs::{Mode, OFlags};

use self::wait::Event;
use super::arm::{self, Door};
use super::message::{ENGINE_TIME_MAX, FromEngine, FromKeeper, ToEngine, ToKeeper};
use super::record::{self, Record};
use super::served::Engine;
use super::share::Share;
use super::spec::EngineSpec;
use crate::build::Handed;
use crate::copying::Copies;
use crate::failure::{Failure, Result, say};
use crate::link::Link;
use crate::names::PoolName;
use crate::own_log::OwnLog;
use crate::process::{self, Process};
use crate::rbd::ImageSpec;
use crate::relay::Relay;
use crate::share::member::Member;
use crate::spec;
use crate::wait::wait_for;

/// How long an engine may take to make everything durable at the end.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(300);

/// How long a command may take to say what it connected for.
const QUESTION_TIME_MAX: Duration = Duration::from_secs(5);

/// How long an engine that has closed its line may take to end.
const DEATH_TIME_MAX: Duration = Duration::from_millis(500);

/// How long a device may stay in use after the command that held it was killed.
const RELEASE_TIME_MAX: Duration = Duration::from_secs(30);

/// An engine that dies this often ...
const RESTARTS_MAX: usize = 10;
/// ... within this time is not started again.
const RESTARTS_WINDOW: Duration = Duration::from_secs(30);

/// Engines one after the other that end before they serve.
const STARTS_MAX: usize = 3;

/// How often it looks whether the process that coordinates its device still lives.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Commands that may wait at a time.
const BACKLOG: i32 = 16;

/// A keeper and all that it holds.
pub(super) struct Keeper {
    pub(super) door: Door,
    pub(super) handed: Handed,
    /// Where requests are written down.
    pub(super) trace: Option<OwnedFd>,
    pub(super) spec: EngineSpec,
    pub(super) record: Record,
    pub(super) dir: PathBuf,
    pub(super) lock: PoolName,
    /// Copies of the volume under way.
    pub(super) copies: Copies,
    /// A command whose engine died before it answered.
    pub(super) unanswered: Option<(Link, ToKeeper)>,
    /// Its part of the device that the volume is on.
    pub(super) share: Option<Share>,
    /// Processes that wait for what this one may not wait for.
    pub(super) helpers: Vec<Process>,
    /// What engines say goes by it to the log; none until the attachment begins.
    pub(super) relay: Option<Relay>,
}

/// Runs a keeper to its end. Called in a child forked for it.
pub(super) fn main(mut keeper: Keeper, maker: Link) -> ! {
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"polylane-attach");
    let _ = rustix::process::chdir("/");
    leave();
    // What holds the mount is its user, not its server: it must be able to end.
    keeper.door.mount = None;
    keeper.record.pid = std::process::id();
    // A command that waits for the end sees it when this process is gone, and with it the volume's
    // lock.
    let mut door_bell = None;
    let (status, _clients) = match keeper.begin(&maker) {
        Ok((engine, listener, signals)) => {
            let ended = keeper.run(engine, &listener, &signals, maker);
            door_bell = Some(listener);
            ended
        }
        Err(failure) => {
            let _ = maker.send(&FromKeeper::Failed(failure.line), &[]);
            (1, vec![maker])
        }
    };
    keeper.door.remove();
    keeper.share.take().into_iter().for_each(Share::end);
    // This process is not unwound, and the pool file of a bypass volume is in use until told so.
    drop(std::mem::take(&mut keeper.handed));
    keeper.record.remove(&keeper.dir, &keeper.lock);
    // A command that connected in vain sees the end of the line when everything is removed, not
    // before.
    drop(door_bell);
    ns::exit_now(status)
}

/// Lets go of standard input and output, which belong to whoever ran the command.
fn leave() {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let Ok(null) = rustix::fs::open("/dev/null", flags, Mode::empty()) else { return };
    let _ = rustix::stdio::dup2_stdin(&null);
    let _ = rustix::stdio::dup2_stdout(&null);
}

impl Keeper {
    /// What this process says from here on goes to the attachment's log: whoever ran the command
    /// reads no more.
    fn write_to_log(&self) {
        if let Some(log) = self.relay.as_ref().and_then(Relay::log) {
            let _ = rustix::stdio::dup2_stderr(log);
        }
    }

    /// What engines said goes to the log, which does not grow without end.
    fn pass_on(&mut self) {
        if let Some(relay) = &mut self.relay {
            relay.pass();
            relay.bound_log();
        }
    }

    fn begin(&mut self, maker: &Link) -> Result<(Engine, OwnedFd, SignalFd)> {
        let signals = SignalFd::new(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP])
            .map_err(|error| Failure::because("attachment", "watch signals", error))?;
        let log = OwnLog::make(&record::log_of(&self.dir, &self.record.id))?;
        let relay = Relay::new(Some(log));
        let relay = relay.map_err(|error| Failure::because("attachment", "make a pipe", error))?;
        self.relay = Some(relay);
        let path = record::socket_of(&self.dir, &self.record.id);
        let listener = scm::listen(&path, BACKLOG)
            .map_err(|error| Failure::path(&path, "listen there", error))?;
        self.record.store(&self.dir)?;
        self.share = self.share.take().map(|share| share.join(&self.record.id)).transpose()?;
        let engine = self.start_engine()?;
        arm::guard(&self.door, &self.record.id)?;
        maker
            .send(&FromKeeper::Serving(engine.shape), &[])
            .map_err(|error| Failure::because("attachment", "talk to its maker", error))?;
        Ok((engine, listener, signals))
    }

    /// The loop proper; the exit status, and all who wait for the end.
    fn run(
        &mut self,
        mut engine: Engine,
        listener: &OwnedFd,
        signals: &SignalFd,
        maker: Link,
    ) -> (i32, Vec<Link>) {
        let mut maker = Some(maker);
        let mut restarts = Vec::new();
        loop {
            let next = self.wait(&engine, listener, signals, maker.as_ref());
            self.pass_on();
            let failed = match next {
                Event::Death => self.replace(&mut engine, &mut restarts).err(),
                Event::Engine => match engine.next() {
                    Ok(Some(FromEngine::Ended)) => {
                        return self.shut_down(engine, listener, None);
                    }
                    Ok(Some(FromEngine::Journals(found))) => {
                        self.spec.journals = found;
                        None
                    }
                    Ok(Some(FromEngine::Copied(answer))) => {
                        if self.copies.answered(answer, &engine.copier()) {
                            engine.process.kill();
                        }
                        None
                    }
                    // Its death follows.
                    Ok(None) => self.replace(&mut engine, &mut restarts).err(),
                    _ => None,
                },
                Event::Share => self.keep_share(&engine),
                Event::Copier => {
                    self.copies.hear(&mut self.handed, &engine.copier());
                    None
                }
                Event::Signal => return self.shut_down(engine, listener, None),
                Event::Maker => match self.hear_maker(maker.as_ref()) {
                    Heard::More => None,
                    Heard::Engaged => {
                        self.write_to_log();
                        maker = None;
                        None
                    }
                    // What it engaged may still be mounted, in namespaces that go with it.
                    Heard::Gone if arm::is_engaged(&self.record) => {
                        self.write_to_log();
                        maker = None;
                        self.release().err()
                    }
                    Heard::Gone => return self.shut_down(engine, listener, None),
                },
                Event::Said => None,
                Event::Lost => self.mend(),
                Event::Helper => self.reap(),
                Event::Client => match self.hear_client(&engine, listener) {
                    Some(client) => return self.shut_down(engine, listener, Some(client)),
                    None => None,
                },
            };
            if let Some(found) = engine.journals.take() {
                self.spec.journals = found;
            }
            if let Some(failure) = failed {
                say(failure);
                return (1, Vec::new());
            }
        }
    }

    fn hear_maker(&mut self, maker: Option<&Link>) -> Heard {
        let Some(maker) = maker else { return Heard::More };
        match maker.receive::<ToKeeper>() {
            Ok(Some((ToKeeper::Engaging(device), _))) => {
                self.record.device = Some(device);
                let answer = match self.record.store(&self.dir) {
                    Ok(()) => FromKeeper::Done,
                    Err(failure) => FromKeeper::Failed(failure.line),
                };
                let _ = maker.send(&answer, &[]);
                Heard::More
            }
            Ok(Some((ToKeeper::Engaged, _))) => {
                let _ = maker.send(&FromKeeper::Done, &[]);
                Heard::Engaged
            }
            _ => Heard::Gone,
        }
    }

    /// Has the device given its connections again. Never fails.
    fn mend(&mut self) -> Option<Failure> {
        match arm::mend(&self.door, &self.record) {
            Ok(helper) => self.helpers.extend(helper.map(Process::new)),
            Err(failure) => say(failure),
        }
        None
    }

    /// Lets go of helpers that have ended: dropped, they are reaped. Never fails.
    fn reap(&mut self) -> Option<Failure> {
        self.helpers.retain(|helper| !wait_for(helper.as_fd(), Duration::ZERO));
        None
    }

    /// Has the device taken away by a process that may wait for it, while this one keeps the engine
    /// alive. Its end shows at the door.
    fn release(&mut self) -> Result<()> {
        let failed = |error| Failure::because("attachment", "let go of its device", error);
        match ns::fork(Namespaces::default()).map_err(failed)? {
            Fork::Parent(helper) => {
                self.helpers.push(Process::new(helper));
                Ok(())
            }
            Fork::Child => {
                let _ = ns::keep_only(&[]);
                let start = Instant::now();
                while arm::disengage(&self.record).is_err() && start.elapsed() < RELEASE_TIME_MAX {
                    thread::sleep(Duration::from_millis(50));
                }
                ns::exit_now(0)
            }
        }
    }

    /// Answers one command; the command itself if it is to be told of the end.
    fn hear_client(&mut self, engine: &Engine, listener: &OwnedFd) -> Option<Link> {
        let client = Link::from_fd(scm::accept(listener).ok()?);
        if !wait_for(client.as_fd(), QUESTION_TIME_MAX) {
            return None;
        }
        match client.receive::<ToKeeper>() {
            Ok(Some((ToKeeper::Stop, _))) => return Some(client),
            Ok(Some((question, _))) => match question.wish() {
                Some(wish) => self.copies.begin(client, wish, &self.handed, &engine.copier()),
                None => self.answer(engine, client, question),
            },
            _ => {}
        }
        None
    }

    /// Answers what the engine is to be asked for. One that dies over it is replaced, and the next
    /// one asked.
    fn answer(&mut self, engine: &Engine, client: Link, question: ToKeeper) {
        let answer = match question {
            ToKeeper::Stats => match engine.ask(ToEngine::Stats) {
                Some(FromEngine::Stats(stats)) => Some(FromKeeper::Stats(self.describe(stats))),
                _ => None,
            },
            ToKeeper::Grow(size) => match self.grow(engine, size) {
                Ok(grown) => grown.then_some(FromKeeper::Done),
                Err(failure) => Some(FromKeeper::Failed(failure.line)),
            },
            _ => return,
        };
        if answer.is_none() && wait_for(engine.process.as_fd(), DEATH_TIME_MAX) {
            self.unanswered = Some((client, question));
            return;
        }
        let silent = || FromKeeper::Failed("engine: does not answer".to_string());
        let _ = client.send(&answer.unwrap_or_else(silent), &[]);
    }

    /// Makes the volume's file longer and tells the engine. False: it does not answer.
    fn grow(&self, engine: &Engine, size: u64) -> Result<bool> {
        let path = &self.record.volume;
        let refused = |why| Err(Failure::failed(format!("{}: {why}", path.display())));
        if self.handed.bypass.is_some() {
            return refused("is a bypass volume, which has one size while in use: detach it first");
        }
        let failed = |error| Failure::path(path, "resize it", error);
        if self.spec.image.is_some() {
            // The caller has told the cluster.
            return grown_by(engine, failed);
        }
        let [files] = &self.handed.volume[..] else {
            return refused("is on other volumes: detach it to resize it");
        };
        let stat = rustix::fs::fstat(&files.plain).map_err(failed)?;
        if (size as i64) < stat.st_size {
            return refused("is attached: detach it to make it smaller");
        }
        let grown = rustix::fs::ftruncate(&files.plain, size);
        grown.and_then(|()| rustix::fs::fsync(&files.plain)).map_err(failed)?;
        grown_by(engine, failed)
    }

    /// Starts an engine in place of one that has died, and again if that one does not get as far as
    /// to serve.
    fn replace(&mut self, engine: &mut Engine, restarts: &mut Vec<Instant>) -> Result<()> {
        let failed = |error| Failure::because("engine", "wait for it", error);
        let ended = engine.process.wait().map_err(failed)?;
        self.copies.server_ended();
        let name = self.spec.name.clone();
        say(format_args!("{name}: its engine {}: starting it again", process::how(ended)));
        let too_often = || Failure::failed(format!("{name}: its engine died too often: giving up"));
        for _ in 0..STARTS_MAX {
            let now = Instant::now();
            restarts.retain(|at| now.duration_since(*at) < RESTARTS_WINDOW);
            restarts.push(now);
            if restarts.len() > RESTARTS_MAX {
                return Err(too_often());
            }
            self.spec.incarnation = self.spec.incarnation.checked_add(1).ok_or_else(too_often)?;
            match self.start_again() {
                Ok(started) => {
                    *engine = started;
                    if let Some((client, question)) = self.unanswered.take() {
                        self.answer(engine, client, question);
                    }
                    return Ok(());
                }
                Err(failure) => say(failure),
            }
        }
        Err(too_often())
    }

    fn start_again(&mut self) -> Result<Engine> {
        arm::begin_recovery(&self.door)?;
        let engine = self.start_engine()?;
        arm::end_recovery(&self.door, engine.shape, &engine.process)?;
        Ok(engine)
    }

    /// Starts an engine and waits until it serves.
    fn start_engine(&mut self) -> Result<Engine> {
        let failed = |error: std::io::Error| Failure::because("engine", "start it", error);
        let (link, other) = Link::pair().map_err(|error| failed(error.into()))?;
        let spec = spec::seal(&self.spec)?;
        let process = match ns::fork(Namespaces::default()).map_err(failed)? {
            Fork::Child => {
                let said = self.relay.as_ref().map(Relay::end);
                if let Some(said) = said {
                    let _ = rustix::stdio::dup2_stderr(said);
                }
                let own = arm::open_own(&self.door).unwrap_or_else(|error| {
                    say(Failure::because("engine", "open its device", error));
                    ns::exit_now(1)
                });
                let door = own.as_ref().map_or(self.door.as_fd(), AsFd::as_fd);
                let mut fds =
                    vec![("--spec", spec.as_fd()), ("--door", door), ("--control", other.as_fd())];
                fds.extend(self.handed.options());
                fds.extend(self.door.left.iter().map(|left| ("--left", left.as_fd())));
                fds.extend(self.trace.iter().map(|trace| ("--record", trace.as_fd())));
                process::execute(None, "engine", &self.spec.name, &[], &fds, said)
            }
            Fork::Parent(child) => Process::new(child),
        };
        drop(other);
        let cluster = self.spec.image.as_ref().map(ImageSpec::start_time_max);
        if !wait_for(link.as_fd(), ENGINE_TIME_MAX.saturating_add(cluster.unwrap_or_default())) {
            return Err(Failure::failed("engine: it does not start"));
        }
        match link.receive::<FromEngine>() {
            Ok(Some((FromEngine::Ready(shape, warnings), _))) => {
                warnings.iter().filter(|_| self.spec.incarnation == 0).for_each(say);
                self.tell_share(&link);
                let (journals, early) = (RefCell::default(), RefCell::default());
                Ok(Engine { link, process, shape, journals, early })
            }
            Ok(Some((FromEngine::Failed(line), _))) => Err(Failure::failed(line)),
            _ => Err(Failure::failed("engine: it ended before it was ready")),
        }
    }

    /// Its part of the device may have changed. Never fails.
    fn keep_share(&mut self, engine: &Engine) -> Option<Failure> {
        if self.share.as_mut().is_some_and(|share| share.keep(engine.process.pid())) {
            self.tell_share(&engine.link);
        }
        None
    }

    /// Tells an engine of the lane that its requests are charged to, if there is one.
    fn tell_share(&self, engine: &Link) {
        let fds = self.share.as_ref().and_then(Share::member).map(Member::fds).unwrap_or_default();
        if !fds.is_empty() {
            let _ = engine.send(&ToEngine::Share, &fds);
        }
    }

    /// Lets the engine make everything durable and end, and tells `client` and whoever else came to
    /// ask for that meanwhile.
    fn shut_down(
        &mut self,
        mut engine: Engine,
        listener: &OwnedFd,
        client: Option<Link>,
    ) -> (i32, Vec<Link>) {
        let _ = engine.link.send(&ToEngine::Shutdown, &[]);
        let answer = match engine
            .answer(FLUSH_TIME_MAX, |answer| matches!(answer, FromEngine::Flushed(_)))
        {
            Some(FromEngine::Flushed(None)) => FromKeeper::Done,
            Some(FromEngine::Flushed(Some(errno))) => FromKeeper::Failed(format!(
                "{}: not everything could be written back: {}",
                self.record.volume.display(),
                polylane_base::Errno(errno)
            )),
            _ => FromKeeper::Failed(format!(
                "{}: its engine ended without writing everything back",
                self.record.volume.display()
            )),
        };
        if let Some(found) = engine.journals.take() {
            self.spec.journals = found;
        }
        if let Some(files) = self.handed.volume.first() {
            record::remember_journals(&self.record.volume, &files.plain, &self.spec.journals);
        }
        let _ = wait_for(engine.process.as_fd(), ENGINE_TIME_MAX);
        engine.process.kill();
        let _ = engine.process.wait();
        let mut clients: Vec<Link> = client.into_iter().collect();
        while wait_for(listener.as_fd(), Duration::ZERO) {
            let Ok(waiting) = scm::accept(listener) else { break };
            clients.push(Link::from_fd(waiting));
        }
        for client in &clients {
            let _ = client.send(&answer, &[]);
        }
        (i32::from(answer != FromKeeper::Done), clients)
    }

    /// What is known of the attachment.
    fn describe(&self, engine: serde_json::Value) -> serde_json::Value {
        serde_json::json!({
            "volume": path_text::json(&self.record.volume),
            "device": self.record.device.as_deref().map(path_text::json),
            "via": self.record.via,
            "engine_restarts": self.spec.incarnation,
            "known_journals": self.spec.journals,
            "share": self.share.as_ref().and_then(Share::member).map(Member::describe),
            "engine": engine,
        })
    }
}

/// Has an engine take the new size of its volume in. False: it does not answer.
fn grown_by(engine: &Engine, failed: impl Fn(rustix::io::Errno) -> Failure) -> Result<bool> {
    match engine.ask(ToEngine::Grow) {
        Some(FromEngine::Grown(None)) => Ok(true),
        Some(FromEngine::Grown(Some(errno))) => {
            Err(failed(rustix::io::Errno::from_raw_os_error(errno)))
        }
        _ => Ok(false),
    }
}

/// What the maker said.
enum Heard {
    /// There is more to come.
    More,
    /// The device is there.
    Engaged,
    /// It gave up.
    Gone,
}

/// Forks a keeper; the line to it.
pub(super) fn start(keeper: Keeper) -> Result<(Link, Door)> {
    let failed = |error: std::io::Error| Failure::because("attachment", "start its keeper", error);
    let (link, other) = Link::pair().map_err(|error| failed(error.into()))?;
    match ns::fork(Namespaces::default()).map_err(failed)? {
        Fork::Child => {
            drop(link);
            main(keeper, other)
        }
        Fork::Parent(_) => {
            let Keeper { door, handed, .. } = keeper;
            if let Some((_, mut pinned)) = handed.bypass {
                pinned.leave_to_child();
            }
            Ok((link, door))
        }
    }
}
