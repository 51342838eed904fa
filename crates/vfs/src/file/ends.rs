//! Where a file ends, and whether a former service moved the end.

use polylane_base::Result;

use crate::ctx::OpCtx;
use crate::fs::Fallocate;
use crate::handover::Op;
use crate::inode::{Inode, STALE};

impl Inode {
    /// The size that appending starts from. Call with the data lock held for change.
    pub(super) fn end(&self, ctx: &OpCtx<'_>) -> Result<u64> {
        if self.core.character.volatile {
            return self.fresh_attr(ctx).map(|attr| attr.size);
        }
        Ok(self.size())
    }

    /// Whether a former service took a range out, or put one in, on behalf of this very request;
    /// else notes that it is about to be done. Call with the data lock held for change.
    pub(super) fn shifted_before(
        &self,
        ctx: &OpCtx<'_>,
        mode: Fallocate,
        len: u64,
    ) -> Result<bool> {
        if !matches!(mode, Fallocate::CollapseRange | Fallocate::InsertRange) {
            return Ok(false);
        }
        let size = self.end(ctx)?;
        let shifted = |before: u64| match mode {
            Fallocate::CollapseRange => before.checked_sub(len) == Some(size),
            _ => before.checked_add(len) == Some(size),
        };
        match ctx.former(Op::Shift) {
            Some([before, ..]) => Ok(shifted(before)),
            None => {
                ctx.intend(Op::Shift, [size, 0, 0, 0]);
                Ok(false)
            }
        }
    }

    /// A write through the libservice reached `end`. Call with the data lock held for change.
    pub(crate) fn grew(&self, end: u64) {
        let mut attr = self.attr();
        attr.size = attr.size.max(end);
        self.mirror(&attr);
        self.raise(STALE);
        self.atime_is_due();
    }
}
