//! What a session keeps of its views, and what of it lies in the client's memory: each change here
//! is made there in the same breath. Every function is called with the state locked.

use std::collections::HashMap;
use std::ops::Range;

use polylane_base::Time;
use polylane_base::sync::Arc;
use polylane_ipc::ServiceChannel;
use polylane_ipc::message::WireAttr;
use polylane_ipc::view::{FRAME_BYTES, VIEWS_MAX, WAYS, next_generation, tag};
use polylane_vfs::{Inode, Node};

use super::FramesLeft;

pub(super) const PAGE: u64 = FRAME_BYTES as u64;

/// Pages past its end that a file gets at first when its client may make it longer, and at most.
const ROOM_PAGES: u64 = 4;
const ROOM_PAGES_MAX: u64 = 256;
/// Pages side by side that are brought back in one piece: few pieces, each small enough to stay in
/// a processor's cache and to be had from the allocator without a mapping.
const PIECE_PAGES: usize = 16;
/// Writes past the end after a loan that moved it in vain, until the next such loan.
const PAUSE: u32 = 16;

#[derive(Default)]
pub(super) struct State {
    pub(super) views: Vec<Option<View>>,
    /// Numbers of views, by the address of the inode that each holds.
    pub(super) by_node: HashMap<usize, u32>,
    /// What lies in each entry's frame; words of zeros, so that it takes memory as it is used.
    frames: Vec<[u64; 2]>,
    pub(super) generation: u64,
    /// Frames taken from what the server has.
    pub(super) used: usize,
    /// The way that is given up next.
    pub(super) hand: usize,
    pub(super) closed: bool,
}

pub(super) struct View {
    /// The file; none once it is over.
    pub(super) node: Option<Node>,
    /// Handles that refer to it; none: it is over, and only waits for its client to leave.
    pub(super) users: u32,
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
    /// Entries of the frames that the client may write.
    pub(super) writable: Vec<usize>,
    /// When the loan under way began.
    pub(super) lent: Option<Time>,
    /// How far the client may make the file longer; 0: not at all.
    pub(super) room: u64,
    /// Pages past the end that the next loan gives.
    pub(super) room_pages: u64,
    /// Writes past the end until the next loan that gives any.
    pub(super) pause: u32,
    /// Somebody was inside when the last loan ended.
    pub(super) stuck: bool,
    /// The page that a sequential reader would want next.
    pub(super) next: u64,
    /// Pages put so far.
    pub(super) shown: u64,
}

/// What lies in an entry's frame. All zero is nothing.
#[derive(Clone, Copy)]
struct Frame {
    tag: u64,
    view: u32,
    writable: bool,
    stuck: bool,
    used: bool,
}

impl Frame {
    fn from_words([tag, rest]: [u64; 2]) -> Frame {
        let bit = |n: u32| rest >> n & 1 != 0;
        Frame { tag, view: rest as u32, writable: bit(32), stuck: bit(33), used: bit(34) }
    }

    fn to_words(self) -> [u64; 2] {
        let bit = |set: bool, n: u32| u64::from(set) << n;
        let bits = bit(self.writable, 32) | bit(self.stuck, 33) | bit(self.used, 34);
        [self.tag, u64::from(self.view) | bits]
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
        self.by_node.len() >= VIEWS_MAX as usize / 2
    }

    pub(super) fn get(&mut self, view: u32) -> Option<&mut View> {
        self.views.get_mut(view as usize)?.as_mut()
    }

    pub(super) fn next_generation(&mut self) -> u64 {
        self.generation = next_generation(self.generation).max(1);
        self.generation
    }

