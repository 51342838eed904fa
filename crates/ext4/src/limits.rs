//! Limits of quotas: what takes a user, a group or a project past one is refused before it is done.
//!
//! Delayed writes are charged when they are written back; until then, what is promised to an
//! owner's files counts in [`Owed`]. Root is not limited, as Linux has it for `CAP_SYS_RESOURCE`.
//!
//! # Locking
//!
//! `cell → turn → handle`. Between a check and what it allows, nothing else is checked.

use polylane_base::Errno;
use polylane_base::sync::{Arc, Mutex, MutexGuard};
use polylane_vfs::OpCtx;
use rustc_hash::FxHashMap;

use crate::dir::{self, Name};
use crate::error::{Error, Result};
use crate::format::quota::QuotaKind;
use crate::inode::{Cell, Core};
use crate::volume::Volume;

/// Blocks that are promised to each user, group and project.
#[derive(Default, Debug)]
pub struct Owed {
    turn: Mutex<()>,
    blocks: Mutex<FxHashMap<(usize, u32), u64>>,
}

impl Owed {
    /// What one of them was promised.
    pub fn of(&self, kind: QuotaKind, id: u32) -> u64 {
        self.blocks.lock().get(&(kind as usize, id)).copied().unwrap_or(0)
    }

    fn change(&self, ids: [u32; 3], change: impl Fn(u64) -> u64) {
        let mut blocks = self.blocks.lock();
        for key in ids.into_iter().enumerate() {
            let now = change(blocks.get(&key).copied().unwrap_or(0));
            match now {
                0 => blocks.remove(&key),
                now => blocks.insert(key, now),
            };
        }
    }
}

/// To whom a file's promises are owed.
#[derive(Clone, Debug)]
pub struct Owner {
    owed: Arc<Owed>,
    ids: [u32; 3],
}

impl Owner {
    /// Of a file of this user, group and project.
    pub fn new(owed: &Arc<Owed>, ids: [u32; 3]) -> Owner {
        Owner { owed: owed.clone(), ids }
    }

    /// The user, group and project.
    pub fn ids(&self) -> [u32; 3] {
        self.ids
    }

    /// So many blocks more are promised.
    pub fn add(&self, blocks: u64) {
        self.owed.change(self.ids, |now| now + blocks);
    }

    /// So many blocks are promised no more.
    pub fn remove(&self, blocks: u64) {
        self.owed.change(self.ids, |now| now.saturating_sub(blocks));
    }
}

/// While one lives, nothing else is allowed to take of what is limited.
pub type Turn<'a> = Option<MutexGuard<'a, ()>>;

impl Volume {
    fn owed(&self) -> Option<&Arc<Owed>> {
        self.accounts.as_ref()?.owed()
    }

    /// Whether limits are enforced.
    pub fn has_limits(&self) -> bool {
        self.owed().is_some()
    }

    /// Whether names and blocks can be set aside for those who have not asked for them yet.
    pub fn sets_aside(&self) -> bool {
        self.journal.is_some() && !self.has_limits()
    }

    /// What is promised to a file is owed to a user, a group and a project, where that counts.
    pub fn owe(&self, cell: &Cell, ids: [u32; 3]) {
        if let Some(owed) = self.owed() {
            cell.promised.lock().owe_to(Owner::new(owed, ids));
        }
    }

