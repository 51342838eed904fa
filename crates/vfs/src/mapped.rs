//! A libservice whose files show other owners than they have: users and groups of a range have the
//! numbers of another range, as on an id-mapped mount of the kernel's.
//!
//! It stands right under the VFS, so both doors, permission checks, access control lists and
//! creations see the shown numbers alone; what is stored has the kept ones.
//!
//! | a number that no range has | what follows |
//! |---|---|
//! | a file's owner or group | [`NOBODY`] is shown, whom no process is: nothing of it changes |
//! | of who creates, or who is to own | `EOVERFLOW` |
//! | of an access control list | `EOVERFLOW` to read or to set it, so no part of it counts |

use polylane_base::{Errno, Gid, ID_RANGES_MAX, IdRange, Ino, Result, Uid};

use crate::acl::{Acl, AclKind, Acls};
use crate::attr::{Attr, SetAttr};
use crate::bytes::{Late, OnSynced, Piece, Sink, Source, SyncLead, SyncLeft, Syncing};
use crate::cred::{Cred, HostIds};
use crate::ctx::OpCtx;
use crate::fs::{
    Changed, Character, DirEntry, Fallocate, FileSystem, Last, NewNode, RenameMode, Renamed,
    Revived, SeekFor, SharedLocks, StatFs, Work, XattrMode,
};

/// The number of no user and no group: to the kernel it is an owner that has none here.
pub const NOBODY: u32 = u32::MAX;

/// Whether a file of that owner and group is nobody's: one of them has no number here.
pub fn is_nobodys(owner: Uid, group: Gid) -> bool {
    owner.0 == NOBODY || group.0 == NOBODY
}

/// Ranges of numbers that overlap on neither side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IdMap(Vec<IdRange>);

impl IdMap {
    /// Its ranges, in the order in which they were given.
    pub fn ranges(&self) -> &[IdRange] {
        &self.0
    }

    /// `None` when there is none or too many, one is empty or goes beyond the last number, or two
    /// overlap.
    pub fn new(ranges: Vec<IdRange>) -> Option<IdMap> {
        let whole = |range: &IdRange| {
            // The last number is nobody's.
            let fits = |first: u32| first.checked_add(range.count).is_some();
            range.count > 0 && fits(range.kept) && fits(range.shown)
        };
        let apart = |one: u32, of: u32, other: u32, of_other: u32| {
            one.saturating_add(of) <= other || other.saturating_add(of_other) <= one
        };
        let good = ranges.iter().enumerate().all(|(at, a)| {
            let mut others = ranges[at + 1..].iter();
            whole(a)
                && others.all(|b| {
                    apart(a.kept, a.count, b.kept, b.count)
                        && apart(a.shown, a.count, b.shown, b.count)
                })
        });
        (good && (1..=ID_RANGES_MAX).contains(&ranges.len())).then_some(IdMap(ranges))
    }

    /// The number that is shown of one that files have; [`NOBODY`] if none is.
    pub fn shown(&self, kept: u32) -> u32 {
        self.0.iter().find_map(|range| range.shown_of(kept)).unwrap_or(NOBODY)
    }

    /// The number that files have of one that is shown.
    ///
    /// # Errors
    /// `EOVERFLOW`: none.
    pub fn kept(&self, shown: u32) -> Result<u32> {
        self.0.iter().find_map(|range| range.kept_of(shown)).ok_or(Errno::EOVERFLOW)
    }
}

/// A libservice with owners as a map shows them.
pub struct Mapped<F: ?Sized> {
    map: IdMap,
    inner: polylane_base::sync::Arc<F>,
}

impl<F: FileSystem + ?Sized> Mapped<F> {
    /// The files of `inner` by that map.
    pub fn new(inner: polylane_base::sync::Arc<F>, map: IdMap) -> Self {
        Mapped { map, inner }
    }

    fn attr(&self, attr: Attr) -> Attr {
        let (uid, gid) = (Uid(self.map.shown(attr.uid.0)), Gid(self.map.shown(attr.gid.0)));
        Attr { uid, gid, ..attr }
    }

    fn changed(&self, changed: Changed) -> Changed {
        Changed { dir: self.attr(changed.dir), node: self.attr(changed.node) }
    }

