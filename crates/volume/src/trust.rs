//! Which users may have put a file where it lies, or written what it says (decision 0040).
//!
//! Root makes and serves volumes in directories of other users, who may exchange every name there:
//! for a link, for a file of somebody else, for a sidecar of their own. So whatever is found beside
//! a volume counts as said by whoever could have put it there.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path};

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
    let path_only = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let open = |dir: &OwnedFd, name: &OsStr, more: OFlags| {
        openat(dir, name, path_only | more, Mode::empty())
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
        let of_dir = Author::of_directory(&fstat(&dir)?);
        way.directories = way.directories.and(of_dir);
        let is_last = left.is_empty();
        if is_last {
            way.author = way.links.and(of_dir);
        }
        let next = match open(&dir, &name, OFlags::empty()) {
            Err(Errno::NOENT) if is_last => return Ok(Way { end: None, ..way }),
            next => next?,
        };
        let stat = fstat(&next)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            way.end = Some(place(&stat));
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
            way.end = Some(place(&fstat(&dir)?));
            continue;
        }
        let target = Path::new(&target);
        if target.is_absolute() {
            dir = start(target)?;
        }
        names(target).collect::<Vec<_>>().into_iter().rev().for_each(|name| left.push_front(name));
    }
    way.author = way.author.and(way.links);
    Ok(way)
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

/// Refuses a path that leads by a link of another user to a file that is not that user's.
///
/// # Errors
/// That; links that lead in circles.
pub(crate) fn check_links(path: &Path) -> Result<()> {
    let Ok(way) = way_to(path) else { return Ok(()) };
    match (way.links, statat(CWD, path, AtFlags::empty())) {
        (Author::Caller, _) | (_, Err(_)) => Ok(()),
        (links, Ok(stat)) if links.owns(stat.st_uid) => Ok(()),
        _ => Err(strange_link(path)),
    }
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
    let unknown = |which: &str| -> Option<u32> {
        let said = std::fs::read_to_string(format!("/proc/sys/kernel/overflow{which}"));
        said.ok()?.trim().parse().ok()
    };
    let (user, group) = (unknown("uid"), unknown("gid"));
    let Ok(whole) = above.canonicalize() else { return Author::Anyone };
    let all = whole.ancestors().filter_map(|dir| statat(CWD, dir, AtFlags::empty()).ok());
    let authors = all.map(|mut stat| {
        if Some(stat.st_uid) == user {
            stat.st_uid = 0;
        }
        if Some(stat.st_gid) == group {
            stat.st_gid = 0;
        }
        Author::of_directory(&stat)
    });
    authors.fold(Author::Caller, Author::and)
}

/// Whether every number of a user means somebody here: not so in most user namespaces.
fn maps_all_users() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let counts = map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    counts.sum::<u64>() >= u64::from(u32::MAX)
}

fn strange_link(path: &Path) -> Failure {
    Failure::failed(format!(
        "{}: leads by a symbolic link of another user to a file that is not that user's: name the \
         file itself",
        path.display()
    ))
}

/// Refuses an open file that its path leads to no more, where others decide about that path: they
/// may have exchanged a name on it in between.
///
/// # Errors
/// That, and what [`check_links`] refuses.
pub(crate) fn check_reached(path: &Path, file: impl AsFd) -> Result<()> {
    let failed = |error| Failure::path(path, "look at it", error);
    let Ok(way) = way_to(path) else { return Ok(()) };
    if way.directories == Author::Caller && way.links == Author::Caller {
        return Ok(());
    }
    let stat = fstat(file).map_err(failed)?;
    if !way.links.owns(stat.st_uid) {
        return Err(strange_link(path));
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
                assert_eq!(check_links(&link).is_ok(), right, "{link:?}");
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