    /// Begins to take blocks and inodes for a user, a group and a project that have accounts. What
    /// is returned is to be kept until they are charged or promised. Call without a handle.
    ///
    /// # Errors
    /// `EDQUOT`, the device's, or damaged quota files.
    pub fn admit(
        &self,
        ctx: &OpCtx<'_>,
        ids: [u32; 3],
        (blocks, inodes): (u64, u64),
    ) -> Result<Turn<'_>> {
        self.admit_some(ctx, ids.map(Some), (blocks, inodes))
    }

    fn admit_some(
        &self,
        ctx: &OpCtx<'_>,
        ids: [Option<u32>; 3],
        (blocks, inodes): (u64, u64),
    ) -> Result<Turn<'_>> {
        let (Some(owed), false) = (self.owed(), ctx.is_root()) else { return Ok(None) };
        let turn = owed.turn.lock();
        self.check(ctx, ids, (blocks, inodes))?;
        Ok(Some(turn))
    }

    fn check(
        &self,
        ctx: &OpCtx<'_>,
        ids: [Option<u32>; 3],
        (blocks, inodes): (u64, u64),
    ) -> Result<()> {
        let Some(accounts) = self.accounts.as_ref().filter(|_| !ctx.is_root()) else {
            return Ok(());
        };
        let bytes = blocks * u64::from(self.geometry.block_bytes);
        match accounts.allow(ctx, self, ids, (bytes, inodes))? {
            true => Ok(()),
            false => Err(Errno::EDQUOT.into()),
        }
    }

    /// The same for a new inode, whose owner may have no accounts yet.
    ///
    /// # Errors
    /// `ENOSPC`, and those of [`Volume::admit`].
    pub fn admit_new(&self, ctx: &OpCtx<'_>, ids: [u32; 3], blocks: u64) -> Result<Turn<'_>> {
        self.enter(ctx, ids)?;
        self.admit(ctx, ids, (blocks, 1))
    }

    /// The same for an inode that is given to others: those of them who had it before do not
    /// count.
    ///
    /// # Errors
    /// `ENOSPC`, and those of [`Volume::admit`].
    pub fn admit_given(
        &self,
        ctx: &OpCtx<'_>,
        (cell, core): (&Cell, &Core),
        ids: [u32; 3],
    ) -> Result<Turn<'_>> {
        self.enter(ctx, ids)?;
        let had = [core.raw.uid(), core.raw.gid(), core.raw.project()];
        if ids == had || !self.has_limits() {
            return Ok(None);
        }
        let block_bytes = self.geometry.block_bytes;
        let blocks = core.raw.sectors(block_bytes) * 512 / u64::from(block_bytes);
        let blocks = blocks + cell.promised.lock().count();
        let new = [0, 1, 2].map(|kind| Some(ids[kind]).filter(|id| *id != had[kind]));
        self.admit_some(ctx, new, (blocks, 1))
    }

    /// Begins to take up to `want` blocks for a file: as many as its owners may have. Call without
    /// a handle.
    ///
    /// # Errors
    /// `EDQUOT`: none, the device's, or damaged quota files.
    pub fn admit_most(&self, ctx: &OpCtx<'_>, core: &Core, want: u32) -> Result<(Turn<'_>, u32)> {
        let ids = [core.raw.uid(), core.raw.gid(), core.raw.project()];
        let turn = match self.admit(ctx, ids, (want.into(), 0)) {
            Err(Error::Errno(Errno::EDQUOT)) => self.admit(ctx, ids, (1, 0))?,
            all => return all.map(|turn| (turn, want)),
        };
        let (mut most, mut refused) = (1, want);
        while most + 1 < refused {
            let middle = most + (refused - most) / 2;
            match self.check(ctx, ids.map(Some), (middle.into(), 0)) {
                Err(Error::Errno(Errno::EDQUOT)) => refused = middle,
                allowed => most = allowed.map(|()| middle)?,
            }
        }
        Ok((turn, most))
    }

    /// Refuses a name whose directory would grow past a limit of its owner's. Call without a
    /// handle.
    ///
    /// # Errors
    /// `EDQUOT`, the device's, or a corrupt directory.
    pub fn check_growth(
        &self,
        ctx: &OpCtx<'_>,
        (parent, above): (&Cell, &mut Core),
        name: Name<'_>,
    ) -> Result<()> {
        if !self.has_limits() || ctx.is_root() {
            return Ok(());
        }
        let grown = dir::growth(self, parent, above, name)?.unwrap_or(1);
        let ids = [above.raw.uid(), above.raw.gid(), above.raw.project()];
        match grown {
            0 => Ok(()),
            _ => self.check(ctx, ids.map(Some), (grown, 0)),
        }
    }
}
