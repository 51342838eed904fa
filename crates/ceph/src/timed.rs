//! A Ceph file system whose calls end in time: [`CephFs`] behind a [`Deadline`].
//!
//! A call that is overdue is `EIO` for the program, which then knows nothing of whether it is done,
//! as on a network file system that is mounted `soft`. It may be done when the cluster is back, and
//! before any later call on the same inodes. What it finds or makes then is let go of: an inode is
//! held for the VFS when it is told in time.
//!
//! What is read or written is copied once more here: an overdue call must not have the caller's
//! memory.

use std::time::Duration;

use polylane_base::sync::Arc;
use polylane_base::{Ino, Result};
use polylane_vfs::fs::{
    Acls, Changed, Character, DirEntry, Fallocate, Last, NewNode, RenameMode, Renamed, Revived,
    SeekFor, SetTime, SharedLocks, Sink, Source, StatFs, Work, XattrMode,
};
use polylane_vfs::{Attr, FileSystem, Kind, LockRequest, OpCtx, SetAttr};

use crate::deadline::{Deadline, On};
use crate::fs::{CephFs, FineClock, PIECE_BYTES};

/// Entries of a directory that are asked for at once.
const ENTRIES_MAX: usize = 256;

/// Stands for all inodes among those that calls are on.
const ALL: Ino = Ino(0);

const CTX: OpCtx<'static> = OpCtx::service();

/// See the module header. Thread-safe.
pub struct TimedFs {
    fs: Arc<CephFs>,
    deadline: Deadline,
}

/// An entry of a directory.
struct Entry {
    ino: Ino,
    next: u64,
    kind: Kind,
    name: Vec<u8>,
}

impl TimedFs {
    /// Calls of `fs` end within `limit`.
    pub fn new(fs: CephFs, limit: Duration) -> TimedFs {
        TimedFs { fs: Arc::new(fs), deadline: Deadline::new(limit) }
    }

    fn within<T: Send + 'static>(
        &self,
        on: On<'_>,
        work: impl FnOnce(&CephFs) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let fs = self.fs.clone();
        self.deadline.call(on, move || work(&fs))
    }

    /// The same on behalf of the caller of `ctx`.
    fn within_for<T: Send + 'static>(
        &self,
        ctx: &OpCtx<'_>,
        on: On<'_>,
        work: impl FnOnce(&CephFs, &OpCtx<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let cred = ctx.cred.cloned();
        self.within(on, move |fs| work(fs, &cred.as_ref().map_or(CTX, OpCtx::as_user)))
    }
}

/// The same with every time that the caller's clock was to tell.
fn with_times(ctx: &OpCtx<'_>, set: &SetAttr) -> SetAttr {
    let now = SetTime::At(ctx.now(&FineClock));
    let told = |time| match time {
        SetTime::Now => now,
        SetTime::At(_) => time,
    };
    let mtime = set.mtime.or(set.size.map(|_| now)).map(told);
    SetAttr { atime: set.atime.map(told), mtime, ..*set }
}

/// The next entries from a position on, and whether there are more.
fn entries(fs: &CephFs, ctx: &OpCtx<'_>, dir: Ino, from: u64) -> Result<(Vec<Entry>, bool)> {
    let (mut entries, mut is_full) = (Vec::new(), false);
    fs.readdir(ctx, dir, from, &mut |DirEntry { ino, next, kind, name }| {
        is_full = entries.len() == ENTRIES_MAX;
        if !is_full {
            entries.push(Entry { ino, next, kind, name: name.to_vec() });
        }
        !is_full
    })?;
    Ok((entries, is_full))
}

impl FileSystem for TimedFs {
    fn character(&self) -> Character {
        self.fs.character()
    }

    fn root(&self) -> Result<Attr> {
        self.within(&[], CephFs::root)
    }

    fn lookup(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Attr> {
        let name = name.to_vec();
        let found = self.within_for(ctx, &[dir], move |fs, ctx| fs.find(ctx, dir, &name))?;
        self.fs.adopt(found)
    }

    fn shared_locks(&self) -> Option<&dyn SharedLocks> {
        Some(self)
    }

    fn keeps_writes(&self) -> bool {
        self.fs.keeps_writes()
    }

    fn is_slow(&self, work: Work) -> bool {
        // An overdue call is in no statistics until it ends.
        self.fs.is_slow(work) || self.deadline.is_behind()
    }

    fn own_xattrs(&self) -> &'static [u8] {
        self.fs.own_xattrs()
    }

    fn getattr(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Attr> {
        self.within_for(ctx, &[ino], move |fs, ctx| fs.getattr(ctx, ino))
    }

    fn setattr(&self, ctx: &OpCtx<'_>, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let set = with_times(ctx, set);
        self.within_for(ctx, &[ino], move |fs, ctx| fs.setattr(ctx, ino, &set))
    }

    fn create(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8], new: &NewNode<'_>) -> Result<Changed> {
        let NewNode { kind, perm, uid, gid, rdev, flags, .. } = *new;
        let (name, target) = (name.to_vec(), new.target.to_vec());
        let made = self.within_for(ctx, &[dir], move |fs, ctx| {
            // The cluster keeps no lists.
            let acls = Acls::NONE;
            let new = NewNode { kind, perm, uid, gid, rdev, target: &target, acls, flags };
            fs.make(ctx, dir, &name, &new)
        })?;
        self.fs.adopt_made(made)
    }

    fn create_unlinked(&self, ctx: &OpCtx<'_>, dir: Ino, new: &NewNode<'_>) -> Result<Attr> {
        self.fs.create_unlinked(ctx, dir, new)
    }

