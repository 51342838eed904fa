//! The adapter to the file door: the only file that knows [`FileSystem`].

use std::sync::atomic::Ordering;

use polylane_base::{Errno, Ino};
use polylane_vfs::OpCtx;
use polylane_vfs::flags;
use polylane_vfs::fs::{
    AccessTimes, Acl, AclKind, Attr, Changed, Character, DirEntry, Fallocate, FileSystem, Kind,
    Last, Late, NewNode, OnSynced, Piece, RenameMode, Renamed, Revived, SeekFor, SetAttr, Sink,
    Source, StatFs, SyncLead, SyncLeft, Syncing, XattrMode, store_late,
};

use crate::alloc::Blocks;
use crate::data::{self, regular};
use crate::dir;
use crate::error::Result;
use crate::format::xattr::Attribute;
use crate::format::{dirent::kind_of, inode::CLASSIC_BYTES};
use crate::inode::number;
use crate::journal::Teller;
use crate::late;
use crate::mount::{Ext4, finish_all};
use crate::ops::{self, LINKS_MAX, NAME_SHARE, Room};
use crate::promised;
use crate::rename::rename;
use crate::setattr;
use crate::space;
use crate::synced;
use crate::totals;
use crate::xattr;

const ROOT: u32 = 2;

impl Ext4 {
    /// Runs an operation; damage and device errors stop the file system before they are told.
    fn guard<T>(&self, run: impl FnOnce() -> Result<T>) -> polylane_base::Result<T> {
        Ok(self.volume.stop_on(run())?)
    }

    /// Runs an operation that changes something: `EROFS` when open for reading only or closed,
    /// `ENOSPC` when the medium has no room left for it.
    fn changing<T>(&self, run: impl FnOnce() -> Result<T>) -> polylane_base::Result<T> {
        let Some(journal) = &self.volume.journal else { return Err(Errno::EROFS) };
        self.changing_anyway(|| journal.admit().and_then(|()| run()))
    }

    /// The same for what makes something new: that finds no room sooner than what removes.
    fn making<T>(&self, run: impl FnOnce() -> Result<T>) -> polylane_base::Result<T> {
        match &self.volume.journal {
            Some(journal) if journal.is_tight(&*self.volume) => Err(Errno::ENOSPC),
            _ => self.changing(run),
        }
    }

    /// The same, however little room there is in the journal: it was promised, and is waited for.
    fn changing_anyway<T>(&self, run: impl FnOnce() -> Result<T>) -> polylane_base::Result<T> {
        let Some(_change) = self.changes.begin() else { return Err(Errno::EROFS) };
        self.guard(run)
    }

    fn change_xattr(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        change: &xattr::Change<'_>,
    ) -> polylane_base::Result<Attr> {
        self.changing(|| {
            let cell = self.volume.cell(number(ino)?)?;
            let mut core = cell.core.write();
            xattr::set(ctx, &self.volume, &cell, &mut core, change)?;
            Ok(self.volume.attr(&cell, &core))
        })
    }
}

impl FileSystem for Ext4 {
    fn character(&self) -> Character {
        Character {
            cache_data: true,
            volatile: false,
            access_times: AccessTimes::Relatime,
            read_only: self.volume.journal.is_none(),
            max_file_size: match self.volume.traits.extents {
                true => self.volume.geometry.file_bytes_max,
                false => self.volume.traits.map_bytes_max,
            },
            max_links: LINKS_MAX,
            max_dir_links: if self.volume.traits.dir_nlink { u32::MAX } else { LINKS_MAX },
            whole_seconds: usize::from(self.volume.geometry.inode_bytes) == CLASSIC_BYTES,
            acls: true,
            flags: flags::SETTABLE | flags::PROJECT_INHERIT,
            remembered: false,
            attributes: flags::ATTRIBUTES | flags::COMPRESSED | flags::ENCRYPTED | flags::VERITY,
        }
    }

    fn root(&self) -> polylane_base::Result<Attr> {
        let ctx = &OpCtx::service();
        self.getattr(ctx, Ino(ROOT.into()))
    }

