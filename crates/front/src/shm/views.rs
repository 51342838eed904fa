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
//! - A view number means one file as long as a handle of the client refers to it.
//! - Frames that a client may still be writing to when its loan ends are *stuck*: they are used
//!   again when it has left. A client that never leaves has so many frames less.
//! - Nothing is shown of a file of which the kernel has pages: the tag is looked at, and views are
//!   blinded, under `state`.
//!
//! # Locking
//!
//! `ending`, then the locks of the VFS, then `state`, which is a leaf.

use std::collections::HashMap;

use polylane_base::sync::{Arc, Mutex, Weak};
use polylane_base::{Result, Time};
use polylane_ipc::ServiceChannel;
use polylane_ipc::message::WireAttr;
use polylane_ipc::view::{
    FRAME_BYTES, HAS_ATTR, HAS_DATA, NOTES_READS, VIEWS_MAX, WAYS, next_generation, tag,
};
use polylane_vfs::{Attr, Inode, Node, OpenFile, Viewer};

pub(super) use super::frames::FramesLeft;
use super::request::Handle;
use super::serve::{kernel_has_pages, wire_attr};
use super::session::Session;

const PAGE: u64 = FRAME_BYTES as u64;

/// Pages that a sequential reader gets beyond what it asked for.
const AHEAD_PAGES: u64 = 15;
/// Most pages that one request shows.
const SHOWN_PAGES_MAX: u64 = 32;
/// Changed pages that are looked for one by one; more make the whole file unshown.
const CHANGED_PAGES_MAX: u64 = 64;

/// Flags of an open file whose writes must not wait with the client.
const UNLENT_FLAGS: i32 = libc::O_APPEND | libc::O_SYNC | libc::O_DSYNC | libc::O_DIRECT;

/// See the head of this file.
pub(super) struct Views {
    state: Mutex<State>,
    /// Held while a loan ends: who comes second finds it ended.
    ending: Mutex<()>,
    left: Arc<FramesLeft>,
}

#[derive(Default)]
struct State {
    views: Vec<Option<View>>,
    /// Numbers of views, by the address of the inode that each holds.
    by_node: HashMap<usize, u32>,
    frames: Vec<Frame>,
    generation: u64,
    /// Frames taken from what the server has.
    used: usize,
    /// The way that is given up next.
    hand: usize,
    closed: bool,
}

struct View {
    /// The file; none once it is over.
    node: Option<Node>,
    /// Handles that refer to it; none: it is over, and only waits for its client to leave.
    users: u32,
    generation: u64,
    /// The VFS tells us of changes.
    watched: bool,
    /// What counts of it: bits of `HAS_`.
    has: u64,
    size: u64,
    /// A write to a part of a page has room for all of it.
    whole_pages: bool,
    /// Counts changes of data.
    changes: u64,
    /// Entries of the frames that the client may write.
    writable: Vec<usize>,
    /// When the loan under way began.
    lent: Option<Time>,
    /// Somebody was inside when the last loan ended.
    stuck: bool,
    /// The page that a sequential reader would want next.
    next: u64,
}

/// What lies in an entry's frame.
#[derive(Clone, Copy, Default)]
struct Frame {
    tag: u64,
    view: u32,
    writable: bool,
    stuck: bool,
    used: bool,
}

fn address(node: &Node) -> usize {
    Arc::as_ptr(node).cast::<Inode>() as usize
}

fn page_of(offset: u64) -> u64 {
    offset / PAGE
}

impl Views {
    pub(super) fn new(left: Arc<FramesLeft>) -> Views {
        Views { state: Mutex::default(), ending: Mutex::default(), left }
    }
}

impl State {
    fn get(&mut self, view: u32) -> Option<&mut View> {
        self.views.get_mut(view as usize)?.as_mut()
    }

    fn next_generation(&mut self) -> u64 {
        self.generation = next_generation(self.generation).max(1);
        self.generation
    }

