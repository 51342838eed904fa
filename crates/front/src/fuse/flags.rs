//! Flags of the kernel's FUSE protocol, under its names without their prefixes. The kernel may set
//! others than are known here; they are kept.

use serde::{Deserialize, Serialize};

/// Flags of INIT, both words as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InitFlags(u64);

bitflags::bitflags! {
    impl InitFlags: u64 {
        /// Reads of one file may be outstanding together.
        const ASYNC_READ = 1 << 0;
        /// POSIX locks are ours.
        const POSIX_LOCKS = 1 << 1;
        /// OPEN carries `O_TRUNC`.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// Inodes that the kernel has forgotten are found by their node ids, as `.` in themselves.
        const EXPORT_SUPPORT = 1 << 4;
        /// WRITE may be larger than a page.
        const BIG_WRITES = 1 << 5;
        /// Direct I/O of a program's asynchronous calls is asynchronous.
        const ASYNC_DIO = 1 << 15;
        /// The umask is applied by us.
        const DONT_MASK = 1 << 6;
        /// flock(2) is ours.
        const FLOCK_LOCKS = 1 << 10;
        /// The kernel can send IOCTL for directories.
        const HAS_IOCTL_DIR = 1 << 11;
        /// Lookups and listings of one directory run together.
        const PARALLEL_DIROPS = 1 << 18;
        /// `max_pages` is valid.
        const MAX_PAGES = 1 << 22;
        /// The kernel asks for access control lists where it checks permissions.
        const POSIX_ACL = 1 << 20;
        /// Pages are dropped on request only.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// Set-id bits and file capabilities are cleared by us.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR has its longer form.
        const SETXATTR_EXT = 1 << 29;
        /// `flags2` is valid.
        const INIT_EXT = 1 << 30;
        /// Requests that create carry the group that matters for set-gid directories.
        const CREATE_SUPP_GROUP = 1 << 34;
        /// Shared mappings of direct-I/O files.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Reads and writes of an open file may go to another file, without the server.
        const PASSTHROUGH = 1 << 37;
        /// Requests in flight can be sent again on request.
        const HAS_RESEND = 1 << 39;
        /// Mounts can be id-mapped; a request that makes nothing names no user.
        const ALLOW_IDMAP = 1 << 40;
        const _ = !0;
    }

    /// `fuse_setattr_in.valid`, `FATTR_*`: what is meant.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct SetattrFields: u32 {
        /// Mode is valid.
        const MODE = 1 << 0;
        /// Owner is valid.
        const UID = 1 << 1;
        /// Group is valid.
        const GID = 1 << 2;
        /// Size is valid.
        const SIZE = 1 << 3;
        /// Access time is valid.
        const ATIME = 1 << 4;
        /// Modification time is valid.
        const MTIME = 1 << 5;
        /// The handle is valid.
        const FH = 1 << 6;
        /// The access time is now.
        const ATIME_NOW = 1 << 7;
        /// The modification time is now.
        const MTIME_NOW = 1 << 8;
        /// The change time is valid.
        const CTIME = 1 << 10;
        /// Set-id bits go.
        const KILL_SUIDGID = 1 << 11;
        const _ = !0;
    }

    /// `fuse_open_out.open_flags`, `FOPEN_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct OpenedFlags: u32 {
        /// Read and write go past the page cache.
        const DIRECT_IO = 1 << 0;
        /// The kernel drops none of the pages that it has of the file.
        const KEEP_CACHE = 1 << 1;
        /// close(2) sends no FLUSH.
        const NOFLUSH = 1 << 5;
        /// Direct writes to one file may run together.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
        /// Reads and writes go to the file that `backing_id` names.
        const PASSTHROUGH = 1 << 7;
    }

    /// `fuse_open_in.open_flags`, `FUSE_OPEN_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct OpenFlags: u32 {
        /// Set-id bits go with the truncation.
        const KILL_SUIDGID = 1 << 0;
        const _ = !0;
    }

    /// `fuse_lk_in.lk_flags`, `FUSE_LK_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct LockFlags: u32 {
        /// flock(2).
        const FLOCK = 1 << 0;
        const _ = !0;
    }

    /// `fuse_read_in.read_flags`, `FUSE_READ_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct ReadFlags: u32 {
        /// A process reads. Without it, the kernel fills a page.
        const LOCKOWNER = 1 << 1;
        const _ = !0;
    }

    /// `fuse_write_in.write_flags`, `FUSE_WRITE_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct WriteFlags: u32 {
        /// Pages of a mapping, written later by no process in particular.
        const CACHE = 1 << 0;
        /// A process writes past the page cache. Without it, the kernel writes out of pages, of
        /// which it may keep the last one locked until the reply.
        const LOCKOWNER = 1 << 1;
        /// Set-id bits go.
        const KILL_SUIDGID = 1 << 2;
        const _ = !0;
    }

    /// `fuse_setxattr_in.setxattr_flags`, `FUSE_SETXATTR_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct SetxattrFlags: u32 {
        /// The set-gid bit goes with the access control list.
        const ACL_KILL_SGID = 1 << 0;
        const _ = !0;
    }

    /// `fuse_fsync_in.fsync_flags`, `FUSE_FSYNC_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct FsyncFlags: u32 {
        /// Data only.
        const FDATASYNC = 1 << 0;
        const _ = !0;
    }
}
