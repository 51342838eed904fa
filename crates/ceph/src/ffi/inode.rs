//! Inodes of a mounted client, and their names.
#![expect(unsafe_code, reason = "UNSAFETY: calls of a C library, whose pointers stay in here")]

use std::ffi::{CString, c_int};
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

use libc::statvfs64;
use polylane_base::sync::Arc;
use polylane_base::sync::atomic::Ordering;
use polylane_base::{Errno, Result};

use super::calls::{NO_FLAGS, RawInode, RawMount, Stat, WANT, c_string, said};
use super::file::{DirStream, OpenFile};
use super::mount::{Caller, Counted, Mount};
use crate::counters::Kind;

/// An inode, held.
pub(crate) struct Inode {
    mount: Arc<Mount>,
    raw: NonNull<RawInode>,
}

// SAFETY: a reference that the client counts under its lock.
unsafe impl Send for Inode {}
// SAFETY: as above.
unsafe impl Sync for Inode {}

impl Drop for Inode {
    fn drop(&mut self) {
        self.mount.counters.inodes.fetch_sub(1, Ordering::Relaxed);
        let (calls, mount, node) = self.call();
        // SAFETY: this object's own reference.
        let _ = unsafe { (calls.ceph_ll_put)(mount, node) };
    }
}

/// What a new name is to stand for.
pub(crate) enum New<'a> {
    /// A directory of these permission bits.
    Dir(u32),
    /// A file, pipe, socket or device: mode and device number.
    Node(u32, u64),
    /// A symbolic link to this.
    Symlink(&'a [u8]),
}

impl Inode {
    /// The service itself, as the cluster knows it.
    pub(crate) fn service(&self) -> &Caller {
        &self.mount.service
    }

    /// The root of what is mounted.
    pub(crate) fn root(mount: &Arc<Mount>) -> Result<Inode> {
        let mut node = ptr::null_mut();
        // SAFETY: `node` takes a reference.
        said(unsafe { (mount.calls().ceph_ll_lookup_root)(mount.raw.as_ptr(), &raw mut node) })?;
        // SAFETY: the call above gave this reference to the caller alone.
        unsafe { Inode::adopt(mount, node) }
    }

    /// An inode by its number. `ESTALE`: there is none.
    pub(crate) fn by_number(mount: &Arc<Mount>, ino: u64) -> Result<Inode> {
        let (calls, raw) = (mount.calls(), mount.raw.as_ptr());
        let mut node = ptr::null_mut();
        // SAFETY: `node` takes a reference; `struct inodeno_t` is passed as its one member is.
        said(unsafe { (calls.ceph_ll_lookup_inode)(raw, ino, &raw mut node) })?;
        // SAFETY: the call above gave this reference to the caller alone.
        unsafe { Inode::adopt(mount, node) }
    }

    /// Takes a reference over. `ESTALE`: null.
    ///
    /// # Safety
    ///
    /// `node` is null, or a reference that the client of `mount` gave the caller, who gives it up.
    unsafe fn adopt(mount: &Arc<Mount>, node: *mut RawInode) -> Result<Inode> {
        let raw = NonNull::new(node).ok_or(Errno::ESTALE)?;
        mount.counters.inodes.fetch_add(1, Ordering::Relaxed);
        Ok(Inode { mount: mount.clone(), raw })
    }

    /// What every call with it takes; counted until its first part is dropped.
    fn call(&self) -> (Counted<'_>, *mut RawMount, *mut RawInode) {
        (self.mount.calls(), self.mount.raw.as_ptr(), self.raw.as_ptr())
    }

    /// Makes a call, and counts it; what the library said.
    fn timed(&self, kind: Kind, call: impl FnOnce() -> c_int) -> Result<usize> {
        said(self.mount.counters.timed(kind, call))
    }

    /// What `name` stands for in this directory.
    pub(crate) fn lookup(&self, who: &Caller, name: &[u8]) -> Result<(Inode, Stat)> {
        let ((calls, mount, dir), perms) = (self.call(), who.perms());
        let (name, mut node, mut stat) = (c_string(name)?, ptr::null_mut(), Stat::empty());
        let (to_node, to_stat) = (&raw mut node, &raw mut stat);
        // SAFETY: live objects; `node` takes a reference.
        self.timed(Kind::Look, || unsafe {
            let name = name.as_ptr();
            (calls.ceph_ll_lookup)(mount, dir, name, to_node, to_stat, WANT, NO_FLAGS, perms)
        })?;
        // SAFETY: the call above gave this reference to the caller alone.
        Ok((unsafe { Inode::adopt(&self.mount, node) }?, stat))
    }

    /// Its state.
    pub(crate) fn stat(&self, who: &Caller) -> Result<Stat> {
        let ((calls, mount, node), perms) = (self.call(), who.perms());
        let mut stat = Stat::empty();
        // SAFETY: live objects.
        self.timed(Kind::Look, || unsafe {
            (calls.ceph_ll_getattr)(mount, node, &raw mut stat, WANT, NO_FLAGS, perms)
        })?;
        Ok(stat)
    }

