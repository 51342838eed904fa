//! The handshake with a service: what is said, and what comes with the answer.

use std::os::fd::{OwnedFd, RawFd};
use std::time::Duration;

use polylane_base::{Errno, Result};
use polylane_ipc::ClientChannel;
use polylane_ipc::handshake::{Hello, WELCOME_BYTES_MAX, Welcome};
use polylane_sys::notice::Notice;
use polylane_sys::scm;

use crate::kernel::config::{self, LaneNumber};
use crate::kernel::outcome::Detour;
use crate::kernel::real;
use crate::kernel::reserved;
use crate::session::owners;

/// How long a service may take to welcome us before the kernel path is taken.
const WELCOME_PATIENCE: Duration = Duration::from_secs(5);

/// What comes with the welcome.
pub(super) struct Welcomed {
    pub(super) channel: ClientChannel,
    pub(super) token: [u8; 16],
    pub(super) attributes: u32,
    pub(super) covered: Vec<Vec<u8>>,
    /// Tells of mounts at the lane, where this process has an attachment of its own.
    pub(super) notice: Option<Notice>,
}

/// Says who this process is, by its secret, and takes over what the service of a lane sends.
///
/// With `shown`, the lane's root as this process opened it and perhaps a file that it made there,
/// it has an attachment of its own.
pub(super) fn greet(
    lane: LaneNumber,
    key: u64,
    socket: RawFd,
    shown: &[RawFd],
) -> Result<Welcomed> {
    let fd = real::borrow(socket);
    let timeout = rustix::net::sockopt::Timeout::Recv;
    rustix::net::sockopt::set_socket_timeout(fd, timeout, Some(WELCOME_PATIENCE))
        .map_err(|error| Errno(error.raw_os_error()))?;
    let mount = match config::mount(lane).ok_or(Errno::ENOENT)? {
        b"" => b"/",
        mount => mount,
    };
    let shown: Vec<_> = shown.iter().copied().map(real::borrow).collect();
    scm::send(fd, &Hello { queue: None, key }.at(mount), &shown)?;
    let mut bytes = vec![0; WELCOME_BYTES_MAX];
    let received = scm::receive(fd, &mut bytes)?;
    let welcome = Welcome::from_bytes(&bytes[..received.count])?;
    if welcome.status != 0 {
        return Err(Errno(welcome.status));
    }
    let mut fds = received.fds.into_iter();
    let memfd = fds.next().ok_or(Errno::EPROTO)?;
    let groups = welcome.geometry.groups as usize;
    let mut doorbells = Vec::new();
    for fd in fds.by_ref().take(groups) {
        doorbells.push(high(fd)?);
    }
    // The pulse is mapped and closed.
    doorbells.extend(fds);
    let notice = match welcome.attached {
        true => Some(Notice::attach(doorbells.pop().ok_or(Errno::EPROTO)?)?),
        false => None,
    };
    let channel = ClientChannel::attach(memfd, doorbells, welcome.geometry, welcome.plan)?;
    let Welcome { token, attributes, covered, owners, .. } = welcome;
    owners::adopt(owners)?;
    Ok(Welcomed { channel, token, attributes, covered, notice })
}

/// Moves a descriptor to where the library keeps its own.
pub(super) fn high(fd: OwnedFd) -> Result<OwnedFd> {
    match reserved::adopt_owned(fd) {
        Ok(fd) => Ok(fd),
        Err(Detour::Errno(errno)) => Err(errno),
        Err(_) => Err(Errno::EMFILE),
    }
}
