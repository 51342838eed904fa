//! What a running lane is told to do, over a socket beside its lock: to end (`polylane umount`), or
//! to go on with another program as its service (`polylane pool upgrade`).
//!
//! A command that asks for an upgrade sends its own executable as a descriptor. Only the pool's
//! user can reach the socket. The supervisor starts its services from it from then on. The lane's
//! programs notice nothing: the former service answers what it has in hand, makes everything
//! durable and leaves its tables in the handover; what the kernel sends meanwhile waits.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use polylane_base::Errno;
use polylane_sys::scm;
use serde::{Deserialize, Serialize};

use crate::awake::{self, Mute};
use crate::failure::{Failure, Result};
use crate::names;
use crate::stays::{Cause, Stays};
use crate::wait::wait_for;

/// How long a pool may take: to write everything back, above all.
const UPGRADE_TIME_MAX: Duration = Duration::from_secs(360);
/// How long who asks may take to say what.
const ASK_TIME_MAX: Duration = Duration::from_secs(1);
/// Largest message in bytes.
const MESSAGE_BYTES_MAX: usize = 4096;
/// What is asked.
const UPGRADE: &[u8] = b"upgrade";
const UNMOUNT: &[u8] = b"unmount";
const UNMOUNT_LAZILY: &[u8] = b"unmount lazily";
/// What it is to serve comes as descriptors ([`instance`](crate::instance)).
pub(crate) const JOIN: &[u8] = b"join";
/// The lane's number that no other of its service has had follows.
pub(crate) const LEAVE: &[u8] = b"leave ";

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    done: bool,
    line: String,
    /// Why a lane was not unmounted. A supervisor of a former version does not say it.
    #[serde(default)]
    cause: Option<Cause>,
    /// The same for commands of former versions, and from supervisors of those.
    #[serde(default)]
    by_others: bool,
}

/// The supervisor's side.
#[derive(Debug)]
pub(crate) struct Control(Option<OwnedFd>);

/// A command that asks for something.
#[derive(Debug)]
pub(crate) struct Wish {
    /// Where the answer goes.
    pub(crate) client: OwnedFd,
    /// What it asks for.
    pub(crate) order: Order,
}

/// What a command asks for.
#[derive(Debug)]
pub(crate) enum Order {
    /// This program is to be the service.
    Upgrade(OwnedFd),
    /// The lane is to end; with `lazy` also one that is in use.
    Unmount {
        /// Files may be open on it.
        lazy: bool,
    },
    /// The service is to serve one more lane, which comes with these.
    Join(Vec<OwnedFd>),
    /// The lane of that number is to end: its mount is gone.
    Leave(u32),
}

impl Control {
    /// Listens at `path`. Without a socket there are no upgrades, and nothing else is lost.
    pub(crate) fn new(path: &Path) -> Control {
        // The name is locked, so whatever lies here is a dead pool's.
        let _ = fs::remove_file(path);
        Control(scm::listen(path, awake::BACKLOG).ok())
    }

    /// The listening socket.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }

    /// Who asks now, if it is the pool's user and asks well.
    pub(crate) fn accept(&self) -> Option<Wish> {
        let client = scm::accept(self.0.as_ref()?).ok()?;
        let own = rustix::process::geteuid().as_raw();
        let allowed =
            scm::peer(&client).is_ok_and(|peer| peer.identity.uid == own || peer.identity.uid == 0);
        if !allowed || !wait_for(client.as_fd(), ASK_TIME_MAX) {
            return None;
        }
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let got = scm::try_receive(&client, &mut bytes).ok()?;
        let order = match bytes.get(..got.count)? {
            UPGRADE => Order::Upgrade(got.fds.into_iter().next()?),
            UNMOUNT => Order::Unmount { lazy: false },
            UNMOUNT_LAZILY => Order::Unmount { lazy: true },
            JOIN => Order::Join(got.fds),
            other => Order::Leave(number_in(other.strip_prefix(LEAVE)?)?),
        };
        Some(Wish { client, order })
    }
}

impl Wish {
    /// Tells who asked what came of it.
    pub(crate) fn answer(client: &OwnedFd, outcome: &std::result::Result<String, String>) {
        let (Ok(line) | Err(line)) = outcome;
        Answer { done: outcome.is_ok(), line: line.clone(), cause: None, by_others: false }
            .send(client);
    }

    /// Tells who unmounts the lane why it stays.
    pub(crate) fn stays(client: &OwnedFd, cause: Cause, line: String) {
        let by_others = cause.is_by_others();
        Answer { done: false, line, cause: Some(cause), by_others }.send(client);
    }
}

impl Answer {
    /// Why the lane stays. Those of former versions are known to be in use, by the kernel's word,
    /// or to be unmounted by another command, or nothing is known.
    fn cause(&self) -> Cause {
        self.cause.unwrap_or_else(|| match self.by_others {
            true if self.line == Errno::EBUSY.to_string() => Cause::InUse,
            true => Cause::Changing,
            false => Cause::Failed,
        })
    }