    /// Takes the fields of `stat` that `mask` names ([`change`](super::calls::change)).
    pub(crate) fn change(&self, who: &Caller, mut stat: Stat, mask: i32) -> Result<()> {
        let ((calls, mount, node), perms) = (self.call(), who.perms());
        // SAFETY: live objects.
        self.timed(Kind::Change, || unsafe {
            (calls.ceph_ll_setattr)(mount, node, &raw mut stat, mask, perms)
        })
        .map(drop)
    }

    /// Makes a new name in this directory.
    pub(crate) fn make(&self, who: &Caller, name: &[u8], new: New<'_>) -> Result<(Inode, Stat)> {
        let (calls, mount, dir) = self.call();
        let (name, mut node, mut stat) = (c_string(name)?, ptr::null_mut(), Stat::empty());
        let (at, to_node, to_stat) = (name.as_ptr(), &raw mut node, &raw mut stat);
        let perms = who.perms();
        let target = match new {
            New::Symlink(target) => c_string(target)?,
            _ => CString::default(),
        };
        let (want, none) = (WANT, NO_FLAGS);
        // SAFETY: live objects and C strings; `node` takes a reference.
        self.timed(Kind::Change, || unsafe {
            match new {
                New::Dir(mode) => {
                    (calls.ceph_ll_mkdir)(mount, dir, at, mode, to_node, to_stat, want, none, perms)
                }
                New::Node(mode, rdev) => (calls.ceph_ll_mknod)(
                    mount, dir, at, mode, rdev, to_node, to_stat, want, none, perms,
                ),
                New::Symlink(_) => {
                    let target = target.as_ptr();
                    (calls.ceph_ll_symlink)(
                        mount, dir, at, target, to_node, to_stat, want, none, perms,
                    )
                }
            }
        })?;
        // SAFETY: the call above gave this reference to the caller alone.
        Ok((unsafe { Inode::adopt(&self.mount, node) }?, stat))
    }

    /// Makes a regular file, and opens it to read and write. `EEXIST`.
    pub(crate) fn create(
        &self,
        who: &Caller,
        name: &[u8],
        mode: u32,
    ) -> Result<(Inode, OpenFile, Stat)> {
        let (calls, mount, dir) = self.call();
        let (name, mut node, mut stat) = (c_string(name)?, ptr::null_mut(), Stat::empty());
        let mut file = ptr::null_mut();
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        // SAFETY: live objects; `node` takes a reference, `file` a handle.
        self.timed(Kind::Change, || unsafe {
            (calls.ceph_ll_create)(
                mount,
                dir,
                name.as_ptr(),
                mode,
                flags,
                &raw mut node,
                &raw mut file,
                &raw mut stat,
                WANT,
                NO_FLAGS,
                who.perms(),
            )
        })?;
        // SAFETY: the call above gave this handle to the caller alone.
        let file = unsafe { OpenFile::adopt(&self.mount, file) }?;
        // SAFETY: the call above gave this reference to the caller alone.
        Ok((unsafe { Inode::adopt(&self.mount, node) }?, file, stat))
    }

    /// Opens a regular file.
    pub(crate) fn open(&self, who: &Caller, flags: i32) -> Result<OpenFile> {
        let ((calls, mount, node), perms) = (self.call(), who.perms());
        let mut file = ptr::null_mut();
        // SAFETY: live objects; `file` takes a handle.
        self.timed(Kind::Change, || unsafe {
            (calls.ceph_ll_open)(mount, node, flags, &raw mut file, perms)
        })?;
        // SAFETY: the call above gave this handle to the caller alone.
        unsafe { OpenFile::adopt(&self.mount, file) }
    }

    /// One more name of this inode.
    pub(crate) fn link(&self, who: &Caller, dir: &Inode, name: &[u8]) -> Result<()> {
        let ((calls, mount, node), perms) = (self.call(), who.perms());
        let name = c_string(name)?;
        // SAFETY: live objects of one mount.
        self.timed(Kind::Change, || unsafe {
            (calls.ceph_ll_link)(mount, node, dir.raw.as_ptr(), name.as_ptr(), perms)
        })
        .map(drop)
    }

    /// Removes a name of this directory that is none of a directory.
    pub(crate) fn unlink(&self, who: &Caller, name: &[u8]) -> Result<()> {
        let ((calls, mount, dir), perms) = (self.call(), who.perms());
        let name = c_string(name)?;
        // SAFETY: live objects.
        self.timed(Kind::Change, || unsafe {
            (calls.ceph_ll_unlink)(mount, dir, name.as_ptr(), perms)
        })
        .map(drop)
    }

    /// Removes an empty directory of this one.
    pub(crate) fn rmdir(&self, who: &Caller, name: &[u8]) -> Result<()> {
        let ((calls, mount, dir), perms) = (self.call(), who.perms());
        let name = c_string(name)?;
        // SAFETY: live objects.
        self.timed(Kind::Change, || unsafe {
            (calls.ceph_ll_rmdir)(mount, dir, name.as_ptr(), perms)
        })
        .map(drop)
    }

