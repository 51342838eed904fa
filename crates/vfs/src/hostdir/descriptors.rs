//! The descriptors of one instance: made when needed, closed when there are too many.
//!
//! A node's path descriptor is found again from the nearest ancestor that has one, one confined
//! component at a time, and checked against the node's identity. What needs a real descriptor
//! (data, extended attributes) gets it from the path descriptor through a descriptor of
//! /proc/self/fd that is held from the start: the kernel opens exactly the inode that was
//! checked, so no race with a rename can make us open something else, such as a device. Devices,
//! pipes and sockets are never opened.
//!
//! Descriptors for writing are not kept: a file that somebody holds open for writing cannot be
//! executed on the host. The page cache above makes writes few and large.
//!
//! A second-chance queue bounds the kept ones (clock algorithm): a node enters it with its first
//! descriptor; a sweep spares nodes used since the last one and nodes that could not be found
//! again. The bound is soft by the number of descriptors in use at the moment.
//!
//! Locking: `queue`, `Node::state` and `Node::stream` are taken one at a time.

use super::host::{self, errno};
use super::node::{Held, Node, gone_is_stale};
use crate::fs::{Attr, Kind};
use polylane_base::sync::Mutex;
use polylane_base::{Errno, Result};
use rustix::fs::{AtFlags, Mode, OFlags};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// `PROC_SUPER_MAGIC` of linux/magic.h.
const PROC_MAGIC: u32 = 0x9fa0;

/// The set-user-id and the set-group-id bit.
const SET_ID: u32 = 0o6000;

/// The descriptors of one instance.
pub(super) struct Descriptors {
    proc_fds: OwnedFd,
    limit: usize,
    open: Arc<AtomicUsize>,
    queue: Mutex<VecDeque<Weak<Node>>>,
}

