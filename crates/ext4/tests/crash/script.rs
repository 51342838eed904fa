//! What a workload does, and doing it: operations by path on the file door.

use std::collections::BTreeMap;

use polylane_base::{Errno, Gid, Ino, Result, Uid};
use polylane_testkit::acl::{NOBODY, value};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{
    Acl, AclKind, Acls, Attr, Fallocate, FileSystem, Kind, Last, NewNode, RenameMode, SetAttr,
    SetTime, Syncing, XattrMode,
};

/// The byte that free blocks are filled with before a run: no file may ever show it.
pub const POISON: u8 = 0xe7;

/// One operation. Paths are relative to the root, `""` is the root. Slots hold inodes open.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    Create(String),
    Mkdir(String),
    Mknod(String),
    /// With a target of that many bytes.
    Symlink(String, usize),
    /// An unnamed file in a slot.
    Tmpfile(u8),
    /// Names the file in a slot.
    LinkSlot(u8, String),
    /// Opens a file and keeps it open.
    Hold(u8, String),
    /// Closes it.
    Release(u8),
    Write(String, u64, usize),
    WriteSlot(u8, u64, usize),
    Truncate(String, u64),
    Fallocate(String, Fallocate, u64, u64),
    Chmod(String, u32),
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, RenameMode),
    SetXattr(String, String, usize),
    RemoveXattr(String, String),
    /// An access control list with so many users, and the mode that goes with it.
    SetAcl(String, usize),
    /// A file or a directory that inherits lists of so many users.
    Inherit(Kind, String, usize),
    Fsync(String),
    Fdatasync(String),
    FsyncSlot(u8),
    Sync,
}

/// Does operations on a file system, as a VFS without a cache would.
pub struct Runner<'a> {
    pub fs: &'a dyn FileSystem,
    slots: BTreeMap<u8, Ino>,
    serial: u64,
    seen: Vec<Ino>,
    /// Inodes with names are never forgotten.
    warm: bool,
}

impl<'a> Runner<'a> {
    pub fn new(fs: &'a dyn FileSystem, warm: bool) -> Self {
        Runner { fs, slots: BTreeMap::new(), serial: 0, seen: Vec::new(), warm }
    }

    /// Whether nothing here needs the inode any more.
    pub fn may_forget(&self, ino: Ino) -> bool {
        let named = || self.fs.getattr(&OpCtx::service(), ino).is_ok_and(|attr| attr.nlink > 0);
        let needed = self.held().any(|held| held == ino) || (self.warm && named());
        !needed
    }

    /// What the slots hold.
    pub fn held(&self) -> impl Iterator<Item = Ino> {
        self.slots.values().copied()
    }

    /// Closes what the slots hold.
    pub fn release_all(&mut self) {
        self.seen.extend(std::mem::take(&mut self.slots).into_values());
        self.forget_seen();
    }

