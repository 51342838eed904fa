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

    /// What `struct fuse_init_in` begins with in every version of the protocol.
    pub(super) struct InitVersion: 8 {
        0x00 major: U32,
        0x04 minor: U32,
    }

    /// What follows, up to the first flags.
    pub(super) struct InitWish: 8 {
        0x00 max_readahead: U32,
        0x04 flags: U32,
    }

    /// `struct fuse_init_out`.
    pub(super) struct InitOut: 64 {
        0x00 major: U32,
        0x04 minor: U32,
        0x08 max_readahead: U32,
        0x0c flags: U32,
        0x10 max_background: U16,
        0x12 congestion_threshold: U16,
        0x14 max_write: U32,
        0x18 time_gran: U32,
        0x1c max_pages: U16,
        0x1e map_alignment: U16,
        0x20 flags2: U32,
        0x24 max_stack_depth: U32,
        0x28 unused: [U32; 6],
    }

    /// `struct fuse_ext_header`.
    pub(super) struct ExtHeader: 8 {
        /// Of this header, too.
        0x00 size: U32,
        0x04 kind: U32,
    }

    /// `struct fuse_forget_in`.
    pub(super) struct ForgetIn: 8 {
        0x00 nlookup: U64,
    }

    /// `struct fuse_batch_forget_in`; as many `struct fuse_forget_one` follow.
    pub(super) struct BatchForgetIn: 8 {
        0x00 count: U32,
        0x04 dummy: U32,
    }

    /// `struct fuse_forget_one`.
    pub(super) struct ForgetOne: 16 {
        0x00 nodeid: U64,
        0x08 nlookup: U64,
    }

    /// `struct fuse_interrupt_in`.
    pub(super) struct InterruptIn: 8 {
        0x00 unique: U64,
    }

    /// `struct fuse_mknod_in`; the name follows.
    pub(super) struct MknodIn: 16 {
        0x00 mode: U32,
        0x04 rdev: U32,
        0x08 umask: U32,
        0x0c padding: U32,
    }

    /// `struct fuse_mkdir_in`; the name follows.
    pub(super) struct MkdirIn: 8 {
        0x00 mode: U32,
        0x04 umask: U32,
    }

    /// `struct fuse_rename_in`; both names follow.
    pub(super) struct RenameIn: 8 {
        0x00 newdir: U64,
    }

    /// `struct fuse_rename2_in`; both names follow.
    pub(super) struct Rename2In: 16 {
        0x00 newdir: U64,
        0x08 flags: U32,
        0x0c padding: U32,
    }

    /// `struct fuse_link_in`; the name follows.
    pub(super) struct LinkIn: 8 {
        0x00 oldnodeid: U64,
    }

    /// `struct fuse_open_in`.
    pub(super) struct OpenIn: 8 {
        0x00 flags: U32,
        0x04 open_flags: U32,
    }

    /// `struct fuse_create_in`; the name follows.
    pub(super) struct CreateIn: 16 {
        0x00 flags: U32,
        0x04 mode: U32,
        0x08 umask: U32,
        0x0c open_flags: U32,
    }

    /// `struct fuse_release_in`.
    pub(super) struct ReleaseIn: 24 {
        0x00 fh: U64,
        0x08 flags: U32,
        0x0c release_flags: U32,
        0x10 lock_owner: U64,
    }

    /// `struct fuse_flush_in`.
    pub(super) struct FlushIn: 24 {
        0x00 fh: U64,
        0x08 unused: U32,
        0x0c padding: U32,
        0x10 lock_owner: U64,
    }

    /// `struct fuse_fsync_in`.
    pub(super) struct FsyncIn: 16 {
        0x00 fh: U64,
        0x08 fsync_flags: U32,
        0x0c padding: U32,
    }

    /// `struct fuse_fallocate_in`.
    pub(crate) struct FallocateIn: 32 {
        0x00 fh: U64,
        0x08 offset: U64,
        0x10 length: U64,
        0x18 mode: U32,
        0x1c padding: U32,
    }

    /// `struct fuse_lseek_in`.
    pub(super) struct LseekIn: 24 {
        0x00 fh: U64,
        0x08 offset: U64,
        0x10 whence: U32,
        0x14 padding: U32,
    }

    /// `struct fuse_copy_file_range_in`.
    pub(super) struct CopyFileRangeIn: 56 {
        0x00 fh_in: U64,
        0x08 off_in: U64,
        0x10 nodeid_out: U64,
        0x18 fh_out: U64,
        0x20 off_out: U64,
        0x28 len: U64,
        0x30 flags: U64,
    }

    /// `struct fuse_access_in`.
    pub(super) struct AccessIn: 8 {
        0x00 mask: U32,
        0x04 padding: U32,
    }

    /// `struct fuse_setxattr_in` as it was before `FUSE_SETXATTR_EXT`; the name, a NUL and the
    /// value follow.
    pub(super) struct SetxattrIn: 8 {
        0x00 size: U32,
        0x04 flags: U32,
    }

    /// What `FUSE_SETXATTR_EXT` adds to it.
    pub(super) struct SetxattrExt: 8 {
        0x00 setxattr_flags: U32,
        0x04 padding: U32,
    }

    /// `struct fuse_getxattr_in`; of GETXATTR the name follows.
    pub(super) struct GetxattrIn: 8 {
        0x00 size: U32,
        0x04 padding: U32,
    }

    /// `struct fuse_ioctl_in`; `in_size` bytes follow.
    pub(super) struct IoctlIn: 32 {
        0x00 fh: U64,
        0x08 flags: U32,
        0x0c cmd: U32,
        0x10 arg: U64,
        0x18 in_size: U32,
        0x1c out_size: U32,
    }

    /// `struct fuse_ioctl_out`; bytes for the caller follow.
    pub(super) struct IoctlOut: 16 {
        0x00 result: I32,
        0x04 flags: U32,
        0x08 in_iovs: U32,
        0x0c out_iovs: U32,
    }

    /// `struct fstrim_range`, of `FITRIM`.
    pub(super) struct FstrimRange: 24 {
        0x00 start: U64,
        0x08 len: U64,
        0x10 minlen: U64,
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

    /// `struct fuse_lk_out`, which is one `struct fuse_file_lock`.
    pub(super) struct LkOut: 24 {
        0x00 start: U64,
        0x08 end: U64,
        0x10 kind: U32,
        0x14 pid: U32,
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
    pub(crate) struct AttrOut: 104 {
        0x00 attr_valid: U64,
        0x08 attr_valid_nsec: U32,
        0x0c dummy: U32,
        0x10 attr: AttrRecord,
    }

    /// `struct fuse_entry_out`.
    pub(crate) struct EntryOut: 128 {
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
    pub(crate) struct OpenOut: 16 {
        0x00 fh: U64,
        0x08 open_flags: U32,
        0x0c backing_id: U32,
    }

    /// `struct fuse_write_out`, `struct fuse_getxattr_out`.
    pub(super) struct CountOut: 8 {
        0x00 size: U32,
        0x04 padding: U32,
    }

    /// `struct fuse_lseek_out`, `struct fuse_copy_file_range_out`.
    pub(super) struct LongOut: 8 {
        0x00 value: U64,
    }

    /// `struct fuse_statfs_out`.
    pub(crate) struct StatfsOut: 80 {
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
