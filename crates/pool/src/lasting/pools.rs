//! `polylane pool create`, `set` and `rm`: pools that last.
//!
//! A pool is its record (`pool_record`); its control groups are made from that. Each command holds
//! the lock of the mount tables, and each step leaves a pool that the next command can use:
//!
//! | command | steps | a kill after a step leaves |
//! |---|---|---|
//! | `create` | record, groups | a pool, whose groups the next process in it makes |
//! | `set` | record, groups, lanes | former limits in some parts, until the next `set` |
//! | `rm` | groups, namespaces, record | the pool, unused, which `rm` removes |

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use polylane_base::shown::Shown;
use polylane_volume as volume;
use polylane_volume::cpus::CpuList;

use super::mount::POOL_DEFAULT;
use super::tables::Tables;
use crate::ceph::ClientOptions;
use crate::cgroup;
use crate::failure::{Failure, Result};
use crate::names::{self, PoolName};
use crate::pool_namespaces::{self, NsKind};
use crate::pool_record::{self, PoolRecord};
use crate::run::{self, DIRTY_BYTES_MIN, MEMORY_BYTES_MIN};
use crate::share::{WEIGHTS, Wanted};
use crate::{set, upgrade};

/// Fewest processes of a pool: below this no lane fits.
const PIDS_MIN: u64 = 32;

/// Most pools that one member of the daemon's group has made.
const MEMBER_POOLS_MAX: usize = 64;

/// CPUs that a pool is to have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PoolCpus {
    /// All: the limit is lifted.
    All,
    /// These.
    These(CpuList),
}

impl FromStr for PoolCpus {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "all" => Ok(PoolCpus::All),
            list => list.parse().map(PoolCpus::These),
        }
    }
}

impl PoolCpus {
    fn list(&self) -> Option<&CpuList> {
        match self {
            PoolCpus::All => None,
            PoolCpus::These(list) => Some(list),
        }
    }
}

/// What is to be changed of a pool; 0 lifts a limit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PoolChange {
    /// Its CPUs.
    pub cpus: Option<PoolCpus>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Its share, 1–10000.
    pub weight: Option<u32>,
    /// Most changed bytes of a lane that wait to be written.
    pub dirty_limit: Option<u64>,
    /// Settings of the clients of its lanes on CephFS.
    pub client: ClientOptions,
}

impl PoolChange {
    /// Refuses what no pool can have.
    fn check(&self) -> Result<()> {
        let usage = |line: &str| Err(Failure::usage(line));
        if let Some(weight) = self.weight.filter(|weight| !WEIGHTS.contains(weight)) {
            return Err(Failure::usage(format!("--weight {weight}: must be 1 to 10000")));
        }
        let below =
            |value: Option<u64>, least| value.is_some_and(|value| (1..least).contains(&value));
        if below(self.memory, MEMORY_BYTES_MIN) {
            return usage("--memory: too small: at least 16M are needed");
        }
        if below(self.pids, PIDS_MIN) {
            return Err(Failure::usage(format!("--pids: at least {PIDS_MIN} are needed")));
        }
        if below(self.dirty_limit, DIRTY_BYTES_MIN) {
            return usage("--dirty-limit: at least 1M");
        }
        run::pool_cpus(self.cpus.as_ref().and_then(PoolCpus::list)).map(drop)
    }

    /// The pool with these changes.
    fn apply(&self, record: PoolRecord) -> Result<PoolRecord> {
        let or = |new: Option<u64>, old: Option<u64>| new.or(old).filter(|&value| value > 0);
        let changed = PoolRecord {
            cpus: self.cpus.as_ref().map_or(record.cpus, |cpus| cpus.list().cloned()),
            memory: or(self.memory, record.memory),
            pids: or(self.pids, record.pids),
            weight: self.weight.or(record.weight),
            dirty_limit: or(self.dirty_limit, record.dirty_limit),
            client: self.client.or(record.client).without_zeros(),
            ..record
        };
        let cache = run::cache_bytes_limit(changed.memory);
        changed.client.check(cache)?;
        match changed.dirty_limit.is_some_and(|bytes| bytes > cache) {
            true => Err(Failure::usage(
                "--dirty-limit: at most a quarter of the pool's memory".to_string(),
            )),
            false => Ok(changed),
        }
    }
}

/// How a pool is to be made.
#[derive(Clone, Debug, Default)]
pub struct Making {
    /// Kinds of namespaces that its containers have together.
    pub namespaces: Vec<NsKind>,
    /// One that is there is no failure: its limits are set.
    pub once: bool,
    /// The member of the daemon's group who asks, if the daemon's user does not.
    pub member: Option<u32>,
}

