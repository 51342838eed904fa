//! Write-back: dirty pages go to the libservice, by the flusher, by fsync(2), or because too much
//! is dirty.

use std::time::Duration;

use polylane_base::sync::atomic::Ordering::Relaxed;
use polylane_base::sync::{Arc, Condvar, Mutex, RwLockWriteGuard, Weak, thread};
use polylane_base::{Errno, Result};

use super::pages::{FilePages, Run, RunSource};
use super::{PAGE, PageCache};
use crate::core::Core;
use crate::ctx::OpCtx;
use crate::fs::{Attr, Late, SetAttr, SetTime, Syncing};
use crate::inode::{Inode, LENT, Node};
use crate::stats::Count;

/// Shortest pause of the flusher: an interval of 0 must not make it spin.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// A file in the list of dirty files.
pub(super) enum DirtyFile {
    /// It has a name: its data must be kept.
    Linked(Node),
    /// It has none: its data lives as long as somebody uses it.
    Unlinked(Weak<Inode>),
}

impl DirtyFile {
    pub(super) fn of(node: &Node) -> DirtyFile {
        if node.nlink() > 0 { DirtyFile::Linked(node.clone()) } else { DirtyFile::nameless(node) }
    }

    pub(super) fn nameless(node: &Node) -> DirtyFile {
        DirtyFile::Unlinked(Arc::downgrade(node))
    }

    /// Whether it keeps the file alive.
    pub(super) fn keeps(&self) -> bool {
        matches!(self, DirtyFile::Linked(_))
    }

    /// The file, if it is to be written: one without a name only when that is asked for.
    fn to_write(&self, nameless: bool) -> Option<Node> {
        match self {
            DirtyFile::Linked(node) => Some(node.clone()),
            DirtyFile::Unlinked(inode) if nameless => inode.upgrade(),
            DirtyFile::Unlinked(_) => None,
        }
    }
}

/// Most dirty pages of a file that is written together with others.
const SMALL_PAGES: usize = 16;

/// Pages of files that are written together, and how many files: their reads of what is not cached
/// wait meanwhile.
const BATCH_PAGES: u64 = 128;
const BATCH_FILES: usize = 64;

/// A file of which little is dirty, on its way to the libservice.
struct Small<'a> {
    node: &'a Node,
    pages: &'a FilePages,
    backing: RwLockWriteGuard<'a, ()>,
    run: Run,
    /// Its state as the run was taken.
    state: Attr,
}

impl<'a> Small<'a> {
    /// Takes a file's dirty pages, if they are few, in one piece, and nobody is at the libservice's
    /// copy. A thread that has taken several files never waits for one more.
    fn take(node: &'a Node, pages: &'a FilePages) -> Option<Small<'a>> {
        let backing = pages.backing.try_write().filter(|_| pages.dirty_piece(SMALL_PAGES))?;
        let run = pages.take_run(0, || node.size())?;
        let state = *node.attr();
        Some(Small { node, pages, backing, run, state })
    }

    fn late<'s>(&self, source: &'s mut RunSource<'a>) -> Late<'s> {
        let times = [self.state.mtime, self.state.ctime];
        Late { ino: self.node.ino(), offset: self.run.offset(), source, times }
    }

    /// The libservice answered.
    fn end(self, core: &Core, stored: Result<Attr>) -> Result<()> {
        let Small { node, pages, backing, run, state } = self;
        let new = match stored {
            Ok(new) => new,
            Err(errno) => {
                core.cache.removed(pages.failed(run, errno));
                return Err(errno);
            }
        };
        core.cache.removed(pages.written(run));
        core.counters.add(Count::WrittenBack, run.len as u64);
        let mut held = node.attr();
        if pages.can_catch_up() && *held == state {
            pages.caught_up();
            node.keep(&mut held, new);
        }
        drop(held);
        // Where it changed meanwhile, the libservice was told of what is over.
        core.catch_up(node, pages)?;
        drop(backing);
        core.cache.unlist(node, pages);
        Ok(())
    }
}

