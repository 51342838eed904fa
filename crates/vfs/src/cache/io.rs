//! Reading and writing through the page cache.

use polylane_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use polylane_base::{Errno, Result, Time};

use super::pages::{Edges, FilePages};
use super::{PAGE, PageData};
use crate::core::Core;
use crate::ctx::OpCtx;
use crate::fs::{Attr, Fallocate, SetAttr, Shifted, Sink, Source};
use crate::inode::{Inode, Node};
use crate::lease::Room;
use crate::stats::Count;

/// Largest read-ahead: 128 KiB, what one request of a disk moves at little more cost than a page.
const AHEAD_PAGES_MAX: u64 = 32;

/// First read-ahead of a sequential reader.
const AHEAD_PAGES_MIN: u64 = 4;

/// Bytes written under one hold of a file's map, so that readers of other pages and the flusher get
/// their turn.
const CHUNK_BYTES: usize = 64 * PAGE;

/// Tells sequential readers from random ones. One per open file; a race between two readers of one
/// open file costs a wrong guess.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    /// Where a sequential reader would go on.
    next: AtomicU64,
    pages: AtomicU64,
}

impl ReadAhead {
    /// A read of `offset..end`: how many pages a miss should bring in.
    fn plan(&self, offset: u64, end: u64) -> u64 {
        let sequential = self.next.swap(end, Relaxed) == offset;
        let pages = match self.pages.load(Relaxed) {
            _ if !sequential => 0,
            0 => AHEAD_PAGES_MIN,
            pages => (pages * 2).min(AHEAD_PAGES_MAX),
        };
        self.pages.store(pages, Relaxed);
        pages
    }
}

/// Fresh pages as the target of one read of the libservice.
struct PageSink(Vec<PageData>);

impl Sink for PageSink {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (page, from) = ((at + done) / PAGE, (at + done) % PAGE);
            let count = (PAGE - from).min(bytes.len() - done);
            self.0[page][from..from + count].copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
    }

    fn zero(&mut self, _at: usize, _len: usize) {
        // They are zero from the start.
    }
}

fn page_of(offset: u64) -> u64 {
    offset / PAGE as u64
}

