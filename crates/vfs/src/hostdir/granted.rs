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
use crate::acl::{OF_OTHERS, granted, less_granted};
use crate::fs::{AclKind, Attr, Kind};
use polylane_base::{Clock, Errno, Result, SystemClock, Time};
use std::os::fd::AsFd;
use std::sync::Arc;

/// Bytes of a list of five hundred entries. A longer one grants nothing.
const LIST_BYTES_MAX: usize = 4096;

/// How often a file is asked whose state changes meanwhile.
const TRIES: u32 = 4;

/// The permission bits of an inode in this state (12 bits).
pub(super) fn perm(fds: &Descriptors, node: &Arc<Node>, attr: &Attr) -> u32 {
    if attr.perm & OF_OTHERS == 0 || !matches!(node.kind, Kind::File | Kind::Dir) {
        return attr.perm;
    }
    let known = node.state.lock().granted.filter(|(ctime, _)| *ctime == attr.ctime);
    let granted = match known {
        Some((_, granted)) => granted,
        None => ask(fds, node, attr).unwrap_or_else(|errno| match errno {
            // What this service may not read it shows nobody.
            Errno::EACCES => OF_OTHERS,
            _ => 0,
        }),
    };
    less_granted(attr.perm, granted)
}

/// What a node's list grants, kept if the next change of it will be told by the change time.
fn ask(fds: &Descriptors, node: &Arc<Node>, attr: &Attr) -> Result<u32> {
    let was_asked = node.state.lock().granted.is_some();
    let (granted, ctime) = match was_asked {
        false => of_open(&fds.reader_now(node)?, attr)?,
        // It changes: to ask again makes no descriptor.
        true => of_open(&*fds.reader(node)?, attr)?,
    };
    let mut state = node.state.lock();
    if is_past(ctime) || state.granted.is_none() {
        let when = if is_past(ctime) { ctime } else { Time::default() };
        state.granted = Some((when, granted));
    }
    Ok(granted)
}

/// What the list of an open inode grants, and at which change time. Where that moves meanwhile, no
/// more than each state and list that was seen.
fn of_open(fd: impl AsFd, attr: &Attr) -> Result<(u32, Time)> {
    let (mut all, mut ctime) = (OF_OTHERS, attr.ctime);
    for _ in 0..TRIES {
        all &= granted(list(fd.as_fd()));
        let now = host::stat(&fd)?.attr;
        if now.ctime == ctime {
            break;
        }
        all &= now.perm;
        ctime = now.ctime;
    }
    Ok((all, ctime))
}

fn list(fd: impl AsFd) -> Result<Vec<u8>> {
    let mut value = Vec::with_capacity(LIST_BYTES_MAX);
    let spare = rustix::buffer::spare_capacity(&mut value);
    rustix::fs::fgetxattr(fd, AclKind::Access.name(), spare).map_err(errno)?;
    Ok(value)
}

/// Whether whatever changes from now on has a later change time. Those of the host move by ticks of
/// up to 10 ms, some by whole seconds.
fn is_past(ctime: Time) -> bool {
    let now = SystemClock.now();
    now.sec.saturating_sub(ctime.sec) > 2
}