/// Files that are written together.
#[derive(Default)]
struct Batch<'a> {
    files: Vec<Small<'a>>,
    pages: u64,
}

impl<'a> Batch<'a> {
    fn add(&mut self, core: &Core, small: Small<'a>) -> Result<()> {
        self.pages += small.run.len.div_ceil(PAGE) as u64;
        self.files.push(small);
        match self.pages >= BATCH_PAGES || self.files.len() == BATCH_FILES {
            true => self.store(core),
            false => Ok(()),
        }
    }

    /// Has them stored. The first error is returned after trying them all.
    fn store(&mut self, core: &Core) -> Result<()> {
        let ctx = &OpCtx::service();
        let source = |small: &Small<'a>| RunSource { pages: small.pages, run: small.run };
        let mut sources: Vec<_> = self.files.iter().map(source).collect();
        let each = self.files.iter().zip(&mut sources);
        let mut writes: Vec<_> = each.map(|(small, source)| small.late(source)).collect();
        let stored = core.fs.write_late(ctx, &mut writes);
        self.pages = 0;
        let mut result = Ok(());
        for (small, stored) in self.files.drain(..).zip(stored) {
            result = result.and(small.end(core, stored));
        }
        result
    }
}

/// How the flusher and those who wait for it talk.
#[derive(Default)]
pub(crate) struct Flusher {
    state: Mutex<FlushState>,
    work: Condvar,
    done: Condvar,
}

#[derive(Default)]
struct FlushState {
    stop: bool,
    /// Somebody wants a pass now.
    kicked: bool,
    /// Somebody waits for room: files without a name are to be written too.
    urgent: bool,
    /// Passes finished.
    passes: u64,
    /// How the last pass ended.
    last: Option<Errno>,
}

impl Flusher {
    /// Wants a pass soon.
    pub(crate) fn kick(&self) {
        let mut state = self.state.lock();
        if !state.kicked {
            state.kicked = true;
            self.work.notify_one();
        }
    }

    /// Wants a pass and waits until one that began after this call is over, or one failed. Returns
    /// the failure; `EIO` when the VFS ends.
    fn pass(&self) -> Option<Errno> {
        let mut state = self.state.lock();
        let begin = state.passes;
        // The pass that may be under way began too early: wait for the one after it.
        while state.passes < begin + 2 {
            if state.stop {
                return Some(Errno::EIO);
            }
            if state.passes > begin && state.last.is_some() {
                return state.last;
            }
            (state.kicked, state.urgent) = (true, true);
            self.work.notify_one();
            state = self.done.wait(state);
        }
        state.last
    }

    /// Ends the flusher.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.work.notify_all();
        self.done.notify_all();
    }

    /// Waits for the next pass: whether it is urgent. Nothing: the end.
    fn wait(&self, pause: Duration) -> Option<bool> {
        let mut state = self.state.lock();
        if !state.kicked && !state.stop {
            state = self.work.wait_timeout(state, pause);
        }
        state.kicked = false;
        let urgent = std::mem::take(&mut state.urgent);
        (!state.stop).then_some(urgent)
    }

    fn finished(&self, result: Result<()>) {
        let mut state = self.state.lock();
        state.passes += 1;
        state.last = result.err();
        self.done.notify_all();
    }
}

/// The flusher: one thread per VFS, for libservices whose data is cached, here or by themselves.
pub(crate) fn run_flusher(core: &Core) {
    let pause = core.options.flush_interval.max(PAUSE_MIN);
    while let Some(urgent) = core.cache.flusher.wait(pause) {
        // What was done under leases becomes as old as what is dirty, and no older.
        core.settle_all();
        core.end_loans();
        core.locks.end_loans();
        let pressed = urgent || core.cache.is_pressed();
        let begun = core.begin_sync_all();
        let written = core.write_back_files(pressed);
        core.cache.flusher.finished(written);
        if written.is_ok() {
            // What fails here the next fsync tells.
            let _ = core.sync_changed(&OpCtx::service(), begun);
        }
    }
}

