//! From a container that was made to its first process, and to its end.
//!
//! The process that waits for the container (the *watcher*) is the command itself, or, for one that
//! is detached, a fork of it. It has the container's first process as its child, also when the
//! runtime or the process that the runtime left between is killed (PR_SET_CHILD_SUBREAPER), so it
//! learns its status; it then clears up. A watcher that is killed leaves a container that runs on:
//! the next command that ends or removes it clears up.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;

use polylane_pool::failure::{FAILED, Failure, Result};
use polylane_pool::lasting::{self, Membership};
use polylane_sys::ns::{self, Fork, Namespaces, SignalFd};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::bundle::{self, OnHost};
use crate::container::{Container, GROUPS, State, now};
use crate::lane;
use crate::place::Lock;
use crate::program::{self, NOT_EXECUTABLE, NOT_FOUND};
use crate::record::{Exit, NamespacesOf};
use crate::relay::{self, Log, Relays, Sink};
use crate::users;

/// Signals that are passed on to the container's first process.
const PASSED: [i32; 7] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
];

/// Whose standard streams the container has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attached {
    /// The caller's, who waits for its end.
    Caller,
    /// None to read from, and a file that `logs` shows.
    Log,
}

/// Starts a container. Its status when it has ended ([`Attached::Caller`]), else 0 once it runs.
///
/// # Errors
/// One line: it runs already or was removed, its lanes cannot be mounted, the runtime refuses.
pub fn start(container: &Container, attached: Attached) -> Result<u8> {
    let record = &container.record;
    let lock = container.lock()?;
    if let State::Running(_) = container.state()? {
        return Err(Failure::failed(format!("{}: runs already", record.name)));
    }
    if attached == Attached::Log && record.terminal {
        return Err(Failure::usage(format!(
            "{}: has a terminal, so it cannot be detached: leave --tty or --detach out",
            record.name
        )));
    }
    container.clear()?;
    for name in ["exit.json", "pid", "runtime.log"] {
        container.place.remove_file(name)?;
    }
    match attached {
        Attached::Caller => Watcher::new(container, lock)?.run(attached, |_| ()),
        Attached::Log => detach(container, lock),
    }
}

/// Forks a watcher, and waits until it says that the container runs.
fn detach(container: &Container, lock: Lock) -> Result<u8> {
    let failed = |error: io::Error| Failure::because("container", "fork who waits for it", error);
    let (told, tell) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|error| failed(error.into()))?;
    match ns::fork(Namespaces::default()).map_err(failed)? {
        Fork::Child => {
            drop(told);
            watch_detached(container, lock, File::from(tell))
        }
        Fork::Parent(_) => {}
    }
    drop((tell, lock));
    let mut answer = Vec::new();
    File::from(told).read_to_end(&mut answer).map_err(failed)?;
    match answer.split_first() {
        Some((0, _)) => Ok(0),
        Some((&status, line)) => {
            Err(Failure { status, line: String::from_utf8_lossy(line).into_owned() })
        }
        None => Err(Failure::failed(format!(
            "{}: who waits for it ended before it ran",
            container.record.name
        ))),
    }
}

/// The life of a detached watcher.
fn watch_detached(container: &Container, lock: Lock, tell: File) -> ! {
    let mut tell = Some(tell);
    let mut say_once = |bytes: &[u8]| {
        // The command that asked may be gone.
        let _ = tell.take().map(|mut tell| tell.write_all(bytes));
    };
    let ended = leave_caller(container)
        .and_then(|()| Watcher::new(container, lock))
        .and_then(|watcher| watcher.run(Attached::Log, |()| say_once(&[0])));
    if let Err(failure) = ended {
        let mut answer = vec![failure.status.max(FAILED)];
        answer.extend(failure.line.as_bytes());
        say_once(&answer);
    }
    ns::exit_now(0)
}

/// Leaves the session, directory and terminal of the command.
fn leave_caller(container: &Container) -> Result<()> {
    let failed =
        |error: rustix::io::Errno| Failure::because("container", "leave the session", error);
    rustix::process::setsid().map_err(failed)?;
    rustix::process::chdir("/").map_err(failed)?;
    let null = File::options().read(true).write(true).open("/dev/null");
    let null = null.map_err(|error| Failure::because("/dev/null", "open it", error))?;
    rustix::stdio::dup2_stdin(&null).map_err(failed)?;
    rustix::stdio::dup2_stdout(&null).map_err(failed)?;
    // What it has to say is the container's.
    let path = container.output();
    let log = relay::open_log(&path).map_err(|error| Failure::path(&path, "open it", error))?;
    rustix::stdio::dup2_stderr(log).map_err(failed)
}

