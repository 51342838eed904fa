//! Where a path starts.

use std::sync::atomic::Ordering;

use polylane_ipc::message::DIR_ROOT;

use crate::fd::table::Pin;

/// A path as the service takes it.
pub(crate) struct At<'a> {
    /// Where it starts: a handle or `DIR_ROOT`.
    pub(crate) dir: u64,
    /// Not empty; relative.
    pub(crate) path: &'a [u8],
    /// Keeps the handle while the path is in use.
    #[expect(dead_code, reason = "dropped")]
    start: Option<Pin>,
}

impl At<'_> {
    /// No path at all: the message names a handle.
    pub(crate) fn nowhere() -> At<'static> {
        At::below(DIR_ROOT)
    }

    /// A directory itself, by its handle.
    pub(crate) fn below(dir: u64) -> At<'static> {
        At { dir, path: b"", start: None }
    }

    /// A path of the lane, from its root.
    pub(crate) fn from_root(path: &[u8]) -> At<'_> {
        At { dir: DIR_ROOT, path, start: None }
    }

    /// A path as seen from an open directory.
    pub(crate) fn from_directory(start: Pin, path: &[u8]) -> At<'_> {
        At { dir: start.handle.load(Ordering::Relaxed), path, start: Some(start) }
    }
}
