//! Places in the calling process's mount namespace: what may become a mount path, what is mounted
//! where, and taking it away.
//!
//! Nothing here looks *at* a lane's root: on a lane whose service is dead that is an error, and on
//! one whose service hangs it does not end.

use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use polylane_base::shown::Shown;

use super::table::Entry;
use crate::failure::{Failure, Result};
use crate::process;

/// One line of mountinfo.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    /// Its number.
    pub(crate) id: u64,
    /// Device number, as stat(2) tells it.
    pub(crate) device: u64,
    /// Where it is.
    pub(crate) place: Vec<u8>,
    /// The kind of file system.
    pub(crate) kind: String,
    /// What the mount does not let through, and more, as `ro,nosuid`.
    pub(crate) options: String,
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
fn try_seen_by(process: &str) -> Option<Vec<Seen>> {
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
    let place = unescaped(words.nth(1)?);
    let options = text(words.next()?);
    let kind = text(words.skip_while(|word| *word != b"-").nth(1)?);
    let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    Some(Seen { id, device, place, kind, options })
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

/// The mount in a descriptor's `fdinfo`.
pub(crate) fn mount_in(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

/// The mounts at `path` or below.
pub(crate) fn seen_below(path: &[u8]) -> Vec<Seen> {
    let is_below = |place: &[u8]| {
        place.strip_prefix(path).is_some_and(|more| more.is_empty() || more.starts_with(b"/"))
    };
    let mut all = seen();
    all.retain(|seen| is_below(&seen.place));
    all
}

/// Where the mount of an entry is, as its supervisor sees it: at its path, or where the directories
/// above it were renamed to.
pub(crate) fn now_at(entry: &Entry) -> Option<Vec<u8>> {
    match Views::default().now_at(entry) {
        Sight::At(place) => Some(place),
        Sight::Gone | Sight::Unknown => None,
    }
}

/// Where a lane's supervisor sees a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Sight {
    /// There.
    At(Vec<u8>),
    /// Nowhere: it was unmounted.
    Gone,
    /// The supervisor cannot be looked at. Its lock says whether it lives: a process that is killed
    /// loses its namespaces before the kernel closes its files.
    Unknown,
}

/// Where entries' mounts are, as their supervisors see them: the mounts of each mount namespace are
/// read once.
#[derive(Default)]
pub(crate) struct Views(HashMap<[PathBuf; 2], Vec<Seen>>);

impl Views {
    /// As [`now_at`], as of the first look at that namespace.
    pub(crate) fn now_at(&mut self, entry: &Entry) -> Sight {
        let link = |name| fs::read_link(format!("/proc/{}/{name}", entry.supervisor)).ok();
        let (Some(namespace), Some(root)) = (link("ns/mnt"), link("root")) else {
            return Sight::Unknown;
        };
        let all = match self.0.entry([namespace, root]) {
            Occupied(known) => known.into_mut(),
            Vacant(new) => {
                let Some(mut all) = try_seen_by(&entry.supervisor.to_string()) else {
                    return Sight::Unknown;
                };
                all.retain(|seen| seen.kind.starts_with("fuse"));
                new.insert(all)
            }
        };
        own_of(entry, all).map_or(Sight::Gone, |seen| Sight::At(seen.place.clone()))
    }
}

/// The mount of an entry among others: by its number where that is one of its device, as it is in
/// the mount namespace in which it was made, else by its path.
pub(crate) fn own_of<'a>(entry: &Entry, all: &'a [Seen]) -> Option<&'a Seen> {
    let of_device = |seen: &&Seen| seen.device == entry.device && seen.kind.starts_with("fuse");
    let mut own = all.iter().filter(of_device);
    let by_number = own.clone().find(|seen| seen.id == u64::from(entry.mount));
    by_number.or_else(|| own.rfind(|seen| seen.place == entry.path))
}

/// The mount of an entry, as this process sees it.
pub(crate) fn mount_of(entry: &Entry) -> Option<Seen> {
    own_of(entry, &seen()).cloned()
}

/// The uppermost mount at exactly this path.
pub(crate) fn topmost(path: &[u8]) -> Option<Seen> {
    seen().into_iter().rfind(|seen| seen.place == path)
}

