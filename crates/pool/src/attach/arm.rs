//! The table of front ends: what each needs in each of the three processes.
//!
//! | step | process | what |
//! |---|---|---|
//! | [`Door::open`] | the command | listens at a socket; mounts a file; makes a ublk device |
//! | [`guard`] | the keeper | ublk: starts who stops the device when the keeper is killed |
//! | [`open_own`] | the engine to be | ublk: opens the device |
//! | [`serve`] | the engine | answers clients, or the kernel |
//! | [`engage`] | the command | the socket is the device, or there is one now |
//! | [`mend`] | the keeper | nbd of the kernel: connects again |
//! | [`begin_recovery`], [`end_recovery`] | the keeper | ublk: tells the driver of a new engine |
//! | [`may_grow`], [`grown`] | the command that resizes | tells the device |
//! | [`disengage`] | the command that detaches | takes the device away |
//! | [`Door::remove`] | the keeper, at the end | removes the socket, the ublk device |
//! | [`forget`] | who clears up after a dead keeper | removes the ublk device |
//!
//! One more front end is one more arm in each of these functions.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use polylane_base::sync::{Arc, thread};
use polylane_block::BlockDevice;
use polylane_block::file::Files;
use polylane_front::export::Serving;
use polylane_front::export::file::{self, FileOptions};
use polylane_front::fuse::Params;
use polylane_front::{nbd as nbd_server, ublk as ublk_server, vhost_user};
use polylane_sys::ns::Child;
use polylane_sys::{backing, nbd as nbd_client};
use polylane_vfs::handover::{InFlight, Store};
use polylane_volume::cache::CacheSpec;
use rustix::fs::Mode;

use super::loopdev::{self, FileMount};
use super::message::Shape;
use super::record::{self, Record};
use super::spec::EngineSpec;
use super::{AttachOptions, Via, nbd, ublk};
use crate::failure::{Failure, Result};
use crate::share::Policy;

/// Most threads of an engine.
const THREADS_MAX: usize = 4;

/// What outlives an engine: the keeper holds it and hands it to one engine after the other.
#[derive(Debug)]
pub(super) struct Door {
    /// A listening socket, a FUSE device, the line to the ublk driver.
    pub(super) fd: OwnedFd,
    /// The socket's path.
    pub(super) socket: Option<PathBuf>,
    /// What FUSE_INIT agreed on, of a mount.
    pub(super) fuse: Option<Params>,
    /// Where one engine tells the next what it has read, of a mount whose kernel does not send it
    /// again.
    pub(super) left: Option<OwnedFd>,
    /// The file that the kernel reads and writes without the engine.
    pub(super) backing: Option<u32>,
    /// The line to the kernel's NBD client.
    pub(super) links: Option<nbd_client::Client>,
    /// A device of the ublk driver's.
    pub(super) ublk: Option<ublk::Device>,
    /// The mount itself, which the command alone holds, and not for long.
    pub(super) mount: Option<OwnedFd>,
}

/// Where an attachment has its files, and under which name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) dir: &'a Path,
    pub(super) id: &'a str,
}

impl Door {
    /// One of nothing but a descriptor.
    fn of(fd: OwnedFd) -> Door {
        let (socket, fuse, left, backing) = (None, None, None, None);
        let (links, ublk, mount) = (None, None, None);
        Door { fd, socket, fuse, left, backing, links, ublk, mount }
    }

    /// Opens the door that `via` needs to a volume on these files.
    pub(super) fn open(
        via: Via,
        options: &AttachOptions,
        place: Place<'_>,
        files: &[Files],
        cache: &CacheSpec,
    ) -> Result<Door> {
        match via {
            Via::Nbd | Via::VhostUser => {
                let missing =
                    || Failure::usage(format!("--via {via}: needs --socket PATH to listen at"));
                Door::listen(options.socket.as_deref().ok_or_else(missing)?)
            }
            Via::NbdDevice => {
                let links = Some(nbd::open()?);
                let listening = Door::listen(&record::nbd_of(place.dir, place.id))?;
                Ok(Door { links, ..listening })
            }
            Via::Ublk => {
                let control = ublk::open()?;
                let ublk = Some(ublk::make(&control, place.id, threads() as u16)?);
                Ok(Door { ublk, ..Door::of(control) })
            }
            Via::Loop => {
                let mounted = loopdev::mount()?;
                let backing = match options.passthrough {
                    true => Some(pass_through(options, &mounted, files, cache)?),
                    false => None,
                };
                let FileMount { fuse, mount, params } = mounted;
                let left = match params.resend() {
                    true => None,
                    false => Some(Store::create().map_err(|errno| {
                        Failure::because("attachment", "make room for its engines' notes", errno)
                    })?),
                };
                let (fd, fuse, mount) = (fuse, Some(params), Some(mount));
                Ok(Door { fuse, left, backing, mount, ..Door::of(fd) })
            }
        }
    }

