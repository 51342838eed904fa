//! What a session shows of files: its own record of each view, and what of it lies in the client's
//! memory. Each change here is made there in the same breath. Every function of [`State`] is called
//! with the state locked.
//!
//! # Locking
//!
//! `state` is a leaf.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;

use polylane_base::Time;
use polylane_base::sync::{Arc, Mutex, MutexGuard};
use polylane_ipc::ServiceChannel;
use polylane_ipc::message::WireAttr;
use polylane_ipc::view::{
    FRAME_BYTES, HAS_ATTR, HAS_DATA, NOTES_READS, VIEWS_MAX, WAYS, next_generation, tag,
};
use polylane_vfs::{Inode, LockLoan, Node};

use self::grow::ROOM_PAGES;
use crate::lane::locks::Given;

mod frames;
mod grow;
mod piece;
mod record;
mod spare;

pub(in crate::shm) use self::frames::FramesLeft;
pub(super) use self::grow::ask_from;
pub(super) use self::piece::{Piece, PieceSource};
pub(super) use self::record::{CachedHandle, LastLoan, Unwritten};

pub(super) const PAGE: u64 = FRAME_BYTES as u64;

/// What one session shows, and what it may use for that. Thread-safe.
pub(super) struct Shown {
    state: Mutex<State>,
    /// What all sessions may use still.
    pub(super) left: Arc<FramesLeft>,
}

impl Shown {
    /// Nothing yet.
    pub(super) fn new(left: Arc<FramesLeft>) -> Shown {
        Shown { state: Mutex::default(), left }
    }

    /// The record, for this thread alone.
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[derive(Default)]
pub(super) struct State {
    pub(super) views: Vec<Option<View>>,
    /// Numbers of views, by the address of the inode that each holds.
    pub(super) by_node: HashMap<usize, u32>,
    /// Views that no handle refers to, by when they were left: the oldest first.
    pub(super) kept: BTreeMap<u64, u32>,
    stamps: u64,
    /// Numbers of cached handles so far.
    pub(super) handles_cached: u64,
    /// Loans with a stream so far.
    pub(super) loans: u64,
    /// Numbers of views that are over.
    unused: Vec<u32>,
    /// What each entry says; words of zeros, so that it takes memory as it is used.
    frames: Vec<[u64; 2]>,
    /// Frames that were used before, the last one first: it is warm.
    free: Vec<u32>,
    /// Frames that a client may still be writing to, and by which view.
    stranded: Vec<(u32, u32)>,
    pub(super) generation: u64,
    /// Frames taken from what the server has: those from this number on were never used.
    pub(super) used: usize,
    /// The way that is given up next.
    pub(super) hand: usize,
    pub(super) closed: bool,
}

pub(super) struct View {
    /// The file; none once it is over.
    pub(super) node: Option<Node>,
    /// Its inode's address: who holds the inode knows by it that the number still means its view.
    pub(super) inode: usize,
    /// Handles that refer to it.
    pub(super) users: u32,
    /// Place in `kept`, while none refers to it.
    pub(super) kept: Option<u64>,
    /// It has ended, and only waits for its client to leave.
    pub(super) over: bool,
    /// The open file that its client may park and reopen.
    pub(super) cached: Option<CachedHandle>,
    /// Opens that could bring all of the file along.
    pub(super) brought: u32,
    pub(super) generation: u64,
    /// The VFS tells us of changes.
    pub(super) watched: bool,
    /// What counts of it: bits of `HAS_`.
    pub(super) has: u64,
    pub(super) size: u64,
    /// A write to a part of a page has room for all of it.
    pub(super) whole_pages: bool,
    /// Counts changes of data.
    pub(super) changes: u64,
    /// Entries that name pages of it, and perhaps others that did.
    entries: Vec<usize>,
    /// Entries of the frames that the client may write, the oldest first.
    pub(super) writable: Vec<usize>,
    /// Entries of pages that were taken in while their loan went on, and the pages' tags, the
    /// oldest first.
    behind: VecDeque<(usize, u64)>,
    /// Pages, or the time of a read, are being taken in while the loan goes on.
    pub(super) advancing: bool,
    pub(super) unwritten: Unwritten,
    /// The client has moved the end since the loan began.
    moved: bool,
    /// When the loan under way began.
    pub(super) lent: Option<Time>,
    /// It is one to write.
    pub(super) writes: bool,
    /// The number of the loan, if on it the client may write by the stream what it was not lent;
    /// else 0.
    pub(super) streams: u64,
    /// What it wrote so is being applied.
    pub(super) applies: bool,
    /// The last loan to write.
    pub(super) given: Option<LastLoan>,
    /// How far the client may make the file longer; 0: not at all.
    pub(super) room: u64,
    /// Pages past the end that the next loan gives.
    pub(super) room_pages: u64,
    /// Writes past the end until the next loan that gives any.
    pub(super) pause: u32,
    /// Somebody was inside when the last loan ended.
    pub(super) stuck: bool,
    /// The frame in which the client writes anew what a page holds.
    spare: Option<u32>,
    /// The page that a sequential reader would want next.
    pub(super) next: u64,
    /// Pages put so far.
    pub(super) shown: u64,
    /// Requests whose client had found something in it since the one before.
    pub(super) hits: u32,
    /// The locks of the file are lent.
    pub(super) locks: Option<LentLocks>,
}

/// A loan of locks as it was made: `rights::locks`.
pub(super) struct LentLocks {
    pub(super) loan: LockLoan,
    /// The client may write-lock.
    pub(super) writes: bool,
    /// What is to be kept for the next service, but for the range.
    pub(super) given: Option<Given>,
    /// The process, as the lane's tenant numbers it.
    pub(super) pid: u32,
}

/// What an entry says. All zero is nothing.
#[derive(Clone, Copy, Default)]
struct Frame {
    /// 0: no page, and no frame.
    tag: u64,
    view: u32,
    /// The number of the frame.
    number: u32,
    writable: bool,
}

impl Frame {
    const WRITABLE: u64 = 1 << 63;

