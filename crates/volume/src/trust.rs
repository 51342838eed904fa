//! Which users may have put a file where it lies, or written what it says (decision 0040).
//!
//! Root makes and serves volumes in directories of other users, who may exchange every name there:
//! for a link, for a file of somebody else, for a sidecar of their own. So whatever is found beside
//! a volume counts as said by whoever could have put it there.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use polylane_base::shown::Shown;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;

use crate::failure::{Failure, Result};

/// Links on one path, at most: as the kernel has it.
const LINKS_MAX: usize = 40;

/// The users that decide about a name, or about what a file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Author {
    /// The user who runs this command, or root.
    #[default]
    Caller,
    /// Another user as well.
    User(u32),
    /// Several other users.
    Anyone,
}

impl Author {
    /// The users that decide where both do.
    pub(crate) fn and(self, other: Author) -> Author {
        match (self, other) {
            (Author::Caller, author) | (author, Author::Caller) => author,
            (one, other) if one == other => one,
            _ => Author::Anyone,
        }
    }

    /// A user.
    fn user(uid: u32) -> Author {
        match uid == 0 || uid == rustix::process::geteuid().as_raw() {
            true => Author::Caller,
            false => Author::User(uid),
        }
    }

    /// The users that may write to a file: its owner, and others where its mode lets them. A group
    /// with the number of the owner is the owner's own.
    pub(crate) fn of_file(stat: &Stat) -> Author {
        let owner = Author::user(stat.st_uid);
        let by_group = stat.st_mode & 0o020 != 0 && stat.st_gid != 0 && stat.st_gid != stat.st_uid;
        match by_group || stat.st_mode & 0o002 != 0 {
            true => Author::Anyone,
            false => owner,
        }
    }

    /// The users that may exchange names in a directory. In a sticky one that is the owner of each,
    /// and its own.
    fn of_directory(stat: &Stat) -> Author {
        match stat.st_mode & libc::S_ISVTX != 0 {
            true => Author::user(stat.st_uid),
            false => Author::of_file(stat),
        }
    }

    /// Whether this author may already read and write a file of this owner.
    fn owns(self, owner: u32) -> bool {
        match self {
            Author::Caller => true,
            Author::User(uid) => uid == owner,
            Author::Anyone => false,
        }
    }
}

/// How a path leads to what it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Way {
    /// The users that decide what its last name stands for: the directory's, and those of links.
    pub(crate) author: Author,
    /// Those of links alone.
    links: Author,
    /// Those of every directory on the way.
    directories: Author,
    /// Device and inode number of what it names; `None`: nothing has the last name.
    end: Option<(u64, u64)>,
}

/// Walks a path, name by name, by descriptors.
///
/// # Errors
/// The host's: a directory on the way is not there, or may not be searched.
pub(crate) fn way_to(path: &Path) -> rustix::io::Result<Way> {
    walk(path, |stat| stat).map(|(way, _)| way)
}

/// Walks a path; how it leads to what it names, and that, as a path: where nothing has the last
/// name, the directory that would have it. `seen`: files as the caller takes them, by owner and
/// group.
fn walk(path: &Path, seen: impl Fn(Stat) -> Stat) -> rustix::io::Result<(Way, OwnedFd)> {
    let path_only = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let open = |dir: &OwnedFd, name: &OsStr| {
        // What is mounted once it is looked into is mounted for this.
        match openat(dir, name, path_only | OFlags::DIRECTORY, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => openat(dir, name, path_only, Mode::empty()),
            opened => opened,
        }
    };
    let start = |path: &Path| {
        let name = if path.is_absolute() { "/" } else { "." };
        openat(CWD, name, OFlags::PATH | OFlags::CLOEXEC | OFlags::DIRECTORY, Mode::empty())
    };
    let mut way = Way::default();
    let mut dir = start(path)?;
    let mut left: VecDeque<OsString> = names(path).collect();
    let mut followed = 0;
    while let Some(name) = left.pop_front() {
        let of_dir = Author::of_directory(&seen(fstat(&dir)?));
        way.directories = way.directories.and(of_dir);
        let is_last = left.is_empty();
        if is_last {
            way.author = way.links.and(of_dir);
        }
        let next = match open(&dir, &name) {
            Err(Errno::NOENT) if is_last => return Ok((Way { end: None, ..way }, dir)),
            next => next?,
        };
        let stat = seen(fstat(&next)?);
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            dir = next;
            continue;
        }
        way.links = way.links.and(of_dir).and(Author::user(stat.st_uid));
        followed += 1;
        if followed > LINKS_MAX {
            return Err(Errno::LOOP);
        }
        let target = OsString::from_vec(readlinkat(&next, "", Vec::new())?.into_bytes());
        if is_magic(&next) {
            // Its text is for people: it leads to an open file.
            dir = openat(&dir, &name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            continue;
        }
        let target = Path::new(&target);
        if target.is_absolute() {
            dir = start(target)?;
        }
        names(target).collect::<Vec<_>>().into_iter().rev().for_each(|name| left.push_front(name));
    }
    way.author = way.author.and(way.links);
    way.end = Some(place(&fstat(&dir)?));
    Ok((way, dir))
}