    /// The view of an inode with one user more, or a new one: its number, and whether it is new.
    fn enter(&mut self, channel: &ServiceChannel, node: &Node) -> Option<(u32, bool)> {
        if self.closed || channel.geometry().frames == 0 {
            return None;
        }
        if let Some(&number) = self.by_node.get(&address(node)) {
            self.get(number)?.users += 1;
            return Some((number, false));
        }
        let number = self.free_number(channel)?;
        let generation = self.next_generation();
        let view = View {
            node: Some(node.clone()),
            users: 1,
            generation,
            watched: false,
            has: 0,
            size: 0,
            whole_pages: false,
            changes: 0,
            writable: Vec::new(),
            lent: None,
            stuck: false,
            next: 0,
        };
        channel.views().shut_gate(number);
        channel.views().put(number, (generation, 0), 0, &WireAttr::default());
        self.views[number as usize] = Some(view);
        self.by_node.insert(address(node), number);
        Some((number, true))
    }

    fn free_number(&mut self, channel: &ServiceChannel) -> Option<u32> {
        let over =
            |view: &View, number: usize| view.users == 0 && channel.views().is_left(number as u32);
        let free = |(number, view): (usize, &Option<View>)| match view {
            None => Some(number),
            Some(view) => over(view, number).then_some(number),
        };
        if let Some(number) = self.views.iter().enumerate().find_map(free) {
            return Some(number as u32);
        }
        if self.views.len() == VIEWS_MAX as usize {
            return None;
        }
        self.views.push(None);
        Some(self.views.len() as u32 - 1)
    }

    /// Lets what a view shows count, or not.
    fn put(&mut self, channel: &ServiceChannel, number: u32, has: u64, attr: &WireAttr) {
        if let Some(view) = self.get(number) {
            view.has = has;
            channel.views().put(number, (view.generation, has), view.size, attr);
        }
    }

    /// All pages of a view are void, by a new generation.
    fn void(&mut self, channel: &ServiceChannel, number: u32) {
        let generation = self.next_generation();
        if let Some(view) = self.get(number) {
            view.generation = generation;
            view.writable.clear();
            self.put(channel, number, 0, &WireAttr::default());
        }
    }

    /// Whether a frame holds a page of a file that is shown.
    fn is_live(&self, frame: &Frame) -> bool {
        let view = self.views.get(frame.view as usize).and_then(Option::as_ref);
        view.is_some_and(|view| {
            let first = tag(view.generation, 0).unwrap_or(0);
            frame.tag != 0 && frame.tag >= first && frame.tag - first < 1 << 24
        })
    }

    /// Whether nobody can be writing to an entry's frame.
    fn is_quiet(&mut self, channel: &ServiceChannel, entry: usize) -> bool {
        let frame = self.frames[entry];
        if frame.stuck && channel.views().is_left(frame.view) {
            self.frames[entry].stuck = false;
        }
        let lent = || self.views[frame.view as usize].as_ref().is_some_and(|v| v.lent.is_some());
        !(self.frames[entry].stuck || frame.writable && self.is_live(&frame) && lent())
    }

    /// The entry for a page: that in which it lies already, a void one, or the next in turn.
    fn place(&mut self, channel: &ServiceChannel, left: &FramesLeft, tag: u64) -> Option<usize> {
        let set = channel.views().set_of(tag);
        if let Some(entry) = (set..set + WAYS).find(|&entry| self.frames[entry].tag == tag) {
            return Some(entry);
        }
        self.hand += 1;
        for live in [false, true] {
            for way in 0..WAYS {
                let entry = set + (way + self.hand) % WAYS;
                if self.is_live(&self.frames[entry]) == live && self.is_quiet(channel, entry) {
                    return self.pay(left, entry).then_some(entry);
                }
            }
        }
        None
    }

    /// Whether an entry's frame may take memory, or has.
    fn pay(&mut self, left: &FramesLeft, entry: usize) -> bool {
        let paid = self.frames[entry].used || left.take();
        self.used += usize::from(paid && !self.frames[entry].used);
        self.frames[entry].used |= paid;
        paid
    }

    /// Puts pages, whose bytes are in `bytes`, into frames.
    fn put_pages(&mut self, channel: &ServiceChannel, left: &FramesLeft, at: Pages<'_>) {
        let Some(view) = self.get(at.view) else { return };
        let generation = view.generation;
        if self.frames.is_empty() {
            self.frames = vec![Frame::default(); channel.geometry().frames as usize];
        }
        for (page, bytes) in (at.first..).zip(at.bytes.chunks(FRAME_BYTES)) {
            let Some(tag) = tag(generation, page) else { return };
            let Some(entry) = self.place(channel, left, tag) else { continue };
            let writable = self.frames[entry].tag == tag && self.frames[entry].writable;
            channel.views().put_page(entry, tag, |offset| channel.frame_put(offset, bytes));
            if writable {
                channel.views().let_write(entry);
            }
            let frame = &mut self.frames[entry];
            (frame.tag, frame.view, frame.writable) = (tag, at.view, writable);
        }
    }

