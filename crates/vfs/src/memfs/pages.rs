//! The data of one file: 4 KiB pages in runs of 64, with holes.
//!
//! A page is a hole (nothing), reserved (paid for by `fallocate`, reads as zeros, costs no memory
//! yet) or data. Runs lie in a B-tree by run number, so a file of any sparseness costs what it
//! holds; a small file is one run with as many slots as it has pages.
//!
//! # Invariants
//!
//! - `count` is the number of pages that are not holes; each was taken from [`Space`] first.
//! - Bytes of a page beyond the size of the file are zero, so growing needs no clearing. The owner
//!   of the size (`inode.rs`) calls [`Pages::cut`] when it shrinks.
//! - No run is empty; a run's slots may end before its last page.
//!
//! Removed pages leave as [`Freed`]: the caller drops them after it has left the inode's lock,
//! because giving back a big file takes milliseconds.

use super::space::{PAGE_SIZE, PageBytes, Space};
use crate::fs::{Sink, Source};
use std::collections::BTreeMap;

/// Pages of a run.
const RUN_PAGES: u64 = 64;

/// One page's content.
enum Page {
    Hole,
    Reserved,
    Data(PageBytes),
}

impl Page {
    fn is_hole(&self) -> bool {
        matches!(self, Page::Hole)
    }

    fn is_data(&self) -> bool {
        matches!(self, Page::Data(_))
    }
}

/// Pages taken out of a file, to be dropped outside its lock.
#[must_use = "drop it after the inode's lock, then give the space back"]
#[derive(Default)]
pub(super) struct Freed {
    single: Vec<Page>,
    runs: Vec<Vec<Page>>,
    count: u64,
}

impl Freed {
    /// Frees the memory, then gives the space back.
    pub(super) fn give_back(self, space: &Space) {
        let runs = self.runs.into_iter().flatten();
        space.recycle(self.single.into_iter().chain(runs).filter_map(|page| match page {
            Page::Data(bytes) => Some(bytes),
            Page::Hole | Page::Reserved => None,
        }));
        space.give_bytes(self.count * PAGE_SIZE);
    }
}

/// The pages of one file.
#[derive(Default)]
pub(super) struct Pages {
    runs: BTreeMap<u64, Vec<Page>>,
    count: u64,
}

