//! What the tenant mounts at its lane after COMMAND began, for the preload library, which then
//! leaves paths to the kernel (`client/src/mounts.rs`).

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::OwnedFd;
use std::path::Path;

use polylane_base::{Errno, Result};
use polylane_sys::mount::{MountId, MountState};
use polylane_sys::notice::{self, Notice};

/// Name of the page in the lane's run directory.
const NAME: &str = "mounts";

/// The calling process's table of mounts, watched.
pub(crate) struct MountTable {
    /// Has an exceptional condition (`PollFlags::PRI`) when the table has changed.
    pub(crate) file: File,
    lane: Vec<u8>,
    /// The lane's mount, where the kernel tells of one mount: the whole table takes a millisecond
    /// beside some hundred others, and every lane's is read at every change.
    mount: Option<MountId>,
    first: Mounts,
    notice: Notice,
}

/// What is mounted at a lane.
#[derive(PartialEq, Eq)]
enum Mounts {
    /// The lane's own mount and those in it.
    Told(Vec<(MountId, MountState)>),
    /// Number and place of each at the lane or below, and whether it may be written to.
    Read(Vec<Vec<u8>>),
    /// It could not be found out.
    Unknown,
}

impl MountTable {
    /// The table, with its page in `run_dir`, for a lane's mount at that path. `None`: this host
    /// shows no table, and the library goes by what it was at the begin.
    pub(crate) fn watch(mount: &OwnedFd, lane: &Path, run_dir: &OwnedFd) -> Option<MountTable> {
        let file = File::open("/proc/self/mountinfo").ok()?;
        let notice = Notice::create(run_dir, Path::new(NAME), notice::mount_space()?).ok()?;
        use std::os::unix::ffi::OsStrExt;
        let lane = escaped(lane.as_os_str().as_bytes());
        let mount = MountId::of(mount).ok();
        Some(MountTable { file, lane, mount, first: Mounts::Unknown, notice })
    }

    /// The mounts are as they are to be.
    pub(crate) fn begin(&mut self) {
        self.first = self.now();
        if self.first == Mounts::Unknown && self.mount.take().is_some() {
            self.first = self.now();
        }
    }

    /// Tells the library whether they still are. Whether the lane's mount is there, as far as the
    /// look has shown it.
    pub(crate) fn look(&mut self) -> Option<bool> {
        let now = self.now();
        self.notice.tell(now != self.first);
        match now {
            Mounts::Told(mounts) => Some(mounts.first().map(|(id, _)| *id) == self.mount),
            Mounts::Read(_) | Mounts::Unknown => None,
        }
    }

    fn now(&mut self) -> Mounts {
        match self.mount {
            Some(mount) => told(mount).map_or(Mounts::Unknown, Mounts::Told),
            None => self.read(),
        }
    }

    fn read(&mut self) -> Mounts {
        let mut text = Vec::new();
        let read = self.file.rewind().and_then(|()| self.file.read_to_end(&mut text));
        // Half a table tells nothing.
        if read.is_err() {
            return Mounts::Unknown;
        }
        let lines = text.split(|&byte| byte == b'\n');
        Mounts::Read(lines.filter_map(|line| mount_at(line, &self.lane)).collect())
    }
}

/// A mount and those in it, as far as they are still there.
fn told(mount: MountId) -> Result<Vec<(MountId, MountState)>> {
    let below = match mount.mounts_in() {
        Err(Errno::ENOENT) => return Ok(Vec::new()),
        below => below?,
    };
    let all = [mount].into_iter().chain(below);
    let there = |id: MountId| Some((id, id.state().transpose()?));
    all.filter_map(there).map(|(id, state)| Ok((id, state?))).collect()
}

/// `NUMBER PLACE rw|ro` of a line of mountinfo, if it is at this path or below.
fn mount_at(line: &[u8], lane: &[u8]) -> Option<Vec<u8>> {
    let mut words = line.split(|&byte| byte == b' ');
    let (number, place) = (words.next()?, words.nth(3)?);
    let how = words.next()?.split(|&byte| byte == b',').next()?;
    below(place, lane)?;
    Some([number, place, how].join(&b' '))
}