    fn from_words([tag, rest]: [u64; 2]) -> Frame {
        let number = (rest & !Frame::WRITABLE) >> 32;
        let writable = rest & Frame::WRITABLE != 0;
        Frame { tag, view: rest as u32, number: number as u32, writable }
    }

    fn to_words(self) -> [u64; 2] {
        let writable = if self.writable { Frame::WRITABLE } else { 0 };
        [self.tag, u64::from(self.view) | u64::from(self.number) << 32 | writable]
    }
}

pub(super) fn address(node: &Node) -> usize {
    Arc::as_ptr(node).cast::<Inode>() as usize
}

pub(super) fn page_of(offset: u64) -> u64 {
    offset / PAGE
}

impl State {
    fn frame(&self, entry: usize) -> Frame {
        Frame::from_words(self.frames[entry])
    }

    fn change(&mut self, entry: usize, change: impl FnOnce(&mut Frame)) {
        let mut frame = self.frame(entry);
        change(&mut frame);
        self.frames[entry] = frame.to_words();
    }

    /// Whether nothing was ever put into a frame.
    pub(super) fn is_unused(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether half of all views are in use.
    pub(super) fn is_half_full(&self) -> bool {
        self.by_node.len() - self.kept.len().min(self.by_node.len()) >= VIEWS_MAX as usize / 2
    }

    pub(super) fn get(&mut self, view: u32) -> Option<&mut View> {
        self.views.get_mut(view as usize)?.as_mut()
    }

    pub(super) fn next_generation(&mut self) -> u64 {
        self.generation = next_generation(self.generation).max(1);
        self.generation
    }

    /// The view of an inode with one user more, or a new one: its number, and whether it is new.
    pub(super) fn enter(
        &mut self,
        channel: &ServiceChannel,
        left: &FramesLeft,
        node: &Node,
    ) -> Option<(u32, bool)> {
        if self.closed || channel.geometry().frames == 0 {
            return None;
        }
        if let Some(&number) = self.by_node.get(&address(node)) {
            let view = self.get(number)?;
            view.users += 1;
            if let Some(stamp) = view.kept.take() {
                self.kept.remove(&stamp);
                left.kept.give(1);
            }
            return Some((number, false));
        }
        let number = self.free_number(channel)?;
        let generation = self.next_generation();
        let view = View {
            node: Some(node.clone()),
            inode: address(node),
            users: 1,
            kept: None,
            over: false,
            cached: None,
            brought: 0,
            generation,
            watched: false,
            has: 0,
            size: 0,
            whole_pages: false,
            changes: 0,
            entries: Vec::new(),
            writable: Vec::new(),
            behind: VecDeque::new(),
            advancing: false,
            unwritten: Unwritten::default(),
            moved: false,
            given: None,
            lent: None,
            writes: false,
            streams: 0,
            applies: false,
            room: 0,
            room_pages: ROOM_PAGES,
            pause: 0,
            stuck: false,
            spare: None,
            next: 0,
            shown: 0,
            hits: 0,
            locks: None,
        };
        channel.views().shut_gate(number);
        channel.views().let_stream(number, 0);
        channel.views().put(number, (generation, 0), 0, &WireAttr::default());
        self.views[number as usize] = Some(view);
        self.by_node.insert(address(node), number);
        Some((number, true))
    }

    fn free_number(&mut self, channel: &ServiceChannel) -> Option<u32> {
        if let Some(number) = self.unused.pop() {
            return Some(number);
        }
        if self.views.len() < VIEWS_MAX as usize {
            self.views.push(None);
            return Some(self.views.len() as u32 - 1);
        }
        // Those that somebody was still in when they ended.
        let left = |(number, view): (u32, &Option<View>)| {
            let over = view.as_ref().is_some_and(|view| view.over);
            (over && channel.views().is_left(number)).then_some(number)
        };
        (0..).zip(&self.views).find_map(left)
    }

    /// A view has ended. Its number is free unless its client is still in: then it is once it left.
    pub(super) fn retire(&mut self, number: u32) -> Option<View> {
        let place = self.views.get_mut(number as usize)?;
        match place {
            Some(view) if view.stuck => {
                view.over = true;
                None
            }
            _ => {
                let gone = place.take();
                self.unused.extend(gone.is_some().then_some(number));
                self.free.extend(gone.as_ref().and_then(|view| view.spare));
                gone
            }
        }
    }

    /// A view stays though no handle refers to it any more. Without `room` for one more the oldest
    /// is to go: its number.
    pub(super) fn keep(&mut self, number: u32, room: bool) -> Option<u32> {
        let oldest = if room { None } else { self.kept.pop_first().map(|(_, oldest)| oldest) };
        if let Some(view) = oldest.and_then(|oldest| self.get(oldest)) {
            view.kept = None;
        }
        self.stamps += 1;
        let stamp = self.stamps;
        self.kept.insert(stamp, number);
        if let Some(view) = self.get(number) {
            view.kept = Some(stamp);
        }
        oldest
    }

    /// Those of the pages that are not shown, from the first one on.
    pub(super) fn missing(
        &mut self,
        channel: &ServiceChannel,
        number: u32,
        pages: Range<u64>,
    ) -> Range<u64> {
        let generation = self.get(number).map_or(0, |view| view.generation);
        let is_missing = |&page: &u64| self.find(channel, generation, page).is_none();
        pages.clone().find(is_missing).unwrap_or(pages.end)..pages.end
    }

    /// Lets what a view shows count, or not.
    pub(super) fn put(&mut self, channel: &ServiceChannel, number: u32, has: u64, attr: &WireAttr) {
        if let Some(view) = self.get(number) {
            view.has = has;
            channel.views().put(number, (view.generation, has), view.size, attr);
        }
    }

    /// What a view shows counts, its bytes too, but reads are to be noted. No frame is left that
    /// its client may write.
    pub(super) fn let_read(&mut self, channel: &ServiceChannel, number: u32) {
        let Some(view) = self.get(number) else { return };
        for entry in std::mem::take(&mut view.writable) {
            if self.is_mine(entry, number) {
                self.change(entry, |frame| frame.writable = false);
                let _ = channel.views().take_back(entry);
            }
        }
        if let Some(view) = self.get(number) {
            view.has = HAS_DATA | HAS_ATTR | NOTES_READS;
            channel.views().let_read(number, view.generation);
        }
    }

    /// All pages of a view are void, by a new generation, and their frames free.
    pub(super) fn void(&mut self, channel: &ServiceChannel, number: u32) {
        let generation = self.next_generation();
        let Some(view) = self.get(number) else { return };
        view.generation = generation;
        view.writable.clear();
        view.behind.clear();
        let entries = std::mem::take(&mut view.entries);
        // First: who copies from a frame finds that it does not count.
        self.put(channel, number, 0, &WireAttr::default());
        for entry in entries {
            let frame = self.frame(entry);
            if frame.tag != 0 && frame.view == number {
                self.frames[entry] = [0; 2];
                self.free.push(frame.number);
            }
        }
    }

    /// Whether nobody can be writing to an entry's frame.
    fn is_quiet(&self, entry: usize) -> bool {
        let frame = self.frame(entry);
        let view = self.views.get(frame.view as usize).and_then(Option::as_ref);
        !(frame.writable && view.is_some_and(|view| view.lent.is_some()))
    }

    /// An entry for a page of a view, with a frame: that which it has already, one without a page,
    /// or the next in turn.
    fn place(
        &mut self,
        channel: &ServiceChannel,
        left: &FramesLeft,
        (view, tag): (u32, u64),
    ) -> Option<(usize, Frame)> {
        if self.frames.is_empty() {
            self.frames = vec![[0; 2]; channel.geometry().frames as usize];
        }
        let set = channel.views().set_of(tag);
        if let Some(entry) = (set..set + WAYS).find(|&entry| self.frame(entry).tag == tag) {
            return Some((entry, self.frame(entry)));
        }
        self.hand += 1;
        let turn = self.hand;
        let ways = || (0..WAYS).map(|way| set + (way + turn) % WAYS);
        let mut victims =
            ways().filter(|&entry| self.frame(entry).tag != 0 && self.is_quiet(entry));
        let victim = victims.next();
        let unused = ways().find(|&entry| self.frame(entry).tag == 0);
        let fresh = unused.and_then(|entry| Some((entry, self.take_frame(channel, left)?)));
        let (entry, number) = fresh.or_else(|| victim.map(|at| (at, self.frame(at).number)))?;
        if let Some(view) = self.get(view) {
            view.entries.push(entry);
        }
        self.tidy_entries(view);
        Some((entry, Frame { tag, view, number, writable: false }))
    }

    /// Pages that went by themselves leave their entry behind.
    fn tidy_entries(&mut self, number: u32) {
        let most = 2 * self.frames.len();
        let Some(view) = self.get(number).filter(|view| view.entries.len() > most) else { return };
        let mut entries = std::mem::take(&mut view.entries);
        entries.sort_unstable();
        entries.dedup();
        entries.retain(|&entry| self.is_mine(entry, number));
        if let Some(view) = self.get(number) {
            view.entries = entries;
        }
    }

    /// A frame that nobody uses: the one that was used last, or one that never was, if it may take
    /// memory.
    fn take_frame(&mut self, channel: &ServiceChannel, left: &FramesLeft) -> Option<u32> {
        if self.free.is_empty() && !self.stranded.is_empty() {
            self.take_stranded(channel);
        }
        if let Some(frame) = self.free.pop() {
            return Some(frame);
        }
        let fresh = self.used < self.frames.len() && left.take(self.used);
        fresh.then(|| {
            self.used += 1;
            self.used as u32 - 1
        })
    }

    /// Free frames that were used before, beside `count` that are about to be taken.
    pub(super) fn frames_touched(&self, count: u64) -> u64 {
        (self.free.len() as u64).saturating_sub(count)
    }

    /// Frames are free again whose writer has left.
    fn take_stranded(&mut self, channel: &ServiceChannel) {
        let (free, still): (Vec<_>, Vec<_>) = std::mem::take(&mut self.stranded)
            .into_iter()
            .partition(|(view, _)| channel.views().is_left(*view));
        self.stranded = still;
        self.free.extend(free.into_iter().map(|(_, frame)| frame));
    }

    /// Puts pages, whose bytes are in `bytes`, into frames.
    pub(super) fn put_pages(&mut self, channel: &ServiceChannel, left: &FramesLeft, at: Pages<'_>) {
        let Some(view) = self.get(at.view) else { return };
        let generation = view.generation;
        let mut shown = 0;
        for (page, bytes) in (at.first..).zip(at.bytes.chunks(FRAME_BYTES)) {
            let Some(tag) = tag(generation, page) else { break };
            let Some((entry, frame)) = self.place(channel, left, (at.view, tag)) else { continue };
            let lies = (tag, frame.number);
            channel.views().put_page(entry, lies, |offset| channel.frame_put(offset, bytes));
            if frame.writable {
                channel.views().let_write(entry, frame.number);
            }
            self.frames[entry] = frame.to_words();
            shown += 1;
        }
        if let Some(view) = self.get(at.view) {
            view.shown += shown;
        }
    }

    /// The pages around `pages`, within `limit`, that are not shown yet and take no other page's
    /// place.
    pub(super) fn room_around(
        &self,
        channel: &ServiceChannel,
        generation: u64,
        pages: Range<u64>,
        limit: Range<u64>,
    ) -> Range<u64> {
        let is_room = |page| {
            let set = tag(generation, page).map(|tag| (channel.views().set_of(tag), tag));
            set.is_some_and(|(set, tag)| {
                let shown = (set..set + WAYS).any(|entry| self.frame(entry).tag == tag);
                !shown && (set..set + WAYS).any(|entry| self.frame(entry).tag == 0)
            })
        };
        let before = (limit.start..pages.start).rev().take_while(|&page| is_room(page)).count();
        let after = (pages.end..limit.end).take_while(|&page| is_room(page)).count();
        pages.start - before as u64..pages.end + after as u64
    }

    /// The entry in which a page of a view lies.
    pub(super) fn find(
        &self,
        channel: &ServiceChannel,
        generation: u64,
        page: u64,
    ) -> Option<usize> {
        let tag = tag(generation, page).filter(|_| !self.frames.is_empty())?;
        let set = channel.views().set_of(tag);
        (set..set + WAYS).find(|&entry| self.frame(entry).tag == tag)
    }

    /// Whether the client may write to a page of a view.
    pub(super) fn is_writable(&self, channel: &ServiceChannel, generation: u64, page: u64) -> bool {
        self.find(channel, generation, page).is_some_and(|entry| self.frame(entry).writable)
    }

    /// Takes a page out of what is shown; its frame is free.
    pub(super) fn hide(&mut self, channel: &ServiceChannel, entry: usize) {
        if let Some(frame) = self.take_out(channel, entry) {
            self.free.push(frame);
        }
    }

    fn take_out(&mut self, channel: &ServiceChannel, entry: usize) -> Option<u32> {
        let frame = self.frame(entry);
        channel.views().put_page(entry, (0, 0), |_| ());
        self.frames[entry] = [0; 2];
        (frame.tag != 0).then_some(frame.number)
    }

    /// The client may write the pages for which the file system has room, because it has just
    /// stored the bytes of a range: those that lie in it wholly, or all where room is given by the
    /// page.
    pub(super) fn let_write(&mut self, channel: &ServiceChannel, number: u32, range: (u64, u64)) {
        let Some(view) = self.get(number) else { return };
        let (generation, size, whole) = (view.generation, view.size, view.whole_pages);
        let mut entries = Vec::new();
        for page in page_of(range.0)..=page_of(range.1 - 1) {
            let inside = page * PAGE >= range.0 && ((page + 1) * PAGE).min(size) <= range.1;
            let inside = inside || whole;
            let Some(entry) = self.find(channel, generation, page).filter(|_| inside) else {
                continue;
            };
            if !self.frame(entry).writable {
                self.change(entry, |frame| frame.writable = true);
                channel.views().let_write(entry, self.frame(entry).number);
                entries.push(entry);
            }
        }
        if let Some(view) = self.get(number) {
            view.writable.append(&mut entries);
        }
    }

    fn is_mine(&self, entry: usize, number: u32) -> bool {
        self.frame(entry).tag != 0 && self.frame(entry).view == number
    }

    /// A client may be inside: nothing is put where it may be writing until it has left.
    pub(super) fn strand(&mut self, channel: &ServiceChannel, number: u32) {
        let Some(view) = self.get(number) else { return };
        view.stuck = true;
        let spare = view.spare.take().map(|frame| (number, frame));
        self.stranded.extend(spare);
        let Some(view) = self.get(number) else { return };
        for entry in std::mem::take(&mut view.writable) {
            if let Some(frame) = self.take_out(channel, entry) {
                self.stranded.push((number, frame));
            }
        }
    }
}

/// Pages of a file for a view.
pub(super) struct Pages<'a> {
    pub(super) view: u32,
    pub(super) first: u64,
    pub(super) bytes: &'a [u8],
}
