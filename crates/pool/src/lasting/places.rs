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

use polylane_base::Errno;
use polylane_base::shown::Shown;
use polylane_ipc::message::RESERVED_DIR;

use super::table::Entry;
use crate::failure::{Failure, Result};
use crate::mountinfo::{Seen, seen, try_seen_by};
use crate::process;
use crate::stays::{Cause, Stays};

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

/// The mount namespace of a process, and its root directory in it.
pub(super) fn view_of(process: &dyn fmt::Display) -> Option<[PathBuf; 2]> {
    let link = |name| fs::read_link(format!("/proc/{process}/{name}")).ok();
    Some([link("ns/mnt")?, link("root")?])
}

/// Whether a process sees the same mounts at the same paths as this one.
pub(crate) fn has_own_view(process: u32) -> bool {
    let own = view_of(&"self");
    own.is_some() && own == view_of(&process)
}

/// Where entries' mounts are, as their supervisors see them: the mounts of each mount namespace are
/// read once.
#[derive(Default)]
pub(crate) struct Views(HashMap<[PathBuf; 2], Vec<Seen>>);

impl Views {
    /// As [`now_at`], as of the first look at that namespace.
    pub(crate) fn now_at(&mut self, entry: &Entry) -> Sight {
        let Some(view) = view_of(&entry.supervisor) else { return Sight::Unknown };
        let all = match self.0.entry(view) {
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

/// Why a mount stays, and what uses it: what is mounted in it, else processes.
pub(crate) fn not_unmounted(entry: &Entry, why: &dyn fmt::Display) -> Failure {
    let path = Shown::new(OsStr::from_bytes(&entry.path));
    Failure::failed(format!("{path}: cannot unmount it: {why}{}", uses(entry)))
}

/// The same by an error of the kernel's, once everything was written back.
pub(crate) fn stays(entry: &Entry, why: Errno) -> Stays {
    Stays::new(Cause::of(why), not_unmounted(entry, &why))
}

/// Whether anything uses a mount that stays as long as it does. A process that looks at its path
/// uses it for a moment, which nothing shows.
pub(crate) fn is_used(entry: &Entry) -> bool {
    !uses(entry).is_empty()
}

/// What uses a mount, as the end of a line.
fn uses(entry: &Entry) -> String {
    // What lanes mount in themselves is not for their users to unmount.
    let is_lanes_own =
        |place: &[u8]| Path::new(OsStr::from_bytes(place)).iter().any(|name| name == RESERVED_DIR);
    let is_other = |seen: &Seen| seen.place != entry.path && !is_lanes_own(&seen.place);
    let inner = seen_below(&entry.path).into_iter().rfind(is_other);
    match inner {
        Some(inner) => {
            let inner = Shown::new(OsStr::from_bytes(&inner.place)).to_string();
            format!(": {inner} is mounted in it: umount that first")
        }
        None => match users(&entry.path) {
            users if users.is_empty() => String::new(),
            users => format!(": used by {}", users.join(", ")),
        },
    }
}

/// Why the mount of a lane stays that is at the path of `other` as well.
pub(crate) fn is_shared(entry: &Entry, other: &Entry) -> Failure {
    let other = Shown::new(OsStr::from_bytes(&other.path)).to_string();
    not_unmounted(entry, &format_args!("shared at {other}: umount that first"))
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
            let (root, place) = (b"/".into(), place.into());
            Seen { id, device, root, place, kind, options, propagates: false }
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
