//! The keeper: a child of the supervisor that outlives it and clears up when it is killed.
//!
//! A supervisor that ends in any orderly way removes its groups and run-time files itself and
//! dismisses the keeper. After a `kill -9` the init dies with it (parent-death signal), the service
//! sees the end of its control line, flushes and exits, and the keeper removes the rest. A service
//! that does not get through with its flush is killed.
//!
//! # Invariants
//!
//! - The keeper runs before anything exists that it would have to remove.
//! - Whoever removes a pool's leftovers holds the pool's name, so they are nobody else's.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polylane_base::sync::thread;
use polylane_sys::footprint;
use polylane_sys::ns::{self, Fork, Namespaces, SignalFd};
use rustix::fs::{Mode, OFlags};
use rustix::process::{PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

use crate::cgroup;
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::names::PoolName;
use crate::process::Process;
use crate::share::Meeting;
use crate::share::coordinator::Candidate;
use crate::share::profile::Profile;
use crate::wait::{wait_either, wait_for};

/// How long an orphaned service may flush.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a dismissed keeper may take to end before it is killed.
const DISMISSAL_TIME_MAX: Duration = Duration::from_millis(500);

/// How long the keeper sleeps without a reason to wake up: an hour.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// How long the last process of a killed supervisor's pool may hold on to the pool's name.
const NAME_TIME_MAX: Duration = Duration::from_secs(30);

/// What a pool leaves outside of processes and namespaces. Dropped (after the processes have
/// ended), it is removed; what is gone already is fine.
#[derive(Debug)]
pub(crate) struct Leftovers {
    /// The pool's name, and with it the run-time files.
    pub(crate) name: PoolName,
    /// Control groups.
    pub(crate) groups: Vec<PathBuf>,
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        cgroup::remove(&self.groups);
        self.name.remove_files();
    }
}

/// How long a keeper must have run to be replaced when it is killed.
const REPLACED_AFTER: Duration = Duration::from_millis(200);

/// The process that watches over the leftovers. Dropped, it is gone.
#[derive(Debug)]
pub(crate) struct Keeper {
    link: Link,
    process: Process,
    duty: Duty,
    since: Instant,
}

/// What a keeper does, whichever process it is.
#[derive(Clone, Debug)]
pub(crate) struct Duty {
    /// Where the pool's run-time files are going to be.
    pub(crate) dir: PathBuf,
    /// The pool's name; `None`: there is nothing to clear up.
    pub(crate) name: Option<String>,
    /// Its control groups.
    pub(crate) groups: Vec<PathBuf>,
    /// The shares of a device that it coordinates when nobody else does.
    pub(crate) shares: Option<(Meeting, Profile)>,
}

impl Keeper {
    /// Starts the keeper of a pool.
    pub(crate) fn start(duty: Duty) -> Result<Keeper> {
        let failed = |error: std::io::Error| Failure::because("keeper", "start it", error);
        let supervisor =
            rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())
                .map_err(|error| failed(error.into()))?;
        let (link, other) = Link::pair().map_err(|error| failed(error.into()))?;
        match ns::fork(Namespaces::default()).map_err(failed)? {
            Fork::Child => keep(duty, &supervisor, &other),
            Fork::Parent(child) => {
                Ok(Keeper { link, process: Process::new(child), duty, since: Instant::now() })
            }
        }
    }

    /// Readable when it was killed and is to be [replaced](Keeper::replace). One that was killed
    /// at once is not, for the time being: whoever looks comes by again.
    pub(crate) fn end(&self) -> Option<BorrowedFd<'_>> {
        (self.since.elapsed() >= REPLACED_AFTER).then(|| self.process.as_fd())
    }

    /// Starts another one in place of one that was killed.
    pub(crate) fn replace(&mut self, service: Option<BorrowedFd<'_>>) {
        match Keeper::start(self.duty.clone()) {
            Ok(next) => {
                *self = next;
                if let Some(service) = service {
                    self.watch(service);
                }
            }
            // It is tried again.
            Err(_) => self.since = Instant::now(),
        }
    }

    /// Has it coordinate a device when nobody else does, if it has none to coordinate yet.
    pub(crate) fn coordinate(&mut self, shares: (Meeting, Profile), service: BorrowedFd<'_>) {
        if self.duty.shares.is_none() {
            self.duty.shares = Some(shares);
            self.replace(Some(service));
        }
    }

    /// Tells the keeper of a service to wait for.
    pub(crate) fn watch(&self, service: BorrowedFd<'_>) {
        // A keeper that is gone cannot be helped; nothing depends on it while the supervisor lives.
        let _ = self.link.send(&ToKeeper::Watch, &[service]);
    }
}

impl Drop for Keeper {
    /// Somebody else is to coordinate the device: orderly, and without files left.
    fn drop(&mut self) {
        if self.link.send(&ToKeeper::Dismiss, &[]).is_ok() {
            wait_for(self.process.as_fd(), DISMISSAL_TIME_MAX);
        }
    }
}

/// What the supervisor tells the keeper.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum ToKeeper {
    /// Wait for the service that comes with it, in the end.
    Watch,
    /// All is cleared up.
    Dismiss,
}

/// The keeper's own life.
fn keep(duty: Duty, supervisor: &OwnedFd, link: &Link) -> ! {
    let Duty { dir, name, groups, shares } = duty;
    let _ = rustix::thread::set_name(c"polylane-keep");
    // Out of reach of the terminal's and the user's signals, which are meant for the supervisor.
    let _ = rustix::process::setpgid(None, None);
    let signals = SignalFd::new(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT]);
    leave_surroundings();
    // Without /proc it holds a few files longer than it should.
    let mut kept = vec![supervisor.as_fd(), link.as_fd()];
    kept.extend(signals.as_ref().map(AsFd::as_fd));
    let _ = ns::keep_only(&kept);
    // Without one the lanes find another pool's, or go on without.
    let candidate = shares.and_then(|(meeting, profile)| Candidate::start(meeting, profile).ok());
    let mut service = None;
    loop {
        // It is told of a service, and then sleeps.
        footprint::unmap_program();
        let (ended, _) = wait_either(supervisor.as_fd(), link.as_fd(), LOOK_AGAIN);
        while wait_for(link.as_fd(), Duration::ZERO) {
            let Ok(Some((message, mut fds))) = link.receive::<ToKeeper>() else { break };
            if message == ToKeeper::Dismiss {
                drop(candidate);
                ns::exit_now(0);
            }
            service = fds.pop().or(service);
        }
        if ended {
            break;
        }
    }
    if let Some(service) = service
        && !wait_for(service.as_fd(), FLUSH_TIME_MAX)
    {
        let _ = rustix::process::pidfd_send_signal(&service, Signal::KILL);
    }
    drop(candidate);
    match name {
        Some(name) => drop(inherit(&dir, &name).map(|name| Leftovers { name, groups })),
        // An engine's, which ends by itself.
        None => cgroup::remove(&groups),
    }
    ns::exit_now(0)
}

/// The name of the dead pool, once its last process lets go of it. `None` when there is nothing to
/// remove: the supervisor did not get as far, or had done it; or another pool has the name now.
fn inherit(dir: &Path, name: &str) -> Option<PoolName> {
    let start = Instant::now();
    while start.elapsed() < NAME_TIME_MAX {
        match PoolName::take_over(dir, name) {
            Ok(found) => return found,
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
    None
}

/// Holds neither the working directory nor the pipes of whoever started the supervisor.
fn leave_surroundings() {
    let _ = rustix::process::chdir("/");
    if let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}
