//! Limits of quotas: what takes a user, a group or a project past one is refused before it is done.
//!
//! One rule: an owner has what is charged and what is owed, and each block and inode that it takes
//! is in one of the two from the check on that allowed it. The [`Ledger`] holds what is owed. Under
//! its lock a limit is checked and what was asked for is booked; under it, too,
//! [`Accounts::settle`] charges an inode and ends what was owed for that. So no two checks allow
//! the same last block, and none counts a block twice.
//!
//! | owed for | as | until |
//! |---|---|---|
//! | delayed writes | what is promised to a file, and claimed for that | the file is stored |
//! | all else | a [`Booking`] of the operation | the inode is stored, or it fails |
//!
//! The host's root is not limited, as Linux has it for `CAP_SYS_RESOURCE`: nothing is booked for
//! it. A user whose files are kept as root's is.
//!
//! # Locking
//!
//! `cell → handle → promised → ledger → a quota file`.
//!
//! [`Accounts::settle`]: crate::volume::Accounts::settle

use polylane_base::Errno;
use polylane_base::sync::{Arc, Mutex, MutexGuard};
use polylane_vfs::OpCtx;
use rustc_hash::FxHashMap;

use crate::dir::{self, Name};
use crate::error::{Error, Result};
use crate::format::quota::QuotaKind;
use crate::inode::{Cell, Core};
use crate::journal::Handle;
use crate::volume::Volume;

/// A user, a group and a project; `None`: it does not matter.
pub type Ids = [Option<u32>; 3];

/// What is owed to each user, group and project.
#[derive(Default, Debug)]
pub struct Owed {
    ledger: Mutex<Ledger>,
}

impl Owed {
    /// Nothing is checked, booked or charged but by who has it.
    pub fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }
}

/// Blocks and inodes that are owed.
#[derive(Default, Debug)]
pub struct Ledger(FxHashMap<(usize, u32), (u64, u64)>);

impl Ledger {
    /// Blocks and inodes that one of them is owed.
    pub fn of(&self, kind: QuotaKind, id: u32) -> (u64, u64) {
        self.0.get(&(kind as usize, id)).copied().unwrap_or_default()
    }

    /// So many blocks and inodes more are owed.
    pub fn add(&mut self, ids: Ids, more: (u64, u64)) {
        self.change(ids, |now| (now.0 + more.0, now.1 + more.1));
    }

    /// So many blocks and inodes are owed no more.
    pub fn remove(&mut self, ids: Ids, less: (u64, u64)) {
        self.change(ids, |now| (now.0.saturating_sub(less.0), now.1.saturating_sub(less.1)));
    }

