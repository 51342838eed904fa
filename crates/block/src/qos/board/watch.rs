//! The watch: no policy stops a device.
//!
//! A lane that waits for long although the device has nothing to do waits for a mistake: a budget
//! that became nothing, a debt that nothing pays off. It is let go for a window then, whatever its
//! policy gives it; what a person limits stays limited.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::super::page::{Words, ahead, flag, lane, note};
use super::{Board, Nanos};

/// A lane waits beside an idle device for so long at most.
const IDLE_NS_MAX: Nanos = 300_000_000;

/// Between two looks while a lane waits.
const LOOK_NS: Nanos = 10_000_000;

/// A lane whose totals did not move for so long has nothing at the device, whatever they say.
const STUCK_NS_MAX: Nanos = 500_000_000;

/// A lane whose thread has no CPU says nothing for a while: it still waits.
const SILENT_NS_MAX: Nanos = 200_000_000;

/// What the watch has seen of a lane.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Watch {
    /// A request waited in the last window.
    pub(super) waits: bool,
    /// When one was last seen to wait.
    waited_at: Nanos,
    /// What it had spent and got done, and since when it has not moved.
    totals: (u64, u64),
    moved_at: Nanos,
    /// It has waited beside an idle device for so long, and nothing of it went.
    held_ns: Nanos,
}

impl Watch {
    /// Takes the lane's totals in; whether it has something at the device.
    fn look(&mut self, words: &impl Words, now: Nanos) -> bool {
        let done = words.load(lane::DONE, Acquire);
        let totals = (words.load(lane::SPENT, Acquire), done);
        if self.totals.0 != totals.0 {
            self.held_ns = 0;
        }
        if self.totals != totals {
            (self.totals, self.moved_at) = (totals, now);
        }
        ahead(totals.0, totals.1) > 0 && now.saturating_sub(self.moved_at) < STUCK_NS_MAX
    }

    /// Whether it waits for too long, after a time at whose end the device was idle.
    fn waits_too_long(&mut self, now: Nanos, elapsed: Nanos) -> bool {
        if self.waits {
            self.waited_at = now;
        } else if now.saturating_sub(self.waited_at) >= SILENT_NS_MAX {
            self.held_ns = 0;
            return false;
        }
        self.held_ns = self.held_ns.saturating_add(elapsed);
        self.held_ns >= IDLE_NS_MAX
    }
}

impl<W: Words> Board<W> {
    /// How often lanes that waited beside an idle device were let go.
    pub fn let_go_count(&self) -> u64 {
        self.let_go_count
    }

    /// When a look is due, if a lane waits: windows may be longer than what happens between looks.
    pub(super) fn next_look(&self) -> Option<Nanos> {
        self.seats.iter().any(|seat| seat.watch.waits).then_some(self.looked_at + LOOK_NS)
    }

    /// Looks for lanes that wait beside an idle device, and lets those go that have for too long.
    /// `depth`: requests that the device has now, if known.
    pub(super) fn watch(&mut self, now: Nanos, depth: Option<u64>) {
        let elapsed = now.saturating_sub(std::mem::replace(&mut self.looked_at, now));
        let mut idle = true;
        for seat in &mut self.seats {
            idle &= !seat.watch.look(&seat.words, now);
        }
        if !idle && depth != Some(0) {
            return;
        }
        for seat in &mut self.seats {
            if !seat.watch.waits_too_long(now, elapsed) {
                continue;
            }
            seat.watch.held_ns = 0;
            self.let_go_count += 1;
            seat.terms.flags = seat.terms.flags & !flag::OPEN | flag::FREE;
            seat.terms.inflight_max = u64::MAX;
            (seat.terms.read_bytes_max, seat.terms.written_bytes_max) = (None, None);
            seat.words.add(note::LET_GO, 1, Relaxed);
            seat.publish(now);
        }
    }
}