    /// The entry in which a page of a view lies.
    fn find(&self, channel: &ServiceChannel, generation: u64, page: u64) -> Option<usize> {
        let tag = tag(generation, page).filter(|_| !self.frames.is_empty())?;
        let set = channel.views().set_of(tag);
        (set..set + WAYS).find(|&entry| self.frames[entry].tag == tag)
    }

    /// Takes a page out of what is shown.
    fn hide(&mut self, channel: &ServiceChannel, entry: usize) {
        channel.views().put_page(entry, 0, |_| ());
        let frame = &mut self.frames[entry];
        (frame.tag, frame.writable) = (0, false);
    }

    /// The client may write the pages for which the file system has room, because it has just
    /// stored the bytes of a range: those that lie in it wholly, or all where room is given by the
    /// page.
    fn let_write(&mut self, channel: &ServiceChannel, number: u32, range: (u64, u64)) {
        let Some(view) = self.get(number) else { return };
        let (generation, size, whole) = (view.generation, view.size, view.whole_pages);
        let mut entries = Vec::new();
        for page in page_of(range.0)..=page_of(range.1 - 1) {
            let inside = page * PAGE >= range.0 && ((page + 1) * PAGE).min(size) <= range.1;
            let inside = inside || whole;
            let Some(entry) = self.find(channel, generation, page).filter(|_| inside) else {
                continue;
            };
            if !std::mem::replace(&mut self.frames[entry].writable, true) {
                channel.views().let_write(entry);
                entries.push(entry);
            }
        }
        if let Some(view) = self.get(number) {
            view.writable.append(&mut entries);
        }
    }

    /// Takes what a client wrote on loan: the bytes of the pages it says it wrote.
    fn take_written(&mut self, channel: &ServiceChannel, number: u32) -> Vec<(u64, Box<[u8]>)> {
        let Some(view) = self.get(number) else { return Vec::new() };
        let first = tag(view.generation, 0).unwrap_or(0);
        let mut entries = std::mem::take(&mut view.writable);
        let mut parts = Vec::new();
        entries.sort_unstable();
        entries.dedup();
        entries.retain(|&entry| self.frames[entry].writable && self.is_mine(entry, number));
        for &entry in &entries {
            if channel.views().take_dirty(entry) {
                let mut bytes = vec![0; FRAME_BYTES].into_boxed_slice();
                channel.frame_get(channel.views().frame_offset(entry), &mut bytes);
                parts.push(((self.frames[entry].tag - first) * PAGE, bytes));
            }
        }
        if let Some(view) = self.get(number) {
            view.writable = entries;
        }
        parts
    }

    fn is_mine(&self, entry: usize, number: u32) -> bool {
        self.frames[entry].view == number && self.is_live(&self.frames[entry])
    }

    /// Somebody is inside: nothing is put where it may be writing until it has left.
    fn strand(&mut self, channel: &ServiceChannel, number: u32) {
        let Some(view) = self.get(number) else { return };
        view.stuck = true;
        for entry in std::mem::take(&mut view.writable) {
            self.hide(channel, entry);
            self.frames[entry].stuck = true;
        }
    }
}

/// Pages of a file for a view.
struct Pages<'a> {
    view: u32,
    first: u64,
    bytes: &'a [u8],
}

