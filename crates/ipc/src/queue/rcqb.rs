//! RCQB, the relaxed concurrent queue of Polytropon, as published (two stages: a fetch-and-add
//! spreads the participants over the slots, then each slot is a small lock of its own).
//!
//! ```text
//!  head, tail: free-running counters; a counter's slot is counter mod N
//!  slot:  FREE ─ enqueuer claims ─► ENQPND ─► OCCUPIED ─ dequeuer claims ─► DEQPND ─► FREE
//! ```
//!
//! Enqueuers spin and never sleep; dequeuers spin, then sleep on the slot's own futex. Items may be
//! overtaken by as many as (N − 1) · min(enqueuers, dequeuers − 1) others. A participant that dies
//! in ENQPND or DEQPND wedges its slot for ever, and a dead enqueuer's unused place costs its
//! dequeuer one lap of waiting: the published queue is not crash-safe,
//! [`lap_ring`](super::lap_ring) is.
//!
//! The published dequeue blocks. Here a consumer keeps the place that it drew in its [`Ticket`], so
//! that a worker with several queues can look at each in turn without giving its places up.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{RequestQueue, Ticket};
use crate::memory::{Memory, Word32, Word64};

const FREE: u32 = 0;
const ENQPND: u32 = 1;
const OCCUPIED: u32 = 2;
const DEQPND: u32 = 3;

const HEAD: usize = 0;
const TAIL: usize = 64;
const SLOTS: usize = 128;
const SLOT_BYTES: usize = 64;
const STATE: usize = 0;
const WAITERS: usize = 4;
const DATA: usize = 8;

/// Looks at a slot before an enqueuer gives up. The published one never does; a full ring in a
/// channel means a client that has broken its own memory, and it must not hang in there for ever.
const PUSH_SPINS: u32 = 1 << 20;

/// A view of an RCQB.
#[derive(Clone, Copy, Debug)]
pub struct Rcqb<M> {
    memory: M,
    slots: usize,
    push_spins: u32,
}

impl<M: Memory> Rcqb<M> {
    /// Bytes that a queue of `slots` slots takes.
    pub const fn bytes(slots: usize) -> usize {
        SLOTS + slots * SLOT_BYTES
    }

    /// The queue of `slots` slots, a power of two, at the start of `memory`, which began as zeros.
    #[inline]
    pub fn new(memory: M, slots: usize) -> Self {
        assert!(slots.is_power_of_two(), "slots must be a power of two");
        Rcqb { memory, slots, push_spins: PUSH_SPINS }
    }

    /// With another bound on the enqueuer's looks at its slot.
    pub fn with_push_spins(self, push_spins: u32) -> Self {
        Rcqb { push_spins, ..self }
    }

    #[inline]
    fn slot(&self, place: u64) -> usize {
        SLOTS + (place as usize & (self.slots - 1)) * SLOT_BYTES
    }

    #[inline]
    fn claim(&self, slot: usize, from: u32, to: u32) -> bool {
        let state = self.memory.word32(slot + STATE);
        state.load(Ordering::Relaxed) == from
            && state.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn draw(&self, ticket: &mut Ticket) -> usize {
        let head = self.memory.word64(HEAD);
        let place = *ticket.place.get_or_insert_with(|| head.fetch_add(1, Ordering::Relaxed));
        self.slot(place)
    }
}

impl<M: Memory> RequestQueue for Rcqb<M> {
    fn push(&self, value: u32) -> bool {
        let slot = self.slot(self.memory.word64(TAIL).fetch_add(1, Ordering::Relaxed));
        let mut looks = 0;
        while !self.claim(slot, FREE, ENQPND) {
            if looks == self.push_spins {
                return false;
            }
            looks += 1;
            self.memory.pause();
        }
        self.memory.word32(slot + DATA).store(value, Ordering::Relaxed);
        self.memory.word32(slot + STATE).store(OCCUPIED, Ordering::SeqCst);
        self.memory.total_order();
        if self.memory.word32(slot + WAITERS).load(Ordering::SeqCst) > 0 {
            self.memory.wake(slot + STATE, u32::MAX >> 1);
        }
        true
    }

    fn pop(&self, ticket: &mut Ticket) -> Option<u32> {
        let slot = self.draw(ticket);
        if !self.claim(slot, OCCUPIED, DEQPND) {
            return None;
        }
        let value = self.memory.word32(slot + DATA).load(Ordering::Relaxed);
        self.memory.word32(slot + STATE).store(FREE, Ordering::Release);
        ticket.place = None;
        Some(value)
    }

    fn ready(&self, ticket: &Ticket) -> bool {
        let head = || self.memory.word64(HEAD).load(Ordering::Relaxed);
        let slot = self.slot(ticket.place.unwrap_or_else(head));
        self.memory.word32(slot + STATE).load(Ordering::SeqCst) == OCCUPIED
    }

    fn pop_wait(&self, ticket: &mut Ticket, spins: u32, timeout: Duration) -> Option<u32> {
        for _ in 0..spins {
            if let Some(value) = self.pop(ticket) {
                return Some(value);
            }
            self.memory.pause();
        }
        let slot = self.draw(ticket);
        self.memory.word32(slot + WAITERS).fetch_add(1, Ordering::SeqCst);
        self.memory.total_order();
        let state = self.memory.word32(slot + STATE).load(Ordering::SeqCst);
        if state != OCCUPIED {
            self.memory.wait(slot + STATE, state, timeout);
        }
        self.memory.word32(slot + WAITERS).fetch_add(u32::MAX, Ordering::Relaxed);
        self.pop(ticket)
    }
}
