//! Which files have bytes, and which directories names, that a service takes along when it is
//! killed: those that changed since they were last made durable.
//!
//! The next service must not go on with an open file that lost its middle, nor say that names are
//! durable which are gone. So a file or directory that begins to change has a record in the
//! handover (`Kind::Unsynced`: its number and generation, and 1 for a directory), which goes when
//! everything of it is durable. Only where data is cached, here or by the libservice
//! (`FileSystem::keeps_writes`; of directories only where it says `keeps_names`, too); elsewhere
//! nothing is lost.
//!
//! A lost directory is as it was when it was last durable, and can be used; the fsync that was to
//! make its names last fails, as the kernel has a failed write-back told: once to each that had it
//! open, and else to the first who comes.
//!
//! A libservice that keeps writes itself may lose them and yet say that a sync of everything has
//! succeeded (libcephfs does once the cluster has barred it): there each file that changed is asked
//! for after such a sync. A failure that a program has not asked for is told to each opening of the
//! file once, and until one was told the file keeps its record. The libservice may tell a failure
//! to one of several syncs of a file that overlap: each of them waits until the outcome of the
//! others is recorded.
//!
//! # Invariants
//!
//! - A file whose data changed since it was made durable, and a directory whose names did, has a
//!   record and the flag [`UNSYNCED`], or a sync is under way that began after the change, and the
//!   record is there.
//! - The flag goes up with data or entries locked for change, before the change, and down with them
//!   locked.
//!
//! # Locking
//!
//! A file's data or a directory's entries, then `files`, `failed`, `lost` or `syncs`, leaves.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use rustc_hash::FxHashMap;

use polylane_base::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use polylane_base::sync::{Arc, Condvar, Mutex, Weak};
use polylane_base::{Errno, Result};

use crate::core::Core;
use crate::ctx::OpCtx;
use crate::handover::{Kind, Slot, Store};
use crate::inode::{Inode, LENT, Node, UNSYNCED};
use crate::vfs::Vfs;

/// A file or directory that changed.
struct Changed {
    inode: Weak<Inode>,
    /// `None`: there is no room for a record.
    record: Option<Slot>,
    /// How often it began to change.
    times: u64,
}

/// The files and directories of one VFS that changed since they were made durable. Thread-safe.
#[derive(Default)]
pub(crate) struct Unsynced {
    store: OnceLock<Arc<Store>>,
    files: Mutex<FxHashMap<u64, Changed>>,
    /// Files that syncs failed for, by `Inode::id`.
    failed: Mutex<FxHashMap<u64, Failed>>,
    /// There was one.
    has_failed: AtomicBool,
    syncs: Syncs,
    /// Directories that lost names with a former service, by number and generation.
    lost: OnceLock<Mutex<FxHashMap<(u64, u64), Told>>>,
}

/// A file that syncs failed for.
struct Failed {
    inode: Weak<Inode>,
    errno: Errno,
    /// How often.
    times: u64,
    /// A program knows.
    is_told: bool,
}

/// Syncs of single files which a file system that keeps writes was asked for.
#[derive(Default)]
struct Syncs {
    asked: Mutex<Asked>,
    ended: Condvar,
}

#[derive(Default)]
struct Asked {
    /// The number of the last one.
    last: u64,
    /// Those whose outcome is not recorded yet, by number, and the `Inode::id` of each.
    open: BTreeMap<u64, u64>,
}

/// A sync of a file that is under way, until this is dropped.
struct Running<'a> {
    syncs: &'a Syncs,
    number: u64,
}

impl Drop for Running<'_> {
    /// Also where the file system panicked: no other sync waits for this one any more.
    fn drop(&mut self) {
        self.syncs.asked.lock().open.remove(&self.number);
        self.syncs.ended.notify_all();
    }
}

impl Syncs {
    /// Makes a sync of a file and records its outcome. When this returns, the outcome of those of
    /// the same file that overlap it is recorded, too.
    fn run(&self, file: u64, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        let running = {
            let mut asked = self.asked.lock();
            asked.last += 1;
            let number = asked.last;
            asked.open.insert(number, file);
            Running { syncs: self, number }
        };
        let result = sync();
        drop(running);
        let mut asked = self.asked.lock();
        // Those that begin later learn of all that failed until now.
        let last = asked.last;
        while asked.open.range(..=last).any(|(_, of)| *of == file) {
            asked = self.ended.wait(asked);
        }
        result
    }
}

/// Whether anybody was told that a directory lost names.
type Told = bool;

/// A sync that has begun: a file, and how often it had begun to change.
pub(crate) struct Begun {
    id: u64,
    times: u64,
    inode: Weak<Inode>,
}

