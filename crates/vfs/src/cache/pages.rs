//! The cached pages of one file.
//!
//! # Invariants
//!
//! - Bytes of a page past the end of the file are zero.
//! - `dirty` holds exactly the indices of pages whose `dirty` is set.
//! - A page that is dirty or being written is never evicted: it is the only copy.
//! - Every index in `map` is at least once in `order`.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use rustc_hash::FxHashMap;

use polylane_base::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use polylane_base::sync::atomic::{AtomicBool, AtomicU64};
use polylane_base::sync::{Mutex, RwLock};
use polylane_base::{Errno, Result};
use polylane_sys::frames::Frames;

use super::{PAGE, PageCache, PageData};
use crate::fs::{Attr, Sink, Source};

/// Most pages handed to the libservice in one write: 1 MiB.
const RUN_PAGES_MAX: u64 = 256;

struct Page {
    data: PageData,
    /// Used since the CLOCK hand passed. Atomic: readers set it under a shared lock.
    hot: AtomicBool,
    dirty: bool,
    /// Part of a write-back that has not returned.
    writing: bool,
}

#[derive(Default)]
struct Map {
    pages: FxHashMap<u64, Page>,
    dirty: BTreeSet<u64>,
    /// CLOCK order of the pages; may also name pages that are gone.
    order: VecDeque<u64>,
}

/// A file's part of the page cache.
#[derive(Default)]
pub(crate) struct FilePages {
    map: RwLock<Map>,
    /// The libservice's copy: shared to read it, exclusive to write it back, cut or move it.
    pub(crate) backing: RwLock<()>,
    /// The libservice does not know the size and the times yet.
    delayed: AtomicBool,
    /// Writes that have changed the size and times and not yet the pages.
    landing: AtomicU64,
    /// In the list of dirty files.
    pub(super) listed: AtomicBool,
    /// That list keeps the file alive. Changes with the list locked.
    kept: AtomicBool,
    /// In the CLOCK.
    pub(super) clocked: AtomicBool,
    /// Write-back errors so far; the last one.
    failures: AtomicU64,
    last_failure: Mutex<Option<Errno>>,
}

/// What an operation did to the counts of the whole cache.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(super) struct Delta {
    /// Pages added or removed.
    pub(super) pages: u64,
    /// Pages that became dirty or ceased to be.
    pub(super) dirty: u64,
}

/// The pages that a write covers in part only: what they held must stay. Those that were cached may
/// be evicted before the write reaches them; the others were fetched.
#[derive(Default)]
pub(super) struct Edges(Vec<(u64, Option<PageData>)>);

impl Edges {
    /// Page `index` is one; `fetched` unless it is cached.
    pub(super) fn push(&mut self, index: u64, fetched: Option<PageData>) {
        self.0.push((index, fetched));
    }

    fn indices(&self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|(index, _)| *index)
    }

    fn brings(&self, index: u64) -> bool {
        self.0.iter().any(|(edge, fetched)| *edge == index && fetched.is_some())
    }

    fn take(&mut self, index: u64) -> Option<PageData> {
        self.0.iter_mut().find(|(edge, _)| *edge == index)?.1.take()
    }
}

/// Consecutive dirty pages on their way to the libservice.
#[derive(Clone, Copy)]
pub(super) struct Run {
    first: u64,
    pages: u64,
    /// Bytes, less than the pages hold when the file ends before.
    pub(super) len: usize,
}

impl Run {
    pub(super) fn offset(&self) -> u64 {
        self.first * PAGE as u64
    }

    /// First page after it.
    pub(super) fn end(&self) -> u64 {
        self.first + self.pages
    }
}

/// The page and the offset in it of a file offset.
fn split(offset: u64) -> (u64, usize) {
    (offset / PAGE as u64, (offset % PAGE as u64) as usize)
}