/// A stream of this process; where it has none, what is written goes nowhere.
fn stream(fd: std::io::Result<OwnedFd>) -> io::Result<Sink> {
    let nowhere = || File::options().write(true).open("/dev/null").map(OwnedFd::from);
    Ok(Sink::Stream(fd.or_else(|_| nowhere())?))
}

/// Who waits for a container.
struct Watcher<'a> {
    container: &'a Container,
    /// Until the container runs.
    starting: Option<Lock>,
    /// As long as it does.
    watched: Option<Lock>,
    signals: SignalFd,
    /// What the container's processes write.
    relays: Relays,
}

impl<'a> Watcher<'a> {
    fn new(container: &'a Container, starting: Lock) -> Result<Watcher<'a>> {
        let signals = signals()?;
        let watched = container.place.try_watch()?;
        Ok(Watcher {
            container,
            starting: Some(starting),
            watched,
            signals,
            relays: Relays::default(),
        })
    }

    /// Starts the container, calls `running`, waits for its end and clears up; its status.
    fn run(mut self, attached: Attached, running: impl FnOnce(())) -> Result<u8> {
        let started = self.start(attached);
        let first = match started {
            Ok(first) => first,
            Err(failure) => {
                // What cannot be cleared now the next command clears.
                let _ = self.container.clear();
                let _ = self.container.place.remove_file("pid");
                if let Some(lock) = self.starting.take().filter(|_| self.container.record.remove) {
                    self.container.remove_all(&lock, true)?;
                }
                return Err(failure);
            }
        };
        self.starting = None;
        running(());
        // A terminal's own signals the runtime has had as well, where it is one of the terminal's
        // processes.
        let has_terminal = self.container.record.terminal;
        let is_passed = |from_kernel: bool| !(from_kernel && has_terminal);
        let status = wait(&self.signals, first, &mut self.relays, is_passed)?;
        if let Err(failure) = self.end(status) {
            // It ran, and its status is what was asked for; the next command clears up.
            eprintln!("polylane: {}", failure.line);
        }
        Ok(status)
    }

    /// Mounts, writes the configuration and has the runtime start the container; the process to
    /// wait for.
    fn start(&mut self, attached: Attached) -> Result<Pid> {
        let (place, record) = (&self.container.place, &self.container.record);
        let is_new = lane::is_new(place, record);
        let lock = self
            .starting
            .as_ref()
            .ok_or_else(|| Failure::failed(format!("{}: is started once only", record.name)))?;
        let sources = lane::mount((place, lock), record)?;
        if is_new {
            lane::write_names(place, record)?;
        }
        let user = users::find(&place.root(), &record.user)?;
        let env = bundle::environment(record, &user, &[], record.terminal);
        let program = record.args.first().map_or("", String::as_str);
        program::check(&place.root(), (program, &record.cwd), &env, &record.mounts)?;
        let pool = lasting::membership(record.pool.as_deref())?;
        // Below those of the pool that the runtime is started in, or at the top.
        let group = self.container.group();
        place.write(GROUPS, &lasting::runtime_groups(pool.as_ref(), &group))?;
        let groups = if pool.is_some() { group } else { format!("/{group}") };
        let root = place.root();
        let namespaces = match (&pool, record.namespaces) {
            (Some(pool), NamespacesOf::Pool) => pool.namespaces()?,
            _ => Vec::new(),
        };
        let on_host = OnHost { sources, namespaces };
        let config = bundle::config(record, (&root, &groups), (&user, &env), &on_host);
        place.write("config.json", &config)?;
        self.execute(attached, pool)
    }

    /// Has the runtime start what `config.json` says. A terminal is the runtime's to relay, which
    /// stays as long as the container; else the container's process is left to this one. In `pool`
    /// the runtime is started, and never this process: what that takes is not the tenant's, and no
    /// limit of the tenant's ends it.
    fn execute(&mut self, attached: Attached, pool: Option<Membership>) -> Result<Pid> {
        let (place, record) = (&self.container.place, &self.container.record);
        let runtime = self.container.runtime();
        let failed = |error: io::Error| Failure::path(runtime.program, "execute it", error);
        let own = |error: rustix::io::Errno| Failure::because("container", "wait for it", error);
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(own)?;
        let mut command = runtime.command("runtime.log");
        command
            .arg("run")
            .arg("--bundle")
            .arg(place.dir())
            .arg("--pid-file")
            .arg(place.file("pid"));
        if !record.terminal {
            command.arg("--detach");
        }
        command.arg(&record.id);
        if attached == Attached::Log || !(record.interactive || record.terminal) {
            command.stdin(Stdio::null());
        }
        match attached {
            Attached::Caller if record.terminal => {}
            Attached::Caller => give_streams(&mut command, &mut self.relays).map_err(failed)?,
            Attached::Log => {
                let log = Log::open(&self.container.output()).map_err(failed)?;
                let end = self.relays.add(Sink::Log(log)).map_err(failed)?;
                command.stdout(end.try_clone().map_err(failed)?).stderr(end);
            }
        }
        pool.iter().for_each(|pool| pool.give(&mut command));
        let mut child = command.spawn().map_err(failed)?;
        // Its ends of the pipes are the container's alone.
        drop((command, pool));
        if record.terminal {
            let pid = Pid::from_child(&child);
            return Ok(pid);
        }
        let status = child.wait().map_err(failed)?;
        if !status.success() {
            return Err(self.refusal());
        }
        let text = fs::read_to_string(place.file("pid")).map_err(failed)?;
        let pid = text.trim().parse().ok().and_then(Pid::from_raw);
        pid.ok_or_else(|| Failure::failed(format!("{}: the runtime tells no process", record.id)))
    }

    /// Why the runtime has started nothing, by what it said.
    fn refusal(&self) -> Failure {
        let record = &self.container.record;
        let said = self.container.runtime().error("runtime.log", b"");
        let program = record.args.first().map_or("", String::as_str);
        let of_program = said.contains("exec:") || said.contains("executable file");
        let status = match () {
            () if of_program && said.contains("permission denied") => NOT_EXECUTABLE,
            () if of_program => NOT_FOUND,
            () => FAILED,
        };
        let line = match status {
            NOT_FOUND => format!("{program}: not found in the container"),
            NOT_EXECUTABLE => {
                format!("{program}: cannot be executed in the container: permission denied")
            }
            _ if said.trim().is_empty() => {
                format!("{}: the runtime refuses, and does not say why", record.name)
            }
            _ => format!("{}: the runtime refuses: {said}", record.name),
        };
        Failure { status, line }
    }

    /// Records the end, and clears up.
    fn end(&mut self, status: u8) -> Result<()> {
        // What is left of the lanes' supervisors is not for this process to reap.
        let _ = rustix::process::set_child_subreaper(None);
        let container = self.container;
        let Some(lock) = container.place.lock_for_end()? else { return Ok(()) };
        container.place.write("exit.json", &Exit { status, ended: now() })?;
        // The number may be another process's from now on.
        container.place.remove_file("pid")?;
        if container.record.remove {
            let removed = container.remove_all(&lock, true);
            self.watched = None;
            return removed;
        }
        let cleared = container.end_at_runtime().and_then(|()| {
            lane::unmount(&container.place, &container.record, false)
                .or_else(|_| lane::unmount(&container.place, &container.record, true))
        });
        self.watched = None;
        cleared
    }
}

/// The signals that [`wait`] reads.
pub(crate) fn signals() -> Result<SignalFd> {
    let all = [&PASSED[..], &[libc::SIGCHLD]].concat();
    SignalFd::new(&all).map_err(|error| Failure::because("signals", "read them", error))
}

/// Has a command's output go to the streams of this process.
fn give_streams(command: &mut std::process::Command, relays: &mut Relays) -> io::Result<()> {
    let output = stream(io::stdout().as_fd().try_clone_to_owned())?;
    let errors = stream(io::stderr().as_fd().try_clone_to_owned())?;
    command.stdout(relays.add(output)?).stderr(relays.add(errors)?);
    Ok(())
}

/// Passes signals on to a child, and output from it, until it has ended; its status. `is_passed`
/// says which signals, of those from the kernel and those from processes.
pub(crate) fn wait(
    signals: &SignalFd,
    first: Pid,
    relays: &mut Relays,
    is_passed: impl Fn(bool) -> bool,
) -> Result<u8> {
    let failed = |error: io::Error| Failure::because("container", "wait for it", error);
    loop {
        let mut fds = vec![PollFd::new(signals, PollFlags::IN)];
        fds.extend(relays.fds());
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed(error.into())),
        }
        relays.turn();
        while let Some(received) = signals.next().map_err(failed)? {
            if received.signal != libc::SIGCHLD && is_passed(received.from_kernel) {
                // Not reaped yet, so the number is still its own.
                if let Some(signal) = Signal::from_named_raw(received.signal) {
                    let _ = rustix::process::kill_process(first, signal);
                }
            }
        }
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if pid == first {
                relays.finish();
                return Ok(status_of(status));
            }
        }
    }
}

