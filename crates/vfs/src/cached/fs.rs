//! [`Cached`] behind the seam.

use polylane_base::{Errno, Gid, Ino, Result, Uid};

use super::Cached;
use crate::acl::{Acl, AclKind};
use crate::bytes::{Piece, Sink, Source};
use crate::cache::FilePages;
use crate::ctx::OpCtx;
use crate::fs::{
    Attr, Changed, Character, DirEntry, Fallocate, FileSystem, Kind, NewNode, RenameMode, Renamed,
    Revived, SeekFor, SetAttr, SharedLocks, StatFs, Work, XattrMode,
};
use crate::inode::Node;

impl Cached {
    /// Changes the inode below and keeps the state that it has then.
    fn change(
        &self,
        ino: Ino,
        change: impl FnOnce(&dyn FileSystem) -> Result<Attr>,
    ) -> Result<Attr> {
        let held = self.held(ino)?;
        let mut attr = held.node.attr();
        let new = change(self.below())?;
        held.node.keep(&mut attr, new);
        Ok(Cached::told(&held.node, *attr))
    }

    /// Has the one below know a file's data.
    fn know_below(&self, node: &Node) -> Result<()> {
        match node.pages_used() {
            Some(pages) => self.core.write_back(node, pages),
            None => Ok(()),
        }
    }

    /// `name` is gone from `dir`, whose entries are locked for change.
    fn gone(&self, dir: &Node, name: &[u8], gone: Changed) -> Changed {
        dir.keep_now(gone.dir);
        self.named(dir, name, None);
        Changed { node: self.unnamed(gone.node), ..gone }
    }

    /// An inode lost a name. Returns its state with what the one below does not know yet.
    fn unnamed(&self, attr: Attr) -> Attr {
        self.renamed(attr, |node| self.core.cache.unlinked(node))
    }

    /// An inode is in directory `to` now.
    fn moved(&self, attr: Attr, to: &Node) -> Attr {
        self.renamed(attr, |node| {
            if node.is_dir() {
                drop(node.set_parent(to.clone()));
            }
        })
    }

    /// The names of an inode changed. Returns its state with what the one below does not know yet.
    /// That is asked for: since the one below answered with `then`, more may have reached it.
    fn renamed(&self, then: Attr, also: impl FnOnce(&Node)) -> Attr {
        let Some(node) = self.core.inodes.live(then.ino) else { return then };
        let mut held = node.attr();
        let known = Attr { nlink: then.nlink, ctime: then.ctime, ..*held };
        let now = self.below().getattr(&OpCtx::service(), then.ino).unwrap_or(known);
        node.keep(&mut held, now);
        drop(held);
        also(&node);
        let attr = *node.attr();
        Cached::told(&node, attr)
    }
}

impl FileSystem for Cached {
    fn character(&self) -> Character {
        // The pages are here, whatever the one below would have.
        Character { cache_data: false, ..self.core.character }
    }

    fn root(&self) -> Result<Attr> {
        Ok(*self.root.fresh_attr(&OpCtx::service())?)
    }

    fn lookup(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Attr> {
        let dir = self.held(dir)?;
        let node = self.core.child(ctx, &dir.node, name)?;
        self.hold(&node);
        // Where others change files, the lookup has just brought the state, unless there are pages.
        let is_kept = self.is_volatile() && node.pages_used().is_none();
        let attr = if is_kept { *node.attr() } else { *node.fresh_attr(ctx)? };
        Ok(Cached::told(&node, attr))
    }

    fn shared_locks(&self) -> Option<&dyn SharedLocks> {
        self.below().shared_locks()
    }

    fn keeps_writes(&self) -> bool {
        self.keeps_back() || self.is_of_cached() || self.below().keeps_writes()
    }

    fn keeps_names(&self) -> bool {
        self.is_of_cached() || self.below().keeps_names()
    }

    fn dirty_bytes(&self, ino: Ino) -> u64 {
        let node = self.held(ino).ok().map(|held| held.node.clone());
        let here =
            node.as_ref().and_then(|node| node.pages_used()).map_or(0, FilePages::dirty_bytes);
        here + self.below().dirty_bytes(ino)
    }

    fn write_may_wait(&self, len: usize) -> bool {
        (self.keeps_back() && self.core.cache.is_over(len)) || self.below().write_may_wait(len)
    }

    fn is_slow(&self, work: Work) -> bool {
        // A write that goes through to a volume waits for its medium.
        let goes_through = work == Work::Write && self.is_of_cached() && !self.keeps_back();
        goes_through || self.below().is_slow(work)
    }

    fn own_xattrs(&self) -> &'static [u8] {
        self.below().own_xattrs()
    }

