//! Spare frames: how a client writes anew what a page of its loan holds, so that whoever takes the
//! loan back finds the page old or new, and nothing between, wherever its writer was stopped.
//!
//! The client fills a frame in which no page lies, and then switches the page over to it by one
//! compare-and-swap of the entry's word. The frame in which the page lay before is the next spare.
//!
//! # Invariants
//!
//! - The bytes below the end of a file that a writable frame holds are never changed there.
//! - A switch is made before the service takes the page back, and then seen, or it fails.
//! - A reader who copied from a frame while the page left it finds that the entry's word changed.
//! - The frames of the writable pages of a view and its spare are always the same ones, whichever
//!   lies where: the service knows them, and believes no other.

use std::sync::atomic::Ordering::{Relaxed, Release};

use super::{DIRTY, FRAME_SHIFT, Found, SPARE, SWITCH, Views, WRITABLE};
use crate::memory::{Memory, Word32};

impl<M: Memory> Views<M> {
    /// Of the client, inside the gate: the frame in which no page lies; `None`: there is none.
    #[inline]
    pub fn spare(&self, view: u32) -> Option<u32> {
        self.memory.word32(self.view(view, SPARE)).load(Relaxed).checked_sub(1)
    }

    /// Of the client: whether the page of a found frame may be put into another.
    #[inline]
    pub fn may_switch(&self, found: Found) -> bool {
        found.loan & WRITABLE != 0
    }

    /// Of the client, inside the gate: the page of a found frame lies in `spare` from now on, which
    /// holds all of it. False: it must not, and lies where it lay.
    #[inline]
    pub fn switch(&self, view: u32, found: Found, spare: u32) -> bool {
        let count = found.loan.wrapping_add(SWITCH) & ((1 << FRAME_SHIFT) - SWITCH);
        let next = spare << FRAME_SHIFT | count | WRITABLE | DIRTY;
        let loan = self.loan(found.entry);
        let switched = self.may_switch(found)
            && loan.compare_exchange(found.loan, next, Release, Relaxed).is_ok();
        if switched {
            let former = found.loan >> FRAME_SHIFT;
            self.memory.word32(self.view(view, SPARE)).store(former + 1, Relaxed);
            // A reader that finds the bytes that are stored there next finds the switch, too.
            self.memory.fence_release();
        }
        switched
    }

    /// Of the service: the frame that the client may fill; `None`: it has none. The gate must be
    /// shut and nobody inside.
    pub fn put_spare(&self, view: u32, spare: Option<u32>) {
        let word = spare.map_or(0, |frame| frame + 1);
        self.memory.word32(self.view(view, SPARE)).store(word, Relaxed);
    }
}