    fn renamed(&self, renamed: Renamed) -> Renamed {
        Renamed {
            from_dir: self.attr(renamed.from_dir),
            to_dir: self.attr(renamed.to_dir),
            node: self.attr(renamed.node),
            other: renamed.other.map(|attr| self.attr(attr)),
        }
    }

    /// Who acts, as the files' numbers have it. One without a number there is nobody, but for root,
    /// whose rights do not depend on owners: what it makes is refused by the number it has.
    fn cred(&self, ctx: &OpCtx<'_>) -> Option<Cred> {
        let cred = ctx.cred?;
        let kept = |id: u32| self.map.kept(id).unwrap_or(NOBODY);
        let groups = cred.groups.iter().map(|gid| Gid(kept(gid.0))).collect();
        let uid = if cred.is_root() { cred.uid } else { Uid(kept(cred.uid.0)) };
        let on_host = || HostIds { uid: cred.uid, gid: cred.gid, groups: cred.groups.clone() };
        let host = Some(cred.host.clone().unwrap_or_else(on_host));
        Some(Cred { uid, gid: Gid(kept(cred.gid.0)), groups, fsetid: cred.fsetid, host })
    }

    /// Lets `make` create what `new` says.
    fn made<T>(
        &self,
        new: &NewNode<'_>,
        make: impl FnOnce(&NewNode<'_>) -> Result<T>,
    ) -> Result<T> {
        let (uid, gid) = (Uid(self.map.kept(new.uid.0)?), Gid(self.map.kept(new.gid.0)?));
        let kept = |acl: Option<&Acl>| acl.map(|acl| self.acl(acl)).transpose();
        let (access, default) = (kept(new.acls.access)?, kept(new.acls.default)?);
        let acls = Acls { access: access.as_ref(), default: default.as_ref() };
        make(&NewNode { uid, gid, acls, ..new.clone() })
    }

    /// A list as the files have it.
    fn acl(&self, acl: &Acl) -> Result<Acl> {
        acl.with_names(|id| self.map.kept(id))
    }
}

impl<F: FileSystem + ?Sized> FileSystem for Mapped<F> {
    fn is_original(&self, ino: Ino) -> bool {
        self.inner.is_original(ino)
    }

    fn is_cached_below(&self, ino: Ino) -> bool {
        self.inner.is_cached_below(ino)
    }

    fn character(&self) -> Character {
        self.inner.character()
    }

    fn root(&self) -> Result<Attr> {
        self.inner.root().map(|attr| self.attr(attr))
    }

    fn lookup(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.inner.lookup(ctx, dir, name).map(|attr| self.attr(attr))
    }

    fn shared_locks(&self) -> Option<&dyn SharedLocks> {
        self.inner.shared_locks()
    }

    fn keeps_writes(&self) -> bool {
        self.inner.keeps_writes()
    }

    fn keeps_names(&self) -> bool {
        self.inner.keeps_names()
    }

    fn dirty_bytes(&self, ino: Ino) -> u64 {
        self.inner.dirty_bytes(ino)
    }

    fn write_may_wait(&self, len: usize) -> bool {
        self.inner.write_may_wait(len)
    }

    fn is_slow(&self, work: Work) -> bool {
        self.inner.is_slow(work)
    }

    fn own_xattrs(&self) -> &'static [u8] {
        self.inner.own_xattrs()
    }

    fn getattr(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Attr> {
        self.inner.getattr(ctx, ino).map(|attr| self.attr(attr))
    }

    fn generation(&self, ino: Ino) -> Result<Option<u32>> {
        self.inner.generation(ino)
    }

    fn project(&self, ino: Ino) -> Result<Option<u32>> {
        self.inner.project(ino)
    }

    fn setattr(&self, ctx: &OpCtx<'_>, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let uid = set.uid.map(|uid| self.map.kept(uid.0).map(Uid)).transpose()?;
        let gid = set.gid.map(|gid| self.map.kept(gid.0).map(Gid)).transpose()?;
        self.inner.setattr(ctx, ino, &SetAttr { uid, gid, ..*set }).map(|attr| self.attr(attr))
    }

    fn create(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8], new: &NewNode<'_>) -> Result<Changed> {
        let cred = self.cred(ctx);
        let ctx = OpCtx { cred: cred.as_ref(), ..*ctx };
        let made = self.made(new, |new| self.inner.create(&ctx, dir, name, new))?;
        Ok(self.changed(made))
    }