    fn getattr(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Attr> {
        let held = self.held(ino)?;
        let attr = *held.node.fresh_attr(ctx)?;
        Ok(Cached::told(&held.node, attr))
    }

    fn is_original(&self, ino: Ino) -> bool {
        let has_news = |node: &Node| node.pages_used().is_some_and(FilePages::is_delayed);
        self.held(ino).is_ok_and(|held| !has_news(&held.node)) && self.below().is_original(ino)
    }

    fn generation(&self, ino: Ino) -> Result<Option<u32>> {
        self.below().generation(ino)
    }

    fn project(&self, ino: Ino) -> Result<Option<u32>> {
        self.below().project(ino)
    }

    fn setattr(&self, ctx: &OpCtx<'_>, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let held = self.held(ino)?;
        let node = &held.node;
        let attr = match set.size.is_some() && node.kind() == Kind::File {
            true => {
                let _alone = node.lock.write();
                self.core.resize(ctx, node, set)?
            }
            // The entries of a directory may be locked by a change that is under way.
            false => self.core.set(ctx, node, set)?,
        };
        Ok(Cached::told(node, attr))
    }

    fn create(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8], new: &NewNode<'_>) -> Result<Changed> {
        let dir = self.held(dir)?;
        let _entries = dir.node.lock.write();
        let made = self.below().create(ctx, dir.node.ino(), name, new)?;
        dir.node.keep_now(made.dir);
        let node = self.made(made.node, &dir.node);
        self.named(&dir.node, name, Some(&node));
        Ok(made)
    }

    fn create_unlinked(&self, ctx: &OpCtx<'_>, dir: Ino, new: &NewNode<'_>) -> Result<Attr> {
        let dir = self.held(dir)?;
        let made = self.below().create_unlinked(ctx, dir.node.ino(), new)?;
        self.made(made, &dir.node);
        Ok(made)
    }

    fn link(&self, ctx: &OpCtx<'_>, ino: Ino, dir: Ino, name: &[u8]) -> Result<Changed> {
        let (held, dir) = (self.held(ino)?, self.held(dir)?);
        let (node, dir) = (&held.node, &dir.node);
        let _entries = dir.lock.write();
        let mut attr = node.attr();
        let linked = self.below().link(ctx, ino, dir.ino(), name)?;
        node.keep(&mut attr, linked.node);
        let now = *attr;
        drop(attr);
        dir.keep_now(linked.dir);
        self.named(dir, name, Some(node));
        self.core.cache.linked(node);
        Ok(Changed { node: Cached::told(node, now), ..linked })
    }

