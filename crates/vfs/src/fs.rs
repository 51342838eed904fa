//! The libservice seam: what a file system offers and what it may rely on.
//!
//! A *libservice* (memfs, hostdir, ext4, union, ceph) is a thread-safe object behind
//! [`FileSystem`]. Above it stands the [`Vfs`](crate::Vfs), which owns the dentry, inode and page
//! caches, permission checks, open files and locks. A libservice knows inodes and names, nothing of
//! processes, descriptors, paths or credentials.
//!
//! # What a libservice may rely on
//!
//! - Names are 1..=255 bytes, hold neither `/` nor NUL and are never `.` or `..`.
//! - Permissions were checked. `NewNode` carries the final owner, group and mode.
//! - Operations that change one directory are never called concurrently for that directory; a
//!   rename has both directories to itself, and no two cross-directory renames run at once in one
//!   instance. Everything else may be called from any number of threads at once.
//! - Data calls on one inode: any number of reads together; a write, truncate or fallocate is
//!   alone.
//! - [`FileSystem::forget`] is the last call for an inode until a lookup returns it again, or the
//!   [`FileSystem::unlink_last`] that freed it.
//!
//! # What the VFS may rely on
//!
//! - An inode returned by `lookup`, `create`, `create_unlinked` or `link` stays valid, with the
//!   same number and generation, until `forget`, also after its last link is gone.
//! - A returned [`Attr`] is the state after the operation. An error means that nothing changed,
//!   except for a short write, which reports how far it came.
//! - Hostile or corrupt media are an error, never a panic. After a failed metadata write the file
//!   system answers `EROFS` or `EIO` to changes until it is opened again.

use polylane_base::{Errno, Gid, Ino, Result, Uid};

use crate::ctx::OpCtx;

pub use crate::acl::{Acl, AclKind, Acls, OF_OTHERS, granted, less_granted};
pub use crate::attr::{Attr, Kind, SetAttr, SetTime, StatFs};
pub use crate::bytes::{
    Fallocate, Fill, Late, OnSynced, Piece, SeekFor, Shifted, Sink, Source, SyncLead, SyncLeft,
    Syncing,
};
pub use crate::character::{AccessTimes, Character};
pub use crate::lock_request::SharedLocks;

/// What to create.
#[derive(Clone, Debug)]
pub struct NewNode<'a> {
    /// Kind of the new inode.
    pub kind: Kind,
    /// Final permission bits: umask and set-gid inheritance are already applied.
    pub perm: u32,
    /// Owner.
    pub uid: Uid,
    /// Group.
    pub gid: Gid,
    /// Device number, for `Char` and `Block`.
    pub rdev: u64,
    /// Target, for `Symlink`; empty otherwise.
    pub target: &'a [u8],
    /// What it inherits of a default list; nothing where the file system keeps none.
    pub acls: Acls<'a>,
    /// Inode flags that it inherits, bits of [`flags`](crate::flags).
    pub flags: u32,
}

/// Set-group-ID, among permission bits.
pub(crate) const SET_GID: u32 = 0o2000;

impl NewNode<'_> {
    /// What overlay file systems read as "nothing here": a character device 0/0, root's.
    pub const WHITEOUT: NewNode<'static> = NewNode::new(Kind::Char, 0);

    /// What [`RenameMode::Whiteout`] leaves in the directory `dir`: the caller's, as every new
    /// inode, and in a set-group-ID directory of its group.
    pub fn whiteout(ctx: &OpCtx<'_>, dir: &Attr) -> NewNode<'static> {
        let gid = if dir.perm & SET_GID == 0 { ctx.gid() } else { dir.gid };
        NewNode { uid: ctx.uid(), gid, ..NewNode::WHITEOUT }
    }

    /// Root's, with nothing but a kind and permission bits.
    pub const fn new(kind: Kind, perm: u32) -> Self {
        let (uid, gid, acls) = (Uid(0), Gid(0), Acls::NONE);
        NewNode { kind, perm, uid, gid, rdev: 0, target: b"", acls, flags: 0 }
    }
}

/// The states after a change of one directory entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The directory.
    pub dir: Attr,
    /// The inode that the entry names or named.
    pub node: Attr,
}

/// The states after a last name was removed by [`FileSystem::unlink_last`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Last {
    /// The directory.
    pub dir: Attr,
    /// The inode is freed; else [`FileSystem::forget`] frees it.
    pub is_freed: bool,
}

