//! What steps are applied to, and what they answer; the one on a real `Vfs`.

use crate::ops::{MOUNT_PATH, Op, Step, UMASK, USERS};
use polylane_base::{Clock, Errno, Gid, Time, Uid};
use polylane_vfs::fs::{Attr, FileSystem, Kind, SetAttr, SetTime};
use polylane_vfs::{Create, Cred, Node, OpCtx, OpenFile, Options, PathError, Vfs};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Something that steps can be applied to.
pub trait Subject {
    /// Does one step.
    fn apply(&mut self, step: &Step) -> Outcome;
}

/// What a step comes to.
pub type Outcome = Result<Value, Failure>;

/// What a successful step answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// Nothing but success.
    Done,
    /// A position or a count.
    Offset(u64),
    /// Bytes of a file, a link or an attribute.
    Bytes(Vec<u8>),
    /// The state of an inode.
    State(State),
    /// Entries of a directory, sorted.
    Names(Vec<(Vec<u8>, Kind)>),
    /// Names of extended attributes, sorted.
    Xattrs(Vec<Vec<u8>>),
}

/// Why a step fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// With this error number.
    Errno(Errno),
    /// The lane hands it to the kernel: a path out of the lane, a pipe to open.
    Leaves,
    /// The slot holds no file that this can be done with.
    NoFile,
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Failure {
        Failure::Errno(errno)
    }
}

impl From<PathError> for Failure {
    fn from(error: PathError) -> Failure {
        match error {
            PathError::Errno(errno) => Failure::Errno(errno),
            PathError::Leaves => Failure::Leaves,
        }
    }
}

/// The state of an inode, as far as two implementations must agree on it.
#[derive(Clone, Copy, Eq, Debug)]
pub struct State {
    /// Kind.
    pub kind: Kind,
    /// Permission bits.
    pub perm: u32,
    /// Links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size; 0 for directories.
    pub size: u64,
    /// Modification time in seconds if a step set it, `None` if it is from the clock;
    /// [`EITHER_TIME`] is equal to both.
    pub mtime: Option<i64>,
    /// Inode number. Not compared: only what is one inode and what are two must agree.
    pub ino: u64,
}

/// The modification time of a file whose fallocate was refused: ext4 takes the file for changed
/// before it looks at the range, tmpfs does not.
pub const EITHER_TIME: i64 = -1;

impl State {
    /// The comparable part of `attr`.
    pub fn of(attr: &Attr) -> State {
        State {
            kind: attr.kind,
            perm: attr.perm,
            nlink: attr.nlink,
            uid: attr.uid.0,
            gid: attr.gid.0,
            size: if attr.kind == Kind::Dir { 0 } else { attr.size },
            mtime: Some(attr.mtime.sec).filter(|&sec| sec < crate::ops::SMALL_TIME),
            ino: attr.ino.0,
        }
    }
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        let key = |s: &State| (s.kind, s.perm, s.nlink, s.uid, s.gid, s.size);
        let either = [self.mtime, other.mtime].contains(&Some(EITHER_TIME));
        key(self) == key(other) && (either || self.mtime == other.mtime)
    }
}

/// The bytes that a write of `len` stores: no two neighbours and no two pages alike.
pub fn pattern(fill: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| fill.wrapping_add((i % 251) as u8).wrapping_add((i >> 12) as u8)).collect()
}

/// Steps applied to a `Vfs` on some file system.
pub struct VfsSubject {
    vfs: Arc<Vfs>,
    root: Node,
    open: BTreeMap<u8, Arc<OpenFile>>,
}

/// Options for a `Vfs` under test: caches so small that they are always full.
pub fn small_options(clock: Arc<dyn Clock>, cache_bytes_limit: u64) -> Options {
    Options {
        clock,
        cache_bytes_limit,
        dirty_bytes_limit: cache_bytes_limit / 2,
        flush_interval: Duration::from_millis(50),
        mount_path: MOUNT_PATH.into(),
        covered: Vec::new(),
    }
}

