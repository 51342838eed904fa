//! The close of an open file: streamed, posted, or waited for.

use std::sync::atomic::Ordering;

use polylane_ipc::message::{Message, Op};

use crate::fd::file::slot;
use crate::fd::preopened::SlotPool;
use crate::fd::record::{FileBits, Record, is_streamed};
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::rights::lease::Leases;
use crate::session::{Mark, Session, call};

/// The last reference is gone: the service closes the file, and its slot is free again unless it
/// escaped. `present`: the session.
pub(crate) fn finish(
    leases: &'static Leases,
    present: Option<&'static Session>,
    slots: &'static SlotPool,
    file: &Record,
) {
    let closed = close_handle(leases, present, file).ok().filter(|_| !file.is(FileBits::ESCAPED));
    if let Some(index) = file.slot.load(Ordering::Relaxed).checked_sub(1) {
        if let Some(slot) =
            slot(slots, file).filter(|_| closed.is_some() && file.is(FileBits::FLAGGED))
        {
            let master = real::borrow(slot.master());
            let _ = rustix::fs::fcntl_setfl(master, rustix::fs::OFlags::empty());
        }
        slots.release(index, closed);
    }
}

/// Posts the close; nobody waits for it, unless others may be waiting for the file's locks.
fn close_handle(
    leases: &'static Leases,
    present: Option<&'static Session>,
    file: &Record,
) -> Outcome<Mark> {
    let handle = file.handle.load(Ordering::Relaxed);
    let number = file.session.load(Ordering::Relaxed);
    if number == 0 {
        // Never opened: the open failed, or was not answered.
        return Ok(Mark::default());
    }
    let session = present.filter(|session| session.number == number).ok_or(Detour::Kernel)?;
    let streamed = is_streamed(handle);
    if streamed && !file.is(FileBits::LOCKED) && leases.close(session, handle) {
        return Ok(Mark::default());
    }
    let message = Message { handle, ..Message::new(Op::Close) };
    let closed = match file.is(FileBits::LOCKED) {
        true => call::plain(session, message).map(|_| Mark::default()),
        false => session.post(&message),
    };
    if streamed {
        leases.note_close(handle, Some(&closed));
    }
    closed
}