/// What a path leads to.
#[derive(Debug)]
pub struct Found {
    /// It, as a path (`O_PATH`).
    pub file: OwnedFd,
    /// Its absolute path without links.
    pub path: PathBuf,
}

impl Found {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        fstat(&self.file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir())
    }

    /// Opens it.
    ///
    /// # Errors
    /// The host's.
    pub fn open(&self, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        rustix::fs::open(self_fd(&self.file), flags | OFlags::CLOEXEC, Mode::empty())
    }
}

/// Whose links lead on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Links {
    /// The caller's and root's.
    Own,
    /// Those, and another user's to what that user owns.
    ToTheirs,
}

/// Where a path leads.
enum Lead {
    To(Found),
    /// Nothing has its last name.
    Nowhere,
    /// By a link that does not lead on.
    Astray,
}

/// Walks a path by the links that lead on. What is found is what was looked at: others may exchange
/// names on the path meanwhile.
fn lead(path: &Path, links: Links) -> rustix::io::Result<Lead> {
    if path.as_os_str().is_empty() {
        return Err(Errno::NOENT);
    }
    // Where not every user has a number, root's files are as those of users without one.
    let unknown = (!maps_all_users()).then(|| (overflow("uid"), overflow("gid")));
    let seen = |stat| match unknown {
        Some(unknown) => with_unknown_as_root(stat, unknown),
        None => stat,
    };
    let (way, file) = walk(path, seen)?;
    let stat = fstat(&file)?;
    let leads_on = match links {
        Links::Own => way.links == Author::Caller,
        Links::ToTheirs => way.links.owns(stat.st_uid),
    };
    if !leads_on {
        return Ok(Lead::Astray);
    }
    if way.end.is_none() {
        return Ok(Lead::Nowhere);
    }
    let path = rustix::fs::readlink(self_fd(&file), Vec::new())?;
    let path = PathBuf::from(OsString::from_vec(path.into_bytes()));
    // The name of what was removed has more words.
    let now = statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW)?;
    match place(&now) == place(&stat) {
        true => Ok(Lead::To(Found { file, path })),
        false => Err(Errno::STALE),
    }
}

/// What a path leads to; `None`: nothing has its last name. `what`: what it is for.
///
/// # Errors
/// A link of another user is on the way, by whose word it leads elsewhere; the host's.
pub fn find(path: &Path, links: Links, what: &str) -> Result<Option<Found>> {
    match lead(path, links).map_err(|error| Failure::path(path, what, error))? {
        Lead::To(found) => Ok(Some(found)),
        Lead::Nowhere => Ok(None),
        Lead::Astray => Err(strange_link(path, links)),
    }
}

/// Refuses a path on which a link of another user leads to what is not that user's, or is to be
/// made there.
///
/// # Errors
/// That alone.
pub(crate) fn refuse_astray(path: &Path) -> Result<()> {
    match lead(path, Links::ToTheirs) {
        Ok(Lead::Astray) => Err(strange_link(path, Links::ToTheirs)),
        _ => Ok(()),
    }
}

/// As [`find`], of what is there.
///
/// # Errors
/// As [`find`]; it is not there.
pub fn expect(path: &Path, links: Links, what: &str) -> Result<Found> {
    find(path, links, what)?.ok_or_else(|| Failure::path(path, what, Errno::NOENT))
}