/// A request whose client would like to see the file.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    pub(super) handle: Handle,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Session {
    /// Shows the state of an open file. Returns the view's number plus one, 0 for none.
    pub(super) fn show_state(self: &Arc<Self>, handle: Handle, file: &OpenFile) -> u64 {
        let shown = self.view_of(handle, file.node()).inspect(|&view| {
            // Not shown, it is asked for.
            let _ = self.show_attr(view, file.node());
        });
        shown.map_or(0, |view| u64::from(view) + 1)
    }

    /// Shows the state, and the pages that were just read.
    pub(super) fn show_read(self: &Arc<Self>, wish: Wish, file: &OpenFile) -> u64 {
        let Some(view) = self.view_of(wish.handle, file.node()) else { return 0 };
        let shown = self.show_attr(view, file.node());
        if shown.is_ok() && wish.len > 0 {
            let first = page_of(wish.offset);
            let count = page_of(wish.offset + wish.len - 1) - first + 1;
            let ahead = self.ahead(view, first, count);
            self.show_pages(view, file, first, (count + ahead).min(SHOWN_PAGES_MAX));
        }
        u64::from(view) + 1
    }

    /// Shows what was just written, and lends it. `changes`: as [`Session::changes_of`] was before
    /// the write.
    pub(super) fn show_written(
        self: &Arc<Self>,
        wish: Wish,
        changes: Option<u64>,
        file: &OpenFile,
    ) -> u64 {
        let Some(view) = self.view_of(wish.handle, file.node()) else { return 0 };
        let readable = file.flags() & libc::O_ACCMODE == libc::O_RDWR;
        let (end, size) = (wish.offset + wish.len, self.size_shown(view));
        let shown = self.show_attr(view, file.node());
        // What makes a file longer is seldom written again soon.
        let again = wish.len > 0 && end <= size;
        if shown.is_ok() && readable && again && file.flags() & UNLENT_FLAGS == 0 {
            let (first, last) = (page_of(wish.offset), page_of(end - 1));
            self.show_pages(view, file, first, (last - first + 1).min(SHOWN_PAGES_MAX));
            if let Some(changes) = changes {
                self.lend(view, file.node(), changes + 1, (wish.offset, end));
            }
        }
        u64::from(view) + 1
    }

    /// The size that a view showed last.
    fn size_shown(&self, number: u32) -> u64 {
        self.views.state.lock().get(number).map_or(0, |view| view.size)
    }

    /// How often the data of a file has changed since it is viewed; `None`: it is not.
    pub(super) fn changes_of(&self, node: &Node) -> Option<u64> {
        let mut state = self.views.state.lock();
        let number = *state.by_node.get(&address(node))?;
        state.get(number).map(|view| view.changes)
    }

    /// The view that a handle refers to, from now on if it did not yet.
    fn view_of(self: &Arc<Self>, handle: Handle, node: &Node) -> Option<u32> {
        if let Some(view) = self.view_in(handle) {
            return Some(view);
        }
        let (view, new) = self.views.state.lock().enter(&self.channel, node)?;
        if new {
            let weak: Weak<Session> = Arc::downgrade(self);
            let added = self.lane.vfs.add_view(node, (self.id, view), weak);
            if let Some(view) = self.views.state.lock().get(view) {
                view.watched = added.is_ok();
            }
        }
        if self.set_view(handle, view) {
            return Some(view);
        }
        // Closed meanwhile, or another thread was faster.
        self.leave_view(view);
        self.view_in(handle)
    }

    /// A handle refers to a view no longer. The last one ends it.
    pub(super) fn leave_view(&self, number: u32) {
        let mut state = self.views.state.lock();
        let Some(view) = state.get(number) else { return };
        view.users -= 1;
        if view.users > 0 {
            return;
        }
        let Some(node) = view.node.take() else { return };
        view.watched = false;
        state.by_node.remove(&address(&node));
        drop(state);
        self.end_view(number, &node);
    }

    fn end_view(&self, number: u32, node: &Node) {
        Viewer::end_loan(self, number, node);
        self.lane.vfs.remove_view(node, (self.id, number));
        let mut state = self.views.state.lock();
        state.void(&self.channel, number);
        if let Some(place) = state.views.get_mut(number as usize)
            && place.as_ref().is_some_and(|view| !view.stuck)
        {
            let gone = place.take();
            drop(state);
            drop(gone);
        }
    }

    /// No views from now on: the session is over.
    pub(super) fn end_views(&self) {
        let mut state = self.views.state.lock();
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
        drop(state);
        for (number, node) in views {
            self.end_view(number, &node);
        }
        self.views.left.give(used);
        let state = std::mem::take(&mut *self.views.state.lock());
        self.views.state.lock().closed = true;
        drop(state);
    }

    fn show_attr(&self, number: u32, node: &Node) -> Result<()> {
        self.lane.vfs.show_attr(node, &mut |attr: &Attr, due| {
            let mut state = self.views.state.lock();
            let hidden = kernel_has_pages(node) || due;
            let Some(view) = state.get(number).filter(|view| view.watched) else { return };
            view.size = attr.size;
            view.whole_pages = u64::from(attr.blksize).is_multiple_of(PAGE);
            let has = if hidden { HAS_ATTR } else { HAS_ATTR | HAS_DATA };
            state.put(&self.channel, number, has, &wire_attr(attr));
        })
    }

    /// How many pages more a reader gets that wants `count` from `first` on.
    fn ahead(&self, number: u32, first: u64, count: u64) -> u64 {
        let mut state = self.views.state.lock();
        let Some(view) = state.get(number) else { return 0 };
        let sequential = first == view.next || first + 1 == view.next;
        let ahead = if sequential && first > 0 { AHEAD_PAGES } else { 0 };
        view.next = first + count + ahead;
        ahead
    }

    fn show_pages(&self, number: u32, file: &OpenFile, first: u64, count: u64) {
        let mut bytes = vec![0; (count * PAGE) as usize];
        let node = file.node();
        // What cannot be read is not shown; the next read says why.
        let _ = file.show(first * PAGE, &mut bytes, &mut |bytes| {
            let mut state = self.views.state.lock();
            if kernel_has_pages(node) || !state.get(number).is_some_and(|view| view.watched) {
                return;
            }
            let pages = Pages { view: number, first, bytes };
            state.put_pages(&self.channel, &self.views.left, pages);
        });
    }

    /// Lets the client write to the pages that lie in `range`, and to those it was let before, if
    /// nobody but it changed the file since `changes`.
    fn lend(&self, number: u32, node: &Node, changes: u64, range: (u64, u64)) {
        self.lane.vfs.lend(node, self.id, &mut || {
            let mut state = self.views.state.lock();
            let left = self.channel.views().is_left(number);
            let Some(view) = state.get(number) else { return false };
            view.stuck &= !left;
            let same = view.changes == changes && view.has & HAS_ATTR != 0 && view.watched;
            if !same || view.stuck || kernel_has_pages(node) {
                return false;
            }
            view.lent = Some(self.lane.vfs.now());
            state.let_write(&self.channel, number, range);
            state.put(&self.channel, number, HAS_DATA | NOTES_READS, &WireAttr::default());
            self.channel.views().open_gate(number);
            true
        });
    }
}

