//! `memfs`: a file system in RAM with a limit on bytes and inodes.
//!
//! | file | what |
//! |---|---|
//! | `table.rs` | inode number → inode, a lock per inode |
//! | `inode.rs` | one inode: state, content, extended attributes, charge |
//! | `pages.rs` | the data of one file: pages, holes, reserved pages |
//! | `dir.rs` | one directory: by name and by cookie |
//! | `rename.rs` | the one change that needs two locks |
//! | `space.rs` | the two budgets |
//!
//! # What is counted
//!
//! Bytes: 4096 for each page of data or reserved by `fallocate`; name, value and 64 for an
//! extended attribute; whole pages for a symbolic link longer than 128 bytes. Inodes: one for
//! each inode, and one for each name after an inode's first, so that names are limited too (as in
//! tmpfs).
//! `ENOSPC` comes exactly when the next one does not fit; what is deleted, truncated or punched can
//! be used again when the call returns (for an unlinked file: when it is forgotten).
//!
//! # Locking
//!
//! No lock is global but two leaves, each held for a push or a pop: the table's free list and the
//! spare pages. An operation holds one inode's lock at a time; a rename between directories holds
//! both, the lower number first. Callbacks (`Sink`, `Source`) run under the lock of the file, the
//! one of `readdir` under none. Big frees happen after the lock.

mod dir;
mod inode;
mod pages;
mod rename;
mod space;
mod table;

use crate::ctx::OpCtx;
use crate::flags;
use crate::fs::{
    AccessTimes, Acl, AclKind, Attr, Changed, Character, DirEntry, Fallocate, FileSystem, Kind,
    NewNode, RenameMode, Renamed, SeekFor, SetAttr, Sink, Source, StatFs, XattrMode,
};
use dir::Target;
use inode::{Body, Inode};
use pages::Freed;
use polylane_base::{Clock, Errno, Ino, Result, Time};
use space::{PAGE_SIZE, Space};
use std::sync::Arc;
use table::Table;

/// Longest name.
const NAME_MAX: u32 = 255;
/// `TMPFS_MAGIC` of linux/magic.h.
const MAGIC: u32 = 0x0102_1994;
/// Entries that `readdir` copies out under the directory's lock at a time.
const READDIR_BATCH: usize = 64;

/// A file system in RAM. Thread-safe; see the module header.
pub struct MemFs {
    table: Table,
    space: Space,
    clock: Arc<dyn Clock>,
    root: Ino,
}

impl MemFs {
    /// An empty file system that holds at most `bytes_limit` bytes and `inode_limit` inodes, the
    /// root among them. The root belongs to user and group 0, mode 0755; the mounter changes that
    /// with `setattr`.
    pub fn new(bytes_limit: u64, inode_limit: u64, clock: Arc<dyn Clock>) -> MemFs {
        let space = Space::new(bytes_limit, inode_limit.max(1));
        let table = Table::new();
        let dir = NewNode::new(Kind::Dir, 0o755);
        let taken = space.take_inode();
        let placed = table.insert(Box::new(Inode::new(&dir, 2, clock.now())));
        match (taken, placed) {
            (true, Ok(root)) => MemFs { table, space, clock, root: root.ino },
            _ => unreachable!("an empty table has a place"),
        }
    }

    fn inspect<T>(&self, ino: Ino, look: impl FnOnce(&Inode) -> Result<T>) -> Result<T> {
        look(self.table.read(ino)?.get()?)
    }

    fn change<T>(&self, ino: Ino, change: impl FnOnce(&mut Inode) -> Result<T>) -> Result<T> {
        change(self.table.write(ino)?.get_mut()?)
    }

    fn target(&self, dir: Ino, name: &[u8]) -> Result<Target> {
        self.inspect(dir, |dir| dir.dir()?.get(name).ok_or(Errno::ENOENT))
    }

    /// Pays for a new inode and places it; no name leads to it yet.
    fn place(&self, new: &NewNode<'_>, nlink: u32, now: Time) -> Result<Attr> {
        if !self.space.take_inode() {
            return Err(Errno::ENOSPC);
        }
        self.place_paid(new, nlink, now)
    }

    /// Places a new inode out of one that was taken; gives it back on failure.
    fn place_paid(&self, new: &NewNode<'_>, nlink: u32, now: Time) -> Result<Attr> {
        let inode = Box::new(Inode::new(new, nlink, now));
        let charge = inode.charge();
        if !self.space.take_bytes(charge) {
            self.space.give_inode();
            return Err(Errno::ENOSPC);
        }
        match self.table.insert(inode) {
            Ok(attr) => Ok(attr),
            Err(errno) => {
                self.space.give_bytes(charge);
                self.space.give_inode();
                Err(errno)
            }
        }
    }

