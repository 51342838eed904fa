//! What remains known of a request that nobody waits for.

use std::sync::atomic::{Ordering, compiler_fence};

use polylane_ipc::MailboxIndex;

use super::{Alive, Session};
use crate::kernel::outcome::{Detour, Outcome};

/// A posted request: mailbox number plus one (0: none), and how many had been posted there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Mark {
    pub(super) mailbox: u32,
    pub(super) posts: u32,
}

impl Mark {
    /// Of no request.
    pub(crate) const NONE: Mark = Mark { mailbox: 0, posts: 0 };

    /// As one word.
    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.mailbox) | u64::from(self.posts) << 32
    }

    /// From one word.
    pub(crate) fn from_word(word: u64) -> Self {
        Mark { mailbox: word as u32, posts: (word >> 32) as u32 }
    }
}

impl Session {
    /// The mark of the last request posted to a mailbox.
    pub(crate) fn mark(&self, index: MailboxIndex) -> Mark {
        let posts = self.posts[index.0 as usize].load(Ordering::Relaxed);
        Mark { mailbox: index.0 + 1, posts }
    }

    /// Whether the request of that mark is answered.
    pub(crate) fn is_answered(&self, mark: Mark) -> bool {
        let Some(mailbox) = mark.mailbox.checked_sub(1) else { return true };
        !self.is_last(mark) || self.channel.is_free(MailboxIndex(mailbox))
    }

    /// Copies bytes of the payload that came with the answer to the request of that mark; false:
    /// they are gone, for the mailbox has been used again. For the thread that it belongs to.
    pub(crate) fn answered_get(&self, mark: Mark, at: usize, into: &mut [u8]) -> bool {
        let Some(mailbox) = mark.mailbox.checked_sub(1) else { return false };
        if !self.is_last(mark) {
            return false;
        }
        self.channel.payload_get(MailboxIndex(mailbox), at, into);
        // A handler may have interrupted the copying, and used the mailbox.
        compiler_fence(Ordering::SeqCst);
        self.is_last(mark)
    }

    /// Whether the request of that mark is the last one of its mailbox.
    #[inline]
    pub(crate) fn is_last(&self, mark: Mark) -> bool {
        let posts = mark.mailbox.checked_sub(1).map(|mailbox| &self.posts[mailbox as usize]);
        posts.is_some_and(|posts| posts.load(Ordering::Relaxed) == mark.posts)
    }

    /// Waits until the request of that mark is answered.
    pub(crate) fn wait_for(&self, mark: Mark) -> Outcome<()> {
        let Some(mailbox) = mark.mailbox.checked_sub(1) else { return Ok(()) };
        // Something newer lies in the mailbox only when that one was answered.
        if !self.is_last(mark) {
            return Ok(());
        }
        let settled = self.channel.settle(MailboxIndex(mailbox), &Alive(self));
        settled.map_err(|_| Detour::Kernel)
    }
}
