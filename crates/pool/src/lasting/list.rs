//! `polylane mount` without arguments: what is mounted.

use serde_json::{Value, json};

use super::tables::{Mount, Tables};
use crate::failure::Result;
use crate::names;

/// All mounts of this user's pools, by pool, service and instance.
///
/// # Errors
/// A mount table cannot be read.
pub fn list() -> Result<Vec<Value>> {
    let dir = names::runtime_dir();
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let tables = Tables::lock(&dir)?;
    tables.clear_dead()?;
    Ok(tables.all()?.iter().map(describe).collect())
}

/// A mount as people and programs are told of it.
pub(crate) fn describe(mount: &Mount) -> Value {
    let entry = &mount.entry;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    json!({
        "path": text(&entry.path),
        "source": text(&entry.source),
        "map_users": text(&entry.users),
        "pool": mount.pool,
        "service": entry.service,
        "instance": entry.instance,
        "count": entry.count,
        "read_only": entry.read_only,
        "state": if entry.starting { "starting" } else { "serving" },
        "supervisor": entry.supervisor,
    })
}