    /// Gives a new inode its name, or frees it.
    fn name_new(&self, dir: Ino, name: &[u8], node: Attr, now: Time) -> Result<Changed> {
        let target = Target { ino: node.ino, kind: node.kind };
        let named = self.change(dir, |dir| {
            dir.add_name(name, target, now)?;
            Ok(dir.attr)
        });
        match named {
            Ok(dir) => Ok(Changed { dir, node }),
            Err(errno) => {
                self.free(node.ino, |_| true);
                Err(errno)
            }
        }
    }

    /// Frees an inode that `condemned` agrees to, with all it was charged for.
    fn free(&self, ino: Ino, condemned: impl FnOnce(&Inode) -> bool) {
        let Some(mut inode) = self.table.take(ino, condemned) else { return };
        inode.take_pages().give_back(&self.space);
        let charge = inode.charge();
        drop(inode);
        self.space.give_bytes(charge);
        self.space.give_inode();
        self.table.release(ino);
    }

    /// One name less for an inode that is not a directory.
    fn drop_link(&self, ino: Ino, now: Time) -> Result<Attr> {
        let attr = self.change(ino, |inode| {
            inode.attr.nlink = inode.attr.nlink.saturating_sub(1);
            inode.attr.ctime = now;
            Ok(inode.attr)
        })?;
        // The last name's inode is given back by `forget`.
        if attr.nlink > 0 {
            self.space.give_inode();
        }
        Ok(attr)
    }

    /// Runs a change that may free pages; they are dropped after the inode's lock.
    fn change_data(
        &self,
        ino: Ino,
        change: impl FnOnce(&mut Inode) -> Result<Freed>,
    ) -> Result<Attr> {
        let (freed, attr) = self.change(ino, |inode| Ok((change(inode)?, inode.attr)))?;
        freed.give_back(&self.space);
        Ok(attr)
    }
}

impl FileSystem for MemFs {
    fn character(&self) -> Character {
        Character {
            cache_data: false,
            volatile: false,
            access_times: AccessTimes::Relatime,
            read_only: false,
            max_file_size: inode::FILE_SIZE_MAX,
            max_links: u32::MAX / 2,
            max_dir_links: u32::MAX / 2,
            whole_seconds: false,
            acls: true,
            flags: flags::SETTABLE,
            remembered: false,
            attributes: flags::ATTRIBUTES,
        }
    }

    fn root(&self) -> Result<Attr> {
        self.getattr(&OpCtx::service(), self.root)
    }

    fn lookup(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.getattr(ctx, self.target(dir, name)?.ino)
    }

    fn getattr(&self, _: &OpCtx<'_>, ino: Ino) -> Result<Attr> {
        self.inspect(ino, |inode| Ok(inode.attr))
    }

    fn setattr(&self, ctx: &OpCtx<'_>, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let now = ctx.now(&*self.clock);
        self.change_data(ino, |inode| inode.set(set, now))
    }

