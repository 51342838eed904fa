//! Why entries of the stream were not applied, until a sync tells: their programs were told that
//! all was well.

use polylane_base::sync::atomic::{AtomicI32, Ordering};
use polylane_base::{Errno, Result};

use crate::shm::files::OpenFiles;

/// The error that the next sync tells; 0: none. Thread-safe.
#[derive(Default)]
pub(super) struct DeferredErrors(AtomicI32);

impl DeferredErrors {
    /// Keeps a failure, which a file may have been lost by.
    pub(super) fn note(&self, files: &OpenFiles, errno: Errno) {
        files.note_lost();
        self.0.store(errno.0, Ordering::Release);
    }

    /// Tells a failure, once.
    pub(super) fn take(&self) -> Result<()> {
        match self.0.swap(0, Ordering::AcqRel) {
            0 => Ok(()),
            errno => Err(Errno(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use polylane_base::sync::Arc;
    use polylane_ipc::stream::STREAMED_HANDLE;

    use super::*;
    use crate::shm::request::Handle;

    #[test]
    fn a_failure_is_told_once_and_makes_unknown_files_lost_ones() {
        let (files, errors) = (OpenFiles::new(Arc::default()), DeferredErrors::default());
        let unknown = |index| files.node(Handle { index, generation: 1 }).unwrap_err();
        assert_eq!([unknown(0), unknown(STREAMED_HANDLE)], [Errno::EBADF; 2]);
        assert_eq!(errors.take(), Ok(()));
        errors.note(&files, Errno::EROFS);
        assert_eq!([unknown(0), unknown(STREAMED_HANDLE)], [Errno::EBADF, Errno::EIO]);
        assert_eq!(errors.take(), Err(Errno::EROFS));
        assert_eq!(errors.take(), Ok(()));
    }
}
