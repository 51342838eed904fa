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

/// Maps one user and one group to themselves: all that an ordinary user may do.
pub(crate) fn map_user(uid: u32, gid: u32) -> Result<()> {
    for (file, line) in [
        ("/proc/self/setgroups", "deny".to_string()),
        ("/proc/self/uid_map", format!("{uid} {uid} 1")),
        ("/proc/self/gid_map", format!("{gid} {gid} 1")),
    ] {
        fs::write(file, line).map_err(|error| Failure::because(file, "write it", error))?;
    }
    Ok(())
}