    fn create(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8], new: &NewNode<'_>) -> Result<Changed> {
        let now = ctx.now(&*self.clock);
        let node = self.place(new, 1, now)?;
        self.name_new(dir, name, node, now)
    }

    fn create_unlinked(&self, ctx: &OpCtx<'_>, dir: Ino, new: &NewNode<'_>) -> Result<Attr> {
        self.inspect(dir, |dir| dir.dir().map(|_| ()))?;
        let new = NewNode { kind: Kind::File, ..new.clone() };
        self.place(&new, 0, ctx.now(&*self.clock))
    }

    fn link(&self, ctx: &OpCtx<'_>, ino: Ino, dir: Ino, name: &[u8]) -> Result<Changed> {
        let now = ctx.now(&*self.clock);
        let node = self.getattr(ctx, ino)?;
        if node.kind == Kind::Dir {
            return Err(Errno::EPERM);
        }
        let extra = node.nlink > 0;
        if extra && !self.space.take_inode() {
            return Err(Errno::ENOSPC);
        }
        let target = Target { ino, kind: node.kind };
        let named = self.change(dir, |dir| {
            dir.add_name(name, target, now)?;
            Ok(dir.attr)
        });
        let dir = named.inspect_err(|_| {
            if extra {
                self.space.give_inode();
            }
        })?;
        let node = self.change(ino, |inode| {
            inode.attr.nlink += 1;
            inode.attr.ctime = now;
            Ok(inode.attr)
        })?;
        Ok(Changed { dir, node })
    }

    fn unlink(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed> {
        let now = ctx.now(&*self.clock);
        let (target, dir) = self.change(dir, |dir| {
            if dir.dir()?.get(name).is_some_and(|target| target.kind == Kind::Dir) {
                return Err(Errno::EISDIR);
            }
            Ok((dir.remove_name(name, now)?, dir.attr))
        })?;
        Ok(Changed { dir, node: self.drop_link(target.ino, now)? })
    }

    fn rmdir(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed> {
        let now = ctx.now(&*self.clock);
        let target = self.target(dir, name)?;
        let node = self.change(target.ino, |inode| inode.bury_dir(now))?;
        let dir = self.change(dir, |dir| {
            dir.remove_name(name, now)?;
            Ok(dir.attr)
        })?;
        Ok(Changed { dir, node })
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
        self.move_name(ctx, rename::Ends { from_dir, from, to_dir, to }, mode)
    }

    fn readlink(&self, _: &OpCtx<'_>, ino: Ino) -> Result<Vec<u8>> {
        self.inspect(ino, |inode| match &inode.body {
            Body::Symlink(target) => Ok(target.to_vec()),
            _ => Err(Errno::EINVAL),
        })
    }

    fn readdir(
        &self,
        _: &OpCtx<'_>,
        dir: Ino,
        from: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut from = from;
        loop {
            let batch = self.inspect(dir, |dir| Ok(dir.dir()?.list(from, READDIR_BATCH)))?;
            for entry in &batch {
                let Target { ino, kind } = entry.target;
                if !each(DirEntry { ino, next: entry.cookie, kind, name: &entry.name }) {
                    return Ok(());
                }
            }
            match batch.last() {
                Some(last) if batch.len() == READDIR_BATCH => from = last.cookie,
                _ => return Ok(()),
            }
        }
    }

    /// It is that memory.
    fn is_cached_below(&self, _: Ino) -> bool {
        true
    }

    fn read(
        &self,
        _: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        self.inspect(ino, |inode| {
            let pages = inode.file()?;
            let left = inode.attr.size.saturating_sub(offset);
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(len);
            pages.read(offset, count, sink);
            Ok(count)
        })
    }

    fn write(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        source: &mut dyn Source,
    ) -> Result<usize> {
        let now = ctx.now(&*self.clock);
        self.change(ino, |inode| inode.write(offset, source, &self.space, now))
    }

    fn fallocate(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<Attr> {
        let now = ctx.now(&*self.clock);
        self.change_data(ino, |inode| inode.fallocate(mode, offset, len, &self.space, now))
    }

    fn seek(&self, _: &OpCtx<'_>, ino: Ino, offset: u64, target: SeekFor) -> Result<u64> {
        self.inspect(ino, |inode| inode.seek(offset, target))
    }

    fn getxattr(&self, _: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.inspect(ino, |inode| inode.xattr(name))
    }

    fn setxattr(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Attr> {
        let now = ctx.now(&*self.clock);
        self.change(ino, |inode| {
            inode.set_xattr(name, value, mode, &self.space, now)?;
            Ok(inode.attr)
        })
    }

    fn set_acl(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        kind: AclKind,
        acl: Option<&Acl>,
        perm: Option<u32>,
    ) -> Result<Attr> {
        let now = ctx.now(&*self.clock);
        self.change(ino, |inode| {
            inode.set_acl(kind, acl, &self.space)?;
            inode.attr.perm = perm.unwrap_or(inode.attr.perm);
            inode.attr.ctime = now;
            Ok(inode.attr)
        })
    }

    fn listxattr(&self, _: &OpCtx<'_>, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.inspect(ino, |inode| Ok(inode.xattr_names()))
    }

    fn removexattr(&self, ctx: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Attr> {
        let now = ctx.now(&*self.clock);
        self.change(ino, |inode| {
            inode.remove_xattr(name, &self.space, now)?;
            Ok(inode.attr)
        })
    }

    fn fsync(&self, _: &OpCtx<'_>, _ino: Ino, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn sync(&self, _: &OpCtx<'_>) -> Result<()> {
        Ok(())
    }

    fn reserve_names(&self, count: u32) -> Result<()> {
        if self.space.take_inodes(count) { Ok(()) } else { Err(Errno::ENOSPC) }
    }

    fn release_names(&self, count: u32) {
        self.space.give_inodes(count);
    }

    fn creates_reserved(&self) -> bool {
        true
    }

    fn create_reserved(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        name: &[u8],
        new: &NewNode<'_>,
    ) -> Result<Changed> {
        // Nobody removes or adds names in a directory while this is called, so that a failure,
        // which gives the inode to all, is seen before.
        if self.inspect(dir, |dir| Ok(dir.dir()?.get(name).is_some()))? {
            return Err(Errno::EEXIST);
        }
        let now = ctx.now(&*self.clock);
        let node = self.place_paid(new, 1, now)?;
        self.name_new(dir, name, node, now)
    }

    fn statfs(&self, _: &OpCtx<'_>) -> Result<StatFs> {
        let (bytes, bytes_left) = self.space.bytes();
        let (files, ffree) = self.space.inodes();
        Ok(StatFs {
            bsize: PAGE_SIZE as u32,
            blocks: bytes / PAGE_SIZE,
            bfree: bytes_left / PAGE_SIZE,
            bavail: bytes_left / PAGE_SIZE,
            files,
            ffree,
            namelen: NAME_MAX,
            magic: MAGIC,
        })
    }

    fn forget(&self, ino: Ino) {
        self.free(ino, |inode| inode.attr.nlink == 0);
    }
}
