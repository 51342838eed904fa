//! What keeps overlayfs, and unions of later services, from an upper: entries of
//! `work/work/incompat`, as overlayfs reads them.
//!
//! A *volatile* upper is one whose syncs are not waited for. overlayfs has a directory `volatile`
//! there while it is in use so, and forever after; here it goes when the union has ended in order,
//! and what it was made of is durable.

use polylane_base::{Errno, Result};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Kind, NewNode};

use crate::error::OpenError;
use crate::layer::Held;
use crate::node::Table;
use crate::upper::{Upper, made_dir};

/// The directory of a work directory that overlayfs uses, and what it reads there.
const KERNELS_WORK: &[u8] = b"work";
const INCOMPATIBLE: &[u8] = b"incompat";

/// The mark of a volatile upper, in overlayfs' word.
const VOLATILE: &[u8] = b"volatile";

impl Upper {
    /// Before anything of a union is looked at: what overlayfs, or a service that is gone, has left
    /// in the work directory. `goes_on`: that service's successor is this one. Whether the former
    /// one did not wait for syncs, and did not end in order: what it said to be synced may be gone.
    pub(crate) fn take_over(
        &self,
        ctx: &OpCtx<'_>,
        (table, lowers): (&Table, usize),
        goes_on: bool,
        is_volatile: bool,
    ) -> Result<bool, OpenError> {
        let is_torn = self.is_left_volatile(ctx).map_err(OpenError::Upper)?;
        // A former service's own mark is no other's.
        if !goes_on && is_torn {
            return Err(OpenError::Volatile);
        }
        if is_volatile {
            self.begin_volatile(ctx).map_err(OpenError::Upper)?;
        }
        self.adopt_kernels_index(ctx, table, lowers)?;
        Ok(is_torn)
    }

    /// Has overlayfs refuse the upper in that word.
    pub(crate) fn say_incompatible(&self, ctx: &OpCtx<'_>, word: &[u8]) -> Result<()> {
        let new = self.own(NewNode::new(Kind::Dir, 0o700));
        let work = made_dir(ctx, &self.work, KERNELS_WORK, &new)?;
        let dir = made_dir(ctx, &work, INCOMPATIBLE, &new)?;
        made_dir(ctx, &dir, word, &new).map(drop)
    }

    /// Ends what [`say_incompatible`](Self::say_incompatible) began.
    pub(crate) fn say_compatible(&self, ctx: &OpCtx<'_>, word: &[u8]) -> Result<()> {
        let Some(dir) = self.incompatible(ctx)? else { return Ok(()) };
        let Some((held, _)) = dir.lookup(ctx, word)? else { return Ok(()) };
        self.empty(ctx, &held)?;
        self.fs().rmdir(ctx, dir.ino(), word).map(drop)
    }

    /// Whether the upper was volatile and has not ended in order.
    fn is_left_volatile(&self, ctx: &OpCtx<'_>) -> Result<bool> {
        match self.incompatible(ctx)? {
            Some(dir) => dir.lookup(ctx, VOLATILE).map(|found| found.is_some()),
            None => Ok(false),
        }
    }

    /// From here on syncs are not waited for: that is durable first.
    fn begin_volatile(&self, ctx: &OpCtx<'_>) -> Result<()> {
        self.say_incompatible(ctx, VOLATILE)?;
        self.fs().sync(ctx)
    }

    /// Everything is durable.
    pub(crate) fn end_volatile(&self, ctx: &OpCtx<'_>) -> Result<()> {
        self.say_compatible(ctx, VOLATILE)
    }

    fn incompatible(&self, ctx: &OpCtx<'_>) -> Result<Option<Held>> {
        let found = match self.work.lookup(ctx, KERNELS_WORK)? {
            Some((work, attr)) if attr.kind == Kind::Dir => work.lookup(ctx, INCOMPATIBLE)?,
            _ => None,
        };
        match found {
            Some((dir, attr)) if attr.kind == Kind::Dir => Ok(Some(dir)),
            Some(_) => Err(Errno::EIO),
            None => Ok(None),
        }
    }
}