/// The directory at a path, as a path (`O_PATH`). It is made, with this mode, and those above it,
/// where links of the caller's and root's lead.
///
/// # Errors
/// A link of another user is on the way; the host's.
pub fn make_dir(path: &Path, mode: Mode, what: &str) -> Result<OwnedFd> {
    let failed = |error: Errno| Failure::path(path, what, error);
    let mut missing = Vec::new();
    let mut above = path;
    let mut dir = loop {
        let at = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        match lead(at, Links::Own) {
            Ok(Lead::To(found)) if found.is_dir() => break found.file,
            Ok(Lead::To(_)) => return Err(failed(Errno::NOTDIR)),
            Ok(Lead::Astray) => return Err(strange_link(path, Links::Own)),
            Ok(Lead::Nowhere) | Err(Errno::NOENT) => {}
            Err(error) => return Err(failed(error)),
        }
        let (Some(parent), Some(name)) = (above.parent(), above.file_name()) else {
            return Err(failed(Errno::NOENT));
        };
        missing.push(name);
        above = parent;
    };
    while let Some(name) = missing.pop() {
        let mode = if missing.is_empty() { mode } else { Mode::from_raw_mode(0o777) };
        match rustix::fs::mkdirat(&dir, name, mode) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed(error)),
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        dir = openat(&dir, name, flags, Mode::empty()).map_err(failed)?;
    }
    Ok(dir)
}

fn self_fd(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn names(path: &Path) -> impl Iterator<Item = OsString> {
    let named = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_os_string()),
        Component::ParentDir => Some(OsString::from("..")),
        _ => None,
    };
    path.components().filter_map(named).collect::<Vec<_>>().into_iter()
}

fn is_magic(link: &OwnedFd) -> bool {
    rustix::fs::fstatfs(link).is_ok_and(|host| host.f_type == libc::PROC_SUPER_MAGIC)
}

fn place(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// The users other than the caller and root that decide what is in `dir`, or will be there once it
/// is made: who has it or a directory on the way, may write to one of them, or made a link on the
/// way. [`Author::Caller`]: none.
///
/// In a user namespace the number that stands for those without one is not told from root.
pub(crate) fn strangers_on(dir: &Path) -> Author {
    let Some(above) = dir.ancestors().find(|above| above.exists()) else { return Author::Caller };
    let found = way_to(above).and_then(|way| {
        let own = Author::of_directory(&statat(CWD, above, AtFlags::empty())?);
        Ok(way.directories.and(way.links).and(own))
    });
    match found {
        Ok(found) if found == Author::Caller || maps_all_users() => found,
        Err(_) if maps_all_users() => Author::Anyone,
        _ => strangers_in_namespace(above),
    }
}

/// The same by the directories alone, where one of the number for users without one counts as
/// root's.
fn strangers_in_namespace(above: &Path) -> Author {
    let unknown = (overflow("uid"), overflow("gid"));
    let Ok(whole) = above.canonicalize() else { return Author::Anyone };
    let all = whole.ancestors().filter_map(|dir| statat(CWD, dir, AtFlags::empty()).ok());
    let authors = all.map(|stat| Author::of_directory(&with_unknown_as_root(stat, unknown)));
    authors.fold(Author::Caller, Author::and)
}

/// The number that stands for users, or groups, without one.
fn overflow(which: &str) -> Option<u32> {
    let said = std::fs::read_to_string(format!("/proc/sys/kernel/overflow{which}"));
    said.ok()?.trim().parse().ok()
}

/// A file whose owner or group has no number here, as root's.
fn with_unknown_as_root(mut stat: Stat, (user, group): (Option<u32>, Option<u32>)) -> Stat {
    if Some(stat.st_uid) == user {
        stat.st_uid = 0;
    }
    if Some(stat.st_gid) == group {
        stat.st_gid = 0;
    }
    stat
}

/// Whether every number of a user means somebody here: not so in most user namespaces.
pub fn maps_all_users() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    counts.sum::<u64>() >= u64::from(u32::MAX)
}

fn strange_link(path: &Path, links: Links) -> Failure {
    let path = Shown::new(path);
    Failure::failed(match links {
        Links::Own => format!(
            "{path}: a symbolic link of another user is on the way, who may have it lead anywhere: \
             name what is meant by a path without such links"
        ),
        Links::ToTheirs => format!(
            "{path}: leads by a symbolic link of another user to a file that is not that user's: \
             name the file itself"
        ),
    })
}

