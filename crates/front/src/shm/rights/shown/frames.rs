//! How much memory views may take: counts that all sessions of a server share.
//!
//! A frame takes memory from when it is first used until its session ends; a view that is kept
//! after its file was closed holds an inode.

use polylane_base::sync::atomic::{AtomicUsize, Ordering};

/// Views of closed files that the sessions of a server keep together: at about a kibibyte each,
/// with their inode, no more than a few MiB.
const KEPT_VIEWS: usize = 8192;

/// What the sessions of a server may still use.
#[derive(Debug)]
pub(in crate::shm) struct FramesLeft {
    frames: Left,
    /// Views of files that are closed.
    pub(in crate::shm) kept: Left,
}

/// A count of what is left. Shared by all sessions.
#[derive(Debug)]
pub(in crate::shm) struct Left(AtomicUsize);

impl FramesLeft {
    /// So many frames for all sessions.
    pub(in crate::shm) fn new(frames: usize) -> FramesLeft {
        FramesLeft { frames: Left::new(frames), kept: Left::new(KEPT_VIEWS) }
    }

    /// One frame less, for a session that has `own`: see [`Left::take`].
    pub(in crate::shm) fn take(&self, own: usize) -> bool {
        self.frames.take(own)
    }

    /// So many frames more again.
    pub(in crate::shm) fn give(&self, frames: usize) {
        self.frames.give(frames);
    }
}

impl Left {
    fn new(count: usize) -> Left {
        Left(AtomicUsize::new(count))
    }

    /// One less, for a session that has `own`; false when there are none, or it has more than are
    /// left to all who come after it.
    pub(in crate::shm) fn take(&self, own: usize) -> bool {
        let less = |left: usize| left.checked_sub(1).filter(|_| own < left);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// So many more again.
    pub(in crate::shm) fn give(&self, count: usize) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_more_than_is_left_to_others() {
        let left = Left::new(1000);
        let all = || (0..).take_while(|&own| left.take(own)).count();
        assert_eq!([all(), all(), all()], [500, 250, 125]);
        left.give(500);
        assert_eq!(all(), 313);
        (0..20).for_each(|_| _ = all());
        assert!(!left.take(0));
    }
}