fn status_of(status: WaitStatus) -> u8 {
    let signal = || status.terminating_signal().map(|signal| 128 + signal);
    let number = status.exit_status().or_else(signal).unwrap_or(i32::from(FAILED));
    u8::try_from(number & 0xff).unwrap_or(FAILED)
}

/// What a further process of a container is to be.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Further {
    /// What is executed.
    pub command: Vec<String>,
    /// NAME=VALUE, or NAME for the caller's value.
    pub env: Vec<String>,
    /// Its working directory; none: the container's.
    pub workdir: Option<String>,
    /// `USER[:GROUP]`; none: the container's.
    pub user: Option<String>,
    /// It has a terminal.
    pub terminal: bool,
    /// It reads the caller's standard input.
    pub interactive: bool,
    /// Nobody waits for it.
    pub detach: bool,
}

/// Executes a further process in a container that runs; its status. One that is detached, or has a
/// terminal, is the runtime's to wait for: this process becomes the runtime's.
///
/// # Errors
/// One line: the container does not run, no such user.
pub fn exec(container: &Container, further: &Further) -> Result<u8> {
    let record = &container.record;
    let State::Running(first) = container.state()? else {
        return Err(Failure::failed(format!(
            "{0}: does not run: 'polylane container start {0}' first",
            record.name
        )));
    };
    let user = further.user.as_deref().unwrap_or(&record.user);
    let user = users::find(&container.place.root(), user)?;
    let more: Vec<String> =
        further.env.iter().filter_map(|text| crate::container::given(text)).collect();
    let env = bundle::environment(record, &user, &more, further.terminal);
    let cwd = further.workdir.as_deref().unwrap_or(&record.cwd);
    let program = further.command.first().map_or("", String::as_str);
    // With what is mounted in the container by now.
    let root = PathBuf::from(format!("/proc/{first}/root"));
    program::check(&root, (program, cwd), &env, &record.mounts)?;
    let process = bundle::process(&user, &env, &further.command, cwd, further.terminal);
    let file = memory_file(&process)?;
    let runtime = container.runtime();
    let mut command = std::process::Command::new(runtime.program);
    command.arg("--root").arg(crate::place::runtime_state()).arg("exec");
    command
        .arg("--process")
        .arg(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
    if further.detach {
        command.arg("--detach").stdout(Stdio::null()).stderr(Stdio::null());
    }
    if further.detach || !(further.interactive || further.terminal) {
        command.stdin(Stdio::null());
    }
    command.arg(&record.id);
    let failed = |error| Failure::path(runtime.program, "execute it", error);
    if further.detach || further.terminal {
        return Err(failed(command.exec()));
    }
    let signals = signals()?;
    let mut relays = Relays::default();
    give_streams(&mut command, &mut relays).map_err(failed)?;
    let child = command.spawn().map_err(failed)?;
    drop(command);
    // A terminal's own signals the runtime has had as well: it is one of its processes.
    wait(&signals, Pid::from_child(&child), &mut relays, |from_kernel| !from_kernel)
}

/// A file that the next program inherits.
fn memory_file(value: &serde_json::Value) -> Result<OwnedFd> {
    let failed = |error: io::Error| Failure::because("container", "hand a process over", error);
    let fd = rustix::fs::memfd_create("polylane-process", rustix::fs::MemfdFlags::empty())
        .map_err(|error| failed(error.into()))?;
    let mut file = File::from(fd);
    file.write_all(value.to_string().as_bytes()).map_err(failed)?;
    let fd = OwnedFd::from(file);
    rustix::io::fcntl_setfd(fd.as_fd(), rustix::io::FdFlags::empty())
        .map_err(|error| failed(error.into()))?;
    Ok(fd)
}