impl PageCache {
    /// More than half of what may be dirty is.
    pub(crate) fn is_pressed(&self) -> bool {
        self.dirty_now() > self.dirty_max / 2
    }

    /// Whether `more` bytes would be more than may be dirty.
    pub(crate) fn is_over(&self, more: usize) -> bool {
        // A write that is larger than the limit must be possible when nothing else is dirty.
        let dirty = self.dirty_now();
        dirty > 0 && dirty + more.div_ceil(PAGE) as u64 > self.dirty_max
    }

    /// Enters a file with dirty pages into the list.
    pub(super) fn list(&self, node: &Node, pages: &FilePages) {
        if pages.listed.swap(true, Relaxed) {
            return;
        }
        let new = DirtyFile::of(node);
        let mut files = self.dirty_files.lock();
        pages.keep(new.keeps());
        let former = files.insert(node.id, new);
        drop(files);
        drop(former);
    }

    /// Takes a file out of the list, unless it became dirty again.
    fn unlist(&self, inode: &Inode, pages: &FilePages) {
        let mut files = self.dirty_files.lock();
        // The flag goes down before the look: whoever makes a page dirty after it finds the flag
        // down.
        pages.listed.store(false, Relaxed);
        let former = if pages.is_clean() {
            pages.keep(false);
            files.remove(&inode.id)
        } else {
            pages.listed.store(true, Relaxed);
            None
        };
        drop(files);
        drop(former);
    }

    /// Lets go of every file; what is dirty is lost. For the end of a VFS.
    pub(crate) fn abandon(&self) {
        let former = std::mem::take(&mut *self.dirty_files.lock());
        drop(former);
    }
}

impl crate::Vfs {
    /// Whether a write of `len` bytes would have to wait until dirty data is written back. For
    /// front ends whose threads must not wait; stale as soon as it returns.
    pub fn write_may_wait(&self, len: usize) -> bool {
        match self.core.character.cache_data {
            true => self.core.cache.is_over(len),
            false => self.core.fs.write_may_wait(len),
        }
    }
}

impl Core {
    /// Waits until `len` more bytes may become dirty. An error of the libservice is returned
    /// instead of waiting for ever. Call without locks.
    pub(crate) fn throttle(&self, len: usize) -> Result<()> {
        let cache = &self.cache;
        if !cache.is_over(len) {
            if cache.is_pressed() {
                cache.flusher.kick();
            }
            return Ok(());
        }
        self.count(Count::Throttled);
        while cache.is_over(len) {
            match cache.flusher.pass() {
                Some(errno) if cache.is_over(len) => return Err(errno),
                _ => (),
            }
        }
        Ok(())
    }

    /// Writes all dirty pages of all files back, those of files without a name only if asked to.
    /// The first error is returned after trying them all.
    pub(crate) fn write_back_files(&self, nameless: bool) -> Result<()> {
        let mut files: Vec<Node> = {
            let files = self.cache.dirty_files.lock();
            files.values().filter_map(|file| file.to_write(nameless)).collect()
        };
        // Mostly the order in which they were made: so they lie in memory, and are to lie on disk.
        files.sort_unstable_by_key(|node| node.ino());
        let (mut result, mut large) = (Ok(()), Vec::new());
        let mut small = Batch::default();
        for node in &files {
            let Some(pages) = node.pages_used() else { continue };
            match Small::take(node, pages) {
                Some(taken) => result = result.and(small.add(self, taken)),
                None => large.push((node, pages)),
            }
        }
        result = result.and(small.store(self));
        for (node, pages) in large {
            result = result.and(self.write_back(node, pages));
        }
        result
    }