    fn resolve(&mut self, path: &str) -> Result<Attr> {
        let mut at = self.fs.root()?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            if at.kind != Kind::Dir {
                return Err(Errno::ENOTDIR);
            }
            at = self.fs.lookup(&OpCtx::service(), at.ino, name.as_bytes())?;
            self.seen.push(at.ino);
        }
        Ok(at)
    }

    fn parent<'p>(&mut self, path: &'p str) -> Result<(Ino, &'p [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.resolve(dir)?;
        match dir.kind {
            Kind::Dir => Ok((dir.ino, name.as_bytes())),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn file(&mut self, path: &str) -> Result<Ino> {
        let attr = self.resolve(path)?;
        if attr.kind == Kind::File { Ok(attr.ino) } else { Err(Errno::EINVAL) }
    }

    /// The inode that an fsync of `op` is about.
    pub fn synced(&mut self, op: &Op) -> Option<Ino> {
        let ino = match op {
            Op::Fsync(path) | Op::Fdatasync(path) => self.resolve(path).ok().map(|attr| attr.ino),
            Op::FsyncSlot(slot) => self.slots.get(slot).copied(),
            _ => None,
        };
        self.forget_seen();
        ino
    }

    /// Does one operation and lets go of every inode that no slot holds, as a VFS under memory
    /// pressure would.
    pub fn apply(&mut self, op: &Op) -> Result<()> {
        let result = self.change(op);
        self.forget_seen();
        result
    }

    /// As the VFS does it: a last name takes the inode with it, unless somebody holds that.
    fn unlink(&mut self, dir: Ino, name: &[u8]) -> Result<()> {
        let ino = self.fs.lookup(&OpCtx::service(), dir, name)?.ino;
        let is_over = self.held().all(|held| held != ino);
        let last = self.fs.unlink_last(&OpCtx::service(), dir, name, &mut || is_over)?;
        match last {
            Some(Last { is_freed: true, .. }) => return Ok(()),
            Some(_) => {}
            None => drop(self.fs.unlink(&OpCtx::service(), dir, name)?),
        }
        self.seen.push(ino);
        Ok(())
    }

    fn forget_seen(&mut self) {
        self.seen.sort_unstable_by_key(|ino| ino.0);
        self.seen.dedup();
        let root = self.fs.root().map(|attr| attr.ino);
        for ino in std::mem::take(&mut self.seen) {
            if Ok(ino) != root && self.may_forget(ino) {
                self.fs.forget(ino);
            }
        }
    }

    fn make(&mut self, path: &str, kind: Kind, target: &[u8]) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        let changed = self.fs.create(&OpCtx::service(), dir, name, &new_node(kind, target))?;
        self.seen.push(changed.node.ino);
        Ok(())
    }

    fn write(&mut self, ino: Ino, offset: u64, len: usize) -> Result<()> {
        self.serial += 1;
        let data = pattern(self.serial, offset, len);
        let mut at = 0;
        while at < len {
            let (offset, mut rest) = (offset + at as u64, &data[at..]);
            // As the page cache does before a sync, by turns: of this little, or of much else.
            let much = if self.serial % 5 >= 3 { 1 << 20 } else { 0 };
            let bytes = rest.len() as u64 + much;
            let syncing = Syncing { bytes, data_only: self.serial % 3 == 2 };
            let count = match self.serial % 3 {
                0 => self.fs.write(&OpCtx::service(), ino, offset, &mut rest)?,
                _ => self.fs.write_synced(&OpCtx::service(), ino, offset, &mut rest, syncing)?,
            };
            if count == 0 {
                return Err(Errno::ENOSPC);
            }
            at += count;
        }
        Ok(())
    }

    fn change(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Create(path) => self.make(path, Kind::File, &[]),
            Op::Mkdir(path) => self.make(path, Kind::Dir, &[]),
            Op::Mknod(path) => self.make(path, Kind::Fifo, &[]),
            Op::Symlink(path, len) => self.make(path, Kind::Symlink, &vec![b't'; *len]),
            Op::Write(path, offset, len) => {
                let ino = self.file(path)?;
                self.write(ino, *offset, *len)
            }
            Op::Truncate(path, size) => {
                let ino = self.file(path)?;
                let set =
                    SetAttr { size: Some(*size), mtime: Some(SetTime::Now), ..SetAttr::default() };
                self.fs.setattr(&OpCtx::service(), ino, &set).map(drop)
            }
            Op::Fallocate(path, mode, offset, len) => {
                let ino = self.file(path)?;
                self.fs.fallocate(&OpCtx::service(), ino, *mode, *offset, *len).map(drop)
            }
            Op::Chmod(path, perm) => {
                let ino = self.resolve(path)?.ino;
                let set = SetAttr { perm: Some(*perm), ..SetAttr::default() };
                self.fs.setattr(&OpCtx::service(), ino, &set).map(drop)
            }
            Op::SetXattr(path, name, len) => {
                self.serial += 1;
                let ino = self.resolve(path)?.ino;
                let value = pattern(self.serial, 0, *len);
                self.fs
                    .setxattr(&OpCtx::service(), ino, name.as_bytes(), &value, XattrMode::Any)
                    .map(drop)
            }
            Op::RemoveXattr(path, name) => {
                let ino = self.resolve(path)?.ino;
                self.fs.removexattr(&OpCtx::service(), ino, name.as_bytes()).map(drop)
            }
            Op::SetAcl(path, users) => {
                self.serial += 1;
                let acl = acl(self.serial, *users);
                let (ino, perm) = (self.resolve(path)?.ino, Some(acl.mode()));
                self.fs.set_acl(&OpCtx::service(), ino, AclKind::Access, Some(&acl), perm).map(drop)
            }
            Op::Inherit(kind, path, users) => {
                self.serial += 1;
                let acl = acl(self.serial, *users);
                let (dir, name) = self.parent(path)?;
                let default = Some(&acl).filter(|_| *kind == Kind::Dir);
                let acls = Acls { access: Some(&acl), default };
                let new = NewNode { perm: acl.mode(), acls, ..new_node(*kind, &[]) };
                let changed = self.fs.create(&OpCtx::service(), dir, name, &new)?;
                self.seen.push(changed.node.ino);
                Ok(())
            }
            Op::Fsync(path) => self
                .resolve(path)
                .and_then(|attr| self.fs.fsync(&OpCtx::service(), attr.ino, false)),
            Op::Fdatasync(path) => {
                self.resolve(path).and_then(|a| self.fs.fsync(&OpCtx::service(), a.ino, true))
            }
            Op::Sync => self.fs.sync(&OpCtx::service()),
            Op::Tmpfile(_)
            | Op::LinkSlot(..)
            | Op::Hold(..)
            | Op::Release(_)
            | Op::WriteSlot(..)
            | Op::FsyncSlot(_) => self.slot_op(op),
            _ => self.name_op(op),
        }
    }

    fn slot(&self, slot: u8) -> Result<Ino> {
        self.slots.get(&slot).copied().ok_or(Errno::EBADF)
    }

    fn slot_op(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Tmpfile(slot) if !self.slots.contains_key(slot) => {
                let root = self.fs.root()?.ino;
                let made =
                    self.fs.create_unlinked(&OpCtx::service(), root, &new_node(Kind::File, &[]))?;
                self.slots.insert(*slot, made.ino);
                Ok(())
            }
            Op::Hold(slot, path) if !self.slots.contains_key(slot) => {
                let ino = self.file(path)?;
                self.slots.insert(*slot, ino);
                Ok(())
            }
            Op::Tmpfile(_) | Op::Hold(..) => Err(Errno::EBUSY),
            Op::LinkSlot(slot, path) => {
                let (ino, (dir, name)) = (self.slot(*slot)?, self.parent(path)?);
                self.fs.link(&OpCtx::service(), ino, dir, name).map(drop)
            }
            Op::Release(slot) => {
                let ino = self.slots.remove(slot).ok_or(Errno::EBADF)?;
                self.seen.push(ino);
                Ok(())
            }
            Op::WriteSlot(slot, offset, len) => {
                let ino = self.slot(*slot)?;
                self.write(ino, *offset, *len)
            }
            Op::FsyncSlot(slot) => self.fs.fsync(&OpCtx::service(), self.slot(*slot)?, false),
            _ => unreachable!("not about a slot: {op:?}"),
        }
    }

    fn name_op(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Link(from, to) => {
                let source = self.resolve(from)?;
                let (dir, name) = self.parent(to)?;
                match source.kind {
                    Kind::Dir => Err(Errno::EPERM),
                    _ => self.fs.link(&OpCtx::service(), source.ino, dir, name).map(drop),
                }
            }
            Op::Unlink(path) => {
                let (dir, name) = self.parent(path)?;
                self.unlink(dir, name)
            }
            Op::Rmdir(path) => {
                let (dir, name) = self.parent(path)?;
                self.seen.push(self.fs.lookup(&OpCtx::service(), dir, name)?.ino);
                self.fs.rmdir(&OpCtx::service(), dir, name).map(drop)
            }
            Op::Rename(from, to, mode) => self.rename(from, to, *mode),
            _ => unreachable!("not about names: {op:?}"),
        }
    }

    /// A rename, with the checks that the VFS would have made.
    fn rename(&mut self, from: &str, to: &str, mode: RenameMode) -> Result<()> {
        let inside = |inner: &str, outer: &str| inner.starts_with(&format!("{outer}/"));
        if inside(to, from) || inside(from, to) {
            return Err(Errno::EINVAL);
        }
        let moved = self.resolve(from)?;
        let target = self.resolve(to).ok();
        let kinds = |other: &Attr| (moved.kind == Kind::Dir) == (other.kind == Kind::Dir);
        match (&target, mode) {
            (Some(other), _) if other.ino == moved.ino => return Ok(()),
            (Some(_), RenameMode::NoReplace) => return Err(Errno::EEXIST),
            (None, RenameMode::Exchange) => return Err(Errno::ENOENT),
            (Some(other), RenameMode::Replace | RenameMode::Whiteout) if !kinds(other) => {
                return Err(Errno::EINVAL);
            }
            _ => {}
        }
        let (from_dir, from) = self.parent(from)?;
        let (to_dir, to) = self.parent(to)?;
        self.fs.rename(&OpCtx::service(), from_dir, from, to_dir, to, mode).map(drop)
    }
}

fn new_node(kind: Kind, target: &[u8]) -> NewNode<'_> {
    let perm = if kind == Kind::Dir { 0o755 } else { 0o644 };
    NewNode { uid: Uid(1000), gid: Gid(1000), target, ..NewNode::new(kind, perm) }
}

/// A list whose mode tells which operation made it.
fn acl(serial: u64, users: usize) -> Acl {
    let others = (0..users as u32).map(|uid| (2, 6, uid));
    let [mask, rest] = [serial % 8, serial / 8 % 8].map(|rights| rights as u16);
    let ends = [(4, 0, NOBODY), (16, mask, NOBODY), (32, rest, NOBODY)];
    let value = value([(1, 7, NOBODY)].into_iter().chain(others).chain(ends));
    Acl::parse(&value).expect("well-formed").expect("with entries")
}

/// Bytes that tell which write made them and where: neither zero nor poison.
fn pattern(serial: u64, offset: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| 1 + ((serial * 41 + at / 512 * 7 + at % 3) % 0x9f) as u8;
    (offset..offset + len as u64).map(byte).collect()
}
