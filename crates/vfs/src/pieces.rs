//! Where files lie on the medium, and giving it back what is free.

use polylane_base::{Errno, Result};

use crate::ctx::OpCtx;
use crate::file::OpenFile;
use crate::fs::{Kind, Piece};
use crate::vfs::Vfs;

impl OpenFile {
    /// Tells `each` the pieces of the file on the medium that overlap `len` bytes at `offset`, in
    /// order, until it says false. What was written has got there before. `EINVAL` for what is no
    /// file, `EOPNOTSUPP`, and the write-back's errors.
    pub fn pieces(
        &self,
        ctx: &OpCtx<'_>,
        offset: u64,
        len: u64,
        each: &mut dyn FnMut(Piece) -> bool,
    ) -> Result<()> {
        let node = self.node();
        if node.kind() != Kind::File {
            return Err(Errno::EINVAL);
        }
        let core = &node.core;
        let Some(pages) = node.pages_used() else {
            return core.fs.pieces(ctx, node.ino(), offset, len, each);
        };
        core.write_back(node, pages)?;
        let _backing = pages.backing.read();
        core.fs.pieces(ctx, node.ino(), offset, len, each)
    }
}

impl Vfs {
    /// Gives free space back to the medium, in runs of at least `len_min` bytes; returns the bytes
    /// given. `EROFS`, `EOPNOTSUPP`, the medium's.
    pub fn trim(&self, ctx: &OpCtx<'_>, len_min: u64) -> Result<u64> {
        self.core.writable()?;
        self.core.fs.trim(ctx, len_min)
    }
}
