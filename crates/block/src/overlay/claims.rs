//! Which channel is copying which absent blocks up, and whether one writes the map.
//!
//! Claims are tried, never waited for with a lock held: a channel that is refused tries again when
//! it is polled, and [`Claims::wait`] sleeps until a claim is given back.

use std::ops::Range;
use std::time::Duration;

use polylane_base::sync::{Condvar, Mutex};

/// A sleeper looks again after this time; somebody who lets go wakes it sooner.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

#[derive(Default)]
struct State {
    blocks: Vec<Range<u64>>,
    /// A channel writes the map.
    map: bool,
    /// Changes with every release.
    released: u64,
}

/// All claims on one overlay.
#[derive(Default)]
pub(super) struct Claims {
    state: Mutex<State>,
    changed: Condvar,
}

impl Claims {
    /// Takes these blocks, unless somebody has one of them.
    pub(super) fn take(&self, blocks: &Range<u64>) -> bool {
        let mut state = self.state.lock();
        let free = |taken: &Range<u64>| taken.end <= blocks.start || blocks.end <= taken.start;
        let free = state.blocks.iter().all(free);
        if free {
            state.blocks.push(blocks.clone());
        }
        free
    }

    /// Lets go of blocks that [`take`](Claims::take) gave.
    pub(super) fn release(&self, blocks: &Range<u64>) {
        let mut state = self.state.lock();
        if let Some(at) = state.blocks.iter().position(|taken| taken == blocks) {
            state.blocks.swap_remove(at);
        }
        state.released += 1;
        self.changed.notify_all();
    }

    /// Takes the map, unless somebody has it.
    pub(super) fn take_map(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().map, true)
    }

    /// Whether somebody has the map.
    pub(super) fn has_map(&self) -> bool {
        self.state.lock().map
    }

    /// Lets go of the map.
    pub(super) fn release_map(&self) {
        let mut state = self.state.lock();
        state.map = false;
        state.released += 1;
        self.changed.notify_all();
    }

    /// A number that changes with every release; to be read before a claim is tried.
    pub(super) fn released(&self) -> u64 {
        self.state.lock().released
    }

    /// Sleeps until somebody has let go of something since `seen`.
    pub(super) fn wait(&self, seen: u64) {
        let state = self.state.lock();
        let same = |state: &mut State| state.released == seen;
        drop(self.changed.wait_timeout_while(state, LOOK_AGAIN, same));
    }
}
