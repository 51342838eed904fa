//! What inodes and open files need of their VFS: the libservice and the private tables.
//!
//! `Vfs` ─► `Core` ◄─ `Inode`. The dentry table holds inodes, which hold the core: the circle is
//! broken when the `Vfs` is dropped, which empties the dentry table.

use polylane_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use polylane_base::sync::{Arc, Mutex, thread};
use polylane_base::{Errno, Ino, Result, Time};

use crate::acls::Inherited;
use crate::cache::PageCache;
use crate::ctx::OpCtx;
use crate::dentry::{Cached, DentryTable};
use crate::fs::{Attr, Character, FileSystem, Kind, Revived};
use crate::inode::{FREED, Inode, LOCKED, NO_CAPS, Node};
use crate::inodes::InodeTable;
use crate::lease::Leases;
use crate::loans::Loans;
use crate::lock::{LockTable, Shared};
use crate::marks::{Marks, Told};
use crate::nameless::Nameless;
use crate::stats::{Count, Counters, Stats};
use crate::unsynced::Unsynced;
use crate::vfs::Options;
use crate::walk::Covered;

/// The shared state of one VFS.
pub(crate) struct Core {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) character: Character,
    pub(crate) options: Options,
    pub(crate) covered: Vec<Covered>,
    pub(crate) inodes: InodeTable,
    pub(crate) dentries: DentryTable,
    pub(crate) locks: LockTable,
    pub(crate) shared_locks: Shared,
    pub(crate) cache: PageCache,
    pub(crate) leases: Leases,
    pub(crate) marks: Marks,
    pub(crate) told: Told,
    pub(crate) unsynced: Unsynced,
    pub(crate) loans: Loans,
    pub(crate) nameless: Nameless,
    pub(crate) counters: Counters,
    /// Held by a rename between two directories: while it is, no directory gets another parent.
    pub(crate) renaming: Mutex<()>,
    next_id: AtomicU64,
}

impl Core {
    /// For a libservice that may be treated otherwise than it says.
    pub(crate) fn with_character(
        fs: Arc<dyn FileSystem>,
        character: Character,
        options: Options,
    ) -> Arc<Core> {
        Arc::new(Core {
            character,
            fs,
            inodes: InodeTable::default(),
            dentries: DentryTable::default(),
            locks: LockTable::default(),
            shared_locks: Shared::default(),
            cache: PageCache::new(&options),
            leases: Leases::default(),
            marks: Marks::default(),
            told: Told::default(),
            unsynced: Unsynced::default(),
            loans: Loans::default(),
            nameless: Nameless::default(),
            counters: Counters::default(),
            renaming: Mutex::new(()),
            next_id: AtomicU64::new(1),
            covered: options.covered.iter().filter_map(|path| Covered::new(path)).collect(),
            options,
        })
    }

    /// The time of an operation's changes.
    pub(crate) fn now(&self, ctx: &OpCtx<'_>) -> Time {
        let now = ctx.now(&*self.options.clock);
        match self.character.whole_seconds {
            true => Time { nsec: 0, ..now },
            false => now,
        }
    }

    pub(crate) fn count(&self, count: Count) {
        self.counters.add(count, 1);
    }

    /// Counters, for `polylane stats` and for tests.
    pub(crate) fn stats(&self) -> Stats {
        let get = |count| self.counters.get(count);
        let (dentries, dentry_hits, dentry_misses) = self.dentries.totals();
        Stats {
            ops: get(Count::Ops),
            dentry_hits,
            dentry_misses,
            dentries,
            inodes: self.inodes.len() as u64,
            page_hits: get(Count::PageHits),
            page_misses: get(Count::PageMisses),
            pages: self.cache.pages(),
            dirty_bytes: self.cache.dirty_bytes(),
            written_back_bytes: get(Count::WrittenBack),
            evictions: get(Count::Evictions),
            throttled: get(Count::Throttled),
        }
    }

