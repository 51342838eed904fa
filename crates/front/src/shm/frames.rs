//! How much memory views may take: a count of frames that all sessions of a server share.
//!
//! A frame takes memory from when it is first used until its session ends.

use polylane_base::sync::atomic::{AtomicUsize, Ordering};

/// Frames that the sessions of a server may still use. Shared by them.
#[derive(Debug)]
pub(super) struct FramesLeft(pub(super) AtomicUsize);

impl FramesLeft {
    /// One less; false when there are none.
    pub(super) fn take(&self) -> bool {
        let less = |left: usize| left.checked_sub(1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// So many more again.
    pub(super) fn give(&self, frames: usize) {
        self.0.fetch_add(frames, Ordering::Relaxed);
    }
}