impl Vfs {
    /// These directories, by number and generation, lost names with a former service: before the
    /// first operation. A second call changes nothing.
    pub fn names_were_lost(&self, lost: impl Iterator<Item = (u64, u64)>) {
        let lost: FxHashMap<_, Told> = lost.map(|of| (of, false)).collect();
        if !lost.is_empty() {
            let _ = self.core.unsynced.lost.set(Mutex::new(lost));
        }
    }

    /// From now on the next service is told which files and directories are not durable.
    pub fn tell_unsynced(&self, store: Arc<Store>) {
        if self.core.loses_writes() {
            // A second call would be a bug and changes nothing.
            let _ = self.core.unsynced.store.set(store);
        }
    }
}

impl Core {
    /// A file's bytes or size are about to change. Call with the data locked for change.
    #[inline]
    pub(crate) fn begins_to_change(&self, node: &Node) {
        if !node.has(UNSYNCED)
            && let Some(store) = self.unsynced.store.get()
        {
            self.note_change(node, store);
        }
    }

    /// What `name` in `dir` names is about to change. Call with the entries locked for change.
    #[inline]
    pub(crate) fn name_changes(&self, dir: &Node, name: &[u8]) {
        self.begins_to_change(dir);
        self.marks.name_changes(dir, name);
    }

    /// Whether somebody was told that the directory lost names: who opens it now need not be.
    pub(crate) fn was_told_of_lost_names(&self, dir: &Inode) -> bool {
        let of = || (dir.ino().0, dir.generation());
        self.unsynced.lost.get().is_some_and(|lost| lost.lock().get(&of()) == Some(&true))
    }

    /// `EIO` if the directory lost names: for an opening that was not told yet.
    pub(crate) fn tell_of_lost_names(&self, dir: &Inode) -> Result<()> {
        let Some(lost) = self.unsynced.lost.get() else { return Ok(()) };
        match lost.lock().get_mut(&(dir.ino().0, dir.generation())) {
            Some(told) => {
                *told = true;
                Err(Errno::EIO)
            }
            None => Ok(()),
        }
    }

    /// Whether what was written since the last sync goes with this process.
    pub(crate) fn loses_writes(&self) -> bool {
        self.character.cache_data || self.fs.keeps_writes()
    }

    #[cold]
    fn note_change(&self, node: &Node, store: &Store) {
        let keeps_names = || self.character.cache_data || self.fs.keeps_names();
        if node.is_dir() && !keeps_names() {
            return;
        }
        let mut files = self.unsynced.files.lock();
        let changed = files.entry(node.id).or_insert_with(|| {
            let words = [node.ino().0, node.generation(), node.is_dir().into(), 0, 0, 0, 0];
            let record = store.put(Kind::Unsynced, words, b"");
            Changed { inode: Arc::downgrade(node), record, times: 0 }
        });
        changed.times += 1;
        node.raise(UNSYNCED);
    }

    /// Whatever changes in a file from now on is not made durable by the sync that begins. `None`:
    /// it did not change. Call without locks.
    pub(crate) fn begin_sync(&self, inode: &Inode) -> Option<Begun> {
        self.unsynced.store.get()?;
        {
            let _data = inode.lock.read();
            if inode.has(LENT) {
                return None;
            }
            inode.lower(UNSYNCED);
        }
        let files = self.unsynced.files.lock();
        let changed = files.get(&inode.id)?;
        Some(Begun { id: inode.id, times: changed.times, inode: changed.inode.clone() })
    }

    /// The failures of a file's syncs that an opening need not be told: those that a program knows.
    pub(crate) fn known_failures(&self, inode: &Inode) -> u64 {
        if !self.unsynced.has_failed.load(SeqCst) {
            return 0;
        }
        let failed = self.unsynced.failed.lock();
        failed.get(&inode.id).filter(|failed| failed.is_told).map_or(0, |failed| failed.times)
    }