fn cred(who: usize) -> Cred {
    let (uid, gid, groups) = USERS[who];
    let groups = groups.iter().copied().map(Gid).collect();
    Cred { uid: Uid(uid), gid: Gid(gid), groups, ..Cred::root() }
}

impl VfsSubject {
    /// A `Vfs` on `fs`.
    ///
    /// # Panics
    ///
    /// When the file system has no root.
    pub fn new(fs: Arc<dyn FileSystem>, options: Options) -> VfsSubject {
        let vfs = Vfs::new(fs, options).expect("a root");
        VfsSubject { root: vfs.root(), vfs, open: BTreeMap::new() }
    }

    /// The `Vfs`.
    pub fn vfs(&self) -> &Arc<Vfs> {
        &self.vfs
    }

    fn file(&self, slot: u8) -> Result<&Arc<OpenFile>, Failure> {
        self.open.get(&slot).ok_or(Failure::NoFile)
    }

    fn resolve(&self, ctx: &OpCtx<'_>, path: &str, follow: bool) -> Result<Node, Failure> {
        Ok(self.vfs.resolve(ctx, &self.root, path.as_bytes(), follow)?)
    }

    fn create(&self, ctx: &OpCtx<'_>, path: &str, kind: Kind, perm: u32, target: &str) -> Outcome {
        let last = self.vfs.resolve_parent(ctx, &self.root, path.as_bytes())?;
        let new = Create { kind, perm, umask: UMASK, rdev: 0, target: target.as_bytes() };
        self.vfs.create(ctx, &last.dir, &last.name, &new)?;
        Ok(Value::Done)
    }

    fn names_op(&mut self, ctx: &OpCtx<'_>, op: &Op) -> Outcome {
        let vfs = &self.vfs;
        let parent = |path: &str| vfs.resolve_parent(ctx, &self.root, path.as_bytes());
        match op {
            Op::Mkdir { path, perm } => return self.create(ctx, path, Kind::Dir, *perm, ""),
            Op::Mknod { path, kind, perm } => return self.create(ctx, path, *kind, *perm, ""),
            Op::Symlink { target, path } => {
                return self.create(ctx, path, Kind::Symlink, 0o777, target);
            }
            Op::Link { from, to } => {
                let node = self.resolve(ctx, from, false)?;
                let last = parent(to)?;
                vfs.link(ctx, &node, &last.dir, &last.name)?;
            }
            Op::Unlink { path } => {
                let last = parent(path)?;
                vfs.unlink(ctx, &last.dir, &last.name)?;
            }
            Op::Rmdir { path } => {
                let last = parent(path)?;
                vfs.rmdir(ctx, &last.dir, &last.name)?;
            }
            Op::Rename { from, to, flags } => {
                // The kernel refuses these before it looks at the paths.
                if flags & 2 != 0 && flags & 5 != 0 {
                    return Err(Errno::EINVAL.into());
                }
                let (from, to) = (parent(from)?, parent(to)?);
                vfs.rename(ctx, &from.dir, &from.name, &to.dir, &to.name, *flags)?;
            }
            Op::Readlink { path } => {
                return Ok(Value::Bytes(vfs.readlink(ctx, &self.resolve(ctx, path, false)?)?));
            }
            Op::List { path } => return self.list(ctx, path),
            _ => unreachable!("not an operation on names: {op:?}"),
        }
        Ok(Value::Done)
    }

    fn list(&self, ctx: &OpCtx<'_>, path: &str) -> Outcome {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let dir = self.vfs.open_path(ctx, &self.root, path.as_bytes(), flags, 0, 0)?;
        let mut names = Vec::new();
        dir.readdir(ctx, 0, &mut |entry| {
            names.push((entry.name.to_vec(), entry.kind));
            true
        })?;
        names.sort_by(|a, b| a.0.cmp(&b.0));
        let dots = names.iter().filter(|entry| matches!(entry.0.as_slice(), b"." | b".."));
        assert_eq!(dots.count(), 2, "a directory lists itself and its parent");
        names.retain(|entry| !matches!(entry.0.as_slice(), b"." | b".."));
        Ok(Value::Names(names))
    }