    fn lookup(&self, _: &OpCtx<'_>, dir: Ino, name: &[u8]) -> polylane_base::Result<Attr> {
        self.guard(|| {
            let cell = ops::lookup(&self.volume, number(dir)?, name)?;
            let core = cell.core.read();
            Ok(self.volume.attr(&cell, &core))
        })
    }

    fn getattr(&self, _: &OpCtx<'_>, ino: Ino) -> polylane_base::Result<Attr> {
        self.guard(|| {
            let cell = self.volume.cell(number(ino)?)?;
            let core = cell.core.read();
            Ok(self.volume.attr(&cell, &core))
        })
    }

    fn setattr(&self, ctx: &OpCtx<'_>, ino: Ino, set: &SetAttr) -> polylane_base::Result<Attr> {
        self.changing(|| setattr::set(ctx, &self.volume, number(ino)?, set))
    }

    fn create(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        name: &[u8],
        new: &NewNode<'_>,
    ) -> polylane_base::Result<Changed> {
        self.making(|| ops::create(ctx, &self.volume, number(dir)?, name, new, Room::Free))
    }

    fn create_unlinked(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        new: &NewNode<'_>,
    ) -> polylane_base::Result<Attr> {
        self.making(|| ops::create_unlinked(ctx, &self.volume, number(dir)?, new))
    }

    fn link(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        dir: Ino,
        name: &[u8],
    ) -> polylane_base::Result<Changed> {
        self.making(|| ops::link(ctx, &self.volume, number(ino)?, number(dir)?, name))
    }

