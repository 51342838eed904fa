//! fsync(2), whole or in two halves, between which another thread may have its commit.

use std::sync::atomic::Ordering::Relaxed;

use polylane_base::{Errno, Result};

use super::{OpenFile, synchronous};
use crate::cache::FilePages;
use crate::ctx::OpCtx;
use crate::fs::{Kind, OnSynced, SyncLead, SyncLeft};
use crate::stats::Count;
use crate::unsynced::Begun;

/// A sync whose data went to the file system, and waits for that to make it durable.
pub struct HalfSynced {
    begun: Option<Begun>,
    written: Result<()>,
}

impl OpenFile {
    /// What a write by a descriptor with `flags` also does before it returns: with `O_SYNC` as
    /// fsync(2) would, with `O_DSYNC` as fdatasync(2).
    pub fn sync_written(&self, ctx: &OpCtx<'_>, flags: i32) -> Result<()> {
        match synchronous(flags) {
            Some(data_only) => self.fsync(ctx, data_only),
            None => Ok(()),
        }
    }

    /// fsync(2); fdatasync(2) with `data_only`. An error of an earlier write-back is reported once
    /// to each open file, and so is `EIO` for a directory that lost names with a former service.
    pub fn fsync(&self, ctx: &OpCtx<'_>, data_only: bool) -> Result<()> {
        let core = &self.node.core;
        let (begun, pages) = self.begin()?;
        let written = pages.map_or(Ok(()), |it| core.write_synced(&self.node, it, data_only));
        self.sync_rest(ctx, data_only, HalfSynced { begun, written })
    }

    /// The part of an fsync that needs no device but to read: what was written goes to the file
    /// system. The rest is to be left to another thread, or done. Nothing where another thread
    /// writes the file back: that takes as long as its device does.
    ///
    /// # Errors
    /// `EINVAL`: neither a file nor a directory.
    pub fn try_begin_sync(&self) -> Result<Option<HalfSynced>> {
        let core = &self.node.core;
        let (begun, pages) = self.begin()?;
        // What another thread commits goes with that, also where it could be written in place.
        let written = pages.map_or(Some(Ok(())), |it| core.try_write_synced(&self.node, it));
        Ok(written.map(|written| HalfSynced { begun, written }))
    }

    fn begin(&self) -> Result<(Option<Begun>, Option<&FilePages>)> {
        let core = &self.node.core;
        core.count(Count::Ops);
        if !matches!(self.node.kind(), Kind::File | Kind::Dir) {
            return Err(Errno::EINVAL);
        }
        core.settle(&self.node);
        core.end_loan_on(&self.node);
        Ok((core.begin_sync(&self.node), self.node.pages_used()))
    }

    /// The rest of one that began.
    ///
    /// # Errors
    /// Those of [`OpenFile::fsync`].
    pub fn sync_rest(&self, ctx: &OpCtx<'_>, data_only: bool, half: HalfSynced) -> Result<()> {
        let of = (ctx, &self.node, data_only);
        self.end_sync(half, self.node.core.sync_file(of, &self.syncs_seen))
    }

    /// Whether a sync of this file, which has bytes to write, commits, or can be left to a thread
    /// that does; see [`FileSystem::sync_commits`](crate::fs::FileSystem::sync_commits).
    pub fn sync_commits(&self, data_only: bool) -> bool {
        let fs = &self.node.core.fs;
        !fs.keeps_writes() && fs.sync_commits(self.node.ino(), data_only, self.node.size())
    }

    /// Promises to make durable what the rest of a sync is of, if nobody does; see
    /// [`FileSystem::lead_sync`](crate::fs::FileSystem::lead_sync).
    pub fn lead_sync(&self, data_only: bool) -> Option<SyncLead> {
        let fs = &self.node.core.fs;
        if fs.keeps_writes() { None } else { fs.lead_sync(self.node.ino(), data_only) }
    }

    /// Leaves the rest to another thread that makes the same durable, if there is one: then what
    /// `told` gives is called once that has ended, with what is to be said to
    /// [`OpenFile::end_sync`].
    ///
    /// # Errors
    /// The file system's.
    pub fn leave_sync(
        &self,
        data_only: bool,
        told: &mut dyn FnMut() -> OnSynced,
    ) -> Result<SyncLeft> {
        let fs = &self.node.core.fs;
        match fs.keeps_writes() {
            // What became of each of its syncs is kept in mind.
            true => Ok(SyncLeft::ToCaller),
            false => fs.leave_sync(self.node.ino(), data_only, told),
        }
    }

    /// The file system's part of a sync that began is over, and ended like this.
    ///
    /// # Errors
    /// Those of [`OpenFile::fsync`].
    pub fn end_sync(&self, half: HalfSynced, synced: Result<()>) -> Result<()> {
        let (core, HalfSynced { begun, written }) = (&self.node.core, half);
        if written.is_ok() && synced.is_ok() {
            core.end_sync(begun);
        }
        // A failure of this very write-back is among those reported.
        if let Some(pages) = self.node.pages_used() {
            return pages.report(&self.failures_seen).and(written).and(synced);
        }
        synced?;
        match self.node.is_dir() && self.failures_seen.swap(1, Relaxed) == 0 {
            true => core.tell_of_lost_names(&self.node),
            false => Ok(()),
        }
    }
}
