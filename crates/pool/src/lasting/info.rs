//! `polylane pool info`: a pool that lasts, with the file-system table of each of its services.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use polylane_volume as volume;
use serde_json::{Value, json};

use super::files::{OpenFiles, open_files};
use super::mount::POOL_DEFAULT;
use super::pools::{lanes, named_by_lanes};
use super::table::Entry;
use super::tables::Tables;
use crate::failure::{Result, say};
use crate::mountinfo;
use crate::names;
use crate::pool_record::{self, PoolRecord};
use crate::stats;

/// What is to be known of a pool: its limits, groups, processes, services.
///
/// # Errors
/// One line: no such pool, a mount table cannot be read.
pub fn info(name: &str) -> Result<Value> {
    let (state, dir) = (volume::state_dir()?, names::runtime_dir());
    pool_record::check_name(name)?;
    let found = PoolRecord::load(&state, name)?;
    let mut entries = Vec::new();
    if dir.exists() {
        let (tables, _) = Tables::lock_cleared(&dir)?;
        entries = tables.of_pool(name)?;
    }
    let record = match found {
        // Nobody has to make the pool of the lanes that name none.
        None if name == POOL_DEFAULT && !entries.is_empty() => {
            PoolRecord { name: name.to_string(), ..PoolRecord::default() }
        }
        Some(record) => record,
        None => PoolRecord::expect(&state, name)?,
    };
    let devices: Vec<u64> = entries.iter().map(|entry| entry.device).collect();
    let (files, are_all) = open_files(&devices);
    let services = lanes(&dir, name).into_iter().map(|lane| service(&lane, &entries, &files));
    let groups = record.groups();
    Ok(json!({
        "pool": name,
        "cpus": record.cpus.as_ref().map(ToString::to_string),
        "memory": record.memory,
        "pids": record.pids,
        "weight": record.weight,
        "dirty_limit": record.dirty_limit,
        "ceph": record.client,
        "user": record.user,
        "namespaces": record.namespaces,
        "network_class": groups.network_class(),
        "groups": groups.made(),
        "processes": groups.processes(),
        "services": services.collect::<Vec<Value>>(),
        // Not so: looking through all descriptors of the host takes too long.
        "open_files_counted": are_all,
    }))
}

/// A service and its file-system table.
fn service(lane: &str, entries: &[Entry], files: &[OpenFiles]) -> Value {
    let number = names::lane_number(lane).map(|(_, number)| number);
    let own = entries.iter().filter(|entry| Some(entry.service) == number);
    let instances: Vec<Value> = own.map(|entry| instance(entry, files)).collect();
    let running = stats::collect(Some(lane)).unwrap_or_default().pop().unwrap_or_default();
    json!({
        "lane": lane,
        "state": running["state"],
        "supervisor": running["pid"],
        "service_pid": running["service_pid"],
        "mount": running["mount"],
        "kind": running["lane"],
        "cache": running["service"]["cache"],
        "instances": instances,
    })
}

/// A line of the file-system table. What was opened through another mount of the same file system,
/// as a container's, is counted for the first instance.
fn instance(entry: &Entry, files: &[OpenFiles]) -> Value {
    let seen = mountinfo::seen_by(&entry.supervisor.to_string());
    let own = seen.iter().rfind(|seen| seen.place == entry.path && seen.device == entry.device);
    let of_others = |mount: u64| entry.instance == 0 && !seen.iter().any(|seen| seen.id == mount);
    let is_own = |one: &&OpenFiles| {
        one.device == entry.device
            && (own.is_some_and(|own| own.id == one.mount) || of_others(one.mount))
    };
    let users: Vec<Value> = files
        .iter()
        .filter(is_own)
        .map(|one| json!({ "pid": one.pid, "command": one.command, "files": one.count }))
        .collect();
    let open: u64 = files.iter().filter(is_own).map(|one| one.count).sum();
    json!({
        "path": OsStr::from_bytes(&entry.path).to_string_lossy(),
        "source": OsStr::from_bytes(&entry.source).to_string_lossy(),
        "instance": entry.instance,
        "count": entry.count,
        "flags": own.map(|own| own.options.split(',').collect::<Vec<_>>()),
        "open_files": open,
        "users": users,
    })
}

/// Pools that last and have no lane now, as `pool ls` shows them. Records that cannot be read are
/// said.
///
/// # Errors
/// One line: the directory of the records cannot be read.
pub fn idle_pools() -> Result<Vec<Value>> {
    // Without a state directory there are none.
    let Ok(state) = volume::state_dir() else { return Ok(Vec::new()) };
    let dir = names::runtime_dir();
    let (mut pools, unread) = PoolRecord::all(&state)?;
    unread.iter().for_each(say);
    // There may be many more pools than lanes.
    let named = named_by_lanes(&dir);
    pools.retain(|pool| !named.contains(&pool.name) || lanes(&dir, &pool.name).is_empty());
    let idle = |pool: &PoolRecord| {
        json!({
            "pool": pool.name,
            "state": "idle",
            "cpus": pool.cpus.as_ref().map(ToString::to_string),
            "weight": pool.weight,
        })
    };
    Ok(pools.iter().map(idle).collect())
}
