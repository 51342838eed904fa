//! What comes with the answer to an open: all bytes of a small file, so that who opens a file to
//! read it needs no request more.
//!
//! The bytes stay where the answer brought them, in the payload of one of the thread's two
//! mailboxes, and are the file's as long as its view shows the same state and the mailbox is not
//! used again. While one holds bytes that were not read yet, the next open goes by the other one:
//! a program that compares two files opens both before it reads either.
//! `docs/design/client-cache.md`.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use polylane_ipc::message::{Reply, TransferFlags};
use polylane_ipc::view::NOTES_READS;

use crate::fd::record::Record;
use crate::kernel::config;
use crate::rights::view;
use crate::session::boxes::{AWAITED, BOXES, UNAWAITED};
use crate::session::call;
use crate::session::{Mark, Session};

/// Longer files are read by requests: copying them costs more than the way.
const BYTES_MAX: usize = 64 << 10;
/// Files in a row that were read from their begin, before opens ask for bytes.
const PATIENCE: u32 = 2;
/// Flags of opens that ask for none: there are none, or the file may not be there.
const WITHOUT: i32 = libc::O_CREAT | libc::O_TRUNC | libc::O_SYNC | libc::O_DSYNC;

/// What came with a thread's last open by a mailbox.
#[derive(Clone, Copy)]
pub(crate) struct Opened {
    /// The number of the session, and the handle, that it is of.
    session: u32,
    handle: u64,
    mark: Mark,
    view: u32,
    /// The state of the view at which the bytes count.
    sequence: u32,
    /// How many bytes the file has; 0: nothing came.
    count: usize,
    was_read: bool,
}

impl Opened {
    /// Nothing came.
    pub(crate) const NOTHING: Opened = Opened {
        session: 0,
        handle: 0,
        mark: Mark::NONE,
        view: 0,
        sequence: 0,
        count: 0,
        was_read: false,
    };

    /// Whether its bytes are there, and still to be read.
    fn waits(&self, session: &Session) -> bool {
        let unread = self.count > 0 && !self.was_read && self.session == session.number;
        unread && session.is_last(self.mark)
    }
}

thread_local! {
    /// What came with the calling thread's last open by each of its mailboxes.
    static OPENED: [Cell<Opened>; BOXES] = const { [const { Cell::new(Opened::NOTHING) }; BOXES] };
    /// Files in a row that the calling thread read from their begin after it opened them.
    static FIRST_READS: Cell<u32> = const { Cell::new(0) };
}

/// What the next open asks for.
#[derive(Clone, Copy)]
pub(crate) struct Wish {
    /// The thread's mailbox that it goes by.
    pub(crate) place: usize,
    /// How many bytes it should bring at most.
    pub(crate) bytes: u64,
}

/// By which mailbox the next open goes, and how many bytes it should bring at most: whether it is
/// worth it is told by what became of those before.
pub(crate) fn wish(session: &Session, flags: i32) -> Wish {
    let reads = flags & libc::O_ACCMODE != libc::O_WRONLY && flags & WITHOUT == 0;
    if !reads || config::views() == config::NEVER {
        return Wish { place: AWAITED, bytes: 0 };
    }
    OPENED.with(|opened| {
        let waits = |place: usize| opened[place].get().waits(session);
        let place = if waits(AWAITED) && !waits(UNAWAITED) { UNAWAITED } else { AWAITED };
        let last = opened[place].replace(Opened::NOTHING);
        if last.count > 0 && !last.was_read {
            FIRST_READS.set(0);
        }
        let worth = FIRST_READS.get() >= PATIENCE || config::views() == 0;
        let bytes = if worth { BYTES_MAX.min(session.channel.buffer_bytes()) } else { 0 };
        Wish { place, bytes: bytes as u64 }
    })
}

/// The answer to such an open.
pub(crate) fn learn(session: &Session, file: &Record, place: usize, (reply, mark): (&Reply, Mark)) {
    let [number, sequence, ..] = reply.value;
    let Some(view) = (number as u32).checked_sub(1) else { return };
    view::learn(session, file, TransferFlags::SHOW_END, number);
    let (count, sequence) = (call::count(reply).min(BYTES_MAX), sequence as u32);
    let (session, handle) = (session.number, reply.handle);
    let opened = Opened { session, handle, mark, view, sequence, count, was_read: false };
    OPENED.with(|all| all[place].set(opened));
}

/// Reads what came with the open of a file; `None`: to be asked for.
#[inline]
pub(crate) fn read(
    session: &'static Session,
    file: &Record,
    offset: u64,
    into: &mut [u8],
) -> Option<usize> {
    let handle = file.handle.load(Ordering::Relaxed);
    OPENED.with(|all| {
        let cell = all.iter().find(|cell| {
            let opened = cell.get();
            let is_it = opened.handle == handle && opened.session == session.number;
            is_it && opened.count > 0 && session.is_last(opened.mark)
        })?;
        read_opened(session, cell, offset, into)
    })
}

fn read_opened(
    session: &'static Session,
    cell: &Cell<Opened>,
    offset: u64,
    into: &mut [u8],
) -> Option<usize> {
    let opened = cell.get();
    // At the end nothing is left, and the view says so.
    let start = usize::try_from(offset).ok().filter(|start| *start < opened.count)?;
    let len = into.len().min(opened.count - start);
    let copied = session.answered_get(opened.mark, start, &mut into[..len]);
    let views = session.channel.views()?;
    if views.look(opened.view)?.has(NOTES_READS) {
        views.note_read(opened.view, view::now);
    }
    let counts = views.is_at(opened.view, opened.sequence);
    if !copied || !counts || session.channel.is_dead() {
        return None;
    }
    if !opened.was_read {
        cell.set(Opened { was_read: true, ..opened });
    }
    Some(len)
}

/// The begin of a file was read by a request that brought so many bytes.
#[inline]
pub(crate) fn missed(file: &Record, count: usize) {
    if file.view.load(Ordering::Relaxed) == 0 && count <= BYTES_MAX {
        FIRST_READS.set(FIRST_READS.get().saturating_add(1));
    }
}
