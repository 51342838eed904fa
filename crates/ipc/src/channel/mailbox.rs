//! The life of a mailbox.
//!
//! ```text
//!  client                                          service
//!  write words and payload
//!  state ← POSTED        (release)
//!  push its number to a request queue              (acquire) state = POSTED?  read the words once
//!  spin on state, or sleep:                        write words and payload
//!    waiting ← 1                                   state ← REPLIED   (release)
//!    ── fence ──                                   ── fence ──
//!    state = POSTED still?  futex wait             waiting?  futex wake
//!  (acquire) REPLIED: read words and payload
//! ```
//!
//! State and first words share a cache line that the other side polls. They are written by plain
//! stores, which reach memory together; a read-modify-write of the state would often find the line
//! stolen between them, which doubles a round trip. `waiting` has a line of its own for the same
//! reason.
//!
//! `progress` counts payload bytes that are ready while a request is under way: written by the
//! service for reads, by the client for writes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use polylane_sys::futex::Woken;

use crate::layout::mailbox;
use crate::memory::{Memory, Word32, Word64};

/// Nothing was ever posted here.
pub const IDLE: u32 = 0;
/// The service's: holds a request.
pub const POSTED: u32 = 1;
/// The client's: holds a reply.
pub const REPLIED: u32 = 2;

/// A view of a mailbox's head.
#[derive(Clone, Copy, Debug)]
pub struct Mailbox<M>(pub M);

impl<M: Memory> Mailbox<M> {
    #[inline]
    fn state(&self) -> &M::W32 {
        self.0.word32(mailbox::STATE)
    }

    #[inline]
    fn waiting(&self) -> &M::W32 {
        self.0.word32(mailbox::WAITING)
    }

    /// Client: whether it holds no request. Once true, the reply is readable.
    #[inline]
    pub fn is_free(&self) -> bool {
        self.state().load(Ordering::Acquire) != POSTED
    }

    /// Client: hands the mailbox over, telling from which CPU. Words and payload are written.
    #[inline]
    pub fn post(&self, cpu: u32) {
        self.0.word32(mailbox::CPU).store(cpu, Ordering::Relaxed);
        self.state().store(POSTED, Ordering::Release);
    }

    /// Client: says that it is going to sleep. False when the reply is there already.
    pub fn announce_sleep(&self) -> bool {
        self.waiting().store(1, Ordering::Relaxed);
        self.0.fence();
        let posted = !self.is_free();
        if !posted {
            self.waiting().store(0, Ordering::Relaxed);
        }
        posted
    }

    /// Client, after [`Mailbox::announce_sleep`]: sleeps until the reply, a signal or the timeout.
    pub fn sleep(&self, timeout: Duration) -> Woken {
        self.0.wait(mailbox::STATE, POSTED, timeout)
    }

    /// Service: whether it holds a request. Once true, words and payload are readable. Takes part
    /// in the total order with [`Bell::watch`](crate::queue::bell::Bell::watch).
    #[inline]
    pub fn is_posted(&self) -> bool {
        self.state().load(Ordering::SeqCst) == POSTED
    }

    /// Service: where the client was when it posted; a claim of the client's.
    #[inline]
    pub fn client_cpu(&self) -> u32 {
        self.0.word32(mailbox::CPU).load(Ordering::Relaxed)
    }

    /// Service: hands the mailbox back. Words and payload are written. [`Mailbox::wake`] must
    /// follow.
    #[inline]
    pub fn reply(&self) {
        self.state().store(REPLIED, Ordering::Release);
    }

    /// Service, after [`Mailbox::reply`]: wakes the client if it sleeps.
    #[inline]
    pub fn wake(&self) {
        self.0.fence();
        if self.waiting().load(Ordering::Relaxed) != 0 {
            self.0.wake(mailbox::STATE, 1);
        }
    }

    /// Payload bytes ready.
    #[inline]
    pub fn progress(&self) -> u32 {
        self.0.word32(mailbox::PROGRESS).load(Ordering::Acquire)
    }

    /// Publishes payload bytes.
    #[inline]
    pub fn set_progress(&self, bytes: u32) {
        self.0.word32(mailbox::PROGRESS).store(bytes, Ordering::Release);
    }

    /// Stores words from the `from`-th on.
    #[inline]
    pub fn put_words(&self, from: usize, words: &[u64]) {
        for (n, &word) in words.iter().enumerate() {
            self.0.word64(mailbox::WORDS + 8 * (from + n)).store(word, Ordering::Relaxed);
        }
    }

    /// Loads words from the `from`-th on, each once.
    #[inline]
    pub fn get_words(&self, from: usize, words: &mut [u64]) {
        for (n, word) in words.iter_mut().enumerate() {
            *word = self.0.word64(mailbox::WORDS + 8 * (from + n)).load(Ordering::Relaxed);
        }
    }
}
