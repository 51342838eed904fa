//! A session's views: what its client sees of open files without asking, and may write on loan.
//!
//! ```text
//!  Op::Read, Write, Fstat with SHOW ─► view_of ─► show: state and pages go where the client looks
//!                                        Write ─► lend: the client writes there, too
//!  anybody changes the file ─► Viewer ─► what is shown loses that     anybody looks ─► end_loan
//! ```
//!
//! # Invariants
//!
//! - What is in the client's memory is never believed: which page lies in which frame, and which
//!   frames may be written, is this side's own record. The client says only which of those it wrote
//!   and when.
//! - Pages are shown to a client whose session had the file open for reading.
//! - A view number means one file as long as a handle of the client refers to it, and while it is
//!   *kept* afterwards: told of changes as before, but with nothing on loan. Whoever opens the file
//!   again finds in it what was shown before. A file without a name has no kept view.
//! - Frames that a client may still be writing to when its loan ends are *stranded*: they are used
//!   again when it has left. A client that never leaves has so many frames less.
//! - Nothing is shown of a file of which the kernel has pages: the tag is looked at, and views are
//!   blinded, under `state`.
//!
//! # Locking
//!
//! `ending` or `ending_locks`, then the locks of the VFS, then `state`, which is a leaf.

mod loans;

use std::ops::Range;

use polylane_base::sync::{Mutex, Weak};
use polylane_base::{Result, Time};
use polylane_ipc::message::WireAttr;
use polylane_ipc::view::{HAS_ATTR, HAS_DATA, VIEWS_MAX};
use polylane_vfs::{Attr, Node, OpenFile, Viewer};

use self::loans::Given;
use super::locks::{self, LockLoans};
use super::shown::{PAGE, Pages, Shown, View, address, page_of};
use crate::lane::tag::kernel_changes_pages;
use crate::shm::attr::wire_attr;
use crate::shm::connection::Connection;
use crate::shm::files::OpenFiles;
use crate::shm::request::Handle;

/// Pages that a sequential reader gets beyond what it asked for.
const AHEAD_PAGES: u64 = 15;
/// Most pages that one request shows to a sequential reader or a writer.
const SHOWN_PAGES_MAX: u64 = 64;
/// Pages that are copied at a time: through a buffer that stays in a processor's cache.
const COPIED_PAGES: u64 = 16;
/// Most pages, a power of two, that a reader at random gets with those it asked for: of one block
/// of so many, while they take no other page's place.
const AROUND_PAGES_MAX: u64 = 256;
/// For so many pages that were shown of a file, the block is one page larger: who reads a few
/// places gets those alone.
const SHOWN_PER_PAGE: u64 = 2;
/// Requests whose clients had found something in a view, from which on its pages go into frames
/// that were never used, too: such a page is a fresh one of memory, which costs more than a
/// request's part, and is worth it only where what is shown is read.
const HITS_MIN: u32 = 4;
/// Changed pages that are looked for one by one; more make the whole file unshown.
const CHANGED_PAGES_MAX: u64 = 64;

/// Views of closed files that one session keeps: no more than half of all.
const KEPT_MAX: usize = 1024;

const _: () = assert!(KEPT_MAX <= VIEWS_MAX as usize / 2);

/// Flags of an open file whose writes must not wait with the client.
const UNLENT_FLAGS: i32 = libc::O_SYNC | libc::O_DSYNC | libc::O_DIRECT;

/// The views of one session. Thread-safe.
pub(super) struct Views {
    /// Held while a loan ends: a second caller finds it ended.
    ending: Mutex<()>,
    /// What the VFS tells of changes to the files that are shown.
    viewer: Weak<dyn Viewer>,
}

impl Views {
    /// None yet; `viewer` is told of changes.
    pub(super) fn new(viewer: Weak<dyn Viewer>) -> Views {
        Views { ending: Mutex::default(), viewer }
    }
}

/// What views ask of their session's stream. It lies above them, for its entries write to files on
/// loan and close files that are shown; it is handed down for the length of a call.
pub(super) trait Stream {
    /// Applies what the client wrote to files on loan.
    fn settle_loans(&self);