impl Pages {
    /// Pages that are not holes.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Hands `len` bytes at `offset` to `sink`; what lies in holes or past the last page is zeros.
    pub(super) fn read(&self, offset: u64, len: usize, sink: &mut dyn Sink) {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (index, within) = (at / PAGE_SIZE, (at % PAGE_SIZE) as usize);
            let count = (PAGE_SIZE as usize - within).min(len - done);
            match self.page(index) {
                Some(Page::Data(bytes)) => sink.put(done, &bytes[within..within + count]),
                _ => sink.zero(done, count),
            }
            done += count;
        }
    }

    /// Takes all of `source` to `offset`, page by page; returns how far it came before space ran
    /// out.
    pub(super) fn write(&mut self, offset: u64, source: &mut dyn Source, space: &Space) -> usize {
        let len = source.len();
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let (index, within) = (at / PAGE_SIZE, (at % PAGE_SIZE) as usize);
            let count = (PAGE_SIZE as usize - within).min(len - done);
            let whole = count == PAGE_SIZE as usize;
            let Some(bytes) = self.data_page(index, whole, space) else { break };
            source.get(done, &mut bytes[within..within + count]);
            done += count;
        }
        done
    }

    /// Pays for the holes among pages `first..end` and reserves them: all or, when space does not
    /// suffice, none (`false`).
    pub(super) fn reserve(&mut self, first: u64, end: u64, space: &Space) -> bool {
        let missing = (end - first) - self.present(first, end);
        let Some(bytes) = missing.checked_mul(PAGE_SIZE) else { return false };
        if !space.take_bytes(bytes) {
            return false;
        }
        for index in first..end {
            let page = self.page_mut(index);
            if page.is_hole() {
                *page = Page::Reserved;
            }
        }
        self.count += missing;
        true
    }

    /// Makes holes of the whole pages within bytes `start..end` and zeroes the rest of the range.
    pub(super) fn punch(&mut self, start: u64, end: u64) -> Freed {
        let (first, last) = (start.div_ceil(PAGE_SIZE), end / PAGE_SIZE);
        self.clear_edges(start, end);
        let mut freed = Freed::default();
        if first < last {
            self.each_in(first, last, |page| {
                if !page.is_hole() {
                    freed.count += 1;
                    freed.single.push(std::mem::replace(page, Page::Hole));
                }
            });
            self.drop_empty_runs(first, last);
        }
        self.count -= freed.count;
        freed
    }

    /// Zeroes bytes `start..end`; pages that are paid for stay so. Returns the memory of whole
    /// pages.
    pub(super) fn zero(&mut self, start: u64, end: u64) -> Freed {
        let (first, last) = (start.div_ceil(PAGE_SIZE), end / PAGE_SIZE);
        self.clear_edges(start, end);
        let mut freed = Freed::default();
        if first < last {
            self.each_in(first, last, |page| {
                if page.is_data() {
                    freed.single.push(std::mem::replace(page, Page::Reserved));
                }
            });
        }
        freed
    }

    /// Removes everything from byte `size` on.
    pub(super) fn cut(&mut self, size: u64) -> Freed {
        let first = size.div_ceil(PAGE_SIZE);
        self.clear_edges(size, first * PAGE_SIZE);
        let gone = self.split_off(first);
        let count = gone.iter().map(|run| run.count).sum();
        self.count -= count;
        Freed { runs: gone.into_iter().map(|run| run.pages).collect(), count, ..Freed::default() }
    }

    /// Removes pages `first..end` and moves what follows down to their place.
    pub(super) fn collapse(&mut self, first: u64, end: u64) -> Freed {
        let freed = self.punch(first * PAGE_SIZE, end * PAGE_SIZE);
        for run in self.split_off(end) {
            self.put_run(run.first - (end - first), run.pages);
        }
        freed
    }

    /// Moves the pages from `first` on up by `count`, leaving holes.
    pub(super) fn insert(&mut self, first: u64, count: u64) {
        for run in self.split_off(first) {
            self.put_run(run.first + count, run.pages);
        }
    }

    /// The first page at or after `from` that holds data.
    pub(super) fn next_data(&self, from: u64) -> Option<u64> {
        for (&run, pages) in self.runs.range(from / RUN_PAGES..) {
            let base = run * RUN_PAGES;
            let skip = from.saturating_sub(base) as usize;
            if let Some(found) = pages.iter().skip(skip).position(Page::is_data) {
                return Some(base + (skip + found) as u64);
            }
        }
        None
    }

    /// The first page at or after `from` that holds none.
    pub(super) fn next_hole(&self, from: u64) -> u64 {
        let mut index = from;
        for (&run, pages) in self.runs.range(from / RUN_PAGES..) {
            if run != index / RUN_PAGES {
                break;
            }
            let skip = (index % RUN_PAGES) as usize;
            let data = pages.iter().skip(skip).take_while(|page| page.is_data()).count();
            index += data as u64;
            if skip + data < RUN_PAGES as usize {
                break;
            }
        }
        index
    }

    fn page(&self, index: u64) -> Option<&Page> {
        self.runs.get(&(index / RUN_PAGES))?.get((index % RUN_PAGES) as usize)
    }

    fn page_mut(&mut self, index: u64) -> &mut Page {
        let pages = self.runs.entry(index / RUN_PAGES).or_default();
        let slot = (index % RUN_PAGES) as usize;
        if pages.len() <= slot {
            pages.resize_with(slot + 1, || Page::Hole);
        }
        &mut pages[slot]
    }

    /// The bytes of a page, allocated if need be; `None` when there is no space for it. `whole`:
    /// all of it is about to be overwritten, so a new one need not be zeros.
    fn data_page(&mut self, index: u64, whole: bool, space: &Space) -> Option<&mut PageBytes> {
        if self.page(index).is_none_or(Page::is_hole) {
            if !space.take_bytes(PAGE_SIZE) {
                return None;
            }
            self.count += 1;
        }
        let page = self.page_mut(index);
        if !page.is_data() {
            *page = Page::Data(space.page(whole));
        }
        match page {
            Page::Data(bytes) => Some(bytes),
            Page::Hole | Page::Reserved => None,
        }
    }

    /// Pages among `first..end` that are not holes.
    fn present(&self, first: u64, end: u64) -> u64 {
        let mut count = 0;
        for (&run, pages) in self.runs.range(first / RUN_PAGES..end.div_ceil(RUN_PAGES)) {
            let (from, to) = slots_within(run, pages.len(), first, end);
            count += pages[from..to].iter().filter(|page| !page.is_hole()).count();
        }
        count as u64
    }

    fn each_in(&mut self, first: u64, end: u64, mut each: impl FnMut(&mut Page)) {
        for (&run, pages) in self.runs.range_mut(first / RUN_PAGES..end.div_ceil(RUN_PAGES)) {
            let (from, to) = slots_within(run, pages.len(), first, end);
            pages[from..to].iter_mut().for_each(&mut each);
        }
    }

    /// Zeroes the parts of `start..end` that do not fill a page.
    fn clear_edges(&mut self, start: u64, end: u64) {
        let head_end = start.next_multiple_of(PAGE_SIZE).min(end);
        self.clear(start, head_end);
        self.clear((end - end % PAGE_SIZE).max(head_end), end);
    }

    /// Zeroes `start..end`, which lies within one page.
    fn clear(&mut self, start: u64, end: u64) {
        if start >= end || !self.page(start / PAGE_SIZE).is_some_and(Page::is_data) {
            return;
        }
        if let Page::Data(bytes) = self.page_mut(start / PAGE_SIZE) {
            let from = (start % PAGE_SIZE) as usize;
            bytes[from..from + (end - start) as usize].fill(0);
        }
    }

    fn drop_empty_runs(&mut self, first: u64, end: u64) {
        let runs = first / RUN_PAGES..end.div_ceil(RUN_PAGES);
        let empty =
            |(&run, pages): (&u64, &Vec<Page>)| pages.iter().all(Page::is_hole).then_some(run);
        let gone: Vec<u64> = self.runs.range(runs).filter_map(empty).collect();
        for run in gone {
            self.runs.remove(&run);
        }
    }

    /// Takes out all pages from `first` on. `count` is left to the caller.
    fn split_off(&mut self, first: u64) -> Vec<Run> {
        let run = first / RUN_PAGES;
        let skip = (first % RUN_PAGES) as usize;
        let mut taken = Vec::new();
        if skip > 0 && self.runs.get(&run).is_some_and(|pages| pages.len() > skip) {
            let tail = self.runs.get_mut(&run).map(|pages| pages.split_off(skip));
            taken.extend(tail.map(|pages| Run::new(first, pages)));
            self.drop_empty_runs(first, first + 1);
        }
        let rest = self.runs.split_off(&(run + u64::from(skip > 0)));
        taken.extend(rest.into_iter().map(|(run, pages)| Run::new(run * RUN_PAGES, pages)));
        taken
    }

    /// Puts pages at `first` and after, where holes are.
    fn put_run(&mut self, first: u64, pages: Vec<Page>) {
        for (index, page) in (first..).zip(pages) {
            if !page.is_hole() {
                *self.page_mut(index) = page;
            }
        }
    }
}

/// Pages taken out of a file, with where they were.
struct Run {
    first: u64,
    count: u64,
    pages: Vec<Page>,
}

impl Run {
    fn new(first: u64, pages: Vec<Page>) -> Run {
        let count = pages.iter().filter(|page| !page.is_hole()).count() as u64;
        Run { first, count, pages }
    }
}

/// The slots of run number `run`, which has `len` of them, that pages `first..end` fall on.
fn slots_within(run: u64, len: usize, first: u64, end: u64) -> (usize, usize) {
    let base = run * RUN_PAGES;
    let from = first.saturating_sub(base).min(len as u64) as usize;
    let to = end.saturating_sub(base).min(len as u64) as usize;
    (from, to.max(from))
}
