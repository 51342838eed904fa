//! Numbers of users and groups that a user has besides the own one, for user namespaces:
//! `/etc/subuid`, `/etc/subgid`.
//!
//! newuidmap(1) and newgidmap(1) write them into the map of a namespace, with a right of root's;
//! they look themselves whether the user has them.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use polylane_volume::tools;
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::user_namespace::Maps;

/// Ranges of one user that are used at most: what one map of a kernel has room for, with the user's
/// own number, and far fewer than a command line.
const RANGES_MAX: usize = 16;

/// Numbers that a user of the host has for namespaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    /// Whose they are.
    pub(crate) owner: u32,
    /// The first of them.
    pub(crate) first: u32,
    /// How many there are.
    pub(crate) count: u32,
}

/// Of `/etc/subuid` or `/etc/subgid`, `OWNER:FIRST:COUNT`, where an owner is a number or a name of
/// `/etc/passwd`.
pub(crate) fn ranges(subordinate: &str, users: &str) -> Vec<Range> {
    let number_of = |owner: &str| {
        let named = users.lines().filter_map(|line| line.split_once(':'));
        let named = named.filter(|(name, _)| *name == owner).find_map(|(_, rest)| {
            let (_password, rest) = rest.split_once(':')?;
            rest.split(':').next()?.parse().ok()
        });
        named.or_else(|| owner.parse().ok())
    };
    let range = |line: &str| {
        let mut words = line.trim().split(':');
        let owner = number_of(words.next()?)?;
        let (first, count) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Range { owner, first, count })
    };
    subordinate.lines().filter_map(range).collect()
}

/// What newuidmap or newgidmap is to map: the own number, and the ranges that do not have it, each
/// to itself. `None`: the user has no ranges.
fn map_of(own: u32, user: u32, ranges: &[Range]) -> Option<Vec<u32>> {
    let is_good = |range: &&Range| {
        let has_own = own.wrapping_sub(range.first) < range.count;
        range.owner == user && range.count > 0 && !has_own && user != 0
    };
    let found: Vec<&Range> = ranges.iter().filter(is_good).take(RANGES_MAX).collect();
    let others = found.iter().flat_map(|range| [range.first, range.first, range.count]);
    (!found.is_empty()).then(|| [own, own, 1].into_iter().chain(others).collect())
}

/// The ranges of a user: of users, and of groups.
fn of(user: u32) -> [Vec<Range>; 2] {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let users = read("/etc/passwd");
    ["/etc/subuid", "/etc/subgid"].map(|path| {
        let mut all = ranges(&read(path), &users);
        all.retain(|range| range.owner == user);
        all
    })
}

/// How many numbers of users and groups a user can have mapped besides the own one; `None`: none.
pub(crate) fn count(user: u32) -> Option<u64> {
    let [users, groups] = of(user);
    tools::find("newuidmap").and(tools::find("newgidmap"))?;
    let sum = |ranges: &[Range]| ranges.iter().map(|range| u64::from(range.count)).sum::<u64>();
    Some(sum(&users).min(sum(&groups))).filter(|&count| count > 0)
}

/// Maps the ranges of a user in the namespace of a process, which has no maps yet; what is not
/// mapped that process maps itself. A user without ranges, a host without the programs, and one
/// that refuses them have the own numbers alone.
pub(crate) fn map(process: u32, (uid, gid): (u32, u32)) {
    let [users, groups] = of(uid);
    let map = map_of(uid, uid, &users).zip(map_of(gid, uid, &groups));
    let Some((users, groups)) = map else { return };
    let with = |program: &str, numbers: Vec<u32>| {
        let Some(path) = tools::find(program) else { return false };
        run(&path, process, &numbers)
    };
    // One without the other would make files of users that can have no group.
    if with("newgidmap", groups) {
        with("newuidmap", users);
    }
}

fn run(program: &Path, process: u32, numbers: &[u32]) -> bool {
    let mut command = Command::new(program);
    command.arg(process.to_string()).args(numbers.iter().map(u32::to_string));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Lets what this process executes become each user and group that is mapped in its namespace: all
/// of them are its user's. Set-id programs, newuidmap too, are no root's there, which has no number
/// in the namespace; with these capabilities newuidmap works all the same.
///
/// # Errors
/// What capset(2) and prctl(2) say.
pub(crate) fn let_become() -> rustix::io::Result<()> {
    let wanted = CapabilitySet::SETUID | CapabilitySet::SETGID;
    let sets = rustix::thread::capabilities(None)?;
    let inheritable = sets.inheritable | wanted;
    rustix::thread::set_capabilities(None, CapabilitySets { inheritable, ..sets })?;
    for capability in wanted {
        rustix::thread::configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}

/// Which maps of this process' namespace are written.
pub(crate) fn written() -> Maps {
    let is = |file: &str| fs::read_to_string(file).is_ok_and(|text| !text.trim().is_empty());
    Maps { users: is("/proc/self/uid_map"), groups: is("/proc/self/gid_map") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_own_number_and_ranges_are_mapped_to_themselves() {
        let users = "root:x:0:0::/:/bin/sh\nann:x:1000:1000::/:/bin/sh\n";
        let all =
            ranges("root:1:9\nann:100000:65536\n1000:300000:5\nann:900:200\nann:7:0\n", users);
        let expected = vec![1000, 1000, 1, 100_000, 100_000, 65_536, 300_000, 300_000, 5];
        assert_eq!(map_of(1000, 1000, &all), Some(expected), "one that has the own number is left");
        assert_eq!(map_of(0, 0, &all), None, "root needs none");
        assert_eq!(map_of(5, 5, &all), None);
        let many = vec![Range { owner: 5, first: 10, count: 1 }; 400];
        assert_eq!(map_of(5, 5, &many).map(|map| map.len()), Some(3 * (RANGES_MAX + 1)));
    }
}