/// Refuses an open file that its path leads to no more, where others decide about that path: they
/// may have exchanged a name on it in between.
///
/// # Errors
/// That; a link of another user leads to a file that is not that user's.
pub(crate) fn check_reached(path: &Path, file: impl AsFd) -> Result<()> {
    let failed = |error| Failure::path(path, "look at it", error);
    let Ok(way) = way_to(path) else { return Ok(()) };
    if way.directories == Author::Caller && way.links == Author::Caller {
        return Ok(());
    }
    let stat = fstat(file).map_err(failed)?;
    if !way.links.owns(stat.st_uid) {
        return Err(strange_link(path, Links::ToTheirs));
    }
    match way.end == Some(place(&stat)) {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{}: was exchanged while it was opened: try again",
            path.display()
        ))),
    }
}

/// Whether a file may be the base of a volume that names it.
///
/// `author` decides which file that is, `owner` has the file of the volume; `None`: that is gone.
/// `known`: this user's own records tell that it was made the volume's base.
pub(crate) fn may_be_base(author: Author, owner: Option<u32>, base: &Stat, known: bool) -> bool {
    let same = owner.is_none_or(|owner| owner == base.st_uid);
    let regular = FileType::from_raw_mode(base.st_mode) == FileType::RegularFile;
    regular
        && (known
            || match author {
                Author::Caller => same || Author::user(base.st_uid) == Author::Caller,
                Author::User(uid) => same && base.st_uid == uid,
                Author::Anyone => false,
            })
}

/// Opens a file beside a volume for reading, if there is one; never by a link.
///
/// # Errors
/// The host's; it is a link or no regular file.
pub(crate) fn open_beside(path: &Path) -> Result<Option<(OwnedFd, Stat)>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => {
            return Err(Failure::failed(format!(
                "{}: is a symbolic link: none is followed beside a volume: remove it",
                path.display()
            )));
        }
        // A socket.
        Err(Errno::NXIO) => return Err(no_regular_file(path)),
        opened => opened.map_err(|error| Failure::path(path, "read it", error))?,
    };
    let stat = fstat(&file).map_err(|error| Failure::path(path, "read it", error))?;
    match FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
        true => Ok(Some((file, stat))),
        false => Err(no_regular_file(path)),
    }
}

fn no_regular_file(path: &Path) -> Failure {
    Failure::failed(format!("{}: not a regular file", path.display()))
}

/// The owner of a file.
pub(crate) fn owner_of(file: impl AsFd) -> Option<u32> {
    fstat(file).ok().map(|stat| stat.st_uid)
}

