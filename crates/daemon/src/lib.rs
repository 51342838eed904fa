//! `polylane daemon`: desired state and the HTTP interface.
//!
//! The daemon holds nothing that a lane needs. Each verb is a command of this same program in a
//! process of its own, as the command line has it: there is no second way, a lane's supervisor is
//! no child of the daemon, and a killed daemon leaves lanes as they are (docs/design/daemon.md).
//!
//! | file | what |
//! |---|---|
//! | `refusal` | why a request is refused: a status, a code, a line |
//! | `manager` | the service manager: sockets handed down, what it is told |
//! | `command` | one command of this program, for a limited time |
//! | `desired` | files of the desired state, and the commands that bring it about |
//! | `verbs` | what each change executes |
//! | `events` | events as a stream |
//! | `changes` | what comes and goes on this host, as events |
//! | `caller` | who calls, and what that caller may |
//! | `places` | what callers may have at a time |
//! | `tasks` | changes that go on or are over |
//! | `boot` | the desired state brought about: pools, then mounts, side by side |
//! | `volumes` | the volume plugin of Docker and podman |
//! | `routes` | the requests of the interface, and their OpenAPI document |
//! | `listen` | the socket, and the lock that one daemon has |
//! | `pipe` | a connection whose writes end in time |
//! | `server` | HTTP on a UNIX socket, with its limits |
#![forbid(unsafe_code)]

mod boot;
mod caller;
mod changes;
mod command;
mod desired;
mod events;
mod listen;
mod manager;
mod pipe;
mod places;
mod refusal;
mod routes;
mod server;
mod tasks;
mod verbs;
mod volumes;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use command::Program;
use desired::Desired;
use events::Events;
use listen::Listener;
use manager::Manager;
use routes::Daemon;
use tasks::Tasks;
use volumes::Volumes;

/// The period of a watchdog that nobody has.
const A_DAY: Duration = Duration::from_secs(86_400);

/// Where the desired state is, unless said otherwise.
pub const CONFIG_DIR: &str = "/etc/polylane";

/// What `polylane daemon` was asked for.
#[derive(Clone, Debug)]
pub struct DaemonOptions {
    /// Directory of the desired state: its files named `*.toml`.
    pub config: PathBuf,
    /// Path of the socket, made by the daemon.
    pub socket: PathBuf,
    /// The state directory, where volumes of the plugin are.
    pub state: PathBuf,
    /// This program.
    pub program: PathBuf,
}

/// Why the daemon ended: what it was about, and what went wrong.
#[derive(Debug)]
pub struct DaemonError {
    object: String,
    why: String,
}

impl DaemonError {
    fn new(object: impl fmt::Display, why: impl fmt::Display) -> DaemonError {
        DaemonError { object: object.to_string(), why: why.to_string() }
    }
}

impl fmt::Display for DaemonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.why)
    }
}

/// Brings the desired state about and serves the interface until SIGTERM or SIGINT. SIGHUP brings
/// the desired state about again, with what was added to it.
///
/// `report` gets each line that the operator is to see.
///
/// # Errors
/// The socket cannot be made. What is wrong with the desired state, or cannot be brought about, is
/// reported, and ends nothing.
pub fn serve(options: DaemonOptions, report: fn(&str)) -> Result<(), DaemonError> {
    let failed = |error: io::Error| DaemonError::new("daemon", error);
    let desired = read(&options, report);
    let group = match desired.daemon.group.as_deref().map(caller::group_number) {
        None => None,
        Some(Ok(group)) => Some(group),
        Some(Err(why)) => {
            report(&format!("{why}: only the daemon's user is served"));
            None
        }
    };
    let manager = Manager::of_process();
    let mut listener = match manager::socket_handed_down() {
        Some(socket) => Listener::of_manager(socket),
        None => listen::listen(&options.socket, group)?,
    };
    listener.keep_by(&manager);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(failed)?.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut again = signal(SignalKind::hangup()).map_err(failed)?;
        let events = Events::default();
        let program = Program::new(options.program.clone());
        let tasks = Tasks::new(program.clone(), events.clone());
        let boot = |desired: Desired| {
            let tried = boot::bring_about(desired, tasks.clone(), events.clone(), report);
            let manager = manager.clone();
            tokio::spawn(async move {
                tried.await;
                // Units that come after the daemon find their mounts.
                manager.tell("READY=1\nSTATUS=Pools and mounts were tried");
            });
        };
        manager.tell("STATUS=Serves requests; makes pools and mounts");
        boot(desired);
        tokio::spawn(changes::watch(program.clone(), events.clone()));
        let volumes = Volumes::new(&options.state);
        let (tasks, events) = (tasks.clone(), events.clone());
        let daemon = Daemon { program, tasks, events, volumes };
        // Without a manager that watches it, a day is as good as any.
        let mut alive = tokio::time::interval(manager.watchdog.unwrap_or(A_DAY));
        let mut accepting = std::pin::pin!(server::accept(&listener, daemon, group));
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = again.recv() => {
                    let now = manager::monotonic_usec();
                    manager.tell(&format!("RELOADING=1\nMONOTONIC_USEC={now}"));
                    boot(read(&options, report));
                }
                _ = alive.tick() => manager.tell("WATCHDOG=1"),
                Err(error) = &mut accepting => return Err(failed(error)),
            }
        }
        manager.tell("STOPPING=1");
        Ok(())
    })
}

/// Reads the desired state, and reports what is wrong with it.
fn read(options: &DaemonOptions, report: fn(&str)) -> Desired {
    let (desired, faults) = desired::read(&options.config);
    faults.iter().for_each(|line| report(line));
    desired
}
