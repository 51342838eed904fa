//! System calls on the model: paths, permissions and open files as Linux has them, written down once
//! more, without caches, locks or cleverness.
//!
//! The rules follow fs/namei.c, fs/attr.c, fs/open.c and fs/read_write.c of Linux; where a check's place
//! decides which error comes, the order is theirs.

use crate::model::Model;
use crate::ops::{MOUNT_PATH, Op, Step, UMASK, USERS};
use crate::subject::{Failure, Outcome, State, Subject, Value};
use polylane_base::{Clock, Errno, Gid, Ino, Time, Uid};
use polylane_vfs::fs::{
    Attr, Fallocate, FileSystem, Kind, NewNode, RenameMode, SeekFor, SetAttr, SetTime,
};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

const READ: u32 = 4;
const WRITE: u32 = 2;
const EXEC: u32 = 1;

/// An open file.
#[derive(Clone, Copy)]
struct Open {
    ino: Ino,
    flags: i32,
    /// Opened with `O_TMPFILE` and not `O_EXCL`, and without a name so far.
    linkable: bool,
}

/// The identity of a step's user.
#[derive(Clone, Copy)]
struct User {
    uid: Uid,
    gid: Gid,
    groups: &'static [u32],
}

impl User {
    fn new(who: usize) -> User {
        let (uid, gid, groups) = USERS[who];
        User { uid: Uid(uid), gid: Gid(gid), groups }
    }

    fn is_root(self) -> bool {
        self.uid == Uid(0)
    }

    fn in_group(self, gid: Gid) -> bool {
        self.gid == gid || self.groups.contains(&gid.0)
    }

    fn owns(self, attr: &Attr) -> bool {
        self.is_root() || self.uid == attr.uid
    }
}

/// The last component of a path, not looked up.
struct Last {
    dir: Ino,
    name: Vec<u8>,
    slash: bool,
}

enum Walked {
    At(Ino),
    Last(Last),
}

#[derive(Clone, Copy, PartialEq)]
enum Goal {
    Follow,
    NoFollow,
    Parent,
}

/// Components of a path: name, and whether slashes follow it.
type Parts = VecDeque<(Vec<u8>, bool)>;

/// See the module header.
pub struct Reference {
    fs: Arc<Model>,
    root: Ino,
    parents: BTreeMap<Ino, Ino>,
    open: BTreeMap<u8, Open>,
    knows_caller: bool,
}

impl Reference {
    /// An empty tree. `knows_caller`: as Linux, who knows all groups of whoever copies a range or
    /// truncates an open file; the `Vfs` is told that rights were checked, and little more.
    pub fn new(clock: Arc<dyn Clock>, knows_caller: bool) -> Reference {
        let fs = Arc::new(Model::new(clock));
        let root = fs.root().map_or(Ino(1), |attr| attr.ino);
        Reference { fs, root, parents: BTreeMap::new(), open: BTreeMap::new(), knows_caller }
    }

    fn attr(&self, ino: Ino) -> Attr {
        self.fs.getattr(ino).expect("the model keeps every inode that is named or open")
    }

