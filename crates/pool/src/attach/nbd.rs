//! The `nbd` front end's kernel side, without a socket of the user's: the kernel's NBD client, on
//! connections to the engine.
//!
//! The engine listens at a socket beside the attachment's record. The command that makes the device
//! connects there and hands the connections to the kernel. They end with an engine; the kernel
//! tells of each that is lost, and the keeper has it take another in its place. Requests that were
//! on one are sent again [`REQUEST_TIME_MAX_S`] after they were sent.

use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polylane_base::Errno;
use polylane_base::sync::thread;
use polylane_front::nbd::client::{self, Connection};
use polylane_sys::nbd::{Client, Index, Setup};
use polylane_sys::ns::{self, Child, Fork, Namespaces};

use super::device;
use super::record::Record;
use crate::failure::{Failure, Result, say};

/// The kernel's client, in messages.
const CLIENT: &str = "NBD client of the kernel";

/// How long a request may take until the kernel sends it again, on another connection. One that
/// takes longer with a good reason costs a connection, which is replaced.
const REQUEST_TIME_MAX_S: u64 = 30;

/// How long requests wait for an engine, and without a keeper in vain.
const DEAD_TIME_MAX_S: u64 = 60;

const BLOCK_BYTES: u64 = 512;

/// Devices that are looked at for a free one.
const DEVICES_MAX: Index = 256;

/// How long the kernel may take to end a device.
const END_TIME_MAX: Duration = Duration::from_secs(30);

/// A line to the kernel's client.
pub(super) fn open() -> Result<Client> {
    Client::open().map_err(|error| match error {
        Errno::ENOENT => Failure::failed(format!(
            "{CLIENT}: is not there (modprobe nbd; --socket PATH serves other clients)"
        )),
        error => Failure::because(CLIENT, "reach it", error),
    })
}

/// What others see as a device's purpose.
fn identifier(id: &str) -> String {
    format!("polylane-{id}")
}

/// Makes a device of `count` connections to the engine at `socket`. `record` is told its path
/// before that.
pub(super) fn engage(
    client: &Client,
    id: &str,
    socket: &Path,
    count: usize,
    mut record: impl FnMut(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let connect = |_| connect(socket);
    let connections: Vec<Connection> = (0..count).map(connect).collect::<Result<_>>()?;
    let sockets: Vec<BorrowedFd<'_>> = connections.iter().map(|one| one.stream.as_fd()).collect();
    let told = connections.first().ok_or_else(|| Failure::failed("engine: no connection"))?;
    let identifier = identifier(id);
    for index in (0..DEVICES_MAX).filter(|index| !is_bound(&path_of(*index))) {
        let path = path_of(index);
        record(&path)?;
        let setup = Setup {
            index,
            size_bytes: told.size_bytes,
            block_bytes: BLOCK_BYTES,
            flags: told.flags,
            timeout_s: REQUEST_TIME_MAX_S,
            dead_conn_timeout_s: DEAD_TIME_MAX_S,
            identifier: &identifier,
        };
        match client.connect(&setup, &sockets) {
            Ok(()) if is_ours(&path, id) => return Ok(path),
            Ok(()) => {
                let _ = client.disconnect(index);
                return Err(Failure::failed(format!("{CLIENT}: is older than Linux 5.14")));
            }
            Err(Errno::EBUSY) => {}
            Err(error) => return Err(Failure::path(&path, "put the volume under it", error)),
        }
    }
    Err(Failure::because(CLIENT, "get a device", Errno::EBUSY))
}

fn connect(socket: &Path) -> Result<Connection> {
    client::connect(socket).map_err(|error| Failure::because("engine", "connect to it", error))
}

/// Gives the device of an attachment a connection for each that it has lost: by a process that may
/// wait for the next engine, which this one starts.
pub(super) fn mend(client: &Client, record: &Record, socket: &Path) -> Result<Option<Child>> {
    let own = record.device.as_deref().and_then(index_of);
    let lost = std::iter::from_fn(|| client.lost()).filter(|lost| Some(*lost) == own).count();
    let Some(index) = own.filter(|_| lost > 0) else { return Ok(None) };
    let failed = |error| Failure::because("attachment", "connect its device again", error);
    match ns::fork(Namespaces::default()).map_err(failed)? {
        Fork::Parent(helper) => Ok(Some(helper)),
        Fork::Child => {
            let replaced = (0..lost).try_for_each(|_| {
                let connection = connect(socket)?;
                client
                    .replace(index, &identifier(&record.id), connection.stream.as_fd())
                    .map_err(|error| Failure::because(CLIENT, "connect again", error))
            });
            replaced.err().into_iter().for_each(say);
            ns::exit_now(0)
        }
    }
}

/// Whether the device of an attachment is there.
pub(super) fn is_engaged(record: &Record) -> bool {
    record.device.as_deref().is_some_and(|path| is_ours(path, &record.id))
}

/// Takes the device of an attachment away, after what it holds was written.
///
/// # Errors
/// It is mounted or open exclusively.
pub(super) fn disengage(record: &Record) -> Result<()> {
    let Some(path) = &record.device else { return Ok(()) };
    let Some(index) = index_of(path).filter(|_| is_ours(path, &record.id)) else { return Ok(()) };
    let opened = device::exclusively(path)?;
    // Of an engine that is dead for good nothing can be had any more; whoever lost data was told.
    let _ = rustix::fs::fsync(&opened);
    drop(opened);
    open()?.disconnect(index).map_err(|error| Failure::path(path, "take the volume off", error))?;
    let start = Instant::now();
    while is_ours(path, &record.id) {
        if start.elapsed() > END_TIME_MAX {
            return Err(Failure::failed(format!(
                "{}: is open in a program: it goes when that ends",
                path.display()
            )));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The device takes the volume's new size over.
pub(super) fn grown(record: &Record) -> Result<()> {
    let Some(path) = &record.device else { return Ok(()) };
    let Some(index) = index_of(path).filter(|_| is_ours(path, &record.id)) else { return Ok(()) };
    let failed = |error| Failure::path(path, "give it the new size", error);
    let size = fs::metadata(&record.volume)
        .map_err(|error| Failure::path(&record.volume, "look at it", error))?
        .len();
    open()?.resize(index, &identifier(&record.id), size / BLOCK_BYTES * BLOCK_BYTES).map_err(failed)
}

fn path_of(index: Index) -> PathBuf {
    PathBuf::from(format!("/dev/nbd{index}"))
}

fn index_of(path: &Path) -> Option<Index> {
    path.to_str()?.strip_prefix("/dev/nbd")?.parse().ok()
}

/// A file of a device in sysfs.
fn told(path: &Path, file: &str) -> Option<String> {
    let name = path.file_name()?;
    fs::read_to_string(Path::new("/sys/block").join(name).join(file)).ok()
}

/// Whether a device is that of an attachment. Its number may be somebody else's after a reboot.
fn is_ours(path: &Path, id: &str) -> bool {
    told(path, "backend").is_some_and(|found| found.trim_end() == identifier(id))
}

/// Whether a device has connections.
fn is_bound(path: &Path) -> bool {
    told(path, "pid").is_some()
}
