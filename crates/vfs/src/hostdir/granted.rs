//! Modes of the host's files that have access lists, where these do not count.
//!
//! Such a file's mode has the mask in the group's place, which is what the lists' named users and
//! groups may have at most: it is more than the owning group has. So the bits that are shown are
//! those that grant nobody more than the list does.
//!
//! To ask for a list takes a descriptor. So the answer is kept with the change time, which moves
//! with the list.

use super::descriptors::Descriptors;
use super::host::{self, errno};
use super::node::Node;
use crate::fs::{Acl, AclKind, Attr, Kind};
use polylane_base::{Clock, Errno, Result, SystemClock, Time};
use std::os::fd::AsFd;
use std::sync::Arc;

/// Permission bits of the owning group and of others.
const OF_OTHERS: u32 = 0o077;

/// Bytes of a list of five hundred entries.
const LIST_BYTES_MAX: usize = 4096;

/// The permission bits of an inode in this state (12 bits).
pub(super) fn perm(fds: &Descriptors, node: &Arc<Node>, attr: &Attr) -> u32 {
    if attr.perm & OF_OTHERS == 0 || !matches!(node.kind, Kind::File | Kind::Dir) {
        return attr.perm;
    }
    let known = node.state.lock().granted.filter(|(ctime, _)| *ctime == attr.ctime);
    let granted = match known {
        Some((_, granted)) => granted,
        // What this service cannot read it shows nobody.
        None => ask(fds, node, attr.ctime).unwrap_or(OF_OTHERS),
    };
    attr.perm & (granted | !OF_OTHERS)
}

/// What a node's list grants, kept if the next change of it will be told by the change time.
fn ask(fds: &Descriptors, node: &Arc<Node>, ctime: Time) -> Result<u32> {
    let was_asked = node.state.lock().granted.is_some();
    let granted = match was_asked {
        false => of_unread(fds, node)?,
        // It changes: each further question is one call.
        true => of_list(&*fds.reader(node)?),
    };
    let mut state = node.state.lock();
    if is_past(ctime) || state.granted.is_none() {
        let when = if is_past(ctime) { ctime } else { Time::default() };
        state.granted = Some((when, granted));
    }
    Ok(granted)
}

fn of_unread(fds: &Descriptors, node: &Arc<Node>) -> Result<u32> {
    let fd = fds.reader_now(node)?;
    node.check(&host::stat(&fd)?)?;
    Ok(of_list(&fd))
}

/// What the list of an open inode grants. One that is not well-formed, or too long, grants nothing.
fn of_list(fd: impl AsFd) -> u32 {
    let mut value = Vec::with_capacity(LIST_BYTES_MAX);
    let spare = rustix::buffer::spare_capacity(&mut value);
    match rustix::fs::fgetxattr(fd, AclKind::Access.name(), spare).map_err(errno) {
        Ok(_) => Acl::parse(&value)
            .map_or(0, |list| list.map_or(OF_OTHERS, |list| list.mode_alone() & OF_OTHERS)),
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => OF_OTHERS,
        Err(_) => 0,
    }
}

/// Whether whatever changes from now on has a later change time. Those of the host move by ticks of
/// up to 10 ms; where they have no fraction, perhaps by seconds.
fn is_past(ctime: Time) -> bool {
    let nanoseconds = |time: Time| i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
    let age = nanoseconds(SystemClock.now()) - nanoseconds(ctime);
    let tick = if ctime.nsec == 0 { 2_000_000_000 } else { 20_000_000 };
    age > tick
}
