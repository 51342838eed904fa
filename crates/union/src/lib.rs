//! `union`: any number of read-only lowers under one upper, as one libservice.
//!
//! ```text
//!  Vfs ──► Union ──┬─► Upper ──► memfs · hostdir · ext4      changes
//!                  └─► Layer, Layer, … ──► any libservice     reads
//! ```
//!
//! | file | what |
//! |---|---|
//! | `layer.rs` | a libservice, and which of its inodes are held |
//! | `absent.rs` | names that layers which never change do not have |
//! | `marks.rs` | attributes in layers: overlayfs' and ours |
//! | `upper.rs` | the upper's directories, whiteouts, what is made aside |
//! | `node.rs` | inodes of the union |
//! | `numbers.rs` | their numbers |
//! | `find.rs` | what a name is |
//! | `list.rs`, `stream.rs` | what names there are |
//! | `state.rs` | attributes and extended attributes |
//! | `links.rs`, `stand_in.rs` | files with several names in the lowers |
//! | `incompat.rs` | what keeps overlayfs from an upper |
//! | `copy_up.rs` | a lower's inode gets one in the upper |
//! | `names.rs`, `rename.rs`, `intent.rs` | changes of names |
//! | `data.rs` | files whose data is in two layers |
//! | `solidify.rs` | all files whole |
//! | `saved.rs`, `revive.rs` | what one service leaves to the next, and how that is found again |
//!
//! Formats and rules: docs/design/union.md.
//!
//! # Invariants
//!
//! - Lowers are never written.
//! - A file whose data is in two layers has the lower's below its bound where the upper has a hole,
//!   and its own everywhere else. The mark is in the upper before the first block is.
//! - What has a name in the upper is complete: it is made aside and then moved to its name.
//!
//! # Locking
//!
//! `changing → state of a node, the table (leaves) → layers`. Changes of names and copy-ups have
//! `changing` alone, lookups and listings share it. Reads and writes of data do not take it. What
//! changes data of a file that is not whole has the node's `filling`; it is never taken under
//! `changing`, nor the reverse.
#![forbid(unsafe_code)]

mod absent;
mod changed;
mod copy_up;
mod data;
mod error;
mod find;
mod incompat;
mod intent;
mod layer;
mod links;
mod list;
mod marks;
mod names;
mod node;
mod numbers;
mod rename;
mod revive;
mod saved;
mod solidify;
mod stand_in;
mod state;
mod stream;
mod upper;

use std::ops::Deref;

use polylane_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use polylane_base::sync::{Arc, Mutex, RwLock, RwLockWriteGuard};
use polylane_base::{Errno, Ino, Result};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{
    Acl, AclKind, Attr, Changed, Character, DirEntry, Fallocate, FileSystem, Kind, NewNode,
    OnSynced, RenameMode, Renamed, Revived, SeekFor, SetAttr, Sink, Source, StatFs, SyncLead,
    SyncLeft, Work, XattrMode,
};
use polylane_vfs::handover::{Record, Store};

pub use absent::{Absent, AbsentStats};
pub use error::OpenError;
pub use layer::Layer;
use node::{By, Node, Parts, State, Table};
use numbers::Slots;
use revive::Formers;
pub use solidify::Solid;
pub use upper::UpperOn;
use upper::{Upper, character};

/// A union. Thread-safe; see the module header.
pub struct Union {
    lowers: Vec<Arc<Layer>>,
    /// Lowers that have no names in the union: files of `lowers` without data of their own say by
    /// path where theirs is in them.
    data_only: Vec<Arc<Layer>>,
    upper: Option<Upper>,
    table: Arc<Table>,
    root: Arc<Node>,
    changing: RwLock<()>,
    /// Changes of names and copy-ups so far.
    changes: AtomicU64,
    character: Character,
    /// Syncs are not waited for.
    is_volatile: AtomicBool,
    /// A former service was killed while syncs were not waited for.
    is_torn: bool,
    /// What a former service knew, until it was asked for.
    formers: Mutex<Formers>,
    /// How often services of these files opened the union before.
    openings: u64,
    changed: changed::Changed,
}