    fn link(&self, ctx: &OpCtx<'_>, ino: Ino, dir: Ino, name: &[u8]) -> Result<Changed> {
        let name = name.to_vec();
        self.within_for(ctx, &[ino, dir], move |fs, ctx| fs.link(ctx, ino, dir, &name))
    }

    fn unlink(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed> {
        let name = name.to_vec();
        self.within_for(ctx, &[dir], move |fs, ctx| fs.unlink(ctx, dir, &name))
    }

    fn unlink_last(
        &self,
        _: &OpCtx<'_>,
        _: Ino,
        _: &[u8],
        _: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Last>> {
        // Whether the inode is held is asked by the call, which may go on when who asks is gone.
        Ok(None)
    }

    fn rmdir(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed> {
        let name = name.to_vec();
        self.within_for(ctx, &[dir], move |fs, ctx| fs.rmdir(ctx, dir, &name))
    }

    fn rename(
        &self,
        ctx: &OpCtx<'_>,
        from_dir: Ino,
        from: &[u8],
        to_dir: Ino,
        to: &[u8],
        mode: RenameMode,
    ) -> Result<Renamed> {
        let (from, to) = (from.to_vec(), to.to_vec());
        let moved = self.within_for(ctx, &[from_dir, to_dir], move |fs, ctx| {
            fs.rename_name(ctx, (from_dir, &from), (to_dir, &to), mode)
        })?;
        self.fs.adopt_moved(moved)
    }

    fn readlink(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Vec<u8>> {
        self.within_for(ctx, &[ino], move |fs, ctx| fs.readlink(ctx, ino))
    }

    fn readdir(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        mut from: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        loop {
            let (list, has_more) =
                self.within_for(ctx, &[dir], move |fs, ctx| entries(fs, ctx, dir, from))?;
            for Entry { ino, next, kind, name } in &list {
                if !each(DirEntry { ino: *ino, next: *next, kind: *kind, name }) {
                    return Ok(());
                }
                from = *next;
            }
            if !has_more {
                return Ok(());
            }
        }
    }

    fn read(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let mut done = 0;
        // Also of nothing: whether it can be read at all is found by the call.
        loop {
            let (at, wanted) = (offset + done as u64, (len - done).min(PIECE_BYTES));
            let piece = self.within_for(ctx, &[ino], move |fs, ctx| {
                let mut piece = vec![0; wanted];
                let got = fs.read(ctx, ino, at, wanted, &mut piece.as_mut_slice())?;
                piece.truncate(got);
                Ok(piece)
            })?;
            sink.put(done, &piece);
            done += piece.len();
            if piece.len() < wanted || done == len {
                return Ok(done);
            }
        }
    }

    fn write(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        source: &mut dyn Source,
    ) -> Result<usize> {
        let mut done = 0;
        loop {
            let (at, len) = (offset + done as u64, (source.len() - done).min(PIECE_BYTES));
            let mut piece = vec![0; len];
            source.get(done, &mut piece);
            let write =
                move |fs: &CephFs, ctx: &OpCtx<'_>| fs.write(ctx, ino, at, &mut piece.as_slice());
            let written = match self.within_for(ctx, &[ino], write) {
                Ok(written) => written,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => return Ok(done),
            };
            done += written;
            if written < len || done == source.len() {
                return Ok(done);
            }
        }
    }

    fn fallocate(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<Attr> {
        self.within_for(ctx, &[ino], move |fs, ctx| fs.fallocate(ctx, ino, mode, offset, len))
    }

    fn seek(&self, ctx: &OpCtx<'_>, ino: Ino, offset: u64, target: SeekFor) -> Result<u64> {
        self.within_for(ctx, &[ino], move |fs, ctx| fs.seek(ctx, ino, offset, target))
    }

    fn getxattr(&self, ctx: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let name = name.to_vec();
        self.within_for(ctx, &[ino], move |fs, ctx| fs.getxattr(ctx, ino, &name))
    }

    fn setxattr(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Attr> {
        let (name, value) = (name.to_vec(), value.to_vec());
        self.within_for(ctx, &[ino], move |fs, ctx| fs.setxattr(ctx, ino, &name, &value, mode))
    }

    fn listxattr(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.within_for(ctx, &[ino], move |fs, ctx| fs.listxattr(ctx, ino))
    }

    fn removexattr(&self, ctx: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Attr> {
        let name = name.to_vec();
        self.within_for(ctx, &[ino], move |fs, ctx| fs.removexattr(ctx, ino, &name))
    }

    fn fsync(&self, _: &OpCtx<'_>, ino: Ino, data_only: bool) -> Result<()> {
        self.within(&[ino], move |fs| fs.fsync(&CTX, ino, data_only))
    }

    fn sync(&self, _: &OpCtx<'_>) -> Result<()> {
        self.within(&[ALL], |fs| fs.sync(&CTX))
    }

    fn revive(&self, ino: Ino, _: Option<u64>) -> Result<Revived> {
        let (found, dir) = self.within(&[ino], move |fs| fs.find_former(ino))?;
        Ok(Revived { attr: self.fs.adopt(found)?, dir })
    }

    fn statfs(&self, _: &OpCtx<'_>) -> Result<StatFs> {
        self.within(&[], |fs| fs.statfs(&CTX))
    }

    fn forget(&self, ino: Ino) {
        // Nothing of it waits for the cluster, and a lookup may follow at once.
        self.fs.forget(ino);
    }
}

impl SharedLocks for TimedFs {
    fn set(&self, ino: Ino, lock: &LockRequest) -> Result<()> {
        let lock = *lock;
        self.within(&[ino], move |fs| fs.set(ino, &lock))
    }

    fn get(&self, ino: Ino, lock: &LockRequest) -> Result<Option<LockRequest>> {
        let lock = *lock;
        self.within(&[ino], move |fs| SharedLocks::get(fs, ino, &lock))
    }
}
