//! One known host inode: its identity, where it was last seen, and the descriptors held for it.
//!
//! # Invariants
//!
//! - `place` is the last (directory, name) at which this libservice saw or put the inode; `None`
//!   for the root and once that name is gone. An inode without a place cannot be found again, so
//!   its descriptors are never closed to save descriptors.
//! - Descriptors in `State` refer to the inode that `key` names; that was checked when they were
//!   made.
//!
//! # Locking
//!
//! `state` is held for moments, never across a host call, and no other node's with it. `stream` is
//! held while a batch of a directory is read.

use super::host::{self, HostStat, Key};
use super::saved::Saved;
use crate::fs::Kind;
use polylane_base::sync::Mutex;
use polylane_base::{Errno, Ino, Result, Time};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A descriptor that counts towards the bound of its instance as long as it is open.
pub(super) struct Held {
    fd: OwnedFd,
    count: Arc<AtomicUsize>,
}

impl Held {
    /// Counts `fd`.
    pub(super) fn new(fd: OwnedFd, count: &Arc<AtomicUsize>) -> Arc<Held> {
        count.fetch_add(1, Ordering::Relaxed);
        Arc::new(Held { fd, count: count.clone() })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Where an inode can be found.
#[derive(Clone)]
pub(super) struct Place {
    /// The directory, kept alive for this.
    pub(super) dir: Arc<Node>,
    /// The name in it.
    pub(super) name: Arc<[u8]>,
}

/// What changes in a node.
#[derive(Default)]
pub(super) struct State {
    /// Where it is.
    pub(super) place: Option<Place>,
    /// `O_PATH` descriptor.
    pub(super) path: Option<Arc<Held>>,
    /// Descriptor for reading, and for what a path descriptor does not do.
    pub(super) reader: Option<Arc<Held>>,
    /// The change time at which it had these permission bits by its access list.
    pub(super) granted: Option<(Time, u32)>,
    /// Used since the last sweep passed.
    pub(super) used: bool,
    /// In the queue of sweeps.
    pub(super) queued: bool,
}

/// A directory being read: its descriptor and the position it stands at.
pub(super) struct Stream {
    pub(super) fd: Arc<Held>,
    pub(super) at: u64,
}

/// A known host inode.
pub(super) struct Node {
    /// Our number.
    pub(super) ino: Ino,
    /// The host's identity.
    pub(super) key: Key,
    /// What it is.
    pub(super) kind: Kind,
    /// The changing part.
    pub(super) state: Mutex<State>,
    /// The stream of a directory.
    pub(super) stream: Mutex<Option<Stream>>,
    /// What the next service is to know of it.
    saved: Option<Saved>,
}

impl Node {
    /// A node without descriptors and without a place.
    pub(super) fn new(ino: Ino, key: Key, kind: Kind, saved: Option<Saved>) -> Arc<Node> {
        let (state, stream) = (Mutex::default(), Mutex::new(None));
        Arc::new(Node { ino, key, kind, state, stream, saved })
    }

    /// What the next service is to know of it.
    pub(super) fn saved(&self) -> Option<&Saved> {
        self.saved.as_ref()
    }

    /// Fails with `ESTALE` unless `found` is this very inode.
    pub(super) fn check(&self, found: &HostStat) -> Result<()> {
        match found.key == self.key {
            true => Ok(()),
            false => Err(Errno::ESTALE),
        }
    }

    /// Remembers where the inode was seen.
    pub(super) fn put(&self, dir: &Arc<Node>, name: &[u8]) {
        let mut state = self.state.lock();
        if !state.place.as_ref().is_some_and(|place| place.is(dir, name)) {
            let place = Place { dir: dir.clone(), name: name.into() };
            let old = state.place.replace(place);
            if let Some(saved) = &self.saved {
                saved.put(dir.saved(), name);
            }
            drop(state);
            drop(old);
        }
    }

    /// Where a former service recorded it.
    pub(super) fn found_at(&self, dir: &Arc<Node>, name: &[u8]) {
        self.state.lock().place = Some(Place { dir: dir.clone(), name: name.into() });
    }

    /// Forgets the place if it is this one: the name is gone.
    pub(super) fn leave(&self, dir: &Arc<Node>, name: &[u8]) {
        let mut state = self.state.lock();
        if state.place.as_ref().is_some_and(|place| place.is(dir, name)) {
            let old = state.place.take();
            if let Some(saved) = &self.saved {
                saved.leave();
            }
            drop(state);
            drop(old);
        }
    }

    /// Where it is, and the path descriptor if one is held.
    pub(super) fn look(&self) -> (Option<Place>, Option<Arc<Held>>) {
        let mut state = self.state.lock();
        state.used = true;
        (state.place.clone(), state.path.clone())
    }

    /// Closes what can be made again, unless the node was used lately. True when it is to stay in
    /// the queue.
    pub(super) fn close_descriptors(&self) -> bool {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.used, false) {
            return true;
        }
        let reader = state.reader.take();
        let findable = state.place.is_some();
        let path = if findable { state.path.take() } else { None };
        state.queued = !findable;
        drop(state);
        let stream = self.stream.try_lock().and_then(|mut stream| stream.take());
        drop((path, reader, stream));
        !findable
    }

    /// The state on the host, without making a descriptor when a look by name will do.
    pub(super) fn host_stat(
        &self,
        open: impl FnOnce(&Arc<Node>) -> Result<Arc<Held>>,
    ) -> Result<HostStat> {
        let found = match self.look() {
            (_, Some(path)) => host::stat(path)?,
            (Some(place), None) => {
                let dir = open(&place.dir)?;
                host::stat_at(dir, &place.name).map_err(gone_is_stale)?
            }
            (None, None) => return Err(Errno::ESTALE),
        };
        self.check(&found)?;
        Ok(found)
    }
}

impl Drop for Node {
    /// Parents are freed in a loop: a chain as deep as a tenant likes must not use up the stack.
    fn drop(&mut self) {
        let mut next = self.state.get_mut().place.take();
        while let Some(mut node) = next.and_then(|place| Arc::into_inner(place.dir)) {
            next = node.state.get_mut().place.take();
        }
    }
}

impl Place {
    fn is(&self, dir: &Arc<Node>, name: &[u8]) -> bool {
        Arc::ptr_eq(&self.dir, dir) && *self.name == *name
    }
}

/// An inode whose remembered place is gone was moved or removed by somebody else.
pub(super) fn gone_is_stale(errno: Errno) -> Errno {
    match errno {
        Errno::ENOENT | Errno::ENOTDIR => Errno::ESTALE,
        other => other,
    }
}