    /// Has the file system make one file durable, for a program: what is to be told of that, and of
    /// syncs before that the program did not ask for, unless `seen` says that it was told.
    pub(crate) fn sync_file(
        &self,
        (ctx, node, data_only): (&OpCtx<'_>, &Node, bool),
        seen: &AtomicU64,
    ) -> Result<()> {
        let sync = || self.fs.fsync_unlocked(ctx, node.ino(), data_only);
        if node.is_dir() || !self.fs.keeps_writes() {
            return sync();
        }
        let synced = self.recorded(node, sync);
        if !self.unsynced.has_failed.load(SeqCst) {
            return synced;
        }
        let mut failed = self.unsynced.failed.lock();
        let Some(failed) = failed.get_mut(&node.id) else { return synced };
        if seen.swap(failed.times, SeqCst) == failed.times {
            return synced;
        }
        failed.is_told = true;
        Err(failed.errno)
    }

    /// Makes a sync of a file and records a failure; see [`Syncs::run`].
    fn recorded(&self, node: &Node, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        self.unsynced
            .syncs
            .run(node.id, || sync().inspect_err(|&errno| self.sync_failed(node, errno)))
    }

    fn sync_failed(&self, node: &Node, errno: Errno) {
        let mut failed = self.unsynced.failed.lock();
        let new = || Failed { inode: Arc::downgrade(node), errno, times: 0, is_told: false };
        let place = failed.entry(node.id).or_insert_with(new);
        (place.errno, place.times, place.is_told) = (errno, place.times + 1, false);
        self.unsynced.has_failed.store(true, SeqCst);
    }

    /// The same for every file that changed; those that nobody uses any more cannot change.
    pub(crate) fn begin_sync_all(&self) -> Vec<Begun> {
        let all: Vec<(u64, u64, Weak<Inode>)> = {
            let files = self.unsynced.files.lock();
            let each = files.iter();
            each.map(|(id, changed)| (*id, changed.times, changed.inode.clone())).collect()
        };
        let begin = |(id, times, inode): (u64, u64, Weak<Inode>)| match inode.upgrade() {
            Some(node) => self.begin_sync(&node),
            None => Some(Begun { id, times, inode }),
        };
        all.into_iter().filter_map(begin).collect()
    }

    /// What a sync began with is durable, as far as it was written back and did not change again.
    pub(crate) fn end_sync(&self, begun: impl IntoIterator<Item = Begun>) {
        let Some(store) = self.unsynced.store.get() else { return };
        for Begun { id, times, inode } in begun {
            let node = inode.upgrade();
            let pages = node.as_ref().and_then(|node| node.pages_used());
            let is_untold = || {
                let failed = self.unsynced.failed.lock();
                failed.get(&id).is_some_and(|failed| !failed.is_told)
            };
            if node.is_some() && self.unsynced.has_failed.load(SeqCst) && is_untold() {
                continue;
            }
            if pages.is_some_and(|pages| !pages.is_clean()) {
                // Changed again, or without a name: those are not always written. The
                // flag that is down has the next change counted.
                continue;
            }
            let mut files = self.unsynced.files.lock();
            if files.get(&id).is_some_and(|changed| changed.times == times)
                && let Some(Changed { record: Some(record), .. }) = files.remove(&id)
            {
                store.free(record);
            }
        }
    }

    /// Has the file system make durable what was written back, if anything changed.
    pub(crate) fn sync_changed(&self, ctx: &OpCtx<'_>, begun: Vec<Begun>) -> Result<()> {
        if begun.is_empty() {
            return Ok(());
        }
        self.fs.sync(ctx)?;
        self.end_sync_all(ctx, begun)
    }

    /// The file system has made everything durable: ends the sync of the files that this is true
    /// for. Call without locks.
    ///
    /// # Errors
    /// Of one of the others, which the openings of its file are told, too.
    pub(crate) fn end_sync_all(&self, ctx: &OpCtx<'_>, mut begun: Vec<Begun>) -> Result<()> {
        let mut result = Ok(());
        if self.fs.keeps_writes() {
            begun.retain(|begun| {
                let asked = begun.inode.upgrade().map_or(Ok(()), |node| self.ask_for(ctx, &node));
                result = result.and(asked);
                asked.is_ok()
            });
            let mut failed = self.unsynced.failed.lock();
            failed.retain(|_, failed| failed.inode.strong_count() > 0);
        }
        self.end_sync(begun);
        result
    }

    /// Asks for one file whether all that was written to it is durable.
    fn ask_for(&self, ctx: &OpCtx<'_>, node: &Node) -> Result<()> {
        if node.is_dir() {
            return Ok(());
        }
        let failures = || {
            let failed = self.unsynced.failed.lock();
            failed.get(&node.id).map(|failed| (failed.times, failed.errno))
        };
        let before = failures();
        self.recorded(node, || match self.fs.fsync(ctx, node.ino(), true) {
            // Its last name has gone meanwhile, and it with it.
            Err(Errno::ESTALE) => Ok(()),
            synced => synced,
        })?;
        // A program's own sync beside this one was told instead.
        failures().filter(|&now| Some(now) != before).map_or(Ok(()), |(_, errno)| Err(errno))
    }
}