    fn send(&self, client: &OwnedFd) {
        if let Ok(bytes) = serde_json::to_vec(self) {
            // A client that has gone away needs no answer.
            let _ = scm::send(client, &bytes, &[]);
        }
    }
}

/// Makes this very program the service of a running pool; the line that says so.
///
/// # Errors
/// One line: no such pool, or it goes on with its former service.
pub fn upgrade(pool: &str) -> Result<String> {
    let program = fs::File::open("/proc/self/exe")
        .map_err(|error| Failure::because("polylane", "open its own program", error))?;
    let socket = connect(pool, None).map_err(|mute| mute.failure(pool))?;
    match ask(pool, &socket, UPGRADE, &[program.as_fd()])? {
        Some(Answer { done: true, line, .. }) => Ok(line),
        Some(Answer { done: false, line, .. }) => Err(Failure::failed(line)),
        None => Err(Mute::Silent.failure(pool)),
    }
}

/// Ends the lane of that name and supervisor, which waits until everything is durable. One that
/// ends already, or has ended, is not asked; nor is the next lane of its name.
///
/// # Errors
/// One line: it is in use, or not everything could be written back.
pub(crate) fn unmount(lane: &str, supervisor: u32, lazy: bool) -> std::result::Result<(), Stays> {
    let silent = |failure| Stays::new(Cause::Silent, failure);
    match connect_to(lane, supervisor).map_err(silent)? {
        Some(socket) => {
            let order = if lazy { UNMOUNT_LAZILY } else { UNMOUNT };
            match ask(lane, &socket, order, &[]).map_err(silent)? {
                Some(answer) if !answer.done => {
                    Err(Stays::new(answer.cause(), Failure::failed(answer.line)))
                }
                // Without an answer it has ended for another reason.
                _ => Ok(()),
            }
        }
        None => Ok(()),
    }
}

fn number_in(text: &[u8]) -> Option<u32> {
    str::from_utf8(text).ok()?.parse().ok()
}

/// The control socket of the lane of that name and supervisor; `None`: it has ended.
///
/// # Errors
/// One line: its supervisor does not answer, or a signal has stopped it.
pub(crate) fn connect_to(lane: &str, supervisor: u32) -> Result<Option<OwnedFd>> {
    match connect(lane, Some(supervisor)) {
        Ok(socket) => Ok(Some(socket)),
        Err(Mute::Ended) => Ok(None),
        Err(mute) => Err(mute.failure(lane)),
    }
}

fn connect(pool: &str, supervisor: Option<u32>) -> std::result::Result<OwnedFd, Mute> {
    let socket = names::runtime_dir().join(format!("{pool}.control"));
    awake::connect(&socket, supervisor, UPGRADE_TIME_MAX)
}

/// Its answer; `None` when it ended without one.
fn ask(
    pool: &str,
    socket: &OwnedFd,
    order: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<Option<Answer>> {
    scm::send(socket, order, fds).map_err(|error| Failure::because(pool, "ask it", error))?;
    if !wait_for(socket.as_fd(), UPGRADE_TIME_MAX) {
        return Err(Mute::Silent.failure(pool));
    }
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let Ok(got) = scm::receive(socket, &mut bytes) else { return Ok(None) };
    Ok(bytes.get(..got.count).and_then(|bytes| serde_json::from_slice(bytes).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A supervisor may be older or younger than the command.
    #[test]
    fn an_answer_of_another_version_is_understood() {
        let answer: Answer = serde_json::from_str(r#"{"done":false,"line":"x"}"#).expect("older");
        assert_eq!(answer.cause(), Cause::Failed);
        let answer = |text: &str| serde_json::from_str::<Answer>(text).expect("an answer").cause();
        let more = r#"{"done":false,"line":"x","by_others":true,"later":1}"#;
        assert_eq!(answer(more), Cause::Changing);
        let used = format!(r#"{{"done":false,"line":"{}","by_others":true}}"#, Errno::EBUSY);
        assert_eq!(answer(&used), Cause::InUse);
        let own = r#"{"done":false,"line":"x","by_others":true,"cause":"InUse"}"#;
        assert_eq!(answer(own), Cause::InUse);
        let later = r#"{"done":false,"line":"x","cause":"OfALaterVersion"}"#;
        assert_eq!(answer(later), Cause::Failed);
    }

    /// A lane may end, and the next one have its name, between the look into the mount table and
    /// the connection.
    #[test]
    fn the_next_lane_of_a_name_is_not_taken_for_the_former() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("web@1.control");
        let _control = Control::new(&path);
        let socket = scm::connect(&path).expect("connected");
        let own = std::process::id();
        assert!(awake::is_listener(&socket, own));
        assert!(!awake::is_listener(&socket, own + 1));
    }
}
