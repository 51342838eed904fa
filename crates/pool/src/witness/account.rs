//! Whom a client's process is charged to, where limits keep users from each other.
//!
//! A user of the host may have a range of user numbers: in a user namespace, and, by set-user-id
//! programs made there, outside of it as well. All of them are that user's one account.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use polylane_sys::ns;
use polylane_sys::scm;

use crate::subordinate::{Range, ranges};
use crate::wait::wait_for;

/// User namespaces lie in each other at most that deep (33 by `create_user_ns`).
const DEPTH_MAX: usize = 40;

/// Who is charged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Account {
    /// A user of the host, also for the namespaces that this user made.
    User(u32),
    /// A user namespace that root made, by its inode number: root makes them for others.
    Namespace(u64),
    /// Processes that ended after they connected, of which only the user's number is left.
    Gone,
}

/// What accounts are found by.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    /// Inode number of the user namespace of this process.
    own: Option<u64>,
    ranges: Vec<Range>,
    /// Of what files the ranges are: those of ranges and of names.
    files: [PathBuf; 2],
    /// As these were when they were read.
    read: [Option<Stamp>; 2],
}

/// A file's inode number and the time of its last change: seconds and nanoseconds.
type Stamp = (u64, i64, i64);

impl Accounts {
    /// As this process sees users.
    pub(super) fn here() -> Accounts {
        let own = namespace_of(std::process::id()).as_ref().and_then(inode);
        let files = ["/etc/subuid", "/etc/passwd"].map(PathBuf::from);
        let mut accounts = Accounts { own, files, ..Accounts::default() };
        accounts.refresh();
        accounts
    }

    /// Reads the files again that say whose the numbers are, where they have changed.
    pub(super) fn refresh(&mut self) {
        // Before they are read: what changes meanwhile is read at the next time.
        let now = self.files.each_ref().map(|file| {
            let stat = fs::metadata(file).ok()?;
            Some((stat.ino(), stat.mtime(), stat.mtime_nsec()))
        });
        if now != self.read {
            let [ranges_of, names_of] =
                self.files.each_ref().map(|file| fs::read_to_string(file).unwrap_or_default());
            (self.ranges, self.read) = (ranges(&ranges_of, &names_of), now);
        }
    }

    /// Of the process that connected, as which user it ever did.
    pub(super) fn of_connection(&self, connection: BorrowedFd<'_>) -> Account {
        let Ok(peer) = scm::peer(connection) else { return Account::Gone };
        let account = self.of(peer.pid, peer.identity.uid);
        // Asked last: the number was of this process all the time.
        let lives = peer.pidfd.is_some_and(|process| !wait_for(process.as_fd(), Duration::ZERO));
        if lives { account } else { Account::Gone }
    }

    /// Of a process, which is this user.
    pub(super) fn of(&self, pid: u32, user: u32) -> Account {
        match self.outermost(pid) {
            None => Account::User(self.owner_of(user)),
            Some(namespace) => match (ns::owner(&namespace), inode(&namespace)) {
                (Ok(owner @ 1..), _) => Account::User(self.owner_of(owner)),
                (_, Some(inode)) => Account::Namespace(inode),
                (_, None) => Account::Gone,
            },
        }
    }

    /// The outermost user namespace below this process's that a process is in; `None`: it is in
    /// none, as far as can be seen.
    fn outermost(&self, pid: u32) -> Option<File> {
        let mut namespace = namespace_of(pid)?;
        if inode(&namespace) == self.own {
            return None;
        }
        for _ in 0..DEPTH_MAX {
            let parent = File::from(ns::parent_namespace(&namespace).ok()?);
            if inode(&parent) == self.own {
                return Some(namespace);
            }
            namespace = parent;
        }
        None
    }

    /// The user of the host who has that number.
    fn owner_of(&self, user: u32) -> u32 {
        let has = |range: &&Range| user.wrapping_sub(range.first) < range.count;
        // What root has is for namespaces that root makes for others.
        let range = self.ranges.iter().filter(|range| range.owner != 0).find(has);
        range.map_or(user, |range| range.owner)
    }
}

fn namespace_of(pid: u32) -> Option<File> {
    File::open(format!("/proc/{pid}/ns/user")).ok()
}

fn inode(file: &File) -> Option<u64> {
    file.metadata().ok().map(|metadata| metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_that_a_user_has_for_namespaces_are_the_users() {
        let users = "root:x:0:0::/:/bin/sh\nann:x:1000:1000::/:/bin/sh\n";
        let subordinate = "root:900000:65536\nann:100000:65536\n1001:165536:10\n\
            unknown:1:10\nann:x:1\nann\n";
        let ranges = ranges(subordinate, users);
        let accounts = Accounts { ranges, ..Accounts::default() };
        assert_eq!(accounts.ranges.len(), 3);
        for (user, owner) in [
            (0, 0),
            (1000, 1000),
            (99_999, 99_999),
            (100_000, 1000),
            (165_535, 1000),
            (165_536, 1001),
            (165_546, 165_546),
            (900_000, 900_000),
            (u32::MAX, u32::MAX),
        ] {
            assert_eq!(accounts.owner_of(user), owner, "{user}");
        }
    }

    #[test]
    fn numbers_that_a_user_gets_later_are_the_users_from_then_on() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["subuid", "passwd"].map(|name| dir.path().join(name));
        let mut accounts = Accounts { files: files.clone(), ..Accounts::default() };
        accounts.refresh();
        assert_eq!(accounts.owner_of(100_000), 100_000);
        fs::write(&files[1], "ann:x:1000:1000::/:/bin/sh\n").unwrap();
        fs::write(&files[0], "ann:100000:65536\n").unwrap();
        assert_eq!(accounts.owner_of(100_000), 100_000);
        accounts.refresh();
        assert_eq!(accounts.owner_of(100_000), 1000);
        // As usermod does it: another file takes the name.
        let new = dir.path().join("new");
        fs::write(&new, "ann:200000:65536\n").unwrap();
        fs::rename(&new, &files[0]).unwrap();
        accounts.refresh();
        assert_eq!((accounts.owner_of(100_000), accounts.owner_of(200_000)), (100_000, 1000));
    }

    #[test]
    fn a_process_of_no_other_namespace_is_its_users() {
        let (accounts, me) =
            (Accounts { ranges: Vec::new(), ..Accounts::here() }, std::process::id());
        assert_eq!(accounts.of(me, 4321), Account::User(4321));
        let (one, other) = scm::pair().unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(accounts.of_connection(one.as_fd()), Account::User(user));
        drop(other);
        let (file, _) = std::io::pipe().unwrap();
        assert_eq!(accounts.of_connection(file.as_fd()), Account::Gone, "no connection");
    }

    #[test]
    fn a_namespace_and_those_below_it_are_of_who_made_it() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let accounts = Accounts { ranges: Vec::new(), ..Accounts::here() };
        // Ends when its input does.
        let script = "unshare -U sh -c 'echo; exec cat' || echo none; exec cat";
        let of_child = |user: &str| {
            let mut child = std::process::Command::new("setpriv")
                .args(["--reuid", user, "--clear-groups", "unshare", "-Ur", "sh", "-c", script])
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let mut said = String::new();
            let out = child.stdout.as_mut().unwrap();
            std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut said).unwrap();
            let account = accounts.of(child.id(), 77);
            drop(child.stdin.take());
            child.wait().unwrap();
            account
        };
        match of_child("4321") {
            // No user namespaces here.
            Account::User(77) => {}
            account => {
                assert_eq!(account, Account::User(4321));
                assert!(matches!(of_child("0"), Account::Namespace(_)));
            }
        }
    }
}