/// Makes a pool that lasts.
///
/// # Errors
/// One line: the name is none or taken, no pool can have such a limit, the record cannot be
/// written; a member of the daemon's group may not.
pub fn create(name: &str, limits: &PoolChange, making: Making) -> Result<()> {
    let Making { mut namespaces, once, member } = making;
    pool_record::check_name(name)?;
    limits.check()?;
    if !namespaces.is_empty() && crate::user_namespace::rootless().is_some() {
        return Err(Failure::failed(
            "--ns: namespaces of a pool are its containers', and those are root's: leave it out",
        ));
    }
    namespaces.sort();
    namespaces.dedup();
    let (state, dir) = (volume::state_dir()?, names::runtime_dir());
    let (tables, _) = Tables::lock_cleared(&dir)?;
    let there = PoolRecord::load(&state, name)?;
    refuse_member(&state, name, there.as_ref(), member)?;
    if let Some(there) = there {
        if once {
            refuse_other_namespaces(&there, &namespaces)?;
        }
        if once && member.is_none() && there.member.is_some() {
            // The daemon's user counts on it from now on.
            PoolRecord { member: None, ..there }.save(&state)?;
        }
        if !once {
            return Err(Failure::failed(format!(
                "pool '{name}': exists: change it with 'polylane pool set {name}', or remove it \
                 with 'polylane pool rm {name}'"
            )));
        }
        let device = Wanted { weight: limits.weight, ..Wanted::default() };
        return match *limits == PoolChange::default() {
            true => Ok(()),
            false => store_change(tables, limits, device, (&state, name)),
        };
    }
    // A run that has a pool of this name for itself.
    PoolName::take_over(&dir, name)?;
    let name = name.to_string();
    let new = PoolRecord { name, namespaces, member, ..PoolRecord::default() };
    let mut record = limits.apply(new)?;
    if crate::user_namespace::rootless().is_none() {
        record.user = Some(PoolRecord::free_user(&state)?);
    }
    record.save(&state)?;
    make_groups(&record);
    Ok(())
}

/// Refuses to leave a pool with namespaces that are not those which were asked for, where any were:
/// they cannot be changed.
fn refuse_other_namespaces(there: &PoolRecord, wanted: &[NsKind]) -> Result<()> {
    if wanted.is_empty() || there.namespaces == wanted {
        return Ok(());
    }
    let names = |kinds: &[NsKind]| match kinds {
        [] => "no namespaces".to_string(),
        kinds => kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(","),
    };
    Err(Failure::failed(format!(
        "pool '{name}': has {has}, not {asked}: remove it first with 'polylane pool rm {name}', or \
         ask for no others",
        name = there.name,
        has = names(&there.namespaces),
        asked = names(wanted),
    )))
}

/// Refuses a member of the daemon's group what is the daemon's user's: pools that no member had
/// made, that of all lanes without one, and more pools than a member may have.
fn refuse_member(
    state: &Path,
    name: &str,
    there: Option<&PoolRecord>,
    member: Option<u32>,
) -> Result<()> {
    let Some(member) = member else { return Ok(()) };
    let refused = |why: &str| Err(Failure::failed(format!("pool '{name}': {why}")));
    match there {
        Some(pool) if pool.member.is_some() => Ok(()),
        Some(_) => refused("no member of the daemon's group had it made: none changes it"),
        None if name == POOL_DEFAULT => refused(
            "has the lanes of all who name no pool: no member of the daemon's group makes it",
        ),
        None => {
            let (pools, _) = PoolRecord::all(state)?;
            let own = pools.iter().filter(|pool| pool.member == Some(member)).count();
            match own < MEMBER_POOLS_MAX {
                true => Ok(()),
                false => Err(Failure::failed(format!(
                    "pool '{name}': user {member} has {own} pools already: remove one first"
                ))),
            }
        }
    }
}

fn make_groups(record: &PoolRecord) {
    let mut groups = record.groups();
    groups.create();
    groups.say_not_enforced();
}

/// Changes a pool: one that lasts with all its lanes, or the lane of a run.
///
/// # Errors
/// One line: no such pool, a limit that no pool can have, nobody can have what is asked for of a
/// device beside what was set before.
pub fn change(name: &str, change: &PoolChange, device: Wanted) -> Result<()> {
    let (state, dir) = (volume::state_dir()?, names::runtime_dir());
    let device = Wanted { weight: change.weight, ..device };
    let record = || names::is_name(name).then(|| PoolRecord::load(&state, name)).transpose();
    if record()?.flatten().is_none() {
        let of_pool = PoolChange { weight: None, ..change.clone() } != PoolChange::default();
        return match of_pool {
            true => PoolRecord::expect(&state, name).map(drop),
            false => set::set(name, device),
        };
    }
    if *change == PoolChange::default() && device == Wanted::default() {
        return Err(Failure::usage(format!("pool '{name}': say what to change, as --weight N")));
    }
    change.check()?;
    store_change(Tables::lock(&dir)?, change, device, (&state, name))
}

