//! In the service: a volume's file as a block device, with the tenant's ext4 on it.

use polylane_base::Clock;
use polylane_base::sync::Arc;
use polylane_block::cache::Cached;
use polylane_block::engine::Engine;
use polylane_block::file::{FileDevice, Files, Way};
use polylane_block::map::{Unit, UnitOptions};
use polylane_block::qos::governed::{Governed, Governor};
use polylane_ext4::{Ext4, Options};

use super::cache::{self, CacheSpec};
use super::stack::{Assembled, Stack};
use crate::failure::{Failure, Result, say};

/// An open volume.
pub(crate) struct Disk {
    /// The file system.
    pub(crate) fs: Arc<Ext4>,
    /// Whose turn it is on the host's device.
    pub(crate) governor: Arc<Governor>,
    engine: Arc<Engine>,
    file: Arc<FileDevice>,
    cache: Option<Arc<Cached>>,
}

impl Disk {
    /// Opens the volume that messages call `name`, cached as it says; replays its journal if need
    /// be.
    pub(crate) fn open(
        name: &str,
        files: Vec<Files>,
        cache: CacheSpec,
        clock: Arc<dyn Clock>,
        metadata_bytes_max: u64,
    ) -> Result<Disk> {
        let unit = Unit::start(&UnitOptions::default());
        let unit = unit.map_err(|error| Failure::because(name, "start its translation", error))?;
        let Assembled { device, engine, file, cache, .. } =
            Stack::assemble(files, Way::Ring, Some(unit), cache)?;
        let governor = Governor::new();
        let whole = Governed::new(device, governor.clone());
        let cache_blocks = usize::try_from(metadata_bytes_max / 4096).unwrap_or(usize::MAX);
        let options = Options { cache_blocks, ..Options::default() };
        let fs = Ext4::open(whole, clock, &options)
            .map_err(|error| Failure::failed(format!("{name}: cannot mount it: {error}")))?;
        if !fs.read_only_reasons.is_empty() {
            say(format_args!("{name}: read only: {}", fs.read_only_reasons.join(", ")));
        }
        Ok(Disk { fs: Arc::new(fs), governor, engine, file, cache })
    }

    /// Counters as JSON.
    pub(crate) fn stats(&self) -> serde_json::Value {
        let (totals, engine) = (self.file.totals(), self.engine.totals());
        serde_json::json!({
            "reads": totals.reads,
            "read_bytes": totals.read_bytes,
            "writes": totals.writes,
            "written_bytes": totals.written_bytes,
            "durable_writes": totals.durable_writes,
            "flushes": totals.flushes,
            "zeroings": totals.zeroings,
            "failed": totals.failed,
            "translations": engine.translations,
            "chunks_made_ahead": engine.made_ahead,
            "io_uring": totals.ring,
            "direct_io": totals.direct,
            "stopped": self.fs.is_stopped(),
            "cache": self.cache.as_deref().map(cache::stats),
        })
    }
}
