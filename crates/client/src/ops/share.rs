//! What must happen to open files before another process gets copies of them, and before the
//! session is left.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use polylane_ipc::message::{Message, Op};

use super::state::{self, Lane, State};
use super::{file, own};
use crate::fd::record::{FileBits, Record};
use crate::fd::table::Pin;
use crate::kernel::config;
use crate::kernel::outcome::Outcome;
use crate::kernel::real;
use crate::session::call;

/// The process that gets copies of our descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heir {
    /// One that has all of them.
    Process,
    /// A program, which has those that no exec closes.
    Program,
}

/// To be called before other processes get copies of our descriptors: what they get is of the
/// files' own nodes. Where that cannot be done a slot is the file's for good.
pub(crate) fn share_all(state: &'static State) {
    share_with(state, Heir::Process);
}

/// As [`share_all`], of what an heir gets.
pub(crate) fn share_with(state: &'static State, heir: Heir) {
    let Some(fields) = state.started().filter(|_| config::has_lane()) else { return };
    fields.shares.fetch_add(1, Ordering::SeqCst);
    fields.table.stale_all();
    fields.lanes().for_each(|lane| share_lane(state, lane, heir));
}

/// As [`share_with`], of the files of one lane.
fn share_lane(state: &'static State, lane: &'static Lane, heir: Heir) {
    let (any, kept) = match real::is_on_small_stack() {
        true => share_each(state, lane, heir),
        false => share_batches(state, lane, heir),
    };
    if any && let Some(session) = lane.sessions.present() {
        // The slots of parked files are not to belong to copies.
        lane.handles().close_all(session);
    }
    if kept {
        tell_shared(lane);
    }
}

/// Shares the files of a lane with one request for many; whether there was any, and whether a slot
/// of one must be told to be the heir's.
#[inline(never)]
fn share_batches(state: &'static State, lane: &'static Lane, heir: Heir) -> (bool, bool) {
    let (mut any, mut kept) = (false, false);
    let mut batch = [const { None }; own::BATCH];
    let mut count = 0;
    let mut share_batch = |batch: &mut [Option<Pin>]| {
        own::settle_all(state, batch.iter().flatten(), |file, settled| {
            kept |= !shared(state, file, settled);
        });
        batch.iter_mut().for_each(|place| *place = None);
    };
    each_to_share(state, lane, heir, |file| {
        any = true;
        batch[count] = Some(file);
        count += 1;
        if count == batch.len() {
            share_batch(&mut batch);
            count = 0;
        }
    });
    share_batch(&mut batch[..count]);
    (any, kept)
}

/// As [`share_batches`], with a request for each file and no room for many.
#[inline(never)]
fn share_each(state: &'static State, lane: &'static Lane, heir: Heir) -> (bool, bool) {
    let (mut any, mut kept) = (false, false);
    each_to_share(state, lane, heir, |file| {
        any = true;
        kept |= !share(state, &file);
    });
    (any, kept)
}

/// Calls `ready` with each file of a lane that is to be readied for the heir. The others are noted
/// to have common descriptors.
fn each_to_share(
    state: &'static State,
    lane: &'static Lane,
    heir: Heir,
    mut ready: impl FnMut(Pin),
) {
    state.get().records().each(|file| {
        if file.lane() != lane.number() {
            return;
        }
        if file.slot.load(Ordering::Relaxed) == 0 {
            file.set(FileBits::COMMON);
        } else if !file.is(FileBits::SHARED)
            && (heir == Heir::Process || is_left_by_exec(state, file))
        {
            ready(file.again());
        }
    });
}

/// Readies a file for others that get copies of its descriptor. False: its slot must be told to be
/// theirs.
fn share(state: &'static State, file: &Pin) -> bool {
    let settled = own::settle(state, file);
    shared(state, file, settled)
}

/// As [`share`], after [`own::settle`].
fn shared(state: &'static State, file: &Pin, settled: Outcome<()>) -> bool {
    let settled = settled.is_ok();
    if !settled {
        file::publish(state, file);
        file.set(FileBits::ESCAPED | FileBits::SHARED);
    }
    file.set(FileBits::COMMON);
    settled
}

/// To be called before a descriptor is sent to another process.
pub(crate) fn share_one(state: &'static State, fd: RawFd) {
    let Some(fields) = state.started().filter(|_| config::has_lane()) else { return };
    fields.shares.fetch_add(1, Ordering::SeqCst);
    fields.table.stale(fd);
    if let Some(file) = file::find_known(state, fd)
        && !file.is(FileBits::SHARED)
        && !share(state, &file)
    {
        tell_shared(fields.lane(file.lane()));
    }
}

/// Whether a number that means the file outlives an exec.
fn is_left_by_exec(state: &'static State, file: &Pin) -> bool {
    let mut left = false;
    state.get().table.each_known(file.index(), |fd| left |= !real::closes_on_exec(fd));
    left
}

fn tell_shared(lane: &'static Lane) {
    if let Some(session) = lane.sessions.present() {
        // Without an answer the session is over, and bound slots belong to their descriptors
        // anyway.
        let _ = call::plain(session, Message::new(Op::ShareAll));
    }
}

/// Numbers may be closed where nobody sees it: what is open is kept open by them alone. To be
/// called when all is shared.
pub(crate) fn leave_to_numbers(state: &'static State) {
    let Some(fields) = state.started() else { return };
    fields.records().each(|file| {
        let _guard = file.offset_lock.lock();
        let node = file::slot(state, file).and_then(|slot| real::node_cached(slot.master()).ok());
        if let Some(node) = node {
            file.node.store(node, Ordering::Relaxed);
            let place = file.slot.swap(0, Ordering::AcqRel) - 1;
            fields.lane(file.lane()).slots.release(place, None);
        }
    });
}

/// Leaves the sessions: who we are has changed, or descriptors of one are in the way. Files attach
/// to the next one of their lane when they are used.
pub(crate) fn leave_sessions(state: &'static State) {
    for lane in state.started().into_iter().flat_map(state::Fields::lanes) {
        if let Some(session) = lane.sessions.present() {
            // First: nothing is made by the stream between the two.
            lane.leases.leave(session);
        }
    }
    share_all(state);
    if let Some(fields) = state.started() {
        // Free slots are of no use to the next session, and what is parked is held open by it.
        fields.shed();
        fields.lanes().for_each(|lane| lane.sessions.leave());
        // What another thread closed between the two.
        fields.shed();
        fields.cwd.changed(fields.records());
    }
}

/// A file was shared while it was being opened, before it was bound: say it again.
pub(crate) fn share_late(state: &'static State, file: &Record) {
    if file.is(FileBits::SHARED) {
        tell_shared(state.get().lane(file.lane()));
    }
}
