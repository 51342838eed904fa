//! The table of front ends: what each needs in each of the three processes.
//!
//! | step | process | `nbd`, `vhost-user` | `loop` |
//! |---|---|---|---|
//! | [`Door::open`] | the command | listens at the socket | mounts a file through FUSE |
//! | [`serve`] | the engine | answers clients | answers the kernel |
//! | [`engage`] | the command | nothing: the socket is the device | sets a loop device up |
//! | [`grown`] | the command that resizes | nothing | tells the loop device |
//! | [`disengage`] | the command that detaches | nothing | frees the loop device |
//! | [`Door::remove`] | the keeper, at the end | removes the socket | nothing |
//!
//! One more front end is one more arm in each of these functions.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use polylane_base::sync::{Arc, thread};
use polylane_block::BlockDevice;
use polylane_block::file::Files;
use polylane_front::export::Serving;
use polylane_front::export::file::{self, FileOptions};
use polylane_front::fuse::Params;
use polylane_front::{nbd, vhost_user};
use polylane_sys::backing;
use rustix::fs::Mode;

use super::engine::EngineSpec;
use super::record::Record;
use super::{AttachOptions, Via};
use crate::attach::loopdev::{self, FileMount};
use crate::failure::{Failure, Result};
use crate::volume::cache::CacheSpec;

/// Most threads of an engine.
const THREADS_MAX: usize = 4;

/// What outlives an engine: the keeper holds it and hands it to one engine after the other.
#[derive(Debug)]
pub(super) struct Door {
    /// A listening socket, or a FUSE device.
    pub(super) fd: OwnedFd,
    /// The socket's path.
    pub(super) socket: Option<PathBuf>,
    /// What FUSE_INIT agreed on, of a mount.
    pub(super) fuse: Option<Params>,
    /// The file that the kernel reads and writes without the engine.
    pub(super) backing: Option<u32>,
    /// The mount itself, which the command alone holds, and not for long.
    pub(super) mount: Option<OwnedFd>,
}

impl Door {
    /// Opens the door that `via` needs to a volume on these files.
    pub(super) fn open(
        via: Via,
        options: &AttachOptions,
        files: &[Files],
        cache: &CacheSpec,
    ) -> Result<Door> {
        match via {
            Via::Nbd | Via::VhostUser => Door::listen(via, options),
            Via::Loop => {
                let mounted = loopdev::mount()?;
                let backing = match options.record {
                    None => loopdev::pass_through(&mounted, files, cache),
                    // What is to be written down has to come by.
                    Some(_) => None,
                };
                let FileMount { fuse, mount, params } = mounted;
                let (fd, fuse, mount) = (fuse, Some(params), Some(mount));
                Ok(Door { fd, socket: None, fuse, backing, mount })
            }
        }
    }

    /// A UNIX stream socket for its owner alone.
    fn listen(via: Via, options: &AttachOptions) -> Result<Door> {
        let missing = || Failure::usage(format!("--via {via}: needs --socket PATH to listen at"));
        let path = options.socket.as_deref().ok_or_else(missing)?;
        let path = std::path::absolute(path)
            .map_err(|error| Failure::path(path, "listen there", error))?;
        let failed = |error| Failure::path(&path, "listen there", error);
        let old = rustix::process::umask(Mode::from_raw_mode(0o177));
        let mut bound = UnixListener::bind(&path);
        if is_stale(&path, &bound) {
            bound = fs::remove_file(&path).and_then(|()| UnixListener::bind(&path));
        }
        rustix::process::umask(old);
        let fd = bound.map_err(failed)?.into();
        Ok(Door { fd, socket: Some(path), fuse: None, backing: None, mount: None })
    }

    /// Removes what has a name, and lets go of the volume.
    pub(super) fn remove(&self) {
        if let Some(id) = self.backing {
            let _ = backing::forget(&self.fd, id);
        }
        if let Some(socket) = &self.socket {
            let _ = fs::remove_file(socket);
        }
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether a socket lies at `path` at which nobody listens any more.
fn is_stale(path: &Path, bound: &io::Result<UnixListener>) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let in_use = matches!(bound, Err(error) if error.kind() == io::ErrorKind::AddrInUse);
    let socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    in_use && socket && UnixStream::connect(path).is_err_and(refused)
}

/// In the engine: begins to serve.
pub(super) fn serve(
    spec: &EngineSpec,
    door: OwnedFd,
    device: Arc<dyn BlockDevice>,
) -> Result<Box<dyn Serving>> {
    let failed = |error: io::Error| Failure::because("engine", "serve the volume", error);
    match spec.via {
        Via::Nbd => {
            let export = nbd::Export { name: spec.name.clone(), device };
            nbd::serve(door, export).map(boxed).map_err(failed)
        }
        Via::VhostUser => {
            let queues = threads() as u16;
            let export = vhost_user::Export { serial: spec.name.clone(), device, queues };
            vhost_user::serve(door, export).map(boxed).map_err(failed)
        }
        Via::Loop => {
            let params = spec.fuse.ok_or_else(|| Failure::failed("engine: no mount was made"))?;
            let options = FileOptions {
                name: loopdev::file_name(&spec.id),
                backing: spec.backing,
                params,
                again: spec.incarnation > 0,
                threads: threads(),
            };
            file::serve(door, device, options).map(boxed).map_err(failed)
        }
    }
}

/// Threads of an engine: enough to keep a device busy, and no more than keep each other from the
/// one queue of requests.
fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from).clamp(1, THREADS_MAX)
}

fn boxed(serving: impl Serving + 'static) -> Box<dyn Serving> {
    Box::new(serving)
}

/// In the command, while the engine serves: makes the device. `record` is told its path before
/// there is one.
pub(super) fn engage(
    via: Via,
    id: &str,
    door: &Door,
    mut record: impl FnMut(&Path) -> Result<()>,
) -> Result<PathBuf> {
    match via {
        Via::Loop => {
            let mount = door.mount.as_ref();
            let mount = mount.ok_or_else(|| Failure::failed("attachment: no mount was made"))?;
            loopdev::engage(mount, id, record)
        }
        Via::Nbd | Via::VhostUser => {
            let path = door.socket.clone().unwrap_or_default();
            record(&path)?;
            Ok(path)
        }
    }
}

/// In the command that detaches, before the engine ends: takes the device away.
///
/// # Errors
/// It is in use.
pub(super) fn disengage(record: &Record) -> Result<()> {
    match record.via {
        Via::Nbd | Via::VhostUser => Ok(()),
        Via::Loop => loopdev::disengage(record),
    }
}

/// In the command that resizes, once the engine knows: tells the device.
pub(super) fn grown(record: &Record) -> Result<()> {
    match record.via {
        Via::Nbd | Via::VhostUser => Ok(()),
        Via::Loop => loopdev::grown(record),
    }
}
