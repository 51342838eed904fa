//! The keeper: a child of the supervisor that outlives it and clears up when it is killed.
//!
//! A supervisor that ends in any orderly way removes its groups and run-time files itself and dismisses
//! the keeper. After a `kill -9` the init dies with it (parent-death signal), the service sees the end
//! of its control line, flushes and exits, and the keeper removes the rest. A service that does not
//! get through with its flush is killed.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use polylane_sys::ns::{self, Fork, Namespaces, SignalFd};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags, Timespec};
use rustix::process::{PidfdFlags, Signal};

use crate::cgroup;
use crate::failure::{Failure, Result};
use crate::link::Link;
use crate::process::Process;

/// How long an orphaned service may flush.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(30);

/// What a pool leaves outside of processes and namespaces.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Leftovers {
    /// Control groups.
    pub(crate) groups: Vec<PathBuf>,
    /// Run-time files.
    pub(crate) files: Vec<PathBuf>,
    /// Their directory, removed when empty.
    pub(crate) dir: PathBuf,
}

impl Leftovers {
    /// Removes all of it; what is gone already is fine. The processes must have ended.
    fn remove(&self) {
        cgroup::remove(&self.groups);
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
        let _ = fs::remove_dir(&self.dir);
    }
}

/// The leftovers and the process that watches over them. Dropped, both are gone.
#[derive(Debug)]
pub(crate) struct Keeper {
    leftovers: Leftovers,
    link: Link,
    process: Option<Process>,
}

impl Keeper {
    /// Starts the keeper.
    pub(crate) fn start(leftovers: Leftovers) -> Result<Keeper> {
        let failed = |error: std::io::Error| Failure::because("keeper", "start it", error);
        let supervisor =
            rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())
                .map_err(|error| failed(error.into()))?;
        let (link, other) = Link::pair().map_err(|error| failed(error.into()))?;
        match ns::fork(Namespaces::default()).map_err(failed)? {
            Fork::Child => keep(&leftovers, &supervisor, &other),
            Fork::Parent(child) => {
                Ok(Keeper { leftovers, link, process: Some(Process::new(child)) })
            }
        }
    }

    /// Tells the keeper of a service to wait for.
    pub(crate) fn watch(&self, service: BorrowedFd<'_>) {
        // A keeper that is gone cannot be helped; nothing depends on it while the supervisor lives.
        let _ = self.link.send(&(), &[service]);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.leftovers.remove();
        self.process.take();
    }
}

/// The keeper's own life.
fn keep(leftovers: &Leftovers, supervisor: &OwnedFd, link: &Link) -> ! {
    let _ = rustix::thread::set_name(c"polylane-keep");
    // Out of reach of the terminal's and the user's signals, which are meant for the supervisor.
    let _ = rustix::process::setpgid(None, None);
    let _signals = SignalFd::new(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT]);
    leave_surroundings();
    let mut service = None;
    loop {
        let ended = is_ready(supervisor.as_fd(), link.as_fd());
        while wait_for(link.as_fd(), Duration::ZERO) {
            let Ok(Some((_, mut fds))) = link.receive::<()>() else { break };
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
    leftovers.remove();
    ns::exit_now(0)
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

/// Waits for one of two descriptors; whether it was (also) the first.
fn is_ready(first: BorrowedFd<'_>, second: BorrowedFd<'_>) -> bool {
    let mut fds = [
        PollFd::from_borrowed_fd(first, PollFlags::IN),
        PollFd::from_borrowed_fd(second, PollFlags::IN),
    ];
    while rustix::event::poll(&mut fds, None).is_err() {}
    !fds[0].revents().is_empty()
}

/// Waits at most `limit` for a descriptor; whether it became readable.
pub(crate) fn wait_for(fd: BorrowedFd<'_>, limit: Duration) -> bool {
    let start = Instant::now();
    loop {
        let left = limit.saturating_sub(start.elapsed());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}
