//! What remains known of a request that nobody waits for.

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
