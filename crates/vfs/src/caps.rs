//! `security.capability`: what a program file may do beyond its user. It goes, whoever does it,
//! when the file's bytes, size or owner change; as in Linux (capabilities(7)).

use polylane_base::Result;

use crate::core::Core;
use crate::ctx::OpCtx;
use crate::fs::Kind;
use crate::inode::{Inode, NO_CAPS};

/// The attribute.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

impl Core {
    /// Before a change of data or owner: capabilities go. One load where it is known that there are
    /// none. The host of a volatile file system sees to it itself.
    pub(crate) fn kill_caps(&self, ctx: &OpCtx<'_>, node: &Inode) -> Result<()> {
        if node.has(NO_CAPS) || node.kind() != Kind::File || self.character.volatile {
            return Ok(());
        }
        // Locked, so that nobody gives it some between the look and the mark.
        let mut held = node.attr();
        if self.fs.getxattr(ctx, node.ino(), CAPABILITY).is_ok() {
            let new = self.fs.removexattr(ctx, node.ino(), CAPABILITY)?;
            node.keep(&mut held, new);
        }
        node.raise(NO_CAPS);
        Ok(())
    }
}
