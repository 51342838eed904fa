//! How a volume is cached, as sidecars and specifications keep it, and the devices that make it so.

use std::fmt::{self, Display};
use std::str::FromStr;

use polylane_base::size::ByteSize;
use polylane_base::sync::Arc;
use polylane_block::BlockDevice;
use polylane_block::cache::Cached;
use polylane_block::cache::host::HostStore;
use polylane_block::cache::own::{self, OwnStore};
pub use polylane_block::cache::{Mode, StoreKind};
use polylane_block::file::{FileDevice, Files, Way};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::host::SECTOR_BYTES;

/// How a volume is cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheSpec {
    /// The mode.
    #[serde(serialize_with = "to_text", deserialize_with = "from_text")]
    pub mode: Mode,
    /// Where cached blocks lie.
    #[serde(serialize_with = "to_text", deserialize_with = "from_text")]
    pub store: StoreKind,
    /// Memory in bytes of a cache of its own.
    pub bytes: Option<u64>,
}

fn to_text<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

fn from_text<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: FromStr<Err = String>,
    D: Deserializer<'de>,
{
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

impl fmt::Display for CacheSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.mode.has_cache(), self.bytes) {
            (false, _) => write!(f, "{}", self.mode),
            (true, None) => write!(f, "{}, {}", self.mode, self.store),
            (true, Some(bytes)) => {
                write!(f, "{}, {}, {}", self.mode, self.store, ByteSize(bytes))
            }
        }
    }
}

impl CacheSpec {
    /// Whether blocks go through the host's page cache.
    pub(crate) fn in_host(&self) -> bool {
        self.mode.has_cache() && self.store == StoreKind::Host
    }

    /// A cache in front of a whole volume, where that is the place for it.
    pub(crate) fn over(&self, whole: &Arc<dyn BlockDevice>) -> Option<Arc<Cached>> {
        match (self.mode, self.store) {
            (Mode::Directsync, _) => {
                Some(Cached::new(HostStore::new(whole.clone(), whole.clone(), false), self.mode))
            }
            (mode, StoreKind::Own) if mode.has_cache() => {
                let bytes = self.bytes.unwrap_or(own::BYTES_DEFAULT);
                Some(Cached::new(OwnStore::new(whole.clone(), bytes), mode))
            }
            _ => None,
        }
    }
}

/// A file through the page cache, beside its device past it. Its flushes go through an open file
/// through which no durable write goes, so that they learn of every page that was lost: where the
/// device past it makes durable writes of its own (`pdc`), that is the one with the lock.
pub(crate) fn through_page_cache(
    files: &Files,
    way: Way,
    mode: Mode,
) -> std::io::Result<Arc<FileDevice>> {
    let sync = if mode == Mode::Pdc { &files.lock } else { &files.io };
    let files = Files {
        io: files.plain.try_clone()?,
        plain: sync.try_clone()?,
        lock: files.lock.try_clone()?,
    };
    Ok(FileDevice::open(files, way)?)
}

/// What a cache did, as JSON.
pub fn stats(cache: &Cached) -> serde_json::Value {
    let totals = cache.totals();
    let ratio =
        totals.hits_and_misses.map(|(hits, misses)| hits as f64 / (hits + misses).max(1) as f64);
    let bytes = |sectors: u64| sectors.saturating_mul(SECTOR_BYTES);
    let regions: Vec<[u64; 2]> =
        totals.regions.iter().map(|region| [region.first, region.end]).collect();
    serde_json::json!({
        "hit_ratio": ratio,
        "hit_bytes": totals.hits_and_misses.map(|(hits, _)| bytes(hits)),
        "missed_bytes": totals.hits_and_misses.map(|(_, misses)| bytes(misses)),
        "written_bytes": totals.written_bytes,
        "bypassed_bytes": totals.bypassed_bytes,
        "forgotten_bytes": totals.forgotten_bytes,
        "cold_bytes": totals.cold_bytes,
        "journal_regions": regions,
    })
}
