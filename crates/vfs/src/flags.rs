//! Inode flags (ioctl_iflags(2), chattr(1)): what holds of an inode for everybody, root included.
//!
//! | flag | what is refused, with `EPERM` | in a directory |
//! |---|---|---|
//! | [`IMMUTABLE`] | to write, to change state, attributes, names | to change entries |
//! | [`APPEND`] | to write but at the end, to change state, attributes, names | to remove them |
//!
//! Judged here for all doors, whatever the kernel checked: it does not know these flags of a FUSE
//! mount's inodes. As on Linux's ext4, what was open for writing before can write no more once the
//! file is immutable; as on tmpfs, mappings that were there go on to be written.
//!
//! # Why a client's own answers are right
//!
//! Whoever sets flags announces it as a change of rights: leases and the file's loan end before,
//! and neither is granted on what these flags hold.

use polylane_base::{Errno, Result};

use crate::access;
use crate::core::Core;
use crate::ctx::OpCtx;
use crate::fs::{Kind, SetAttr, SetTime};
use crate::inode::{FROZEN, Inode, NO_ATIME, Node, ONLY_GROWS};
use crate::names::check_alive;
use crate::vfs::Vfs;

/// `FS_SYNC_FL`: writes are synchronous. Kept, not honoured.
pub const SYNC: u32 = 0x8;
/// `FS_COMPR_FL`: compressed, which no file of ours is.
pub const COMPRESSED: u32 = 0x4;
/// `FS_IMMUTABLE_FL`.
pub const IMMUTABLE: u32 = 0x10;
/// `FS_APPEND_FL`.
pub const APPEND: u32 = 0x20;
/// `FS_NODUMP_FL`: backups pass it over.
pub const NODUMP: u32 = 0x40;
/// `FS_NOATIME_FL`: reading moves no access time.
pub const NOATIME: u32 = 0x80;
/// `FS_ENCRYPT_FL`: encrypted, which no file of ours is.
pub const ENCRYPTED: u32 = 0x800;
/// `FS_INDEX_FL`: a directory with a hash tree.
pub const INDEX: u32 = 0x1000;
/// `FS_DIRSYNC_FL`: changes of the directory are synchronous. Kept, not honoured.
pub const DIRSYNC: u32 = 0x1_0000;
/// `FS_EXTENT_FL`: space is kept as extents.
pub const EXTENTS: u32 = 0x8_0000;

/// `FS_VERITY_FL`: checked against a tree of sums as it is read, which no file of ours is.
pub const VERITY: u32 = 0x10_0000;

/// `FS_PROJINHERIT_FL`: what is made in the directory belongs to its project. No flag of files.
pub const PROJECT_INHERIT: u32 = 0x2000_0000;

/// Flags that can be set where flags are kept.
pub const SETTABLE: u32 = IMMUTABLE | APPEND | NODUMP | NOATIME;

/// Flags that can be set and are attributes of statx(2), in which they have the same bits.
pub const ATTRIBUTES: u32 = IMMUTABLE | APPEND | NODUMP;

/// Flags that only root changes (`CAP_LINUX_IMMUTABLE`).
const PRIVILEGED: u32 = IMMUTABLE | APPEND;

/// Flags that tell how something is stored: programs hand them back as they got them, or not.
const OF_STORAGE: u32 = INDEX | EXTENTS;

/// Flags that what is made in a directory has from it.
const INHERITED: u32 = SYNC | NODUMP | NOATIME | DIRSYNC;

/// What is kept beside an inode's state for a look without a lock.
pub(crate) fn held(flags: u32) -> u32 {
    let one = |flag, held| if flags & flag != 0 { held } else { 0 };
    one(IMMUTABLE, FROZEN) | one(APPEND, ONLY_GROWS) | one(NOATIME, NO_ATIME)
}

/// The flags of something of that kind that is made in `dir`.
pub(crate) fn inherited(dir: &Inode, kind: Kind) -> u32 {
    if dir.core.character.flags == 0 {
        return 0;
    }
    let flags = dir.attr().flags & INHERITED;
    match kind {
        Kind::Dir => flags,
        Kind::File => flags & !DIRSYNC,
        _ => flags & (NODUMP | NOATIME),
    }
}

/// `EPERM` where flags forbid a change of state. The rights of who asks are another question.
pub(crate) fn check_set(node: &Inode, set: &SetAttr) -> Result<()> {
    if !node.has(FROZEN | ONLY_GROWS) {
        return Ok(());
    }
    let now = (Some(SetTime::Now), Some(SetTime::Now));
    let touches = (set.atime, set.mtime) == now;
    let times = !touches && (set.atime.is_some() || set.mtime.is_some());
    let owner = set.perm.is_some() || set.uid.is_some() || set.gid.is_some();
    let refused = owner || times || set.size.is_some() || touches && node.has(FROZEN);
    if refused { Err(Errno::EPERM) } else { Ok(()) }
}