/// Whether the caller alone may write to what a path names.
pub(crate) fn is_caller_s(path: &Path) -> bool {
    statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| Author::of_file(&stat) == Author::Caller)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn two_authors_are_one_only_where_they_are_the_same() {
        let all = [Author::Caller, Author::User(1), Author::User(2), Author::Anyone];
        for one in all {
            assert_eq!(one.and(one), one);
            for other in all {
                assert_eq!(one.and(other), other.and(one));
                assert!(one == Author::Caller || one.and(other) != Author::Caller);
            }
        }
        assert_eq!(Author::User(1).and(Author::User(2)), Author::Anyone);
    }

    #[test]
    fn a_way_ends_where_the_kernel_s_does_and_tells_of_open_directories() {
        let dir = tempfile::tempdir().expect("dir");
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("a/b")).expect("mkdir");
        std::fs::write(at("a/b/file"), "x").expect("write");
        symlink("b", at("a/link")).expect("link");
        symlink(at("a/link/file"), at("absolute")).expect("link");
        symlink("../a/link", at("a/up")).expect("link");
        symlink("round", at("round")).expect("link");
        for path in ["a/b/file", "a/link/file", "absolute", "a/up/file", "a/up/../b/file"] {
            let stat = rustix::fs::stat(at(path)).expect("stat");
            let way = way_to(&at(path)).expect(path);
            assert_eq!((way.end, way.author), (Some(place(&stat)), Author::Caller), "{path}");
        }
        assert_eq!(way_to(&at("a/none")).map(|way| way.end), Ok(None));
        assert_eq!(way_to(&at("none/none")), Err(Errno::NOENT));
        assert_eq!(way_to(&at("round")), Err(Errno::LOOP));
        std::fs::set_permissions(at("a/b"), PermissionsExt::from_mode(0o777)).expect("chmod");
        assert_eq!(way_to(&at("a/b/file")).map(|way| way.author), Ok(Author::Anyone));
        std::fs::set_permissions(at("a/b"), PermissionsExt::from_mode(0o1777)).expect("chmod");
        assert_eq!(way_to(&at("a/b/file")).map(|way| way.author), Ok(Author::Caller));
    }

    #[test]
    fn links_of_others_lead_to_their_own_files_alone() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root makes files of other users");
            return;
        }
        let dir = tempfile::tempdir().expect("dir");
        let at = |name: &str| dir.path().join(name);
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
        for (name, uid) in [("root", 0), ("one", 1001), ("two", 1002)] {
            std::fs::write(at(name), name).expect("write");
            std::os::unix::fs::chown(at(name), Some(uid), Some(uid)).expect("chown");
            for (link, by) in [("by-root", 0), ("by-one", 1001)] {
                let link = at(&format!("{link}-to-{name}"));
                symlink(at(name), &link).expect("link");
                std::os::unix::fs::lchown(&link, Some(by), Some(by)).expect("chown");
                let right = by == 0 || by == uid;
                let found = find(&link, Links::ToTheirs, "look");
                assert_eq!(found.is_ok(), right, "{link:?}");
                assert_eq!(find(&link, Links::Own, "look").is_ok(), by == 0, "{link:?}");
                let file = std::fs::File::open(&link).expect("open");
                assert_eq!(check_reached(&link, &file).is_ok(), right, "{link:?}");
            }
        }
        // What was opened is not what the path of another user's leads to by now.
        std::fs::create_dir(at("theirs")).expect("mkdir");
        std::os::unix::fs::chown(at("theirs"), Some(1001), Some(1001)).expect("chown");
        std::fs::write(at("theirs/v"), "v").expect("write");
        let file = std::fs::File::open(at("theirs/v")).expect("open");
        check_reached(&at("theirs/v"), &file).expect("the same");
        std::fs::rename(at("root"), at("theirs/v")).expect("rename");
        check_reached(&at("theirs/v"), &file).expect_err("another");
    }

    #[test]
    fn what_is_found_is_what_was_looked_at() {
        let dir = tempfile::tempdir().expect("dir");
        let real = dir.path().canonicalize().expect("canonical");
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("a/b")).expect("mkdir");
        std::fs::write(at("a/file"), "x").expect("write");
        symlink("a", at("link")).expect("link");
        symlink("/", at("root")).expect("link");
        symlink("nowhere", at("dangling")).expect("link");
        let found = |name: &str| find(&at(name), Links::Own, "look");
        for (name, whole) in [("link/b/..", "a"), ("a/./b/", "a/b"), ("link/file", "a/file")] {
            let found = found(name).expect(name).expect(name);
            assert_eq!(found.path, real.join(whole));
            assert_eq!(found.is_dir(), whole != "a/file");
        }
        for path in [at("root"), "/".into()] {
            let found = find(&path, Links::Own, "look").expect("found").expect("there");
            assert_eq!(found.path, Path::new("/"));
        }
        for name in ["a/none", "dangling"] {
            assert!(found(name).expect(name).is_none(), "{name}");
        }
        for name in ["none/none", "a/file/x"] {
            assert!(found(name).expect_err(name).line.contains("cannot look: "), "{name}");
        }
        let kept = found("link/file").expect("found").expect("there");
        std::fs::rename(at("a"), at("c")).expect("rename");
        std::fs::create_dir(at("a")).expect("mkdir");
        std::fs::write(at("a/file"), "other").expect("write");
        let file = kept.open(OFlags::RDONLY).expect("open");
        assert_eq!(std::io::read_to_string(std::fs::File::from(file)).expect("read"), "x");
    }

    #[test]
    fn directories_are_made_where_no_link_of_another_user_leads() {
        let dir = tempfile::tempdir().expect("dir");
        let at = |name: &str| dir.path().join(name);
        let made = |name: &str| make_dir(&at(name), Mode::from_raw_mode(0o700), "make it");
        std::fs::create_dir(at("own")).expect("mkdir");
        symlink("own", at("link")).expect("link");
        for name in ["link/a/b", "own", "own/a/c"] {
            let fd = made(name).expect(name);
            let stat = rustix::fs::stat(at(name)).expect(name);
            assert_eq!(place(&fstat(&fd).expect("stat")), place(&stat), "{name}");
        }
        let mode = std::fs::metadata(at("own/a/b")).expect("stat").permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        std::fs::write(at("file"), "").expect("write");
        assert!(made("file").expect_err("a file").line.contains("Not a directory"));
        made("file/x").expect_err("below a file");
        symlink("nowhere", at("dangling")).expect("link");
        made("dangling").expect_err("a link that leads nowhere");
        if !rustix::process::geteuid().is_root() {
            return;
        }
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
        std::fs::create_dir(at("theirs")).expect("mkdir");
        std::os::unix::fs::chown(at("theirs"), Some(1001), Some(1001)).expect("chown");
        symlink(at("own"), at("theirs/link")).expect("link");
        std::os::unix::fs::lchown(at("theirs/link"), Some(1001), Some(1001)).expect("chown");
        made("theirs/plain/new").expect("no link");
        for name in ["theirs/link", "theirs/link/new", "theirs/link/new/newer"] {
            let line = made(name).expect_err(name).line;
            assert!(line.contains("a symbolic link of another user"), "{line}");
        }
        assert!(!at("own/new").exists());
    }

    #[test]
    fn a_directory_that_others_may_write_to_on_the_way_is_told() {
        let dir = tempfile::tempdir().expect("dir");
        let at = |name: &str| dir.path().join(name);
        for (mode, strangers) in [
            (0o700, Author::Caller),
            (0o755, Author::Caller),
            (0o1777, Author::Caller),
            (0o777, Author::Anyone),
            (0o702, Author::Anyone),
        ] {
            std::fs::create_dir_all(at("on/inner")).expect("mkdir");
            std::fs::set_permissions(at("on"), PermissionsExt::from_mode(mode)).expect("chmod");
            for path in ["on", "on/inner", "on/inner/not/made", "on/not/made"] {
                assert_eq!(strangers_on(&at(path)), strangers, "{path} {mode:o}");
            }
        }
        // A group of its owner's number is the owner's own.
        if rustix::process::geteuid().is_root() {
            std::fs::set_permissions(at("on"), PermissionsExt::from_mode(0o775)).expect("chmod");
            for (group, strangers) in [(0, Author::Caller), (1002, Author::Anyone)] {
                std::os::unix::fs::chown(at("on"), None, Some(group)).expect("chown");
                assert_eq!(strangers_on(&at("on/inner")), strangers, "{group}");
            }
        }
    }

    #[test]
    fn a_directory_of_another_user_on_the_way_is_told() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root makes directories of other users");
            return;
        }
        let dir = tempfile::tempdir().expect("dir");
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("own/inner")).expect("mkdir");
        std::fs::create_dir_all(at("theirs/inner")).expect("mkdir");
        std::os::unix::fs::chown(at("theirs"), Some(1001), Some(1001)).expect("chown");
        symlink("theirs", at("link")).expect("link");
        // A link of another user's, in a directory where users have names of their own.
        std::fs::create_dir(at("sticky")).expect("mkdir");
        std::fs::set_permissions(at("sticky"), PermissionsExt::from_mode(0o1777)).expect("chmod");
        symlink(at("own"), at("sticky/link")).expect("link");
        std::os::unix::fs::lchown(at("sticky/link"), Some(1002), Some(1002)).expect("chown");
        let (own, theirs) = (Author::Caller, Author::User(1001));
        for (path, strangers) in [
            ("own", own),
            ("own/inner/not/made", own),
            ("sticky/not/made", own),
            ("theirs", theirs),
            ("theirs/inner", theirs),
            ("theirs/not/made", theirs),
            ("link/inner", theirs),
            ("sticky/link/inner", Author::User(1002)),
            ("sticky/link/not/made", Author::User(1002)),
        ] {
            assert_eq!(strangers_on(&at(path)), strangers, "{path}");
        }
    }

    #[test]
    fn bases_are_of_the_same_owner_or_known() {
        let dir = tempfile::tempdir().expect("dir");
        let file = dir.path().join("base");
        std::fs::write(&file, "x").expect("write");
        let mut base = rustix::fs::stat(&file).expect("stat");
        for author in [Author::Caller, Author::User(7), Author::User(8), Author::Anyone] {
            for owner in [None, Some(0), Some(7), Some(8)] {
                for base_owner in [0, 7, 8] {
                    base.st_uid = base_owner;
                    assert!(may_be_base(author, owner, &base, true));
                    let may = may_be_base(author, owner, &base, false);
                    let same = owner.is_none_or(|owner| owner == base_owner);
                    match author {
                        Author::Caller => assert!(may || !same && base_owner != 0),
                        Author::User(uid) => assert_eq!(may, same && uid == base_owner),
                        Author::Anyone => assert!(!may),
                    }
                }
            }
        }
        let folder = rustix::fs::stat(dir.path()).expect("stat");
        assert!(!may_be_base(Author::Caller, None, &folder, true));
    }
}