    fn may(&self, user: User, ino: Ino, mask: u32) -> Result<(), Errno> {
        let attr = self.attr(ino);
        let granted = if user.is_root() {
            let exec = attr.kind == Kind::Dir || attr.perm & 0o111 != 0;
            READ | WRITE | u32::from(exec)
        } else if user.uid == attr.uid {
            attr.perm >> 6
        } else if user.in_group(attr.gid) {
            attr.perm >> 3
        } else {
            attr.perm
        };
        if mask & !granted & 7 == 0 { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// `may_delete`.
    fn may_remove(&self, user: User, dir: Ino, victim: Ino, as_dir: bool) -> Result<(), Errno> {
        self.may(user, dir, WRITE | EXEC)?;
        let (dir, victim) = (self.attr(dir), self.attr(victim));
        if dir.perm & 0o1000 != 0 && !user.owns(&dir) && !user.owns(&victim) {
            return Err(Errno::EPERM);
        }
        match (as_dir, victim.kind == Kind::Dir) {
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            _ => Ok(()),
        }
    }

    fn walk(&self, user: User, path: &str, goal: Goal) -> Result<Walked, Failure> {
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
                _ if name.len() > 255 => return Err(Errno::ENAMETOOLONG.into()),
                _ => {}
            }
            let last = parts.is_empty();
            if last && goal == Goal::Parent {
                return Ok(Walked::Last(Last { dir: at, name, slash }));
            }
            let child = self.fs.lookup(at, &name)?;
            let followed = !last || slash || goal == Goal::Follow;
            if child.kind == Kind::Symlink && followed {
                links += 1;
                if links > 40 {
                    return Err(Errno::ELOOP.into());
                }
                let target = self.fs.readlink(child.ino)?;
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

    /// The components of a link's target; an absolute one starts over at the root.
    fn enter_link(&self, target: &[u8], at: &mut Ino) -> Result<Parts, Failure> {
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

    fn resolve(&self, user: User, path: &str, follow: bool) -> Result<Ino, Failure> {
        match self.walk(user, path, if follow { Goal::Follow } else { Goal::NoFollow })? {
            Walked::At(ino) => Ok(ino),
            Walked::Last(_) => Err(Failure::Leaves),
        }
    }

    fn parent(&self, user: User, path: &str) -> Result<Last, Failure> {
        match self.walk(user, path, Goal::Parent)? {
            Walked::Last(last) => Ok(last),
            Walked::At(_) => Err(Failure::Leaves),
        }
    }

    fn create(&mut self, user: User, path: &str, new: &NewNode<'_>) -> Outcome {
        let last = self.parent(user, path)?;
        match self.fs.lookup(last.dir, &last.name) {
            Ok(_) => return Err(Errno::EEXIST.into()),
            Err(Errno::ENOENT) if last.slash && new.kind != Kind::Dir => {
                return Err(Errno::ENOENT.into());
            }
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.create_at(user, last.dir, &last.name, new)?;
        Ok(Value::Done)
    }

    fn create_at(
        &mut self,
        user: User,
        dir: Ino,
        name: &[u8],
        new: &NewNode<'_>,
    ) -> Result<Ino, Errno> {
        self.may(user, dir, WRITE | EXEC)?;
        let above = self.attr(dir);
        if new.kind == Kind::Dir && above.nlink >= self.fs.character().max_links {
            return Err(Errno::EMLINK);
        }
        let made = self.fs.create(dir, name, &self.inherit(user, &above, new))?.node;
        self.parents.insert(made.ino, dir);
        Ok(made.ino)
    }

    /// `inode_init_owner` and `mode_strip_sgid`.
    fn inherit<'a>(&self, user: User, dir: &Attr, new: &NewNode<'a>) -> NewNode<'a> {
        let mut new = NewNode { uid: user.uid, gid: user.gid, ..new.clone() };
        if new.kind != Kind::Symlink {
            new.perm &= !UMASK;
        }
        if dir.perm & 0o2000 != 0 {
            new.gid = dir.gid;
            if new.kind == Kind::Dir {
                new.perm |= 0o2000;
            } else if new.perm & 0o2010 == 0o2010 && !user.is_root() && !user.in_group(dir.gid) {
                new.perm &= !0o2000;
            }
        }
        new
    }

    fn link_to(&mut self, user: User, ino: Ino, linkable: bool, to: &str) -> Outcome {
        let last = self.parent(user, to)?;
        match self.fs.lookup(last.dir, &last.name) {
            Ok(_) => return Err(Errno::EEXIST.into()),
            Err(Errno::ENOENT) if last.slash => return Err(Errno::ENOENT.into()),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.may(user, last.dir, WRITE | EXEC)?;
        let attr = self.attr(ino);
        if attr.kind == Kind::Dir {
            return Err(Errno::EPERM.into());
        }
        if attr.nlink == 0 && !linkable {
            return Err(Errno::ENOENT.into());
        }
        self.fs.link(ino, last.dir, &last.name)?;
        Ok(Value::Done)
    }

    fn unlink(&mut self, user: User, path: &str, as_dir: bool) -> Outcome {
        let last = self.parent(user, path)?;
        let victim = self.fs.lookup(last.dir, &last.name)?;
        if !as_dir && last.slash {
            let errno = if victim.kind == Kind::Dir { Errno::EISDIR } else { Errno::ENOTDIR };
            return Err(errno.into());
        }
        self.may_remove(user, last.dir, victim.ino, as_dir)?;
        match as_dir {
            true => self.fs.rmdir(last.dir, &last.name)?,
            false => self.fs.unlink(last.dir, &last.name)?,
        };
        Ok(Value::Done)
    }

    /// `a` is `b` or lies above it.
    fn lies_above(&self, a: Ino, b: Ino) -> bool {
        let mut at = b;
        while at != a {
            match self.parents.get(&at) {
                Some(&parent) if at != self.root => at = parent,
                _ => return false,
            }
        }
        true
    }

    fn rename(&mut self, user: User, from: &str, to: &str, flags: u32) -> Outcome {
        let (fresh, exchange, whiteout) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
        if exchange && (fresh || whiteout) {
            return Err(Errno::EINVAL.into());
        }
        let from = self.parent(user, from)?;
        let to = self.parent(user, to)?;
        let moved = self.fs.lookup(from.dir, &from.name)?;
        let other = match self.fs.lookup(to.dir, &to.name) {
            Err(Errno::ENOENT) => None,
            other => Some(other?),
        };
        if fresh && other.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if exchange && other.is_none() {
            return Err(Errno::ENOENT.into());
        }
        let is_dir = moved.kind == Kind::Dir;
        let other_is_dir = other.is_some_and(|other| other.kind == Kind::Dir);
        if from.dir != to.dir {
            if is_dir && self.lies_above(moved.ino, to.dir) {
                return Err(Errno::EINVAL.into());
            }
            if other.is_some_and(|other| self.lies_above(other.ino, from.dir)) {
                return Err(if exchange { Errno::EINVAL } else { Errno::ENOTEMPTY }.into());
            }
        }
        if other.is_some_and(|other| other.ino == moved.ino) {
            return Ok(Value::Done);
        }
        self.may_remove(user, from.dir, moved.ino, is_dir)?;
        match other {
            None => self.may(user, to.dir, WRITE | EXEC)?,
            Some(other) => {
                let as_dir = if exchange { other_is_dir } else { is_dir };
                self.may_remove(user, to.dir, other.ino, as_dir)?;
            }
        }
        if from.dir != to.dir {
            if is_dir {
                self.may(user, moved.ino, WRITE)?;
            }
            if let Some(other) = other.filter(|_| exchange && other_is_dir) {
                self.may(user, other.ino, WRITE)?;
            }
        }
        let mode = match flags {
            1 => RenameMode::NoReplace,
            2 => RenameMode::Exchange,
            4 | 5 => RenameMode::Whiteout,
            _ => RenameMode::Replace,
        };
        self.fs.rename(from.dir, &from.name, to.dir, &to.name, mode)?;
        self.parents.insert(moved.ino, to.dir);
        if let Some(other) = other.filter(|_| exchange) {
            self.parents.insert(other.ino, from.dir);
        }
        Ok(Value::Done)
    }

    fn open(&mut self, user: User, slot: u8, path: &str, flags: i32, perm: u32) -> Outcome {
        let tmpfile = libc::O_TMPFILE & !libc::O_DIRECTORY;
        let new = NewNode { perm: perm & 0o7777, ..node(Kind::File) };
        if flags & tmpfile != 0 {
            let dir = self.resolve(user, path, true)?;
            let above = self.attr(dir);
            if above.kind != Kind::Dir {
                return Err(Errno::ENOTDIR.into());
            }
            self.may(user, dir, WRITE | EXEC)?;
            let made = self.fs.create_unlinked(dir, &self.inherit(user, &above, &new))?;
            let linkable = flags & libc::O_EXCL == 0;
            self.open.insert(slot, Open { ino: made.ino, flags, linkable });
            return Ok(Value::Done);
        }
        let ino = if flags & libc::O_CREAT != 0 {
            if flags & libc::O_DIRECTORY != 0 {
                return Err(Errno::EINVAL.into());
            }
            match self.open_create(user, path, flags, &new)? {
                (ino, true) => {
                    self.open.insert(slot, Open { ino, flags, linkable: false });
                    return Ok(Value::Done);
                }
                (ino, false) => ino,
            }
        } else {
            self.resolve(user, path, flags & libc::O_NOFOLLOW == 0)?
        };
        self.open_known(user, ino, flags)?;
        self.open.insert(slot, Open { ino, flags, linkable: false });
        Ok(Value::Done)
    }

    /// `O_CREAT`: the inode, and whether it is new.
    fn open_create(
        &mut self,
        user: User,
        path: &str,
        flags: i32,
        new: &NewNode<'_>,
    ) -> Result<(Ino, bool), Failure> {
        let exclusive = flags & libc::O_EXCL != 0;
        let mut path = path.to_string();
        let mut links = 0;
        loop {
            let last = match self.walk(user, &path, Goal::Parent)? {
                Walked::Last(last) if !last.slash => last,
                _ => return Err(Errno::EISDIR.into()),
            };
            let found = match self.fs.lookup(last.dir, &last.name) {
                Err(Errno::ENOENT) => {
                    return Ok((self.create_at(user, last.dir, &last.name, new)?, true));
                }
                found => found?,
            };
            if exclusive {
                return Err(Errno::EEXIST.into());
            }
            match found.kind {
                Kind::Dir => return Err(Errno::EISDIR.into()),
                Kind::Symlink if flags & libc::O_NOFOLLOW != 0 => return Err(Errno::ELOOP.into()),
                Kind::Symlink => {
                    links += 1;
                    if links > 40 {
                        return Err(Errno::ELOOP.into());
                    }
                    path = self.beside(last.dir, &self.fs.readlink(found.ino)?)?;
                }
                _ => return Ok((found.ino, false)),
            }
        }
    }

    /// A path from the root for a link's target as seen from `dir`.
    fn beside(&self, dir: Ino, target: &[u8]) -> Result<String, Failure> {
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
    fn path_of(&self, dir: Ino) -> String {
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
        self.fs.readdir(parent, 0, &mut each).expect("a parent is a directory");
        format!("{}/{}", self.path_of(parent), found.expect("a child has a name"))
    }

    /// `may_open` and truncation.
    fn open_known(&self, user: User, ino: Ino, flags: i32) -> Result<(), Failure> {
        let attr = self.attr(ino);
        if flags & libc::O_DIRECTORY != 0 && attr.kind != Kind::Dir {
            return Err(Errno::ENOTDIR.into());
        }
        let mut mask = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => READ,
            libc::O_WRONLY => WRITE,
            _ => READ | WRITE,
        };
        if flags & libc::O_TRUNC != 0 {
            mask |= WRITE;
        }
        match attr.kind {
            Kind::Symlink => return Err(Errno::ELOOP.into()),
            Kind::Dir if mask & WRITE != 0 => return Err(Errno::EISDIR.into()),
            _ => self.may(user, ino, mask)?,
        }
        // Pipes, sockets and devices are the front end's affair.
        if !matches!(attr.kind, Kind::File | Kind::Dir) {
            return Err(Failure::Leaves);
        }
        if flags & libc::O_TRUNC != 0 {
            self.set_open_size(user, ino, 0)?;
        }
        Ok(())
    }

    /// `file_remove_privs`: set-id bits go with a change of data.
    fn kill_privileges(&self, user: Option<User>, ino: Ino) {
        let member = user.is_some_and(|user| user.in_group(self.attr(ino).gid));
        if !user.is_some_and(User::is_root) {
            self.kill_privileges_of(member, ino);
        }
    }

    fn kill_privileges_of(&self, member: bool, ino: Ino) {
        let attr = self.attr(ino);
        let perm = without_set_id(&attr, member);
        if perm != attr.perm {
            let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
            self.fs.setattr(ino, &set).expect("a mode can be changed");
        }
    }

    /// Truncation of a file that is open: the `Vfs` takes the user for a member of the file's group.
    fn set_open_size(&self, user: User, ino: Ino, size: u64) -> Result<(), Errno> {
        self.fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() })?;
        match self.knows_caller {
            true => self.kill_privileges(Some(user), ino),
            false if user.is_root() => {}
            false => self.kill_privileges_of(true, ino),
        }
        Ok(())
    }

    fn slot(&self, slot: u8) -> Result<Open, Failure> {
        self.open.get(&slot).copied().ok_or(Failure::NoFile)
    }

    fn slot_to_read(&self, slot: u8) -> Result<Open, Failure> {
        let open = self.slot(slot)?;
        if open.flags & libc::O_ACCMODE == libc::O_WRONLY {
            return Err(Errno::EBADF.into());
        }
        match self.attr(open.ino).kind {
            Kind::File => Ok(open),
            Kind::Dir => Err(Errno::EISDIR.into()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn slot_to_write(&self, slot: u8) -> Result<Open, Failure> {
        let open = self.slot(slot)?;
        match open.flags & libc::O_ACCMODE {
            libc::O_RDONLY => Err(Errno::EBADF.into()),
            _ => Ok(open),
        }
    }

    fn read(&self, slot: u8, at: u64, len: usize) -> Outcome {
        let open = self.slot_to_read(slot)?;
        Ok(Value::Bytes(self.bytes(open.ino, at, len)?))
    }

    fn bytes(&self, ino: Ino, at: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let mut buffer = vec![0; len];
        let count = self.fs.read(ino, at, len, &mut buffer.as_mut_slice())?;
        buffer.truncate(count);
        Ok(buffer)
    }

    fn write(&self, user: User, slot: u8, at: Option<u64>, bytes: &[u8]) -> Outcome {
        let open = self.slot_to_write(slot)?;
        let end = self.attr(open.ino).size;
        let at = at.filter(|_| open.flags & libc::O_APPEND == 0).unwrap_or(end);
        if !bytes.is_empty() {
            self.kill_privileges(Some(user), open.ino);
            self.fs.write(open.ino, at, &mut &*bytes)?;
        }
        Ok(Value::Offset(at + bytes.len() as u64))
    }

    fn fallocate(&self, user: User, slot: u8, flags: i32, at: u64, len: u64) -> Outcome {
        let open = self.slot_to_write(slot)?;
        let keep_size = flags & 1 != 0;
        let mode = match flags & !1 {
            0 => Fallocate::Allocate { keep_size },
            2 => Fallocate::PunchHole,
            8 => Fallocate::CollapseRange,
            16 => Fallocate::ZeroRange { keep_size },
            _ => Fallocate::InsertRange,
        };
        self.fs.fallocate(open.ino, mode, at, len)?;
        self.kill_privileges(Some(user), open.ino);
        Ok(Value::Done)
    }

    fn copy(&self, user: User, (from, at): (u8, u64), (to, to_at): (u8, u64), len: u64) -> Outcome {
        for slot in [self.slot(from)?, self.slot(to)?] {
            if self.attr(slot.ino).kind == Kind::Dir {
                return Err(Errno::EISDIR.into());
            }
        }
        let source = self.slot_to_read(from)?;
        let target = self.slot_to_write(to)?;
        if target.flags & libc::O_APPEND != 0 {
            return Err(Errno::EBADF.into());
        }
        let left = self.attr(source.ino).size.saturating_sub(at);
        let len = len.min(left);
        if source.ino == target.ino && to_at + len > at && to_at < at + len {
            return Err(Errno::EINVAL.into());
        }
        let bytes = self.bytes(source.ino, at, len as usize)?;
        if !bytes.is_empty() {
            self.kill_privileges(Some(user).filter(|_| self.knows_caller), target.ino);
            self.fs.write(target.ino, to_at, &mut bytes.as_slice())?;
        }
        Ok(Value::Offset(len))
    }

    fn chmod(&self, user: User, path: &str, perm: u32) -> Outcome {
        let ino = self.resolve(user, path, true)?;
        let attr = self.attr(ino);
        if !user.owns(&attr) {
            return Err(Errno::EPERM.into());
        }
        let strip = !user.is_root() && !user.in_group(attr.gid);
        let perm = Some(if strip { perm & !0o2000 } else { perm });
        self.fs.setattr(ino, &SetAttr { perm, ..SetAttr::default() })?;
        Ok(Value::Done)
    }

    fn chown(
        &self,
        user: User,
        path: &str,
        ids: (Option<u32>, Option<u32>),
        follow: bool,
    ) -> Outcome {
        let ino = self.resolve(user, path, follow)?;
        let attr = self.attr(ino);
        let (uid, gid) = (ids.0.map(Uid), ids.1.map(Gid));
        let mine = user.uid == attr.uid;
        let uid_ok = uid.is_none_or(|uid| mine && uid == attr.uid);
        let gid_ok = gid.is_none_or(|gid| mine && (gid == attr.gid || user.in_group(gid)));
        let allowed = user.is_root() || uid_ok && gid_ok;
        if !allowed {
            return Err(Errno::EPERM.into());
        }
        let member = user.is_root() || user.in_group(attr.gid);
        let perm = match attr.kind {
            Kind::Dir => None,
            _ => Some(without_set_id(&attr, member)).filter(|&perm| perm != attr.perm),
        };
        self.fs.setattr(ino, &SetAttr { uid, gid, perm, ..SetAttr::default() })?;
        Ok(Value::Done)
    }

    fn times(&self, user: User, path: &str, atime: Option<i64>, mtime: Option<i64>) -> Outcome {
        let ino = self.resolve(user, path, true)?;
        if !user.owns(&self.attr(ino)) {
            match (atime, mtime) {
                (None, None) => {}
                (Some(-1), Some(-1)) => self.may(user, ino, WRITE)?,
                _ => return Err(Errno::EPERM.into()),
            }
        }
        let set = SetAttr { atime: set_time(atime), mtime: set_time(mtime), ..SetAttr::default() };
        if set != SetAttr::default() {
            self.fs.setattr(ino, &set)?;
        }
        Ok(Value::Done)
    }

    fn xattr_check(&self, user: User, ino: Ino, name: &str, change: bool) -> Result<(), Errno> {
        let Some(rest) = name.strip_prefix("user.") else { return Err(Errno::EOPNOTSUPP) };
        if rest.is_empty() {
            return Err(Errno::EINVAL);
        }
        let attr = self.attr(ino);
        if !matches!(attr.kind, Kind::File | Kind::Dir) {
            return Err(if change { Errno::EPERM } else { Errno::ENODATA });
        }
        let sticky = attr.kind == Kind::Dir && attr.perm & 0o1000 != 0;
        if change && sticky && !user.owns(&attr) {
            return Err(Errno::EPERM);
        }
        self.may(user, ino, if change { WRITE } else { READ })
    }

    fn list(&mut self, user: User, path: &str) -> Outcome {
        let dir = self.resolve(user, path, true)?;
        if self.attr(dir).kind != Kind::Dir {
            return Err(Errno::ENOTDIR.into());
        }
        self.may(user, dir, READ)?;
        let mut names = Vec::new();
        self.fs.readdir(dir, 0, &mut |entry| {
            names.push((entry.name.to_vec(), entry.kind));
            true
        })?;
        names.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(Value::Names(names))
    }

    fn names_op(&mut self, user: User, op: &Op) -> Outcome {
        match op {
            Op::Mkdir { path, perm } => {
                let new = NewNode { perm: perm & 0o1777, ..node(Kind::Dir) };
                self.create(user, path, &new)
            }
            Op::Mknod { path, kind, perm } => {
                self.create(user, path, &NewNode { perm: perm & 0o7777, ..node(*kind) })
            }
            Op::Symlink { target, path } => {
                let target = target.as_bytes();
                self.create(user, path, &NewNode { perm: 0o777, target, ..node(Kind::Symlink) })
            }
            Op::Link { from, to } => {
                let ino = self.resolve(user, from, false)?;
                self.link_to(user, ino, false, to)
            }
            Op::Unlink { path } => self.unlink(user, path, false),
            Op::Rmdir { path } => self.unlink(user, path, true),
            Op::Rename { from, to, flags } => self.rename(user, from, to, *flags),
            Op::Readlink { path } => {
                let ino = self.resolve(user, path, false)?;
                Ok(Value::Bytes(self.fs.readlink(ino)?))
            }
            Op::List { path } => self.list(user, path),
            _ => unreachable!("not an operation on names: {op:?}"),
        }
    }

    fn file_op(&mut self, user: User, op: &Op) -> Outcome {
        match *op {
            Op::Open { slot, ref path, flags, perm } => self.open(user, slot, path, flags, perm),
            Op::LinkOpen { slot, ref to } => {
                let open = self.slot(slot)?;
                let done = self.link_to(user, open.ino, open.linkable, to)?;
                for other in self.open.values_mut().filter(|other| other.ino == open.ino) {
                    other.linkable = false;
                }
                Ok(done)
            }
            Op::Close { slot } => {
                self.slot(slot)?;
                self.open.remove(&slot);
                Ok(Value::Done)
            }
            Op::Read { slot, at, len } => self.read(slot, at, len),
            Op::Write { slot, at, len, fill } => {
                self.write(user, slot, at, &crate::subject::pattern(fill, len))
            }
            Op::Resize { slot, size } => {
                let open = self.slot(slot)?;
                let writable = open.flags & libc::O_ACCMODE != libc::O_RDONLY;
                if !writable || self.attr(open.ino).kind != Kind::File {
                    return Err(Errno::EINVAL.into());
                }
                self.set_open_size(user, open.ino, size)?;
                Ok(Value::Done)
            }
            Op::Fallocate { slot, flags, at, len } => self.fallocate(user, slot, flags, at, len),
            Op::Seek { slot, at, target } => self.seek(slot, at, target),
            Op::Copy { from, at, to, to_at, len } => self.copy(user, (from, at), (to, to_at), len),
            Op::StatOpen { slot } => Ok(self.state(self.slot(slot)?.ino)),
            Op::Fsync { slot, .. } => self.slot(slot).map(|_| Value::Done),
            _ => unreachable!("not an operation on open files: {op:?}"),
        }
    }

    fn seek(&self, slot: u8, at: u64, target: SeekFor) -> Outcome {
        let open = self.slot(slot)?;
        if self.attr(open.ino).kind != Kind::File {
            return Err(Failure::NoFile);
        }
        Ok(Value::Offset(self.fs.seek(open.ino, at, target)?))
    }

    fn state(&self, ino: Ino) -> Value {
        Value::State(State::of(&self.attr(ino)))
    }

    fn state_op(&mut self, user: User, op: &Op) -> Outcome {
        match op {
            Op::Truncate { path, size } => {
                let ino = self.resolve(user, path, true)?;
                match self.attr(ino).kind {
                    Kind::File => {}
                    Kind::Dir => return Err(Errno::EISDIR.into()),
                    _ => return Err(Errno::EINVAL.into()),
                }
                self.may(user, ino, WRITE)?;
                let set = SetAttr { size: Some(*size), ..SetAttr::default() };
                self.fs.setattr(ino, &set)?;
                self.kill_privileges(Some(user), ino);
                Ok(Value::Done)
            }
            Op::Chmod { path, perm } => self.chmod(user, path, *perm),
            Op::Chown { path, uid, gid, follow } => self.chown(user, path, (*uid, *gid), *follow),
            Op::Times { path, atime, mtime } => self.times(user, path, *atime, *mtime),
            Op::Stat { path, follow } => Ok(self.state(self.resolve(user, path, *follow)?)),
            Op::Access { path, mask } => {
                let ino = self.resolve(user, path, true)?;
                self.may(user, ino, *mask)?;
                Ok(Value::Done)
            }
            Op::SetXattr { path, name, len, mode } => {
                let ino = self.resolve(user, path, true)?;
                self.xattr_check(user, ino, name, true)?;
                let value = vec![b'x'; *len];
                self.fs.setxattr(ino, name.as_bytes(), &value, *mode)?;
                Ok(Value::Done)
            }
            Op::GetXattr { path, name } => {
                let ino = self.resolve(user, path, true)?;
                self.xattr_check(user, ino, name, false)?;
                Ok(Value::Bytes(self.fs.getxattr(ino, name.as_bytes())?))
            }
            Op::ListXattr { path } => {
                let ino = self.resolve(user, path, true)?;
                let names = self.fs.listxattr(ino)?;
                Ok(Value::Xattrs(names))
            }
            Op::RemoveXattr { path, name } => {
                let ino = self.resolve(user, path, true)?;
                self.xattr_check(user, ino, name, true)?;
                self.fs.removexattr(ino, name.as_bytes())?;
                Ok(Value::Done)
            }
            Op::Sync => Ok(Value::Done),
            _ => unreachable!("not an operation on state: {op:?}"),
        }
    }
}

impl Subject for Reference {
    fn apply(&mut self, step: &Step) -> Outcome {
        let user = User::new(step.who);
        match &step.op {
            Op::Mkdir { .. }
            | Op::Mknod { .. }
            | Op::Symlink { .. }
            | Op::Link { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::Readlink { .. }
            | Op::List { .. } => self.names_op(user, &step.op),
            Op::Open { .. }
            | Op::LinkOpen { .. }
            | Op::Close { .. }
            | Op::Read { .. }
            | Op::Write { .. }
            | Op::Resize { .. }
            | Op::Fallocate { .. }
            | Op::Seek { .. }
            | Op::Copy { .. }
            | Op::StatOpen { .. }
            | Op::Fsync { .. } => self.file_op(user, &step.op),
            _ => self.state_op(user, &step.op),
        }
    }
}

/// `setattr_should_drop_suidgid`: set-uid always; set-gid where it means a program, or where the user
/// is not a member.
fn without_set_id(attr: &Attr, member: bool) -> u32 {
    let mut perm = attr.perm;
    if attr.kind != Kind::File && attr.kind != Kind::Fifo && attr.kind != Kind::Socket {
        return perm;
    }
    perm &= !0o4000;
    if perm & 0o010 != 0 || !member {
        perm &= !0o2000;
    }
    perm
}

fn set_time(seconds: Option<i64>) -> Option<SetTime> {
    seconds.map(|sec| match sec {
        -1 => SetTime::Now,
        sec => SetTime::At(Time { sec, nsec: 0 }),
    })
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

fn node(kind: Kind) -> NewNode<'static> {
    NewNode { kind, perm: 0, uid: Uid(0), gid: Gid(0), rdev: 0, target: b"" }
}
