//! Makes every file of the upper whole, so that nothing but the upper is needed to read it.

use polylane_base::Result;
use polylane_base::sync::Arc;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::Kind;

use crate::node::Node;
use crate::{Act, Union};

impl Union {
    /// Copies up all data that files of the upper still have in the lowers, and gives files all
    /// their names there. Returns how many files
    /// that were. To be called when no file is written. One that was cut off goes on when it is
    /// called again. `EROFS` without an upper; `ENOSPC`.
    pub fn solidify(&self) -> Result<u64> {
        let ctx = &OpCtx::service();
        let act = self.act(ctx);
        let upper = self.upper()?;
        act.cover_all()?;
        let mut count = 0;
        let mut left = vec![self.root.clone()];
        while let Some(dir) = left.pop() {
            let _alone = self.changing.write();
            for name in act.names_above(&dir)? {
                let Some(found) = act.find(&dir, &name)? else { continue };
                if found.upper.is_none() {
                    continue;
                }
                let kind = found.kind();
                // A node that the VFS does not hold goes at the end of this.
                let node = act.node(&dir, &name, found)?;
                let is_partial = node.state().below.is_some();
                match node.upper() {
                    _ if kind == Kind::Dir => left.push(node),
                    Some(held) if is_partial => {
                        act.complete_keeping_times(&node, &held)?;
                        count += 1;
                    }
                    _ => {}
                }
            }
        }
        upper.expect_no_marks(ctx)?;
        Ok(count)
    }
}

impl Act<'_> {
    /// The names that the upper has in a directory.
    pub(crate) fn names_above(&self, dir: &Arc<Node>) -> Result<Vec<Vec<u8>>> {
        match dir.upper() {
            Some(held) => self.upper()?.names(self.ctx, &held),
            None => Ok(Vec::new()),
        }
    }
}
