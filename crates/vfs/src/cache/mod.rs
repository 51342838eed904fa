//! The page cache: file data in pages of 4 KiB, for libservices that ask for it
//! ([`Character::cache_data`](crate::fs::Character::cache_data)).
//!
//! ```text
//!  OpenFile::read ──► io ──► pages (hit) ──► sink
//!                      └───► libservice (miss, read-ahead) ──► pages
//!  OpenFile::write ─► throttle ─► io ──► pages, dirty ─► size and times kept here ("delayed")
//!  cached ─────────► through ─► libservice, then pages
//!  flusher, fsync ──► writeback ──► runs of dirty pages ──► libservice ──► then size and times
//! ```
//!
//! # Invariants
//!
//! - `pages` and `dirty` count what all [`FilePages`] of the VFS hold; a page on its way to the
//!   libservice counts as dirty until it arrived.
//! - A file with dirty pages is in `dirty_files`, which keeps a file with links alive. A file
//!   without links is held weakly: when its last user goes, so does its data.
//!
//! # Locking
//!
//! ```text
//! a file's data ─► backing ─► attr ─► libservice        leaves: clock · flusher state · frames
//!                         └─► dirty_files ─► map
//! ```
//!
//! A file's `map` is held to copy bytes, never over a call of the libservice that is not such a
//! copy.

mod evict;
mod io;
mod pages;
mod through;
mod writeback;

pub(crate) use io::ReadAhead;
pub(crate) use pages::FilePages;
pub(crate) use writeback::start_flusher;

use rustc_hash::FxHashMap;

use polylane_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use polylane_base::sync::{Arc, Mutex};
use polylane_sys::frames::{FRAME_BYTES, Frame, Frames};

use crate::inode::{Inode, Node};
use crate::vfs::Options;
use evict::Clock;
use pages::Delta;
use writeback::{DirtyFile, Flusher};

/// Bytes in a page.
pub(crate) const PAGE: usize = 4096;

/// The bytes of a page.
pub(crate) type PageData = Frame;

const _: () = assert!(PAGE == FRAME_BYTES);

/// Fewest pages that a limit may leave: below this, a single large write could not be cached.
const PAGES_MIN: u64 = 64;

/// What the files of one VFS share of the page cache.
pub(crate) struct PageCache {
    pages_max: u64,
    dirty_max: u64,
    pages: AtomicU64,
    dirty: AtomicU64,
    clock: Mutex<Clock>,
    dirty_files: Mutex<FxHashMap<u64, DirtyFile>>,
    /// Where pages are taken from.
    frames: Frames,
    pub(crate) flusher: Flusher,
}

impl PageCache {
    pub(crate) fn new(options: &Options) -> PageCache {
        let pages_max = (options.cache_bytes_limit / PAGE as u64).max(PAGES_MIN);
        // Dirty pages cannot be evicted: at most half of the cache may be dirty.
        let dirty_max = (options.dirty_bytes_limit / PAGE as u64).clamp(1, pages_max / 2);
        PageCache {
            pages_max,
            dirty_max,
            pages: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            clock: Mutex::default(),
            dirty_files: Mutex::default(),
            frames: Frames::default(),
            flusher: Flusher::default(),
        }
    }

    /// Pages now.
    pub(crate) fn pages(&self) -> u64 {
        self.pages_now()
    }

    /// Bytes in dirty pages now.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_now() * PAGE as u64
    }

    /// Dirty pages now. A page may be written back before it was counted: then less than nothing
    /// is.
    fn dirty_now(&self) -> u64 {
        self.dirty.load(Relaxed).cast_signed().max(0).cast_unsigned()
    }

    /// Cached pages now. A page may be evicted before it was counted.
    fn pages_now(&self) -> u64 {
        self.pages.load(Relaxed).cast_signed().max(0).cast_unsigned()
    }

    fn added(&self, delta: Delta) {
        self.pages.fetch_add(delta.pages, Relaxed);
        self.dirty.fetch_add(delta.dirty, Relaxed);
    }

    fn removed(&self, delta: Delta) {
        self.pages.fetch_sub(delta.pages, Relaxed);
        self.dirty.fetch_sub(delta.dirty, Relaxed);
    }

    /// An inode ends, and its pages with it.
    pub(crate) fn retire(&self, inode: &Inode) {
        let Some(pages) = inode.pages_used() else { return };
        self.removed(pages.counts());
        self.clock.lock().remove(inode.id);
        // What it held was only a weak reference, or we would not be here.
        let former = self.dirty_files.lock().remove(&inode.id);
        drop(former);
    }

    /// The last link of `node` may be gone: then it is no longer worth being kept for its data.
    pub(crate) fn unlinked(&self, node: &Node) {
        self.hold(node);
    }

    /// `node` may have got a first link: its data must be kept.
    pub(crate) fn linked(&self, node: &Node) {
        self.hold(node);
    }

    /// `node` is no longer worth being kept for its data, until [`unlinked`](Self::unlinked) looks
    /// again.
    pub(crate) fn let_go(&self, node: &Node) {
        self.hold_as(node, DirtyFile::nameless);
    }

    /// Holds a dirty file as its link count demands.
    fn hold(&self, node: &Node) {
        self.hold_as(node, DirtyFile::of);
    }

    fn hold_as(&self, node: &Node, how: fn(&Node) -> DirtyFile) {
        let Some(pages) = node.pages_used() else { return };
        let mut files = self.dirty_files.lock();
        let former = files.get_mut(&node.id).map(|file| {
            let new = how(node);
            pages.keep(new.keeps());
            std::mem::replace(file, new)
        });
        drop(files);
        drop(former);
    }

    /// How many hold the file, beside the list of dirty files.
    pub(crate) fn holders(&self, node: &Node) -> usize {
        // Nobody is added to the list or taken off it meanwhile.
        let _files = self.dirty_files.lock();
        let kept = node.pages_used().is_some_and(FilePages::is_kept);
        Arc::strong_count(node) - usize::from(kept)
    }

    /// A file with pages takes part in the CLOCK.
    fn watch(&self, node: &Node, pages: &FilePages) {
        if !pages.clocked.swap(true, Relaxed) {
            self.clock.lock().add(node.id, Arc::downgrade(node));
        }
    }
}
