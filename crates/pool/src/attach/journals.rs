//! Where a volume's cache sees journals, for people.

use std::fs;
use std::path::{Path, PathBuf};

use polylane_volume::{self as volume, Sidecar};
use serde::Serialize;

use super::{Listed, list};
use crate::failure::{Failure, Result};

/// Where a volume's cache sees journals now, or saw them when the volume was attached last.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct JournalMap {
    /// The volume's file.
    #[serde(with = "polylane_volume::path_text::one")]
    pub volume: PathBuf,
    /// Bytes of the volume.
    pub size_bytes: u64,
    /// It is not attached: this is what was kept at the end of its last use.
    pub of_last_use: bool,
    /// First byte and end of each range.
    pub regions: Vec<(u64, u64)>,
}

/// Where a volume's cache sees journals; of one that is not attached what its sidecar keeps of its
/// last use.
///
/// # Errors
/// It does not exist, is attached without a cache, or is not attached and nothing is kept.
pub fn journals(volume: &Path) -> Result<JournalMap> {
    fs::metadata(volume).map_err(|error| Failure::path(volume, "open it", error))?;
    match list()?.into_iter().find(|listed| listed.record.is(volume)) {
        Some(listed) if listed.alive => now(volume, listed),
        Some(dead) => last(&dead.record.volume),
        None => last(volume),
    }
}

fn now(volume: &Path, listed: Listed) -> Result<JournalMap> {
    let failed = |why: &str| Failure::failed(format!("{}: {why}", volume.display()));
    let engine = listed.stats.and_then(|stats| Some(stats.get("engine")?.clone()));
    let engine = engine.ok_or_else(|| failed("its engine does not answer"))?;
    let regions = engine["cache"]["journal_regions"].clone();
    let regions = serde_json::from_value(regions)
        .map_err(|_| failed("is not cached: 'polylane attach --cache pdc' looks for journals"))?;
    Ok(JournalMap {
        volume: listed.record.volume,
        size_bytes: engine["size_bytes"].as_u64().unwrap_or(0),
        of_last_use: false,
        regions,
    })
}

fn last(volume: &Path) -> Result<JournalMap> {
    let regions = Sidecar::load(volume)?.journals;
    if regions.is_empty() {
        return Err(Failure::failed(format!(
            "{}: is not attached, and no journal is known of its last use: 'polylane attach \
             --cache pdc' looks for them",
            volume.display()
        )));
    }
    let size_bytes = volume::info(volume)?.size_bytes;
    Ok(JournalMap { volume: volume.to_path_buf(), size_bytes, of_last_use: true, regions })
}
