//! Mailboxes with a doorbell: one bit per mailbox, set by the client, taken 64 at a time by the
//! worker.
//!
//! Values are mailbox numbers; a value is in the queue at most once, which is what a mailbox wants.
//! Nothing can be full and nothing can be wedged. A consumer goes round all words before it sees
//! one again, so every mailbox has its turn.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{RequestQueue, Ticket};
use crate::memory::{Memory, Word64};

/// A view of a doorbell bitmap.
#[derive(Clone, Copy, Debug)]
pub struct Doorbell<M> {
    memory: M,
    words: usize,
}

impl<M: Memory> Doorbell<M> {
    /// A doorbell for values below `count` at the start of `memory`, which began as zeros.
    #[inline]
    pub fn new(memory: M, count: usize) -> Self {
        Doorbell { memory, words: count.div_ceil(64) }
    }
}

impl<M: Memory> RequestQueue for Doorbell<M> {
    #[inline]
    fn push(&self, value: u32) -> bool {
        let word = value as usize / 64;
        assert!(word < self.words, "value outside the bitmap");
        self.memory.word64(8 * word).fetch_or(1 << (value % 64), Ordering::SeqCst);
        true
    }

    #[inline]
    fn pop(&self, ticket: &mut Ticket) -> Option<u32> {
        if ticket.bits == 0 {
            self.refill(ticket);
        }
        if ticket.bits == 0 {
            return None;
        }
        let bit = ticket.bits.trailing_zeros();
        ticket.bits &= ticket.bits - 1;
        Some(ticket.word as u32 * 64 + bit)
    }

    #[inline]
    fn ready(&self, ticket: &Ticket) -> bool {
        ticket.bits != 0
            || (0..self.words).any(|n| self.memory.word64(8 * n).load(Ordering::SeqCst) != 0)
    }

    fn pop_wait(&self, ticket: &mut Ticket, spins: u32, _timeout: Duration) -> Option<u32> {
        for _ in 0..spins {
            if let Some(value) = self.pop(ticket) {
                return Some(value);
            }
            self.memory.pause();
        }
        // Sleeping is the bell's part: a bitmap has no word to sleep on for all mailboxes.
        self.pop(ticket)
    }
}

impl<M: Memory> Doorbell<M> {
    #[inline]
    fn refill(&self, ticket: &mut Ticket) {
        for step in 1..=self.words {
            let n = (ticket.word + step) % self.words;
            let word = self.memory.word64(8 * n);
            if word.load(Ordering::SeqCst) != 0 {
                (ticket.word, ticket.bits) = (n, word.swap(0, Ordering::SeqCst));
                if ticket.bits != 0 {
                    return;
                }
            }
        }
    }
}