    fn change(&mut self, ids: Ids, change: impl Fn((u64, u64)) -> (u64, u64)) {
        for (kind, id) in ids.into_iter().enumerate() {
            let Some(id) = id else { continue };
            let now = change(self.0.get(&(kind, id)).copied().unwrap_or_default());
            match now {
                (0, 0) => self.0.remove(&(kind, id)),
                now => self.0.insert((kind, id), now),
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

    /// The same for the ledger.
    pub fn each(&self) -> Ids {
        self.ids.map(Some)
    }

    /// What it is owed.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.owed.lock()
    }
}

/// What an operation is about to take, owed until it has it. Dropping it takes it back.
#[derive(Default, Debug)]
pub struct Booking {
    owed: Option<Arc<Owed>>,
    ids: Ids,
    amount: (u64, u64),
}

impl Booking {
    /// Ends it: it is charged under the lock that `ledger` is of.
    pub fn settle(mut self, ledger: &mut Ledger) {
        if self.owed.take().is_some() {
            ledger.remove(self.ids, self.amount);
        }
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        if let Some(owed) = self.owed.take() {
            owed.lock().remove(self.ids, self.amount);
        }
    }
}

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
            let owner = Owner::new(owed, ids);
            cell.promised.lock().owe_to(owner, &mut owed.lock());
        }
    }

    /// Books blocks and inodes for a user, a group and a project that have accounts.
    ///
    /// # Errors
    /// `EDQUOT`, the device's, or damaged quota files.
    pub fn book(&self, ctx: &OpCtx<'_>, ids: Ids, amount: (u64, u64)) -> Result<Booking> {
        let (Some(owed), false) = (self.owed(), ctx.has_sys_resource()) else {
            return Ok(Booking::default());
        };
        let mut ledger = owed.lock();
        self.check(ctx, &ledger, ids, amount)?;
        ledger.add(ids, amount);
        drop(ledger);
        Ok(Booking { owed: Some(owed.clone()), ids, amount })
    }

    fn check(&self, ctx: &OpCtx<'_>, ledger: &Ledger, ids: Ids, more: (u64, u64)) -> Result<()> {
        let Some(accounts) = &self.accounts else { return Ok(()) };
        match accounts.allow(ctx, self, ledger, ids, more)? {
            true => Ok(()),
            false => Err(Errno::EDQUOT.into()),
        }
    }

    /// The same for a new inode, whose owner may have no accounts yet, with the blocks and inodes
    /// that its attributes take. Call without a handle.
    ///
    /// # Errors
    /// `ENOSPC`, and those of [`Volume::book`].
    pub fn book_new(
        &self,
        ctx: &OpCtx<'_>,
        ids: [u32; 3],
        (blocks, values): (u64, u64),
    ) -> Result<Booking> {
        self.enter(ctx, ids)?;
        self.book(ctx, ids.map(Some), (blocks, 1 + values))
    }

    /// The same for an inode that is given to others, who have accounts: those of them who had it
    /// before do not count. What is promised to it is owed to them from now on.
    ///
    /// # Errors
    /// Those of [`Volume::book`]: nothing has changed then.
    pub fn book_given(
        &self,
        ctx: &OpCtx<'_>,
        (cell, core): (&Cell, &Core),
        ids: [u32; 3],
    ) -> Result<Booking> {
        let had = [core.raw.uid(), core.raw.gid(), core.raw.project()];
        let Some(owed) = self.owed().filter(|_| ids != had) else { return Ok(Booking::default()) };
        let block_bytes = self.geometry.block_bytes;
        let blocks = core.raw.sectors(block_bytes) * 512 / u64::from(block_bytes);
        let new = [0, 1, 2].map(|kind| Some(ids[kind]).filter(|id| *id != had[kind]));
        let inodes = 1 + core.values;
        let mut promised = cell.promised.lock();
        let mut ledger = owed.lock();
        if !ctx.has_sys_resource() {
            self.check(ctx, &ledger, new, (blocks + promised.count(), inodes))?;
        }
        promised.owe_to(Owner::new(owed, ids), &mut ledger);
        ledger.add(new, (blocks, inodes));
        drop(ledger);
        Ok(Booking { owed: Some(owed.clone()), ids: new, amount: (blocks, inodes) })
    }

    /// Books up to `want` blocks for a file: as many as its owners may have.
    ///
    /// # Errors
    /// `EDQUOT`: none, the device's, or damaged quota files.
    pub fn book_most(&self, ctx: &OpCtx<'_>, core: &Core, want: u32) -> Result<(Booking, u32)> {
        let ids = [core.raw.uid(), core.raw.gid(), core.raw.project()].map(Some);
        let (Some(owed), false) = (self.owed(), ctx.has_sys_resource()) else {
            return Ok((Booking::default(), want));
        };
        let mut ledger = owed.lock();
        let allows = |blocks: u32| match self.check(ctx, &ledger, ids, (blocks.into(), 0)) {
            Err(Error::Errno(Errno::EDQUOT)) => Ok(false),
            allowed => allowed.map(|()| true),
        };
        let (mut most, mut refused) = if allows(want)? { (want, want) } else { (0, want) };
        while most + 1 < refused {
            let middle = most + (refused - most) / 2;
            match allows(middle)? {
                true => most = middle,
                false => refused = middle,
            }
        }
        if most == 0 {
            return Err(Errno::EDQUOT.into());
        }
        ledger.add(ids, (most.into(), 0));
        drop(ledger);
        Ok((Booking { owed: Some(owed.clone()), ids, amount: (most.into(), 0) }, most))
    }

    /// Stores an inode that has what was booked for it.
    ///
    /// # Errors
    /// The device's.
    pub fn store_booked(
        &self,
        handle: &Handle<'_>,
        cell: &Cell,
        core: &mut Core,
        booked: Booking,
    ) -> Result<()> {
        core.booked = booked;
        self.store(handle, cell, core, true)
    }

    /// Books what a directory grows by for a new name. Call without a handle.
    ///
    /// # Errors
    /// `EDQUOT`, the device's, or a corrupt directory.
    pub fn book_growth(
        &self,
        ctx: &OpCtx<'_>,
        (parent, above): (&Cell, &mut Core),
        name: Name<'_>,
    ) -> Result<Booking> {
        if !self.has_limits() || ctx.has_sys_resource() {
            return Ok(Booking::default());
        }
        let ids = [above.raw.uid(), above.raw.gid(), above.raw.project()];
        match dir::own_growth(self, parent, above, name)? {
            0 => Ok(Booking::default()),
            blocks => self.book(ctx, ids.map(Some), (blocks, 0)),
        }
    }
}
