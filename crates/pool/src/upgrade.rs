//! `polylane pool upgrade`: another program as the service of a running pool.
//!
//! Who asks sends its own executable as a descriptor to a socket beside the pool's lock, which only
//! the pool's user can reach; the supervisor starts its services from it from then on. The lane's
//! programs notice nothing: the former service answers what it has in hand, makes everything
//! durable and leaves its tables in the handover; what the kernel sends meanwhile waits.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use polylane_sys::scm;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};
use crate::names;
use crate::wait::wait_for;

/// How long a pool may take: to write everything back, above all.
const UPGRADE_TIME_MAX: Duration = Duration::from_secs(360);
/// How long who asks may take to say what.
const ASK_TIME_MAX: Duration = Duration::from_secs(1);
/// Largest message in bytes.
const MESSAGE_BYTES_MAX: usize = 4096;
/// What is asked.
const UPGRADE: &[u8] = b"upgrade";

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    done: bool,
    line: String,
}

/// The supervisor's side.
#[derive(Debug)]
pub(crate) struct Control(Option<OwnedFd>);

/// Somebody who asks for an upgrade.
#[derive(Debug)]
pub(crate) struct Wish {
    client: OwnedFd,
    /// The program that is to be the service.
    pub(crate) program: OwnedFd,
}

impl Control {
    /// Listens at `path`. Without a socket there are no upgrades, and nothing else is lost.
    pub(crate) fn new(path: &Path) -> Control {
        // The name is locked, so whatever lies here is a dead pool's.
        let _ = fs::remove_file(path);
        Control(scm::listen(path, 2).ok())
    }

    /// The listening socket.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }

    /// Who asks now, if it is the pool's user and asks well.
    pub(crate) fn accept(&self) -> Option<Wish> {
        let client = scm::accept(self.0.as_ref()?).ok()?;
        let own = rustix::process::geteuid().as_raw();
        let allowed = scm::peer(&client).is_ok_and(|peer| peer.uid == own || peer.uid == 0);
        if !allowed || !wait_for(client.as_fd(), ASK_TIME_MAX) {
            return None;
        }
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let got = scm::try_receive(&client, &mut bytes).ok()?;
        let program = got.fds.into_iter().next()?;
        (bytes.get(..got.count)? == UPGRADE).then_some(Wish { client, program })
    }
}

impl Wish {
    /// Tells who asked what came of it.
    pub(crate) fn answer(client: &OwnedFd, outcome: &std::result::Result<String, String>) {
        let (Ok(line) | Err(line)) = outcome;
        let answer = Answer { done: outcome.is_ok(), line: line.clone() };
        if let Ok(bytes) = serde_json::to_vec(&answer) {
            // Whoever has gone away does not want to know.
            let _ = scm::send(client, &bytes, &[]);
        }
    }

    /// Its parts: whom to answer, and the program.
    pub(crate) fn into_parts(self) -> (OwnedFd, OwnedFd) {
        (self.client, self.program)
    }
}

/// Makes this very program the service of a running pool; the line that says so.
///
/// # Errors
/// One line: no such pool, or it goes on with its former service.
pub fn upgrade(pool: &str) -> Result<String> {
    let socket = names::runtime_dir().join(format!("{pool}.control"));
    let failed = |line: &str| Failure::failed(format!("pool '{pool}': {line}"));
    let socket = scm::connect(&socket).map_err(|_| failed("not running"))?;
    let program = fs::File::open("/proc/self/exe")
        .map_err(|error| Failure::because("polylane", "open its own program", error))?;
    scm::send(&socket, UPGRADE, &[program.as_fd()])
        .map_err(|error| Failure::because(pool, "ask it", error))?;
    if !wait_for(socket.as_fd(), UPGRADE_TIME_MAX) {
        return Err(failed("it does not answer"));
    }
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let got = scm::receive(&socket, &mut bytes).map_err(|_| failed("it does not answer"))?;
    let answer = bytes.get(..got.count).and_then(|bytes| serde_json::from_slice(bytes).ok());
    match answer {
        Some(Answer { done: true, line }) => Ok(line),
        Some(Answer { done: false, line }) => Err(Failure::failed(line)),
        None => Err(failed("it refused")),
    }
}