    fn open(&mut self, ctx: &OpCtx<'_>, slot: u8, path: &str, flags: i32, perm: u32) -> Outcome {
        let path = path.as_bytes();
        let file = self.vfs.open_path(ctx, &self.root, path, flags, perm, UMASK)?;
        if !matches!(file.node().kind(), Kind::File | Kind::Dir) {
            return Err(Failure::Leaves);
        }
        self.open.insert(slot, file);
        Ok(Value::Done)
    }

    fn file_op(&mut self, ctx: &OpCtx<'_>, op: &Op) -> Outcome {
        match *op {
            Op::Open { slot, ref path, flags, perm } => self.open(ctx, slot, path, flags, perm),
            Op::LinkOpen { slot, ref to } => {
                let file = self.file(slot)?;
                let last = self.vfs.resolve_parent(ctx, &self.root, to.as_bytes())?;
                self.vfs.link(ctx, file.node(), &last.dir, &last.name)?;
                Ok(Value::Done)
            }
            Op::Close { slot } => {
                self.open.remove(&slot).map(|_| Value::Done).ok_or(Failure::NoFile)
            }
            Op::Read { slot, at, len } => {
                let mut buffer = vec![0xee; len];
                let (file, mut sink) = (self.file(slot)?, buffer.as_mut_slice());
                // As the kernel does, and as others do.
                let count = match at % 2 {
                    0 => file.read_to_keep(ctx, at, len, &mut sink)?,
                    _ => file.read(ctx, at, len, &mut sink)?,
                };
                buffer.truncate(count);
                Ok(Value::Bytes(buffer))
            }
            Op::Write { slot, at, len, fill } => {
                let bytes = pattern(fill, len);
                let written = self.file(slot)?.write(ctx, at, &mut bytes.as_slice())?;
                Ok(Value::Offset(written.end))
            }
            Op::Resize { slot, size } => self.resize(ctx, slot, size),
            Op::Fallocate { slot, flags, at, len } => {
                self.file(slot)?.fallocate(ctx, flags, at, len)?;
                Ok(Value::Done)
            }
            Op::Seek { slot, at, target } => {
                let file = self.file(slot)?;
                if file.node().kind() != Kind::File {
                    return Err(Failure::NoFile);
                }
                Ok(Value::Offset(file.seek(ctx, at, target)?))
            }
            Op::Copy { from, at, to, to_at, len } => {
                let count = self.file(from)?.copy_range(ctx, at, (self.file(to)?, to_at), len)?;
                Ok(Value::Offset(count))
            }
            Op::StatOpen { slot } => self.state(ctx, self.file(slot)?.node()),
            Op::Fsync { slot, data_only } => {
                self.file(slot)?.fsync(ctx, data_only)?;
                Ok(Value::Done)
            }
            _ => unreachable!("not an operation on open files: {op:?}"),
        }
    }

    /// ftruncate(2): the front end checks the access mode, the `Vfs` no rights.
    fn resize(&self, ctx: &OpCtx<'_>, slot: u8, size: u64) -> Outcome {
        let file = self.file(slot)?;
        let writable = file.flags() & libc::O_ACCMODE != libc::O_RDONLY;
        if !writable || file.node().kind() != Kind::File {
            return Err(Errno::EINVAL.into());
        }
        let ctx = &OpCtx { kernel_checked: true, ..*ctx };
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.vfs.setattr(ctx, file.node(), &set)?;
        Ok(Value::Done)
    }

    fn state(&self, ctx: &OpCtx<'_>, node: &Node) -> Outcome {
        Ok(Value::State(State::of(&self.vfs.getattr(ctx, node)?)))
    }

