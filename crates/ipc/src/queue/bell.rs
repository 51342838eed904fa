//! The bell: whether a worker sleeps, and who has to wake it.
//!
//! ```text
//!  producer                                worker
//!  push to the queue          (SeqCst)     asleep ← ASLEEP        (SeqCst)
//!  asleep?  → claim it, wake  (SeqCst)     look at the queue again (SeqCst); something → awake
//! ```
//!
//! Either the producer sees ASLEEP or the worker sees the request: both read after they wrote, in
//! one total order. The first producer that sees ASLEEP turns it into RUNG, so one of many wakes.
//!
//! # The watched mailbox
//!
//! A lone busy thread would move the doorbell's cache line to the worker and back for nothing: it
//! always says the same. So the worker may watch one mailbox, looking at its state itself, and its
//! client need not push. The same pattern keeps a request from falling between: the client posts,
//! then asks whether it is (still) watched; the worker ends the watch, then looks at the state once
//! more.

use std::sync::atomic::Ordering;

use crate::layout::control;
use crate::memory::{Memory, Word32};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const RUNG: u32 = 2;

/// `control::CPU` when nobody knows.
pub const NO_CPU: u32 = u32::MAX;

/// A view of a core group's control line.
#[derive(Clone, Copy, Debug)]
pub struct Bell<M>(pub M);

impl<M: Memory> Bell<M> {
    /// Producer, after its push: whether it is the one that must wake the worker.
    #[inline]
    pub fn must_ring(&self) -> bool {
        let asleep = self.0.word32(control::ASLEEP);
        self.0.total_order();
        asleep.load(Ordering::SeqCst) == ASLEEP
            && asleep.compare_exchange(ASLEEP, RUNG, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Producer, before its push: whether the worker sleeps just now. A hint.
    #[inline]
    pub fn is_asleep(&self) -> bool {
        self.0.word32(control::ASLEEP).load(Ordering::Relaxed) != AWAKE
    }

    /// Client: whether the worker seems to watch `mailbox`. A hint.
    #[inline]
    pub fn seems_to_watch(&self, mailbox: u32) -> bool {
        self.0.word32(control::WATCHED).load(Ordering::Relaxed) == mailbox + 1
    }

    /// Client, after it posted `mailbox`: whether the worker watches it and needs no push.
    #[inline]
    pub fn watches(&self, mailbox: u32) -> bool {
        self.0.fence();
        self.0.word32(control::WATCHED).load(Ordering::SeqCst) == mailbox + 1
    }

    /// Worker: watches that mailbox from now on, or none. After a change it must look at the state
    /// of the former one once more.
    pub fn watch(&self, mailbox: Option<u32>) {
        let word = mailbox.map_or(0, |mailbox| mailbox + 1);
        self.0.word32(control::WATCHED).store(word, Ordering::SeqCst);
        self.0.total_order();
    }

    /// The CPU that the worker published; a hint.
    #[inline]
    pub fn cpu(&self) -> u32 {
        self.0.word32(control::CPU).load(Ordering::Relaxed)
    }

    /// Worker: will sleep, or is back. After `true` it must look at the queue once more before it
    /// really sleeps.
    #[inline]
    pub fn set_asleep(&self, asleep: bool) {
        let state = if asleep { ASLEEP } else { AWAKE };
        self.0.word32(control::ASLEEP).store(state, Ordering::SeqCst);
        self.0.total_order();
    }

    /// Worker: where it runs.
    pub fn set_cpu(&self, cpu: u32) {
        self.0.word32(control::CPU).store(cpu, Ordering::Relaxed);
    }
}
