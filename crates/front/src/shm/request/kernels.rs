//! What is left to the kernel of a client with a read-only attachment, and of one with other
//! numbers of users and groups than the lane's tenant has.

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

    /// Whether it names users or groups, or its effect depends on what the client's capabilities
    /// are for. What is done under a lease names owners, too.
    pub(in crate::shm) fn is_of_owners(&self) -> bool {
        /// With it a mode says what a group is given, which members and some capabilities may.
        const GIVES_GROUP: u32 = libc::S_ISGID;
        match self {
            FileRequest::Setattr { set, .. } => {
                set.uid.is_some() || set.gid.is_some() || set.perm.is_some()
            }
            FileRequest::Open { flags, perm, .. } => {
                flags & libc::O_CREAT != 0 && perm & GIVES_GROUP != 0
            }
            FileRequest::Mknod { mode, .. } => mode & GIVES_GROUP != 0,
            FileRequest::Getxattr { name, .. } => !name.starts_with(b"user."),
            FileRequest::Setxattr { .. }
            | FileRequest::Removexattr { .. }
            | FileRequest::Lease { .. } => true,
            _ => false,
        }
    }

    /// Whether the kernel can do it by the same path.
    pub(in crate::shm) fn is_by_path(&self) -> bool {
        matches!(
            self,
            FileRequest::Open { .. }
                | FileRequest::Stat { .. }
                | FileRequest::Access { .. }
                | FileRequest::Mkdir { .. }
                | FileRequest::Mknod { .. }
                | FileRequest::Symlink { .. }
                | FileRequest::Link { .. }
                | FileRequest::Unlink { .. }
                | FileRequest::Rename { .. }
                | FileRequest::Readlink { .. }
                | FileRequest::OpenDir { .. }
                | FileRequest::Setattr { .. }
                | FileRequest::Getxattr { .. }
                | FileRequest::Listxattr { .. }
        )
    }
}