    /// Writes the dirty pages of a file back, then its size and times. Pages that become dirty
    /// meanwhile behind the point that was reached wait for the next time.
    pub(crate) fn write_back(&self, node: &Inode, pages: &FilePages) -> Result<()> {
        if !pages.is_to_write() {
            return Ok(());
        }
        self.write_back_by((node, pages), pages.backing.write(), |offset, source| {
            self.fs.write(&OpCtx::service(), node.ino(), offset, source)
        })
    }

    /// The same as part of a sync.
    pub(crate) fn write_synced(
        &self,
        node: &Inode,
        pages: &FilePages,
        data_only: bool,
    ) -> Result<()> {
        if !pages.is_to_write() {
            return Ok(());
        }
        self.write_synced_by((node, pages), pages.backing.write(), data_only)
    }

    /// The same, of which another thread does the rest. Nothing where one writes the file back.
    pub(crate) fn try_write_synced(&self, node: &Inode, pages: &FilePages) -> Option<Result<()>> {
        if !pages.is_to_write() {
            return Some(Ok(()));
        }
        Some(self.write_synced_by((node, pages), pages.backing.try_write()?, false))
    }

    fn write_synced_by(
        &self,
        (node, pages): (&Inode, &FilePages),
        backing: RwLockWriteGuard<'_, ()>,
        data_only: bool,
    ) -> Result<()> {
        let syncing = Syncing { bytes: pages.dirty_bytes(), data_only };
        self.write_back_by((node, pages), backing, |offset, source| {
            self.fs.write_synced(&OpCtx::service(), node.ino(), offset, source, syncing)
        })
    }

    fn write_back_by(
        &self,
        (node, pages): (&Inode, &FilePages),
        _backing: RwLockWriteGuard<'_, ()>,
        write: impl Fn(u64, &mut RunSource<'_>) -> Result<usize>,
    ) -> Result<()> {
        let mut next = 0;
        while let Some(run) = pages.take_run(next, || node.size()) {
            next = run.end();
            match write(run.offset(), &mut RunSource { pages, run }) {
                Ok(count) if count == run.len => {
                    self.cache.removed(pages.written(run));
                    self.counters.add(Count::WrittenBack, run.len as u64);
                }
                short => {
                    let errno = short.err().unwrap_or(Errno::ENOSPC);
                    self.cache.removed(pages.failed(run, errno));
                    return Err(errno);
                }
            }
        }
        self.catch_up(node, pages)?;
        self.cache.unlist(node, pages);
        Ok(())
    }

    /// Tells the libservice the times of the writes that it has just seen: they happened earlier.
    fn catch_up(&self, node: &Inode, pages: &FilePages) -> Result<()> {
        let ctx = &OpCtx::service();
        let mut held = node.attr();
        if !pages.can_catch_up() {
            return Ok(());
        }
        let mtime = Some(SetTime::At(held.mtime));
        let set = SetAttr { mtime, ctime: Some(held.ctime), ..SetAttr::default() };
        let new =
            self.fs.setattr(ctx, node.ino(), &set).inspect_err(|errno| pages.blame(*errno))?;
        pages.caught_up();
        node.keep(&mut held, new);
        Ok(())
    }
}

impl crate::OpenFile {
    /// Bytes of the file that an fsync would have to write back; stale as soon as it returns.
    pub fn dirty_bytes(&self) -> u64 {
        let node = self.node();
        match node.core.character.cache_data {
            true => node.pages_used().map_or(0, FilePages::dirty_bytes),
            false => node.core.fs.dirty_bytes(node.ino()),
        }
    }

    /// Whether an fsync may have data to write back; always where the file system is not cached.
    /// Stale as soon as it returns.
    pub fn has_to_write(&self) -> bool {
        let node = self.node();
        !node.core.character.cache_data || node.has(LENT) || self.dirty_bytes() > 0
    }
}

/// Starts the flusher of `core`.
pub(crate) fn start_flusher(core: &Arc<Core>) -> Result<thread::JoinHandle<()>> {
    let core = Arc::clone(core);
    let named = thread::Builder::new().name("polylane-flush".into());
    Ok(named.spawn(move || run_flusher(&core))?)
}
