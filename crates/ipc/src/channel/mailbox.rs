//! The life of a mailbox.
//!
//! ```text
//!  client                                          service
//!  write words and payload
//!  state ← POSTED        (release)
//!  push its number to a request queue              (acquire) state = POSTED?  read the words once
//!  spin, or: POSTED → POSTED|WAITING, sleep        write words and payload
//!                                                  state ← REPLIED (swap); it was WAITING → wake
//!  (acquire) REPLIED: read words and payload
//! ```
//!
//! `progress` counts payload bytes that are ready while a request is under way: written by the service
//! for reads, by the client for writes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use polylane_sys::futex::Woken;

use crate::layout::mailbox;
use crate::queue::memory::{Memory, Word32, Word64};

/// Nothing was ever posted here.
pub const IDLE: u32 = 0;
/// The service's: holds a request.
pub const POSTED: u32 = 1;
/// The client's: holds a reply.
pub const REPLIED: u32 = 2;
/// Beside `POSTED`: the client sleeps.
pub const WAITING: u32 = 0x100;

/// A view of a mailbox's head.
#[derive(Clone, Copy, Debug)]
pub struct Mailbox<M>(pub M);

impl<M: Memory> Mailbox<M> {
    #[inline]
    fn state(&self) -> &M::W32 {
        self.0.word32(mailbox::STATE)
    }

    /// Client: whether it holds no request. Once true, the reply is readable.
    #[inline]
    pub fn is_free(&self) -> bool {
        self.state().load(Ordering::Acquire) & !WAITING != POSTED
    }

    /// Client: hands the mailbox over. Words and payload are written.
    #[inline]
    pub fn post(&self) {
        self.state().store(POSTED, Ordering::Release);
    }

    /// Client: says that it is going to sleep. False when the reply is there already.
    #[inline]
    pub fn announce_sleep(&self) -> bool {
        let order = (Ordering::Acquire, Ordering::Acquire);
        match self.state().compare_exchange(POSTED, POSTED | WAITING, order.0, order.1) {
            Ok(_) => true,
            Err(state) => state == POSTED | WAITING,
        }
    }

    /// Client, after [`Mailbox::announce_sleep`]: sleeps until the reply, a signal or the timeout.
    pub fn sleep(&self, timeout: Duration) -> Woken {
        self.0.wait(mailbox::STATE, POSTED | WAITING, timeout)
    }

    /// Service: whether it holds a request. Once true, words and payload are readable.
    #[inline]
    pub fn is_posted(&self) -> bool {
        self.state().load(Ordering::Acquire) & !WAITING == POSTED
    }

    /// Service: hands the mailbox back. Words and payload are written.
    #[inline]
    pub fn reply(&self) {
        if self.state().swap(REPLIED, Ordering::AcqRel) & WAITING != 0 {
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

    /// Stores the first words.
    #[inline]
    pub fn put_words(&self, words: &[u64]) {
        for (n, &word) in words.iter().enumerate() {
            self.0.word64(mailbox::WORDS + 8 * n).store(word, Ordering::Relaxed);
        }
    }

    /// Loads the first word.
    #[inline]
    pub fn first_word(&self) -> u64 {
        self.0.word64(mailbox::WORDS).load(Ordering::Relaxed)
    }

    /// Loads the first words, each once.
    #[inline]
    pub fn get_words(&self, words: &mut [u64]) {
        for (n, word) in words.iter_mut().enumerate() {
            *word = self.0.word64(mailbox::WORDS + 8 * n).load(Ordering::Relaxed);
        }
    }
}
