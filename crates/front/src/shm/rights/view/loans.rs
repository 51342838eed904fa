//! Loans: how they begin, what the client writes meanwhile, how they end.

use std::ops::Range;

use polylane_base::{Result, Time};
use polylane_ipc::message::WireAttr;
use polylane_ipc::view::HAS_ATTR;
use polylane_vfs::{Node, OpenFile, Part};

use super::{UNLENT_FLAGS, Viewing};
use crate::lane::tag::{kernel_changes_pages, kernel_has_open, kernel_has_pages};
use crate::shm::request::Handle;
use crate::shm::rights::shown::{
    LastLoan, PAGE, Piece, PieceSource, Shown, State, View, address, ask_from, page_of,
};

/// What is lent to a client after a write.
pub(super) struct Given {
    /// Where it wrote: the pages that lie there.
    pub(super) range: (u64, u64),
    /// Pages behind the end.
    pub(super) room_pages: u64,
    /// Whether it may write elsewhere by the stream.
    pub(super) streams: bool,
    /// It had the file on loan before a sync ended that.
    pub(super) again: bool,
}

/// Bytes of a file on loan are written by the stream, as long as this lives.
pub(in crate::shm::rights) struct StreamedIn<'a> {
    viewing: Viewing<'a>,
    handle: Handle,
}

impl Drop for StreamedIn<'_> {
    fn drop(&mut self) {
        let Some(number) = self.viewing.files.view_in(self.handle) else { return };
        if let Some(view) = self.viewing.shown.lock().get(number) {
            view.applies = false;
        }
    }
}

impl<'a> Viewing<'a> {
    /// Lets the client read what it is shown, and note that it did, if nobody changed the file
    /// since `changes`. The number of the view's state.
    pub(in crate::shm::rights) fn lend_reads(
        self,
        number: u32,
        node: &Node,
        changes: u64,
    ) -> Option<u32> {
        let vfs = &self.connection.lane.vfs;
        vfs.lend_reads(node, self.connection.id, &mut || {
            let mut state = self.shown.lock();
            let Some(view) = self.to_lend(&mut state, number, node, changes) else { return false };
            (view.lent, view.writes) = (Some(vfs.now()), false);
            (view.room, view.streams) = (0, 0);
            state.let_read(&self.connection.channel, number);
            true
        })
        .then(|| self.connection.channel.views().look(number).map(|look| look.sequence()))?
    }