impl FilePages {
    /// Copies cached bytes from `offset` on to `at` of `sink`; stops before the first absent page.
    pub(super) fn read(&self, offset: u64, len: usize, at: usize, sink: &mut dyn Sink) -> usize {
        let map = self.map.read();
        let mut done = 0;
        while done < len {
            let (index, from) = split(offset + done as u64);
            let Some(page) = map.pages.get(&index) else { break };
            let to = PAGE.min(from + len - done);
            sink.put(at + done, &page.data[from..to]);
            if !page.hot.load(Relaxed) {
                page.hot.store(true, Relaxed);
            }
            done += to - from;
        }
        done
    }

    /// How many pages from `first` on, at most `max`, are absent.
    pub(super) fn absent(&self, first: u64, max: u64) -> u64 {
        let map = self.map.read();
        (0..max).take_while(|n| !map.pages.contains_key(&(first + n))).count() as u64
    }

    /// `pages` with the cached ones before and after them, within `limit`.
    pub(crate) fn around(&self, pages: Range<u64>, limit: Range<u64>) -> Range<u64> {
        let map = self.map.read();
        let cached = |page: &u64| map.pages.contains_key(page);
        let before = (limit.start..pages.start).rev().take_while(cached).count();
        let after = (pages.end..limit.end).take_while(cached).count();
        pages.start - before as u64..pages.end + after as u64
    }

    /// Whether every page of a range is dirty.
    pub(super) fn are_dirty(&self, offset: u64, len: usize) -> bool {
        let (first, last) = (split(offset).0, split(offset + len as u64 - 1).0);
        let map = self.map.read();
        (first..=last).all(|index| map.pages.get(&index).is_some_and(|page| page.dirty))
    }

    /// Adds clean pages from `first` on, but none that is there already.
    pub(super) fn insert(&self, first: u64, fresh: Vec<PageData>) -> Delta {
        let mut map = self.map.write();
        let mut pages = 0;
        for (index, data) in (first..).zip(fresh) {
            if !map.pages.contains_key(&index) {
                map.add(index, data, false);
                pages += 1;
            }
        }
        Delta { pages, dirty: 0 }
    }

    /// Copies `len` bytes at `at` of `source` to `offset` and marks the pages dirty. Nothing, and
    /// nothing is changed, when a page that is written in part went since its bytes were sought.
    pub(super) fn write(
        &self,
        (offset, len): (u64, usize),
        (source, at): (&mut dyn Source, usize),
        edges: &mut Edges,
        frames: &Frames,
    ) -> Option<Delta> {
        let mut map = self.map.write();
        if edges.indices().any(|index| !map.pages.contains_key(&index) && !edges.brings(index)) {
            return None;
        }
        let mut delta = Delta::default();
        let mut done = 0;
        while done < len {
            let (index, from) = split(offset + done as u64);
            let to = PAGE.min(from + len - done);
            if !map.pages.contains_key(&index) {
                // All of it is written below, with the map locked.
                let whole = to - from == PAGE;
                let fresh = || if whole { frames.unfilled() } else { frames.zeroed() };
                let data = edges.take(index).unwrap_or_else(fresh);
                map.add(index, data, true);
                delta.pages += 1;
            }
            let Map { pages, dirty, .. } = &mut *map;
            if let Some(page) = pages.get_mut(&index) {
                source.get(at + done, &mut page.data[from..to]);
                *page.hot.get_mut() = true;
                if !page.dirty {
                    page.dirty = true;
                    dirty.insert(index);
                    delta.dirty += 1;
                }
            }
            done += to - from;
        }
        Some(delta)
    }

    /// Whether there are dirty pages, at most `max`, in one piece.
    pub(super) fn dirty_piece(&self, max: usize) -> bool {
        let map = self.map.read();
        let (first, last) = (map.dirty.first(), map.dirty.last());
        let len = first.zip(last).map_or(0, |(first, last)| last - first + 1);
        len == map.dirty.len() as u64 && (1..=max).contains(&map.dirty.len())
    }

