//! The cache libservice: data, attributes and names of another libservice, kept up to a size of its
//! own, and written through to it or back after a time of its own.
//!
//! ```text
//!  what stands above ──► Cached ──┬─► pages ──────► (miss, write-back, write-through) ──┐
//!  (the VFS, a union, a map)      ├─► attributes ─► (not kept where others change them) ├─► below
//!                                 └─► names ──────► (the same)                          ┘
//! ```
//!
//! The pages, the table of names and the flusher are those of the VFS (`cache`, `dentry`), in a set
//! of their own. So that no byte is in two caches of one process, the libservice says [`cache_data:
//! false`](Character::cache_data): the VFS above it has no pages then.
//!
//! # What it promises
//!
//! - `fsync` writes the file's data back and syncs the file below; `sync` does so with everything.
//! - [`Mode::WriteThrough`]: a write has reached the one below when it returns, and an error of the
//!   one below is the writer's. [`Mode::WriteBack`]: it has after the flush interval; an error is
//!   the next `fsync`'s, once for each failure, and the VFS tells it to every open file
//!   ([`FileSystem::keeps_writes`]). What failed stays, and is tried again.
//! - Changes of names and of attributes reach the one below at once. After a power cut a name may
//!   be there whose data is not, as where the VFS keeps the pages.
//! - Where others change the files below (`volatile`), neither names nor attributes are kept, and
//!   before each read or write of a file its state below is compared with the one that its pages
//!   were read at: where size, modification or change time differ, the clean pages go. Changed
//!   pages stay, and win.
//!
//! # Locking
//!
//! ```text
//! entries of a directory, or a file's data ─► backing ─► attr ─► the one below
//! leaf: nodes
//! ```
//!
//! What stands above never changes a directory, or a file's data, twice at a time (the seam's
//! contract), so these locks wait for lookups and readers alone. A rename between two directories
//! takes both; the contract has only one of these at a time.

mod data;
mod fs;

use std::time::Duration;

use rustc_hash::FxHashMap;

use polylane_base::sync::{Arc, Mutex, RwLock, thread};
use polylane_base::{Clock, Errno, Ino, Result};

use crate::cache::{ReadAhead, start_flusher};
use crate::core::Core;
use crate::fs::{Attr, Character, FileSystem};
use crate::inode::Node;
use crate::stats::Stats;
use crate::vfs::{Options, Vfs};
use data::Stamp;

/// When what was written reaches the libservice below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// After the flush interval, or when it is synced.
    WriteBack,
    /// Before the write returns.
    WriteThrough,
}

/// How a [`Cached`] is to behave.
#[derive(Clone)]
pub struct Settings {
    /// When writes reach the one below.
    pub mode: Mode,
    /// Most bytes of file data kept.
    pub bytes_limit: u64,
    /// Most bytes of changed data waiting to be written back; writers wait above it.
    pub dirty_bytes_limit: u64,
    /// Longest time that changed data waits.
    pub flush_interval: Duration,
    /// Time stamps of writes that wait.
    pub clock: Arc<dyn Clock>,
}

/// See the module header. Dropping it writes everything back. Thread-safe.
pub struct Cached {
    core: Arc<Core>,
    root: Node,
    mode: Mode,
    /// What stands above has these.
    nodes: RwLock<FxHashMap<Ino, Arc<Held>>>,
    /// Writes changed data back, where it waits.
    flusher: Option<thread::JoinHandle<()>>,
}

/// An inode that what stands above has.
struct Held {
    node: Node,
    ahead: ReadAhead,
    /// The state below that the clean pages are of; `None`: of an unknown one. Only where others
    /// change files.
    stamp: Mutex<Option<Stamp>>,
}

impl Held {
    fn new(node: &Node) -> Arc<Held> {
        let (ahead, stamp) = (ReadAhead::default(), Mutex::default());
        Arc::new(Held { node: node.clone(), ahead, stamp })
    }
}

impl Cached {
    /// Stands over `below`.
    ///
    /// # Errors
    /// Of `below` when it is asked for its root; no thread could be started.
    pub fn new(below: Arc<dyn FileSystem>, settings: Settings) -> Result<Cached> {
        let Settings { mode, bytes_limit, dirty_bytes_limit, flush_interval, clock } = settings;
        let options = Options {
            clock,
            cache_bytes_limit: bytes_limit,
            dirty_bytes_limit,
            flush_interval,
            mount_path: Vec::new(),
            covered: Vec::new(),
        };
        let character = Character { cache_data: true, ..below.character() };
        let core = Core::with_character(below, character, options);
        let root = core.adopt_root(core.fs.root()?);
        let writes = mode == Mode::WriteBack && !character.read_only;
        let flusher = writes.then(|| start_flusher(&core)).transpose()?;
        let nodes = RwLock::new(FxHashMap::from_iter([(root.ino(), Held::new(&root))]));
        Ok(Cached { core, root, mode, nodes, flusher })
    }

    /// When writes reach the one below.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What it keeps and has done.
    pub fn stats(&self) -> Stats {
        self.core.stats()
    }

    fn below(&self) -> &dyn FileSystem {
        &*self.core.fs
    }

    /// Whether changed data waits here.
    fn keeps_back(&self) -> bool {
        self.flusher.is_some()
    }

    /// Whether the one below wants its data cached: what it was told is durable only once it was
    /// synced.
    fn is_of_cached(&self) -> bool {
        self.below().character().cache_data
    }

    fn is_volatile(&self) -> bool {
        self.core.character.volatile
    }

    /// An inode that what stands above has. `ESTALE`: it has none of that number.
    fn held(&self, ino: Ino) -> Result<Arc<Held>> {
        self.nodes.read().get(&ino).cloned().ok_or(Errno::ESTALE)
    }

    /// From now on what stands above has it.
    fn hold(&self, node: &Node) {
        let ino = node.ino();
        if self.nodes.read().get(&ino).is_some_and(|held| held.node.id == node.id) {
            return;
        }
        let mut nodes = self.nodes.write();
        let is_known = nodes.get(&ino).is_some_and(|held| held.node.id == node.id);
        let former = if is_known { None } else { nodes.insert(ino, Held::new(node)) };
        drop(nodes);
        drop(former);
    }

    /// Something that the one below has just made, or found again.
    fn made(&self, attr: Attr, parent: &Node) -> Node {
        let node = self.core.adopt_made(attr, parent);
        self.hold(&node);
        node
    }

    /// `name` in `dir` names that from now on. Call with the entries of `dir` locked for change.
    fn named(&self, dir: &Node, name: &[u8], node: Option<&Node>) {
        match self.is_volatile() {
            // Nothing is asked of it there; it keeps what was looked up from being forgotten.
            true => self.core.dentries.remove(dir.id, name),
            false => self.core.dentries.put(dir.id, name, node),
        }
    }

    /// A state as it is to be told, with the space that changed data is going to take.
    fn told(node: &Node, attr: Attr) -> Attr {
        Vfs::with_blocks_to_come(node, attr)
    }
}

impl Drop for Cached {
    fn drop(&mut self) {
        self.core.cache.flusher.stop();
        if let Some(flusher) = self.flusher.take() {
            // A flusher that panicked has said so; what it left is written below.
            let _ = flusher.join();
        }
        // A program that wanted to know of an error has synced.
        let _ = self.core.write_back_files(false);
        // These hold inodes, and inodes hold the core: this opens the circles.
        self.nodes.write().clear();
        self.core.cache.abandon();
        self.core.dentries.clear();
    }
}
