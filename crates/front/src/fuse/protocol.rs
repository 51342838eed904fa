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

/// Extension of a request: groups of the caller.
pub const EXT_GROUPS: u32 = 32;

/// In the number of a request that a former service had read (`FUSE_UNIQUE_RESEND`).
pub const UNIQUE_RESEND: u64 = 1 << 63;

/// `enum fuse_notify_code`.
pub mod notify {
    /// Drop attributes and access lists of an inode, and pages unless the offset is below 0.
    pub const INVAL_INODE: i32 = 2;
    /// Drop a name.
    pub const INVAL_ENTRY: i32 = 3;
    /// Flag of it (7.38): look it up before it is believed again, instead.
    pub const EXPIRE_ONLY: u32 = 1;
    /// Put bytes into a file's pages.
    pub const STORE: i32 = 4;
    /// Send requests in flight again.
    pub const RESEND: i32 = 7;
}

/// `struct statx` bits that an [`Attr`](polylane_vfs::Attr) fills: `STATX_BASIC_STATS |
/// STATX_BTIME`.
pub const STATX_MASK: u32 = 0x7ff | 0x800;
