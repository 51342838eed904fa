//! The inodes that the VFS holds, by number, and their open handles.
//!
//! The number of an inode is the cluster's. Inodes of snapshots share theirs with the living one:
//! each gets a number of its own with the top bit set, for as long as it is held.
//!
//! # Handles
//!
//! A handle is opened when data is asked for and closed when it was not used for
//! [`IDLE_TIME_MAX`]: as long as one that writes is open, the MDS lets no other host cache the
//! file. A file whose last name goes keeps one, by which its data lives on.
//!
//! libcephfs tells of a write that failed behind its caller's back by the handles that are open
//! then, as each of them is closed, and not by the next sync. So a handle that wrote stays open
//! until it was synced, which the VFS does with every file that changed, and each such sync changes
//! it for a new one to hear what the former has to say. Without a sync it stays open for
//! [`UNSYNCED_TIME_MAX`], and is synced before it is closed, however long a cluster that is away
//! keeps that waiting; what it says then is told by the next sync. A handle whose closing may wait
//! for the cluster is closed by a thread of its own, so that the others are closed meanwhile.
//!
//! # Locking
//!
//! A node's `failed`, then its `handle`; the other way round `failed` is only tried.
//!
//! # Calls that do not end
//!
//! libcephfs 16.2 can leave a read or a write waiting for a capability that it was granted long
//! ago, until the MDS has something else to say about the file. So a file of which no call has
//! ended for a second or two, although some are under way, is asked for its state, which has the
//! MDS say something. A thread of its own does that, as it may wait for the MDS.

use std::collections::HashMap;
use std::ops::Deref;
use std::time::{Duration, Instant};

use polylane_base::sync::atomic::{AtomicU64, Ordering};
use polylane_base::sync::{Arc, Mutex, Weak, thread};
use polylane_base::{Errno, Ino, Result};

use crate::ffi::{Caller, Inode, OpenFile, Stat};
use crate::listing::Listing;

/// How long an unused handle stays open.
pub(crate) const IDLE_TIME_MAX: Duration = Duration::from_secs(1);

/// How long one stays open that wrote and was not synced since.
const UNSYNCED_TIME_MAX: Duration = Duration::from_secs(30);

/// Idle handles whose closing may wait for the cluster at the same time. Others that may wait stay
/// open meanwhile, and all that may not are closed.
const CLOSERS_MAX: usize = 8;

/// The snapshot of inodes that are in none (`CEPH_NOSNAP`).
const NO_SNAPSHOT: u64 = u64::MAX - 1;

/// Set in numbers that are not the cluster's.
const OWN_NUMBER: u64 = 1 << 63;

/// Number and snapshot, as the cluster knows an inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key(u64, u64);

impl Key {
    fn of(stat: &Stat) -> Key {
        Key(stat.ino, stat.dev)
    }

    fn is_living(self) -> bool {
        self.1 == NO_SNAPSHOT
    }
}

/// Whether an inode in this state is of a snapshot: it cannot be changed.
pub(crate) fn is_in_snapshot(stat: &Stat) -> bool {
    !Key::of(stat).is_living()
}

/// An inode that the VFS holds.
pub(crate) struct Node {
    /// Its number above.
    pub(crate) ino: Ino,
    key: Key,
    is_dir: bool,
    /// The library's.
    pub(crate) inode: Inode,
    handle: Mutex<Option<Handle>>,
    /// By which the cluster knows the locks of programs: they go with it.
    locks: Mutex<Option<Arc<OpenFile>>>,
    /// Where the last listing of this directory stopped.
    pub(crate) listing: Mutex<Option<Listing>>,
    calls: Calls,
    /// Of a write that failed behind its caller's back, until a sync has told it. Locked while a
    /// handle is closed that may say so: a sync that comes by then waits for what it says.
    failed: Mutex<Option<Errno>>,
    /// How often a sync began to change the handle. Counted with `failed` locked.
    changes: AtomicU64,
}