/// The states after a rename.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Renamed {
    /// The directory that lost the name.
    pub from_dir: Attr,
    /// The directory that gained it; the same state when both are one.
    pub to_dir: Attr,
    /// The moved inode.
    pub node: Attr,
    /// The inode that was replaced (its `nlink` after that), or the other one of an exchange.
    pub other: Option<Attr>,
}

/// `renameat2` flags that a libservice sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RenameMode {
    /// Replace the target if there is one.
    #[default]
    Replace,
    /// `RENAME_NOREPLACE`: fail with `EEXIST` instead.
    NoReplace,
    /// `RENAME_EXCHANGE`: swap the two atomically.
    Exchange,
    /// `RENAME_WHITEOUT`: leave a character device 0/0 under the old name,
    /// [`NewNode::whiteout`].
    Whiteout,
}

/// An inode that a former service held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Revived {
    /// Its state.
    pub attr: Attr,
    /// The directory that it is in; `None` for the root and where that is not known.
    pub dir: Option<Ino>,
}

/// One entry of a directory stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirEntry<'a> {
    /// The inode.
    pub ino: Ino,
    /// Position *after* this entry: give it to `readdir` to go on from here. 1..=`i64::MAX - 2`
    /// from a libservice: the VFS adds 2 for `.` and `..`, and programs take positions as `off_t`.
    pub next: u64,
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: &'a [u8],
}

/// How `setxattr(2)` treats an existing attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrMode {
    /// Create or replace.
    Any,
    /// `XATTR_CREATE`: fail with `EEXIST`.
    Create,
    /// `XATTR_REPLACE`: fail with `ENODATA`.
    Replace,
}

/// What is asked of a file system, as far as it says how long that takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Data is read.
    Read,
    /// Data is written.
    Write,
    /// Names and states are asked for.
    Look,
    /// Names and states change.
    Change,
}

/// A file system as a stackable part. See the module header for the contract of both sides.
pub trait FileSystem: Send + Sync {
    /// How it wants to be treated. Constant while open.
    fn character(&self) -> Character;

    /// The root directory's state.
    fn root(&self) -> Result<Attr>;

    /// Finds `name` in `dir`. `ENOENT` when there is none.
    fn lookup(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Attr>;

    /// The locks of its files, where other hosts see them; `None`: the VFS keeps them alone.
    fn shared_locks(&self) -> Option<&dyn SharedLocks> {
        None
    }

    /// Whether what was written may lie in this process, below the VFS, until it is synced: then it
    /// is lost with the process, which the next one has to know.
    fn keeps_writes(&self) -> bool {
        false
    }

    /// Whether names may lie in this process, below the VFS, until they are synced, as
    /// [`keeps_writes`](Self::keeps_writes) says of data.
    fn keeps_names(&self) -> bool {
        false
    }

    /// Where [`keeps_writes`](Self::keeps_writes) says so: bytes of a file that a sync of it has to
    /// write. Stale as soon as it returns.
    fn dirty_bytes(&self, _ino: Ino) -> u64 {
        0
    }

    /// Whether a write of `len` bytes would have to wait until others are written. Stale as soon as
    /// it returns.
    fn write_may_wait(&self, len: usize) -> bool {
        let _ = len;
        false
    }

    /// Whether such work waits for others than this process just now, by what it took lately: then
    /// who serves programs has another thread serve others meanwhile.
    fn is_slow(&self, _: Work) -> bool {
        false
    }

    /// What names of extended attributes begin with that are settings of this file system, such as
    /// `ceph.`; empty: there are none. They are read and written by the rights of a file's data, as
    /// the kernel's clients have it, and are not among those that are listed.
    fn own_xattrs(&self) -> &'static [u8] {
        b""
    }

