//! Namespaces of a pool that lasts: its containers join them (`docs/decisions/0154-…`).
//!
//! Each is kept by a mount of it on a file of its own, `NAME.ns/KIND` in the run-time directory, as
//! `ip netns` keeps networks: no process has to live for it. They are made when a process first
//! needs them, from a child that has them and ends at once, so a reboot takes nothing away.
//!
//! | a kill | leaves |
//! |---|---|
//! | while they are made | those that are mounted, which stay; the next command makes the others |
//! | while the pool is removed | those that are mounted still, which the next removal finds |
//!
//! # Locking
//!
//! Commands that make or remove them hold the lock of all mount tables.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use polylane_sys::ns::{self, Fork, Namespaces};
use rustix::mount::UnmountFlags;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};
use crate::process::Process;

/// `NSFS_MAGIC`: what a file has that is a namespace.
const NAMESPACES: u64 = 0x6e73_6673;

/// A kind of namespace that a pool may have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NsKind {
    /// System V IPC and message queues.
    Ipc,
    /// The host's name, which is the pool's.
    Uts,
    /// Network devices, with the loopback device alone.
    Net,
}

impl NsKind {
    /// All of them.
    pub const ALL: [NsKind; 3] = [NsKind::Ipc, NsKind::Uts, NsKind::Net];

    /// Its name, as in `/proc/PID/ns`.
    pub fn name(self) -> &'static str {
        match self {
            NsKind::Ipc => "ipc",
            NsKind::Uts => "uts",
            NsKind::Net => "net",
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<NsKind> {
        NsKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Where a pool's namespaces are kept.
fn dir_of(runtime: &Path, pool: &str) -> PathBuf {
    runtime.join(format!("{pool}.ns"))
}

fn is_kept(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type as u64 == NAMESPACES)
}

/// The pool's namespaces of these kinds, made if they are not there.
///
/// # Errors
/// One line: they cannot be made or kept.
pub(crate) fn make(runtime: &Path, pool: &str, kinds: &[NsKind]) -> Result<Vec<(NsKind, PathBuf)>> {
    let dir = dir_of(runtime, pool);
    let all: Vec<_> = kinds.iter().map(|&kind| (kind, dir.join(kind.name()))).collect();
    let missing: Vec<_> = all.iter().filter(|(_, path)| !is_kept(path)).collect();
    if missing.is_empty() {
        return Ok(all);
    }
    let failed = |error| Failure::path(&dir, "keep the pool's namespaces there", error);
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    made.map_err(failed)?;
    let with_network = missing.iter().any(|(kind, _)| *kind == NsKind::Net);
    let holder = Holder::start(pool, with_network).map_err(|error| {
        Failure::because(format!("pool '{pool}'"), "make its namespaces", error)
    })?;
    for (kind, path) in missing {
        let kept = File::options().create(true).truncate(false).write(true).open(path);
        kept.map_err(|error| Failure::path(path, "make it", error))?;
        let own = format!("/proc/{}/ns/{}", holder.process.pid(), kind.name());
        rustix::mount::mount_bind(own, path)
            .map_err(|error| Failure::path(path, "keep a namespace there", error))?;
    }
    Ok(all)
}

/// Removes the pool's namespaces; processes that are in them keep them.
///
/// # Errors
/// One line: one cannot be taken away.
pub(crate) fn remove(runtime: &Path, pool: &str) -> Result<()> {
    let dir = dir_of(runtime, pool);
    for kind in NsKind::ALL {
        let path = dir.join(kind.name());
        let failed = |error| Failure::path(&path, "remove the pool's namespace", error);
        while is_kept(&path) {
            let gone = rustix::mount::unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
            gone.map_err(|error| failed(error.into()))?;
        }
        not_found_is_well(fs::remove_file(&path)).map_err(failed)?;
    }
    not_found_is_well(fs::remove_dir(&dir))
        .map_err(|error| Failure::path(&dir, "remove the pool's namespaces", error))
}

fn not_found_is_well(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// How long a child may take to end once its pipe is closed.
const ENDED_TIME_MAX: Duration = Duration::from_secs(5);

/// A child that has new namespaces; ends with this: it reads what is closed first.
struct Holder {
    _end: OwnedFd,
    process: Process,
}

impl Holder {
    fn start(pool: &str, with_network: bool) -> io::Result<Holder> {
        let (told, tell) = pipe_with(PipeFlags::CLOEXEC)?;
        let (waits, end) = pipe_with(PipeFlags::CLOEXEC)?;
        match ns::fork(Namespaces::default())? {
            Fork::Child => {
                drop((told, end));
                let ready = be_ready(pool, with_network);
                let code = ready.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EIO));
                // It waits for the other end, which may have gone.
                let _ = rustix::io::write(&tell, &code.to_ne_bytes());
                let _ = rustix::io::read(&waits, &mut [0u8]);
                ns::exit_now(0);
            }
            Fork::Parent(child) => {
                drop((tell, waits));
                let process = Process::ends_within(child, ENDED_TIME_MAX);
                let holder = Holder { _end: end, process };
                let mut code = [0; 4];
                match rustix::io::read(&told, &mut code)? {
                    4 if code == [0; 4] => Ok(holder),
                    4 => Err(io::Error::from_raw_os_error(i32::from_ne_bytes(code))),
                    _ => Err(io::Error::from_raw_os_error(libc::ECHILD)),
                }
            }
        }
    }
}

/// Has namespaces, which are as a container's runtime makes them.
fn be_ready(pool: &str, with_network: bool) -> io::Result<()> {
    ns::unshare_private(false, with_network)?;
    rustix::system::sethostname(pool.as_bytes())?;
    if with_network { loopback_up() } else { Ok(()) }
}

/// Has the loopback device of this network take packets: RTM_NEWLINK of rtnetlink(7).
fn loopback_up() -> io::Result<()> {
    const NEW_LINK: u16 = 16;
    const REQUEST_AND_ACK: u16 = 1 | 4;
    const LOOPBACK: i32 = 1;
    const UP: u32 = 1;
    let mut message = Vec::new();
    message.extend(32u32.to_ne_bytes());
    message.extend(NEW_LINK.to_ne_bytes());
    message.extend(REQUEST_AND_ACK.to_ne_bytes());
    // Number and sender, family and type.
    message.extend([0; 12]);
    message.extend(LOOPBACK.to_ne_bytes());
    message.extend(UP.to_ne_bytes());
    message.extend(UP.to_ne_bytes());
    // NETLINK_ROUTE is 0, the default.
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    rustix::net::send(&socket, &message, SendFlags::empty())?;
    // The answer's header, then an error number that is negative, or 0.
    let mut answer = [0; 64];
    let (count, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
    match answer[..count].get(16..20).and_then(|code| code.try_into().ok()).map(i32::from_ne_bytes)
    {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::Error::from_raw_os_error(libc::EPROTO)),
    }
}
