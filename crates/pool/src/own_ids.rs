//! The users and groups of a service that root runs for directories of the host: a user namespace
//! of its own, and id-mapped mounts of the directories, the only files whose owners it knows.
//!
//! The kernel lets a capability count for a file only where the file's owner and group have numbers
//! in the user namespace that the capability is of. The namespace has the numbers 0 to 2^31 - 2:
//! they are the host's 2^31 to 2^32 - 2, which no system gives out. The mount of a served directory
//! shows the owner N of a file as the host's 2^31 + N, which the service sees as N. On every other
//! mount the owner N has no number in the namespace: there the service is another user without
//! capabilities.
//!
//! The users of clients have no numbers in the namespace either. FUSE requests name them as the
//! host does; who is at the other end of a socket the witness tells.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use polylane_sys::mount;
use polylane_sys::ns::{self, Fork, Namespaces};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountAttrFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::mount_table::has_mounts_below;
use crate::mounts;
use crate::process::Process;

/// First of the host's numbers that the namespace has: those above are negative to old programs,
/// and no system gives them to users.
const HOST_FIRST: u32 = 1 << 31;
/// How many there are: up to 2^32 - 2, since 2^32 - 1 is no number of a user.
const COUNT: u32 = (1 << 31) - 1;

/// A user namespace that a process can enter.
#[derive(Debug)]
pub(crate) struct OwnIds(OwnedFd);

impl OwnIds {
    /// Makes the calling process, which must have one thread, one of the namespace, with every
    /// capability there. It has no number there before it takes one.
    ///
    /// # Errors
    /// What setns(2) says.
    pub(crate) fn enter(&self) -> rustix::io::Result<()> {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::User))
    }
}

/// The number in such a namespace of a user of the host that has one there.
pub(crate) fn in_namespace(host_user: u32) -> u32 {
    host_user.wrapping_sub(HOST_FIRST)
}

/// Puts in place of the descriptors of directories those of detached mounts of the same, where no
/// device can be opened, id-mapped into the namespace that comes back. Where another file system is
/// mounted below one of them, the directories stay what they are: nothing of it may be in the way
/// of the host, nor what it covers be seen. `None`: the caller is not root, or not on every file
/// system of the directories can mounts be id-mapped (or this kernel lets none be).
pub(crate) fn map(dirs: &mut [&mut OwnedFd]) -> Option<OwnIds> {
    if dirs.is_empty() || !rustix::process::geteuid().is_root() {
        return None;
    }
    let mut copies = Vec::new();
    for dir in &*dirs {
        copies.push(detached(dir)?);
    }
    let mapped = namespace()
        .ok()
        .filter(|ids| copies.iter().all(|copy| mount::map_ids(copy, ids.0.as_fd()).is_ok()));
    for (dir, copy) in dirs.iter_mut().zip(copies) {
        **dir = copy;
    }
    mapped
}

/// A detached mount of a directory, without devices; `None` where that would show other files than
/// the directory does.
fn detached(dir: &OwnedFd) -> Option<OwnedFd> {
    let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
    if has_mounts_below(&fs::read_link(path).ok()?) {
        return None;
    }
    let copy = mounts::copy_of_one(dir).ok()?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID;
    mount::restrict(&copy, attributes).ok()?;
    Some(copy)
}

/// A new user namespace with its numbers. A child makes it, since the one that makes a namespace is
/// in it, and ends when it has been looked at.
fn namespace() -> io::Result<OwnIds> {
    let (end, held) = pipe_with(PipeFlags::CLOEXEC)?;
    let fork = ns::fork(Namespaces { user: true, ..Namespaces::default() })?;
    let Fork::Parent(child) = fork else {
        drop(held);
        // Nothing comes; the parent closes its end, or has ended.
        let _ = rustix::io::read(&end, &mut [0_u8]);
        ns::exit_now(0)
    };
    let child = Process::new(child);
    let file = |name: &str| format!("/proc/{}/{name}", child.pid());
    for name in ["uid_map", "gid_map"] {
        fs::write(file(name), format!("0 {HOST_FIRST} {COUNT}"))?;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(file("ns/user"), flags, Mode::empty())?;
    Ok(OwnIds(opened))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_services_users_are_above_all_that_systems_give_out() {
        assert_eq!(in_namespace(0xF000_0001), 0x7000_0001);
        assert_eq!(HOST_FIRST.checked_add(COUNT), Some(u32::MAX), "-1 is no user");
    }

    #[test]
    fn nothing_is_mapped_where_there_is_no_directory() {
        assert!(map(&mut []).is_none());
    }
}