    /// The next run of dirty pages from page `from` on. They are clean from now on, unless
    /// [`failed`](Self::failed) takes that back. `size` says how long the file is, with the map
    /// locked: who makes it longer says so before its bytes come into pages, and a size of a moment
    /// ago would leave those at the end of the last page out. Call with `backing` held exclusively.
    pub(super) fn take_run(&self, from: u64, size: impl FnOnce() -> u64) -> Option<Run> {
        let mut map = self.map.write();
        let first = *map.dirty.range(from..).next()?;
        let offset = first * PAGE as u64;
        let room = size().checked_sub(offset).filter(|&room| room > 0)?;
        let max = RUN_PAGES_MAX.min(room.div_ceil(PAGE as u64));
        let pages = (0..max).take_while(|n| map.dirty.contains(&(first + n))).count() as u64;
        for index in first..first + pages {
            map.dirty.remove(&index);
            if let Some(page) = map.pages.get_mut(&index) {
                page.dirty = false;
                page.writing = true;
            }
        }
        Some(Run { first, pages, len: room.min(pages * PAGE as u64) as usize })
    }

    /// Copies bytes of a run out.
    fn get(&self, offset: u64, into: &mut [u8]) {
        let map = self.map.read();
        let mut done = 0;
        while done < into.len() {
            let (index, from) = split(offset + done as u64);
            let to = PAGE.min(from + into.len() - done);
            let part = &mut into[done..done + to - from];
            match map.pages.get(&index) {
                Some(page) => part.copy_from_slice(&page.data[from..to]),
                None => part.fill(0),
            }
            done += to - from;
        }
    }

    /// A run reached the libservice. Pages that were changed meanwhile stay dirty.
    pub(super) fn written(&self, run: Run) -> Delta {
        let mut map = self.map.write();
        for index in run.first..run.end() {
            if let Some(page) = map.pages.get_mut(&index) {
                page.writing = false;
            }
        }
        Delta { pages: 0, dirty: run.pages }
    }

    /// A run did not reach the libservice: its pages are dirty again. Those that were changed
    /// meanwhile have been counted twice.
    pub(super) fn failed(&self, run: Run, errno: Errno) -> Delta {
        let mut map = self.map.write();
        let Map { pages, dirty, .. } = &mut *map;
        let mut twice = 0;
        for index in run.first..run.end() {
            let Some(page) = pages.get_mut(&index) else { continue };
            page.writing = false;
            if page.dirty {
                twice += 1;
            } else {
                page.dirty = true;
                dirty.insert(index);
            }
        }
        drop(map);
        self.blame(errno);
        Delta { pages: 0, dirty: twice }
    }

    /// Whether the list of dirty files keeps the file alive. Call with the list locked.
    pub(super) fn is_kept(&self) -> bool {
        self.kept.load(Relaxed)
    }

    /// From now on it does, or not. Call with the list locked.
    pub(super) fn keep(&self, kept: bool) {
        self.kept.store(kept, Relaxed);
    }

    /// Keeps an error of a write-back for the next fsync of every open file.
    pub(super) fn blame(&self, errno: Errno) {
        *self.last_failure.lock() = Some(errno);
        self.failures.fetch_add(1, Release);
    }

    /// Cuts the file at `size`. Call with `backing` held exclusively.
    pub(super) fn cut(&self, size: u64) -> Delta {
        let (index, from) = split(size);
        let mut map = self.map.write();
        if let Some(page) = map.pages.get_mut(&index).filter(|_| from > 0) {
            page.data[from..].fill(0);
        }
        map.drop_range(size.div_ceil(PAGE as u64), u64::MAX)
    }

    /// Forgets the pages that overlap `start..end`, dirty ones too. Call with `backing` held
    /// exclusively.
    pub(super) fn forget_range(&self, start: u64, end: u64) -> Delta {
        self.map.write().drop_range(start / PAGE as u64, end.div_ceil(PAGE as u64))
    }

