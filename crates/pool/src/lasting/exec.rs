//! `polylane exec`: a command in a pool that lasts.
//!
//! This process itself enters the pool's groups and executes COMMAND, so there is nothing that a
//! kill could leave behind.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use polylane_ipc::handshake::LANES_MAX;
use polylane_volume as volume;

use super::env;
use super::mount::POOL_DEFAULT;
use super::tables::Tables;
use crate::cgroup::Leaf;
use crate::failure::{Failure, Result};
use crate::init;
use crate::names;
use crate::pool_record::PoolRecord;
use crate::run;

/// Executes COMMAND in the pool; returns only when that cannot be, with the exit status.
///
/// # Errors
/// One line: no such pool, no COMMAND.
pub fn exec(pool: &str, command: &[OsString]) -> Result<u8> {
    let Some((name, arguments)) = command.split_first() else {
        return Err(Failure::usage("no COMMAND: write it after '--'"));
    };
    let lanes = {
        // 'pool rm' does not get in between.
        let tables = Tables::lock(&names::runtime_dir())?;
        join(&PoolRecord::expect(&volume::state_dir()?, pool)?)?;
        lanes(&tables, pool)?
    };
    let mut program = std::process::Command::new(name);
    program.args(arguments);
    // One that ends just now, or has no fast way, is left out.
    let fit = lanes.iter().filter(|path| env::env(std::slice::from_ref(path)).is_ok());
    let fit: Vec<PathBuf> = fit.take(LANES_MAX).cloned().collect();
    if let Ok(lanes) = env::env(&fit) {
        program.envs(lanes.variables());
    }
    let error = program.exec();
    Ok(init::say_not_started(name, &error))
}

/// Has this process, and those that it starts, count as the pool's; `None`: lanes' own pool. False:
/// it was not made, and has no groups.
///
/// # Errors
/// One line: no such pool.
pub fn enter(pool: Option<&str>) -> Result<bool> {
    let _tables = Tables::lock(&names::runtime_dir())?;
    let state = volume::state_dir()?;
    let record = match pool {
        Some(pool) if pool != POOL_DEFAULT => Some(PoolRecord::expect(&state, pool)?),
        _ => PoolRecord::load(&state, POOL_DEFAULT)?,
    };
    record.as_ref().map_or(Ok(()), join)?;
    Ok(record.is_some())
}

/// Enters the pool's groups and CPUs; the caller holds the lock of the tables.
fn join(record: &PoolRecord) -> Result<()> {
    let mut groups = record.groups();
    groups.create();
    groups.attach(std::process::id(), Leaf::Tenant);
    run::pin(&run::pool_cpus(record.cpus.as_ref())?)?;
    groups.say_not_enforced();
    Ok(())
}

/// The mount paths of the lanes whose fast way COMMAND gets, the one that the working directory is
/// in first.
fn lanes(tables: &Tables, pool: &str) -> Result<Vec<PathBuf>> {
    let all = tables.all()?.into_iter();
    let own = all.filter(|mount| mount.pool == pool && mount.entry.instance == 0);
    let mut paths: Vec<PathBuf> =
        own.map(|mount| Path::new(OsStr::from_bytes(&mount.entry.path)).to_path_buf()).collect();
    let here = std::env::current_dir().unwrap_or_default();
    paths.sort();
    let within = |path: &PathBuf| here.starts_with(path).then(|| path.components().count());
    paths.sort_by_key(|path| std::cmp::Reverse(within(path)));
    Ok(paths)
}
