//! Where a volume's cache sees journals, for people.

use std::path::Path;

use serde::Serialize;

use super::list;
use crate::failure::{Failure, Result};

/// Where an attached volume's cache sees journals now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct JournalMap {
    /// Bytes of the volume.
    pub size_bytes: u64,
    /// First byte and end of each range.
    pub regions: Vec<(u64, u64)>,
}

/// Where an attached volume's cache sees journals now.
///
/// # Errors
/// It is not attached, or not cached.
pub fn journals(volume: &Path) -> Result<JournalMap> {
    let found = list()?.into_iter().find(|listed| listed.record.is(volume));
    let engine = found.and_then(|listed| Some(listed.stats?.get("engine")?.clone()));
    let engine = engine.ok_or_else(|| {
        Failure::failed(format!(
            "{}: is not attached: where its journal is, is known while it is in use",
            volume.display()
        ))
    })?;
    let regions = engine["cache"]["journal_regions"].clone();
    let regions = serde_json::from_value(regions).map_err(|_| {
        Failure::failed(format!(
            "{}: is not cached: 'polylane attach --cache pdc' looks for journals",
            volume.display()
        ))
    })?;
    Ok(JournalMap { size_bytes: engine["size_bytes"].as_u64().unwrap_or(0), regions })
}
