//! Leases of fcntl(2) (`F_SETLEASE`; oplocks): who has one is told before somebody else opens the
//! file, or cuts it by its path.
//!
//! The kernel keeps them, with the inodes of a FUSE mount, and breaks them when it opens a file. So
//! as long as it may have one on a file, that file is *guarded*: an open that a client asks for
//! past the kernel is `EAGAIN`, and is to be asked of the kernel.
//!
//! # Why nothing is missed
//!
//! An open is counted, then it looks for guards; a guard is set up, then opens are counted. One of
//! the two sees the other. In between files at rest are taken back, and no path leads to one.

use polylane_base::sync::Arc;
use polylane_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use polylane_base::{Errno, Result};
use rustix::fs::OFlags;

use crate::ctx::OpCtx;
use crate::file::OpenFile;
use crate::inode::Node;
use crate::vfs::Vfs;

/// Who but the kernel has an inode open, and its guards.
#[derive(Default)]
pub(crate) struct Opens {
    /// Open files; those that can write are in the upper half as well.
    counts: AtomicU64,
    guards: AtomicU32,
}

/// What an open file with these flags counts for.
fn weight(flags: i32) -> u64 {
    let mode = OFlags::from_bits_retain(flags.cast_unsigned()) & OFlags::ACCMODE;
    let writes = mode != OFlags::RDONLY;
    1 | u64::from(writes) << 32
}

impl Opens {
    pub(crate) fn add(&self, flags: i32) {
        self.counts.fetch_add(weight(flags), SeqCst);
    }

    pub(crate) fn remove(&self, flags: i32) {
        self.counts.fetch_sub(weight(flags), SeqCst);
    }

    pub(crate) fn are_any(&self) -> bool {
        self.counts.load(SeqCst) != 0
    }

    pub(crate) fn are_written(&self) -> bool {
        self.counts.load(SeqCst) >> 32 != 0
    }

    fn are_guarded(&self) -> bool {
        self.guards.load(SeqCst) != 0
    }

    /// Whether a lease may begin: one for reading beside others that read.
    fn allow(&self, reads: bool) -> bool {
        let counts = self.counts.load(SeqCst);
        if reads { counts >> 32 == 0 } else { counts == 0 }
    }
}

/// An open file's guard of its inode, if it has one.
#[derive(Default, Debug)]
pub(crate) struct Guard(AtomicBool);

impl Guard {
    fn begin(&self, node: &Node) {
        if !self.0.swap(true, SeqCst) {
            node.opens.guards.fetch_add(1, SeqCst);
        }
    }

    pub(crate) fn end(&self, node: &Node) {
        if self.0.swap(false, SeqCst) {
            node.opens.guards.fetch_sub(1, SeqCst);
        }
    }
}

/// An open file. `EAGAIN`: the kernel is to open it.
pub(crate) fn opened(ctx: &OpCtx<'_>, node: &Node, flags: i32) -> Result<Arc<OpenFile>> {
    let file = OpenFile::new(node.clone(), flags);
    let is_client = ctx.session() != 0;
    if is_client && node.opens.are_guarded() { Err(Errno::EAGAIN) } else { Ok(file) }
}

impl Vfs {
    /// Keeps leases away while a file is cut by its path, which counts as an open for writing.
    /// `EAGAIN`: the kernel is to do it.
    pub fn open_to_cut(&self, ctx: &OpCtx<'_>, node: &Node) -> Result<Arc<OpenFile>> {
        opened(ctx, node, OFlags::WRONLY.bits().cast_signed())
    }
}

impl OpenFile {
    /// The kernel, which has this open file, may have a lease for reading, or for all, on its inode
    /// from now on until the file is closed. `EAGAIN`: there can be none now, others have the
    /// inode open past the kernel; or this one is no open file of the kernel's.
    pub fn guard(&self, reads: bool) -> Result<()> {
        let node = self.node();
        if !self.is_kernels() {
            return Err(Errno::EAGAIN);
        }
        self.guard.begin(node);
        drop(node.core.change_paths());
        node.core.let_go_of(node);
        if node.opens.allow(reads) { Ok(()) } else { Err(Errno::EAGAIN) }
    }
}
