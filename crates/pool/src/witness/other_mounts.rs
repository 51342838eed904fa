//! Lanes as processes see them that have other mounts, or another root, than the lane's tenant: a
//! bind mount, of a directory perhaps, read-only perhaps, at a path of its own.
//!
//! Each such mount that a session goes by is watched, as long as one of the processes lives that
//! the session was for: an open table of mounts keeps the mounts there. What is mounted in the lane
//! later is told in a page ([`Notice`]) that the clients have.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use polylane_base::sync::Arc;
use polylane_ipc::message::RESERVED_DIR;
use polylane_sys::handle::{self, FuseHandle};
use polylane_sys::notice::Notice;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use super::account::Account;
use crate::mount_table::{below, escaped};

/// Most mounts of a user's that are watched; processes of one more have no session.
const WATCHED_PER_USER_MAX: usize = 256;

/// Most mounts that are watched. What one user may have is far less.
const WATCHED_MAX: usize = 4096;

/// Most processes of a user that are watched for their end: as many as it may have sessions.
const PROCESSES_PER_USER_MAX: usize = 256;

/// Longest table of mounts that is read, in bytes: some 8000 mounts.
const TABLE_BYTES_MAX: usize = 1 << 20;

/// Most bytes of a user's tables that are watched: what a change in all of them has to be read.
const TABLES_PER_USER_BYTES_MAX: usize = 8 << 20;

/// A table may grow that far before it is charged anew, which ends the sessions that go by it.
const TABLE_STEP_BYTES: usize = 16 << 10;

/// What a line of mountinfo says of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mount<'a> {
    id: i32,
    parent: i32,
    device: &'a [u8],
    root: &'a [u8],
    place: &'a [u8],
    options: &'a [u8],
    kind: &'a [u8],
    /// Options of the file system, whatever the mount.
    whole: &'a [u8],
}

impl<'a> Mount<'a> {
    /// `ID PARENT DEVICE ROOT PLACE OPTIONS [MORE…] - TYPE SOURCE OPTIONS`.
    fn of(line: &'a [u8]) -> Option<Mount<'a>> {
        let number = |word: &[u8]| str::from_utf8(word).ok()?.parse().ok();
        let mut words = line.split(|&byte| byte == b' ');
        let (id, parent) = (number(words.next()?)?, number(words.next()?)?);
        let (device, root) = (words.next()?, words.next()?);
        let (place, options) = (words.next()?, words.next()?);
        let mut rest = words.skip_while(|word| *word != b"-").skip(1);
        let (kind, _source, whole) = (rest.next()?, rest.next()?, rest.next()?);
        Some(Mount { id, parent, device, root, place, options, kind, whole })
    }

    fn all(table: &'a [u8]) -> impl Iterator<Item = Mount<'a>> {
        table.split(|&byte| byte == b'\n').filter_map(Mount::of)
    }

    fn is_lane(&self) -> bool {
        self.kind == b"fuse.polylane"
    }

    fn has(&self, option: &[u8]) -> bool {
        let mut all = self.options.split(|&byte| byte == b',');
        let mut whole = self.whole.split(|&byte| byte == b',');
        all.any(|one| one == option) || whole.any(|one| one == option)
    }
}

/// Whether the mount of that number, in a table, is read-only; `None`: it is none of the device, or
/// something is mounted in it besides what is to be there: on the lane's root that is `covered`.
fn read_only(table: &[u8], id: i32, device: &[u8], covered: &[Vec<u8>]) -> Option<bool> {
    let own = Mount::all(table).find(|mount| (mount.id, mount.device) == (id, device))?;
    let own = Some(own).filter(Mount::is_lane)?;
    let covered = if own.root == b"/" { covered } else { &[] };
    let expected = |place: &[u8]| {
        let is = |known: &Vec<u8>| below(place, &escaped(known)).is_some();
        place == RESERVED_DIR.as_bytes() || covered.iter().any(is)
    };
    let covers = |mount: &Mount<'_>| {
        mount.parent == id && !below(mount.place, own.place).is_some_and(expected)
    };
    // What an id-mapped mount shows its users as is the kernel's to say.
    let is_seen_so = own.has(b"nosymfollow") || own.has(b"idmapped");
    let plain = !is_seen_so && !Mount::all(table).any(|mount| covers(&mount));
    plain.then(|| own.has(b"ro"))
}

/// A process that has a session by a mount.
struct Watching {
    pid: u32,
    account: Account,
    pidfd: Arc<OwnedFd>,
}

/// A mount that is watched.
struct Watched {
    /// Inode number of the namespace of mounts.
    space: u64,
    id: i32,
    device: Vec<u8>,
    read_only: bool,
    table: Arc<File>,
    /// What its account is charged with for the table, in bytes; a longer one is watched no more.
    charged: usize,
    notice: Notice,
    page: OwnedFd,
    /// Who is charged with it: the first process's.
    account: Account,
    /// That have sessions by it.
    processes: Vec<Watching>,
}

impl Watched {
    /// Reads the table again, and shows whether the mount is as it was.
    fn look(&mut self, covered: &[Vec<u8>]) {
        let now = read(&self.table).filter(|table| table.len() <= self.charged);
        // Nobody waits for a table that is too long.
        if now.is_none() {
            self.processes.clear();
        }
        let as_it_was = Some(self.read_only);
        let same =
            now.is_some_and(|table| read_only(&table, self.id, &self.device, covered) == as_it_was);
        self.notice.show(!same);
    }