    fn create_unlinked(&self, ctx: &OpCtx<'_>, dir: Ino, new: &NewNode<'_>) -> Result<Attr> {
        let cred = self.cred(ctx);
        let ctx = OpCtx { cred: cred.as_ref(), ..*ctx };
        let made = self.made(new, |new| self.inner.create_unlinked(&ctx, dir, new))?;
        Ok(self.attr(made))
    }

    fn link(&self, ctx: &OpCtx<'_>, ino: Ino, dir: Ino, name: &[u8]) -> Result<Changed> {
        self.inner.link(ctx, ino, dir, name).map(|changed| self.changed(changed))
    }

    fn unlink(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed> {
        self.inner.unlink(ctx, dir, name).map(|changed| self.changed(changed))
    }

    fn unlink_last(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        name: &[u8],
        is_over: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Last>> {
        let last = self.inner.unlink_last(ctx, dir, name, is_over)?;
        Ok(last.map(|last| Last { dir: self.attr(last.dir), ..last }))
    }

    fn rmdir(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed> {
        self.inner.rmdir(ctx, dir, name).map(|changed| self.changed(changed))
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
        let cred = self.cred(ctx);
        let own = OpCtx { cred: cred.as_ref(), ..*ctx };
        if mode == RenameMode::Whiteout {
            // What is left behind is the caller's.
            self.map.kept(ctx.uid().0)?;
            self.map.kept(ctx.gid().0)?;
        }
        let renamed = self.inner.rename(&own, from_dir, from, to_dir, to, mode)?;
        Ok(self.renamed(renamed))
    }

    fn readlink(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Vec<u8>> {
        self.inner.readlink(ctx, ino)
    }

    fn readdir(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        from: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.inner.readdir(ctx, dir, from, each)
    }

    fn read(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        self.inner.read(ctx, ino, offset, len, sink)
    }

    fn write(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        source: &mut dyn Source,
    ) -> Result<usize> {
        self.inner.write(ctx, ino, offset, source)
    }

    fn write_synced(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        source: &mut dyn Source,
        syncing: Syncing,
    ) -> Result<usize> {
        self.inner.write_synced(ctx, ino, offset, source, syncing)
    }

    fn write_late(&self, ctx: &OpCtx<'_>, writes: &mut [Late<'_>]) -> Vec<Result<Attr>> {
        let stored = self.inner.write_late(ctx, writes).into_iter();
        stored.map(|stored| stored.map(|attr| self.attr(attr))).collect()
    }

    fn reserve(&self, ctx: &OpCtx<'_>, ino: Ino, offset: u64, len: u64) -> Result<()> {
        self.inner.reserve(ctx, ino, offset, len)
    }

    fn unreserve(&self, ino: Ino, offset: u64) {
        self.inner.unreserve(ino, offset);
    }

    fn has_limits(&self) -> bool {
        self.inner.has_limits()
    }

    fn blocks_for(&self, bytes: u64, pieces: u64) -> Option<u64> {
        self.inner.blocks_for(bytes, pieces)
    }

    fn reserve_blocks(&self, count: u64) -> Result<()> {
        self.inner.reserve_blocks(count)
    }

    fn release_blocks(&self, count: u64) {
        self.inner.release_blocks(count);
    }

    fn reserve_aside(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        len: u64,
        left: u64,
    ) -> Result<u64> {
        self.inner.reserve_aside(ctx, ino, offset, len, left)
    }

    fn fallocate(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<Attr> {
        self.inner.fallocate(ctx, ino, mode, offset, len).map(|attr| self.attr(attr))
    }

    fn seek(&self, ctx: &OpCtx<'_>, ino: Ino, offset: u64, target: SeekFor) -> Result<u64> {
        self.inner.seek(ctx, ino, offset, target)
    }

    fn pieces(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Piece) -> bool,
    ) -> Result<()> {
        self.inner.pieces(ctx, ino, offset, len, each)
    }

    fn trim(&self, ctx: &OpCtx<'_>, len_min: u64) -> Result<u64> {
        self.inner.trim(ctx, len_min)
    }

    fn getxattr(&self, ctx: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let value = self.inner.getxattr(ctx, ino, name)?;
        if AclKind::from_name(name).is_none() || !self.inner.character().acls {
            return Ok(value);
        }
        let shown = |id| match self.map.shown(id) {
            NOBODY => Err(Errno::EOVERFLOW),
            shown => Ok(shown),
        };
        match Acl::parse(&value).map_err(|_| Errno::EIO)? {
            Some(acl) => Ok(acl.with_names(shown)?.to_value()),
            None => Ok(value),
        }
    }

    fn setxattr(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Attr> {
        self.inner.setxattr(ctx, ino, name, value, mode).map(|attr| self.attr(attr))
    }

    fn listxattr(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.inner.listxattr(ctx, ino)
    }

    fn removexattr(&self, ctx: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Attr> {
        self.inner.removexattr(ctx, ino, name).map(|attr| self.attr(attr))
    }

    fn set_acl(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        kind: AclKind,
        acl: Option<&Acl>,
        perm: Option<u32>,
    ) -> Result<Attr> {
        let acl = acl.map(|acl| self.acl(acl)).transpose()?;
        self.inner.set_acl(ctx, ino, kind, acl.as_ref(), perm).map(|attr| self.attr(attr))
    }

    fn fsync(&self, ctx: &OpCtx<'_>, ino: Ino, data_only: bool) -> Result<()> {
        self.inner.fsync(ctx, ino, data_only)
    }

    fn fsync_unlocked(&self, ctx: &OpCtx<'_>, ino: Ino, data_only: bool) -> Result<()> {
        self.inner.fsync_unlocked(ctx, ino, data_only)
    }

    fn sync_commits(&self, ino: Ino, data_only: bool, size: u64) -> bool {
        self.inner.sync_commits(ino, data_only, size)
    }

    fn lead_sync(&self, ino: Ino, data_only: bool) -> Option<SyncLead> {
        self.inner.lead_sync(ino, data_only)
    }

    fn leave_sync(
        &self,
        ino: Ino,
        data_only: bool,
        told: &mut dyn FnMut() -> OnSynced,
    ) -> Result<SyncLeft> {
        self.inner.leave_sync(ino, data_only, told)
    }

    fn sync(&self, ctx: &OpCtx<'_>) -> Result<()> {
        self.inner.sync(ctx)
    }

    fn has_owner(&self, uid: Uid, gid: Gid) -> bool {
        self.map.kept(uid.0).is_ok() && self.map.kept(gid.0).is_ok()
    }

    fn reserve_names(&self, count: u32) -> Result<()> {
        self.inner.reserve_names(count)
    }

    fn release_names(&self, count: u32) {
        self.inner.release_names(count);
    }

    fn name_blocks(&self) -> u64 {
        self.inner.name_blocks()
    }

    fn creates_reserved(&self) -> bool {
        self.inner.creates_reserved()
    }

    fn create_reserved(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        name: &[u8],
        new: &NewNode<'_>,
    ) -> Result<Changed> {
        let cred = self.cred(ctx);
        let ctx = OpCtx { cred: cred.as_ref(), ..*ctx };
        let made = self.made(new, |new| self.inner.create_reserved(&ctx, dir, name, new))?;
        Ok(self.changed(made))
    }

    fn rename_reserved(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        from: &[u8],
        to: &[u8],
    ) -> Result<Renamed> {
        let renamed = self.inner.rename_reserved(ctx, dir, from, to)?;
        Ok(self.renamed(renamed))
    }

    fn revive(&self, ino: Ino, generation: Option<u64>) -> Result<Revived> {
        let revived = self.inner.revive(ino, generation)?;
        Ok(Revived { attr: self.attr(revived.attr), ..revived })
    }

    fn end_revival(&self) {
        self.inner.end_revival();
    }

    fn statfs(&self, ctx: &OpCtx<'_>) -> Result<StatFs> {
        self.inner.statfs(ctx)
    }

    fn statfs_within(&self, dir: Ino, totals: StatFs) -> Result<StatFs> {
        self.inner.statfs_within(dir, totals)
    }

    fn forget(&self, ino: Ino) {
        self.inner.forget(ino);
    }
}