impl Vfs {
    /// The flags of a file or directory. `ENOTTY` for others, and where none are kept.
    pub fn flags(&self, ctx: &OpCtx<'_>, node: &Node) -> Result<u32> {
        self.begin();
        self.check_keeps_flags(node)?;
        let hidden = if node.is_dir() { 0 } else { PROJECT_INHERIT };
        Ok(node.fresh_attr(ctx)?.flags & !hidden)
    }

    /// The project of a file or directory; 0 where none are kept. `ENOTTY` as
    /// [`flags`](Self::flags).
    pub fn project(&self, node: &Node) -> Result<u32> {
        self.begin();
        self.check_keeps_flags(node)?;
        Ok(self.core.fs.project(node.ino())?.unwrap_or(0))
    }

    /// The generation of a file or directory. `ENOTTY` as [`flags`](Self::flags).
    pub fn generation(&self, node: &Node) -> Result<u32> {
        self.begin();
        self.check_keeps_flags(node)?;
        self.core.fs.generation(node.ino())?.ok_or(Errno::ENOTTY)
    }

    /// Sets the flags of a file or directory to `flags`; those of how it is stored stay as they
    /// are. `EPERM`: `ctx` is neither its owner nor root, whatever the kernel checked; not root,
    /// and [`IMMUTABLE`] or [`APPEND`] would change; it is immutable and would stay so, with other
    /// flags. `EOPNOTSUPP`: a flag would change that cannot be set; `ENOTTY` as
    /// [`flags`](Self::flags), `EROFS`.
    pub fn set_flags(&self, ctx: &OpCtx<'_>, node: &Node, flags: u32) -> Result<()> {
        self.set_flags_and_project(ctx, node, flags, None)
    }

    /// The same, and gives it to a project. `EOPNOTSUPP`, too: no projects are kept, and it is not
    /// 0; `EPERM`: the file is immutable and would stay so; `EINVAL`: no project has that number;
    /// `EDQUOT`.
    pub fn set_flags_and_project(
        &self,
        ctx: &OpCtx<'_>,
        node: &Node,
        flags: u32,
        project: Option<u32>,
    ) -> Result<()> {
        self.begin();
        self.core.writable()?;
        self.check_keeps_flags(node)?;
        let ctx = &OpCtx { kernel_checked: false, ..*ctx };
        access::check_owner(ctx, node)?;
        let _announced = self.core.change_paths();
        let _data = (!node.is_dir()).then(|| self.core.lock_exclusive(node));
        let _entries = node.is_dir().then(|| self.core.lock_entries(ctx, node));
        if node.is_dir() {
            check_alive(node)?;
        }
        let changed = (node.fresh_attr(ctx)?.flags ^ flags) & !OF_STORAGE;
        let project = project.map(|project| self.core.other_project(node, project)).transpose()?;
        let project = project.flatten();
        self.core.check_change(ctx, node, flags, (changed, project))?;
        let set = SetAttr { flags: Some(flags), project, ..SetAttr::default() };
        self.core.set(ctx, node, &set).map(drop)
    }

    fn check_keeps_flags(&self, node: &Node) -> Result<()> {
        let has = matches!(node.kind(), Kind::File | Kind::Dir);
        if has && self.core.character.flags != 0 { Ok(()) } else { Err(Errno::ENOTTY) }
    }
}

impl Core {
    /// `project`, if the inode belongs to another one.
    fn other_project(&self, node: &Inode, project: u32) -> Result<Option<u32>> {
        match self.fs.project(node.ino())? {
            Some(now) if now == project => Ok(None),
            Some(_) if project == u32::MAX => Err(Errno::EINVAL),
            Some(_) => Ok(Some(project)),
            None if project == 0 => Ok(None),
            None => Err(Errno::EOPNOTSUPP),
        }
    }

    fn check_change(
        &self,
        ctx: &OpCtx<'_>,
        node: &Inode,
        flags: u32,
        (changed, project): (u32, Option<u32>),
    ) -> Result<()> {
        if changed & PRIVILEGED != 0 && !ctx.is_root() {
            return Err(Errno::EPERM);
        }
        let settable = if node.is_dir() { u32::MAX } else { !PROJECT_INHERIT };
        if changed & !(self.character.flags & settable) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let stays = node.has(FROZEN) && flags & IMMUTABLE != 0;
        let changes = changed != 0 || project.is_some();
        if stays && changes { Err(Errno::EPERM) } else { Ok(()) }
    }
}
