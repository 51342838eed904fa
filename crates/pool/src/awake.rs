//! Sockets of supervisors that can answer. One that a signal has stopped, as Ctrl-Z does, takes no
//! connection from its queue and answers nothing: nobody waits for it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use polylane_base::Result;
use polylane_base::sync::thread;
use polylane_sys::procstat::ProcessStat;
use polylane_sys::scm;

/// How long a supervisor may take to let a connection in.
const CONNECT_TIME_MAX: Duration = Duration::from_millis(250);
/// A debugger stops a process for moments: one that is stopped is so at each of these looks.
const LOOKS: u32 = 3;
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Connects to a supervisor's socket. `EAGAIN`: it lets no more connections in.
pub(crate) fn connect(socket: &Path) -> Result<OwnedFd> {
    scm::connect_within(socket, CONNECT_TIME_MAX)
}

/// The process that listens at the other end of a connection, where a signal has stopped it.
pub(crate) fn stopped(socket: impl AsFd) -> Option<u32> {
    let pid = scm::listener_pid(socket).ok()?;
    let is_stopped = |look: u32| {
        if look > 0 {
            thread::sleep(BETWEEN_LOOKS);
        }
        ProcessStat::of(pid).is_some_and(|stat| stat.is_stopped())
    };
    (0..LOOKS).all(is_stopped).then_some(pid)
}