/// One operation on a union.
pub(crate) struct Act<'a> {
    union: &'a Union,
    /// Who acts, on whose behalf.
    ctx: &'a OpCtx<'a>,
}

impl Deref for Act<'_> {
    type Target = Union;

    fn deref(&self) -> &Union {
        self.union
    }
}

impl Union {
    /// A union of `lowers`, the uppermost first, under `upper`; without one it is read-only. An
    /// empty upper is prepared, one that a union or overlayfs wrote is gone on with.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]. Nothing but `work/polylane` is changed in an upper that is refused.
    pub fn open(
        lowers: Vec<Arc<Layer>>,
        upper: Option<UpperOn>,
    ) -> std::result::Result<Union, OpenError> {
        Union::open_with_data(lowers, Vec::new(), upper)
    }

    /// The same with data-only lowers, as overlayfs' `lowerdir=LOWER::DATA`: a file of the lowers
    /// with the marks `metacopy` and an absolute `redirect` has the data of the first of
    /// `data_only` that has a file at that path. Nothing else of them is seen.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn open_with_data(
        lowers: Vec<Arc<Layer>>,
        data_only: Vec<Arc<Layer>>,
        upper: Option<UpperOn>,
    ) -> std::result::Result<Union, OpenError> {
        Union::open_all((lowers, data_only), upper, None)
    }

    /// The same, to go on for a former service of these layers that left `records`, and to be
    /// followed by others in the same way.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn handed_over(
        lowers: Vec<Arc<Layer>>,
        data_only: Vec<Arc<Layer>>,
        upper: Option<UpperOn>,
        store: Arc<Store>,
        records: &[Record],
    ) -> std::result::Result<Union, OpenError> {
        Union::open_all((lowers, data_only), upper, Some((store, records)))
    }

    fn open_all(
        (lowers, data_only): (Vec<Arc<Layer>>, Vec<Arc<Layer>>),
        upper: Option<UpperOn>,
        former: Option<(Arc<Store>, &[Record])>,
    ) -> std::result::Result<Union, OpenError> {
        let ctx = &OpCtx::service();
        if lowers.is_empty() {
            return Err(OpenError::NoLayers);
        }
        let mut roots = upper::roots_of(ctx, lowers.iter().chain(&data_only))?;
        roots.truncate(lowers.len());
        let is_volatile = upper.as_ref().is_some_and(|on| on.is_volatile);
        let acls = upper.as_ref().is_none_or(|on| on.fs.character().acls);
        let like = roots.first().and_then(|lower| lower.held.shown(ctx, acls).ok());
        let upper = upper.map(|on| Upper::open(ctx, on, like.as_ref())).transpose()?;
        let failed = |errno| OpenError::Lower(0, errno);
        let top = roots[0].held.attr(ctx).map_err(failed)?;
        let store = former.as_ref().map(|(store, _)| store.clone());
        let counts = lowers.iter().rev().map(|lower| lower.layer_count());
        let table = Arc::new(Table::new(Slots::new(counts), store));
        let ino = table.number(lowers.len() - 1, top.ino);
        let (known, openings) = match former {
            Some((store, records)) => saved::take(&store, records, (ino, top.generation)),
            None => Default::default(),
        };
        let formers = Formers::new(known);
        // Before any other number is given away.
        table.keep_numbers(formers.numbers());
        let is_torn = match &upper {
            Some(upper) => {
                upper.take_over(ctx, (&table, lowers.len()), openings > 0, is_volatile)?
            }
            None => false,
        };
        let parts = Parts {
            ino,
            generation: top.generation,
            kind: Kind::Dir,
            lowers: roots,
            data: None,
            lower_path: Box::default(),
            upper_generation: 0,
            state: State {
                upper: upper.as_ref().map(|upper| upper.root.clone()),
                is_impure: true,
                ..State::default()
            },
        };
        let root = table.enter(parts, By::Vfs).ok_or(failed(Errno::EIO))?;
        let character = character((&lowers, &data_only), upper.as_ref());
        Ok(Union {
            lowers,
            data_only,
            upper,
            table,
            root,
            changing: RwLock::new(()),
            changes: AtomicU64::new(0),
            character,
            is_volatile: AtomicBool::new(is_volatile),
            is_torn,
            formers: Mutex::new(formers),
            openings,
            changed: changed::Changed::default(),
        })
    }

    /// How many layers its numbers tell apart in their upper bits.
    pub(crate) fn layer_count(&self) -> u16 {
        self.table.slots().count()
    }

    /// Lets go of all inodes of its layers, which would hold each other; to be called when nobody
    /// uses the union any more. What the next service is to know stays.
    pub fn close(&self) {
        self.table.forget_all();
    }

    /// Syncs are waited for from here on. To be called before the last one; when that has
    /// succeeded, [`end_volatile`](Self::end_volatile).
    pub fn wait_for_syncs(&self) {
        self.is_volatile.store(false, Ordering::Relaxed);
    }

    /// A volatile upper has ended in order, and may be used again; not where a service that did not
    /// wait for syncs was killed meanwhile.
    ///
    /// # Errors
    /// The upper's.
    pub fn end_volatile(&self) -> Result<()> {
        let ctx = &OpCtx::service();
        let upper = self.upper.as_ref().filter(|_| !self.is_torn);
        upper.map_or(Ok(()), |upper| upper.end_volatile(ctx))
    }

    /// The upper; `EROFS` without one.
    pub(crate) fn upper(&self) -> Result<&Upper> {
        self.upper.as_ref().ok_or(Errno::EROFS)
    }

    /// Where a sync of an inode makes it durable, if it is to last.
    fn lasting(&self, ino: Ino) -> Result<Option<layer::Held>> {
        let upper = self.table.get(ino)?.upper();
        Ok(upper.filter(|_| !self.is_volatile.load(Ordering::Relaxed)))
    }

    /// Changes names, or copies up, alone.
    pub(crate) fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        let guard = self.changing.write();
        self.changes.fetch_add(1, Ordering::Relaxed);
        guard
    }

    fn act<'a>(&'a self, ctx: &'a OpCtx<'a>) -> Act<'a> {
        Act { union: self, ctx }
    }
}

