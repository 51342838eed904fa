//! Path walk of the reference.

use super::{EXEC, Reference, User};
use crate::ops::MOUNT_PATH;
use crate::subject::Failure;
use polylane_base::{Errno, Ino};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Attr, FileSystem, Kind};
use std::collections::VecDeque;

/// The last component of a path, not looked up.
pub(super) struct Last {
    pub(super) dir: Ino,
    pub(super) name: Vec<u8>,
    pub(super) slash: bool,
}

/// Where a walk ended.
pub(super) enum Walked {
    At(Ino),
    Last(Last),
}

/// What becomes of the last component.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Goal {
    Follow,
    NoFollow,
    Parent,
}

/// Components of a path: name, and whether slashes follow it.
type Parts = VecDeque<(Vec<u8>, bool)>;

impl Reference {
    pub(super) fn walk(&self, user: User, path: &str, goal: Goal) -> Result<Walked, Failure> {
        if path.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        let (mut at, mut links) = (self.root, 0);
        let mut parts = split(path.as_bytes());
        while let Some((name, slash)) = parts.pop_front() {
            if self.attr(at).kind != Kind::Dir {
                return Err(Errno::ENOTDIR.into());
            }
            self.may(user, at, EXEC)?;
            match name.as_slice() {
                b"." => continue,
                b".." if at == self.root => return Err(Failure::Leaves),
                b".." => {
                    at = self.parents[&at];
                    continue;
                }
                _ => {}
            }
            let last = parts.is_empty();
            if last && goal == Goal::Parent {
                return Ok(Walked::Last(Last { dir: at, name, slash }));
            }
            let child = self.find(at, &name)?;
            let followed = !last || slash || goal == Goal::Follow;
            if child.kind == Kind::Symlink && followed {
                links += 1;
                if links > 40 {
                    return Err(Errno::ELOOP.into());
                }
                let target = self.fs.readlink(&OpCtx::service(), child.ino)?;
                let mut inner = self.enter_link(&target, &mut at)?;
                if let Some(end) = inner.back_mut() {
                    end.1 |= slash;
                }
                inner.append(&mut parts);
                parts = inner;
                continue;
            }
            if slash && child.kind != Kind::Dir {
                return Err(Errno::ENOTDIR.into());
            }
            at = child.ino;
        }
        Ok(Walked::At(at))
    }

    /// Looks a name up: only here its length counts, after the walk to its directory.
    pub(super) fn find(&self, dir: Ino, name: &[u8]) -> Result<Attr, Errno> {
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        self.fs.lookup(&OpCtx::service(), dir, name)
    }

    /// The components of a link's target; an absolute one starts over at the root.
    pub(super) fn enter_link(&self, target: &[u8], at: &mut Ino) -> Result<Parts, Failure> {
        if target.first() != Some(&b'/') {
            return Ok(split(target));
        }
        match target.strip_prefix(MOUNT_PATH.as_bytes()) {
            Some(inside) if inside.is_empty() || inside[0] == b'/' => {
                *at = self.root;
                Ok(split(inside))
            }
            _ => Err(Failure::Leaves),
        }
    }

    pub(super) fn resolve(&self, user: User, path: &str, follow: bool) -> Result<Ino, Failure> {
        match self.walk(user, path, if follow { Goal::Follow } else { Goal::NoFollow })? {
            Walked::At(ino) => Ok(ino),
            Walked::Last(_) => Err(Failure::Leaves),
        }
    }

    pub(super) fn parent(&self, user: User, path: &str) -> Result<Last, Failure> {
        match self.walk(user, path, Goal::Parent)? {
            Walked::Last(last) => Ok(last),
            Walked::At(_) => Err(Failure::Leaves),
        }
    }

    /// A path from the root for a link's target as seen from `dir`.
    pub(super) fn beside(&self, dir: Ino, target: &[u8]) -> Result<String, Failure> {
        let target = String::from_utf8_lossy(target).into_owned();
        if target.starts_with('/') {
            return match target.strip_prefix(MOUNT_PATH) {
                Some("") => Ok("/".to_string()),
                Some(inside) if inside.starts_with('/') => Ok(inside.to_string()),
                _ => Err(Failure::Leaves),
            };
        }
        Ok(format!("{}/{target}", self.path_of(dir)))
    }

    /// The path of a directory from the root.
    pub(super) fn path_of(&self, dir: Ino) -> String {
        if dir == self.root {
            return String::new();
        }
        let parent = self.parents[&dir];
        let mut found = None;
        let mut each = |entry: polylane_vfs::fs::DirEntry<'_>| {
            if entry.ino == dir {
                found = Some(String::from_utf8_lossy(entry.name).into_owned());
            }
            found.is_none()
        };
        self.fs.readdir(&OpCtx::service(), parent, 0, &mut each).expect("a parent is a directory");
        format!("{}/{}", self.path_of(parent), found.expect("a child has a name"))
    }
}

fn split(path: &[u8]) -> Parts {
    let mut parts = Parts::new();
    for (i, piece) in path.split(|&byte| byte == b'/').enumerate() {
        match (piece, parts.back_mut()) {
            (b"", Some(last)) => last.1 = true,
            (b"", None) => {}
            (name, last) => {
                if let (Some(last), true) = (last, i > 0) {
                    last.1 = true;
                }
                parts.push_back((name.to_vec(), false));
            }
        }
    }
    parts
}
