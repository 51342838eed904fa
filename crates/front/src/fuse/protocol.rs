//! Numbers and fixed layouts of the kernel's FUSE protocol (`include/uapi/linux/fuse.h`, 7.45).
//!
//! Only what is used here, under the kernel's names without their `FUSE_` prefix. All integers are
//! in host byte order. Nothing in this file decides anything.

use super::records::{Dirent, EntryOut, InHeader, OutHeader};

/// Major version; there has been no other since 2005.
pub const MAJOR: u32 = 7;
/// The newest minor version known here.
pub const MINOR: u32 = 45;
/// The oldest minor version served: 7.36 (Linux 5.17) brought 64-bit INIT flags; Linux 6.1 has
/// 7.37.
pub const MINOR_MIN: u32 = 36;

/// Bytes of `struct fuse_in_header`.
pub const IN_HEADER_BYTES: usize = size_of::<InHeader>();
/// Bytes of `struct fuse_out_header`.
pub const OUT_HEADER_BYTES: usize = size_of::<OutHeader>();
/// Bytes of `struct fuse_entry_out`.
pub const ENTRY_BYTES: usize = size_of::<EntryOut>();
/// Bytes of `struct fuse_dirent` before the name.
pub const DIRENT_BYTES: usize = size_of::<Dirent>();

macro_rules! opcodes {
    ($($name:ident = $value:literal),* $(,)?) => {
        /// `enum fuse_opcode`.
        pub mod opcode {
            $(#[doc = concat!("`FUSE_", stringify!($name), "`")] pub const $name: u32 = $value;)*

            /// The name of an operation, without `FUSE_`.
            pub fn name(code: u32) -> Option<&'static str> {
                match code { $($name => Some(stringify!($name)),)* _ => None }
            }
        }
    };
}

opcodes! {
    LOOKUP = 1, FORGET = 2, GETATTR = 3, SETATTR = 4, READLINK = 5, SYMLINK = 6, MKNOD = 8,
    MKDIR = 9, UNLINK = 10, RMDIR = 11, RENAME = 12, LINK = 13, OPEN = 14, READ = 15, WRITE = 16,
    STATFS = 17, RELEASE = 18, FSYNC = 20, SETXATTR = 21, GETXATTR = 22, LISTXATTR = 23,
    REMOVEXATTR = 24, FLUSH = 25, INIT = 26, OPENDIR = 27, READDIR = 28, RELEASEDIR = 29,
    FSYNCDIR = 30, GETLK = 31, SETLK = 32, SETLKW = 33, ACCESS = 34, CREATE = 35, INTERRUPT = 36,
    DESTROY = 38, IOCTL = 39, NOTIFY_REPLY = 41, BATCH_FORGET = 42, FALLOCATE = 43,
    READDIRPLUS = 44, RENAME2 = 45, LSEEK = 46, COPY_FILE_RANGE = 47, SYNCFS = 50, TMPFILE = 51,
    STATX = 52, COPY_FILE_RANGE_64 = 53,
}

/// Flags of INIT, both words as one.
pub mod init {
    /// Reads of one file may be outstanding together.
    pub const ASYNC_READ: u64 = 1 << 0;
    /// POSIX locks are ours.
    pub const POSIX_LOCKS: u64 = 1 << 1;
    /// OPEN carries `O_TRUNC`.
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    /// Inodes that the kernel has forgotten are found by their node ids, as `.` in themselves.
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    /// WRITE may be larger than a page.
    pub const BIG_WRITES: u64 = 1 << 5;
    /// Direct I/O of a program's asynchronous calls is asynchronous.
    pub const ASYNC_DIO: u64 = 1 << 15;
    /// The umask is applied by us.
    pub const DONT_MASK: u64 = 1 << 6;
    /// flock(2) is ours.
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    /// The kernel can send IOCTL for directories.
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    /// Lookups and listings of one directory run together.
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    /// `max_pages` is valid.
    pub const MAX_PAGES: u64 = 1 << 22;
    /// The kernel asks for access control lists where it checks permissions.
    pub const POSIX_ACL: u64 = 1 << 20;
    /// Pages are dropped on request only.
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    /// Set-id bits and file capabilities are cleared by us.
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    /// SETXATTR has its longer form.
    pub const SETXATTR_EXT: u64 = 1 << 29;
    /// `flags2` is valid.
    pub const INIT_EXT: u64 = 1 << 30;
    /// Requests that create carry the group that matters for set-gid directories.
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    /// Shared mappings of direct-I/O files.
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// Reads and writes of an open file may go to another file, without the server.
    pub const PASSTHROUGH: u64 = 1 << 37;
    /// Requests in flight can be sent again on request.
    pub const HAS_RESEND: u64 = 1 << 39;
}

/// `fuse_setattr_in.valid`.
pub mod fattr {
    /// Mode is valid.
    pub const MODE: u32 = 1 << 0;
    /// Owner is valid.
    pub const UID: u32 = 1 << 1;
    /// Group is valid.
    pub const GID: u32 = 1 << 2;
    /// Size is valid.
    pub const SIZE: u32 = 1 << 3;
    /// Access time is valid.
    pub const ATIME: u32 = 1 << 4;
    /// Modification time is valid.
    pub const MTIME: u32 = 1 << 5;
    /// The handle is valid.
    pub const FH: u32 = 1 << 6;
    /// The access time is now.
    pub const ATIME_NOW: u32 = 1 << 7;
    /// The modification time is now.
    pub const MTIME_NOW: u32 = 1 << 8;
    /// Set-id bits go.
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `fuse_open_out.open_flags`.
pub mod fopen {
    /// Read and write go past the page cache.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// close(2) sends no FLUSH.
    pub const NOFLUSH: u32 = 1 << 5;
    /// Direct writes to one file may run together.
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    /// Reads and writes go to the file that `backing_id` names.
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// `fuse_open_in.open_flags`: set-id bits go with the truncation.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `fuse_lk_in.lk_flags`: flock(2).
pub const LK_FLOCK: u32 = 1 << 0;
/// `fuse_read_in.read_flags`: a process reads. Without it, the kernel fills a page.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// `fuse_write_in.write_flags`: pages of a mapping, written later by nobody in particular.
pub const WRITE_CACHE: u32 = 1 << 0;
/// `fuse_write_in.write_flags`: a process writes past the page cache. Without it, the kernel writes
/// out of pages, of which it may keep the last one locked until the reply.
pub const WRITE_LOCKOWNER: u32 = 1 << 1;
/// `fuse_write_in.write_flags`: set-id bits go.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `fuse_setxattr_in.setxattr_flags`: the set-gid bit goes with the access control list.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// `fuse_fsync_in.fsync_flags`: data only.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// Extension of a request: groups of the caller.
pub const EXT_GROUPS: u32 = 32;

/// In the number of a request that a former service had read (`FUSE_UNIQUE_RESEND`).
pub const UNIQUE_RESEND: u64 = 1 << 63;

/// `enum fuse_notify_code`.
pub mod notify {
    /// Drop attributes and pages of an inode.
    pub const INVAL_INODE: i32 = 2;
    /// Drop a name.
    pub const INVAL_ENTRY: i32 = 3;
    /// Put bytes into a file's pages.
    pub const STORE: i32 = 4;
    /// Send requests in flight again.
    pub const RESEND: i32 = 7;
}

/// `struct statx` bits that an [`Attr`](polylane_vfs::Attr) fills: `STATX_BASIC_STATS |
/// STATX_BTIME`.
pub const STATX_MASK: u32 = 0x7ff | 0x800;