    /// Looks, if the table has changed, and says so. The kernel tells of a change once; `told`: it
    /// has.
    fn look_if_changed(&mut self, told: bool, covered: &[Vec<u8>]) -> bool {
        let changed = told || is_ready(self.table.as_fd(), PollFlags::PRI);
        if changed {
            self.look(covered);
        }
        changed
    }
}

/// What is known of a process's mount.
pub(super) struct Seen {
    /// The lane's node that is its root.
    pub(super) node: u64,
    pub(super) read_only: bool,
    /// The page that tells of mounts there.
    pub(super) page: OwnedFd,
}

/// A process's table of mounts, and what was read there.
pub(super) struct Found {
    pidfd: OwnedFd,
    table: File,
    words: FoundWords,
}

/// What was read in a process's table of mounts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct FoundWords {
    /// Bytes of the table.
    length: usize,
    space: u64,
    /// The lane's node that is the process's root.
    pub(super) node: u64,
    /// The mount's number.
    pub(super) mount: i32,
    pub(super) read_only: bool,
}

impl Found {
    /// What a process has mounted of the lane on `device`, with these paths covered, that opened
    /// `root` as its root. Long tables are not read. Can wait for whatever file system `root` is
    /// of.
    pub(super) fn of(
        pid: u32,
        root: BorrowedFd<'_>,
        device: &[u8],
        covered: &[Vec<u8>],
    ) -> Option<Found> {
        let FuseHandle { node, mount } = FuseHandle::of(root).ok()?;
        if !handle::is_readable(root).ok()? {
            return None;
        }
        let process = Pid::from_raw(pid.cast_signed())?;
        let pidfd = pidfd_open(process, PidfdFlags::empty()).ok()?;
        // The process's own: it shows what its root directory lets it reach.
        let table = File::open(format!("/proc/{pid}/mountinfo")).ok()?;
        let said = read(&table)?;
        let (length, read_only) = (said.len(), read_only(&said, mount, device, covered)?);
        let space = fs::metadata(format!("/proc/{pid}/ns/mnt")).ok()?.ino();
        Some(Found { pidfd, table, words: FoundWords { length, space, node, mount, read_only } })
    }

