//! The cache of a lane's files (`--file-cache`): a libservice over all others of the lane.

use std::time::Duration;

use polylane_base::Clock;
use polylane_base::sync::Arc;
use polylane_vfs::cached::{Cached, Mode, Settings};
use polylane_vfs::{FileSystem, Stats, Vfs};
use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use crate::spec::{FileCache, FileCacheMode, PoolSpec};

/// Least bytes that it may keep.
pub(crate) const BYTES_MIN: u64 = 1 << 20;

/// The cache of a lane that runs.
pub(crate) struct LaneCache {
    cached: Arc<Cached>,
    mode: FileCacheMode,
    bytes_limit: u64,
}

/// Files in the cache that `spec` asks for, if it does. Changed data may be so many bytes, and wait
/// so long.
pub(crate) fn over(
    spec: &PoolSpec,
    fs: Arc<dyn FileSystem>,
    clock: Arc<dyn Clock>,
    (dirty_bytes_limit, flush_interval): (u64, Duration),
) -> Result<(Arc<dyn FileSystem>, Option<LaneCache>)> {
    let Some(FileCache { mode, bytes }) = spec.write_back.file_cache else {
        return Ok((fs, None));
    };
    let bytes_limit = bytes.unwrap_or(spec.cache_bytes_limit);
    let how = match mode {
        FileCacheMode::WriteBack => Mode::WriteBack,
        FileCacheMode::WriteThrough => Mode::WriteThrough,
    };
    let settings = Settings { mode: how, bytes_limit, dirty_bytes_limit, flush_interval, clock };
    let cached = Cached::new(fs, settings);
    let cached =
        Arc::new(cached.map_err(|error| Failure::because("lane", "start its cache", error))?);
    Ok((cached.clone(), Some(LaneCache { cached, mode, bytes_limit })))
}

impl LaneCache {
    /// What statistics say of it.
    pub(crate) fn describe(&self) -> Value {
        json!({ "mode": self.mode.name(), "size_bytes": self.bytes_limit })
    }
}

/// A lane's counters, with those of its pages wherever they are.
pub(crate) fn stats(vfs: &Vfs, cache: Option<&LaneCache>) -> Stats {
    let own = vfs.stats();
    let Some(cache) = cache else { return own };
    let Stats { ops, dentry_hits, dentry_misses, dentries, inodes, .. } = own;
    Stats { ops, dentry_hits, dentry_misses, dentries, inodes, ..cache.cached.stats() }
}