    /// The view of an inode with one user more, or a new one: its number, and whether it is new.
    pub(super) fn enter(&mut self, channel: &ServiceChannel, node: &Node) -> Option<(u32, bool)> {
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
            room: 0,
            room_pages: ROOM_PAGES,
            pause: 0,
            stuck: false,
            next: 0,
            shown: 0,
        };
        channel.views().shut_gate(number);
        channel.views().put(number, (generation, 0), 0, &WireAttr::default());
        self.views[number as usize] = Some(view);
        self.by_node.insert(address(node), number);
        Some((number, true))
    }

    pub(super) fn free_number(&mut self, channel: &ServiceChannel) -> Option<u32> {
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
    pub(super) fn put(&mut self, channel: &ServiceChannel, number: u32, has: u64, attr: &WireAttr) {
        if let Some(view) = self.get(number) {
            view.has = has;
            channel.views().put(number, (view.generation, has), view.size, attr);
        }
    }

    /// All pages of a view are void, by a new generation.
    pub(super) fn void(&mut self, channel: &ServiceChannel, number: u32) {
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
    pub(super) fn is_quiet(&mut self, channel: &ServiceChannel, entry: usize) -> bool {
        if self.frame(entry).stuck && channel.views().is_left(self.frame(entry).view) {
            self.change(entry, |frame| frame.stuck = false);
        }
        let frame = self.frame(entry);
        let lent = || self.views[frame.view as usize].as_ref().is_some_and(|v| v.lent.is_some());
        !(frame.stuck || frame.writable && self.is_live(&frame) && lent())
    }

    /// The entry for a page: that in which it lies already, a void one, or the next in turn.
    pub(super) fn place(
        &mut self,
        channel: &ServiceChannel,
        left: &FramesLeft,
        tag: u64,
    ) -> Option<usize> {
        let set = channel.views().set_of(tag);
        if let Some(entry) = (set..set + WAYS).find(|&entry| self.frame(entry).tag == tag) {
            return Some(entry);
        }
        self.hand += 1;
        for live in [false, true] {
            for way in 0..WAYS {
                let entry = set + (way + self.hand) % WAYS;
                if self.is_live(&self.frame(entry)) == live && self.is_quiet(channel, entry) {
                    return self.pay(left, entry).then_some(entry);
                }
            }
        }
        None
    }

    /// Whether an entry's frame may take memory, or has.
    pub(super) fn pay(&mut self, left: &FramesLeft, entry: usize) -> bool {
        let used = self.frame(entry).used;
        let paid = used || left.take(self.used);
        if paid && !used {
            self.used += 1;
            self.change(entry, |frame| frame.used = true);
        }
        paid
    }

    /// Puts pages, whose bytes are in `bytes`, into frames.
    pub(super) fn put_pages(&mut self, channel: &ServiceChannel, left: &FramesLeft, at: Pages<'_>) {
        let Some(view) = self.get(at.view) else { return };
        let generation = view.generation;
        if self.frames.is_empty() {
            self.frames = vec![[0; 2]; channel.geometry().frames as usize];
        }
        let mut shown = 0;
        for (page, bytes) in (at.first..).zip(at.bytes.chunks(FRAME_BYTES)) {
            let Some(tag) = tag(generation, page) else { break };
            let Some(entry) = self.place(channel, left, tag) else { continue };
            let before = self.frame(entry);
            let writable = before.tag == tag && before.writable;
            channel.views().put_page(entry, tag, |offset| channel.frame_put(offset, bytes));
            if writable {
                channel.views().let_write(entry);
            }
            self.change(entry, |frame| {
                (frame.tag, frame.view, frame.writable) = (tag, at.view, writable);
            });
            shown += 1;
        }
        if let Some(view) = self.get(at.view) {
            view.shown += shown;
        }
    }

    /// The pages around `pages`, within `limit`, that are not shown yet and take no other page's
    /// place.
    pub(super) fn room_around(
        &mut self,
        channel: &ServiceChannel,
        generation: u64,
        pages: Range<u64>,
        limit: Range<u64>,
    ) -> Range<u64> {
        let mut is_room = |page| {
            let set = tag(generation, page).map(|tag| (channel.views().set_of(tag), tag));
            set.is_some_and(|(set, tag)| {
                let shown = (set..set + WAYS).any(|entry| self.frame(entry).tag == tag);
                !shown
                    && (set..set + WAYS).any(|entry| {
                        !self.is_live(&self.frame(entry)) && self.is_quiet(channel, entry)
                    })
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

    /// Takes a page out of what is shown.
    pub(super) fn hide(&mut self, channel: &ServiceChannel, entry: usize) {
        channel.views().put_page(entry, 0, |_| ());
        self.change(entry, |frame| (frame.tag, frame.writable) = (0, false));
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
                channel.views().let_write(entry);
                entries.push(entry);
            }
        }
        if let Some(view) = self.get(number) {
            view.writable.append(&mut entries);
        }
    }

    /// Takes what a client wrote on loan: the bytes of the pages it says it wrote, in the order of
    /// the file, those side by side in pieces.
    pub(super) fn take_written(
        &mut self,
        channel: &ServiceChannel,
        number: u32,
    ) -> Vec<(u64, Box<[u8]>)> {
        let Some(view) = self.get(number) else { return Vec::new() };
        let first = tag(view.generation, 0).unwrap_or(0);
        let mut entries = std::mem::take(&mut view.writable);
        entries.sort_unstable();
        entries.dedup();
        entries.retain(|&entry| self.frame(entry).writable && self.is_mine(entry, number));
        let written = entries.iter().filter(|&&entry| channel.views().take_dirty(entry));
        let mut pages: Vec<(u64, usize)> =
            written.map(|&entry| (self.frame(entry).tag - first, entry)).collect();
        pages.sort_unstable();
        if let Some(view) = self.get(number) {
            view.writable = entries;
        }
        let runs = pages.chunk_by(|one, next| one.0 + 1 == next.0);
        let pieces = runs.flat_map(|run| run.chunks(PIECE_PAGES));
        pieces.map(|piece| (piece[0].0 * PAGE, bytes_of(channel, piece))).collect()
    }

    /// Gives the client frames for pages past the end of the file, whose bytes it writes before
    /// anybody reads them; returns the first offset that has none.
    pub(super) fn let_grow(
        &mut self,
        channel: &ServiceChannel,
        left: &FramesLeft,
        (number, first, count): (u32, u64, u64),
    ) -> u64 {
        let Some(view) = self.get(number) else { return first * PAGE };
        let (generation, mut entries) = (view.generation, Vec::new());
        let mut page = first;
        while page < first + count {
            let Some(tag) = tag(generation, page) else { break };
            let Some(entry) = self.place(channel, left, tag) else { break };
            channel.views().put_page(entry, tag, |_| ());
            channel.views().let_write(entry);
            self.change(entry, |frame| {
                (frame.tag, frame.view, frame.writable) = (tag, number, true);
            });
            entries.push(entry);
            page += 1;
        }
        if let Some(view) = self.get(number) {
            view.writable.append(&mut entries);
        }
        page * PAGE
    }

    /// Where the client has made the file end, if it was let: within its room. Judges what the next
    /// loan should give.
    pub(super) fn take_end(&mut self, channel: &ServiceChannel, number: u32) -> Option<u64> {
        let view = self.get(number).filter(|view| view.room > 0)?;
        let room = std::mem::take(&mut view.room);
        let end = channel.views().end(number).clamp(view.size, room);
        if end == view.size {
            (view.room_pages, view.pause) = (ROOM_PAGES, PAUSE);
        } else if room - end < PAGE {
            view.room_pages = (view.room_pages * 2).min(ROOM_PAGES_MAX);
        }
        self.hide_end(channel, number, end);
        Some(end)
    }

    /// Takes the page in which a file ends out of what is shown, and those after it: past the end
    /// they hold whatever the client left there.
    pub(super) fn hide_end(&mut self, channel: &ServiceChannel, number: u32, end: u64) {
        let Some(view) = self.get(number) else { return };
        let first = tag(view.generation, 0).unwrap_or(0);
        let last = first.saturating_add(page_of(end));
        let entries = std::mem::take(&mut view.writable);
        let (gone, kept): (Vec<usize>, Vec<usize>) =
            entries.into_iter().partition(|&entry| self.frame(entry).tag >= last);
        gone.into_iter().for_each(|entry| self.hide(channel, entry));
        if let Some(view) = self.get(number) {
            view.writable = kept;
        }
    }

    pub(super) fn is_mine(&self, entry: usize, number: u32) -> bool {
        self.frame(entry).view == number && self.is_live(&self.frame(entry))
    }

    /// Somebody is inside: nothing is put where it may be writing until it has left.
    pub(super) fn strand(&mut self, channel: &ServiceChannel, number: u32) {
        let Some(view) = self.get(number) else { return };
        view.stuck = true;
        for entry in std::mem::take(&mut view.writable) {
            self.hide(channel, entry);
            self.change(entry, |frame| frame.stuck = true);
        }
    }
}

/// The bytes of pages, one after the other: their numbers and entries.
fn bytes_of(channel: &ServiceChannel, pages: &[(u64, usize)]) -> Box<[u8]> {
    let mut bytes = vec![0; pages.len() * FRAME_BYTES].into_boxed_slice();
    for (&(_, entry), into) in pages.iter().zip(bytes.chunks_mut(FRAME_BYTES)) {
        channel.frame_get(channel.views().frame_offset(entry), into);
    }
    bytes
}

/// Pages of a file for a view.
pub(super) struct Pages<'a> {
    pub(super) view: u32,
    pub(super) first: u64,
    pub(super) bytes: &'a [u8],
}