    /// `EROFS` when changes are refused.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.character.read_only { Err(Errno::EROFS) } else { Ok(()) }
    }

    fn build(self: &Arc<Self>, attr: Attr, parent: Option<&Node>) -> Node {
        let parent = parent.filter(|_| attr.kind == Kind::Dir).cloned();
        let id = self.next_id.fetch_add(1, Relaxed);
        Arc::new(Inode::new(Arc::clone(self), id, attr, parent))
    }

    /// The inode of the root.
    pub(crate) fn adopt_root(self: &Arc<Self>, attr: Attr) -> Node {
        let node = self.build(attr, None);
        self.inodes.insert(&node);
        node
    }

    /// The inode of something that was just created, or found again, of which no more is known.
    pub(crate) fn adopt_made(self: &Arc<Self>, attr: Attr, parent: &Node) -> Node {
        let node = self.build(attr, Some(parent));
        self.inodes.insert(&node);
        node
    }

    /// The inode of something that was just created.
    pub(crate) fn adopt_new(
        self: &Arc<Self>,
        attr: Attr,
        parent: Option<&Node>,
        inherited: Inherited,
    ) -> Node {
        let node = self.build(attr, parent);
        if attr.kind == Kind::File {
            // What is new has no attributes but what it inherited.
            node.raise(NO_CAPS);
        }
        node.made_with(inherited);
        self.inodes.insert(&node);
        node
    }

    /// The inode of a lookup's result, where the lookup began at `epoch` of the inode table.
    /// `None`: the inode was being forgotten meanwhile, look it up again.
    fn adopt(self: &Arc<Self>, attr: Attr, parent: &Node, epoch: u64) -> Option<Node> {
        let node = self
            .inodes
            .find_or_insert(attr.ino, attr.generation, epoch, || self.build(attr, Some(parent)))?;
        if self.character.volatile {
            node.keep_found(attr);
            self.follow_move(&node, parent);
        }
        Some(node)
    }

    /// An inode that a former service held, and the directories above it.
    pub(crate) fn revive(self: &Arc<Self>, root: &Node, ino: Ino, generation: u64) -> Result<Node> {
        let mut below = Vec::new();
        let mut next = (ino, Some(generation));
        let mut above = loop {
            if next.0 == root.ino() {
                break root.clone();
            }
            let Revived { attr, dir } = self.fs.revive(next.0, next.1)?;
            below.push(attr);
            match (attr.kind, dir) {
                (Kind::Dir, Some(dir)) if below.len() < DEPTH_MAX => next = (dir, None),
                (Kind::Dir, _) => return Err(Errno::ESTALE),
                _ => break root.clone(),
            }
        };
        while let Some(attr) = below.pop() {
            let epoch = self.inodes.epoch();
            let build = || self.build(attr, Some(&above));
            let node = self.inodes.find_or_insert(attr.ino, attr.generation, epoch, build);
            above = node.ok_or(Errno::ESTALE)?;
        }
        Ok(above)
    }

    /// A directory of a volatile file system turned up below another parent than before.
    fn follow_move(&self, node: &Node, parent: &Node) {
        if !node.is_dir() || node.parent().id == parent.id || is_ancestor(node, parent) {
            return;
        }
        drop(node.set_parent(parent.clone()));
    }

    /// Finds `name` in `dir` without permission checks.
    pub(crate) fn child(
        self: &Arc<Self>,
        ctx: &OpCtx<'_>,
        dir: &Node,
        name: &[u8],
    ) -> Result<Node> {
        if let Some(known) = self.known_child(dir, name) {
            return known;
        }
        let _entries = dir.lock.read();
        self.ask_child(ctx, dir, name, true)
    }

    /// [`child`](Self::child) for callers that hold the lock of `dir`'s entries.
    pub(crate) fn child_locked(
        self: &Arc<Self>,
        ctx: &OpCtx<'_>,
        dir: &Node,
        name: &[u8],
    ) -> Result<Node> {
        self.known_child(dir, name).unwrap_or_else(|| self.ask_child(ctx, dir, name, true))
    }

    /// [`child_locked`](Self::child_locked) for a name that the caller is about to give to
    /// something else: that it does not exist yet is not worth keeping.
    pub(crate) fn target_locked(
        self: &Arc<Self>,
        ctx: &OpCtx<'_>,
        dir: &Node,
        name: &[u8],
    ) -> Result<Option<Node>> {
        let found =
            self.known_child(dir, name).unwrap_or_else(|| self.ask_child(ctx, dir, name, false));
        match found {
            Ok(node) => Ok(Some(node)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// What the dentry table knows; nothing, where the file system may have changed behind it.
    pub(crate) fn known_child(&self, dir: &Node, name: &[u8]) -> Option<Result<Node>> {
        if self.character.volatile {
            return None;
        }
        match self.dentries.get(dir.id, name) {
            Cached::Miss => None,
            Cached::Negative => Some(Err(Errno::ENOENT)),
            Cached::Positive(node) => Some(Ok(node)),
        }
    }

    /// Asks the libservice and keeps the answer. The lock of `dir`'s entries keeps the answer true
    /// until it is in the table. `keep_absent`: also that there is none.
    fn ask_child(
        self: &Arc<Self>,
        ctx: &OpCtx<'_>,
        dir: &Node,
        name: &[u8],
        keep_absent: bool,
    ) -> Result<Node> {
        loop {
            let epoch = self.inodes.epoch();
            match self.fs.lookup(ctx, dir.ino(), name) {
                Ok(attr) => {
                    if let Some(node) = self.adopt(attr, dir, epoch) {
                        self.dentries.put(dir.id, name, Some(&node));
                        return Ok(node);
                    }
                    thread::yield_now();
                }
                Err(Errno::ENOENT) => {
                    if self.character.volatile {
                        self.dentries.remove(dir.id, name);
                    } else if keep_absent {
                        self.dentries.put(dir.id, name, None);
                    }
                    return Err(Errno::ENOENT);
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    /// The end of an inode: nobody holds it any more.
    pub(crate) fn retire(&self, inode: &Inode) {
        if inode.has(LOCKED) {
            self.locks.forget(inode.id);
            self.shared_locks.forget(inode.id);
        }
        self.marks.forgets(inode);
        self.cache.retire(inode);
        if !inode.has(FREED) {
            self.fs.forget(inode.ino());
        }
        self.inodes.remove(inode);
    }
}

/// Deepest directory chain that is followed upwards; PATH_MAX allows half as many components, but a
/// process can build deeper ones step by step.
const DEPTH_MAX: usize = 1 << 20;

/// Whether directory `above` is `node` or one of its ancestors.
pub(crate) fn is_ancestor(above: &Node, node: &Node) -> bool {
    let mut at = node.clone();
    for _ in 0..DEPTH_MAX {
        if at.id == above.id {
            return true;
        }
        let parent = at.parent();
        if parent.id == at.id {
            return false;
        }
        at = parent;
    }
    // Only a host that moves directories under a volatile file system can build such a chain. The
    // careful answer refuses the rename.
    true
}