/// Reads and writes by a handle.
#[derive(Default)]
struct Calls {
    under_way: AtomicU64,
    ended: AtomicU64,
    /// How many had ended when that was looked at last.
    seen: AtomicU64,
    /// Writes that ended.
    written: AtomicU64,
    /// How many had ended when the last sync began.
    synced: AtomicU64,
}

impl Calls {
    fn begin(&self) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
    }

    fn end(&self, writes: bool) {
        if writes {
            self.written.fetch_add(1, Ordering::SeqCst);
        }
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.under_way.fetch_sub(1, Ordering::SeqCst);
    }

    /// Runs a sync, told whether there were writes since the last one: what failed until then is
    /// told by it.
    fn sync(&self, sync: impl FnOnce(bool) -> Result<()>) -> Result<()> {
        let written = self.written.load(Ordering::SeqCst);
        let synced = sync(self.synced.load(Ordering::SeqCst) != written);
        self.synced.fetch_max(written, Ordering::SeqCst);
        synced
    }

    /// Whether a sync began after all writes.
    fn are_synced(&self) -> bool {
        self.synced.load(Ordering::SeqCst) == self.written.load(Ordering::SeqCst)
    }

    /// Whether the handle may be closed that was not used for so long.
    fn is_idle(&self, unused: Duration) -> bool {
        if self.under_way.load(Ordering::SeqCst) > 0 {
            return false;
        }
        unused > if self.are_synced() { IDLE_TIME_MAX } else { UNSYNCED_TIME_MAX }
    }
}

/// A handle, for one call; counted.
pub(crate) struct Call {
    node: Arc<Node>,
    file: Arc<OpenFile>,
    writes: bool,
}

impl Deref for Call {
    type Target = OpenFile;

    fn deref(&self) -> &OpenFile {
        &self.file
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.node.calls.end(self.writes);
    }
}

struct Handle {
    file: Arc<OpenFile>,
    /// On whose behalf it was opened.
    who: Arc<Caller>,
    writes: bool,
    used: Instant,
    /// The file has no name any more.
    pinned: bool,
}

impl Node {
    /// Whether it is a directory.
    pub(crate) fn is_dir(&self) -> bool {
        self.is_dir
    }

    /// Blocks of a file system, all and free ones, as far as the quota of this directory lets it
    /// have them.
    pub(crate) fn within_quota(&self, bsize: u64, (blocks, free): (u64, u64)) -> (u64, u64) {
        let number = |name: &[u8]| -> Option<u64> {
            let value = self.inode.xattr(self.inode.service(), name).ok()?;
            std::str::from_utf8(&value).ok()?.trim_end_matches('\0').parse().ok()
        };
        match number(b"ceph.quota.max_bytes").filter(|&limit| limit > 0 && bsize > 0) {
            None => (blocks, free),
            Some(limit) => {
                let used = number(b"ceph.dir.rbytes").unwrap_or(0);
                // A small quota is one block, as of the client library.
                (limit.div_ceil(bsize), (limit.saturating_sub(used) / bsize).min(free))
            }
        }
    }

    /// A handle to read or to write with, and whether it was opened just now.
    fn handle(
        &self,
        writes: bool,
        who: impl FnOnce() -> Result<Arc<Caller>>,
    ) -> Result<(Arc<OpenFile>, bool)> {
        if self.is_dir {
            return Err(Errno::EISDIR);
        }
        let mut place = self.handle.lock();
        let used = Instant::now();
        if let Some(handle) = place.as_mut().filter(|handle| handle.writes || !writes) {
            handle.used = used;
            return Ok((handle.file.clone(), false));
        }
        let (who, flags) = (who()?, if writes { libc::O_RDWR } else { libc::O_RDONLY });
        let file = Arc::new(self.inode.open(&who, flags)?);
        let known = place.replace(Handle { file: file.clone(), who, writes, used, pinned: false });
        if let (Some(new), Some(former)) = (place.as_mut(), &known) {
            new.pinned = former.pinned;
        }
        drop(place);
        Ok((file, known.is_none()))
    }

