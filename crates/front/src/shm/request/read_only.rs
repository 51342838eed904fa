//! What a read-only attachment leaves to the kernel.

use super::FileRequest;

impl FileRequest<'_> {
    /// Whether a read-only mount is in its way, or shows by it. What goes by a handle that may be
    /// written to is not: another mount gave that.
    pub(in crate::shm) fn is_of_writable_mount(&self) -> bool {
        const CHANGES: i32 = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_TMPFILE;
        match self {
            FileRequest::Open { flags, .. } => flags & CHANGES & !libc::O_DIRECTORY != 0,
            FileRequest::Access { mask, .. } => mask & libc::W_OK as u32 != 0,
            FileRequest::Mkdir { .. }
            | FileRequest::Mknod { .. }
            | FileRequest::Symlink { .. }
            | FileRequest::Link { .. }
            | FileRequest::Unlink { .. }
            | FileRequest::Rename { .. }
            | FileRequest::Setattr { .. }
            | FileRequest::Setxattr { .. }
            | FileRequest::Removexattr { .. }
            | FileRequest::Lease { .. }
            | FileRequest::Statfs => true,
            _ => false,
        }
    }
}
