//! Who calls, by the kernel's word, and what that caller may.

use std::fs;
use std::os::fd::AsFd;

use hyper::StatusCode;

use crate::refusal::Refusal;

/// A caller that is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Caller {
    /// The daemon's own user: root, for the daemon of a host.
    Owner,
    /// A member of the configured group. Commands have the daemon's rights on SOURCE and PATH, so
    /// a member changes pools and sees all, and mounts nothing.
    Member,
}

impl Caller {
    /// The caller at the other end of a connection.
    ///
    /// # Errors
    /// It is neither, or is not known.
    pub(crate) fn of(socket: impl AsFd, group: Option<u32>) -> Result<Caller, Refusal> {
        let forbidden = |message: &str| Refusal::new(StatusCode::FORBIDDEN, "forbidden", message);
        let caller = polylane_sys::scm::identity(socket)
            .map_err(|_| forbidden("the kernel does not say who calls"))?;
        let is_member = |group| caller.gid == group || caller.groups.contains(&group);
        if caller.uid == rustix::process::geteuid().as_raw() {
            return Ok(Caller::Owner);
        }
        match group.is_some_and(is_member) {
            true => Ok(Caller::Member),
            false => Err(forbidden("only the daemon's user and members of its group are served")),
        }
    }

    /// Refuses a member what needs rights on SOURCE and PATH.
    pub(crate) fn must_own(self) -> Result<(), Refusal> {
        match self {
            Caller::Owner => Ok(()),
            Caller::Member => Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "forbidden",
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
