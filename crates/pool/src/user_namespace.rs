//! User namespaces: who needs one, and its maps.

use std::fs;

use rustix::thread::CapabilitySet;

use crate::failure::{Failure, Result};

/// The user and group of a caller who may not mount in the current user namespace.
pub(crate) fn rootless() -> Option<(u32, u32)> {
    let may_mount = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    (!may_mount).then_some(ids)
}

/// The maps of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Maps {
    /// That of users is written.
    pub(crate) users: bool,
    /// That of groups is.
    pub(crate) groups: bool,
}

impl Maps {
    /// Others wrote both: more than one number of each is mapped.
    pub(crate) fn are_whole(self) -> bool {
        self.users && self.groups
    }
}

/// Maps one user and one group to themselves: all that an ordinary user may do.
pub(crate) fn map_user(uid: u32, gid: u32) -> Result<()> {
    map_rest(uid, gid, Maps::default())
}

/// The same where `written` were written by others.
pub(crate) fn map_rest(uid: u32, gid: u32, written: Maps) -> Result<()> {
    for (file, line, is_written) in [
        ("/proc/self/setgroups", "deny".to_string(), written.groups),
        ("/proc/self/uid_map", format!("{uid} {uid} 1"), written.users),
        ("/proc/self/gid_map", format!("{gid} {gid} 1"), written.groups),
    ] {
        if is_written {
            continue;
        }
        fs::write(file, line).map_err(|error| Failure::because(file, "write it", error))?;
    }
    Ok(())
}