/// Changes the pool as it is now: no other command changes it as long as the tables are locked.
fn store_change(
    tables: Tables,
    change: &PoolChange,
    device: Wanted,
    (state, name): (&Path, &str),
) -> Result<()> {
    let record = change.apply(PoolRecord::expect(state, name)?)?;
    record.save(state)?;
    make_groups(&record);
    drop(tables);
    set_lanes(name, &lanes(&names::runtime_dir(), name), device)
}

/// Changes what the lanes of a pool are to have of their devices.
fn set_lanes(pool: &str, lanes: &[String], device: Wanted) -> Result<()> {
    if device == Wanted::default() {
        return Ok(());
    }
    let outcomes: Vec<Result<()>> = lanes.iter().map(|lane| set::set(lane, device)).collect();
    // A lane that shares no device has no weight there, only the pool's of the CPU.
    let weight_alone = Wanted { weight: None, ..device } == Wanted::default();
    if weight_alone || outcomes.iter().any(Result::is_ok) {
        return Ok(());
    }
    let none = || Err(Failure::failed(format!("pool '{pool}': no lane is in it to be limited")));
    outcomes.into_iter().next().unwrap_or_else(none)
}

/// The pools that lanes have names of now, or had until they were killed.
pub(crate) fn named_by_lanes(dir: &Path) -> HashSet<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let pool = |name: String| {
        names::lane_number(name.strip_suffix(".lock")?).map(|(pool, _)| pool.to_string())
    };
    names.filter_map(pool).collect()
}

/// The lanes that are in a pool now, mounted or of runs, by name.
pub(crate) fn lanes(dir: &Path, pool: &str) -> Vec<String> {
    let held = |name: &String| PoolName::take_over(dir, name).is_err();
    let names = (1..=names::LANES_MAX).map(|number| names::lane_name(pool, number));
    names.filter(|name| names::lock_path(dir, name).exists()).filter(held).collect()
}

/// Whether a pool of this name was made to last.
///
/// # Errors
/// Its record cannot be read.
pub fn exists(name: &str) -> Result<bool> {
    pool_record::check_name(name)?;
    PoolRecord::load(&volume::state_dir()?, name).map(|record| record.is_some())
}

/// The kinds of namespaces that the containers of a pool have together.
///
/// # Errors
/// There is no such pool, or its record cannot be read.
pub fn namespaces(name: &str) -> Result<Vec<NsKind>> {
    PoolRecord::expect(&volume::state_dir()?, name).map(|record| record.namespaces)
}

/// Removes a pool in which nothing is. `member`: who of the daemon's group asks, if its user does
/// not.
///
/// # Errors
/// One line: no such pool, a lane or a process is in it, the record cannot be removed; a member of
/// the daemon's group may not.
pub fn remove(name: &str, member: Option<u32>) -> Result<()> {
    let (state, dir) = (volume::state_dir()?, names::runtime_dir());
    let (tables, _) = Tables::lock_cleared(&dir)?;
    let record = PoolRecord::expect(&state, name)?;
    refuse_member(&state, name, Some(&record), member)?;
    let groups = record.groups();
    let dirs: Vec<PathBuf> = groups.dirs();
    refuse_used(&tables, (&dir, name), &groups)?;
    cgroup::remove(&dirs);
    pool_namespaces::remove(&dir, name)?;
    record.remove(&state)?;
    // A run that took a lane's name meanwhile, and looks for the record now.
    refuse_used(&tables, (&dir, name), &groups)
        .or_else(|failure| record.save(&state).and(Err(failure)))
}

/// Refuses a pool in which something is.
fn refuse_used(tables: &Tables, (dir, name): (&Path, &str), groups: &cgroup::Plan) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let used = |why: String| Err(Failure::failed(format!("pool '{name}': {why}")));
    if let Some(entry) = tables.of_pool(name)?.first() {
        let path = Shown::new(std::ffi::OsStr::from_bytes(&entry.path)).to_string();
        return used(format!("{path} is mounted in it: umount that first"));
    }
    if let Some(lane) = lanes(dir, name).first() {
        return used(format!("a run is in it (lane {lane}): end that first"));
    }
    match groups.processes()[..] {
        [] => Ok(()),
        [pid, ..] => used(format!("process {pid} is in it: end that first")),
    }
}

/// Makes this very program the service of all lanes of a pool; what came of each.
///
/// # Errors
/// One line: no such pool, or no lane is in it.
pub fn upgrade_all(name: &str) -> Result<Vec<Result<String>>> {
    let lanes = lanes(&names::runtime_dir(), name);
    let is_pool = || {
        let state = volume::state_dir().ok();
        state.is_some_and(|state| matches!(PoolRecord::load(&state, name), Ok(Some(_))))
    };
    match lanes.is_empty() {
        true if names::is_name(name) && is_pool() => {
            Err(Failure::failed(format!("pool '{name}': no lane is in it")))
        }
        true => Ok(vec![upgrade::upgrade(name)]),
        false => Ok(lanes.iter().map(|lane| upgrade::upgrade(lane)).collect()),
    }
}
