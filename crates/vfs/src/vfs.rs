//! The file door: one lane's files, as front ends see them.
#![expect(unused_variables, reason = "signatures first")]

use std::time::Duration;

use polylane_base::sync::Arc;
use polylane_base::{Clock, Errno, Result};

use crate::cred::Cred;
use crate::file::OpenFile;
use crate::fs::{Attr, FileSystem, Kind, SetAttr, StatFs, XattrMode};
use crate::inode::Node;
use crate::lock::{LockOutcome, LockOwner, LockRequest, LockWaiter, Ticket};

/// How a [`Vfs`] is to behave. Sizes in bytes; a limit of 0 means "the smallest that works".
#[derive(Clone)]
pub struct Options {
    /// Time stamps of delayed writes and access times.
    pub clock: Arc<dyn Clock>,
    /// Most bytes of file data kept in the page cache.
    pub cache_bytes_limit: u64,
    /// Most bytes of changed data waiting to be written back; writers wait above it.
    pub dirty_bytes_limit: u64,
    /// Longest time that changed data waits before it is written back.
    pub flush_interval: Duration,
    /// Where the lane is mounted in the tenant's name space, absolute: `/lane`, or `/`.
    pub mount_path: Vec<u8>,
    /// Directories of the lane on which the kernel has something else mounted, as paths from the
    /// lane's root: `.polylane`, `dev/pts`.
    pub covered: Vec<Vec<u8>>,
}

/// Why a path was not resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathError {
    /// The operation fails with this.
    Errno(Errno),
    /// The path leaves the lane (an absolute link out of the mount path, `..` above the root, a
    /// covered directory), or ends in `.` or `..` where a name is needed: the kernel knows better.
    Leaves,
}

impl From<Errno> for PathError {
    fn from(errno: Errno) -> Self {
        PathError::Errno(errno)
    }
}

/// A directory and a name in it that may or may not exist.
#[derive(Clone, Debug)]
pub struct Last {
    /// The directory.
    pub dir: Node,
    /// The name: never empty, `.` or `..`, no slash.
    pub name: Vec<u8>,
    /// The path ended in a slash.
    pub must_be_dir: bool,
}

/// What to create under a name.
#[derive(Clone, Copy, Debug)]
pub struct Create<'a> {
    /// Kind of the new inode.
    pub kind: Kind,
    /// Permission bits asked for, before `umask`.
    pub perm: u32,
    /// Bits to take away.
    pub umask: u32,
    /// Device number, for devices.
    pub rdev: u64,
    /// Target, for symbolic links.
    pub target: &'a [u8],
}

/// The private VFS of one lane. All state hangs off it; two of them share nothing. Thread-safe.
pub struct Vfs {}