    /// Puts bytes that the libservice has into the pages that are there, and adds those that they
    /// fill. Call with `backing` held exclusively.
    pub(super) fn refresh(&self, offset: u64, bytes: &[u8], cache: &PageCache) -> Delta {
        let mut map = self.map.write();
        let (mut done, mut pages) = (0, 0);
        while done < bytes.len() {
            let (index, from) = split(offset + done as u64);
            let part = &bytes[done..bytes.len().min(done + PAGE - from)];
            match map.pages.get_mut(&index) {
                Some(page) => page.data[from..from + part.len()].copy_from_slice(part),
                None if part.len() == PAGE => {
                    map.add(index, cache.filled(part), true);
                    pages += 1;
                }
                None => (),
            }
            done += part.len();
        }
        Delta { pages, dirty: 0 }
    }

    /// Forgets the pages that are clean and not on their way to the libservice.
    pub(super) fn forget_clean(&self) -> Delta {
        let mut map = self.map.write();
        let before = map.pages.len() as u64;
        map.pages.retain(|_, page| page.dirty || page.writing);
        Delta { pages: before - map.pages.len() as u64, dirty: 0 }
    }

    /// Looks at `count` pages in CLOCK order and forgets those that are clean and were not used
    /// since the last look, at most `wanted`. Returns how many.
    pub(super) fn evict(&self, count: usize, wanted: u64) -> u64 {
        let mut map = self.map.write();
        let mut evicted = 0;
        for _ in 0..count.min(map.order.len()) {
            if evicted == wanted {
                break;
            }
            let Some(index) = map.order.pop_front() else { break };
            let Some(page) = map.pages.get_mut(&index) else { continue };
            if page.dirty || page.writing || std::mem::take(page.hot.get_mut()) {
                map.order.push_back(index);
            } else {
                map.pages.remove(&index);
                evicted += 1;
            }
        }
        evicted
    }

    /// Pages and dirty pages now.
    pub(super) fn counts(&self) -> Delta {
        let map = self.map.read();
        Delta { pages: map.pages.len() as u64, dirty: map.dirty.len() as u64 }
    }

    /// Bytes in dirty pages now.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.counts().dirty * PAGE as u64
    }

    /// 512-byte units that the dirty pages of a file may still need.
    pub(crate) fn blocks_to_come(&self, attr: &Attr) -> u64 {
        let missing = attr.size.div_ceil(512).saturating_sub(attr.blocks);
        if missing == 0 || !self.is_delayed() {
            return 0;
        }
        missing.min(self.counts().dirty * (PAGE / 512) as u64)
    }

    /// Whether nothing is dirty.
    pub(crate) fn is_clean(&self) -> bool {
        self.map.read().dirty.is_empty()
    }

    /// From now on size and times are ours to keep, until written back. Call with `attr` locked,
    /// and [`landed`](Self::landed) once the pages are dirty.
    pub(super) fn delay(&self) {
        self.landing.fetch_add(1, AcqRel);
        self.delayed.store(true, Release);
    }

    pub(super) fn landed(&self) {
        self.landing.fetch_sub(1, AcqRel);
    }

    pub(crate) fn is_delayed(&self) -> bool {
        self.delayed.load(Acquire)
    }

    /// Whether there is anything to write back, if only times.
    pub(super) fn is_to_write(&self) -> bool {
        !self.is_clean() || self.is_delayed()
    }

    /// Whether nothing but the times is left to be told. Call with `attr` locked.
    pub(super) fn can_catch_up(&self) -> bool {
        self.is_delayed() && self.landing.load(Acquire) == 0 && self.is_clean()
    }

    pub(super) fn caught_up(&self) {
        self.delayed.store(false, Release);
    }

    /// While size and times are delayed, what the libservice says of them is old.
    pub(crate) fn keep_delayed(&self, held: &Attr, new: &mut Attr) {
        if self.is_delayed() {
            new.size = held.size;
            new.mtime = held.mtime;
            new.ctime = new.ctime.max(held.ctime);
        }
    }

    /// Write-back failures so far.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Acquire)
    }

    /// The last failure, unless `seen` says that it was reported there already.
    pub(crate) fn report(&self, seen: &AtomicU64) -> Result<()> {
        let failures = self.failures();
        if seen.swap(failures, AcqRel) >= failures {
            return Ok(());
        }
        self.last_failure.lock().map_or(Ok(()), Err)
    }
}