    /// A UNIX stream socket for its owner alone.
    fn listen(path: &Path) -> Result<Door> {
        let path = std::path::absolute(path)
            .map_err(|error| Failure::path(path, "listen there", error))?;
        let failed = |error: io::Error| match (error.kind(), fs::symlink_metadata(&path)) {
            (io::ErrorKind::AddrInUse, Ok(found)) => occupied(&path, found.file_type()),
            _ => Failure::path(&path, "listen there", error),
        };
        let old = rustix::process::umask(Mode::from_raw_mode(0o177));
        let mut bound = UnixListener::bind(&path);
        if is_stale(&path, &bound) {
            bound = fs::remove_file(&path).and_then(|()| UnixListener::bind(&path));
        }
        rustix::process::umask(old);
        let fd = bound.map_err(failed)?.into();
        Ok(Door { socket: Some(path), ..Door::of(fd) })
    }

    /// Removes what has a name, and lets go of the volume.
    pub(super) fn remove(&self) {
        if let Some(id) = self.backing {
            let _ = backing::forget(&self.fd, id);
        }
        if let Some(socket) = &self.socket {
            let _ = fs::remove_file(socket);
        }
        if let Some(made) = self.ublk {
            ublk::remove(&self.fd, made);
        }
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Has the kernel read and write the volume's file itself, as was asked for.
fn pass_through(
    options: &AttachOptions,
    mounted: &FileMount,
    files: &[Files],
    cache: &CacheSpec,
) -> Result<u32> {
    let comes_by = options.record.is_some() || options.qos != Policy::None;
    let backing = match comes_by {
        true => Err("its requests are to be written down or shared, and so have to come by".into()),
        false => loopdev::pass_through(mounted, files, cache),
    };
    backing.map_err(|why| {
        let volume = options.volume.display();
        Failure::failed(format!("{volume}: cannot be passed through: {why}"))
    })
}

/// Something lies where a socket was to be made.
fn occupied(path: &Path, found: fs::FileType) -> Failure {
    let (what, advice) = match () {
        () if found.is_socket() => ("somebody listens there", "name another path"),
        () if found.is_dir() => ("is a directory", "name a path in it"),
        () if found.is_file() => ("is a file", "name another path, or remove it"),
        () => ("something lies there", "name another path, or remove it"),
    };
    Failure::failed(format!("--socket {}: {what}: {advice}", path.display()))
}

/// Whether a socket lies at `path` at which nobody listens any more.
fn is_stale(path: &Path, bound: &io::Result<UnixListener>) -> bool {
    let in_use = matches!(bound, Err(error) if error.kind() == io::ErrorKind::AddrInUse);
    let socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    in_use && socket && UnixStream::connect(path).is_err_and(refused)
}

/// In the engine: begins to serve.
pub(super) fn serve(
    spec: &EngineSpec,
    (door, left): (OwnedFd, Option<OwnedFd>),
    device: Arc<dyn BlockDevice>,
) -> Result<Box<dyn Serving>> {
    let failed = |error: io::Error| Failure::because("engine", "serve the volume", error);
    match spec.via {
        Via::Nbd | Via::NbdDevice => {
            let ends = spec.via == Via::NbdDevice;
            let export = nbd_server::Export { name: spec.name.clone(), device, ends };
            nbd_server::serve(door, export).map(boxed).map_err(failed)
        }
        Via::Ublk => {
            let made = spec.ublk.ok_or_else(|| Failure::failed("engine: no device was made"))?;
            ublk_server::serve(door, &device, made.geometry()).map(boxed).map_err(failed)
        }
        Via::VhostUser => {
            let queues = threads() as u16;
            let export = vhost_user::Export { serial: spec.name.clone(), device, queues };
            vhost_user::serve(door, export).map(boxed).map_err(failed)
        }
        Via::Loop => {
            let params = spec.fuse.ok_or_else(|| Failure::failed("engine: no mount was made"))?;
            let in_flight = left.map(InFlight::attach).transpose();
            let in_flight = in_flight.map_err(|errno| {
                Failure::because("engine", "read its predecessor's notes", errno)
            })?;
            let options = FileOptions {
                name: loopdev::file_name(&spec.id),
                backing: spec.backing,
                params,
                again: spec.incarnation > 0,
                in_flight: in_flight.map(Arc::new),
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
    shape: Shape,
    mut record: impl FnMut(&Path) -> Result<()>,
) -> Result<PathBuf> {
    match via {
        Via::NbdDevice => {
            let missing = || Failure::failed("attachment: no line to the kernel");
            let client = door.links.as_ref().ok_or_else(missing)?;
            let socket = door.socket.as_deref().unwrap_or(Path::new(""));
            nbd::engage(client, id, socket, threads(), record)
        }
        Via::Ublk => {
            let made = door.ublk;
            let made = made.ok_or_else(|| Failure::failed("attachment: no device was made"))?;
            ublk::engage(door, made, shape, record)
        }
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
        Via::NbdDevice => nbd::disengage(record),
        Via::Ublk => ublk::disengage(record),
        Via::Loop => loopdev::disengage(record),
    }
}

/// In the command that clears up after a keeper that is dead: removes what it would have.
pub(super) fn forget(record: &Record) {
    if record.via == Via::Ublk {
        ublk::forget(record);
    }
}

/// In the keeper, once an engine serves: has somebody see to the device when the keeper is killed.
pub(super) fn guard(door: &Door, id: &str) -> Result<()> {
    door.ublk.map_or(Ok(()), |made| ublk::guard(door, made, id))
}

/// In an engine to be: what only it may open.
pub(super) fn open_own(door: &Door) -> rustix::io::Result<Option<OwnedFd>> {
    door.ublk.map(ublk::Device::open).transpose()
}

/// In the keeper, when the command is gone that makes the device: whether there may be one, which
/// has to be taken away. The end of that shows at the door.
pub(super) fn is_engaged(record: &Record) -> bool {
    match record.via {
        Via::Nbd | Via::VhostUser => false,
        Via::NbdDevice => nbd::is_engaged(record),
        Via::Loop | Via::Ublk => record.device.is_some(),
    }
}

/// In the keeper: gives the device a connection for each that it has lost; the process that does
/// so.
pub(super) fn mend(door: &Door, record: &Record) -> Result<Option<Child>> {
    match (&door.links, &door.socket) {
        (Some(client), Some(socket)) => nbd::mend(client, record, socket),
        _ => Ok(None),
    }
}

/// In the keeper, when an engine has died.
pub(super) fn begin_recovery(door: &Door) -> Result<()> {
    door.ublk.map_or(Ok(()), |made| ublk::begin_recovery(door, made))
}

/// In the keeper, when the engine after that serves.
pub(super) fn end_recovery(door: &Door, shape: Shape, engine: impl AsFd) -> Result<()> {
    door.ublk.map_or(Ok(()), |made| ublk::end_recovery(door, made, shape.pid, engine))
}

/// In the command that resizes, before it does: whether the device could follow.
///
/// # Errors
/// It could not.
pub(super) fn may_grow(record: &Record) -> Result<()> {
    match record.via {
        Via::Ublk => ublk::may_grow(record),
        _ => Ok(()),
    }
}

/// In the command that resizes, once the engine knows: tells the device.
pub(super) fn grown(record: &Record) -> Result<()> {
    match record.via {
        Via::Nbd | Via::VhostUser => Ok(()),
        Via::NbdDevice => nbd::grown(record),
        Via::Ublk => ublk::grown(record),
        Via::Loop => loopdev::grown(record),
    }
}
