//! What `polylane mount` is asked for, and what comes of it.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::source::LaneSource;
use super::table::Entry;
use super::users;
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

impl MountOptions {
    /// The entry of such a mount at `path`, as far as its options say it.
    pub(crate) fn entry(&self, path: &Path) -> Entry {
        Entry {
            path: path.as_os_str().as_bytes().to_vec(),
            source: self.source.text(),
            users: users::text(self.lane.map_users.as_ref()).into_bytes(),
            count: 1,
            read_only: self.read_only,
            id_maps: self.lane.id_maps,
            kernel_cache: self.lane.kernel_cache,
            access_times: self.lane.access_times,
            is_ground: self.lane.for_instances,
            ..Entry::default()
        }
    }
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
