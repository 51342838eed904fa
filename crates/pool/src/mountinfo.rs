//! What a process sees mounted, by `/proc/PID/mountinfo`.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

/// One line of mountinfo.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    /// Its number.
    pub(crate) id: u64,
    /// Device number, as stat(2) tells it.
    pub(crate) device: u64,
    /// What of its file system is shown, from the root of that.
    pub(crate) root: Vec<u8>,
    /// Where it is.
    pub(crate) place: Vec<u8>,
    /// The kind of file system.
    pub(crate) kind: String,
    /// What the mount does not let through, and more, as `ro,nosuid`.
    pub(crate) options: String,
    /// Mounts in it are handed on to copies of it, or come from another one.
    pub(crate) propagates: bool,
}

/// The kind of a lane's mounts.
pub(crate) const LANE_KIND: &str = "fuse.polylane";

impl Seen {
    /// Whether it is a lane's.
    pub(crate) fn is_lane(&self) -> bool {
        self.kind == LANE_KIND
    }
}

/// What this process sees mounted, in the order in which it was mounted.
pub(crate) fn seen() -> Vec<Seen> {
    seen_by("self")
}

/// What another process sees mounted; nothing where it has ended.
pub(crate) fn seen_by(process: &str) -> Vec<Seen> {
    try_seen_by(process).unwrap_or_default()
}

/// What another process sees mounted; `None`: that cannot be told, as of a process that ends just
/// now.
pub(crate) fn try_seen_by(process: &str) -> Option<Vec<Seen>> {
    let table = fs::read(format!("/proc/{process}/mountinfo")).ok()?;
    Some(table.split(|&byte| byte == b'\n').filter_map(seen_line).collect())
}

/// "ID PARENT MAJOR:MINOR ROOT PLACE OPTIONS [TAGS…] - KIND SOURCE OPTIONS"
fn seen_line(line: &[u8]) -> Option<Seen> {
    let mut words = line.split(|&byte| byte == b' ');
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let id = text(words.next()?).parse().ok()?;
    let device = text(words.nth(1)?);
    let (major, minor) = device.split_once(':')?;
    let (root, place) = (unescaped(words.next()?), unescaped(words.next()?));
    let options = text(words.next()?);
    let of_peers = |tag: &&[u8]| tag.starts_with(b"shared:") || tag.starts_with(b"master:");
    let tags = words.by_ref().take_while(|word| *word != b"-");
    let propagates = tags.filter(of_peers).count() > 0;
    let kind = text(words.next()?);
    let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    Some(Seen { id, device, root, place, kind, options, propagates })
}

/// What is mounted at a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountedAt {
    /// The upper directory of an overlay file system, where it was named by its whole path.
    pub overlay_upper: Option<PathBuf>,
}

/// What this process sees mounted at `path` itself; `None`: nothing, or there is no such path.
///
/// # Errors
/// Why that cannot be told. Before Linux 5.8 a mount may be missed while others are unmounted.
pub fn mounted_at(path: &Path) -> io::Result<Option<MountedAt>> {
    let path = match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        path => path?,
    };
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(mounted_in(&table, path.as_os_str().as_bytes()))
}

fn mounted_in(table: &[u8], place: &[u8]) -> Option<MountedAt> {
    // The last one hides those before.
    let mut lines = table.rsplit(|&byte| byte == b'\n');
    let line = lines.find(|line| seen_line(line).is_some_and(|seen| seen.place == place))?;
    let overlay_upper = overlay_options(line).and_then(|options| {
        let mut options = options.split(|&byte| byte == b',');
        let upper = options.find_map(|option| option.strip_prefix(b"upperdir="))?;
        let upper = PathBuf::from(OsStr::from_bytes(&unescaped(upper)));
        upper.is_absolute().then_some(upper)
    });
    Some(MountedAt { overlay_upper })
}

/// The options of the file system of a line, if that is an overlay.
fn overlay_options(line: &[u8]) -> Option<&[u8]> {
    let mut words = line.split(|&byte| byte == b' ').skip_while(|word| *word != b"-").skip(1);
    words.next().filter(|kind| *kind == b"overlay")?;
    words.nth(1)
}