/// What of a path is below another; empty: it is that one.
pub(crate) fn below<'a>(place: &'a [u8], lane: &[u8]) -> Option<&'a [u8]> {
    let below = place.strip_prefix(lane.strip_suffix(b"/").unwrap_or(lane))?;
    match below {
        [] => Some(below),
        [b'/', rest @ ..] => Some(rest),
        _ => None,
    }
}

/// Whether paths of a lane mean what they mean to its service: it is mounted once, to be written
/// to, with nothing on it but what was `covered` from the first.
pub(crate) fn is_plain(table: &[u8], lane: &[u8], covered: &[Vec<u8>]) -> bool {
    let lane = escaped(lane);
    let (mut at, mut plain) = (0, true);
    for line in table.split(|&byte| byte == b'\n') {
        let mut words = line.split(|&byte| byte == b' ');
        let place = words.nth(4).and_then(|place| below(place, &lane));
        let mut writes = || words.next().is_some_and(|how| how.starts_with(b"rw"));
        match place {
            None => {}
            Some([]) => (at, plain) = (at + 1, plain && writes()),
            Some(place) => {
                let is = |known: &Vec<u8>| below(place, &escaped(known)).is_some();
                plain &= covered.iter().any(is);
            }
        }
    }
    plain && at == 1
}

/// Whether this process sees something mounted below a path, or cannot tell.
pub(crate) fn has_mounts_below(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let path = escaped(path.as_os_str().as_bytes());
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else { return true };
    let lines = table.split(|&byte| byte == b'\n');
    let mut places = lines.filter_map(|line| line.split(|&byte| byte == b' ').nth(4));
    places.any(|place| below(place, &path).is_some_and(|below| !below.is_empty()))
}

/// A path as mountinfo shows it.
pub(crate) fn escaped(path: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    for &byte in path {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => text.extend(format!("\\{byte:03o}").bytes()),
            _ => text.push(byte),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &[u8] = b"36 35 98:0 /mnt1 /lane/a rw,noatime master:1 - ext3 /dev/root rw";

    #[test]
    fn mounts_at_the_lane_are_found() {
        let found = Some(b"36 /lane/a rw".to_vec());
        assert_eq!(mount_at(LINE, b"/lane"), found);
        assert_eq!(mount_at(LINE, b"/"), found);
        assert_eq!(mount_at(LINE, b"/lane/a"), found);
        assert_eq!(mount_at(LINE, b"/lan"), None);
        assert_eq!(mount_at(LINE, b"/lane/a/b"), None);
        assert_eq!(mount_at(b"", b"/"), None);
    }

    #[test]
    fn a_lane_is_plain_as_long_as_nothing_covers_it() {
        const LANE: &str = "20 1 0:1 / / rw - ext4 x rw\n30 20 0:2 / /my\\040lane rw - fuse l rw\n\
                            31 30 0:3 / /my\\040lane/.polylane rw - tmpfs r rw\n";
        let covered = [b".polylane".to_vec()];
        let plain = |table: &str| is_plain(table.as_bytes(), b"/my lane", &covered);
        assert!(plain(LANE));
        assert!(!plain(&LANE.replace("040lane rw - fuse", "040lane ro - fuse")), "read-only");
        for more in ["lane/hidden", "lane/.polylane2", "lane"] {
            let over = format!("{LANE}40 30 0:4 / /my\\040{more} rw - tmpfs t rw\n");
            assert!(!plain(&over), "{more}");
        }
        assert!(plain(&format!("{LANE}40 20 0:4 / /my\\040lanes rw - tmpfs t rw\n")));
        assert!(!plain(""), "it is not there");
        let root = "20 1 0:1 / / rw - fuse x rw\n21 20 0:4 / /.polylane rw - tmpfs r rw\n";
        assert!(is_plain(root.as_bytes(), b"/", &covered));
        let over = format!("{root}22 20 0:5 / /home rw - tmpfs t rw\n");
        assert!(!is_plain(over.as_bytes(), b"/", &covered));
    }

    #[test]
    fn paths_are_escaped_as_the_kernel_does() {
        assert_eq!(escaped(b"/a b\\c\n"), b"/a\\040b\\134c\\012");
    }
}