    /// Lets the client stream writes to files on loan. False: not now.
    fn open(&self) -> bool;
}

/// The views of a session with what a call works on.
#[derive(Clone, Copy)]
pub(super) struct Viewing<'a> {
    pub(super) views: &'a Views,
    pub(super) shown: &'a Shown,
    pub(super) locks: &'a LockLoans,
    pub(super) connection: &'a Connection,
    pub(super) files: &'a OpenFiles,
    pub(super) stream: &'a dyn Stream,
}

/// A request whose client would like to see the file.
#[derive(Clone, Copy)]
pub(in crate::shm) struct Wish {
    pub(in crate::shm) handle: Handle,
    pub(in crate::shm) offset: u64,
    pub(in crate::shm) len: u64,
}

impl Viewing<'_> {
    /// Shows the state of an open file. Returns the view's number plus one, 0 for none.
    pub(super) fn show_state(self, handle: Handle, file: &OpenFile) -> u64 {
        let shown = self.view_of(handle, file.node()).inspect(|&view| {
            // Not shown, it is asked for.
            let _ = self.show_attr(view, file.node());
        });
        shown.map_or(0, |view| u64::from(view) + 1)
    }

    /// Shows the state if what was just read ends where the file does: who reads a file whole reads
    /// once more. Leaves half of the views to files that are used for longer.
    pub(super) fn show_end(self, wish: Wish, file: &OpenFile) -> u64 {
        let at_end = wish.len > 0 && file.ends_by(wish.offset + wish.len);
        match at_end && !self.shown.lock().is_half_full() {
            true => self.show_state(wish.handle, file),
            false => 0,
        }
    }

    /// Whether all pages of a file that was brought before are shown; from now on, if they were
    /// not.
    pub(super) fn show_again(
        self,
        (number, first): (u32, bool),
        node: &Node,
        pages: Range<u64>,
    ) -> bool {
        let mut state = self.shown.lock();
        let Some(view) = state.get(number) else { return false };
        view.brought = view.brought.saturating_add(1);
        if view.brought == 1 && (first || view.cached.is_none()) {
            return false;
        }
        let missing = state.missing(&self.connection.channel, number, pages);
        drop(state);
        if missing.is_empty() {
            return true;
        }
        self.show_pages(number, node, missing.clone());
        self.shown.lock().missing(&self.connection.channel, number, missing).is_empty()
    }

    /// Shows the state, and the pages that were just read. `found`: the client has found some since
    /// the request before.
    pub(super) fn show_read(self, wish: Wish, found: bool, file: &OpenFile) -> u64 {
        let Some(view) = self.view_of(wish.handle, file.node()) else { return 0 };
        if let Some(view) = self.shown.lock().get(view).filter(|_| found) {
            view.hits = view.hits.saturating_add(1);
        }
        let shown = self.show_attr(view, file.node());
        if shown.is_ok() && wish.len > 0 {
            let first = page_of(wish.offset);
            let count = page_of(wish.offset + wish.len - 1) - first + 1;
            let (first, count) = match self.ahead(view, first, count) {
                0 => self.around(view, file.node(), first, count),
                ahead => (first, (count + ahead).min(SHOWN_PAGES_MAX)),
            };
            self.show_pages(view, file.node(), first..first + count);
        }
        u64::from(view) + 1
    }

    /// Shows what was just written, and lends it. `changes`: as [`Viewing::changes_of`] was before
    /// the write.
    pub(super) fn show_written(self, wish: Wish, changes: Option<u64>, file: &OpenFile) -> u64 {
        let Some(view) = self.view_of(wish.handle, file.node()) else { return 0 };
        let (end, size) = (wish.offset + wish.len, self.size_shown(view));
        let shown = self.show_attr(view, file.node());
        let room_pages = if end > size { self.room_wanted(view, wish.offset == size) } else { 0 };
        // What is written far past the end is seldom written again soon.
        let again = wish.len > 0 && (end <= size || room_pages > 0);
        let lendable = again && file.flags() & UNLENT_FLAGS == 0 && self.may_show(file);
        if let (Ok(()), true, Some(changes)) = (shown, lendable, changes) {
            let (first, last) = (page_of(wish.offset), page_of(end - 1));
            let last = last.min(first + SHOWN_PAGES_MAX - 1);
            self.show_pages(view, file.node(), first..last + 1);
            // A program that writes whole pages here and there finds few of them lent.
            let in_place = end <= size && (wish.offset | wish.len).is_multiple_of(PAGE);
            // One that it made by the stream it may write there yet, not knowing of the view.
            let plain = file.flags() & libc::O_APPEND == 0 && !self.files.has_streamed(file.node());
            let streams = in_place && plain && self.stream.open();
            let range = (wish.offset, end);
            let given = Given { range, room_pages, streams, again: false };
            self.lend(view, file.node(), changes + 1, given);
        }
        u64::from(view) + 1
    }

    /// Whether the client may see all of a file that it may write.
    fn may_show(self, file: &OpenFile) -> bool {
        let readable = file.flags() & libc::O_ACCMODE == libc::O_RDWR;
        readable || self.connection.lane.vfs.may_read(&self.connection.ctx(), file.node())
    }

    /// Pages past the end that are worth giving after a write that moved the end, `there`: right
    /// behind the former one.
    fn room_wanted(self, number: u32, there: bool) -> u64 {
        let mut state = self.shown.lock();
        let Some(view) = state.get(number).filter(|_| there) else { return 0 };
        let pages = if view.pause == 0 { view.room_pages } else { 0 };
        view.pause = view.pause.saturating_sub(1);
        pages
    }

    /// The same after a sync. A loan that the sync of the write that had it given ended says
    /// nothing; `again`: it was one that had been given after a sync.
    fn room_again(self, number: u32, again: bool) -> u64 {
        match again {
            true => self.room_wanted(number, true),
            false => self.shown.lock().get(number).map_or(0, |view| view.room_pages),
        }
    }

    /// The size that a view showed last.
    fn size_shown(self, number: u32) -> u64 {
        self.shown.lock().get(number).map_or(0, |view| view.size)
    }

    /// How often the data of a file has changed since it is viewed; `None`: it is not.
    pub(super) fn changes_of(self, node: &Node) -> Option<u64> {
        let mut state = self.shown.lock();
        let number = *state.by_node.get(&address(node))?;
        state.get(number).map(|view| view.changes)
    }

    /// The view that a handle refers to, from now on if it did not yet.
    pub(super) fn view_of(self, handle: Handle, node: &Node) -> Option<u32> {
        if let Some(view) = self.files.view_in(handle) {
            return Some(view);
        }
        let (view, new) =
            self.shown.lock().enter(&self.connection.channel, &self.shown.left, node)?;
        if new {
            let (viewer, id) = (self.views.viewer.clone(), self.connection.id);
            let added = self.connection.lane.vfs.add_view(node, (id, view), viewer);
            if let Some(view) = self.shown.lock().get(view) {
                view.watched = added.is_ok();
            }
        }
        if self.files.set_view(handle, view) {
            return Some(view);
        }
        // Closed meanwhile, or another thread was faster.
        self.leave_view(view, None);
        self.files.view_in(handle)
    }

    /// A handle refers to a view no longer. After the last one it is kept, or ends.
    pub(super) fn leave_view(self, number: u32, handle: Option<Handle>) {
        let mut state = self.shown.lock();
        let Some(view) = state.get(number) else { return };
        if view.cached.take_if(|cached| Some(cached.handle) == handle).is_some() {
            self.connection.channel.views().put_rest(number, 0);
        }
        view.users -= 1;
        if view.users > 0 {
            return;
        }
        let Some(node) = view.node.clone() else { return };
        drop(state);
        self.end_loan(number, &node);
        self.end_lock_loan(number);
        self.keep_view(number, &node);
    }

    /// Keeps a view that no handle refers to any more, or ends it. Its loans are over.
    fn keep_view(self, number: u32, node: &Node) {
        let mut state = self.shown.lock();
        let (own, closed) = (state.kept.len(), state.closed);
        let unused = |view: &&mut View| view.users == 0 && view.kept.is_none();
        let Some(view) = state.get(number).filter(unused) else { return };
        let quiet = view.watched && !view.stuck && view.lent.is_none() && view.locks.is_none();
        let room = quiet && !closed && own < KEPT_MAX && self.shown.left.kept.take(own);
        if !quiet || closed || (!room && own == 0) {
            drop(state);
            return self.give_up(number);
        }
        let oldest = state.keep(number, room);
        drop(state);
        if let Some(oldest) = oldest {
            self.give_up(oldest);
        }
        // A later removal of the last name finds it kept.
        if self.connection.lane.vfs.is_unlinked(node) {
            self.give_up(number);
        }
    }

    /// Ends a view that no handle refers to.
    pub(super) fn give_up(self, number: u32) {
        let mut state = self.shown.lock();
        let Some(view) = state.get(number).filter(|view| view.users == 0) else { return };
        let Some(node) = view.node.take() else { return };
        view.watched = false;
        let kept = view.kept.take();
        state.by_node.remove(&address(&node));
        if let Some(stamp) = kept {
            state.kept.remove(&stamp);
            self.shown.left.kept.give(1);
        }
        drop(state);
        self.end_view(number, &node);
    }

    fn end_view(self, number: u32, node: &Node) {
        self.end_loan(number, node);
        self.end_lock_loan(number);
        self.connection.lane.vfs.remove_view(node, (self.connection.id, number));
        let mut state = self.shown.lock();
        state.void(&self.connection.channel, number);
        let gone = state.retire(number);
        drop(state);
        drop(gone);
    }

    /// No views from now on: the session is over.
    pub(super) fn end(self) {
        let mut state = self.shown.lock();
        state.closed = true;
        state.by_node.clear();
        let views: Vec<(u32, Node)> = (0..)
            .zip(&mut state.views)
            .filter_map(|(number, view)| Some((number, view.as_mut()?)))
            .filter_map(|(number, view)| {
                view.watched = false;
                Some((number, view.node.take()?))
            })
            .collect();
        let used = std::mem::take(&mut state.used);
        let kept = std::mem::take(&mut state.kept).len();
        drop(state);
        self.shown.left.kept.give(kept);
        for (number, node) in views {
            self.end_view(number, &node);
            locks::note_locker(self.connection, self.files, &node);
        }
        self.shown.left.give(used);
        let state = std::mem::take(&mut *self.shown.lock());
        self.shown.lock().closed = true;
        drop(state);
    }

    pub(super) fn show_attr(self, number: u32, node: &Node) -> Result<()> {
        self.connection.lane.vfs.show_attr(&self.connection.ctx(), node, &mut |attr: &Attr, due| {
            let mut state = self.shown.lock();
            let hidden = kernel_changes_pages(node) || due;
            let mine = |view: &&mut View| view.watched && view.inode == address(node);
            let Some(view) = state.get(number).filter(mine) else { return };
            view.size = attr.size;
            // Where times have fractions there is a time of birth.
            view.unwritten.atime_follows = due && attr.btime != Time::default();
            view.whole_pages = u64::from(attr.blksize).is_multiple_of(PAGE);
            let has = if hidden { HAS_ATTR } else { HAS_ATTR | HAS_DATA };
            state.put(&self.connection.channel, number, has, &wire_attr(attr));
        })
    }

    /// How many pages more a reader gets that wants `count` from `first` on.
    fn ahead(self, number: u32, first: u64, count: u64) -> u64 {
        let mut state = self.shown.lock();
        let Some(view) = state.get(number) else { return 0 };
        let sequential = first == view.next || first + 1 == view.next;
        let ahead = if sequential && first > 0 { AHEAD_PAGES } else { 0 };
        view.next = first + count + ahead;
        ahead
    }

    /// Pages to show to a reader at random that wants `count` from `first` on: those, and the ones
    /// around them that cost a copy and nothing else. The first, and how many.
    fn around(self, number: u32, node: &Node, first: u64, count: u64) -> (u64, u64) {
        let pages = first..first + count;
        let mut state = self.shown.lock();
        let Some(view) = state.get(number) else { return (first, count) };
        let block = (view.shown / SHOWN_PER_PAGE + 1).min(AROUND_PAGES_MAX);
        let (block, file_end) = (block.next_power_of_two(), view.size.div_ceil(PAGE));
        let end = pages.end.next_multiple_of(block).min(file_end.max(pages.end));
        let (generation, limit) = (view.generation, first / block * block..end);
        let hits = view.hits;
        if state.is_unused() || limit == pages || count >= AROUND_PAGES_MAX {
            return (first, count);
        }
        let most = if hits < HITS_MIN { state.frames_touched(count) } else { u64::MAX };
        let room = state.room_around(&self.connection.channel, generation, pages.clone(), limit);
        // Those behind first.
        let end = room.end.min(pages.end.saturating_add(most));
        let room = room.start.max(first.saturating_sub(most - (end - pages.end)))..end;
        drop(state);
        let found = self.connection.lane.vfs.cached_around(node, pages, room);
        (found.start, found.end - found.start)
    }

    fn show_pages(self, number: u32, node: &Node, pages: Range<u64>) {
        let mut buffer = vec![0; (COPIED_PAGES.min(pages.end - pages.start) * PAGE) as usize];
        for first in pages.clone().step_by(COPIED_PAGES as usize) {
            let count = COPIED_PAGES.min(pages.end - first);
            self.show_copied(number, node, first, &mut buffer[..(count * PAGE) as usize]);
        }
    }

    /// Shows the pages from `first` on that fill `bytes`.
    fn show_copied(self, number: u32, node: &Node, first: u64, bytes: &mut [u8]) {
        // Past the end of the file nothing of the pages before may be left.
        bytes.fill(0);
        // What cannot be read is not shown; the next read says why.
        let _ = self.connection.lane.vfs.show(node, first * PAGE, bytes, &mut |bytes| {
            let mut state = self.shown.lock();
            let mine = |view: &View| view.watched && view.inode == address(node);
            if kernel_changes_pages(node) || !state.get(number).is_some_and(|view| mine(view)) {
                return;
            }
            let pages = Pages { view: number, first, bytes };
            state.put_pages(&self.connection.channel, &self.shown.left, pages);
        });
    }
}

