//! Parts of the record of a view.

use super::View;
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
