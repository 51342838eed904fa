//! Who calls, by the kernel's word, and what that caller may.

use std::fs;
use std::os::fd::AsFd;

use crate::refusal::Refusal;

/// A caller, and how far it is served.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Caller {
    /// The daemon's own user: root, for the daemon of a host.
    Owner,
    /// A member of the configured group, by its user. Commands have the daemon's rights on SOURCE
    /// and PATH, so a member changes pools and sees all, and mounts nothing.
    Member(u32),
    /// Another user, who is not served. [`UNKNOWN`] is one of whom the kernel does not tell.
    Stranger(u32),
}

/// No user has this number.
const UNKNOWN: u32 = u32::MAX;

impl Caller {
    /// The caller at the other end of a connection.
    pub(crate) fn of(socket: impl AsFd, group: Option<u32>) -> Caller {
        let Ok(caller) = polylane_sys::scm::identity(socket) else {
            return Caller::Stranger(UNKNOWN);
        };
        let is_member = |group| caller.gid == group || caller.groups.contains(&group);
        if caller.uid == rustix::process::geteuid().as_raw() {
            return Caller::Owner;
        }
        match group.is_some_and(is_member) {
            true => Caller::Member(caller.uid),
            false => Caller::Stranger(caller.uid),
        }
    }

    /// The member of the group that it is.
    pub(crate) fn member(self) -> Option<u32> {
        match self {
            Caller::Member(user) => Some(user),
            Caller::Owner | Caller::Stranger(_) => None,
        }
    }

    /// Whether both are served equally far.
    pub(crate) fn is_of_kind(self, other: Caller) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }

    /// Refuses a stranger.
    pub(crate) fn must_be_served(self) -> Result<(), Refusal> {
        match self {
            Caller::Owner | Caller::Member(_) => Ok(()),
            Caller::Stranger(UNKNOWN) => {
                Err(Refusal::forbidden("the kernel does not say who calls"))
            }
            Caller::Stranger(_) => Err(Refusal::forbidden(
                "only the daemon's user and members of its group are served",
            )),
        }
    }

    /// Refuses a member what needs rights on SOURCE and PATH.
    pub(crate) fn must_own(self) -> Result<(), Refusal> {
        match self {
            Caller::Owner => Ok(()),
            Caller::Member(_) | Caller::Stranger(_) => Err(Refusal::forbidden(
                "mounts are changed by the daemon's user alone: a command has that user's rights \
                 on SOURCE and PATH",
            )),
        }
    }
}

/// The number of a group, by its name in /etc/group or its number.
pub(crate) fn group_number(name: &str) -> Result<u32, String> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let table = fs::read_to_string("/etc/group").map_err(|error| format!("/etc/group: {error}"))?;
    group_in(&table, name).ok_or_else(|| format!("group '{name}': not in /etc/group"))
}

/// "NAME:PASSWORD:NUMBER:MEMBERS"
fn group_in(table: &str, name: &str) -> Option<u32> {
    let mut lines = table.lines().map(|line| line.split(':'));
    lines.find_map(|mut words| {
        let is_it = words.next() == Some(name);
        words.nth(1).filter(|_| is_it)?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name_or_number() {
        let table = "root:x:0:\nstaff:x:50:a,b\nodd\nlane:x:77:\n";
        assert_eq!(group_in(table, "lane"), Some(77));
        assert_eq!(group_in(table, "odd"), None);
        assert_eq!(group_in(table, "x"), None);
        assert_eq!(group_number("12"), Ok(12));
        assert!(group_number("no such group").is_err_and(|why| why.contains("no such group")));
    }
}
