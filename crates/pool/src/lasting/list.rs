//! `polylane mount` without arguments: what is mounted.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use polylane_base::shown::Shown;
use polylane_volume as volume;
use serde_json::{Value, json};

use super::places::{Sight, Views};
use super::table::Table;
use super::tables::{Mount, Tables};
use crate::failure::{Result, say};
use crate::names;

/// All mounts of this user's pools, by pool, service and instance. What cannot be read of them is
/// said.
///
/// # Errors
/// The tables cannot be locked.
pub fn list() -> Result<Vec<Value>> {
    let dir = names::runtime_dir();
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let (tables, _) = Tables::lock_cleared(&dir)?;
    let (mut mounts, mut views) = (tables.all()?, Views::default());
    tables.unreadable().for_each(say);
    drop(tables);
    for mount in &mut mounts {
        // Directories above it may have another name by now, or it was moved.
        if let Sight::At(place) = views.now_at(&mount.entry) {
            mount.entry.path = place;
        }
    }
    Ok(mounts.iter().map(describe).collect())
}

/// What ends a lane, for a person: the unmount of its first path, or the end of its run. For
/// `volume::end_lanes_by`. A refusal is made under the lock of the tables as well, so this reads
/// without it: slots have sums.
pub fn end_of(lane: &str) -> Option<String> {
    let containers = volume::containers_dir().unwrap_or_default();
    end_in(&names::runtime_dir(), &containers, lane)
}

fn end_in(dir: &Path, containers: &Path, lane: &str) -> Option<String> {
    let (pool, service) = names::lane_number(lane).unwrap_or((lane, 0));
    let table = Table::open(&Table::path(dir, pool)).ok()?;
    let entries = table.map(|table| table.entries()).unwrap_or_default();
    let of_lane = entries.into_iter().filter(|entry| entry.service == service);
    Some(match of_lane.min_by_key(|entry| entry.instance) {
        Some(entry) if entry.is_ground => {
            format!("'polylane mount' lists the lanes of pool '{pool}', one of which has it")
        }
        Some(entry) => {
            let path = Path::new(OsStr::from_bytes(&entry.path));
            match path.strip_prefix(containers).ok().and_then(|below| below.iter().next()) {
                Some(id) => format!("polylane container rm {} ends it", Shown::new(id)),
                None => format!("polylane umount {} ends it", Shown::new(path)),
            }
        }
        None => format!("end the 'polylane run' of pool '{pool}' first"),
    })
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
        "idmap": entry.id_maps,
        "kernel_cache": entry.kernel_cache,
        "access_times": entry.access_times.name(),
        "state": if entry.starting { "starting" } else { "serving" },
        "supervisor": entry.supervisor,
    })
}

#[cfg(test)]
mod tests {
    use super::super::table::Entry;
    use super::*;

    #[test]
    fn a_lane_is_ended_where_it_is_mounted_and_that_of_a_run_with_the_run() {
        let dir = tempfile::tempdir().expect("tempdir");
        let tables = Tables::lock(dir.path()).expect("lock");
        let paths = [(2, 1, "/m/second"), (2, 0, "/m/fir\nst"), (3, 0, "/c/a1b2/mounts/0")];
        for (service, instance, path) in paths {
            let entry = Entry { path: path.into(), service, instance, ..Entry::default() };
            tables.put("web", &entry).expect("put");
        }
        // Read under the lock, as by a mount that meets a volume in use.
        let end = |lane| end_in(dir.path(), Path::new("/c"), lane).expect("words");
        assert_eq!(end("web@2"), "polylane umount $'/m/fir\\nst' ends it");
        assert_eq!(end("web@3"), "polylane container rm a1b2 ends it");
        for (lane, pool) in [("web@1", "web"), ("web", "web"), ("db@1", "db")] {
            assert_eq!(end(lane), format!("end the 'polylane run' of pool '{pool}' first"));
        }
    }
}
