//! `polylane pool` and `polylane exec`: pools, their limits, what each is to have of its device.

use std::ffi::OsString;

use clap::{Args, Subcommand};
use polylane_base::size::ByteSize;
use polylane_pool::failure::{Result, say};
use polylane_pool::lasting::{self, Making, NsKind, PoolChange, PoolCpus};
use polylane_pool::stats;
use serde_json::{Value, json};

use crate::args::{ClientArgs, JsonArgs, LimitArgs};
use crate::print::{cell, columns, print, print_json};

/// `polylane pool …`.
#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Make a pool that lasts, for lanes of 'mount' and 'run' and for commands of 'exec'
    Create {
        /// Its name
        pool: String,
        #[command(flatten)]
        limits: PoolArgs,
        /// Namespaces that its containers have together: ipc, uts, net
        #[arg(long, value_name = "KIND,…", value_delimiter = ',', value_parser = namespace)]
        ns: Vec<NsKind>,
        /// Where there is a pool of this name, set its limits; its namespaces stay as they are
        #[arg(long)]
        once: bool,
        /// The member of the daemon's group who asks
        #[arg(long, hide = true, value_name = "UID")]
        member: Option<u32>,
    },
    /// List pools that last, and running ones
    Ls(JsonArgs),
    /// Say what is to be known about a pool that lasts: limits, services, what is open in them
    Info {
        /// Its name
        pool: String,
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Change the limits of a pool that lasts, or what a running pool is to have of its device, at
    /// once; 0 lifts a limit, and --cpus all that of CPUs
    Set(SetArgs),
    /// Make this program the service of all lanes of a pool, whose programs notice nothing
    Upgrade {
        /// Name of the pool
        pool: String,
    },
    /// Remove pools that last and that nothing is in
    Rm {
        /// Their names
        #[arg(required = true, value_name = "POOL")]
        pools: Vec<String>,
        /// A pool that is not there is no failure
        #[arg(long)]
        if_exists: bool,
        /// The member of the daemon's group who asks
        #[arg(long, hide = true, value_name = "UID")]
        member: Option<u32>,
    },
}

/// Limits of a pool that lasts.
#[derive(Debug, Args)]
pub(crate) struct PoolArgs {
    /// CPUs of the pool, such as 0-3,6, or all
    #[arg(long, value_name = "LIST")]
    cpus: Option<PoolCpus>,
    /// Memory of the pool, such as 512M
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// Most processes and threads of the pool
    #[arg(long, value_name = "N")]
    pids: Option<u64>,
    /// Share of the pool, 1 to 10000 [default: 100]
    #[arg(long, value_name = "N")]
    weight: Option<u32>,
    /// Most changed data of a lane that waits to be written, of lanes mounted from then on
    #[arg(long, value_name = "SIZE")]
    dirty_limit: Option<ByteSize>,
    #[command(flatten)]
    client: ClientArgs,
}

fn namespace(text: &str) -> std::result::Result<NsKind, String> {
    NsKind::named(text).ok_or_else(|| format!("{text}: is not ipc, uts or net"))
}

impl PoolArgs {
    fn change(self) -> PoolChange {
        PoolChange {
            cpus: self.cpus,
            memory: self.memory.map(|size| size.0),
            pids: self.pids,
            weight: self.weight,
            dirty_limit: self.dirty_limit.map(|size| size.0),
            client: self.client.options(),
        }
    }
}

/// `polylane pool set`.
#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// Name of the pool, or path of an attachment's device, socket or volume
    pool: String,
    #[command(flatten)]
    pool_limits: PoolArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