    /// The handle of its locks, which the service opens if it `makes` one; `None`: there are no
    /// locks, and none is to be made.
    pub(crate) fn locks_handle(&self, makes: bool) -> Result<Option<Arc<OpenFile>>> {
        let mut place = self.locks.lock();
        if place.is_none() && makes {
            *place = Some(Arc::new(self.inode.open(self.inode.service(), libc::O_RDONLY)?));
        }
        Ok(place.clone())
    }

    /// The handle that is open now.
    pub(crate) fn open_handle(&self) -> Option<Arc<OpenFile>> {
        self.handle.lock().as_ref().map(|handle| handle.file.clone())
    }

    /// Makes data, and the state unless `data_only`, durable. A write that failed before is told to
    /// one of the syncs that overlap.
    pub(crate) fn sync(&self, data_only: bool) -> Result<()> {
        self.calls.sync(|wrote| {
            match self.open_handle() {
                Some(file) => file.sync(data_only)?,
                None => self.inode.sync(data_only)?,
            }
            let changes = self.changes.load(Ordering::SeqCst);
            let mut failed = self.failed.lock();
            // Another sync may have begun to since: it has heard all that this one would.
            if wrote && self.changes.load(Ordering::SeqCst) == changes {
                self.changes.fetch_add(1, Ordering::SeqCst);
                self.change_handle()?;
            }
            failed.take().map_or(Ok(()), Err)
        })
    }

    /// Closes the handle that writes, if there is one, which tells of writes that failed while it
    /// was open. Its place has a new one before that, so that none fails unheard.
    fn change_handle(&self) -> Result<()> {
        let mut place = self.handle.lock();
        let Some(handle) = place.as_mut().filter(|handle| handle.writes) else { return Ok(()) };
        let new = Arc::new(self.inode.open(&handle.who, libc::O_RDWR)?);
        let former = std::mem::replace(&mut handle.file, new);
        drop(place);
        close(former)
    }

    /// The last name is about to go: the data lives on as long as the VFS holds the inode.
    pub(crate) fn pin(&self, who: &Arc<Caller>) -> Result<()> {
        self.handle(true, || Ok(who.clone()))?;
        if let Some(handle) = self.handle.lock().as_mut() {
            handle.pinned = true;
        }
        Ok(())
    }

    /// Asks for the state if calls are under way and none has ended since this was called last.
    fn wake_calls(&self) {
        let Calls { under_way, ended, seen, .. } = &self.calls;
        let ended = ended.load(Ordering::Relaxed);
        if seen.swap(ended, Ordering::Relaxed) == ended && under_way.load(Ordering::Relaxed) > 0 {
            // Only that it is asked for counts.
            let _ = self.inode.stat(self.inode.service());
        }
    }

    /// Closes its handle if that was not used lately; unless it `may_wait`, only where that waits
    /// for no cluster.
    fn close_idle(&self, now: Instant, may_wait: bool) -> Idle {
        // One that is just opened may wait for the MDS, and other files' handles are to be closed.
        let Some(mut place) = self.handle.try_lock() else { return Idle::Open };
        let Some(handle) = place.as_ref() else { return Idle::Closed };
        let unused = now.saturating_duration_since(handle.used);
        if handle.pinned || !self.calls.is_idle(unused) {
            return Idle::Open;
        }
        let is_synced = self.calls.are_synced();
        // A sync by the handle, of which there is no new one now, is waited for as well.
        let is_at_once = is_synced && Arc::strong_count(&handle.file) == 1;
        if !(may_wait || is_at_once) {
            return Idle::Waits;
        }
        let Some(mut failed) = self.failed.try_lock() else { return Idle::Open };
        let Some(handle) = place.take() else { return Idle::Closed };
        drop(place);
        // Both may wait for the cluster. Without the sync, what it wrote might fail after it.
        let synced = if is_synced { Ok(()) } else { handle.file.sync(true) };
        if let Err(errno) = close(handle.file).and(synced) {
            *failed = Some(errno);
        }
        Idle::Closed
    }
}

