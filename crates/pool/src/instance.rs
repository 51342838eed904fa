//! Further lanes of a service, each over the lowers of its first one: what commands and supervisors
//! say of them to each other. How a lane joins and leaves: `docs/design/lasting.md`.
//!
//! ```text
//!  command                      supervisor                         service
//!    mounts, opens the volume
//!    Joining, descriptors ──────►  ── ToService::Instance ─────────►  a thread, a union, two doors
//!    ◄── Joined::Serves            ◄─────────── FromService::Ready
//!    shows the mount
//!
//!    takes the mount away
//!    its number ────────────────►  ── ToService::Shutdown ─────────►  all of it durable
//!    ◄── Left::Ended               ◄───────── FromService::Flushed
//! ```

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use polylane_sys::scm;
use polylane_volume::path_text;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::awake::Mute;
use crate::copying::Target;
use crate::failure::Result;
use crate::share::Policy;
use crate::spec::{self, PoolSpec};
use crate::upgrade::{self, JOIN, LEAVE};
use crate::wait::wait_for;

/// How long a lane may take to serve, or to write everything back.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(360);

/// Largest answer in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// A lane that is to join a service. With it come the FUSE device, the listening socket, and three
/// descriptors for each file of its volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Joining {
    /// What no other lane of the service has had: its device's number may be the next one's before
    /// it is told to leave.
    pub(crate) id: u32,
    /// What is to be served, but for the lowers, which the service has.
    pub(crate) spec: PoolSpec,
    /// The lowers that it is to be over, by the host's numbers for them.
    pub(crate) lowers: Vec<Target>,
    /// How its volume shares its device.
    pub(crate) policy: Option<Policy>,
    /// The lane's weight there, if it has one of its own.
    pub(crate) weight: Option<u32>,
    /// Where its run directory is mounted, which goes with it.
    #[serde(with = "path_text::one")]
    pub(crate) run_dir: PathBuf,
}

/// What became of a lane that was to join.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Joined {
    /// It is served.
    Serves,
    /// The service ends; the next one is to be asked.
    Ends,
    /// The service is over other lowers.
    Unlike,
    /// It cannot be served; one line says why.
    Failed(String),
}

/// What became of a lane that was to leave.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Left {
    /// All of it is durable. `is_last`: the service ends now as well.
    Ended {
        /// There is no other lane.
        is_last: bool,
    },
    /// It has ended, and not all of it could be written back.
    Lost(String),
}

/// Asks the supervisor of a lane's service to serve one more.
///
/// # Errors
/// One line: it does not answer.
pub(crate) fn join(
    (lane, supervisor): (&str, u32),
    joining: &Joining,
    fds: &[BorrowedFd<'_>],
) -> Result<Joined> {
    let asked = spec::seal(joining)?;
    let all: Vec<_> = std::iter::once(asked.as_fd()).chain(fds.iter().copied()).collect();
    // One that ends does not answer any more.
    Ok(ask((lane, supervisor), JOIN, &all)?.unwrap_or(Joined::Ends))
}

/// Waits until a lane whose mount is gone has ended in its service.
///
/// # Errors
/// One line: it does not answer.
pub(crate) fn leave((lane, supervisor): (&str, u32), id: u32) -> Result<Left> {
    let order = [LEAVE, id.to_string().as_bytes()].concat();
    Ok(ask((lane, supervisor), &order, &[])?.unwrap_or(Left::Ended { is_last: true }))
}

/// Its answer; `None` when it has ended.
fn ask<T: DeserializeOwned>(
    (lane, supervisor): (&str, u32),
    order: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<Option<T>> {
    let Some(socket) = upgrade::connect_to(lane, supervisor)? else { return Ok(None) };
    if scm::send(&socket, order, fds).is_err() {
        return Ok(None);
    }
    if !wait_for(socket.as_fd(), ANSWER_TIME_MAX) {
        return Err(Mute::Silent.failure(lane));
    }
    let mut bytes = vec![0; ANSWER_BYTES_MAX];
    let Ok(got) = scm::receive(&socket, &mut bytes) else { return Ok(None) };
    Ok(bytes.get(..got.count).and_then(|bytes| serde_json::from_slice(bytes).ok()))
}