    /// What can be sent.
    pub(super) fn into_parts(self) -> (FoundWords, [OwnedFd; 2]) {
        (self.words, [self.pidfd, self.table.into()])
    }

    /// What was sent.
    pub(super) fn from_parts(words: FoundWords, fds: Vec<OwnedFd>) -> Option<Found> {
        let [pidfd, table] = fds.try_into().ok()?;
        Some(Found { pidfd, table: table.into(), words })
    }
}

/// What a wait for changes waits for.
#[derive(Clone)]
pub(super) enum Awaited {
    /// Has an exceptional condition when the table has changed.
    Table(Arc<File>),
    /// Is readable when the process is gone.
    Process(Arc<OwnedFd>),
}

impl Awaited {
    /// Whether it is that table.
    pub(super) fn is(&self, table: &Arc<File>) -> bool {
        matches!(self, Awaited::Table(it) if Arc::ptr_eq(it, table))
    }

    pub(super) fn poll(&self) -> PollFd<'_> {
        match self {
            Awaited::Table(table) => PollFd::new(table, PollFlags::PRI),
            Awaited::Process(process) => PollFd::new(process, PollFlags::IN),
        }
    }
}

/// The mounts that are watched.
#[derive(Default)]
pub(super) struct OtherMounts {
    watched: Vec<Watched>,
    /// Paths from the lane's root where something else is to be mounted.
    covered: Vec<Vec<u8>>,
}

impl OtherMounts {
    /// None yet, of a lane with these paths covered.
    pub(super) fn beside(covered: Vec<Vec<u8>>) -> OtherMounts {
        OtherMounts { watched: Vec::new(), covered }
    }

    /// Watches what an account's process has mounted of the lane. `None`: the account has as many
    /// that are watched as it may.
    pub(super) fn see(
        &mut self,
        (pid, account): (u32, Account),
        found: Found,
        device: &[u8],
    ) -> Option<Seen> {
        let Found { pidfd, table, words } = found;
        let FoundWords { length, space, node, mount, read_only } = words;
        let charged = length.next_multiple_of(TABLE_STEP_BYTES);
        self.tidy();
        let all = self.watched.iter().flat_map(|one| &one.processes);
        let room = all.filter(|one| one.account == account).count() < PROCESSES_PER_USER_MAX;
        let own = self.watched.iter().filter(|one| one.account == account);
        let (own, bytes) = own.fold((0, charged), |(n, sum), one| (n + 1, sum + one.charged));
        let process = Watching { pid, account, pidfd: Arc::new(pidfd) };
        let is_it =
            |one: &&mut Watched| (one.space, one.id, one.read_only) == (space, mount, read_only);
        if let Some(known) = self.watched.iter_mut().find(is_it) {
            known.look(&self.covered);
            if !known.notice.is_changed() {
                // Those that are gone are no more there: the number is this process's.
                if known.processes.iter().all(|other| other.pid != pid) {
                    room.then(|| known.processes.push(process))?;
                }
                let page = known.page.try_clone().ok()?;
                return Some(Seen { node, read_only, page });
            }
        }
        let fits = own < WATCHED_PER_USER_MAX && bytes <= TABLES_PER_USER_BYTES_MAX;
        if !room || !fits || self.watched.len() >= WATCHED_MAX {
            return None;
        }
        let (notice, page) = Notice::unnamed(space).ok()?;
        let shown = page.try_clone().ok()?;
        let (device, processes) = (device.to_vec(), vec![process]);
        let (id, table) = (mount, Arc::new(table));
        self.watched.push(Watched {
            space,
            id,
            device,
            read_only,
            table,
            charged,
            notice,
            page,
            account,
            processes,
        });
        Some(Seen { node, read_only, page: shown })
    }

    /// What a wait for changes waits for.
    pub(super) fn awaited(&self) -> Vec<Awaited> {
        let all = self.watched.iter().flat_map(|one| {
            let ends = one.processes.iter().map(|one| Awaited::Process(one.pidfd.clone()));
            ends.chain([Awaited::Table(one.table.clone())])
        });
        all.collect()
    }

