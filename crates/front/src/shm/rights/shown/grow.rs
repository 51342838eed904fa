//! Files that grow on loan: frames behind their end, pages that are taken in while the loan goes
//! on, the end after it.

use std::collections::HashSet;

use polylane_ipc::ServiceChannel;
use polylane_ipc::view::tag;

use super::{Frame, FramesLeft, PAGE, Piece, State, page_of};

/// Pages past its end that a file gets at first when its client may make it longer, and at most.
pub(super) const ROOM_PAGES: u64 = 4;
const ROOM_PAGES_MAX: u64 = 512;
/// Pages of one file that its client may write at a time, and a part of all frames that they are at
/// most. When they are more, it keeps the last half: who writes a long file uses so many frames
/// over and over.
const WRITABLE_MAX: usize = 1024;
const WRITABLE_PART: usize = 4;
/// Pages that are shown on of those taken in while their loan went on.
const BEHIND_MAX: usize = 256;
/// Writes past the end after a loan that moved it in vain, until the next such loan.
const PAUSE: u32 = 16;
/// Looks whether nobody is writing at the moment.
const LOOKS: u32 = 64;

impl State {
    /// Gives the client frames for pages past the end of the file, whose bytes it writes before
    /// anybody reads them; returns the first offset that has none.
    pub(in super::super) fn let_grow(
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
            let placed = self.place(channel, left, (number, tag));
            let Some((entry, frame)) = placed else { break };
            channel.views().put_page(entry, (tag, frame.number), |_| ());
            channel.views().let_write(entry, frame.number);
            self.frames[entry] = Frame { writable: true, ..frame }.to_words();
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
    pub(in super::super) fn take_end(
        &mut self,
        channel: &ServiceChannel,
        number: u32,
    ) -> Option<u64> {
        let view = self.get(number).filter(|view| view.room > 0)?;
        let room = std::mem::take(&mut view.room);
        let end = channel.views().end(number).clamp(view.size, room);
        if end == view.size && !view.moved {
            (view.room_pages, view.pause) = (ROOM_PAGES, PAUSE);
        } else {
            let used_up = room - end < PAGE;
            let pages = if used_up { view.room_pages * 2 } else { view.room_pages };
            (view.room_pages, view.pause) = (pages.min(ROOM_PAGES_MAX), 0);
        }
        view.moved = false;
        Some(end)
    }

    /// The whole pages that the client wrote behind the end while it goes on, if nobody is in the
    /// middle of writing; it does not write to them from now on.
    pub(in super::super) fn take_passed(
        &mut self,
        channel: &ServiceChannel,
        number: u32,
    ) -> Option<Piece> {
        let generation = self.get(number)?.generation;
        let view = self.get(number)?;
        let end = channel.views().size(number)?.clamp(view.size, view.room.max(view.size));
        let pages = page_of(view.size)..page_of(end);
        let found = pages.clone().map_while(|page| self.find(channel, generation, page));
        let entries: Vec<usize> = found.take_while(|&entry| self.frame(entry).writable).collect();
        if entries.is_empty() {
            return None;
        }
        let views = channel.views();
        let frames: Vec<u32> = entries.iter().map(|&entry| views.take_back(entry).frame).collect();
        let known = |(&entry, &frame): (&usize, &u32)| self.frame(entry).number == frame;
        // Where pages were put into others' frames meanwhile, only the loan's end tells whose.
        let stay = entries.iter().zip(&frames).all(known);
        if !stay || !(0..LOOKS).any(|_| views.is_passed(number)) {
            entries.iter().for_each(|&entry| views.let_write_again(entry));
            return None;
        }
        self.get(number)?.advancing = true;
        Some(Piece { offset: pages.start * PAGE, frames })
    }

    /// What [`State::take_passed`] took is stored: it is shown on for a while.
    pub(in super::super) fn put_behind(
        &mut self,
        channel: &ServiceChannel,
        number: u32,
        piece: &Piece,
    ) {
        let Some(view) = self.get(number) else { return };
        let (generation, first) = (view.generation, page_of(piece.offset));
        view.size = piece.offset + piece.len() as u64;
        view.moved = true;
        view.was_written();
        view.room_pages = (view.room_pages * 2).min(ROOM_PAGES_MAX);
        let mut entries = Vec::with_capacity(piece.frames.len());
        for page in first..first + piece.frames.len() as u64 {
            if let Some(entry) = self.find(channel, generation, page) {
                self.frames[entry] = Frame { writable: false, ..self.frame(entry) }.to_words();
                entries.push((entry, self.frame(entry).tag));
            }
        }
        let mut writable = self.get(number).map_or(Vec::new(), |v| std::mem::take(&mut v.writable));
        writable.retain(|&entry| self.frame(entry).writable && self.is_mine(entry, number));
        let Some(view) = self.get(number) else { return };
        view.writable = writable;
        view.behind.extend(entries);
        let gone = view.behind.len().saturating_sub(BEHIND_MAX);
        let gone: Vec<(usize, u64)> = view.behind.drain(..gone).collect();
        for (entry, tag) in gone {
            if self.frame(entry).tag == tag && !self.frame(entry).writable {
                self.hide(channel, entry);
            }
        }
    }

    /// A loan begins: the client may write again to pages that were taken in while a former one
    /// went on, for they are stored as those are that were taken in at its end.
    pub(in super::super) fn let_write_behind(&mut self, channel: &ServiceChannel, number: u32) {
        let Some(view) = self.get(number) else { return };
        let behind = std::mem::take(&mut view.behind);
        let is_there = |&(entry, tag): &(usize, u64)| {
            self.frame(entry).tag == tag && !self.frame(entry).writable
        };
        let mut entries: Vec<usize> =
            behind.into_iter().filter(is_there).map(|(entry, _)| entry).collect();
        for &entry in &entries {
            self.change(entry, |frame| frame.writable = true);
            channel.views().let_write(entry, self.frame(entry).number);
        }
        if let Some(view) = self.get(number) {
            view.writable.append(&mut entries);
        }
    }

    /// Gives the client room for so many pages more, while it goes on.
    pub(in super::super) fn extend(
        &mut self,
        channel: &ServiceChannel,
        left: &FramesLeft,
        (number, pages): (u32, u64),
    ) {
        let Some(view) = self.get(number) else { return };
        let first = view.room.div_ceil(PAGE);
        let room = self.let_grow(channel, left, (number, first, pages));
        let Some(view) = self.get(number) else { return };
        view.room = room.max(view.room);
        let (size, room) = (view.size, view.room);
        channel.views().put_room(number, room, ask_from(size, room));
    }

    /// A loan is over, and what was written is stored: pages that the client keeps for the next one
    /// are the last ones.
    pub(in super::super) fn trim_writable(&mut self, channel: &ServiceChannel, number: u32) {
        let Some(view) = self.get(number) else { return };
        let most = WRITABLE_MAX.min(channel.geometry().frames as usize / WRITABLE_PART);
        if view.writable.len() <= most {
            return;
        }
        let mut known = HashSet::with_capacity(view.writable.len());
        view.writable.retain(|&entry| known.insert(entry));
        if view.writable.len() <= most {
            return;
        }
        let gone: Vec<usize> = view.writable.drain(..view.writable.len() - most / 2).collect();
        gone.into_iter().for_each(|entry| self.hide(channel, entry));
    }

    /// A file ends at `end` after a loan. Takes the page in which it ends out of what is shown, and
    /// those after it: past the end they hold whatever the client left there.
    pub(in super::super) fn hide_end(&mut self, channel: &ServiceChannel, number: u32, end: u64) {
        let Some(view) = self.get(number) else { return };
        let first = tag(view.generation, 0).unwrap_or(0);
        let last = first.saturating_add(page_of(end));
        let entries = std::mem::take(&mut view.writable);
        let (gone, kept): (Vec<usize>, Vec<usize>) =
            entries.into_iter().partition(|&entry| self.frame(entry).tag >= last);
        let gone = gone.into_iter().filter(|&entry| self.is_mine(entry, number));
        gone.collect::<Vec<_>>().into_iter().for_each(|entry| self.hide(channel, entry));
        if let Some(view) = self.get(number) {
            view.size = end;
            view.writable = kept;
        }
    }
}

/// From where on the client asks for more room: half of what it has left to go.
pub(in super::super) fn ask_from(size: u64, room: u64) -> u64 {
    if room > size { size + (room - size) / 2 } else { 0 }
}
