//! The caches of a lane's files, each a libservice over others of the lane: over all of them or
//! over what is its own (`--file-cache`), and over lowers (`--lower cached:SOURCE`).

use std::time::Duration;

use polylane_base::Clock;
use polylane_base::sync::Arc;
use polylane_vfs::cached::{Cached, Mode, Settings};
use polylane_vfs::{FileSystem, Stats, Vfs};
use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use crate::spec::{FileCache, FileCacheMode, FileCachePlace, LowerSpec, PoolSpec};

/// Least bytes that one may keep.
pub(crate) const BYTES_MIN: u64 = 1 << 20;

/// A cache of a lane that runs.
pub(crate) struct LaneCache {
    cached: Arc<Cached>,
    mode: FileCacheMode,
    bytes_limit: u64,
    /// What it is over.
    over: String,
}

/// The caches of a lane, as its parts are put together.
pub(crate) struct Caches<'a> {
    spec: &'a PoolSpec,
    clock: Arc<dyn Clock>,
    /// Most changed bytes, and how long they wait.
    waits: (u64, Duration),
    made: LaneCaches,
}

impl<'a> Caches<'a> {
    /// Changed data in them may be so many bytes, and wait so long.
    pub(crate) fn new(
        spec: &'a PoolSpec,
        clock: Arc<dyn Clock>,
        waits: (u64, Duration),
    ) -> Caches<'a> {
        Caches { spec, clock, waits, made: LaneCaches::default() }
    }

    /// The clock of all that keeps something back.
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    /// Files in a cache, if one was asked for at that place.
    pub(crate) fn over(
        &mut self,
        here: FileCachePlace,
        fs: Arc<dyn FileSystem>,
    ) -> Result<Arc<dyn FileSystem>> {
        let asked = self.spec.write_back.file_cache.filter(|cache| cache.over == here);
        let Some(FileCache { mode, bytes, .. }) = asked else { return Ok(fs) };
        let made = self.make(fs, (mode, bytes), here.name().to_string())?;
        Ok(self.made.own.insert(made).cached.clone())
    }

    /// A lower's files in a cache, if one was asked for. Nothing is ever written to them.
    pub(crate) fn over_lower(
        &mut self,
        lower: &LowerSpec,
        fs: Arc<dyn FileSystem>,
    ) -> Result<Arc<dyn FileSystem>> {
        let Some(asked) = lower.cache else { return Ok(fs) };
        let how = (FileCacheMode::WriteThrough, asked.bytes);
        let made = self.make(fs, how, lower.label.clone())?;
        let cached = made.cached.clone();
        self.made.of_lowers.push(made);
        Ok(cached)
    }

    fn make(
        &self,
        fs: Arc<dyn FileSystem>,
        (mode, bytes): (FileCacheMode, Option<u64>),
        over: String,
    ) -> Result<LaneCache> {
        let bytes_limit = bytes.unwrap_or_else(|| share(self.spec));
        let mode_here = match mode {
            FileCacheMode::WriteBack => Mode::WriteBack,
            FileCacheMode::WriteThrough => Mode::WriteThrough,
        };
        let (dirty_bytes_limit, flush_interval) = self.waits;
        let clock = self.clock.clone();
        let settings =
            Settings { mode: mode_here, bytes_limit, dirty_bytes_limit, flush_interval, clock };
        let cached = Cached::new(fs, settings);
        let failed = |error| Failure::because(&over, "start its cache", error);
        let cached = Arc::new(cached.map_err(failed)?);
        Ok(LaneCache { cached, mode, bytes_limit, over })
    }

    /// What was made.
    pub(crate) fn made(self) -> LaneCaches {
        self.made
    }
}

/// What a cache may keep of which nothing was said: all of them share what the service may.
fn share(spec: &PoolSpec) -> u64 {
    let lowers = spec.lowers.iter().flat_map(LowerSpec::all);
    let of_lowers = lowers.filter(|lower| lower.cache.is_some()).count();
    let count = of_lowers + usize::from(spec.write_back.file_cache.is_some());
    (spec.cache_bytes_limit / count.max(1) as u64).max(BYTES_MIN)
}

/// The caches of a lane that runs.
#[derive(Default)]
pub(crate) struct LaneCaches {
    /// The one that was asked for beside those of lowers.
    own: Option<LaneCache>,
    of_lowers: Vec<LaneCache>,
}

impl LaneCaches {
    /// What statistics say of that which was asked for beside those of lowers.
    pub(crate) fn own(&self) -> Option<Value> {
        let LaneCache { mode, bytes_limit, over, .. } = self.own.as_ref()?;
        Some(json!({ "mode": mode.name(), "size_bytes": bytes_limit, "over": over }))
    }

    /// What statistics say of those of lowers.
    pub(crate) fn of_lowers(&self) -> Vec<Value> {
        let describe = |LaneCache { cached, bytes_limit, over, .. }: &LaneCache| {
            let Stats { pages, page_hits, page_misses, .. } = cached.stats();
            json!({
                "over": over,
                "size_bytes": bytes_limit,
                "pages": pages,
                "page_hits": page_hits,
                "page_misses": page_misses,
            })
        };
        self.of_lowers.iter().map(describe).collect()
    }

    /// A lane's counters, with those of its pages wherever they are.
    pub(crate) fn stats(&self, vfs: &Vfs) -> Stats {
        let own = vfs.stats();
        let Some(cache) = &self.own else { return own };
        let Stats { ops, dentry_hits, dentry_misses, dentries, inodes, .. } = own;
        Stats { ops, dentry_hits, dentry_misses, dentries, inodes, ..cache.cached.stats() }
    }
}