/// `polylane exec`.
#[derive(Debug, Args)]
#[command(
    after_help = "COMMAND keeps the caller's rights, directory and mounts. It has the fast way \
    into the pool's lanes, eight at most; the one that its directory is in is $POLYLANE_MOUNT."
)]
pub(crate) struct ExecArgs {
    /// Name of the pool
    #[arg(long, value_name = "NAME")]
    pool: String,
    /// Program to execute, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Executes `polylane exec`; the exit status, where COMMAND could not be executed.
pub(crate) fn exec(arguments: &ExecArgs) -> Result<u8> {
    lasting::exec(&arguments.pool, &arguments.command)
}

/// Executes a command; the exit status.
pub(crate) fn execute(command: PoolCommand) -> Result<u8> {
    match command {
        PoolCommand::Create { pool, limits, ns, once, member } => {
            let making = Making { namespaces: ns, once, member };
            lasting::create(&pool, &limits.change(), making)?;
        }
        PoolCommand::Upgrade { pool } => {
            let mut status = 0;
            for outcome in lasting::upgrade_all(&pool)? {
                match outcome {
                    Ok(line) => print(&format!("{line}\n"))?,
                    Err(failure) => {
                        say(&failure);
                        status = failure.status;
                    }
                }
            }
            return Ok(status);
        }
        PoolCommand::Ls(format) => list(format.json)?,
        PoolCommand::Info { pool, json } => {
            let info = lasting::info(&pool)?;
            match json.json {
                true => print_json(&info)?,
                false => print(&described(&info))?,
            }
        }
        PoolCommand::Set(arguments) => {
            let device = arguments.limits.wanted(None);
            lasting::change(&arguments.pool, &arguments.pool_limits.change(), device)?;
        }
        PoolCommand::Rm { pools, if_exists, member } => {
            for pool in pools {
                if !if_exists || lasting::exists(&pool)? {
                    lasting::remove(&pool, member)?;
                }
            }
        }
    }
    Ok(0)
}

fn list(json: bool) -> Result<()> {
    let mut pools: Vec<Value> = stats::collect(None)?.iter().map(brief).collect();
    pools.extend(lasting::idle_pools()?);
    match json {
        true => print_json(&pools),
        false => print(&table(&pools)),
    }
}

/// What `ls` shows of a pool's statistics.
fn brief(stats: &Value) -> Value {
    json!({
        "pool": stats["pool"],
        "state": stats["state"],
        "pid": stats["pid"],
        "lane": stats["lane"],
        "mount": stats["mount"],
        "cpus": stats["cpus"],
        "weight": stats["weight"],
        "device": stats["share"]["device"],
        "policy": stats["share"]["policy"],
        "wanted": stats["share"]["wanted"],
    })
}

fn table(pools: &[Value]) -> String {
    let names = ["pool", "state", "pid", "lane", "mount", "cpus", "weight", "policy", "device"];
    let head = names.map(str::to_uppercase);
    let rows = pools.iter().map(|pool| names.map(|name| cell(&pool[name])));
    columns(std::iter::once(head).chain(rows).collect())
}

/// What `info` shows: the pool's limits, then a line for each instance of its services.
fn described(info: &Value) -> String {
    let of_pool = [
        "pool",
        "cpus",
        "memory",
        "pids",
        "weight",
        "dirty_limit",
        "ceph",
        "user",
        "network_class",
    ];
    // Not all were counted.
    let more = if info["open_files_counted"] == false { "+" } else { "" };
    let mut text: String = of_pool.map(|name| format!("{name}: {}\n", cell(&info[name]))).concat();
    let list = |value: &Value| value.as_array().map(Vec::as_slice).unwrap_or_default().to_vec();
    text += &format!("processes: {}\n", list(&info["processes"]).len());
    let mut rows = vec![
        ["service", "state", "pid", "instance", "path", "source", "cache", "open"]
            .map(str::to_uppercase),
    ];
    for service in list(&info["services"]) {
        let of_service = ["lane", "state", "service_pid"].map(|name| cell(&service[name]));
        let cache = cache_of(&service["cache"]);
        let mut instances = list(&service["instances"]);
        if instances.is_empty() {
            instances.push(json!({ "path": service["mount"], "source": service["kind"] }));
        }
        for instance in instances {
            let [lane, state, pid] = of_service.clone();
            let [number, path, source, open] =
                ["instance", "path", "source", "open_files"].map(|name| cell(&instance[name]));
            let open = open + more;
            rows.push([lane, state, pid, number, path, source, cache.clone(), open]);
        }
    }
    text + &columns(rows)
}

/// A lane's own cache of files in a word.
fn cache_of(cache: &Value) -> String {
    match (&cache["mode"], cache["size_bytes"].as_u64()) {
        (Value::String(mode), Some(size)) => format!("{mode}, {}", ByteSize(size)),
        _ => cell(&Value::Null),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_listed_in_columns() {
        let stats = json!({"pool": "longer-name", "state": "stopped", "pid": 7,
            "lane": "memory", "mount": "/lane",
            "cpus": "0-1", "weight": 100, "share": null});
        let text = table(&[brief(&stats)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "POOL         STATE    PID  LANE    MOUNT  CPUS  WEIGHT  POLICY  DEVICE"
        );
        assert_eq!(lines[1], "longer-name  stopped  7    memory  /lane  0-1   100     -       -");
    }

    #[test]
    fn a_pool_is_described_with_its_instances() {
        let info = json!({"pool": "web", "cpus": null, "memory": 1024, "pids": null, "weight": 7,
            "dirty_limit": null, "user": 5, "network_class": "7080:5", "groups": [],
            "processes": [1, 2], "services": [
                {"lane": "web@1", "state": "running", "service_pid": 9, "instances": [
                    {"path": "/a\n", "source": "mem", "instance": 0, "open_files": 3},
                    {"path": "/b", "source": "mem", "instance": 1, "open_files": 0}]},
                {"lane": "web@2", "mount": "/lane", "kind": "memory", "instances": [],
                    "cache": {"mode": "writeback", "size_bytes": 2 << 20}}]});
        let text = described(&info);
        assert!(
            text.contains("processes: 2\n")
                && text.contains("memory: 1024\n")
                && text.contains("network_class: 7080:5\n"),
            "{text}"
        );
        let rows: Vec<Vec<&str>> =
            text.lines().skip(11).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows.len(), 3, "{text}");
        assert_eq!(rows[1], ["web@1", "running", "9", "1", "/b", "mem", "-", "0"]);
        let last = ["web@2", "-", "-", "-", "/lane", "memory", "writeback,", "2", "MiB", "-"];
        assert_eq!(rows[2], last);
    }
}