impl Map {
    fn add(&mut self, index: u64, data: PageData, hot: bool) {
        let hot = AtomicBool::new(hot);
        self.pages.insert(index, Page { data, hot, dirty: false, writing: false });
        self.order.push_back(index);
        self.tidy_order();
    }

    /// Pages that went by themselves leave their index behind: without this, a file that is cut and
    /// written again and again would grow `order` for ever.
    fn tidy_order(&mut self) {
        if self.order.len() <= 2 * self.pages.len() + 64 {
            return;
        }
        self.order.clear();
        self.order.extend(self.pages.keys());
    }

    /// Removes pages `first..end`.
    fn drop_range(&mut self, first: u64, end: u64) -> Delta {
        let before = Delta { pages: self.pages.len() as u64, dirty: self.dirty.len() as u64 };
        if end.saturating_sub(first) <= self.pages.len() as u64 {
            for index in first..end {
                self.pages.remove(&index);
            }
        } else {
            self.pages.retain(|index, _| *index < first || *index >= end);
        }
        self.dirty.retain(|index| *index < first || *index >= end);
        let (pages, dirty) = (self.pages.len() as u64, self.dirty.len() as u64);
        Delta { pages: before.pages - pages, dirty: before.dirty - dirty }
    }
}

/// The bytes of a run, for the libservice to take.
pub(super) struct RunSource<'p> {
    pub(super) pages: &'p FilePages,
    pub(super) run: Run,
}

impl Source for RunSource<'_> {
    fn len(&self) -> usize {
        self.run.len
    }

    fn get(&mut self, at: usize, into: &mut [u8]) {
        self.pages.get(self.run.offset() + at as u64, into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An append that comes while a run is taken is in it whole or not at all.
    #[test]
    fn how_long_a_file_is_counts_from_when_its_pages_stand_still() {
        let (pages, frames) = (FilePages::default(), Frames::default());
        let write = |at: u64| {
            let mut source: &[u8] = &[1; 10];
            pages.write((at, 10), (&mut source, 0), &mut Edges::default(), &frames)
        };
        write(0);
        let size = || {
            assert!(pages.map.try_write().is_none(), "another append could come");
            20
        };
        write(10);
        assert_eq!(pages.take_run(0, size).map(|run| run.len), Some(20));
    }

    /// A page that a write covers in part was cached when the write began, and another thread
    /// evicts it before the write comes to it: the write must not take it for a page of zeros.
    #[test]
    fn an_edge_that_was_evicted_is_not_zeros() {
        let (pages, frames) = (FilePages::default(), Frames::default());
        let sevens = || {
            let mut page = frames.zeroed();
            page.fill(7);
            page
        };
        let write =
            |edges: &mut Edges| pages.write((100, 10), (&mut &[1; 10][..], 0), edges, &frames);
        pages.insert(0, vec![sevens()]);
        let mut edges = Edges::default();
        edges.push(0, None);
        assert_eq!(pages.evict(1, 1), 1);
        assert_eq!(write(&mut edges), None);
        assert!(pages.is_clean());
        let mut edges = Edges::default();
        edges.push(0, Some(sevens()));
        assert_eq!(write(&mut edges), Some(Delta { pages: 1, dirty: 1 }));
        let mut bytes = [0; 4];
        pages.get(98, &mut bytes);
        assert_eq!(bytes, [7, 7, 1, 1]);
    }
}
