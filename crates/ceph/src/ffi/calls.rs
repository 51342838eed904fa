//! The functions of libcephfs, as `libcephfs.h` of Ceph 16.2 (`LIBCEPHFS_VER` 10) declares them;
//! later releases keep them.
#![expect(unsafe_code, reason = "UNSAFETY: functions of a C library, found by name")]

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use libc::{dev_t, dirent64, flock64, gid_t, mode_t, off_t, size_t, statvfs64, timespec, uid_t};
use polylane_base::{Errno, Result};

use super::library::{Missing, library};

/// The library by the name that its packages give it.
pub(crate) const LIBRARY: &str = "libcephfs.so.2";

/// `AT_SYMLINK_NOFOLLOW` is what the calls by inode do anyway.
pub(super) const NO_FLAGS: c_uint = 0;

/// Everything of a [`Stat`] but its version.
pub(super) const WANT: c_uint = 0x0fff;

/// Opaque objects of the library.
#[repr(C)]
pub(super) struct RawMount([u8; 0]);
#[repr(C)]
pub(super) struct RawInode([u8; 0]);
#[repr(C)]
pub(super) struct RawFile([u8; 0]);
#[repr(C)]
pub(super) struct RawDir([u8; 0]);
#[repr(C)]
pub(super) struct RawPerms([u8; 0]);

/// `struct ceph_statx`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Stat {
    mask: u32,
    pub(crate) blksize: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u16,
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    /// The snapshot that the inode is of.
    pub(crate) dev: dev_t,
    pub(crate) rdev: dev_t,
    pub(crate) atime: timespec,
    pub(crate) ctime: timespec,
    pub(crate) mtime: timespec,
    pub(crate) btime: timespec,
    version: u64,
}

const _: () = assert!(size_of::<Stat>() == 136 && std::mem::offset_of!(Stat, ino) == 24);

