//! What `polylane mount` is asked for, and what comes of it.

use std::path::PathBuf;

use super::source::LaneSource;
use crate::run::RunOptions;

/// What `polylane mount` was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountOptions {
    /// What to mount.
    pub source: LaneSource,
    /// Where.
    pub path: PathBuf,
    /// The pool; `None`: [`POOL_DEFAULT`](super::POOL_DEFAULT).
    pub pool: Option<String>,
    /// A service of the pool that serves the same source may serve this mount as well.
    pub share: bool,
    /// Nothing can be changed through the mount.
    pub read_only: bool,
    /// Where the same is mounted already, it is not counted once more.
    pub once: bool,
    /// What a run of such a lane would be given; source, path and command are not looked at.
    pub lane: RunOptions,
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mounted {
    /// A new lane serves.
    New,
    /// A service that was there serves one more path.
    Shared,
    /// It was mounted already, and is now so often.
    Again(u32),
}
