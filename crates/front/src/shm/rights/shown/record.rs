//! Parts of the record of a view.

use polylane_ipc::ServiceChannel;
use polylane_ipc::view::{HAS_ATTR, HAS_DATA, NOTES_READS, UNTIL_WRITTEN};

use super::{State, View};
use crate::shm::request::Handle;

/// What a loan to write gave.
#[derive(Clone, Copy)]
pub(in super::super) struct LastLoan {
    pub(in super::super) range: (u64, u64),
    /// That ended where the file did.
    pub(in super::super) at_end: bool,
    pub(in super::super) streams: bool,
    /// It was given after a sync, not after a write.
    pub(in super::super) again: bool,
    /// The client wrote something on it.
    pub(in super::super) used: bool,
}

impl LastLoan {
    /// Whether the same is worth giving after a sync: of a client that only syncs, or to whom
    /// another program comes between, such a loan brings nothing.
    pub(in super::super) fn pays(&self) -> bool {
        self.used || !self.again
    }
}

/// What is known of a file on loan as long as nothing is written on that.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Unwritten {
    /// What the gate said when the loan began.
    pub(in super::super) opened: u64,
    /// The client asked for the state since then.
    pub(in super::super) questioned: bool,
    /// The next read moves the access time, to when it was.
    pub(in super::super) atime_follows: bool,
}

impl State {
    /// A loan to write begins, and what was put of the view last is true still: what counts of it
    /// until something is written, and after.
    pub(in super::super) fn count_on_loan(&mut self, channel: &ServiceChannel, number: u32) {
        let Some(view) = self.get(number) else { return };
        let follows = if view.unwritten.atime_follows { HAS_ATTR | UNTIL_WRITTEN } else { 0 };
        view.has = HAS_DATA | NOTES_READS | follows;
        channel.views().put_has(number, (view.generation, view.has));
    }

    /// The state of a file on loan counts no more.
    pub(in super::super) fn hide_state(&mut self, channel: &ServiceChannel, number: u32) {
        let Some(view) = self.get(number).filter(|view| view.has & UNTIL_WRITTEN != 0) else {
            return;
        };
        view.has &= !(HAS_ATTR | UNTIL_WRITTEN);
        channel.views().put_has(number, (view.generation, view.has));
    }
}

impl View {
    /// Its client wrote something on the loan under way.
    pub(in super::super) fn was_written(&mut self) {
        if let Some(given) = &mut self.given {
            given.used = true;
        }
    }
}

/// An open file that may be parked: `rights::handles`.
#[derive(Clone, Copy)]
pub(in super::super) struct CachedHandle {
    pub(in super::super) handle: Handle,
    /// Its own, unlike that of any other in the session.
    pub(in super::super) number: u64,
}