    /// Moves a name of this directory, and replaces what has the new one.
    pub(crate) fn rename(
        &self,
        who: &Caller,
        from: &[u8],
        to_dir: &Inode,
        to: &[u8],
    ) -> Result<()> {
        let ((calls, mount, dir), perms) = (self.call(), who.perms());
        let (from, to, to_dir) = (c_string(from)?, c_string(to)?, to_dir.raw.as_ptr());
        // SAFETY: live objects of one mount.
        self.timed(Kind::Change, || unsafe {
            (calls.ceph_ll_rename)(mount, dir, from.as_ptr(), to_dir, to.as_ptr(), perms)
        })
        .map(drop)
    }

    /// The target of a symbolic link.
    pub(crate) fn readlink(&self, who: &Caller) -> Result<Vec<u8>> {
        let ((calls, mount, node), perms) = (self.call(), who.perms());
        let mut target = vec![0_u8; libc::PATH_MAX as usize];
        let (into, len) = (target.as_mut_ptr().cast(), target.len());
        // SAFETY: live objects; `len` bytes may be written at `into`.
        let len = self.timed(Kind::Look, || unsafe {
            (calls.ceph_ll_readlink)(mount, node, into, len, perms)
        })?;
        target.truncate(len);
        Ok(target)
    }

    /// Makes data, and the state unless `data_only`, durable.
    pub(crate) fn sync(&self, data_only: bool) -> Result<()> {
        let (calls, mount, node) = self.call();
        // SAFETY: live objects.
        let synced = self.timed(Kind::Sync, || unsafe {
            (calls.ceph_ll_sync_inode)(mount, node, data_only.into())
        });
        self.mount.synced(synced.map(drop))
    }

    /// An extended attribute.
    pub(crate) fn xattr(&self, who: &Caller, name: &[u8]) -> Result<Vec<u8>> {
        let ((calls, mount, node), perms) = (self.call(), who.perms());
        let name = c_string(name)?;
        let mut value = vec![0_u8; 64 << 10];
        let (into, len) = (value.as_mut_ptr().cast(), value.len());
        // SAFETY: live objects; `len` bytes may be written at `into`.
        let len = self.timed(Kind::Look, || unsafe {
            (calls.ceph_ll_getxattr)(mount, node, name.as_ptr(), into, len, perms)
        })?;
        value.truncate(len);
        Ok(value)
    }

    /// Sets an extended attribute; `flags` of setxattr(2).
    pub(crate) fn set_xattr(
        &self,
        who: &Caller,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        let ((calls, mount, node), perms) = (self.call(), who.perms());
        let (name, from, len) = (c_string(name)?, value.as_ptr().cast(), value.len());
        // SAFETY: live objects; `len` bytes may be read at `from`.
        self.timed(Kind::Change, || unsafe {
            (calls.ceph_ll_setxattr)(mount, node, name.as_ptr(), from, len, flags, perms)
        })
        .map(drop)
    }

    /// Names of extended attributes, each with its NUL.
    pub(crate) fn xattrs(&self, who: &Caller) -> Result<Vec<u8>> {
        let ((calls, mount, node), perms) = (self.call(), who.perms());
        let (mut names, mut needed) = (vec![0_u8; 64 << 10], 0);
        let (into, len) = (names.as_mut_ptr().cast(), names.len());
        // SAFETY: live objects; `len` bytes may be written at `into`.
        self.timed(Kind::Look, || unsafe {
            (calls.ceph_ll_listxattr)(mount, node, into, len, &raw mut needed, perms)
        })?;
        names.truncate(needed);
        Ok(names)
    }

    /// Removes an extended attribute.
    pub(crate) fn remove_xattr(&self, who: &Caller, name: &[u8]) -> Result<()> {
        let ((calls, mount, node), perms) = (self.call(), who.perms());
        let name = c_string(name)?;
        // SAFETY: live objects.
        self.timed(Kind::Change, || unsafe {
            (calls.ceph_ll_removexattr)(mount, node, name.as_ptr(), perms)
        })
        .map(drop)
    }

    /// Totals of the file system, or of the quota that holds here.
    pub(crate) fn totals(&self) -> Result<statvfs64> {
        let (calls, mount, node) = self.call();
        // SAFETY: integers; zeros are values of them.
        let mut totals: statvfs64 = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: live objects.
        said(unsafe { (calls.ceph_ll_statfs)(mount, node, &raw mut totals) })?;
        Ok(totals)
    }

    /// A stream of this directory.
    pub(crate) fn entries(&self, who: &Caller) -> Result<DirStream> {
        let ((calls, mount, node), perms) = (self.call(), who.perms());
        let mut dir = ptr::null_mut();
        // SAFETY: live objects; `dir` takes a stream.
        said(unsafe { (calls.ceph_ll_opendir)(mount, node, &raw mut dir, perms) })?;
        let raw = NonNull::new(dir).ok_or(Errno::EIO)?;
        // SAFETY: the call above gave this stream to the caller alone.
        Ok(unsafe { DirStream::new(self.mount.clone(), raw) })
    }
}
