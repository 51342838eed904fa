//! Sockets of supervisors that can answer. A supervisor that is busy is waited for. One that a
//! signal has stopped, as Ctrl-Z does, answers nothing: commands are refused at once.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use polylane_base::Errno;
use polylane_base::sync::thread;
use polylane_sys::procstat::ProcessStat;
use polylane_sys::scm;

use crate::failure::Failure;

/// How many connections a supervisor's socket queues: commands of a tenant that come at once.
pub(crate) const BACKLOG: i32 = 128;
/// How long a command waits in front of a full queue between two looks at the supervisor.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A program may stop another one for moments: a process is stopped that is so at each of these
/// looks.
const LOOKS: u32 = 3;
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Why a supervisor cannot be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mute {
    /// It has ended.
    Ended,
    /// A signal has stopped this process.
    Stopped(u32),
    /// It was busy for as long as the command waits.
    Silent,
}

impl Mute {
    /// The line that says so of a pool.
    pub(crate) fn failure(self, pool: &str) -> Failure {
        Failure::failed(match self {
            Mute::Ended => format!("pool '{pool}': not running"),
            Mute::Silent => format!("pool '{pool}': it does not answer"),
            Mute::Stopped(pid) => format!(
                "pool '{pool}': its process {pid} is stopped: 'kill -CONT {pid}' has it go on"
            ),
        })
    }
}

/// Connects to a socket of this supervisor, or of any; at most for about `limit` while its queue is
/// full.
pub(crate) fn connect(
    socket: &Path,
    supervisor: Option<u32>,
    limit: Duration,
) -> Result<OwnedFd, Mute> {
    let begin = Instant::now();
    let mut known = None;
    loop {
        match scm::connect_within(socket, LOOK_EVERY) {
            Ok(line) if supervisor.is_some_and(|pid| !is_listener(&line, pid)) => {
                return Err(Mute::Ended);
            }
            Ok(line) => {
                return must_be_awake(scm::listener_pid(&line).ok()).map(|()| line);
            }
            Err(Errno::EAGAIN) => {}
            Err(_) => return Err(Mute::Ended),
        }
        known = known.or_else(|| listener_beside(socket)).or(supervisor);
        must_be_awake(known)?;
        if begin.elapsed() > limit {
            return Err(Mute::Silent);
        }
    }
}

/// Whether this process made the socket listen that `line` is connected to. One in another pid
/// namespace has no number here, and is believed.
pub(crate) fn is_listener(line: impl AsFd, process: u32) -> bool {
    scm::peer(line).is_ok_and(|peer| peer.pid == process || peer.pid == 0)
}

/// The supervisor by its other socket, whose queue may have room.
fn listener_beside(socket: &Path) -> Option<u32> {
    let of = |extension| scm::connect_now(&socket.with_extension(extension)).ok();
    ["control", "sock"].into_iter().find_map(|kind| scm::listener_pid(of(kind)?).ok())
}

/// Fails where a signal has stopped all threads of a process. One that cannot be looked at is taken
/// for busy.
fn must_be_awake(process: Option<u32>) -> Result<(), Mute> {
    let Some(pid) = process else { return Ok(()) };
    let is_stopped = |look: u32| {
        if look > 0 {
            thread::sleep(BETWEEN_LOOKS);
        }
        // `t` is a debugger's stop, which SIGCONT does not end.
        let mut threads =
            ProcessStat::threads_of(pid).map(|thread| thread.state == b'T').peekable();
        threads.peek().is_some() && threads.all(|stopped| stopped)
    };
    if (0..LOOKS).all(is_stopped) { Err(Mute::Stopped(pid)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_supervisor_is_waited_for() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("p.control");
        let own = Some(std::process::id());
        assert_eq!(connect(&path, own, LOOK_EVERY).expect_err("nobody"), Mute::Ended);
        let listener = scm::listen(&path, 0).expect("listen");
        let waiting = scm::connect_now(&path).expect("room for one");
        let begin = Instant::now();
        assert_eq!(connect(&path, own, LOOK_EVERY).expect_err("no room"), Mute::Silent);
        assert!(begin.elapsed() >= LOOK_EVERY);
        thread::scope(|scope| {
            let asks = scope.spawn(|| connect(&path, own, Duration::from_secs(600)));
            let begin = Instant::now();
            while begin.elapsed() < 3 * LOOK_EVERY {
                assert!(!asks.is_finished(), "it did not wait");
                thread::sleep(Duration::from_millis(10));
            }
            drop((scm::accept(&listener).expect("the first"), waiting));
            asks.join().expect("joined").expect("it is let in");
        });
    }
}