/// The mount path that a word of the command line means: absolute, without links on the way to it.
///
/// # Errors
/// One line when the directory that it is in does not exist, or it is a root or ends in `..`.
pub(crate) fn find(word: &Path) -> Result<PathBuf> {
    let shown = Shown::new(word);
    let Some(name) = word.file_name() else {
        // `.` alone, or a path that ends in `..` or is the root.
        let whole = word.canonicalize().map_err(|error| Failure::path(word, "find it", error))?;
        return match whole.parent() {
            Some(_) => Ok(whole),
            None => Err(Failure::usage(format!("{shown}: the root cannot be a lane's path"))),
        };
    };
    let parent = match word.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = parent.canonicalize().map_err(|error| Failure::path(word, "find it", error))?;
    Ok(parent.join(name))
}

/// Why a mount stays, and what uses it.
pub(crate) fn not_unmounted(entry: &Entry, why: &dyn fmt::Display) -> Failure {
    let path = Shown::new(OsStr::from_bytes(&entry.path));
    let users = users(&entry.path);
    let users = match users.is_empty() {
        true => String::new(),
        false => format!(": used by {}", users.join(", ")),
    };
    Failure::failed(format!("{path}: cannot unmount it: {why}{users}"))
}

/// Processes that have something open on or below `path`, as people read them; at most three.
fn users(path: &[u8]) -> Vec<String> {
    let is_below = |link: PathBuf| {
        let link = link.into_os_string().into_vec();
        link.strip_prefix(path).is_some_and(|more| more.is_empty() || more.starts_with(b"/"))
    };
    let read = |path: PathBuf| fs::read_link(path).is_ok_and(is_below);
    let uses = |dir: &Path| {
        let own = ["cwd", "root", "exe"].into_iter().any(|name| read(dir.join(name)));
        let mut links = ["fd", "map_files"]
            .into_iter()
            .flat_map(|name| fs::read_dir(dir.join(name)).into_iter().flatten().flatten());
        own || links.any(|entry| read(entry.path()))
    };
    let using = process::pids().filter(|pid| uses(&PathBuf::from(format!("/proc/{pid}"))));
    let shown = using.map(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("{pid} ({})", name.trim())
    });
    shown.take(3).collect()
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
        assert!(seen.is_lane() && seen.options == "rw,nosuid");
        for wrong in [&b""[..], b"36 35", b"x 35 0:41 / /a rw - t s o", b"1 2 3 / /a rw - t s o"] {
            assert_eq!(seen_line(wrong), None);
        }
        assert_eq!(unescaped(b"\\134\\012x\\9\\"), b"\\\nx\\9\\");
    }

    #[test]
    fn a_path_is_found_without_looking_at_its_end() {
        let dir = tempfile::tempdir().expect("tempdir");
        let real = dir.path().canonicalize().expect("canonical");
        std::os::unix::fs::symlink(&real, real.join("link")).expect("symlink");
        assert_eq!(find(&real.join("link/a")), Ok(real.join("a")));
        assert_eq!(find(&real.join("link")), Ok(real.join("link")), "the link itself");
        assert_eq!(find(&real.join("a/")), Ok(real.join("a")));
        assert_eq!(find(Path::new("/")).expect_err("the root").status, 2);
        assert_eq!(find(&real.join("no/a")).expect_err("no parent").status, 1);
    }

    #[test]
    fn a_mount_is_known_by_its_number_and_device_and_elsewhere_by_its_path() {
        let seen = |id, device, place: &str| {
            let (kind, options) = ("fuse.polylane".to_string(), String::new());
            Seen { id, device, place: place.into(), kind, options }
        };
        let path = b"/up/m".to_vec();
        let entry = Entry { path, device: 41, mount: 7, ..Entry::default() };
        let own = |all: Vec<Seen>| own_of(&entry, &all).map(|seen| seen.id);
        let renamed = || vec![seen(6, 40, "/up/m"), seen(7, 41, "/old/m"), seen(9, 41, "/other")];
        assert_eq!(own(renamed()), Some(7), "its parent has another name");
        assert_eq!(own(vec![seen(7, 40, "/up/m")]), None, "the number is another mount's by now");
        assert_eq!(own(vec![seen(8, 41, "/x"), seen(9, 41, "/up/m")]), Some(9), "elsewhere");
    }
}