impl Stat {
    /// All zeros.
    pub(crate) fn empty() -> Stat {
        // SAFETY: integers and times of integers; zeros are values of them.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    /// Whether the inode is a directory.
    pub(crate) fn is_dir(&self) -> bool {
        u32::from(self.mode) & libc::S_IFMT == libc::S_IFDIR
    }

    /// Whether the inode is a regular file.
    pub(crate) fn is_file(&self) -> bool {
        u32::from(self.mode) & libc::S_IFMT == libc::S_IFREG
    }
}

/// Which fields of a [`Stat`] a `setattr` takes: `CEPH_SETATTR_*`.
pub(crate) mod change {
    pub(crate) const MODE: i32 = 1;
    pub(crate) const UID: i32 = 1 << 1;
    pub(crate) const GID: i32 = 1 << 2;
    pub(crate) const MTIME: i32 = 1 << 3;
    pub(crate) const ATIME: i32 = 1 << 4;
    pub(crate) const SIZE: i32 = 1 << 5;
}

library! {
    Calls of LIBRARY;
    fn ceph_create(mount: *mut *mut RawMount, id: *const c_char) -> c_int;
    fn ceph_release(mount: *mut RawMount) -> c_int;
    fn ceph_conf_read_file(mount: *mut RawMount, path: *const c_char) -> c_int;
    fn ceph_conf_set(mount: *mut RawMount, name: *const c_char, value: *const c_char) -> c_int;
    fn ceph_conf_get(
        mount: *mut RawMount,
        name: *const c_char,
        into: *mut c_char,
        len: size_t,
    ) -> c_int;
    fn ceph_init(mount: *mut RawMount) -> c_int;
    fn ceph_select_filesystem(mount: *mut RawMount, name: *const c_char) -> c_int;
    fn ceph_set_mount_timeout(mount: *mut RawMount, seconds: u32) -> c_int;
    fn ceph_set_uuid(mount: *mut RawMount, uuid: *const c_char);
    fn ceph_start_reclaim(mount: *mut RawMount, uuid: *const c_char, flags: c_uint) -> c_int;
    fn ceph_finish_reclaim(mount: *mut RawMount);
    fn ceph_mount(mount: *mut RawMount, root: *const c_char) -> c_int;
    fn ceph_unmount(mount: *mut RawMount) -> c_int;
    fn ceph_abort_conn(mount: *mut RawMount) -> c_int;
    fn ceph_sync_fs(mount: *mut RawMount) -> c_int;
    fn ceph_userperm_new(
        uid: uid_t,
        gid: gid_t,
        groups: c_int,
        list: *mut gid_t,
    ) -> *mut RawPerms;
    fn ceph_userperm_destroy(perms: *mut RawPerms);
    fn ceph_ll_lookup_root(mount: *mut RawMount, node: *mut *mut RawInode) -> c_int;
    fn ceph_ll_lookup_inode(mount: *mut RawMount, ino: u64, node: *mut *mut RawInode) -> c_int;
    fn ceph_ll_lookup(
        mount: *mut RawMount,
        dir: *mut RawInode,
        name: *const c_char,
        node: *mut *mut RawInode,
        stat: *mut Stat,
        want: c_uint,
        flags: c_uint,
        perms: *const RawPerms,
    ) -> c_int;
    fn ceph_ll_put(mount: *mut RawMount, node: *mut RawInode) -> c_int;
    fn ceph_ll_getattr(
        mount: *mut RawMount,
        node: *mut RawInode,
        stat: *mut Stat,
        want: c_uint,
        flags: c_uint,
        perms: *const RawPerms,
    ) -> c_int;
    fn ceph_ll_setattr(
        mount: *mut RawMount,
        node: *mut RawInode,
        stat: *mut Stat,
        mask: c_int,
        perms: *const RawPerms,
    ) -> c_int;
    fn ceph_ll_open(
        mount: *mut RawMount,
        node: *mut RawInode,
        flags: c_int,
        file: *mut *mut RawFile,
        perms: *const RawPerms,
    ) -> c_int;
    fn ceph_ll_read(
        mount: *mut RawMount,
        file: *mut RawFile,
        offset: i64,
        len: u64,
        into: *mut c_char,
    ) -> c_int;
    fn ceph_ll_write(
        mount: *mut RawMount,
        file: *mut RawFile,
        offset: i64,
        len: u64,
        from: *const c_char,
    ) -> c_int;
    fn ceph_ll_fsync(mount: *mut RawMount, file: *mut RawFile, data_only: c_int) -> c_int;
    fn ceph_ll_sync_inode(mount: *mut RawMount, node: *mut RawInode, data_only: c_int) -> c_int;
    fn ceph_ll_fallocate(
        mount: *mut RawMount,
        file: *mut RawFile,
        mode: c_int,
        offset: i64,
        len: i64,
    ) -> c_int;
    fn ceph_ll_setlk(
        mount: *mut RawMount,
        file: *mut RawFile,
        lock: *mut flock64,
        owner: u64,
        sleeps: c_int,
    ) -> c_int;
    fn ceph_ll_getlk(
        mount: *mut RawMount,
        file: *mut RawFile,
        lock: *mut flock64,
        owner: u64,
    ) -> c_int;
    fn ceph_ll_close(mount: *mut RawMount, file: *mut RawFile) -> c_int;
    fn ceph_ll_getxattr(
        mount: *mut RawMount,
        node: *mut RawInode,
        name: *const c_char,
        into: *mut c_void,
        len: size_t,
        perms: *const RawPerms,
    ) -> c_int;
    fn ceph_ll_setxattr(
        mount: *mut RawMount,
        node: *mut RawInode,
        name: *const c_char,
        value: *const c_void,
        len: size_t,
        flags: c_int,
        perms: *const RawPerms,
    ) -> c_int;
    fn ceph_ll_listxattr(
        mount: *mut RawMount,
        node: *mut RawInode,
        into: *mut c_char,
        len: size_t,
        needed: *mut size_t,
        perms: *const RawPerms,
    ) -> c_int;
    fn ceph_ll_removexattr(
        mount: *mut RawMount,
        node: *mut RawInode,
        name: *const c_char,
        perms: *const RawPerms,
    ) -> c_int;
    fn ceph_ll_create(
        mount: *mut RawMount,
        dir: *mut RawInode,
        name: *const c_char,
        mode: mode_t,
        flags: c_int,
        node: *mut *mut RawInode,
        file: *mut *mut RawFile,
        stat: *mut Stat,
        want: c_uint,
        lookup_flags: c_uint,
        perms: *const RawPerms,
    ) -> c_int;
    fn ceph_ll_mknod(
        mount: *mut RawMount,
        dir: *mut RawInode,
        name: *const c_char,
        mode: mode_t,
        rdev: dev_t,
        node: *mut *mut RawInode,
        stat: *mut Stat,
        want: c_uint,
        flags: c_uint,
        perms: *const RawPerms,
    ) -> c_int;
    fn ceph_ll_mkdir(
        mount: *mut RawMount,
        dir: *mut RawInode,
        name: *const c_char,
        mode: mode_t,
        node: *mut *mut RawInode,
        stat: *mut Stat,
        want: c_uint,
        flags: c_uint,
        perms: *const RawPerms,
    ) -> c_int;
    fn ceph_ll_symlink(
        mount: *mut RawMount,
        dir: *mut RawInode,
        name: *const c_char,
        target: *const c_char,
        node: *mut *mut RawInode,
        stat: *mut Stat,
        want: c_uint,
        flags: c_uint,
        perms: *const RawPerms,
    ) -> c_int;
    fn ceph_ll_link(
        mount: *mut RawMount,
        node: *mut RawInode,
        dir: *mut RawInode,
        name: *const c_char,
        perms: *const RawPerms,
    ) -> c_int;
    fn ceph_ll_unlink(
        mount: *mut RawMount,
        dir: *mut RawInode,
        name: *const c_char,
        perms: *const RawPerms,
    ) -> c_int;
    fn ceph_ll_rmdir(
        mount: *mut RawMount,
        dir: *mut RawInode,
        name: *const c_char,
        perms: *const RawPerms,
    ) -> c_int;
    fn ceph_ll_rename(
        mount: *mut RawMount,
        from_dir: *mut RawInode,
        from: *const c_char,
        to_dir: *mut RawInode,
        to: *const c_char,
        perms: *const RawPerms,
    ) -> c_int;
    fn ceph_ll_readlink(
        mount: *mut RawMount,
        node: *mut RawInode,
        into: *mut c_char,
        len: size_t,
        perms: *const RawPerms,
    ) -> c_int;
    fn ceph_ll_statfs(mount: *mut RawMount, node: *mut RawInode, into: *mut statvfs64) -> c_int;
    fn ceph_ll_opendir(
        mount: *mut RawMount,
        node: *mut RawInode,
        dir: *mut *mut RawDir,
        perms: *const RawPerms,
    ) -> c_int;
    fn ceph_ll_releasedir(mount: *mut RawMount, dir: *mut RawDir) -> c_int;
    fn ceph_seekdir(mount: *mut RawMount, dir: *mut RawDir, offset: off_t);
    fn ceph_readdirplus_r(
        mount: *mut RawMount,
        dir: *mut RawDir,
        entry: *mut dirent64,
        stat: *mut Stat,
        want: c_uint,
        flags: c_uint,
        node: *mut *mut RawInode,
    ) -> c_int;
}

/// Whether all that is used is there.
pub(crate) fn check() -> Result<(), Missing> {
    Calls::load().map(drop)
}

/// What a client is told that the cluster has barred from itself (its blocklist).
pub(crate) const BARRED: Errno = Errno(libc::ESHUTDOWN);

/// What this process does when libcephfs says that.
static ON_BARRED: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// From now on this is called when the cluster has barred this process' client: nothing of it can
/// succeed any more. A second call changes nothing.
pub fn on_barred(act: impl Fn() + Send + Sync + 'static) {
    let _ = ON_BARRED.set(Box::new(act));
}

pub(super) fn said(result: c_int) -> Result<usize> {
    let said = usize::try_from(result).map_err(|_| Errno(result.wrapping_neg()));
    if said == Err(BARRED)
        && let Some(act) = ON_BARRED.get()
    {
        act();
    }
    said
}

pub(super) fn c_string(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| Errno::EINVAL)
}
