//! Whose lane it is: a run's alone, or a pool's that lasts; and runs that join such a pool.

use std::path::{Path, PathBuf};

use polylane_volume::{self as volume, log};

use super::{RunOptions, Source};
use crate::cgroup;
use crate::failure::{Failure, Result};
use crate::names::{self, PoolName, TakeLane};
use crate::own_log::OwnLog;
use crate::pool_record::PoolRecord;

/// Whose lane it is.
#[derive(Debug)]
pub(crate) enum Owner {
    /// A pool of this run alone: its name, which is free.
    Run(String),
    /// The same pool, for a lane of the run besides the first.
    Beside {
        /// Its name.
        pool: String,
        /// The lane's own name in it.
        lane: PoolName,
    },
    /// A pool that lasts.
    Pool {
        /// Its name.
        pool: String,
        /// What was made of it; `None`: it is that of lanes in no pool.
        record: Option<PoolRecord>,
        /// The lane's own name in it.
        lane: PoolName,
        /// Its supervisor's standard error, if that is a file of its own.
        log: Option<OwnLog>,
    },
}

impl Owner {
    /// What log lines carry.
    pub(super) fn name(&self) -> &str {
        match self {
            Owner::Run(name) => name,
            Owner::Beside { lane, .. } | Owner::Pool { lane, .. } => lane.as_str(),
        }
    }

    /// The pool, whose own volume the lane is on unless it is given another source.
    pub(super) fn pool(&self) -> &str {
        match self {
            Owner::Run(name) => name,
            Owner::Beside { pool, .. } | Owner::Pool { pool, .. } => pool,
        }
    }

    /// The host's user of its services, where it has one of its own.
    pub(super) fn user(&self) -> Option<u32> {
        match self {
            Owner::Pool { record: Some(record), .. } => record.user,
            _ => None,
        }
    }

    /// The limits of its pool.
    pub(super) fn groups(&self, options: &RunOptions) -> cgroup::Plan {
        match self {
            Owner::Run(name) => cgroup::plan_lanes(name, &options.limits()),
            Owner::Beside { pool, .. } => cgroup::plan_lanes(pool, &options.limits()),
            Owner::Pool { record: Some(record), .. } => record.groups(),
            Owner::Pool { record: None, .. } => cgroup::Plan::default(),
        }
    }

    /// Those of the groups that go with the lane.
    pub(super) fn own_groups(&self, groups: &cgroup::Plan) -> Vec<PathBuf> {
        match self {
            Owner::Run(_) => groups.dirs(),
            Owner::Beside { .. } | Owner::Pool { .. } => groups.io_dirs(),
        }
    }

    /// The lane's name, held from now on, and its log.
    pub(super) fn take(self, dir: &Path) -> Result<(PoolName, Option<OwnLog>)> {
        match self {
            Owner::Run(name) => Ok((PoolName::take(dir, &name)?, None)),
            Owner::Beside { lane, .. } => Ok((lane, None)),
            Owner::Pool { lane, log, .. } => Ok((lane, log)),
        }
    }
}

impl RunOptions {
    /// With the limits of the pool that the lane is in.
    pub(crate) fn in_pool(mut self, record: &PoolRecord) -> RunOptions {
        self.memory = record.memory;
        self.cpus.clone_from(&record.cpus);
        self.weight = self.weight.or(record.weight);
        if self.source.is_volume() || matches!(self.source, Source::Ceph(_)) {
            let own = self.write_back.dirty_bytes_limit;
            self.write_back.dirty_bytes_limit = own.or(record.dirty_limit);
        }
        if !self.ceph_places().is_empty() {
            self.cluster.client = self.cluster.client.or(record.client);
        }
        self
    }
}

/// The pool that lasts of which a run is to be, if it names one.
pub(super) fn joined(options: &RunOptions) -> Result<Option<PoolRecord>> {
    let Some(pool) = &options.pool else { return Ok(None) };
    // Without a state directory there are no pools that last.
    let Ok(state) = volume::state_dir() else { return Ok(None) };
    let Some(record) = PoolRecord::load(&state, pool)? else { return Ok(None) };
    let has = |what: &str| {
        Failure::usage(format!(
            "{what}: pool '{pool}' lasts and has limits of its own: change them with \
             'polylane pool set {pool}'"
        ))
    };
    if options.cpus.is_some() {
        return Err(has("--cpus"));
    }
    if options.memory.is_some() {
        return Err(has("--memory"));
    }
    match options.kernel_fs {
        None => Ok(Some(record)),
        Some(_) => Err(Failure::usage(format!(
            "--kernel-fs: not in pool '{pool}', which lasts: leave --pool out"
        ))),
    }
}

/// Runs COMMAND, as `run` does, in a lane of a pool that lasts.
pub(super) fn run_in_pool(
    pool: String,
    take: TakeLane,
    run: impl FnOnce(Owner) -> Result<u8>,
) -> Result<u8> {
    let dir = names::runtime_dir();
    let lane = take(&dir, &pool)?;
    let name = lane.as_str().to_string();
    log::name("polylane", &name);
    // 'pool rm' looks for names of lanes before and after it removes the record.
    let record = volume::state_dir().and_then(|state| PoolRecord::expect(&state, &pool));
    let status =
        record.and_then(|record| run(Owner::Pool { pool, record: Some(record), lane, log: None }));
    // Where it did not get as far as to its end.
    if let Ok(Some(name)) = PoolName::take_over(&dir, &name) {
        name.remove_files();
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ceph::ClientOptions;

    #[test]
    fn lanes_on_a_cluster_have_the_settings_of_their_pool_but_for_their_own() {
        let of_pool = ClientOptions {
            cache_bytes: Some(16 << 20),
            read_ahead_bytes: Some(0),
            io_threads: Some(3),
        };
        let record = PoolRecord { client: of_pool, ..PoolRecord::default() };
        let on = |source, own| {
            let mut options = RunOptions::new(source, vec!["true".into()]);
            options.cluster.client = own;
            options.in_pool(&record).cluster.client
        };
        let cluster = || Source::Ceph("cephfs".parse().expect("a place"));
        assert_eq!(on(cluster(), ClientOptions::default()), of_pool);
        let own = ClientOptions { io_threads: Some(5), ..ClientOptions::default() };
        let both = ClientOptions { io_threads: Some(5), ..of_pool };
        assert_eq!(on(cluster(), own), both);
        assert_eq!(on(Source::Mem, ClientOptions::default()), ClientOptions::default());
    }
}