/// A path of mountinfo, where some bytes stand as `\ooo`.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut path = Vec::new();
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let digits = text.get(at + 1..at + 4).filter(|_| byte == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(value) => {
                path.push(value);
                at += 4;
            }
            None => {
                path.push(byte);
                at += 1;
            }
        }
    }
    path
}

/// Where a path that is absolute and without links is in its file system, as a path of the device's
/// number and then the names from the root of the file system: the same by whichever bind mount it
/// is reached. What is yet to be made is looked for where its parent is.
pub(crate) fn in_files(path: &Path, all: &[Seen]) -> Option<PathBuf> {
    let mask = StatxFlags::MNT_ID;
    let stat = path.ancestors().find_map(|above| statx(CWD, above, AtFlags::empty(), mask).ok())?;
    let has_mount = StatxFlags::from_bits_retain(stat.stx_mask).contains(mask);
    let mount = all.iter().find(|seen| has_mount && seen.id == stat.stx_mnt_id)?;
    let below = path.strip_prefix(OsStr::from_bytes(&mount.place)).ok()?;
    let root = mount.root.strip_prefix(b"/")?;
    Some(Path::new(&mount.device.to_string()).join(OsStr::from_bytes(root)).join(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo_are_read() {
        let line = b"36 35 0:41 / /my\\040lane rw,nosuid master:1 - fuse.polylane polylane rw";
        let seen = seen_line(line).expect("a line");
        assert_eq!((seen.id, seen.place.as_slice()), (36, &b"/my lane"[..]));
        assert_eq!(
            (seen.device, seen.kind.as_str()),
            (rustix::fs::makedev(0, 41), "fuse.polylane")
        );
        assert!(seen.is_lane() && seen.options == "rw,nosuid" && seen.propagates);
        let alone = b"36 35 0:41 / /a rw unbindable - fuse.polylane polylane rw";
        assert!(seen_line(alone).is_some_and(|seen| seen.is_lane() && !seen.propagates));
        for wrong in [&b""[..], b"36 35", b"x 35 0:41 / /a rw - t s o", b"1 2 3 / /a rw - t s o"] {
            assert_eq!(seen_line(wrong), None);
        }
        assert_eq!(unescaped(b"\\134\\012x\\9\\"), b"\\\nx\\9\\");
    }

    #[test]
    fn the_upper_directory_of_an_overlay_is_told() {
        let table = br"36 35 0:41 / /a\040b rw - overlay overlay rw,upperdir=/old/diff
37 36 0:42 / /a\040b rw - overlay overlay rw,lowerdir=/l,upperdir=/u\054p/diff,workdir=/w
38 35 0:43 / /relative rw - overlay overlay rw,lowerdir=l,upperdir=u/diff
39 35 0:44 / /ext4 rw - ext4 /dev/vda rw,upperdir=/x
";
        let upper = |place: &[u8]| mounted_in(table, place).map(|found| found.overlay_upper);
        assert_eq!(upper(b"/a b"), Some(Some("/u,p/diff".into())));
        assert_eq!((upper(b"/relative"), upper(b"/ext4")), (Some(None), Some(None)));
        assert_eq!(upper(b"/a"), None);
        let at = |path: &str| mounted_at(Path::new(path)).map(|found| found.is_some());
        assert!(matches!((at("/proc"), at("/proc/self")), (Ok(true), Ok(false))));
        assert!(matches!((at("/proc/nope"), at(&"x".repeat(300))), (Ok(false), Err(_))));
    }

    #[test]
    fn a_place_in_a_file_system_is_told_by_its_mounts_root() {
        let dir = tempfile::tempdir().expect("tempdir");
        let real = dir.path().canonicalize().expect("canonical");
        let mut all = seen();
        let here = in_files(&real, &all).expect("its mount is seen");
        assert_eq!(in_files(&real.join("yet/to be made"), &all), Some(here.join("yet/to be made")));
        // As by a bind mount of a directory.
        all.iter_mut().for_each(|seen| seen.root = b"/bound".to_vec());
        let bound = in_files(&real, &all).expect("its mount is seen");
        assert!(bound != here && bound.iter().any(|name| name == "bound"), "{bound:?}");
        assert_eq!(in_files(&real, &[]), None);
    }
}
