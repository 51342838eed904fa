//! `polylane exec`: a command in a pool that lasts. `polylane run`, as the tables see it.
//!
//! This process itself enters the pool's groups and executes COMMAND, so there is nothing that a
//! kill could leave behind.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use polylane_ipc::handshake::LANES_MAX;
use polylane_sys::ns;
use polylane_volume as volume;

use super::env;
use super::mount::POOL_DEFAULT;
use super::tables::Tables;
use crate::cgroup::{Leaf, Plan};
use crate::failure::{Failure, Result};
use crate::init;
use crate::names::{self, PoolName};
use crate::pool_namespaces::{self, NsKind};
use crate::pool_record::PoolRecord;
use crate::run::{self, RunOptions};
use crate::runtime_groups;

/// Runs COMMAND in a pool; its exit status, or 128 + n when signal n ended it.
///
/// # Errors
/// One line and exit status 1 or 2 when COMMAND could not be started at all; nothing is left
/// behind.
pub fn run(options: RunOptions) -> Result<u8> {
    run::run(options, take_lane)
}

fn take_lane(dir: &Path, pool: &str) -> Result<PoolName> {
    Tables::lock(dir)?.take_unlisted(pool)
}

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
        let lanes = lanes(&tables, pool)?;
        let Membership { groups, cpus, _tables, .. } =
            Membership::of(&PoolRecord::expect(&volume::state_dir()?, pool)?, tables)?;
        join(groups, &cpus).map_err(|error| Failure::because("CPUs", "stay on them", error))?;
        lanes
    };
    let mut program = Command::new(name);
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

/// A pool that a program is to count as, until it is started: the pool is not removed meanwhile.
pub struct Membership {
    groups: Plan,
    cpus: Vec<u32>,
    name: String,
    namespaces: Vec<NsKind>,
    _tables: Tables,
}

/// The pool of that name, for programs that are started; `None` as `pool`: lanes' own pool. `None`:
/// that was not made, and has no groups.
///
/// # Errors
/// One line: no such pool, no such CPUs.
pub fn membership(pool: Option<&str>) -> Result<Option<Membership>> {
    let tables = Tables::lock(&names::runtime_dir())?;
    let state = volume::state_dir()?;
    let record = match pool {
        Some(pool) if pool != POOL_DEFAULT => Some(PoolRecord::expect(&state, pool)?),
        _ => PoolRecord::load(&state, POOL_DEFAULT)?,
    };
    record.map(|record| Membership::of(&record, tables)).transpose()
}

/// Where a runtime, which `pool` is given to or which is in none, makes control groups called
/// `name`.
pub fn runtime_groups(pool: Option<&Membership>, name: &str) -> Vec<PathBuf> {
    runtime_groups::places(pool.map(|pool| &pool.groups), name)
}

/// Ends whatever is in control groups, and removes them; those that are gone are no error.
pub fn end_groups(dirs: &[PathBuf]) {
    runtime_groups::end(dirs);
}

impl Membership {
    fn of(record: &PoolRecord, tables: Tables) -> Result<Membership> {
        let mut groups = record.groups();
        groups.create();
        let cpus = run::pool_cpus(record.cpus.as_ref())?;
        let cpus = cpus.as_slice().iter().map(|&cpu| cpu as u32).collect();
        let (name, namespaces) = (record.name.clone(), record.namespaces.clone());
        Ok(Membership { groups, cpus, name, namespaces, _tables: tables })
    }

    /// The pool's namespaces, each by the file that is one; those that are not there are made.
    ///
    /// # Errors
    /// One line: they cannot be made.
    pub fn namespaces(&self) -> Result<Vec<(NsKind, PathBuf)>> {
        pool_namespaces::make(&names::runtime_dir(), &self.name, &self.namespaces)
    }

    /// Has a program, and those that it starts, count as the pool's; the process that starts it
    /// does not. What of the pool's limits nothing enforces, the program's process says.
    pub fn give(&self, program: &mut Command) {
        let (groups, cpus) = (self.groups.clone(), self.cpus.clone());
        ns::before_exec(program, move || join(groups.clone(), &cpus));
    }
}

/// Enters a pool's groups and CPUs.
fn join(mut groups: Plan, cpus: &[u32]) -> io::Result<()> {
    groups.attach(std::process::id(), Leaf::Tenant);
    polylane_sys::cpu::pin(cpus)?;
    groups.say_not_enforced();
    Ok(())
}

/// The mount paths of the lanes whose fast way COMMAND gets, the one that the working directory is
/// in first.
fn lanes(tables: &Tables, pool: &str) -> Result<Vec<PathBuf>> {
    let all = tables.of_pool(pool)?.into_iter();
    let own = all.filter(|entry| entry.instance == 0);
    let mut paths: Vec<PathBuf> =
        own.map(|entry| Path::new(OsStr::from_bytes(&entry.path)).to_path_buf()).collect();
    let here = std::env::current_dir().unwrap_or_default();
    paths.sort();
    let within = |path: &PathBuf| here.starts_with(path).then(|| path.components().count());
    paths.sort_by_key(|path| std::cmp::Reverse(within(path)));
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lasting::table::Entry;

    /// Else the dead lane's entry would pass for a living one's as long as the run lives.
    #[test]
    fn a_run_takes_no_number_that_a_dead_lane_is_listed_with() {
        let dir = tempfile::tempdir().expect("tempdir");
        let dir = dir.path().join("run");
        let dead = Entry { path: b"/m".into(), service: 1, count: 1, ..Entry::default() };
        Tables::lock(&dir).and_then(|tables| tables.put("web", &dead)).expect("put");
        let name = take_lane(&dir, "web").expect("a lane");
        assert_eq!(name.as_str(), "web@2");
        let left = Tables::lock(&dir).expect("locked").all().expect("readable");
        assert_eq!(left.len(), 1, "its mount may be in another mount namespace");
        name.remove_files();
    }
}