/// What became of a handle that may be idle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Idle {
    /// It is to be looked at again.
    Open,
    /// It is idle, and closing it may wait for the cluster.
    Waits,
    /// There is none any more.
    Closed,
}

/// Closes a handle when no call uses it any more, of which there are no new ones. The error of a
/// write that failed while it was open.
fn close(file: Arc<OpenFile>) -> Result<()> {
    let closed = file.closed();
    drop(file);
    closed.wait()
}

/// The inodes of a client's file systems, each of which keeps the list.
pub(crate) type Tables = Mutex<Vec<Weak<Inodes>>>;

/// See the module header. Thread-safe.
#[derive(Default)]
pub(crate) struct Inodes {
    inner: Mutex<Inner>,
    /// Taken over no other lock.
    open: Mutex<Open>,
    /// Held by each thread that closes a handle.
    closers: Arc<()>,
}

/// Inodes with open handles.
#[derive(Default)]
struct Open {
    /// Those whose handles are to be closed when they are idle.
    all: Vec<Weak<Node>>,
    /// Those that are looked at for that now.
    looked_at: Vec<Weak<Node>>,
}

#[derive(Default)]
struct Inner {
    nodes: HashMap<Ino, Arc<Node>>,
    /// Those of snapshots.
    numbers: HashMap<Key, Ino>,
    last_own: u64,
}

impl Inodes {
    /// An inode that the VFS holds.
    pub(crate) fn get(&self, ino: Ino) -> Result<Arc<Node>> {
        self.inner.lock().nodes.get(&ino).cloned().ok_or(Errno::ESTALE)
    }

    /// From here on the VFS holds the inode.
    pub(crate) fn hold(&self, inode: Inode, stat: &Stat) -> Arc<Node> {
        let key = Key::of(stat);
        let mut inner = self.inner.lock();
        let ino = inner.number(key);
        if let Some(node) = inner.nodes.get(&ino).cloned() {
            drop(inner);
            // Its reference goes without the lock.
            drop(inode);
            return node;
        }
        let is_dir = stat.is_dir();
        let (handle, locks, listing, calls, failed, changes) = Default::default();
        let node = Node { ino, key, is_dir, inode, handle, locks, listing, calls, failed, changes };
        let node = Arc::new(node);
        inner.nodes.insert(ino, node.clone());
        node
    }

    /// The number that an inode has, or would get for the time of a listing.
    pub(crate) fn number_of(&self, stat: &Stat) -> Ino {
        self.inner.lock().number(Key::of(stat))
    }

    /// The VFS holds `ino` no longer.
    pub(crate) fn forget(&self, ino: Ino) {
        let mut inner = self.inner.lock();
        let node = inner.nodes.remove(&ino);
        if let Some(node) = node.as_ref().filter(|node| !node.key.is_living()) {
            inner.numbers.remove(&node.key);
        }
        drop(inner);
        // Its handles close without the lock.
        drop(node);
    }

    /// A handle to read with.
    pub(crate) fn reader(
        &self,
        ino: Ino,
        who: impl FnOnce() -> Result<Arc<Caller>>,
    ) -> Result<Call> {
        self.handle(self.get(ino)?, false, who)
    }

    /// A handle to write with. `EROFS` in a snapshot.
    pub(crate) fn writer(
        &self,
        ino: Ino,
        who: impl FnOnce() -> Result<Arc<Caller>>,
    ) -> Result<Call> {
        let node = self.get(ino)?;
        match node.key.is_living() {
            true => self.handle(node, true, who),
            false => Err(Errno::EROFS),
        }
    }

