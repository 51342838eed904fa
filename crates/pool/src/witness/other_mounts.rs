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

use polylane_ipc::message::RESERVED_DIR;
use polylane_sys::handle::{self, FuseHandle};
use polylane_sys::notice::Notice;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::mount_table::{below, escaped};

/// Most mounts that are watched; processes of one more have no session.
const WATCHED_MAX: usize = 1024;

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
    let plain = !own.has(b"nosymfollow") && !Mount::all(table).any(|mount| covers(&mount));
    plain.then(|| own.has(b"ro"))
}

/// A mount that is watched.
struct Watched {
    /// Inode number of the namespace of mounts.
    space: u64,
    id: i32,
    device: Vec<u8>,
    read_only: bool,
    table: File,
    notice: Notice,
    page: OwnedFd,
    /// Of processes that have sessions by it.
    processes: Vec<OwnedFd>,
}

impl Watched {
    /// Reads the table again, and shows whether the mount is as it was.
    fn look(&mut self, covered: &[Vec<u8>]) {
        let now = read(&mut self.table);
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
    /// The mount's number.
    pub(super) mount: i32,
    pub(super) read_only: bool,
    /// The page that tells of mounts there.
    pub(super) page: OwnedFd,
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

    /// What a process sees of the lane on `device`, that opened `root` as its root.
    pub(super) fn see(&mut self, pid: u32, root: BorrowedFd<'_>, device: &[u8]) -> Option<Seen> {
        let FuseHandle { node, mount } = FuseHandle::of(root).ok()?;
        if !handle::is_readable(root).ok()? {
            return None;
        }
        self.tidy();
        let process = Pid::from_raw(pid.cast_signed())?;
        let process = pidfd_open(process, PidfdFlags::empty()).ok()?;
        // The process's own: it shows what its root directory lets it reach.
        let mut table = File::open(format!("/proc/{pid}/mountinfo")).ok()?;
        let read_only = read_only(&read(&mut table)?, mount, device, &self.covered)?;
        let space = fs::metadata(format!("/proc/{pid}/ns/mnt")).ok()?.ino();
        let is_it =
            |one: &&mut Watched| (one.space, one.id, one.read_only) == (space, mount, read_only);
        if let Some(known) = self.watched.iter_mut().find(is_it) {
            known.look(&self.covered);
            if !known.notice.is_changed() {
                known.processes.push(process);
                let page = known.page.try_clone().ok()?;
                return Some(Seen { node, mount, read_only, page });
            }
        }
        if self.watched.len() >= WATCHED_MAX {
            return None;
        }
        let (notice, page) = Notice::unnamed(space).ok()?;
        let shown = page.try_clone().ok()?;
        let (device, processes) = (device.to_vec(), vec![process]);
        let id = mount;
        self.watched.push(Watched { space, id, device, read_only, table, notice, page, processes });
        Some(Seen { node, mount, read_only, page: shown })
    }

    /// What a wait for changes waits for.
    pub(super) fn awaited(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.watched.iter().flat_map(|one| {
            let ends = one.processes.iter().map(|process| PollFd::new(process, PollFlags::IN));
            ends.chain([PollFd::new(&one.table, PollFlags::PRI)])
        })
    }

    /// Looks at what has changed, and forgets mounts whose processes are gone. `ready`: which of
    /// [`awaited`](Self::awaited) were.
    pub(super) fn wake(&mut self, ready: &[bool]) {
        let mut ready = ready.iter().copied();
        let tables = self.watched.iter().map(|one| ready.nth(one.processes.len()).unwrap_or(false));
        let told: Vec<bool> = tables.collect();
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
        // Who waits for one page takes it that the other pages are told, too.
        let counted = self.watched.iter().zip(changed).filter(|(_, changed)| *changed);
        counted.for_each(|(one, _)| one.notice.count());
        for one in &mut self.watched {
            one.processes.retain(|process| !is_ready(process.as_fd(), PollFlags::IN));
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

fn read(file: &mut File) -> Option<Vec<u8>> {
    let mut table = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut table)).ok()?;
    Some(table)
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
        assert_eq!(look(&TABLE.replace("rw,nosuid", "rw,nosymfollow"), 30), None);
        for place in ["/data/sub", "/data", "/data/.polylane2"] {
            let more = format!("{TABLE}40 32 0:50 / {place} rw - tmpfs t rw\n");
            assert_eq!((look(&more, 32), look(&more, 30)), (None, Some(false)), "{place}");
        }
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
