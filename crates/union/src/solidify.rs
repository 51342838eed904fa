//! Makes every file of the upper whole, so that nothing but the upper is needed to read it.

use polylane_base::Result;
use polylane_base::sync::Arc;
use polylane_base::sync::atomic::Ordering;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::Kind;

use crate::node::{By, Node};
use crate::{Act, Union};

/// Walks through the upper, after each of which no name may have changed.
const WALKS_MAX: usize = 3;

/// What [`Union::solidify`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Solid {
    /// Files that were made whole.
    pub files: u64,
    /// Names changed during each walk, so that files may be left that are not whole.
    pub is_partial: bool,
}

impl Union {
    /// Copies up all data that files of the upper still have in the lowers, and gives files all
    /// their names there. Files may be read, written and renamed meanwhile. One that was cut off
    /// goes on when it is called again. `EROFS` without an upper; `ENOSPC`.
    pub fn solidify(&self) -> Result<Solid> {
        let ctx = &OpCtx::service();
        let act = self.act(ctx);
        let upper = self.upper()?;
        let mut files = 0;
        for _ in 0..WALKS_MAX {
            let before = self.changes.load(Ordering::Relaxed);
            act.cover_all()?;
            files += act.complete_all()?;
            let _still = self.changing.write();
            if self.changes.load(Ordering::Relaxed) == before {
                upper.clear_index(ctx, &self.table)?;
                upper.expect_no_marks(ctx)?;
                return Ok(Solid { files, is_partial: false });
            }
        }
        Ok(Solid { files, is_partial: true })
    }
}

impl Act<'_> {
    /// Makes the files whole that a walk through the upper finds; how many that were.
    fn complete_all(&self) -> Result<u64> {
        let mut count = 0;
        let mut left = vec![self.root.clone()];
        while let Some(dir) = left.pop() {
            for node in self.partial_files(&dir, &mut left)? {
                count += u64::from(self.complete_in_steps(&node)?);
            }
        }
        Ok(count)
    }

    /// The files of a directory that are not whole. The directories in it are `left` to be done.
    fn partial_files(&self, dir: &Arc<Node>, left: &mut Vec<Arc<Node>>) -> Result<Vec<Arc<Node>>> {
        let mut files = Vec::new();
        let _shared = self.changing.read();
        for name in self.names_above(dir)? {
            let Some(found) = self.find(dir, &name)? else { continue };
            if found.upper.is_none() {
                continue;
            }
            let kind = found.kind();
            let node = self.node_for(By::Walk, dir, &name, found)?;
            self.check_data(&node)?;
            let is_partial = node.state().below.is_some();
            match kind {
                Kind::Dir => left.push(node),
                _ if is_partial => files.push(node),
                _ => {}
            }
        }
        Ok(files)
    }

    /// The names that the upper has in a directory.
    pub(crate) fn names_above(&self, dir: &Arc<Node>) -> Result<Vec<Vec<u8>>> {
        match dir.upper() {
            Some(held) => self.upper()?.names(self.ctx, &held),
            None => Ok(Vec::new()),
        }
    }
}
