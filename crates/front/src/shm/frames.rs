//! How much memory views may take: a count of frames that all sessions of a server share.
//!
//! A frame takes memory from when it is first used until its session ends.

use polylane_base::sync::atomic::{AtomicUsize, Ordering};

/// Frames that the sessions of a server may still use. Shared by them.
#[derive(Debug)]
pub(super) struct FramesLeft(pub(super) AtomicUsize);

impl FramesLeft {
    /// One less, for a session that has `own`; false when there are none, or it has more than are
    /// left to all who come after it.
    pub(super) fn take(&self, own: usize) -> bool {
        let less = |left: usize| left.checked_sub(1).filter(|_| own < left);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// So many more again.
    pub(super) fn give(&self, frames: usize) {
        self.0.fetch_add(frames, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_more_than_is_left_to_others() {
        let left = FramesLeft(AtomicUsize::new(1000));
        let all = || (0..).take_while(|&own| left.take(own)).count();
        assert_eq!([all(), all(), all()], [500, 250, 125]);
        left.give(500);
        assert_eq!(all(), 313);
        (0..20).for_each(|_| _ = all());
        assert!(!left.take(0));
    }
}