    /// Looks at what has changed, and forgets mounts whose processes are gone. `ready`: those of
    /// [`awaited`](Self::awaited) that were.
    pub(super) fn wake(&mut self, ready: &[Awaited]) {
        let is_told = |one: &Watched| ready.iter().any(|it| it.is(&one.table));
        let told: Vec<bool> = self.watched.iter().map(is_told).collect();
        self.look(&told);
    }

    /// As [`wake`](Self::wake), by what the kernel says now.
    fn tidy(&mut self) {
        self.look(&vec![false; self.watched.len()]);
    }

    /// `told`: whose table has changed, by what the kernel said.
    fn look(&mut self, told: &[bool]) {
        let covered = &self.covered;
        let looked = |(one, told): (&mut Watched, &bool)| one.look_if_changed(*told, covered);
        let changed: Vec<bool> = self.watched.iter_mut().zip(told).map(looked).collect();
        // A thread that waits for one page counts on the other pages being told, too.
        let counted = self.watched.iter().zip(changed).filter(|(_, changed)| *changed);
        counted.for_each(|(one, _)| one.notice.count());
        for one in &mut self.watched {
            one.processes.retain(|process| !is_ready(process.pidfd.as_fd(), PollFlags::IN));
        }
        self.watched.retain(|one| !one.processes.is_empty());
    }
}

/// The node of a file that a process made without a name by that mount.
pub(super) fn made_in(mount: i32, file: BorrowedFd<'_>) -> Option<u64> {
    let handle = FuseHandle::of(file).ok()?;
    let made = handle::is_unnamed(file).ok()? && handle.mount == mount;
    made.then_some(handle.node)
}

fn is_ready(fd: BorrowedFd<'_>, what: PollFlags) -> bool {
    let mut fds = [PollFd::new(&fd, what)];
    rustix::event::poll(&mut fds, Some(&Timespec::default())) != Ok(0)
}