/// What the VFS tells of, and asks for.
impl Viewing<'_> {
    /// As [`Viewer::data_changes`].
    pub(super) fn data_changes(self, number: u32, start: u64, end: u64) {
        let mut state = self.shown.lock();
        let Some(view) = state.get(number) else { return };
        view.changes += 1;
        let generation = view.generation;
        let (first, last) = (page_of(start), page_of(end.saturating_sub(1)));
        if last - first.min(last) >= CHANGED_PAGES_MAX {
            return state.void(&self.connection.channel, number);
        }
        for page in first..=last {
            if let Some(entry) = state.find(&self.connection.channel, generation, page) {
                state.hide(&self.connection.channel, entry);
            }
        }
    }

    /// As [`Viewer::attr_changed`].
    pub(super) fn attr_changed(self, number: u32) {
        let mut state = self.shown.lock();
        // What is taken in while its loan goes on changes nothing of what is shown.
        let goes_on = |view: &View| view.advancing || view.applies && view.lent.is_some();
        if state.get(number).is_some_and(|view| view.has != 0 && !goes_on(view)) {
            state.put(&self.connection.channel, number, 0, &WireAttr::default());
        }
    }

    /// As [`Viewer::end_loan`].
    pub(super) fn end_loan(self, number: u32, node: &Node) {
        let mut applied = 0;
        // The loan that is to end may be another one by then.
        while let Some(loan) = self.end_loan_after(number, node, applied) {
            self.stream.settle_loans();
            applied = loan;
        }
    }

    fn end_lock_loan(self, number: u32) {
        self.locks.end((self.shown, self.connection), number);
    }
}
