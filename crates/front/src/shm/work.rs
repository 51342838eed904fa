//! What requests take of the files' own host, by which it is told whether they will take long.

use polylane_vfs::fs::Work;

use super::request::FileRequest;

impl FileRequest<'_> {
    /// What of the files' own host it takes, if that can be long, but for syncs.
    pub(super) fn work(&self) -> Option<Work> {
        use FileRequest as R;
        match self {
            R::Read { .. } => Some(Work::Read),
            R::Write { .. } | R::CopyRange { .. } | R::Fallocate { .. } => Some(Work::Write),
            R::Stat { .. } | R::Fstat { .. } | R::Access { .. } | R::Readlink { .. } => {
                Some(Work::Look)
            }
            R::Seek { .. } | R::Statfs | R::Getxattr { .. } | R::Listxattr { .. } => {
                Some(Work::Look)
            }
            R::OpenDir { .. } | R::Readdir { .. } => Some(Work::Look),
            R::Open { .. } | R::Mkdir { .. } | R::Mknod { .. } | R::Symlink { .. } => {
                Some(Work::Change)
            }
            R::Link { .. } | R::Unlink { .. } | R::Rename { .. } | R::Setattr { .. } => {
                Some(Work::Change)
            }
            R::Setxattr { .. } | R::Removexattr { .. } => Some(Work::Change),
            R::Ping { .. } | R::Close { .. } | R::Fsync { .. } | R::Sync => None,
            R::Lock(_) | R::GetLock(_) | R::Cancel { .. } | R::Redeem { .. } => None,
            R::ShareAll | R::Expose { .. } | R::ExposeAll { .. } | R::SetFlags { .. } => None,
            R::Lease { .. } | R::Extend { .. } | R::Oplock { .. } => None,
        }
    }
}
