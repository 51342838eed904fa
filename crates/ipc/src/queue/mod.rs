//! Request queues: how "mailbox n holds a request" gets from many client threads to a worker.
//!
//! | queue | push | pop | when a participant is killed |
//! |---|---|---|---|
//! | [`doorbell`] | one fetch-or | swap a word of 64 bits | its own bit is lost |
//! | [`rcqb`] | fetch-and-add, claim, release | the same | a slot may stay claimed for ever |
//! | [`lap_ring`] | compare-and-swap, help | the same | nothing: others finish its steps |
//!
//! All three are written over [`Memory`](crate::memory::Memory), so that the same source runs on
//! mapped atomics and under loom.

pub mod bell;
pub mod doorbell;
pub mod lap_ring;
pub mod rcqb;

use std::time::Duration;

/// What a consumer keeps between two calls of [`RequestQueue::pop`]. One per consumer, starts as
/// `Ticket::default()`; belongs to one queue.
#[derive(Debug, Default)]
pub struct Ticket {
    /// RCQB: the slot number that this consumer has drawn and not emptied yet.
    place: Option<u64>,
    /// Doorbell: bits taken and not handed out yet, and the word they came from.
    bits: u64,
    word: usize,
}

impl Ticket {
    /// Whether values were taken out of the queue and not handed out yet.
    #[inline]
    pub fn in_hand(&self) -> bool {
        self.bits != 0
    }
}

/// A queue of 32-bit values between processes. Any number of producers; any number of consumers
/// with a [`Ticket`] each. Thread-safe.
pub trait RequestQueue {
    /// Adds `value`. False when it is full.
    fn push(&self, value: u32) -> bool;

    /// The next value if there is one. Never waits for a producer; bounded steps, whatever the
    /// memory holds.
    fn pop(&self, ticket: &mut Ticket) -> Option<u32>;

    /// Whether [`RequestQueue::pop`] would find something. A hint, right when nothing changes.
    fn ready(&self, ticket: &Ticket) -> bool;

    /// As [`RequestQueue::pop`], but spins `spins` pauses and then sleeps, at most about `timeout`.
    fn pop_wait(&self, ticket: &mut Ticket, spins: u32, timeout: Duration) -> Option<u32>;
}
