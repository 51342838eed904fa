//! Which files have bytes, and which directories names, that a service takes along when it is
//! killed: those that changed since they were last made durable.
//!
//! The next service must not go on with an open file that lost its middle, nor say that names are
//! durable which are gone. So a file or directory that begins to change has a record in the
//! handover (`Kind::Unsynced`: its number and generation, and 1 for a directory), which goes when
//! everything of it is durable. Only where data is cached, here or by the libservice
//! (`FileSystem::keeps_writes`: files alone); elsewhere nothing is lost.
//!
//! A lost directory is as it was when it was last durable, and can be used; the fsync that was to
//! make its names last fails, as the kernel has a failed write-back told: once to each that had it
//! open, and else to the first who comes.
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
//! A file's data or a directory's entries, then `files` or `lost`, leaves.

use std::sync::OnceLock;

use rustc_hash::FxHashMap;

use polylane_base::sync::{Arc, Mutex, Weak};
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
    /// Directories that lost names with a former service, by number and generation.
    lost: OnceLock<Mutex<FxHashMap<(u64, u64), Told>>>,
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
        // Names that are kept below the VFS are another process', which lives on.
        if node.is_dir() && !self.character.cache_data {
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
        self.end_sync(begun);
        Ok(())
    }
}
