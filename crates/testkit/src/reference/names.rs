//! Names of the reference: creating, linking, removing, renaming, listing.

use super::{EXEC, READ, Reference, User, WRITE, node};
use crate::ops::{Op, UMASK};
use crate::subject::{Outcome, Value};
use polylane_base::{Errno, Ino};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Attr, FileSystem, Kind, NewNode, RenameMode, SetAttr};

impl Reference {
    pub(super) fn list(&mut self, user: User, path: &str) -> Outcome {
        let dir = self.resolve(user, path, true)?;
        if self.attr(dir).kind != Kind::Dir {
            return Err(Errno::ENOTDIR.into());
        }
        self.may(user, dir, READ)?;
        let mut names = Vec::new();
        self.fs.readdir(&OpCtx::service(), dir, 0, &mut |entry| {
            names.push((entry.name.to_vec(), entry.kind));
            true
        })?;
        names.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(Value::Names(names))
    }

    pub(super) fn names_op(&mut self, user: User, op: &Op) -> Outcome {
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
                Ok(Value::Bytes(self.fs.readlink(&OpCtx::service(), ino)?))
            }
            Op::List { path } => self.list(user, path),
            _ => unreachable!("not an operation on names: {op:?}"),
        }
    }

    pub(super) fn create(&mut self, user: User, path: &str, new: &NewNode<'_>) -> Outcome {
        let last = self.parent(user, path)?;
        match self.find(last.dir, &last.name) {
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

    pub(super) fn create_at(
        &mut self,
        user: User,
        dir: Ino,
        name: &[u8],
        new: &NewNode<'_>,
    ) -> Result<Ino, Errno> {
        self.may(user, dir, WRITE | EXEC)?;
        let above = self.attr(dir);
        if new.kind == Kind::Dir && above.nlink >= self.fs.character().max_dir_links {
            return Err(Errno::EMLINK);
        }
        let made =
            self.fs.create(&OpCtx::service(), dir, name, &self.inherit(user, &above, new))?.node;
        self.parents.insert(made.ino, dir);
        Ok(made.ino)
    }

    /// `inode_init_owner` and `mode_strip_sgid`.
    pub(super) fn inherit<'a>(&self, user: User, dir: &Attr, new: &NewNode<'a>) -> NewNode<'a> {
        let mut new = NewNode { uid: user.uid, gid: user.gid, ..new.clone() };
        let asked = new.perm;
        if new.kind != Kind::Symlink {
            new.perm &= !UMASK;
        }
        if dir.perm & 0o2000 != 0 {
            new.gid = dir.gid;
            if new.kind == Kind::Dir {
                new.perm |= 0o2000;
            } else if asked & 0o2010 == 0o2010 && !user.is_root() && !user.in_group(dir.gid) {
                new.perm &= !0o2000;
            }
        }
        new
    }

    pub(super) fn link_to(&mut self, user: User, ino: Ino, linkable: bool, to: &str) -> Outcome {
        let last = self.parent(user, to)?;
        match self.find(last.dir, &last.name) {
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
        self.fs.link(&OpCtx::service(), ino, last.dir, &last.name)?;
        Ok(Value::Done)
    }

    pub(super) fn unlink(&mut self, user: User, path: &str, as_dir: bool) -> Outcome {
        let last = self.parent(user, path)?;
        let victim = self.find(last.dir, &last.name)?;
        if !as_dir && last.slash {
            let errno = if victim.kind == Kind::Dir { Errno::EISDIR } else { Errno::ENOTDIR };
            return Err(errno.into());
        }
        self.may_remove(user, last.dir, victim.ino, as_dir)?;
        match as_dir {
            true => self.fs.rmdir(&OpCtx::service(), last.dir, &last.name)?,
            false => self.fs.unlink(&OpCtx::service(), last.dir, &last.name)?,
        };
        Ok(Value::Done)
    }

    /// `a` is `b` or lies above it.
    pub(super) fn lies_above(&self, a: Ino, b: Ino) -> bool {
        let mut at = b;
        while at != a {
            match self.parents.get(&at) {
                Some(&parent) if at != self.root => at = parent,
                _ => return false,
            }
        }
        true
    }

    /// What a rename left as every new inode of the user.
    fn own_whiteout(&self, user: User, dir: Ino, name: &[u8]) -> Result<(), Errno> {
        let left = self.fs.lookup(&OpCtx::service(), dir, name)?;
        let new = self.inherit(user, &self.attr(dir), &NewNode::new(Kind::Char, 0));
        let set = SetAttr { uid: Some(new.uid), gid: Some(new.gid), ..SetAttr::default() };
        self.fs.setattr(&OpCtx::service(), left.ino, &set).map(|_| ())
    }

    pub(super) fn rename(&mut self, user: User, from: &str, to: &str, flags: u32) -> Outcome {
        let (fresh, exchange, whiteout) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
        if exchange && (fresh || whiteout) {
            return Err(Errno::EINVAL.into());
        }
        let from = self.parent(user, from)?;
        let to = self.parent(user, to)?;
        let moved = self.find(from.dir, &from.name)?;
        let other = match self.find(to.dir, &to.name) {
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
        self.fs.rename(&OpCtx::service(), from.dir, &from.name, to.dir, &to.name, mode)?;
        if mode == RenameMode::Whiteout {
            self.own_whiteout(user, from.dir, &from.name)?;
        }
        self.parents.insert(moved.ino, to.dir);
        if let Some(other) = other.filter(|_| exchange) {
            self.parents.insert(other.ino, from.dir);
        }
        Ok(Value::Done)
    }
}