    fn unlink(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed> {
        let dir = self.held(dir)?;
        let _entries = dir.node.lock.write();
        let gone = self.below().unlink(ctx, dir.node.ino(), name)?;
        Ok(self.gone(&dir.node, name, gone))
    }

    fn rmdir(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed> {
        let dir = self.held(dir)?;
        let _entries = dir.node.lock.write();
        let gone = self.below().rmdir(ctx, dir.node.ino(), name)?;
        Ok(self.gone(&dir.node, name, gone))
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
        let (source, target) = (self.held(from_dir)?, self.held(to_dir)?);
        let (source, target) = (&source.node, &target.node);
        let _entries = source.lock.write();
        let _others = (source.id != target.id).then(|| target.lock.write());
        let renamed = self.below().rename(ctx, from_dir, from, to_dir, to, mode)?;
        source.keep_now(renamed.from_dir);
        target.keep_now(renamed.to_dir);
        self.core.dentries.remove(source.id, from);
        self.core.dentries.remove(target.id, to);
        let node = self.moved(renamed.node, target);
        let other = renamed.other.map(|other| match mode {
            RenameMode::Exchange => self.moved(other, source),
            _ => self.unnamed(other),
        });
        Ok(Renamed { node, other, ..renamed })
    }

    fn readlink(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Vec<u8>> {
        let held = self.held(ino)?;
        match self.is_volatile() {
            true => self.below().readlink(ctx, ino),
            false => Ok(held.node.target(ctx)?.to_vec()),
        }
    }

    fn readdir(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        from: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.below().readdir(ctx, dir, from, each)
    }

    fn read(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let held = self.held(ino)?;
        match held.node.pages() {
            Some(pages) => self.read_pages(ctx, &held, pages, (offset, len), sink),
            None => self.below().read(ctx, ino, offset, len, sink),
        }
    }

    fn write(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        source: &mut dyn Source,
    ) -> Result<usize> {
        let held = self.held(ino)?;
        match held.node.pages() {
            Some(pages) => self.write_pages(ctx, &held, pages, offset, source),
            None => self.below().write(ctx, ino, offset, source),
        }
    }

    fn reserve(&self, ctx: &OpCtx<'_>, ino: Ino, offset: u64, len: u64) -> Result<()> {
        self.below().reserve(ctx, ino, offset, len)
    }

    fn unreserve(&self, ino: Ino, offset: u64) {
        self.below().unreserve(ino, offset);
    }

    fn has_limits(&self) -> bool {
        self.below().has_limits()
    }

    fn fallocate(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<Attr> {
        let held = self.held(ino)?;
        let node = &held.node;
        let Some(pages) = node.pages() else {
            return self.change(ino, |below| below.fallocate(ctx, ino, mode, offset, len));
        };
        let _alone = node.lock.write();
        self.core.cached_fallocate(ctx, node, pages, mode, (offset, len))?;
        let attr = *node.attr();
        Ok(Cached::told(node, attr))
    }

    fn seek(&self, ctx: &OpCtx<'_>, ino: Ino, offset: u64, target: SeekFor) -> Result<u64> {
        let held = self.held(ino)?;
        self.know_below(&held.node)?;
        self.below().seek(ctx, ino, offset, target)
    }

    fn pieces(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Piece) -> bool,
    ) -> Result<()> {
        let held = self.held(ino)?;
        self.know_below(&held.node)?;
        self.below().pieces(ctx, ino, offset, len, each)
    }

    fn trim(&self, ctx: &OpCtx<'_>, len_min: u64) -> Result<u64> {
        self.below().trim(ctx, len_min)
    }

    fn getxattr(&self, ctx: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.below().getxattr(ctx, ino, name)
    }

    fn setxattr(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Attr> {
        self.change(ino, |below| below.setxattr(ctx, ino, name, value, mode))
    }

    fn listxattr(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.below().listxattr(ctx, ino)
    }

    fn removexattr(&self, ctx: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Attr> {
        self.change(ino, |below| below.removexattr(ctx, ino, name))
    }

    fn set_acl(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        kind: AclKind,
        acl: Option<&Acl>,
        perm: Option<u32>,
    ) -> Result<Attr> {
        self.change(ino, |below| below.set_acl(ctx, ino, kind, acl, perm))
    }

    fn fsync(&self, ctx: &OpCtx<'_>, ino: Ino, data_only: bool) -> Result<()> {
        let held = self.held(ino)?;
        let node = &held.node;
        let Some(pages) = node.pages_used() else {
            return self.below().fsync(ctx, ino, data_only);
        };
        let written = self.core.write_synced(node, pages, data_only);
        let synced = self.below().fsync(ctx, ino, data_only);
        // A failure of this very write-back is among those reported. The tag, which no front end
        // has here, says which of them were.
        pages.report(node.tag()).and(written).and(synced)
    }

    fn sync(&self, ctx: &OpCtx<'_>) -> Result<()> {
        // Also what is in files without a name: the next service may go on with them.
        let written = self.core.write_back_files(true);
        let synced = self.below().sync(ctx);
        written.and(synced)
    }

    fn has_owner(&self, uid: Uid, gid: Gid) -> bool {
        self.below().has_owner(uid, gid)
    }

    fn revive(&self, ino: Ino, generation: Option<u64>) -> Result<Revived> {
        let revived = self.below().revive(ino, generation)?;
        let attr = revived.attr;
        if attr.ino == self.root.ino() {
            return Ok(revived);
        }
        let live = self.core.inodes.live(attr.ino);
        match live.filter(|node| node.generation() == attr.generation) {
            Some(node) => self.hold(&node),
            None => drop(self.made(attr, &self.root)),
        }
        Ok(Revived { attr: self.renamed(attr, |_| ()), ..revived })
    }

    fn end_revival(&self) {
        self.below().end_revival();
    }

    fn statfs(&self, ctx: &OpCtx<'_>) -> Result<StatFs> {
        self.below().statfs(ctx)
    }

    fn statfs_within(&self, dir: Ino, totals: StatFs) -> Result<StatFs> {
        self.below().statfs_within(dir, totals)
    }

    fn forget(&self, ino: Ino) {
        if ino != self.root.ino() {
            let former = self.nodes.write().remove(&ino);
            drop(former);
        }
    }

    fn reserve_names(&self, _count: u32) -> Result<()> {
        // No client is lent a directory: names change here, and nowhere else.
        Err(Errno::EOPNOTSUPP)
    }
}
