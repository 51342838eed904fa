//! What the tenant mounts at its lane after COMMAND began, for the preload library, which then
//! leaves paths to the kernel (`client/src/mounts.rs`).

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::OwnedFd;
use std::path::Path;

use polylane_sys::notice::{self, Notice};

/// Name of the page in the lane's run directory.
const NAME: &str = "mounts";

/// The calling process's table of mounts, watched.
pub(crate) struct MountTable {
    /// Has an exceptional condition (`PollFlags::PRI`) when the table has changed.
    pub(crate) file: File,
    lane: Vec<u8>,
    first: Vec<Vec<u8>>,
    notice: Notice,
}

impl MountTable {
    /// The table, with its page in `run_dir`. `None`: this host shows no table, and the library
    /// goes by what it was at the begin.
    pub(crate) fn watch(lane: &Path, run_dir: &OwnedFd) -> Option<MountTable> {
        let file = File::open("/proc/self/mountinfo").ok()?;
        let notice = Notice::create(run_dir, Path::new(NAME), notice::mount_space()?).ok()?;
        use std::os::unix::ffi::OsStrExt;
        let lane = escaped(lane.as_os_str().as_bytes());
        Some(MountTable { file, lane, first: Vec::new(), notice })
    }

    /// The mounts are as they are to be.
    pub(crate) fn begin(&mut self) {
        self.first = self.now();
    }

    /// Tells whether they still are.
    pub(crate) fn look(&mut self) {
        let now = self.now();
        self.notice.tell(now != self.first);
    }

    /// Number and place of each mount at the lane or below.
    fn now(&mut self) -> Vec<Vec<u8>> {
        let mut text = Vec::new();
        let read = self.file.rewind().and_then(|()| self.file.read_to_end(&mut text));
        // Half a table tells nothing.
        if read.is_err() {
            return Vec::new();
        }
        text.split(|&byte| byte == b'\n').filter_map(|line| mount_at(line, &self.lane)).collect()
    }
}

/// `NUMBER PLACE` of a line of mountinfo, if it is at this path or below.
fn mount_at(line: &[u8], lane: &[u8]) -> Option<Vec<u8>> {
    let mut words = line.split(|&byte| byte == b' ');
    let (number, place) = (words.next()?, words.nth(3)?);
    let below = place.strip_prefix(lane)?;
    let inside = below.is_empty() || below[0] == b'/' || lane == b"/";
    inside.then(|| [number, place].join(&b' '))
}

/// A path as mountinfo shows it.
fn escaped(path: &[u8]) -> Vec<u8> {
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
        let found = Some(b"36 /lane/a".to_vec());
        assert_eq!(mount_at(LINE, b"/lane"), found);
        assert_eq!(mount_at(LINE, b"/"), found);
        assert_eq!(mount_at(LINE, b"/lane/a"), found);
        assert_eq!(mount_at(LINE, b"/lan"), None);
        assert_eq!(mount_at(LINE, b"/lane/a/b"), None);
        assert_eq!(mount_at(b"", b"/"), None);
    }

    #[test]
    fn paths_are_escaped_as_the_kernel_does() {
        assert_eq!(escaped(b"/a b\\c\n"), b"/a\\040b\\134c\\012");
    }
}
