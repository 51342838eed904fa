//! The lock requests of a session that wait.
//!
//! # Locking
//!
//! `Waits::state` is a leaf; no reply is sent and no lock of the file door taken under it.

use std::collections::{BTreeMap, VecDeque};

use polylane_base::sync::{Arc, Mutex};
use polylane_vfs::Ticket;
use polylane_vfs::handover::InFlight;

/// Interrupts remembered that came before their requests. The two are read microseconds apart, by
/// at most a few threads.
const EARLY_MAX: usize = 64;

enum Wait {
    Entered,
    Parked(Ticket),
    Interrupted,
}

#[derive(Default)]
struct WaitState {
    waits: BTreeMap<u64, Wait>,
    early: VecDeque<u64>,
    /// They are the next service's.
    left: bool,
}

/// The lock requests of one session that wait, by their unique number. Thread-safe.
#[derive(Default)]
pub(super) struct Waits {
    state: Mutex<WaitState>,
    /// Where the next service finds the oldest of them.
    in_flight: Option<Arc<InFlight>>,
}

impl Waits {
    pub(super) fn new(in_flight: Option<Arc<InFlight>>) -> Waits {
        Waits { in_flight, ..Waits::default() }
    }

    /// Writes down the oldest.
    fn tell(&self, state: &WaitState) {
        if let Some(in_flight) = self.in_flight.as_ref().filter(|_| !state.left) {
            in_flight.waits_since(state.waits.keys().next().copied());
        }
    }

    /// A request is about to wait.
    pub(super) fn enter(&self, unique: u64) {
        let mut state = self.state.lock();
        let before = state.early.len();
        state.early.retain(|early| *early != unique);
        let interrupted = state.early.len() < before;
        state.waits.insert(unique, if interrupted { Wait::Interrupted } else { Wait::Entered });
        self.tell(&state);
    }

    /// A request was parked. True when it must be cancelled now.
    pub(super) fn park(&self, unique: u64, ticket: Ticket) -> bool {
        match self.state.lock().waits.get_mut(&unique) {
            Some(wait @ Wait::Entered) => {
                *wait = Wait::Parked(ticket);
                false
            }
            Some(Wait::Interrupted) => true,
            Some(Wait::Parked(_)) | None => false,
        }
    }

    /// A request ends. False when it has ended already.
    pub(super) fn leave(&self, unique: u64) -> bool {
        let mut state = self.state.lock();
        let was_there = state.waits.remove(&unique).is_some();
        self.tell(&state);
        was_there
    }

    /// Leaves them all to the next service, unanswered: locks that this one's end sets free are not
    /// theirs.
    pub(super) fn leave_all(&self) {
        let mut state = self.state.lock();
        state.left = true;
        state.waits.clear();
    }

    /// The kernel interrupts a request: the ticket to cancel, if there is one yet.
    pub(super) fn interrupt(&self, unique: u64) -> Option<Ticket> {
        let mut state = self.state.lock();
        match state.waits.get_mut(&unique) {
            Some(Wait::Parked(ticket)) => return Some(*ticket),
            Some(wait) => *wait = Wait::Interrupted,
            None => {
                if state.early.len() == EARLY_MAX {
                    state.early.pop_front();
                }
                state.early.push_back(unique);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_finds_its_wait_in_every_state() {
        let waits = Waits::default();
        // Parked before the interrupt.
        waits.enter(2);
        assert!(!waits.park(2, Ticket(7)));
        assert_eq!(waits.interrupt(2), Some(Ticket(7)));
        assert!(waits.leave(2));
        assert!(!waits.leave(2));
        // Interrupted between entering and parking.
        waits.enter(4);
        assert_eq!(waits.interrupt(4), None);
        assert!(waits.park(4, Ticket(8)));
        assert!(waits.leave(4));
        // Interrupted before anything.
        assert_eq!(waits.interrupt(6), None);
        waits.enter(6);
        assert!(waits.park(6, Ticket(9)));
        // The early mark is used up.
        assert!(waits.leave(6));
        waits.enter(6);
        assert!(!waits.park(6, Ticket(10)));
    }

    #[test]
    fn early_interrupts_are_bounded() {
        let waits = Waits::default();
        (0..10_000).for_each(|unique| assert_eq!(waits.interrupt(unique), None));
        assert_eq!(waits.state.lock().early.len(), EARLY_MAX);
    }
}
