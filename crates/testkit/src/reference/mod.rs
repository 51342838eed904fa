//! System calls on the model: paths, permissions and open files as Linux has them, written down
//! once more, without caches, locks or cleverness.
//!
//! The rules follow fs/namei.c, fs/attr.c, fs/open.c and fs/read_write.c of Linux; where a
//! check's place decides which error comes, the order is theirs.

mod files;
mod names;
mod state;
mod walk;

use crate::model::Model;
use crate::ops::{Op, Step, USERS};
use crate::subject::{Outcome, Subject};
use polylane_base::{Clock, Errno, Gid, Ino, Uid};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Attr, DirEntry, FileSystem, Kind, NewNode};
use std::collections::BTreeMap;
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

/// See the module header.
pub struct Reference {
    fs: Arc<Model>,
    root: Ino,
    parents: BTreeMap<Ino, Ino>,
    open: BTreeMap<u8, Open>,
}

impl Reference {
    /// An empty tree.
    pub fn new(clock: Arc<dyn Clock>) -> Reference {
        Reference::on(Model::new(clock))
    }

    /// System calls on a tree that is there.
    pub fn on(fs: Model) -> Reference {
        let root = fs.root().map_or(Ino(1), |attr| attr.ino);
        let (mut parents, mut left) = (BTreeMap::new(), vec![root]);
        while let Some(dir) = left.pop() {
            let mut each = |entry: DirEntry<'_>| {
                if entry.kind == Kind::Dir {
                    parents.insert(entry.ino, dir);
                    left.push(entry.ino);
                }
                true
            };
            let listed = fs.readdir(&OpCtx::service(), dir, 0, &mut each);
            listed.expect("a directory of the model");
        }
        Reference { fs: Arc::new(fs), root, parents, open: BTreeMap::new() }
    }

    fn attr(&self, ino: Ino) -> Attr {
        self.fs
            .getattr(&OpCtx::service(), ino)
            .expect("the model keeps every inode that is named or open")
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

/// `setattr_should_drop_suidgid`: set-uid always; set-gid where it means a program, or where the
/// user is not a member.
fn without_set_id(attr: &Attr, member: bool) -> u32 {
    let mut perm = attr.perm;
    if attr.kind == Kind::Dir {
        return perm;
    }
    perm &= !0o4000;
    if perm & 0o010 != 0 || !member {
        perm &= !0o2000;
    }
    perm
}

fn node(kind: Kind) -> NewNode<'static> {
    NewNode::new(kind, 0)
}