    /// The state of an inode.
    fn getattr(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Attr>;

    /// Whether an inode is as it will be found again after any loss: nothing that was written since
    /// the file system was opened made it so. The kernel may remember such a one's name.
    fn is_original(&self, ino: Ino) -> bool {
        let _ = ino;
        false
    }

    /// Whether the data of a file lies in a cache below this one that others share, so that who
    /// keeps its own pages of it needs none here. Asked with the file's data lock held.
    fn is_cached_below(&self, _ino: Ino) -> bool {
        false
    }

    /// The project that an inode belongs to (`fsx_projid`); `None`: none are kept.
    fn project(&self, _ino: Ino) -> Result<Option<u32>> {
        Ok(None)
    }

    /// The generation of an inode (`FS_IOC_GETVERSION`); `None`: none is kept.
    fn generation(&self, _ino: Ino) -> Result<Option<u32>> {
        Ok(None)
    }

    /// Changes the state of an inode; returns the new one.
    fn setattr(&self, ctx: &OpCtx<'_>, ino: Ino, set: &SetAttr) -> Result<Attr>;

    /// Creates `name` in `dir`. `EEXIST` when it exists.
    fn create(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8], new: &NewNode<'_>) -> Result<Changed>;

    /// Creates a regular file without a name (`O_TMPFILE`), on the file system of `dir`. `nlink` is
    /// 0; `link` may give it a name later.
    fn create_unlinked(&self, ctx: &OpCtx<'_>, dir: Ino, new: &NewNode<'_>) -> Result<Attr>;

    /// Gives `ino` one more name.
    fn link(&self, ctx: &OpCtx<'_>, ino: Ino, dir: Ino, name: &[u8]) -> Result<Changed>;

    /// Removes the name of something that is not a directory. The inode lives on until `forget`.
    fn unlink(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed>;

    /// [`unlink`](Self::unlink) of a last name and [`forget`](Self::forget) in one change, if
    /// `is_over`, asked once, when nothing but the medium can fail any more, says that nobody holds
    /// the inode and nobody will. `None`: `is_over` was not asked, and nothing was done, as where
    /// the inode has other names.
    fn unlink_last(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        name: &[u8],
        is_over: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Last>> {
        let _ = (ctx, dir, name, is_over);
        Ok(None)
    }

    /// Removes an empty directory. `ENOTEMPTY` when it is not.
    fn rmdir(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed>;

    /// Moves a name. The VFS has already refused moving a directory into itself, kind mismatches
    /// and names of one inode (a no-op); `ENOTEMPTY` for a full target directory is the
    /// libservice's.
    fn rename(
        &self,
        ctx: &OpCtx<'_>,
        from_dir: Ino,
        from: &[u8],
        to_dir: Ino,
        to: &[u8],
        mode: RenameMode,
    ) -> Result<Renamed>;

    /// The target of a symbolic link.
    fn readlink(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Vec<u8>>;

    /// Lists `dir` from position `from` (0: the start, or a former `DirEntry::next`), without `.`
    /// and `..`, until `each` returns false. Stable under change: an entry that is neither added
    /// nor removed during the stream is seen exactly once.
    fn readdir(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        from: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()>;

    /// Reads at most `len` bytes at `offset`; fewer only at the end of the file. Holes are zeros.
    fn read(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize>;

    /// Writes all of `source` at `offset`, growing the file; returns bytes written, fewer only when
    /// space ran out after the first ones. Moves `mtime` and `ctime`.
    fn write(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        source: &mut dyn Source,
    ) -> Result<usize>;

    /// The same for bytes that a sync of the file follows at once: they may go where that takes
    /// them soonest.
    fn write_synced(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        source: &mut dyn Source,
        _syncing: Syncing,
    ) -> Result<usize> {
        self.write(ctx, ino, offset, source)
    }

    /// Stores what was kept of several files, each as [`store_late`] does, and answers each. A
    /// file system may store many small files at the price of one.
    fn write_late(&self, ctx: &OpCtx<'_>, writes: &mut [Late<'_>]) -> Vec<Result<Attr>> {
        writes.iter_mut().map(|late| store_late(ctx, self, late)).collect()
    }

    /// Promises space for `len` bytes at `offset` that the VFS is about to keep as dirty pages, so
    /// that `ENOSPC` is told to the writer and not found at write-back. What was promised before is
    /// not promised twice. A promise ends with the `write` that brings its bytes, when the range is
    /// truncated, punched or moved, and at `forget`. By default nothing is promised.
    fn reserve(&self, _ctx: &OpCtx<'_>, _ino: Ino, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }

    /// Ends what [`reserve`](Self::reserve) promised from `offset` on: nobody will write there.
    fn unreserve(&self, _ino: Ino, _offset: u64) {}

    /// Whether limits of users are enforced: what is promised counts for them, so nothing is
    /// promised ahead of a write.
    fn has_limits(&self) -> bool {
        false
    }

    /// How many blocks may be needed for so many bytes in at most so many pieces, wherever they go;
    /// `None`: no blocks can be set aside ([`reserve_blocks`](Self::reserve_blocks)).
    fn blocks_for(&self, _bytes: u64, _pieces: u64) -> Option<u64> {
        None
    }

    /// Sets blocks aside for data, not those kept for privileged users, at which nobody else can be
    /// faster.
    /// `ENOSPC`; `EOPNOTSUPP`.
    fn reserve_blocks(&self, _count: u64) -> Result<()> {
        Err(polylane_base::Errno::EOPNOTSUPP)
    }

    /// Gives blocks back that were set aside.
    fn release_blocks(&self, _count: u64) {}

    /// [`reserve`](Self::reserve) out of `left` blocks that were set aside; returns how many of
    /// them it took. `ENOSPC`: they are too few, and none was taken.
    fn reserve_aside(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        len: u64,
        left: u64,
    ) -> Result<u64> {
        let _ = (ctx, ino, offset, len, left);
        Err(polylane_base::Errno::EOPNOTSUPP)
    }

    /// `fallocate(2)`; `EOPNOTSUPP` for modes it cannot do. `len` > 0, `offset + len` in range.
    fn fallocate(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<Attr>;

    /// `lseek` SEEK_DATA and SEEK_HOLE; `ENXIO` past the end or when no data follows.
    fn seek(&self, ctx: &OpCtx<'_>, ino: Ino, offset: u64, target: SeekFor) -> Result<u64>;

    /// Where the file lies on the medium: `each` is told its pieces that overlap `len` bytes at
    /// `offset`, in order, until it says false. Also what lies past the end of the file.
    /// `EOPNOTSUPP` where there is no medium, or it is no secret of ours to tell.
    fn pieces(
        &self,
        _ctx: &OpCtx<'_>,
        _ino: Ino,
        _offset: u64,
        _len: u64,
        _each: &mut dyn FnMut(Piece) -> bool,
    ) -> Result<()> {
        Err(polylane_base::Errno::EOPNOTSUPP)
    }

    /// Gives free space back to the medium, in runs of at least `len_min` bytes (FITRIM). Returns
    /// the bytes given.
    fn trim(&self, _ctx: &OpCtx<'_>, _len_min: u64) -> Result<u64> {
        Err(polylane_base::Errno::EOPNOTSUPP)
    }

    /// Reads an extended attribute whole. `ENODATA` when there is none.
    fn getxattr(&self, ctx: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;

    /// Writes an extended attribute; returns the inode's new state.
    fn setxattr(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Attr>;

    /// The names of all extended attributes.
    fn listxattr(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Vec<Vec<u8>>>;

    /// Removes an extended attribute; returns the inode's new state.
    fn removexattr(&self, ctx: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Attr>;

    /// Sets (`Some`) or removes an access control list, and sets permission bits if `perm` is
    /// given, as one change; returns the inode's new state. To remove one that is not there is no
    /// error. Read by [`getxattr`](Self::getxattr). `EOPNOTSUPP` where none are kept.
    fn set_acl(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        kind: AclKind,
        acl: Option<&Acl>,
        perm: Option<u32>,
    ) -> Result<Attr> {
        let _ = (ctx, ino, kind, acl, perm);
        Err(Errno::EOPNOTSUPP)
    }

    /// Makes the file's data, and its state unless `data_only`, durable.
    fn fsync(&self, ctx: &OpCtx<'_>, ino: Ino, data_only: bool) -> Result<()>;

    /// [`fsync`](Self::fsync) by a caller without locks: it also tells those who left their syncs
    /// to it.
    fn fsync_unlocked(&self, ctx: &OpCtx<'_>, ino: Ino, data_only: bool) -> Result<()> {
        self.fsync(ctx, ino, data_only)
    }

    /// Whether the sync of a file that has bytes to write, and is `size` bytes by now, commits: a
    /// thread is about to make durable what changes now, so that the sync can be left to it, or the
    /// file's change takes that. Stale as soon as it returns.
    fn sync_commits(&self, ino: Ino, data_only: bool, size: u64) -> bool {
        let _ = (ino, data_only, size);
        false
    }

    /// Promises to make durable what a sync of the file is of, so that others can leave theirs to
    /// the caller. Nothing where no commit is needed, or another thread is about to make it.
    fn lead_sync(&self, ino: Ino, data_only: bool) -> Option<SyncLead> {
        let _ = (ino, data_only);
        None
    }

    /// Leaves an [`fsync`](Self::fsync) to a thread that is at one which does the same, if there is
    /// one: what `told` gives is called when that has ended, without locks.
    fn leave_sync(
        &self,
        ino: Ino,
        data_only: bool,
        told: &mut dyn FnMut() -> OnSynced,
    ) -> Result<SyncLeft> {
        let _ = (ino, data_only, told);
        Ok(SyncLeft::ToCaller)
    }

    /// Makes everything durable.
    fn sync(&self, ctx: &OpCtx<'_>) -> Result<()>;

    /// Whether a file can have that owner and that group.
    fn has_owner(&self, uid: Uid, gid: Gid) -> bool {
        let _ = (uid, gid);
        true
    }

    /// Sets room aside for `count` new names of new files, so that that many creations and renames
    /// cannot fail for want of it. Undone by [`FileSystem::release_names`]; an ordinary creation
    /// takes its room from what is free, so whoever has room set aside releases some first, or uses
    /// [`FileSystem::create_reserved`]. `ENOSPC`; `EOPNOTSUPP`: cannot be promised.
    fn reserve_names(&self, count: u32) -> Result<()> {
        let _ = count;
        Err(polylane_base::Errno::EOPNOTSUPP)
    }

    /// Gives room back that was set aside.
    fn release_names(&self, count: u32) {
        let _ = count;
    }

    /// Blocks that [`FileSystem::reserve_names`] sets aside for each name, beside an inode.
    fn name_blocks(&self) -> u64 {
        0
    }

    /// Whether there is [`FileSystem::create_reserved`], and other changes of names need no room.
    fn creates_reserved(&self) -> bool {
        false
    }

    /// [`FileSystem::create`] of a regular file out of room that was set aside, at which nobody
    /// else can be faster: one name less of it when it succeeds.
    fn create_reserved(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        name: &[u8],
        new: &NewNode<'_>,
    ) -> Result<Changed> {
        let _ = (ctx, dir, name, new);
        Err(polylane_base::Errno::EOPNOTSUPP)
    }

    /// [`FileSystem::rename`] within one directory, with room that was set aside: it stays so.
    fn rename_reserved(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        from: &[u8],
        to: &[u8],
    ) -> Result<Renamed> {
        self.rename(ctx, dir, from, dir, to, RenameMode::Replace)
    }

    /// An inode that a former service of the same files held, by its number: as if it had been
    /// looked up. `ESTALE`: it is gone, is another one than `generation` says, or cannot be found
    /// again.
    fn revive(&self, ino: Ino, generation: Option<u64>) -> Result<Revived> {
        let _ = (ino, generation);
        Err(polylane_base::Errno::ESTALE)
    }

    /// No more inodes of a former service are going to be asked for.
    fn end_revival(&self) {}

    /// Totals.
    fn statfs(&self, ctx: &OpCtx<'_>) -> Result<StatFs>;

    /// `totals` as they are in the directory `dir`: where its project may have less than there is,
    /// what that may have.
    fn statfs_within(&self, dir: Ino, totals: StatFs) -> Result<StatFs> {
        let _ = dir;
        Ok(totals)
    }

    /// The VFS holds the inode no longer; an inode without links is freed now.
    fn forget(&self, ino: Ino);
}

/// Stores `late` in `fs` by a write and a change of state. `ENOSPC`: not all of it, or nothing;
/// else the errors of [`FileSystem::write`] and [`FileSystem::setattr`].
pub fn store_late<F>(ctx: &OpCtx<'_>, fs: &F, late: &mut Late<'_>) -> Result<Attr>
where
    F: FileSystem + ?Sized,
{
    if fs.write(ctx, late.ino, late.offset, late.source)? < late.source.len() {
        return Err(Errno::ENOSPC);
    }
    let (mtime, ctime) = (Some(SetTime::At(late.times[0])), Some(late.times[1]));
    fs.setattr(ctx, late.ino, &SetAttr { mtime, ctime, ..SetAttr::default() })
}
