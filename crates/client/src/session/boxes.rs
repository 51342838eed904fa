//! The mailboxes of each thread, a pair for each lane, and the number of a request that it asks
//! again there.
//!
//! Constant-initialised and without destructor, as `kernel::thread`. A call that interrupts another
//! of its thread finds that one's mailbox busy and takes the other one; a third level goes through
//! the kernel.

use std::cell::Cell;

use polylane_ipc::handshake::LANES_MAX;

use crate::kernel::config::LaneNumber;

/// Mailboxes of one thread in one lane.
pub(crate) const BOXES: usize = 2;
/// The one for calls. The worker that serves a busy thread looks at it without being told to.
pub(crate) const AWAITED: usize = 0;
/// The one for requests that nobody waits for, so that they do not delay the next call.
pub(crate) const UNAWAITED: usize = 1;

/// The calling thread's part in one lane. Only the thread itself, or a signal handler on it, comes
/// here.
pub(super) struct Boxes {
    /// The session that `numbers` belong to; 0: none were claimed.
    pub(super) session: Cell<u32>,
    /// Mailbox numbers.
    pub(super) numbers: [Cell<u32>; BOXES],
    /// Whether a call of this thread is using the mailbox.
    pub(super) busy: [Cell<bool>; BOXES],
    /// The number of a request that is asked again, for the next one that has a number; 0: none.
    /// Services of other lanes know other requests by it.
    again: Cell<u32>,
}

impl Boxes {
    const fn new() -> Self {
        Boxes {
            session: Cell::new(0),
            numbers: [const { Cell::new(0) }; BOXES],
            busy: [const { Cell::new(false) }; BOXES],
            again: Cell::new(0),
        }
    }
}

thread_local! {
    static OWN: [Boxes; LANES_MAX] = const { [const { Boxes::new() }; LANES_MAX] };
}

/// Calls `with` with the calling thread's part in a lane.
#[inline]
pub(super) fn with<R>(lane: LaneNumber, with: impl FnOnce(&Boxes) -> R) -> R {
    OWN.with(|own| with(&own[lane.index()]))
}

/// The calling thread is about to ask a lane once more what it asked under this number; 0: what has
/// none.
pub(crate) fn ask_again(lane: LaneNumber, turn: u32) {
    with(lane, |own| own.again.set(turn));
}

/// Whether the calling thread is to ask a lane once more what had a number, and has not yet.
pub(crate) fn is_asked_again(lane: LaneNumber) -> bool {
    with(lane, |own| own.again.get() != 0)
}

/// The number given to [`ask_again`] for that lane, once; 0: none, or it was taken.
pub(crate) fn take_again(lane: LaneNumber) -> u32 {
    with(lane, |own| own.again.replace(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_asked_again_of_its_own_lane_alone() {
        let (one, other) = (LaneNumber::FIRST, LaneNumber::at(3));
        ask_again(one, 7);
        assert!(is_asked_again(one) && !is_asked_again(other));
        // On the way to it another lane is asked.
        assert_eq!(take_again(other), 0);
        ask_again(other, 9);
        assert_eq!((take_again(one), take_again(one)), (7, 0));
        assert_eq!((take_again(other), take_again(other)), (9, 0));
        assert!(!is_asked_again(one) && !is_asked_again(other));
    }
}