impl FileSystem for Union {
    fn character(&self) -> Character {
        self.character
    }

    fn is_slow(&self, work: Work) -> bool {
        let own = self.upper.as_ref().is_some_and(|upper| upper.fs().is_slow(work));
        own || self.lowers.iter().any(|lower| lower.fs().is_slow(work))
    }

    fn keeps_writes(&self) -> bool {
        self.upper.as_ref().is_some_and(|upper| upper.fs().keeps_writes())
    }

    fn keeps_names(&self) -> bool {
        self.upper.as_ref().is_some_and(|upper| upper.fs().keeps_names())
    }

    fn dirty_bytes(&self, ino: Ino) -> u64 {
        let upper = self.table.get(ino).ok().and_then(|node| node.upper());
        upper.map_or(0, |upper| upper.fs().dirty_bytes(upper.ino()))
    }

    fn write_may_wait(&self, len: usize) -> bool {
        self.upper.as_ref().is_some_and(|upper| upper.fs().write_may_wait(len))
    }

    fn root(&self) -> Result<Attr> {
        self.act(&OpCtx::service()).attr(&self.root)
    }

    fn lookup(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Attr> {
        let act = self.act(ctx);
        let dir = self.table.get(dir)?;
        let _shared = self.changing.read();
        let found = act.find(&dir, name)?.ok_or(Errno::ENOENT)?;
        act.attr(&*act.node(&dir, name, found)?)
    }

    fn is_original(&self, ino: Ino) -> bool {
        self.table.get(ino).is_ok_and(|node| node.state().upper.is_none())
    }

    fn is_cached_below(&self, ino: Ino) -> bool {
        self.table.get(ino).is_ok_and(|node| node.is_cached_below())
    }

    fn getattr(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Attr> {
        self.act(ctx).attr(&*self.table.get(ino)?)
    }

    fn setattr(&self, ctx: &OpCtx<'_>, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.act(ctx).set(&self.table.get(ino)?, set)
    }

    fn create(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8], new: &NewNode<'_>) -> Result<Changed> {
        let dir = self.table.get(dir)?;
        let _alone = self.alone();
        self.act(ctx).create(&dir, name, new)
    }

    fn create_unlinked(&self, ctx: &OpCtx<'_>, dir: Ino, new: &NewNode<'_>) -> Result<Attr> {
        self.table.get(dir)?.dir()?;
        let _alone = self.alone();
        self.act(ctx).create_unlinked(new)
    }

    fn link(&self, ctx: &OpCtx<'_>, ino: Ino, dir: Ino, name: &[u8]) -> Result<Changed> {
        let (node, dir) = (self.table.get(ino)?, self.table.get(dir)?);
        let _alone = self.alone();
        self.act(ctx).link(&node, &dir, name)
    }

    fn unlink(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed> {
        let dir = self.table.get(dir)?;
        let _alone = self.alone();
        self.act(ctx).unlink(&dir, name)
    }

    fn rmdir(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed> {
        let dir = self.table.get(dir)?;
        let _alone = self.alone();
        self.act(ctx).rmdir(&dir, name)
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
        let (from_dir, to_dir) = (self.table.get(from_dir)?, self.table.get(to_dir)?);
        let _alone = self.alone();
        self.act(ctx).rename((&from_dir, from), (&to_dir, to), mode)
    }

    fn readlink(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Vec<u8>> {
        let held = self.act(ctx).top(&*self.table.get(ino)?)?;
        held.fs().readlink(ctx, held.ino())
    }

    fn readdir(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        from: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let act = self.act(ctx);
        let dir = self.table.get(dir)?;
        let mut from = from;
        loop {
            let shared = self.changing.read();
            let listed = act.list(&dir, from)?;
            drop(shared);
            let Some(last) = listed.last() else { return Ok(()) };
            from = last.next;
            for list::Listed { name, kind, ino, next } in &listed {
                if !each(DirEntry { ino: *ino, next: *next, kind: *kind, name }) {
                    return Ok(());
                }
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
        self.act(ctx).read(&*self.table.get(ino)?, offset, len, sink)
    }

    fn write(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        source: &mut dyn Source,
    ) -> Result<usize> {
        self.act(ctx).write(&self.table.get(ino)?, offset, source)
    }

    fn reserve(&self, ctx: &OpCtx<'_>, ino: Ino, offset: u64, len: u64) -> Result<()> {
        let upper = self.act(ctx).written(&self.table.get(ino)?)?;
        upper.fs().reserve(ctx, upper.ino(), offset, len)
    }

    fn unreserve(&self, ino: Ino, offset: u64) {
        if let Ok(Some(upper)) = self.table.get(ino).map(|node| node.upper()) {
            upper.fs().unreserve(upper.ino(), offset);
        }
    }

    fn blocks_for(&self, bytes: u64, pieces: u64) -> Option<u64> {
        self.upper.as_ref()?.fs().blocks_for(bytes, pieces)
    }

    fn reserve_blocks(&self, count: u64) -> Result<()> {
        self.upper()?.fs().reserve_blocks(count)
    }

    fn release_blocks(&self, count: u64) {
        if let Some(upper) = &self.upper {
            upper.fs().release_blocks(count);
        }
    }

    fn reserve_aside(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        len: u64,
        left: u64,
    ) -> Result<u64> {
        let upper = self.act(ctx).written(&self.table.get(ino)?)?;
        upper.fs().reserve_aside(ctx, upper.ino(), offset, len, left)
    }

    fn fallocate(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<Attr> {
        let node = self.table.get(ino)?;
        let act = self.act(ctx);
        act.fallocate(&node, mode, (offset, len))?;
        act.attr(&node)
    }

    fn seek(&self, ctx: &OpCtx<'_>, ino: Ino, offset: u64, target: SeekFor) -> Result<u64> {
        self.act(ctx).seek(&*self.table.get(ino)?, offset, target)
    }

    fn trim(&self, ctx: &OpCtx<'_>, len_min: u64) -> Result<u64> {
        self.upper()?.fs().trim(ctx, len_min)
    }

    fn getxattr(&self, ctx: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.act(ctx).getxattr(&*self.table.get(ino)?, name)
    }

    fn setxattr(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Attr> {
        self.act(ctx).setxattr(&self.table.get(ino)?, name, value, mode)
    }

    fn listxattr(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.act(ctx).listxattr(&*self.table.get(ino)?)
    }

    fn removexattr(&self, ctx: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Attr> {
        self.act(ctx).removexattr(&self.table.get(ino)?, name)
    }

    fn set_acl(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        kind: AclKind,
        acl: Option<&Acl>,
        perm: Option<u32>,
    ) -> Result<Attr> {
        let node = self.table.get(ino)?;
        let upper = self.act(ctx).copied_up(&node)?;
        upper.fs().set_acl(ctx, upper.ino(), kind, acl, perm)?;
        self.act(ctx).attr(&node)
    }

    fn fsync(&self, ctx: &OpCtx<'_>, ino: Ino, data_only: bool) -> Result<()> {
        self.lasting(ino)?.map_or(Ok(()), |it| it.fs().fsync(ctx, it.ino(), data_only))
    }

    fn fsync_unlocked(&self, ctx: &OpCtx<'_>, ino: Ino, data_only: bool) -> Result<()> {
        self.lasting(ino)?.map_or(Ok(()), |it| it.fs().fsync_unlocked(ctx, it.ino(), data_only))
    }

    fn sync_commits(&self, ino: Ino, data_only: bool, size: u64) -> bool {
        let lasting = self.lasting(ino).ok().flatten();
        lasting.is_some_and(|upper| upper.fs().sync_commits(upper.ino(), data_only, size))
    }

    fn lead_sync(&self, ino: Ino, data_only: bool) -> Option<SyncLead> {
        let upper = self.lasting(ino).ok().flatten()?;
        upper.fs().lead_sync(upper.ino(), data_only)
    }

    fn leave_sync(
        &self,
        ino: Ino,
        data_only: bool,
        told: &mut dyn FnMut() -> OnSynced,
    ) -> Result<SyncLeft> {
        match self.lasting(ino)? {
            Some(upper) => upper.fs().leave_sync(upper.ino(), data_only, told),
            None => Ok(SyncLeft::Done),
        }
    }

    fn sync(&self, ctx: &OpCtx<'_>) -> Result<()> {
        match &self.upper {
            Some(upper) if !self.is_volatile.load(Ordering::Relaxed) => upper.fs().sync(ctx),
            _ => Ok(()),
        }
    }

    fn statfs(&self, ctx: &OpCtx<'_>) -> Result<StatFs> {
        match &self.upper {
            Some(upper) => upper.fs().statfs(ctx),
            None => self.lowers[0].fs().statfs(ctx),
        }
    }

    fn revive(&self, ino: Ino, generation: Option<u64>) -> Result<Revived> {
        let ctx = &OpCtx::service();
        self.act(ctx).revive(ino, generation)
    }

    fn end_revival(&self) {
        let formers = std::mem::take(&mut *self.formers.lock());
        drop(formers);
        if let Some(upper) = &self.upper {
            upper.fs().end_revival();
        }
    }

    fn forget(&self, ino: Ino) {
        if ino != self.root.ino {
            self.table.forget(ino);
        }
    }
}