    fn unlink(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> polylane_base::Result<Changed> {
        self.changing(|| ops::unlink(ctx, &self.volume, number(dir)?, name))
    }

    fn unlink_last(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        name: &[u8],
        is_over: &mut dyn FnMut() -> bool,
    ) -> polylane_base::Result<Option<Last>> {
        self.changing(|| {
            if self.leaves_nameless.load(Ordering::SeqCst) {
                return Ok(None);
            }
            ops::unlink_last(ctx, &self.volume, number(dir)?, name, is_over)
        })
    }

    fn rmdir(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> polylane_base::Result<Changed> {
        self.changing(|| ops::rmdir(ctx, &self.volume, number(dir)?, name))
    }

    fn rename(
        &self,
        ctx: &OpCtx<'_>,
        from_dir: Ino,
        from: &[u8],
        to_dir: Ino,
        to: &[u8],
        mode: RenameMode,
    ) -> polylane_base::Result<Renamed> {
        self.changing(|| {
            let (from_dir, to_dir) = (number(from_dir)?, number(to_dir)?);
            rename(ctx, &self.volume, (from_dir, from), (to_dir, to), mode, Room::Free)
        })
    }

    fn project(&self, ino: Ino) -> polylane_base::Result<Option<u32>> {
        if !self.volume.traits.projects {
            return Ok(None);
        }
        self.guard(|| Ok(Some(self.volume.cell(number(ino)?)?.core.read().raw.project())))
    }

    fn generation(&self, ino: Ino) -> polylane_base::Result<Option<u32>> {
        self.guard(|| Ok(Some(self.volume.cell(number(ino)?)?.core.read().raw.generation())))
    }

    fn readlink(&self, _: &OpCtx<'_>, ino: Ino) -> polylane_base::Result<Vec<u8>> {
        self.guard(|| {
            let cell = self.volume.cell(number(ino)?)?;
            let core = cell.core.read();
            data::readlink(&self.volume, &cell, &core)
        })
    }

    fn readdir(
        &self,
        _: &OpCtx<'_>,
        dir: Ino,
        from: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> polylane_base::Result<()> {
        self.guard(|| {
            let cell = self.volume.dir(number(dir)?)?;
            let mut core = cell.core.write();
            dir::list(&self.volume, &cell, &mut core, from, &mut |entry| {
                let kind = kind_of(entry.file_type);
                each(DirEntry {
                    ino: Ino(entry.ino.into()),
                    next: entry.next,
                    kind,
                    name: entry.name,
                })
            })
        })
    }

    fn read(
        &self,
        _: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> polylane_base::Result<usize> {
        self.guard(|| {
            let cell = self.volume.cell(number(ino)?)?;
            let core = cell.core.read();
            regular(&core)?;
            data::read(&self.volume, &cell, &core, offset, len, sink)
        })
    }

    fn write(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        source: &mut dyn Source,
    ) -> polylane_base::Result<usize> {
        self.changing(|| synced::write(ctx, &self.volume, number(ino)?, offset, source, None))
    }

    fn write_synced(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        source: &mut dyn Source,
        syncing: Syncing,
    ) -> polylane_base::Result<usize> {
        self.changing(|| {
            synced::write(ctx, &self.volume, number(ino)?, offset, source, Some(syncing))
        })
    }

    fn write_late(
        &self,
        ctx: &OpCtx<'_>,
        writes: &mut [Late<'_>],
    ) -> Vec<polylane_base::Result<Attr>> {
        let mut done = Vec::with_capacity(writes.len());
        while let Some(rest) = writes.get_mut(done.len()..).filter(|rest| !rest.is_empty()) {
            match self.changing(|| late::write(ctx, &self.volume, rest)) {
                Ok(together) if !together.is_empty() => done.extend(together.into_iter().map(Ok)),
                // By itself, which also tells why.
                _ => done.push(store_late(ctx, self, &mut rest[0])),
            }
        }
        done
    }

    fn reserve(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        len: u64,
    ) -> polylane_base::Result<()> {
        self.making(|| {
            if self.volume.is_medium_full() {
                return Err(Errno::ENOSPC.into());
            }
            let cell = self.volume.cell(number(ino)?)?;
            promised::reserve(ctx, &self.volume, &cell, (offset, len))
        })
    }

    fn unreserve(&self, ino: Ino, offset: u64) {
        // A volume that has failed promises nothing any more.
        let _ = self.changing(|| {
            let cell = self.volume.cell(number(ino)?)?;
            let first = offset.div_ceil(self.volume.io.block_bytes() as u64);
            let first = u32::try_from(first).map_err(|_| Errno::EFBIG)?;
            promised::release(&self.volume, &cell, first, u32::MAX);
            Ok(())
        });
    }

    fn blocks_for(&self, bytes: u64, pieces: u64) -> Option<u64> {
        let block_bytes = self.volume.io.block_bytes() as u64;
        self.volume.sets_aside().then(|| bytes.div_ceil(block_bytes) + 2 * pieces)
    }

    fn reserve_blocks(&self, count: u64) -> polylane_base::Result<()> {
        self.making(|| {
            if self.volume.is_medium_full() {
                return Err(Errno::ENOSPC.into());
            }
            self.volume.with_space(|| self.volume.alloc.reserve(count, Blocks::Common))
        })
    }

    fn release_blocks(&self, count: u64) {
        self.volume.alloc.unreserve(count);
    }

    fn reserve_aside(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        len: u64,
        left: u64,
    ) -> polylane_base::Result<u64> {
        self.changing_anyway(|| {
            let cell = self.volume.cell(number(ino)?)?;
            promised::reserve_aside(ctx, &self.volume, &cell, (offset, len), left)
        })
    }

    fn fallocate(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> polylane_base::Result<Attr> {
        self.changing(|| {
            let cell = self.volume.cell(number(ino)?)?;
            let mut core = cell.core.write();
            regular(&core)?;
            space::fallocate(ctx, &self.volume, &cell, &mut core, mode, offset, len)?;
            Ok(self.volume.attr(&cell, &core))
        })
    }

    fn seek(
        &self,
        _: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        target: SeekFor,
    ) -> polylane_base::Result<u64> {
        self.guard(|| {
            let cell = self.volume.cell(number(ino)?)?;
            let core = cell.core.read();
            regular(&core)?;
            if offset >= core.raw.size() {
                return Err(Errno::ENXIO.into());
            }
            space::seek(&self.volume, &cell, &core, offset, target)
        })
    }

    fn pieces(
        &self,
        _: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Piece) -> bool,
    ) -> polylane_base::Result<()> {
        self.guard(|| space::pieces(&self.volume, number(ino)?, (offset, len), each))
    }

    fn trim(&self, _: &OpCtx<'_>, len_min: u64) -> polylane_base::Result<u64> {
        self.changing(|| {
            let block_bytes = self.volume.io.block_bytes() as u64;
            let blocks_min = len_min.div_ceil(block_bytes);
            // No free run is longer than a group.
            if blocks_min > self.volume.geometry.blocks_per_group.into() {
                return Err(Errno::EINVAL.into());
            }
            Ok(Ext4::trim(self, blocks_min as u32)? * block_bytes)
        })
    }

    fn getxattr(&self, _: &OpCtx<'_>, ino: Ino, name: &[u8]) -> polylane_base::Result<Vec<u8>> {
        self.guard(|| {
            let cell = self.volume.cell(number(ino)?)?;
            let core = cell.core.read();
            xattr::get(&self.volume, &cell, &core, name)
        })
    }

    fn setxattr(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> polylane_base::Result<Attr> {
        self.change_xattr(ctx, ino, &xattr::Change { name, value: Some(value), mode, perm: None })
    }

    fn listxattr(&self, _: &OpCtx<'_>, ino: Ino) -> polylane_base::Result<Vec<Vec<u8>>> {
        self.guard(|| {
            let cell = self.volume.cell(number(ino)?)?;
            let all = xattr::all(&self.volume, &cell, &cell.core.read())?;
            Ok(all.iter().filter_map(Attribute::name).collect())
        })
    }

    fn removexattr(&self, ctx: &OpCtx<'_>, ino: Ino, name: &[u8]) -> polylane_base::Result<Attr> {
        let mode = XattrMode::Replace;
        self.change_xattr(ctx, ino, &xattr::Change { name, value: None, mode, perm: None })
    }

    fn set_acl(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        kind: AclKind,
        acl: Option<&Acl>,
        perm: Option<u32>,
    ) -> polylane_base::Result<Attr> {
        let (name, value, mode) = (kind.name(), acl.map(Acl::to_value), XattrMode::Any);
        self.change_xattr(ctx, ino, &xattr::Change { name, value: value.as_deref(), mode, perm })
    }

    fn fsync(&self, _: &OpCtx<'_>, ino: Ino, data_only: bool) -> polylane_base::Result<()> {
        self.guard(|| synced::sync(&self.volume, number(ino)?, data_only, Teller::Elsewhere))
    }

    fn fsync_unlocked(
        &self,
        _: &OpCtx<'_>,
        ino: Ino,
        data_only: bool,
    ) -> polylane_base::Result<()> {
        self.guard(|| synced::sync(&self.volume, number(ino)?, data_only, Teller::Here))
    }

    fn sync_commits(&self, ino: Ino, data_only: bool, size: u64) -> bool {
        let commits = || synced::commits(&self.volume, number(ino)?, data_only, size);
        self.guard(commits).unwrap_or(false)
    }

    fn lead_sync(&self, ino: Ino, data_only: bool) -> Option<SyncLead> {
        self.guard(|| synced::lead(&self.volume, number(ino)?, data_only)).unwrap_or(None)
    }

    fn leave_sync(
        &self,
        ino: Ino,
        data_only: bool,
        told: &mut dyn FnMut() -> OnSynced,
    ) -> polylane_base::Result<SyncLeft> {
        self.guard(|| synced::leave(&self.volume, number(ino)?, data_only, told))
    }

    fn sync(&self, _: &OpCtx<'_>) -> polylane_base::Result<()> {
        self.guard(|| synced::sync_all(&self.volume))
    }

    fn revive(&self, ino: Ino, generation: Option<u64>) -> polylane_base::Result<Revived> {
        let ctx = &OpCtx::service();
        let attr = self.getattr(ctx, ino)?;
        let other = generation.is_some_and(|generation| generation != attr.generation);
        // What a removed directory was in may be another's by now.
        if other || attr.nlink == 0 && attr.kind == Kind::Dir {
            return Err(Errno::ESTALE);
        }
        if attr.nlink == 0 {
            let number = number(ino)?;
            self.nameless.lock().retain(|nameless| *nameless != number);
        }
        let parent = |cell: &_| dir::parent(&self.volume, cell);
        let dir = match attr.kind {
            Kind::Dir => self.guard(|| parent(&*self.volume.cell(number(ino)?)?)).map(Some)?,
            _ => None,
        };
        Ok(Revived { attr, dir: dir.map(|dir| Ino(dir.into())) })
    }

    fn end_revival(&self) {
        let nameless = std::mem::take(&mut *self.nameless.lock());
        let Some(_change) = self.changes.begin() else { return };
        // Nobody waits for the answer. A failure has stopped the file system, and the next open
        // frees what is left.
        let _ = self.volume.stop_on(finish_all(&self.volume, nameless, false));
    }

    fn statfs(&self, _: &OpCtx<'_>) -> polylane_base::Result<StatFs> {
        Ok(totals::of(&self.volume))
    }

    fn statfs_within(&self, dir: Ino, totals: StatFs) -> polylane_base::Result<StatFs> {
        self.guard(|| totals::within(&self.volume, number(dir)?, totals))
    }

    fn reserve_names(&self, count: u32) -> polylane_base::Result<()> {
        if self.volume.has_limits() {
            return Err(Errno::EOPNOTSUPP);
        }
        self.making(|| {
            let alloc = &self.volume.alloc;
            alloc.reserve_inodes(count)?;
            let blocks = self
                .volume
                .with_space(|| alloc.reserve(NAME_SHARE * u64::from(count), Blocks::Kept));
            blocks.inspect_err(|_| alloc.unreserve_inodes(count))
        })
    }

    fn release_names(&self, count: u32) {
        self.volume.alloc.unreserve_inodes(count);
        self.volume.alloc.unreserve(NAME_SHARE * u64::from(count));
    }

    fn name_blocks(&self) -> u64 {
        NAME_SHARE
    }

    fn creates_reserved(&self) -> bool {
        self.volume.sets_aside()
    }

    fn has_limits(&self) -> bool {
        self.volume.has_limits()
    }

    fn create_reserved(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        name: &[u8],
        new: &NewNode<'_>,
    ) -> polylane_base::Result<Changed> {
        self.changing_anyway(|| {
            ops::create(ctx, &self.volume, number(dir)?, name, new, Room::SetAside)
        })
    }

    fn rename_reserved(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        from: &[u8],
        to: &[u8],
    ) -> polylane_base::Result<Renamed> {
        self.changing_anyway(|| {
            let dir = number(dir)?;
            let mode = RenameMode::Replace;
            rename(ctx, &self.volume, (dir, from), (dir, to), mode, Room::SetAside)
        })
    }

    fn forget(&self, ino: Ino) {
        let ctx = &OpCtx::service();
        // Closing frees what has no name.
        let Some(_change) = self.changes.begin() else { return };
        let forgotten = || -> Result<()> {
            let number = number(ino)?;
            let Some(cell) = self.volume.inodes.get(number) else { return Ok(()) };
            let mut core = cell.core.write();
            let stays = core.raw.links() > 0 || self.leaves_nameless.load(Ordering::SeqCst);
            if stays || self.volume.journal.is_none() {
                promised::release(&self.volume, &cell, 0, u32::MAX);
                self.volume.inodes.remove(number);
            } else if core.raw.mode() != 0 {
                ops::free_inode(ctx, &self.volume, &cell, &mut core)?;
            }
            Ok(())
        };
        // Nobody waits for the answer. A failure has stopped the file system, and the orphan list
        // frees the inode at the next open.
        let _ = self.volume.stop_on(forgotten());
    }
}
