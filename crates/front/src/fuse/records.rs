//! The kernel's FUSE structures (`include/uapi/linux/fuse.h`, 7.45), under its names without their
//! `fuse_` prefix, and their fields under the kernel's. All integers are in host byte order.

use zerocopy::native_endian::{I32, I64, U16, U32, U64};

polylane_base::record! {
    /// `struct fuse_in_header`.
    pub(crate) struct InHeader: 40 {
        0x00 len: U32,
        0x04 opcode: U32,
        0x08 unique: U64,
        0x10 nodeid: U64,
        0x18 uid: U32,
        0x1c gid: U32,
        0x20 pid: U32,
        /// In units of 8 bytes.
        0x24 total_extlen: U16,
        0x26 padding: U16,
    }

    /// `struct fuse_out_header`.
    pub(super) struct OutHeader: 16 {
        0x00 len: U32,
        0x04 error: I32,
        0x08 unique: U64,
    }

    /// `struct fuse_ext_header`.
    pub(super) struct ExtHeader: 8 {
        /// Of this header, too.
        0x00 size: U32,
        0x04 kind: U32,
    }

    /// `struct fuse_setattr_in`.
    pub(super) struct Setattr: 88 {
        0x00 valid: U32,
        0x04 padding: U32,
        0x08 fh: U64,
        0x10 size: U64,
        0x18 lock_owner: U64,
        0x20 atime: U64,
        0x28 mtime: U64,
        0x30 ctime: U64,
        0x38 atimensec: U32,
        0x3c mtimensec: U32,
        0x40 ctimensec: U32,
        0x44 mode: U32,
        0x48 unused4: U32,
        0x4c uid: U32,
        0x50 gid: U32,
        0x54 unused5: U32,
    }

    /// `struct fuse_read_in`, `struct fuse_write_in`: they have one layout.
    pub(crate) struct Transfer: 40 {
        0x00 fh: U64,
        0x08 offset: U64,
        0x10 size: U32,
        /// `read_flags` or `write_flags`.
        0x14 transfer_flags: U32,
        0x18 lock_owner: U64,
        0x20 flags: U32,
        0x24 padding: U32,
    }

    /// `struct fuse_lk_in`.
    pub(super) struct Lk: 48 {
        0x00 fh: U64,
        0x08 owner: U64,
        0x10 start: U64,
        0x18 end: U64,
        0x20 kind: U32,
        0x24 pid: U32,
        0x28 lk_flags: U32,
        0x2c padding: U32,
    }

    /// `struct fuse_attr`.
    pub(crate) struct AttrRecord: 88 {
        0x00 ino: U64,
        0x08 size: U64,
        0x10 blocks: U64,
        0x18 atime: I64,
        0x20 mtime: I64,
        0x28 ctime: I64,
        0x30 atimensec: U32,
        0x34 mtimensec: U32,
        0x38 ctimensec: U32,
        0x3c mode: U32,
        0x40 nlink: U32,
        0x44 uid: U32,
        0x48 gid: U32,
        0x4c rdev: U32,
        0x50 blksize: U32,
        0x54 flags: U32,
    }

    /// `struct fuse_attr_out`.
    pub(super) struct AttrOut: 104 {
        0x00 attr_valid: U64,
        0x08 attr_valid_nsec: U32,
        0x0c dummy: U32,
        0x10 attr: AttrRecord,
    }

    /// `struct fuse_entry_out`.
    pub(super) struct EntryOut: 128 {
        0x00 nodeid: U64,
        0x08 generation: U64,
        0x10 entry_valid: U64,
        0x18 attr_valid: U64,
        0x20 entry_valid_nsec: U32,
        0x24 attr_valid_nsec: U32,
        0x28 attr: AttrRecord,
    }

    /// `struct fuse_dirent` before its name.
    pub(super) struct Dirent: 24 {
        0x00 ino: U64,
        0x08 off: U64,
        0x10 namelen: U32,
        0x14 kind: U32,
    }

    /// `struct fuse_open_out`.
    pub(super) struct OpenOut: 16 {
        0x00 fh: U64,
        0x08 open_flags: U32,
        0x0c backing_id: U32,
    }

    /// `struct fuse_statfs_out`.
    pub(super) struct StatfsOut: 80 {
        0x00 blocks: U64,
        0x08 bfree: U64,
        0x10 bavail: U64,
        0x18 files: U64,
        0x20 ffree: U64,
        0x28 bsize: U32,
        0x2c namelen: U32,
        0x30 frsize: U32,
        0x34 padding: U32,
        0x38 spare: [U32; 6],
    }

    /// `struct fuse_sx_time`.
    pub(super) struct SxTime: 16 {
        0x00 tv_sec: I64,
        0x08 tv_nsec: U32,
        0x0c reserved: U32,
    }

    /// `struct fuse_statx_out`.
    pub(super) struct StatxOut: 288 {
        0x000 attr_valid: U64,
        0x008 attr_valid_nsec: U32,
        0x00c flags: U32,
        0x010 spare: [U64; 2],
        0x020 stat: Statx,
    }

    /// `struct fuse_statx`.
    pub(super) struct Statx: 256 {
        0x00 mask: U32,
        0x04 blksize: U32,
        0x08 attributes: U64,
        0x10 nlink: U32,
        0x14 uid: U32,
        0x18 gid: U32,
        0x1c mode: U16,
        0x1e spare0: U16,
        0x20 ino: U64,
        0x28 size: U64,
        0x30 blocks: U64,
        0x38 attributes_mask: U64,
        0x40 atime: SxTime,
        0x50 btime: SxTime,
        0x60 ctime: SxTime,
        0x70 mtime: SxTime,
        0x80 rdev_major: U32,
        0x84 rdev_minor: U32,
        0x88 dev_major: U32,
        0x8c dev_minor: U32,
        0x90 spare2: [U64; 14],
    }

    /// `struct fuse_notify_inval_inode_out`.
    pub(super) struct InvalInode: 24 {
        0x00 ino: U64,
        0x08 off: U64,
        /// 0: to the end.
        0x10 len: U64,
    }

    /// `struct fuse_notify_inval_entry_out`; the name and a NUL follow.
    pub(super) struct InvalEntry: 16 {
        0x00 parent: U64,
        0x08 namelen: U32,
        0x0c flags: U32,
    }

    /// `struct fuse_notify_store_out`; `size` bytes follow.
    pub(super) struct Store: 24 {
        0x00 nodeid: U64,
        0x08 offset: U64,
        0x10 size: U32,
        0x14 padding: U32,
    }
}
