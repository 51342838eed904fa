//! What `/proc` says of the threads of a process: who they are, what confines them.

use std::fs;
use std::os::unix::fs::MetadataExt;

use polylane_front::witness::Refusal;
use polylane_sys::procstat;

use super::Who;

/// Most threads of a process that are looked at; one with more has no session.
pub(super) const THREADS_MAX: usize = 1024;

/// Most bytes of a thread's status: more than [`GROUPS_MAX`](super::GROUPS_MAX) groups take.
const STATUS_BYTES_MAX: u64 = 64 << 10;

/// Capabilities by which root may do with files what the service takes root to may: CHOWN,
/// DAC_OVERRIDE, FOWNER, FSETID.
const OVER_FILES: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 4;

/// What `/proc/PID/task/TID/status` says; of a whole process, what holds of all its threads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Status {
    /// The thread's numbers, from the reader's namespace inwards.
    pub(super) numbers: Vec<u32>,
    no_new_privileges: u32,
    seccomp: u32,
    filters: u32,
    /// Effective user.
    pub(super) user: u32,
    group: u32,
    /// User and group by which the kernel opens files.
    of_files: (u32, u32),
    /// Sorted.
    groups: Vec<u32>,
    /// Effective ones.
    capabilities: u64,
}

/// The threads of a process, by their numbers here.
pub(super) fn threads(pid: u32) -> impl Iterator<Item = u32> {
    let all = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// How many threads a process has; 0 of none.
pub(super) fn thread_count(pid: u32) -> u64 {
    let tasks = fs::metadata(format!("/proc/{pid}/task"));
    // A directory beside `.` and `..` for each.
    tasks.map_or(0, |tasks| tasks.nlink().saturating_sub(2))
}

/// Whose a process is, as far as limits go.
pub(super) fn owner(pid: u32) -> u32 {
    fs::metadata(format!("/proc/{pid}")).map_or(0, |process| process.uid())
}

impl Status {
    /// Of one thread.
    pub(super) fn of(pid: u32, thread: u32) -> Option<Status> {
        let path = format!("/proc/{pid}/task/{thread}/status");
        let text = String::from_utf8(procstat::head(path, STATUS_BYTES_MAX + 1).ok()?).ok()?;
        (text.len() as u64 <= STATUS_BYTES_MAX).then(|| Status::parse(&text))
    }

    /// Of a process: its first thread's numbers, what confines any of its threads, the capabilities
    /// that all have. Which of them connected is not known, and the first may have ended.
    pub(super) fn of_all(pid: u32) -> Result<Status, Refusal> {
        let mut it = Status::of(pid, pid).ok_or(Refusal::Unknown)?;
        for (count, thread) in threads(pid).filter(|thread| *thread != pid).enumerate() {
            if count >= THREADS_MAX {
                return Err(Refusal::Unknown);
            }
            // One that has ended meanwhile is none.
            if let Some(other) = Status::of(pid, thread) {
                it.join(other)?;
            }
        }
        Ok(it)
    }

    /// Takes another thread in. One that is another user is of a process that is nobody's.
    fn join(&mut self, other: Status) -> Result<(), Refusal> {
        let who = |one: &Status| (one.user, one.group, one.of_files);
        if who(self) != who(&other) || self.groups != other.groups {
            return Err(Refusal::Changed);
        }
        self.no_new_privileges = self.no_new_privileges.max(other.no_new_privileges);
        self.seccomp = self.seccomp.max(other.seccomp);
        self.filters = self.filters.max(other.filters);
        self.capabilities &= other.capabilities;
        Ok(())
    }

    fn parse(text: &str) -> Status {
        let field = |name: &str| {
            let values = text.lines().find_map(|line| line.strip_prefix(name));
            values.unwrap_or("").split_whitespace().filter_map(|word| word.parse().ok())
        };
        let first = |name| field(name).next().unwrap_or(0);
        // Real, effective, saved, of files.
        let ids = |name| {
            let ids: Vec<u32> = field(name).collect();
            let at = |n: usize| ids.get(n).copied().unwrap_or(0);
            (at(1), at(3))
        };
        let capabilities = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let capabilities = capabilities.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        let (users, its_groups) = (ids("Uid:"), ids("Gid:"));
        let mut groups: Vec<u32> = field("Groups:").collect();
        groups.sort_unstable();
        Status {
            numbers: field("NSpid:").collect(),
            no_new_privileges: first("NoNewPrivs:"),
            seccomp: first("Seccomp:"),
            filters: first("Seccomp_filters:"),
            user: users.0,
            group: its_groups.0,
            of_files: (users.1, its_groups.1),
            groups,
            capabilities: capabilities.unwrap_or(0),
        }
    }

    /// Whether it is who connected, also to the files that it opens.
    pub(super) fn is(&self, (user, group, groups): &Who) -> bool {
        let mut groups = groups.clone();
        groups.sort_unstable();
        let ids = (*user, *group);
        (self.user, self.group) == ids && self.of_files == ids && self.groups == groups
    }

    /// How deep its namespace of process numbers lies.
    pub(super) fn depth(&self) -> usize {
        self.numbers.len().saturating_sub(1)
    }

    /// Its number in the namespace of that depth, if it has one there.
    pub(super) fn number_at(&self, depth: usize) -> Option<u32> {
        self.numbers.get(depth).copied()
    }

    /// Root without what makes root root.
    pub(super) fn is_less_than_its_user(&self) -> bool {
        self.user == 0 && self.capabilities & OVER_FILES != OVER_FILES
    }

    /// Whether more is shown that confines it than another.
    pub(super) fn is_confined_beyond(&self, other: &Status) -> bool {
        self.no_new_privileges > other.no_new_privileges
            || self.seccomp > other.seccomp
            || self.filters > other.filters
    }

    /// A process that may gain no privileges may have given up others by Landlock, of which nothing
    /// is shown, whatever else confines it or its tenant.
    pub(super) fn may_be_confined(&self) -> bool {
        self.no_new_privileges != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_without_its_capabilities_is_less_than_its_user() {
        let status = |uid: &str, caps: &str| {
            Status::parse(&format!("Uid:\t5\t{uid}\t5\t5\nCapEff:\t{caps}\n"))
        };
        assert!(!status("0", "000001ffffffffff").is_less_than_its_user());
        assert!(!status("0", "00000000a80425fb").is_less_than_its_user(), "as containers have");
        assert!(status("0", "000001fffffffffd").is_less_than_its_user(), "no DAC_OVERRIDE");
        assert!(status("0", "0000000000000000").is_less_than_its_user());
        assert!(!status("1000", "0000000000000000").is_less_than_its_user());
    }

    #[test]
    fn who_is_confined_beyond_the_init_is_known_by_its_status() {
        let plain = "Name:\tx\nNSpid:\t400\t7\nNoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n";
        let first = Status::parse(plain);
        assert_eq!(first.numbers, [400, 7]);
        assert!(!Status::parse(plain).is_confined_beyond(&first));
        for (field, value) in [("NoNewPrivs:\t0", "NoNewPrivs:\t1"), ("filters:\t0", "filters:\t2")]
        {
            let other = Status::parse(&plain.replace(field, value));
            assert!(other.is_confined_beyond(&first), "{value}");
            assert!(!other.is_confined_beyond(&other), "{value}: so is the init");
        }
    }

    /// A thread of that user, group and groups, with all capabilities.
    fn thread(uid: &str, gid: &str, groups: &str) -> Status {
        Status::parse(&format!(
            "Uid:\t{uid}\nGid:\t{gid}\nGroups:\t{groups}\nCapEff:\t000001ffffffffff\n"
        ))
    }

    #[test]
    fn a_process_is_who_connected_by_all_its_ids() {
        let it = thread("1 2 3 2", "4 5 6 5", "9 7 8 ");
        assert!(it.is(&(2, 5, vec![7, 8, 9])) && it.is(&(2, 5, vec![9, 8, 7])));
        for who in
            [(0, 5, vec![7, 8, 9]), (2, 0, vec![7, 8, 9]), (2, 5, vec![7, 8]), (2, 5, vec![])]
        {
            assert!(!it.is(&who), "{who:?}");
        }
        assert!(!thread("0 0 0 2", "0 0 0 0", "").is(&(0, 0, vec![])), "setfsuid");
        assert!(!thread("0 0 0 0", "0 0 0 2", "").is(&(0, 0, vec![])), "setfsgid");
        assert!(!thread("0 2 0 2", "0 0 0 0", "").is(&(0, 0, vec![])), "seteuid");
    }

    #[test]
    fn a_process_has_what_all_its_threads_have() {
        let root = || thread("0 0 0 0", "0 0 0 0", "0");
        let mut it = root();
        assert_eq!(it.join(root()), Ok(()));
        assert!(!it.is_less_than_its_user() && !it.may_be_confined());
        assert_eq!(it.join(Status { capabilities: 0, ..root() }), Ok(()));
        assert!(it.is_less_than_its_user(), "a thread without capabilities");
        let confined = Status { no_new_privileges: 1, seccomp: 2, filters: 1, ..root() };
        let mut it = root();
        assert_eq!(it.join(confined.clone()), Ok(()));
        assert!(it.is_confined_beyond(&root()) && !it.is_confined_beyond(&confined));
        for other in [thread("0 7 0 7", "0 0 0 0", "0"), thread("0 0 0 0", "0 0 0 0", "0 4")] {
            assert_eq!(root().join(other), Err(Refusal::Changed));
        }
    }

    #[test]
    fn this_process_is_who_it_is() {
        let me = std::process::id();
        let ends = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| ends.wait());
            assert!(threads(me).count() > 1);
            let groups = rustix::process::getgroups().unwrap();
            let groups = groups.into_iter().map(|gid| gid.as_raw()).collect();
            let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
            let it = Status::of_all(me).unwrap();
            assert!(it.is(&(user.as_raw(), group.as_raw(), groups)));
            ends.wait();
        });
        assert_eq!(Status::of_all(0), Err(Refusal::Unknown));
    }
}
