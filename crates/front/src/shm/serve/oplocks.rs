//! Leases of fcntl(2), which the kernel keeps: see `vfs::oplock`.

use polylane_base::Errno;
use polylane_base::sync::Arc;
use polylane_vfs::{Kind, Node, OpenFile};

use super::{Answer, Call, Failure, done};
use crate::shm::request::Handle;

impl Call<'_> {
    /// The kernel may have a lease on the file that it opened from now on.
    pub(super) fn oplock(&mut self, handle: Handle, reads: bool) -> Answer {
        let file = self.session.files.file(handle)?;
        self.blocking()?;
        file.guard(reads)?;
        Ok(done(0))
    }

    /// To be called before a file is cut by its path: what to hold until it is.
    pub(super) fn open_to_cut(&self, node: &Node) -> Result<Option<Arc<OpenFile>>, Failure> {
        let ctx = self.ctx();
        match node.kind() {
            Kind::File => Ok(Some(self.vfs().open_to_cut(&ctx, node).map_err(left_to_kernel)?)),
            _ => Ok(None),
        }
    }
}

/// An open that was refused because of a lease is the kernel's, which breaks the lease.
pub(super) fn left_to_kernel(refused: impl Into<Failure>) -> Failure {
    match refused.into() {
        Failure::Errno(Errno::EAGAIN) => Failure::UseKernel,
        refused => refused,
    }
}