impl Vfs {
    /// Opens the file system's root.
    pub fn new(fs: Arc<dyn FileSystem>, options: Options) -> Result<Arc<Vfs>> {
        Err(Errno::ENOSYS)
    }
    /// The root directory.
    pub fn root(&self) -> Node {
        unreachable!()
    }
    /// Finds `name` in `dir`.
    pub fn lookup(&self, cred: &Cred, dir: &Node, name: &[u8]) -> Result<Node> {
        Err(Errno::ENOSYS)
    }
    /// Creates `name` in `dir`.
    pub fn create(&self, cred: &Cred, dir: &Node, name: &[u8], new: &Create<'_>) -> Result<Node> {
        Err(Errno::ENOSYS)
    }
    /// O_TMPFILE.
    pub fn create_unlinked(&self, cred: &Cred, dir: &Node, perm: u32, umask: u32) -> Result<Node> {
        Err(Errno::ENOSYS)
    }
    /// Gives `node` one more name.
    pub fn link(&self, cred: &Cred, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        Err(Errno::ENOSYS)
    }
    /// Removes a name that is not a directory's.
    pub fn unlink(&self, cred: &Cred, dir: &Node, name: &[u8]) -> Result<()> {
        Err(Errno::ENOSYS)
    }
    /// Removes an empty directory.
    pub fn rmdir(&self, cred: &Cred, dir: &Node, name: &[u8]) -> Result<()> {
        Err(Errno::ENOSYS)
    }
    /// renameat2(2).
    pub fn rename(
        &self,
        cred: &Cred,
        from_dir: &Node,
        from: &[u8],
        to_dir: &Node,
        to: &[u8],
        flags: u32,
    ) -> Result<()> {
        Err(Errno::ENOSYS)
    }
    /// The target of a symbolic link.
    pub fn readlink(&self, node: &Node) -> Result<Vec<u8>> {
        Err(Errno::ENOSYS)
    }
    /// The state of an inode.
    pub fn getattr(&self, node: &Node) -> Result<Attr> {
        Err(Errno::ENOSYS)
    }
    /// Changes the state of an inode.
    pub fn setattr(&self, cred: &Cred, node: &Node, set: &SetAttr) -> Result<Attr> {
        Err(Errno::ENOSYS)
    }
    /// access(2): `mask` of R_OK 4, W_OK 2, X_OK 1.
    pub fn access(&self, cred: &Cred, node: &Node, mask: u32) -> Result<()> {
        Err(Errno::ENOSYS)
    }
    /// Reads an extended attribute.
    pub fn getxattr(&self, cred: &Cred, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::ENOSYS)
    }
    /// Writes an extended attribute.
    pub fn setxattr(
        &self,
        cred: &Cred,
        node: &Node,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        Err(Errno::ENOSYS)
    }
    /// The names of the extended attributes that `cred` may see.
    pub fn listxattr(&self, cred: &Cred, node: &Node) -> Result<Vec<Vec<u8>>> {
        Err(Errno::ENOSYS)
    }
    /// Removes an extended attribute.
    pub fn removexattr(&self, cred: &Cred, node: &Node, name: &[u8]) -> Result<()> {
        Err(Errno::ENOSYS)
    }
    /// Totals.
    pub fn statfs(&self) -> Result<StatFs> {
        Err(Errno::ENOSYS)
    }
    /// Makes everything durable.
    pub fn sync(&self) -> Result<()> {
        Err(Errno::ENOSYS)
    }
    /// The inode that `path` names from `start`.
    pub fn resolve(
        &self,
        cred: &Cred,
        start: &Node,
        path: &[u8],
        follow: bool,
    ) -> Result<Node, PathError> {
        Err(PathError::Leaves)
    }
    /// The directory and name that `path` ends in; a last symbolic link is not followed.
    pub fn resolve_parent(
        &self,
        cred: &Cred,
        start: &Node,
        path: &[u8],
    ) -> Result<Last, PathError> {
        Err(PathError::Leaves)
    }
    /// open(2).
    pub fn open_path(
        &self,
        cred: &Cred,
        start: &Node,
        path: &[u8],
        flags: i32,
        perm: u32,
        umask: u32,
    ) -> Result<Arc<OpenFile>, PathError> {
        Err(PathError::Leaves)
    }
    /// Opens a known inode.
    pub fn open(&self, cred: &Cred, node: &Node, flags: i32) -> Result<Arc<OpenFile>> {
        Err(Errno::ENOSYS)
    }
    /// Sets, changes or removes a lock.
    pub fn set_lock(
        &self,
        node: &Node,
        request: LockRequest,
        wait: Option<LockWaiter>,
    ) -> LockOutcome {
        LockOutcome::Done(Err(Errno::ENOSYS))
    }
    /// Takes back a parked request: true when it was still parked; its closure is then never called.
    pub fn cancel_lock(&self, ticket: Ticket) -> bool {
        false
    }
    /// The first lock that stands in the way of `request`.
    pub fn get_lock(&self, node: &Node, request: &LockRequest) -> Option<LockRequest> {
        None
    }
    /// Drops all locks of `owner` on `node`.
    pub fn drop_locks(&self, node: &Node, owner: LockOwner) {}
    /// Drops all locks and waits of `owner`.
    pub fn drop_owner(&self, owner: LockOwner) {}
}
