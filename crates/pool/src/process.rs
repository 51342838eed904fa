//! A child process that is waited for, or killed when its owner gives up.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::time::Duration;

use polylane_sys::ns::{self, Child};
pub(crate) use polylane_sys::procstat::pids;
use polylane_volume::log;
use rustix::io::FdFlags;
use rustix::process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use crate::failure::{FAILED, Failure, say};
use crate::wait::wait_for;

/// How long a killed process may take to end. One that takes longer is stuck in the kernel, as a
/// rule in a file system that does not answer, and waiting for it would hang its owner as well.
const KILLED_TIME_MAX: Duration = Duration::from_secs(20);

/// A running child. Dropped before it was waited for, it is killed and reaped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    /// Nothing is left to do at its end.
    reaped: bool,
    /// How long its owner waits for its end before it is killed.
    ends_time_max: Duration,
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// With this exit status.
    Exit(u8),
    /// By this signal.
    Signal(u8),
}

impl Ended {
    /// The exit status of a shell for it: 128 + n for a signal.
    pub(crate) fn status(self) -> u8 {
        match self {
            Ended::Exit(status) => status,
            Ended::Signal(signal) => 128u8.wrapping_add(signal),
        }
    }
}

impl Process {
    /// Owns a child from now on.
    pub(crate) fn new(child: Child) -> Self {
        Process::ends_within(child, Duration::ZERO)
    }

    /// The same, of a child that ends by itself when it is not needed any more: it is killed if it
    /// takes longer.
    pub(crate) fn ends_within(child: Child, ends_time_max: Duration) -> Self {
        Process { child, reaped: false, ends_time_max }
    }

    /// Its number in the host's pid namespace.
    pub(crate) fn pid(&self) -> u32 {
        self.child.pid
    }

    /// Kills it with SIGKILL, if it still runs.
    pub(crate) fn kill(&self) {
        // An error can only mean that it has ended already.
        let _ = pidfd_send_signal(&self.child.pidfd, Signal::KILL);
    }

    /// Lets it go on without its owner: it is neither killed nor reaped.
    pub(crate) fn release(mut self) {
        self.reaped = true;
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> io::Result<Ended> {
        let id = WaitId::PidFd(self.child.pidfd.as_fd());
        let status = loop {
            match waitid(id.clone(), WaitIdOptions::EXITED) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?,
            }
        };
        self.reaped = true;
        let status = status.ok_or(io::ErrorKind::NotFound)?;
        Ok(match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Ended::Exit(code as u8),
            (None, signal) => Ended::Signal(signal.unwrap_or(0) as u8),
        })
    }
}

impl AsFd for Process {
    /// The pidfd: readable once the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.child.pidfd.as_fd()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.reaped {
            return;
        }
        if !wait_for(self.as_fd(), self.ends_time_max) {
            self.kill();
        }
        match wait_for(self.as_fd(), KILLED_TIME_MAX) {
            true => drop(self.wait()),
            false => say(format_args!("process {}: the kernel does not let it end", self.pid())),
        }
    }
}

/// How it ended, in words.
pub(crate) fn how(ended: Ended) -> String {
    match ended {
        Ended::Exit(status) => format!("ended with status {status}"),
        Ended::Signal(signal) => format!("was ended by signal {signal}"),
    }
}

/// In a forked child: becomes a service, by a hidden `command` of this program or another, for what
/// is called `name`. Its command line begins with `words`, for others to see. Its session is its
/// own, without a terminal; of this process's descriptors it keeps the named ones, and `stderr`, or
/// this process's own, to say things.
pub(crate) fn execute(
    program: Option<&OwnedFd>,
    command: &str,
    name: &str,
    words: &[&str],
    fds: &[(&str, BorrowedFd<'_>)],
    stderr: Option<BorrowedFd<'_>>,
) -> ! {
    let hidden = command;
    ns::unblock_signals();
    let _ = rustix::process::setsid();
    if let Some(stderr) = stderr {
        let _ = rustix::stdio::dup2_stderr(stderr);
    }
    let path = match program {
        Some(program) => format!("/proc/self/fd/{}", program.as_raw_fd()),
        None => "/proc/self/exe".to_string(),
    };
    let mut command = std::process::Command::new(path);
    command.arg0(format!("polylane-{hidden}[{name}]")).arg(hidden).args(words).env_clear();
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
    for variable in ["RUST_BACKTRACE", log::VARIABLE] {
        if let Some(value) = std::env::var_os(variable) {
            command.env(variable, value);
        }
    }
    // What the caller of `polylane run` had open is COMMAND's, not the service's.
    let _ = ns::close_all_on_exec();
    for (option, fd) in fds {
        let _ = rustix::io::fcntl_setfd(fd, FdFlags::empty());
        command.arg(option).arg(fd.as_raw_fd().to_string());
    }
    let error = command.exec();
    say(Failure::because(hidden, "execute it", error));
    ns::exit_now(FAILED.into())
}
