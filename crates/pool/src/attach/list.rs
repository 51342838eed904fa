//! Attachments as lists and statistics show them.

use std::time::Duration;

use polylane_base::sync::thread;
use polylane_volume::path_text;
use serde::Serialize;

use super::message::{FromKeeper, ToKeeper};
use super::record::{self, Record};
use super::{ANSWER_TIME_MAX, ask};
use crate::failure::Result;
use crate::names::PoolName;

/// An attachment, as a list shows it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Listed {
    /// What is recorded.
    #[serde(flatten)]
    pub record: Record,
    /// Its keeper lives.
    pub alive: bool,
    /// Counters, of one that lives.
    pub stats: Option<serde_json::Value>,
}

/// All attachments of this user, by volume.
///
/// # Errors
/// The state directory cannot be used.
pub fn list() -> Result<Vec<Listed>> {
    listed(ANSWER_TIME_MAX)
}

/// [`list`], without the counters of those that take longer than `limit`.
fn listed(limit: Duration) -> Result<Vec<Listed>> {
    let dir = record::dir()?;
    let look = |record: Record| {
        let stats = match ask(&dir, &record.id, &ToKeeper::Stats, limit) {
            Some(FromKeeper::Stats(stats)) => Some(stats),
            _ => None,
        };
        let alive = PoolName::take_over(&dir, &record.id).is_err();
        Listed { record, alive, stats }
    };
    // All are asked at the same time: some may not answer.
    let mut listed: Vec<Listed> = thread::scope(|scope| {
        let asked: Vec<_> =
            record::all(&dir).into_iter().map(|record| scope.spawn(|| look(record))).collect();
        asked.into_iter().filter_map(|asked| asked.join().ok()).collect()
    });
    listed.sort_by(|one, other| one.record.volume.cmp(&other.record.volume));
    Ok(listed)
}

/// What the attachments of this user did, in the form that pools say it in. One that does not
/// answer within `limit` is left out.
pub(crate) fn statistics(limit: Duration) -> Vec<serde_json::Value> {
    // Without a state directory nothing is attached.
    let listed = listed(limit).unwrap_or_default();
    listed.into_iter().filter_map(Listed::said_as_by_pools).collect()
}

impl Listed {
    fn said_as_by_pools(self) -> Option<serde_json::Value> {
        let Listed { record, stats, .. } = self;
        let mut stats = stats?;
        let mut engine = stats.get_mut("engine")?.take();
        let share = engine.as_object_mut()?.remove("share");
        Some(serde_json::json!({
            "attachment": path_text::json(record.device.as_ref().unwrap_or(&record.volume)),
            "volume": path_text::json(&record.volume),
            "via": record.via,
            "pid": record.pid,
            "service_restarts": stats["engine_restarts"],
            "share": stats["share"],
            "service": { "volume": engine, "share": share },
        }))
    }
}