impl Core {
    /// Reads at most `len` bytes at `offset`. `keeps`: the reader has pages of its own of what it
    /// reads, so none are made here of what is cached below. Call with the data lock held.
    pub(crate) fn cached_read(
        &self,
        ctx: &OpCtx<'_>,
        node: &Node,
        pages: &FilePages,
        (ahead, keeps): (&ReadAhead, bool),
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let size = node.size();
        let len = size.saturating_sub(offset).min(len as u64) as usize;
        let extra = ahead.plan(offset, offset + len as u64);
        let mut done = 0;
        while done < len {
            let hit = pages.read(offset + done as u64, len - done, done, sink);
            self.counters.add(Count::PageHits, hit.div_ceil(PAGE) as u64);
            done += hit;
            if done == len {
                break;
            }
            let missed = match keeps && self.fs.is_cached_below(node.ino()) {
                true => self.read_below(ctx, node, pages, (offset, len), done, sink),
                false => self.read_miss(ctx, node, pages, (offset, len), done, extra, sink),
            };
            match missed {
                Ok(count) => done += count,
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    /// Hands the part of the read at `offset + done` whose pages are absent to `sink`.
    fn read_below(
        &self,
        ctx: &OpCtx<'_>,
        node: &Node,
        pages: &FilePages,
        (offset, len): (u64, usize),
        done: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let (at, end) = (offset + done as u64, offset + len as u64);
        let (first, last) = (page_of(at), page_of(end - 1));
        let absent = pages.absent(first, last - first + 1).max(1);
        let count = (end.min((first + absent) * PAGE as u64) - at) as usize;
        let _backing = pages.backing.read();
        let read = self.fs.read(ctx, node.ino(), at, count, &mut Shifted { sink, by: done })?;
        // The file may have its new end here first.
        sink.zero(done + read, count - read);
        self.counters.add(Count::PageMisses, absent);
        Ok(count)
    }

    /// Brings in the absent pages at `offset + done` and hands their part of the read to `sink`.
    fn read_miss(
        &self,
        ctx: &OpCtx<'_>,
        node: &Node,
        pages: &FilePages,
        (offset, len): (u64, usize),
        done: usize,
        extra: u64,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        let first = page_of(offset + done as u64);
        let last = page_of(offset + len as u64 - 1);
        let file_end = node.size().div_ceil(PAGE as u64);
        let wanted = (last - first + 1).min(CHUNK_BYTES as u64 / PAGE as u64);
        // Where others change the file, it may have become shorter meanwhile.
        let wanted = wanted.max(extra).min(file_end.saturating_sub(first)).max(1);
        let fresh = self.fetch(ctx, node, pages, first, pages.absent(first, wanted).max(1))?;
        let mut count = 0;
        for (index, page) in (first..).zip(&fresh) {
            if index > last {
                break;
            }
            let at = offset + (done + count) as u64;
            let from = (at % PAGE as u64) as usize;
            let to = PAGE.min(from + len - done - count);
            sink.put(done + count, &page[from..to]);
            count += to - from;
        }
        self.cache.added(pages.insert(first, fresh));
        self.cache.watch(node, pages);
        self.make_room();
        Ok(count)
    }

    /// Reads `count` pages from the libservice. Call with the data lock held: nobody writes to them
    /// meanwhile, so they stay true until they are inserted.
    fn fetch(
        &self,
        ctx: &OpCtx<'_>,
        node: &Inode,
        pages: &FilePages,
        first: u64,
        count: u64,
    ) -> Result<Vec<PageData>> {
        let mut sink = PageSink((0..count).map(|_| self.cache.frames.zeroed()).collect());
        let len = sink.0.len() * PAGE;
        let _backing = pages.backing.read();
        self.fs.read(ctx, node.ino(), first * PAGE as u64, len, &mut sink)?;
        self.counters.add(Count::PageMisses, count);
        Ok(sink.0)
    }

    /// Writes `len` bytes at `offset`, with that `room`; returns how far it came. Call with the
    /// data lock held for change.
    pub(crate) fn cached_write(
        &self,
        ctx: &OpCtx<'_>,
        node: &Node,
        pages: &FilePages,
        (offset, len): (u64, usize),
        source: &mut dyn Source,
        mut room: Room<'_>,
    ) -> Result<usize> {
        let now = match &room {
            Room::Aside(aside) => aside.time,
            Room::Free => self.now(ctx),
        };
        let (mut done, mut most) = (0, CHUNK_BYTES);
        while done < len {
            let at = offset + done as u64;
            let count = (most - (at % PAGE as u64) as usize).min(len - done);
            let mut edges = match self.edges(ctx, node, pages, at, count) {
                Ok(edges) => edges,
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            };
            if !pages.are_dirty(at, count)
                && let Err(errno) = self.room_for(ctx, node, (at, count as u64), &mut room)
            {
                if errno == Errno::EDQUOT && most > PAGE {
                    // As much as the owner may have.
                    most = (most / 2).max(PAGE);
                    continue;
                }
                if done > 0 {
                    break;
                }
                return Err(errno);
            }
            // Size before data: the flusher cuts what it writes at the size, and would otherwise
            // take the new end of a page for written.
            self.delay(node, pages, at + count as u64, now);
            let written = pages.write((at, count), (source, done), &mut edges, &self.cache.frames);
            pages.landed();
            // Another thread needed room and took an edge that was cached: once more.
            let Some(delta) = written else { continue };
            self.cache.added(delta);
            self.cache.watch(node, pages);
            self.cache.list(node, pages);
            self.make_room();
            done += count;
        }
        Ok(done)
    }

    /// The pages that a write covers in part only.
    fn edges(
        &self,
        ctx: &OpCtx<'_>,
        node: &Node,
        pages: &FilePages,
        offset: u64,
        len: usize,
    ) -> Result<Edges> {
        let end = offset + len as u64;
        let (first, last) = (page_of(offset), page_of(end - 1));
        let is_edge = |index: u64| {
            let (start, stop) = (index * PAGE as u64, (index + 1) * PAGE as u64);
            // Past the end of the file there is nothing to keep.
            let covers_front = offset <= start;
            let covers_back = end >= stop || end >= node.size();
            start < node.size() && !(covers_front && covers_back)
        };
        let mut edges = Edges::default();
        let mut seek = |index| -> Result<()> {
            if is_edge(index) {
                let is_cached = pages.absent(index, 1) == 0;
                let mut fetched =
                    if is_cached { vec![] } else { self.fetch(ctx, node, pages, index, 1)? };
                edges.push(index, fetched.pop());
            }
            Ok(())
        };
        seek(first)?;
        if last != first {
            seek(last)?;
        }
        Ok(edges)
    }

    fn room_for(
        &self,
        ctx: &OpCtx<'_>,
        node: &Inode,
        (at, count): (u64, u64),
        room: &mut Room<'_>,
    ) -> Result<()> {
        match room {
            Room::Free => self.fs.reserve(ctx, node.ino(), at, count),
            Room::Aside(aside) => {
                aside.blocks -= self.fs.reserve_aside(ctx, node.ino(), at, count, aside.blocks)?;
                Ok(())
            }
        }
    }

    /// Size and times change here first.
    fn delay(&self, node: &Inode, pages: &FilePages, end: u64, now: Time) {
        let mut attr = node.attr();
        pages.delay();
        attr.size = attr.size.max(end);
        (attr.mtime, attr.ctime) = (now, now);
        node.mirror(&attr);
        node.atime_is_due();
    }

    /// The last change was made at `time`: what was written had been kept elsewhere, and could be
    /// stored but for `error`, which the next fsync reports. Call with the data lock held for
    /// change.
    pub(crate) fn retime(&self, node: &Node, pages: &FilePages, time: Time, error: Option<Errno>) {
        if let Some(errno) = error {
            pages.blame(errno);
        }
        let mut attr = node.attr();
        pages.delay();
        (attr.mtime, attr.ctime) = (time, time);
        node.mirror(&attr);
        drop(attr);
        pages.landed();
        self.cache.list(node, pages);
    }

    /// Changes the size. Call with the data lock held for change.
    pub(crate) fn cached_resize(
        &self,
        ctx: &OpCtx<'_>,
        node: &Inode,
        pages: &FilePages,
        size: u64,
        set: &SetAttr,
    ) -> Result<Attr> {
        let _backing = pages.backing.write();
        let known = node.size();
        if 0 < size && size <= known && self.fs.getattr(ctx, node.ino())?.size < size {
            // What was written is still here: the file system would take this for growth, and keep
            // what was allocated past the end.
            self.set(ctx, node, &SetAttr { size: Some(known), ..SetAttr::default() })?;
        }
        let attr = self.set(ctx, node, set)?;
        self.cache.removed(pages.cut(size));
        Ok(attr)
    }

    /// fallocate(2). Call with the data lock held for change.
    pub(crate) fn cached_fallocate(
        &self,
        ctx: &OpCtx<'_>,
        node: &Node,
        pages: &FilePages,
        mode: Fallocate,
        (offset, len): (u64, u64),
    ) -> Result<()> {
        self.write_back(node, pages)?;
        let _backing = pages.backing.write();
        let mut held = node.attr();
        let new = self.fs.fallocate(ctx, node.ino(), mode, offset, len)?;
        node.keep(&mut held, new);
        drop(held);
        let gone = match mode {
            Fallocate::Allocate { .. } => return Ok(()),
            Fallocate::PunchHole | Fallocate::ZeroRange { .. } => {
                pages.forget_range(offset, offset + len)
            }
            Fallocate::CollapseRange | Fallocate::InsertRange => {
                pages.forget_range(offset, u64::MAX)
            }
        };
        self.cache.removed(gone);
        Ok(())
    }
}