    fn set(&self, ctx: &OpCtx<'_>, path: &str, follow: bool, set: &SetAttr) -> Outcome {
        self.vfs.setattr(ctx, &self.resolve(ctx, path, follow)?, set)?;
        Ok(Value::Done)
    }

    fn state_op(&mut self, ctx: &OpCtx<'_>, op: &Op) -> Outcome {
        let none = SetAttr::default();
        match op {
            Op::Truncate { path, size } => {
                self.set(ctx, path, true, &SetAttr { size: Some(*size), ..none })
            }
            Op::Chmod { path, perm } => {
                self.set(ctx, path, true, &SetAttr { perm: Some(*perm), ..none })
            }
            Op::Chown { path, uid, gid, follow } => {
                let (uid, gid) = (uid.map(Uid), gid.map(Gid));
                self.set(ctx, path, *follow, &SetAttr { uid, gid, ..none })
            }
            Op::Times { path, atime, mtime } => {
                let (atime, mtime) = (set_time(*atime), set_time(*mtime));
                let set = SetAttr { atime, mtime, ..none };
                // A front end asks for no change then: without a field it would be chown(-1, -1).
                match set == none {
                    true => self.resolve(ctx, path, true).map(|_| Value::Done),
                    false => self.set(ctx, path, true, &set),
                }
            }
            Op::Stat { path, follow } => self.state(ctx, &self.resolve(ctx, path, *follow)?),
            Op::Access { path, mask } => {
                self.vfs.access(ctx, &self.resolve(ctx, path, true)?, *mask)?;
                Ok(Value::Done)
            }
            Op::Sync => {
                self.vfs.sync(ctx)?;
                Ok(Value::Done)
            }
            _ => self.xattr_op(ctx, op),
        }
    }

    fn xattr_op(&mut self, ctx: &OpCtx<'_>, op: &Op) -> Outcome {
        match op {
            Op::SetXattr { path, name, len, mode } => {
                let node = self.resolve(ctx, path, true)?;
                self.vfs.setxattr(ctx, &node, name.as_bytes(), &vec![b'x'; *len], *mode)?;
                Ok(Value::Done)
            }
            Op::GetXattr { path, name } => {
                let node = self.resolve(ctx, path, true)?;
                Ok(Value::Bytes(self.vfs.getxattr(ctx, &node, name.as_bytes())?))
            }
            Op::ListXattr { path } => {
                let node = self.resolve(ctx, path, true)?;
                let mut names = self.vfs.listxattr(ctx, &node)?;
                names.sort();
                Ok(Value::Xattrs(names))
            }
            Op::RemoveXattr { path, name } => {
                let node = self.resolve(ctx, path, true)?;
                self.vfs.removexattr(ctx, &node, name.as_bytes())?;
                Ok(Value::Done)
            }
            _ => unreachable!("not an operation on state: {op:?}"),
        }
    }
}

impl Subject for VfsSubject {
    fn apply(&mut self, step: &Step) -> Outcome {
        let cred = cred(step.who);
        let ctx = &OpCtx::as_user(&cred);
        match &step.op {
            Op::Mkdir { .. }
            | Op::Mknod { .. }
            | Op::Symlink { .. }
            | Op::Link { .. }
            | Op::Unlink { .. }
            | Op::Rmdir { .. }
            | Op::Rename { .. }
            | Op::Readlink { .. }
            | Op::List { .. } => self.names_op(ctx, &step.op),
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
            | Op::Fsync { .. } => self.file_op(ctx, &step.op),
            _ => self.state_op(ctx, &step.op),
        }
    }
}

fn set_time(seconds: Option<i64>) -> Option<SetTime> {
    seconds.map(|sec| match sec {
        -1 => SetTime::Now,
        sec => SetTime::At(Time { sec, nsec: 0 }),
    })
}
