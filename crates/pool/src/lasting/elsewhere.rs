//! Mounts of lanes in mount namespaces of other processes.
//!
//! A command that clears a dead lane may run in another mount namespace than the one that the lane
//! was mounted in (`unshare --mount`, `PrivateMounts=` of systemd), and other namespaces may have
//! copies of the mount. The command looks at what processes there see, and opens the root of a
//! mount through the root directory of such a process. To unmount it a thread enters the namespace,
//! which root of the host may.

use std::collections::HashSet;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use polylane_base::sync::thread;
use polylane_sys::ns;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::mount::{UnmountFlags, unmount};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::places;
use crate::mountinfo::{Seen, try_seen_by};
use crate::process;

/// A mount as a process sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Sighting {
    /// The process; `None`: this one.
    pub(super) by: Option<u32>,
    /// What it sees.
    pub(super) seen: Seen,
}

impl Sighting {
    /// Of this process.
    pub(super) fn own(seen: &Seen) -> Sighting {
        Sighting { by: None, seen: seen.clone() }
    }

    /// The root directory from which the mount is looked up; `None`: this process's own.
    ///
    /// # Errors
    /// `EAGAIN`: the process has ended; another one may see the mount.
    pub(super) fn root_dir(&self) -> Result<Option<OwnedFd>> {
        let open = |pid| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::openat(CWD, proc(pid, "root"), flags, Mode::empty())
                .map_err(|_| Errno::AGAIN)
        };
        self.by.map(open).transpose()
    }
}

/// Takes the mount with this root away in the mount namespace of a process, in use or not.
///
/// # Errors
/// `EPERM`: the caller may not enter the namespace; `EINVAL`: the mount is not there any more, or
/// is locked by the namespace.
pub(super) fn detach(by: u32, root: &OwnedFd) -> Result<()> {
    let open = |path| rustix::fs::openat(CWD, path, OFlags::CLOEXEC, Mode::empty());
    let namespace = open(proc(by, "ns/mnt")).map_err(|_| Errno::AGAIN)?;
    // The /proc of the namespace may not show this process: descriptors are found by this one.
    let files = open(PathBuf::from("/proc/self/fd"))?;
    let work = || enter_and_detach(&namespace, &files, root);
    match ns::in_a_thread(thread::Builder::new(), work) {
        Ok(done) => done.unwrap_or(Err(Errno::IO)),
        Err(_) => Err(Errno::AGAIN),
    }
}

/// In a thread of its own, which ends in that namespace.
fn enter_and_detach(namespace: &OwnedFd, files: &OwnedFd, root: &OwnedFd) -> Result<()> {
    ns::unshare_directories()?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))?;
    rustix::process::fchdir(files)?;
    unmount(root.as_raw_fd().to_string(), UnmountFlags::DETACH)
}

fn proc(pid: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

/// The mounts of lanes that processes see whose mounts are not those that this process sees; one
/// process of each view is asked.
pub(super) fn sightings() -> Vec<Sighting> {
    let mut views: HashSet<_> = places::view_of(&"self").into_iter().collect();
    let mut found = Vec::new();
    for pid in process::pids() {
        let Some(view) = places::view_of(&pid).filter(|view| !views.contains(view)) else {
            continue;
        };
        // A process that ends meanwhile speaks for no other one.
        let Some(all) = try_seen_by(&pid.to_string()) else { continue };
        views.insert(view);
        let lanes = all.into_iter().filter(Seen::is_lane);
        found.extend(lanes.map(|seen| Sighting { by: Some(pid), seen }));
    }
    found
}
