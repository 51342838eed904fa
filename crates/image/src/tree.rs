//! The tree of a layer, whose paths never lead out of it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;

type Result<T, E = Errno> = std::result::Result<T, E>;

/// Why a path of an archive is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BadPath {
    Absolute,
    Parent,
    Zero,
}

impl BadPath {
    pub(crate) fn why(self) -> &'static str {
        match self {
            BadPath::Absolute => "its path is absolute",
            BadPath::Parent => "its path has '..' in it",
            BadPath::Zero => "its path has a zero byte in it",
        }
    }
}

/// A path without `.` and doubled slashes; empty for the root.
pub(crate) fn clean(path: &[u8]) -> Result<Vec<u8>, BadPath> {
    if path.first() == Some(&b'/') {
        return Err(BadPath::Absolute);
    }
    if path.contains(&0) {
        return Err(BadPath::Zero);
    }
    let mut clean = Vec::new();
    for part in path.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(BadPath::Parent),
            part => {
                if !clean.is_empty() {
                    clean.push(b'/');
                }
                clean.extend_from_slice(part);
            }
        }
    }
    Ok(clean)
}

/// The directory part and the name of a clean path.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// A directory below which everything happens.
pub(crate) struct Tree {
    root: OwnedFd,
    /// The directory used last. It gets its time back when another one is used, so that no list of
    /// directories is kept until all have their entries.
    last: Option<Used>,
    /// Directories that paths had and nothing had made.
    made: u64,
}

struct Used {
    path: Vec<u8>,
    dir: OwnedFd,
    mtime: Timespec,
}

const DIR: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Tree {
    pub(crate) fn open(root: &Path) -> Result<Tree> {
        let root = rustix::fs::open(root, DIR.union(OFlags::NOFOLLOW), Mode::empty())?;
        Ok(Tree { root, last: None, made: 0 })
    }

    /// Leaves the directory used last, which gets the time back that it had: what its path means
    /// may change then, and its time may be set.
    pub(crate) fn leave(&mut self) -> Result<()> {
        match self.last.take() {
            Some(used) => set_mtime(&used.dir, used.mtime),
            None => Ok(()),
        }
    }

    /// How many directories were made, as paths had them, since this was asked last.
    pub(crate) fn take_made(&mut self) -> u64 {
        std::mem::take(&mut self.made)
    }

    /// Opens something as a path. Links on the way may lead anywhere in the tree.
    pub(crate) fn find(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
        let path = if path.is_empty() { b"." } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        loop {
            match rustix::fs::openat2(&self.root, path, flags, Mode::empty(), resolve) {
                // Something was renamed meanwhile, anywhere.
                Err(Errno::AGAIN) => {}
                found => return found,
            }
        }
    }

    /// The directory at a clean path, made with those above it where it is not there. What is made
    /// in it does not change its time.
    pub(crate) fn dir(&mut self, path: &[u8]) -> Result<&OwnedFd> {
        if self.last.as_ref().is_none_or(|last| last.path != path) {
            self.leave()?;
            let dir = match self.find(path, DIR) {
                Err(Errno::NOENT) => self.make_dirs(path)?,
                found => found?,
            };
            let mtime = mtime(&dir)?;
            self.last = Some(Used { path: path.to_vec(), dir, mtime });
        }
        self.last.as_ref().map(|last| &last.dir).ok_or(Errno::NOENT)
    }

    fn make_dirs(&mut self, path: &[u8]) -> Result<OwnedFd> {
        let mut dir = self.find(b"", DIR)?;
        let mut end = 0;
        while end < path.len() {
            let start = if end == 0 { 0 } else { end + 1 };
            let more = path[start..].iter().position(|&byte| byte == b'/');
            end = more.map_or(path.len(), |more| start + more);
            dir = match self.find(&path[..end], DIR) {
                Err(Errno::NOENT) => {
                    let before = mtime(&dir)?;
                    let mode = Mode::from_raw_mode(0o755);
                    rustix::fs::mkdirat(&dir, &path[start..end], mode)?;
                    self.made += 1;
                    set_mtime(&dir, before)?;
                    self.find(&path[..end], DIR)?
                }
                found => found?,
            };
        }
        Ok(dir)
    }
}

fn mtime(dir: &OwnedFd) -> Result<Timespec> {
    let stat = rustix::fs::fstat(dir)?;
    let tv_nsec = i64::try_from(stat.st_mtime_nsec).unwrap_or(0);
    Ok(Timespec { tv_sec: stat.st_mtime, tv_nsec })
}

fn set_mtime(dir: &OwnedFd, mtime: Timespec) -> Result<()> {
    let omitted = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let times = Timestamps { last_access: omitted, last_modification: mtime };
    rustix::fs::utimensat(dir, "", &times, AtFlags::EMPTY_PATH)
}

/// What has this name in a directory.
pub(crate) fn stat(dir: impl AsFd, name: &[u8]) -> Result<Stat> {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// Whether it says that there is no such name in the layers below: a device 0/0.
pub(crate) fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_char_device() && stat.st_rdev == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_and_bad_ones_refused() {
        assert_eq!(clean(b"./a//b/./c/"), Ok(b"a/b/c".to_vec()));
        assert_eq!(clean(b"./"), Ok(Vec::new()));
        assert_eq!(clean(b"..a/b.."), Ok(b"..a/b..".to_vec()));
        assert_eq!(clean(b"/etc/passwd"), Err(BadPath::Absolute));
        for bad in [&b".."[..], b"a/../../b", b"a/.."] {
            assert_eq!(clean(bad), Err(BadPath::Parent));
        }
        assert_eq!(clean(b"a\0b"), Err(BadPath::Zero));
        assert_eq!(split(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split(b"a"), (&b""[..], &b"a"[..]));
    }

    #[test]
    fn no_path_leads_out() {
        let outside = tempfile::tempdir().expect("tempdir");
        let root = outside.path().join("tree");
        std::fs::create_dir(&root).expect("mkdir");
        std::os::unix::fs::symlink("..", root.join("up")).expect("symlink");
        std::os::unix::fs::symlink(outside.path(), root.join("away")).expect("symlink");
        std::os::unix::fs::symlink("a", root.join("in")).expect("symlink");
        let mut tree = Tree::open(&root).expect("open");
        tree.dir(b"a/b/c").expect("made");
        tree.dir(b"in/b").expect("through a link in the tree");
        for path in [&b"up"[..], b"away", b"up/x", b"away/x/y"] {
            assert_eq!(tree.dir(path).err(), Some(Errno::XDEV));
        }
        assert_eq!(std::fs::read_dir(outside.path()).expect("list").count(), 1);
    }
}