impl Viewer for Session {
    fn data_changes(&self, number: u32, start: u64, end: u64) {
        let mut state = self.views.state.lock();
        let Some(view) = state.get(number) else { return };
        view.changes += 1;
        let generation = view.generation;
        let (first, last) = (page_of(start), page_of(end.saturating_sub(1)));
        if last - first.min(last) >= CHANGED_PAGES_MAX {
            return state.void(&self.channel, number);
        }
        for page in first..=last {
            if let Some(entry) = state.find(&self.channel, generation, page) {
                state.hide(&self.channel, entry);
            }
        }
    }

    fn attr_changed(&self, number: u32) {
        let mut state = self.views.state.lock();
        if state.get(number).is_some_and(|view| view.has != 0) {
            state.put(&self.channel, number, 0, &WireAttr::default());
        }
    }

    fn end_loan(&self, number: u32, node: &Node) {
        let _turn = self.views.ending.lock();
        let mut state = self.views.state.lock();
        let Some(view) = state.get(number) else { return };
        let Some(begun) = view.lent.take() else { return };
        let views = self.channel.views();
        let left = views.shut_gate(number);
        let parts = state.take_written(&self.channel, number);
        if !left {
            state.strand(&self.channel, number);
        }
        state.put(&self.channel, number, 0, &WireAttr::default());
        drop(state);
        let now = self.lane.vfs.now();
        let at = |time| to_time(time).clamp(begun, now.max(begun));
        let written = (!parts.is_empty()).then(|| at(views.written(number)));
        let read = views.read(number).map(at);
        let back = self.lane.vfs.bring_back(node, &parts, (written, read));
        self.stats.brought_back(parts.len(), back.is_ok());
        self.lane.vfs.end_loan(node);
    }
}

fn to_time(ns: i64) -> Time {
    const SECOND: i64 = 1_000_000_000;
    Time { sec: ns.div_euclid(SECOND), nsec: ns.rem_euclid(SECOND) as u32 }
}