    /// A view that can be lent: what it shows counts, nobody changed the data since `changes`, and
    /// nobody is inside since a former loan. With the data locked for change.
    fn to_lend<'s>(
        self,
        state: &'s mut State,
        number: u32,
        node: &Node,
        changes: u64,
    ) -> Option<&'s mut View> {
        let left = self.connection.channel.views().is_left(number);
        let view = state.get(number).filter(|view| view.inode == address(node))?;
        view.stuck &= !left;
        let same = view.changes == changes && view.has & HAS_ATTR != 0 && view.watched;
        (same && !view.stuck && !kernel_changes_pages(node)).then_some(view)
    }

    /// Lets the client write to the pages that lie in a range, and to those it was let before, if
    /// nobody but it changed the file since `changes`; and to so many pages more, if the range ends
    /// where the file does.
    pub(super) fn lend(self, number: u32, node: &Node, changes: u64, given: Given) {
        let Given { range, room_pages, streams, again } = given;
        let first = range.1.div_ceil(PAGE);
        let vfs = &self.connection.lane.vfs;
        vfs.lend(node, self.connection.id, &mut || {
            let room = (first + room_pages) * PAGE;
            // What grows unseen must not be open with the kernel, which is told of growth.
            let grows = room_pages > 0
                && !kernel_has_open(node)
                && vfs.reserve_ahead(&self.connection.ctx(), node, room).is_ok();
            let mut state = self.shown.lock();
            state.loans += 1;
            let loan = if streams { state.loans } else { 0 };
            // What is written unasked must not be in pages that the kernel has.
            if kernel_has_pages(node) {
                return false;
            }
            let Some(view) = self.to_lend(&mut state, number, node, changes) else { return false };
            (view.lent, view.writes, view.streams) = (Some(vfs.now()), true, loan);
            let size = view.size;
            let ends = grows && size == range.1;
            let at_end = size == range.1;
            view.given = Some(LastLoan { range, at_end, streams, again, used: false });
            state.let_write_behind(&self.connection.channel, number);
            state.let_write(&self.connection.channel, number, range);
            state.let_switch(&self.connection.channel, &self.shown.left, number);
            let grown = (number, first, if ends { room_pages } else { 0 });
            let room = state.let_grow(&self.connection.channel, &self.shown.left, grown);
            let views = self.connection.channel.views();
            let room = if grows { room.max(size) } else { 0 };
            state.count_on_loan(&self.connection.channel, number);
            let opened = views.open_gate(number, size, (room, ask_from(size, room)));
            if let Some(view) = state.get(number) {
                view.room = room;
                (view.unwritten.opened, view.unwritten.questioned) = (opened, false);
            }
            views.let_stream(number, loan);
            true
        });
    }

    /// Whether the client has the file of a handle on loan, be it to note its reads.
    pub(in crate::shm::rights) fn is_on_loan(self, handle: Handle) -> bool {
        self.loan_writes(handle).is_some()
    }

    /// Whether the client has the file of a handle on loan to write.
    pub(in crate::shm::rights) fn is_lent(self, handle: Handle) -> bool {
        self.loan_writes(handle) == Some(true)
    }

    /// Whether the loan of a handle's file to the client is one to write; `None`: there is none.
    fn loan_writes(self, handle: Handle) -> Option<bool> {
        let number = self.files.view_in(handle)?;
        let mut state = self.shown.lock();
        let view = state.get(number)?;
        view.lent.is_some().then_some(view.writes)
    }

    /// Whether this is the first question for the state of a handle's file since the loan under way
    /// began: that goes on. To a client that asks more often the state is better shown.
    pub(in crate::shm::rights) fn is_first_question(self, handle: Handle) -> bool {
        let Some(number) = self.files.view_in(handle) else { return false };
        let mut state = self.shown.lock();
        let lent = state.get(number).filter(|view| view.lent.is_some() && view.writes);
        lent.is_some_and(|view| !std::mem::replace(&mut view.unwritten.questioned, true))
    }

    /// As [`polylane_vfs::Viewer::is_unwritten`].
    pub(in crate::shm::rights) fn is_unwritten(self, number: u32, node: &Node) -> bool {
        let on_loan =
            |view: &&mut View| view.inode == address(node) && view.writes && view.lent.is_some();
        let streams = self.shown.lock().get(number).filter(on_loan).map(|view| view.streams);
        if streams.is_some_and(|loan| loan != 0) {
            self.stream.settle_loans();
        }
        let _turn = self.views.ending.lock();
        let (mut state, views) = (self.shown.lock(), self.connection.channel.views());
        let Some(view) = state.get(number).filter(on_loan) else { return false };
        let used = view.given.is_none_or(|given| given.used);
        let Some(begun) =
            view.lent.filter(|_| !used && views.is_as_opened(number, view.unwritten.opened))
        else {
            return false;
        };
        if !views.has_noted(number) {
            return true;
        }
        // The access time is another one now.
        view.advancing = true;
        let _advancing = Advancing { shown: self.shown, number };
        state.hide_state(&self.connection.channel, number);
        let read = views.take_read(number);
        drop(state);
        if let Some(read) = read {
            let (vfs, ctx) = (&self.connection.lane.vfs, self.connection.ctx());
            vfs.note_read(&ctx, node, clamped(read, begun, vfs.now()));
        }
        true
    }

    /// Lends the file of a handle again, as it was on loan before a sync ended that: who syncs
    /// mostly writes next, and would have to ask first.
    pub(in crate::shm::rights) fn lend_again(self, handle: Handle, file: &OpenFile) {
        let node = file.node();
        let Some(number) = self.files.view_in(handle) else { return };
        let given = self.shown.lock().get(number).and_then(|view| view.given);
        let given = given.filter(LastLoan::pays);
        let writes = file.flags() & libc::O_ACCMODE != libc::O_RDONLY;
        let lendable = writes && file.flags() & UNLENT_FLAGS == 0 && self.may_show(file);
        // Taken before anything is shown: a change in between leaves the file as it is.
        let changes = self.changes_of(node);
        let (Some(given), Some(changes), true) = (given, changes, lendable) else { return };
        if self.show_attr(number, node).is_err() {
            return;
        }
        let size = self.size_shown(number);
        let at_end = given.at_end && size > 0;
        let (range, room_pages) = match at_end {
            true => (((size - 1) / PAGE * PAGE, size), self.room_again(number, given.again)),
            false => (given.range, 0),
        };
        if at_end {
            // The end's page was hidden with the former end.
            self.show_pages(number, node, page_of(range.0)..page_of(range.1 - 1) + 1);
        }
        let plain = file.flags() & libc::O_APPEND == 0 && !self.files.has_streamed(node);
        let streams = given.streams && plain && self.stream.open();
        self.lend(number, node, changes, Given { range, room_pages, streams, again: true });
    }

    /// Bytes of the file of a handle, `range`, are about to be written by the stream, with the data
    /// locked for change: whether the client has it on a loan on which it may do that, and none of
    /// them lie where it writes itself. The loan goes on, and what is shown counts as before, as
    /// long as [`StreamedIn`] lives.
    pub(in crate::shm::rights) fn may_stream_in(self, handle: Handle, range: Range<u64>) -> bool {
        let Some(number) = self.files.view_in(handle) else { return false };
        let mut state = self.shown.lock();
        let streams = |view: &&mut View| view.lent.is_some() && view.streams != 0;
        let Some(view) = state.get(number).filter(streams) else { return false };
        view.applies = true;
        view.was_written();
        state.hide_state(&self.connection.channel, number);
        let Some(view) = state.get(number) else { return false };
        let generation = view.generation;
        let pages = page_of(range.start)..range.end.div_ceil(PAGE);
        !pages.into_iter().any(|page| state.is_writable(&self.connection.channel, generation, page))
    }

    /// To be called before bytes of the file of a handle are written by the stream.
    pub(in crate::shm::rights) fn stream_in(self, handle: Handle) -> StreamedIn<'a> {
        StreamedIn { viewing: self, handle }
    }

    /// Ends a loan, once what the client wrote by the stream has been applied: `applied` is the
    /// number of the loan for which that was done after it could stream no more. Returns the number
    /// of the one for which it is to be done first.
    pub(super) fn end_loan_after(self, number: u32, node: &Node, applied: u64) -> Option<u64> {
        let _turn = self.views.ending.lock();
        let mut state = self.shown.lock();
        let views = self.connection.channel.views();
        // Another file's by now, the loan that was meant is over.
        let view = state.get(number).filter(|view| view.inode == address(node))?;
        let begun = view.lent?;
        if view.streams != applied && view.streams != 0 {
            views.let_stream(number, 0);
            return Some(view.streams);
        }
        let (left, writes) = (views.shut_gate(number), view.writes);
        // On a loan to read nothing was written, whatever its client says.
        let (pieces, left) = match writes {
            true => state.take_written(&self.connection.channel, number, left),
            false => (Vec::new(), left),
        };
        let end = if writes { state.take_end(&self.connection.channel, number) } else { None };
        if let Some(view) = state.get(number).filter(|_| !pieces.is_empty()) {
            view.was_written();
        }
        state.put(&self.connection.channel, number, 0, &WireAttr::default());
        drop(state);
        let now = self.connection.lane.vfs.now();
        let at = |time| clamped(time, begun, now);
        let written = (!pieces.is_empty()).then(|| at(views.written(number)));
        let read = views.read(number).map(at);
        let source = |piece| PieceSource { channel: &self.connection.channel, piece };
        let mut sources: Vec<PieceSource<'_>> = pieces.iter().map(source).collect();
        let mut parts: Vec<Part<'_>> = pieces
            .iter()
            .zip(&mut sources)
            .map(|(piece, source)| (piece.offset, source as _))
            .collect();
        let back = self.connection.lane.vfs.bring_back(
            &self.connection.ctx(),
            node,
            (&mut parts, end),
            (written, read),
        );
        let pages: usize = pieces.iter().map(|piece| piece.frames.len()).sum();
        self.connection.stats.brought_back(pages, back.is_ok());
        let mut state = self.shown.lock();
        if let Some(end) = end {
            state.hide_end(&self.connection.channel, number, end);
        }
        if left {
            state.trim_writable(&self.connection.channel, number);
        } else {
            state.strand(&self.connection.channel, number);
        }
        // Not before: the frames stay what they were until they are stored.
        if let Some(view) = state.get(number) {
            (view.lent, view.streams, view.applies) = (None, 0, false);
        }
        drop(state);
        self.connection.lane.vfs.end_loan(node);
        None
    }

    /// Takes in what the client wrote behind the end of a file on loan, and gives it room for more,
    /// while it goes on. Nothing where that would have to wait.
    pub(in crate::shm::rights) fn extend_loan(self, handle: Handle, node: &Node) {
        let Some(number) = self.files.view_in(handle) else { return };
        let turn = self.views.ending.lock();
        let mut state = self.shown.lock();
        let mine = |view: &&mut View| view.inode == address(node);
        let Some(view) = state.get(number).filter(mine) else { return };
        let lent = view.lent.filter(|_| view.room > view.size && view.watched);
        let bytes = (view.room - view.size.min(view.room)) as usize;
        let Some(begun) = lent.filter(|_| !self.connection.lane.vfs.write_may_wait(bytes)) else {
            return;
        };
        let Some(piece) = state.take_passed(&self.connection.channel, number) else { return };
        drop(state);
        if self.advance((number, node), &piece, begun) != Ok(true) {
            drop(turn);
            return self.end_loan(number, node);
        }
        let mut state = self.shown.lock();
        let Some(view) = state.get(number) else { return };
        let (pages, room) = (view.room_pages, view.room);
        drop(state);
        let wanted = room.div_ceil(PAGE).saturating_add(pages).saturating_mul(PAGE);
        if self.connection.lane.vfs.reserve_ahead(&self.connection.ctx(), node, wanted).is_ok() {
            let mut state = self.shown.lock();
            state.extend(&self.connection.channel, &self.shown.left, (number, pages));
        }
    }

    /// Stores what was taken behind the end of a file on loan, and shows it on. False: the loan is
    /// to end.
    fn advance(self, (number, node): (u32, &Node), piece: &Piece, begun: Time) -> Result<bool> {
        let _advancing = Advancing { shown: self.shown, number };
        let now = self.connection.lane.vfs.now();
        let time = clamped(self.connection.channel.views().written(number), begun, now);
        let source = &mut PieceSource { channel: &self.connection.channel, piece };
        let stored = self.connection.lane.vfs.take_in(node, (piece.offset, source), time);
        self.connection.stats.brought_back(piece.frames.len(), stored.is_ok());
        self.shown.lock().put_behind(&self.connection.channel, number, piece);
        stored
    }
}

/// What was taken of a view's file on loan is being stored, as long as this lives: pages behind the
/// end ([`State::take_passed`]), or when it was read.
struct Advancing<'a> {
    shown: &'a Shown,
    number: u32,
}

impl Drop for Advancing<'_> {
    fn drop(&mut self) {
        if let Some(view) = self.shown.lock().get(self.number) {
            view.advancing = false;
        }
    }
}

/// A time by the client's account, nanoseconds since 1970, of a loan that began at `begun`.
fn clamped(ns: i64, begun: Time, now: Time) -> Time {
    const SECOND: i64 = 1_000_000_000;
    let time = Time { sec: ns.div_euclid(SECOND), nsec: ns.rem_euclid(SECOND) as u32 };
    time.clamp(begun, now.max(begun))
}