impl Descriptors {
    /// At most about `limit` descriptors. `ENOSYS` when /proc is not what it should be.
    pub(super) fn new(limit: usize) -> Result<Descriptors> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc_fds = rustix::fs::open("/proc/self/fd", flags, Mode::empty()).map_err(errno)?;
        let kind = rustix::fs::fstatfs(&proc_fds).map_err(errno)?.f_type;
        if kind as u32 != PROC_MAGIC {
            return Err(Errno::ENOSYS);
        }
        let open = Arc::new(AtomicUsize::new(0));
        Ok(Descriptors { proc_fds, limit, open, queue: Mutex::default() })
    }

    /// The path descriptor of a node.
    pub(super) fn path(&self, node: &Arc<Node>) -> Result<Arc<Held>> {
        let mut below = Vec::new();
        let mut at = node.clone();
        let mut fd = loop {
            match at.look() {
                (_, Some(fd)) => break fd,
                (Some(place), None) => {
                    below.push((at, place.name));
                    at = place.dir;
                }
                (None, None) => return Err(Errno::ESTALE),
            }
        };
        while let Some((node, name)) = below.pop() {
            let opened = self.roomy(|| host::open(&fd, &name, OFlags::PATH, 0));
            let entry = opened.map_err(gone_is_stale)?;
            node.check(&host::stat(&entry)?)?;
            fd = self.keep_path(&node, entry);
        }
        Ok(fd)
    }

    /// Gives a node a path descriptor, made elsewhere and known to be of this inode.
    pub(super) fn keep_path(&self, node: &Arc<Node>, fd: OwnedFd) -> Arc<Held> {
        let held = Held::new(fd, &self.open);
        let mut state = node.state.lock();
        let kept = state.path.get_or_insert(held).clone();
        let newly_queued = !std::mem::replace(&mut state.queued, true);
        state.used = true;
        drop(state);
        self.kept(node, newly_queued);
        kept
    }

    /// A descriptor of a regular file or directory that can be read, kept; `EBADF` for other kinds.
    pub(super) fn reader(&self, node: &Arc<Node>) -> Result<Arc<Held>> {
        if let Some(held) = &node.state.lock().reader {
            return Ok(held.clone());
        }
        let held = self.real(node, OFlags::RDONLY)?;
        let mut state = node.state.lock();
        let kept = state.reader.get_or_insert(held).clone();
        let newly_queued = !std::mem::replace(&mut state.queued, true);
        drop(state);
        self.kept(node, newly_queued);
        Ok(kept)
    }

    /// A descriptor to read a regular file or a directory, by this service's rights alone; closed
    /// after use, and so is a path descriptor that is made for it.
    pub(super) fn reader_now(&self, node: &Arc<Node>) -> Result<OwnedFd> {
        match node.look() {
            (_, Some(path)) => self.open_again(&*path, OFlags::RDONLY),
            (Some(place), None) => {
                let dir = self.path(&place.dir)?;
                let path = self.roomy(|| host::open(&dir, &place.name, OFlags::PATH, 0))?;
                // Opened to be read it may be a pipe by now, or a device.
                node.check(&host::stat(&path)?)?;
                self.open_again(&path, OFlags::RDONLY)
            }
            (None, None) => Err(Errno::ESTALE),
        }
    }

    /// A descriptor of a regular file that can be written; closed after use.
    pub(super) fn writer(&self, node: &Arc<Node>) -> Result<Arc<Held>> {
        match node.kind {
            Kind::File => self.real(node, OFlags::WRONLY),
            Kind::Dir => Err(Errno::EISDIR),
            _ => Err(Errno::EBADF),
        }
    }

    /// A counted descriptor that no node keeps.
    pub(super) fn counted(&self, fd: OwnedFd) -> Arc<Held> {
        Held::new(fd, &self.open)
    }

    /// Turns any descriptor into a path descriptor of the same inode.
    pub(super) fn as_path(&self, fd: &OwnedFd) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        self.roomy(|| {
            rustix::fs::openat(&self.proc_fds, magic_name(fd), flags, Mode::empty()).map_err(errno)
        })
    }

    /// `chmod` of what a path descriptor stands for.
    pub(super) fn chmod(&self, fd: impl AsFd, perm: u32) -> Result<()> {
        let mode = Mode::from_bits_truncate(perm);
        let name = magic_name(fd);
        rustix::fs::chmodat(&self.proc_fds, name, mode, AtFlags::empty()).map_err(errno)
    }

    /// Changes the contents of a file, whose set-id bits stay: the VFS takes them away itself, of
    /// those who may not keep them, and the host takes them of every service that is not root of
    /// the host, also of one that writes back later what root wrote. A user of the host may give
    /// the file away or change its mode meanwhile: then the bits are not given back.
    pub(super) fn keeping_set_id<T>(
        &self,
        fd: &Held,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let before = host::stat(fd)?.attr;
        let changed = change()?;
        if before.perm & SET_ID != 0 && has_lost_set_id(&before, &host::stat(fd)?.attr) {
            self.chmod(fd, before.perm)?;
        }
        Ok(changed)
    }

    /// Gives what a path descriptor stands for one more name.
    pub(super) fn link(&self, fd: &Held, dir: &Held, name: &[u8]) -> Result<()> {
        let follow = AtFlags::SYMLINK_FOLLOW;
        rustix::fs::linkat(&self.proc_fds, magic_name(fd), dir, name, follow).map_err(errno)
    }

    /// Runs something that makes a descriptor; makes room and tries again when there are none left.
    pub(super) fn roomy<T>(&self, open: impl Fn() -> Result<T>) -> Result<T> {
        match open() {
            Err(Errno::EMFILE | Errno::ENFILE) => {
                self.sweep(self.open.load(Ordering::Relaxed) / 2);
                open()
            }
            other => other,
        }
    }

    fn real(&self, node: &Arc<Node>, flags: OFlags) -> Result<Arc<Held>> {
        if !matches!(node.kind, Kind::File | Kind::Dir) {
            return Err(Errno::EBADF);
        }
        let path = self.path(node)?;
        let opened = match self.open_again(&path, flags) {
            Err(Errno::EACCES) => self.open_as_owner(&path, flags),
            other => other,
        };
        Ok(Held::new(opened?, &self.open))
    }

    fn open_again(&self, path: impl AsFd, flags: OFlags) -> Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let name = magic_name(path);
        self.roomy(|| {
            rustix::fs::openat(&self.proc_fds, &name, flags, Mode::empty()).map_err(errno)
        })
    }

    /// Opens a file of our own whose mode keeps even its owner out, for a moment letting the
    /// owner in. Programs create files read-only and write to them, or take the right away from
    /// files they have open; above us that is one open file, here it is a new open. A service
    /// that is root does not get here.
    fn open_as_owner(&self, path: &Held, flags: OFlags) -> Result<OwnedFd> {
        let attr = host::stat(path)?.attr;
        if attr.uid.0 != rustix::process::geteuid().as_raw() {
            return Err(Errno::EACCES);
        }
        let lent = Attr { perm: attr.perm | 0o600, ..attr };
        self.chmod(path, lent.perm)?;
        let opened = self.open_again(path, flags);
        // Unless a user of the host has changed it meanwhile.
        if is_as_lent(&lent, &host::stat(path)?.attr) {
            self.chmod(path, attr.perm)?;
        }
        opened
    }

    /// Settles a node that has just been given a descriptor.
    fn kept(&self, node: &Arc<Node>, newly_queued: bool) {
        if newly_queued {
            self.queue.lock().push_back(Arc::downgrade(node));
        }
        if self.open.load(Ordering::Relaxed) > self.limit {
            self.sweep(self.limit - self.limit / 8);
        }
    }

    /// Closes descriptors until at most `target` are open or everything was looked at twice.
    fn sweep(&self, target: usize) {
        let rounds = 2 * self.queue.lock().len();
        for _ in 0..rounds {
            if self.open.load(Ordering::Relaxed) <= target {
                return;
            }
            let Some(front) = self.queue.lock().pop_front() else { return };
            let Some(node) = front.upgrade() else { continue };
            if node.close_descriptors() {
                self.queue.lock().push_back(front);
            }
        }
    }
}

/// Whether a file is as before, but for set-id bits that it has no more.
fn has_lost_set_id(before: &Attr, now: &Attr) -> bool {
    let lost = before.perm & !now.perm;
    lost != 0 && lost & !SET_ID == 0 && before.perm == now.perm | lost && is_owned_as(before, now)
}

/// Whether a file still has the owner and the mode that it was given for a moment. The host's
/// kernel may have taken the set-group-id bit with that `chmod`.
fn is_as_lent(lent: &Attr, now: &Attr) -> bool {
    (lent.perm == now.perm || has_lost_set_id(lent, now)) && is_owned_as(lent, now)
}

fn is_owned_as(before: &Attr, now: &Attr) -> bool {
    (before.uid, before.gid) == (now.uid, now.gid)
}

/// The name of a descriptor in /proc/self/fd.
fn magic_name(fd: impl AsFd) -> String {
    fd.as_fd().as_raw_fd().to_string()
}