/// A whole table, unless it is longer than what is read.
pub(super) fn read(mut file: &File) -> Option<Vec<u8>> {
    let mut table = Vec::new();
    file.rewind().ok()?;
    let count = file.take(TABLE_BYTES_MAX as u64 + 1).read_to_end(&mut table).ok()?;
    (count <= TABLE_BYTES_MAX).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "20 1 0:1 / / rw - ext4 x rw\n\
        30 20 0:40 / /l\\040ane rw,nosuid shared:4 - fuse.polylane mem rw,user_id=0\n\
        31 30 0:41 / /l\\040ane/.polylane ro - tmpfs t rw\n\
        32 20 0:40 /d /data ro,nosuid - fuse.polylane mem rw\n\
        33 20 0:42 / /other rw - fuse.x mem rw\n";

    #[test]
    fn a_mount_is_known_by_its_number_and_device() {
        let look = |table: &str, id| read_only(table.as_bytes(), id, b"0:40", &[]);
        assert_eq!(look(TABLE, 30), Some(false), ".polylane alone is mounted in it");
        assert_eq!(look(TABLE, 32), Some(true));
        assert_eq!((look(TABLE, 33), look(TABLE, 34)), (None, None), "another's, none");
        let other = TABLE.replace("fuse.polylane mem rw\n", "fuse.x mem rw\n");
        assert_eq!(look(&other, 32), None, "of the device, and no lane");
        assert_eq!(look(&TABLE.replace("mem rw,user", "mem ro,user"), 30), Some(true));
        for unlike in ["rw,nosymfollow", "rw,nosuid,idmapped"] {
            assert_eq!(look(&TABLE.replace("rw,nosuid", unlike), 30), None, "{unlike}");
        }
        for place in ["/data/sub", "/data", "/data/.polylane2"] {
            let more = format!("{TABLE}40 32 0:50 / {place} rw - tmpfs t rw\n");
            assert_eq!((look(&more, 32), look(&more, 30)), (None, Some(false)), "{place}");
        }
    }

    /// Of this process, as if it had a mount of that number and a table as long as that.
    fn found(mount: usize, length: usize) -> Found {
        let pidfd = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        let table = File::open("/proc/self/mountinfo").unwrap();
        let mount = i32::try_from(mount).unwrap();
        let words = FoundWords { length, space: 1, node: 1, mount, read_only: false };
        Found { pidfd, table, words }
    }

    #[test]
    fn what_one_user_has_watched_takes_no_other_users_place() {
        let me = std::process::id();
        for (length, most) in [(0, WATCHED_PER_USER_MAX), (TABLE_BYTES_MAX, 8)] {
            let mut all = OtherMounts::default();
            for user in [7, 8u32] {
                for mount in 0..most {
                    let found = found(mount + user as usize * 1000, length);
                    assert!(all.see((me, Account::User(user)), found, b"").is_some());
                }
                let one = (me, Account::User(user));
                assert!(all.see(one, found(0, length), b"").is_none(), "{user}");
            }
            assert!(all.see((me, Account::User(9)), found(0, length), b"").is_some());
        }
    }

    #[test]
    fn the_processes_of_one_user_that_are_watched_take_no_other_users_place() {
        let (mut all, me) = (OtherMounts::default(), std::process::id());
        all.see((me, Account::User(7)), found(1, 0), b"").unwrap();
        let pidfd = all.watched[0].processes[0].pidfd.clone();
        let other = |pid| Watching { pid, account: Account::User(7), pidfd: pidfd.clone() };
        let all_of_it = 1..PROCESSES_PER_USER_MAX as u32;
        all.watched[0].processes.extend(all_of_it.map(|more| other(me + more)));
        assert!(all.see((me, Account::User(7)), found(2, 0), b"").is_none(), "one more");
        assert!(all.see((me, Account::User(8)), found(2, 0), b"").is_some());
    }

    #[test]
    fn a_table_that_has_grown_beyond_its_charge_is_watched_no_more() {
        let (mut all, me) = (OtherMounts::default(), std::process::id());
        let page = all.see((me, Account::User(7)), found(1, TABLE_STEP_BYTES), b"").unwrap().page;
        all.watched[0].charged = 0;
        let Awaited::Table(table) = all.awaited().pop().unwrap() else { panic!("a table") };
        all.wake(&[Awaited::Table(table)]);
        assert!(all.watched.is_empty() && all.awaited().is_empty());
        drop(page);
    }

    #[test]
    fn mounts_on_covered_paths_of_the_lanes_root_are_expected() {
        let covered = [b"proc".to_vec(), b"srv/my data".to_vec()];
        let look = |table: &str, id| read_only(table.as_bytes(), id, b"0:40", &covered);
        for (place, plain) in [
            ("/l\\040ane/proc", true),
            ("/l\\040ane/proc/sys", true),
            ("/l\\040ane/srv/my\\040data", true),
            ("/l\\040ane/procs", false),
            ("/l\\040ane/srv", false),
            ("/l\\040ane", false),
        ] {
            let more = format!("{TABLE}40 30 0:50 / {place} rw - tmpfs t rw\n");
            assert_eq!(look(&more, 30).is_some(), plain, "{place}");
        }
        let below = format!("{TABLE}40 32 0:50 / /data/proc rw - tmpfs t rw\n");
        assert_eq!(look(&below, 32), None, "of a directory of the lane");
    }

    #[test]
    fn lines_that_are_none_are_left_out() {
        for line in ["", "30", "x 1 0:1 / / rw - a b c", "30 1 0:1 / / rw", "30 1 0:1 / / rw - a"] {
            assert_eq!(Mount::of(line.as_bytes()), None, "{line}");
        }
    }
}