    fn handle(
        &self,
        node: Arc<Node>,
        writes: bool,
        who: impl FnOnce() -> Result<Arc<Caller>>,
    ) -> Result<Call> {
        let (file, is_new) = node.handle(writes, who)?;
        if is_new {
            self.open.lock().all.push(Arc::downgrade(&node));
        }
        node.calls.begin();
        Ok(Call { node, file, writes })
    }

    /// Keeps a handle that was opened with the inode.
    pub(crate) fn put_writer(&self, node: &Arc<Node>, file: OpenFile, who: Arc<Caller>) {
        let (file, used) = (Arc::new(file), Instant::now());
        *node.handle.lock() = Some(Handle { file, who, writes: true, used, pinned: false });
        self.open.lock().all.push(Arc::downgrade(node));
    }

    /// How many have an open handle.
    pub(crate) fn open_handles(&self) -> usize {
        let nodes: Vec<_> = self.inner.lock().nodes.values().cloned().collect();
        nodes.iter().filter(|node| node.open_handle().is_some()).count()
    }

    /// Closes the handles that were not used lately. Waits for none.
    pub(crate) fn close_idle(&self) {
        let mut open = self.open.lock();
        let mut looked_at = std::mem::take(&mut open.all);
        open.looked_at.clone_from(&looked_at);
        drop(open);
        let now = Instant::now();
        looked_at.retain(|node| {
            let Some(node) = node.upgrade() else { return false };
            let idle = node.close_idle(now, false);
            if idle == Idle::Waits {
                self.close_apart(node, now);
            }
            idle != Idle::Closed
        });
        let mut open = self.open.lock();
        open.all.append(&mut looked_at);
        open.looked_at.clear();
    }

    /// Closes an idle handle by a thread that may wait for the cluster, unless enough of them do.
    fn close_apart(&self, node: Arc<Node>, now: Instant) {
        if Arc::strong_count(&self.closers) > CLOSERS_MAX {
            return;
        }
        let (closer, held) =
            (thread::Builder::new().name("ceph-close".into()), self.closers.clone());
        // Without a thread, the handle is looked at again.
        let _ = closer.spawn(move || {
            node.close_idle(now, true);
            drop(held);
        });
    }

    /// Wakes calls that the library left waiting.
    pub(crate) fn wake_calls(&self) {
        let open = self.open.lock();
        let nodes: Vec<_> = open.looked_at.iter().chain(&open.all).cloned().collect();
        drop(open);
        nodes.iter().filter_map(Weak::upgrade).for_each(|node| node.wake_calls());
    }
}

impl Inner {
    fn number(&mut self, key: Key) -> Ino {
        if key.is_living() {
            return Ino(key.0);
        }
        let last = &mut self.last_own;
        *self.numbers.entry(key).or_insert_with(|| {
            *last += 1;
            Ino(OWN_NUMBER | *last)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_that_wrote_is_not_idle_until_it_was_synced() {
        let (calls, unused) = (Calls::default(), IDLE_TIME_MAX * 2);
        assert!(calls.is_idle(unused) && !calls.is_idle(IDLE_TIME_MAX));
        calls.begin();
        assert!(!calls.is_idle(unused), "a read is under way");
        calls.end(false);
        assert!(calls.is_idle(unused));
        calls.begin();
        calls.end(true);
        assert!(!calls.is_idle(unused), "what it wrote may fail yet");
        let failed = calls.sync(|wrote| {
            assert!(wrote);
            calls.begin();
            calls.end(true);
            Err(Errno::EIO)
        });
        assert_eq!(failed, Err(Errno::EIO));
        assert!(!calls.is_idle(unused), "written during the sync");
        assert_eq!(calls.sync(|_| Ok(())), Ok(()));
        assert!(calls.is_idle(unused));
        assert_eq!(calls.sync(|wrote| if wrote { Err(Errno::EIO) } else { Ok(()) }), Ok(()));
        calls.begin();
        calls.end(true);
        assert!(calls.is_idle(UNSYNCED_TIME_MAX * 2), "not for ever");
    }
}
