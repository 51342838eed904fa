//! `polylane pool`: running pools, and what each is to have of its device.

use clap::{Args, Subcommand};
use polylane_base::shown::Shown;
use polylane_pool::failure::Result;
use polylane_pool::set;
use polylane_pool::{stats, upgrade};
use serde_json::{Value, json};

use crate::args::{JsonArgs, LimitArgs};
use crate::print::{columns, print, print_json};

/// `polylane pool …`.
#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// List running pools
    Ls(JsonArgs),
    /// Change what a running pool is to have of its device, at once; 0 lifts a limit
    Set(SetArgs),
    /// Make this program the service of a running pool, whose programs notice nothing
    Upgrade {
        /// Name of the pool
        pool: String,
    },
}

/// `polylane pool set`.
#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// Name of the pool, or path of an attachment's device, socket or volume
    pool: String,
    /// Share of the device, 1 to 10000
    #[arg(long, value_name = "N")]
    weight: Option<u32>,
    #[command(flatten)]
    limits: LimitArgs,
}

/// Executes a command; the exit status.
pub(crate) fn execute(command: &PoolCommand) -> Result<u8> {
    match command {
        PoolCommand::Upgrade { pool } => {
            print(&format!("{}\n", upgrade::upgrade(pool)?))?;
        }
        PoolCommand::Ls(format) => {
            let pools: Vec<Value> = stats::collect(None)?.iter().map(brief).collect();
            match format.json {
                true => print_json(&pools)?,
                false => print(&table(&pools))?,
            }
        }
        PoolCommand::Set(arguments) => {
            set::set(&arguments.pool, arguments.limits.wanted(arguments.weight))?
        }
    }
    Ok(0)
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
    let word = |value: &Value| match value {
        Value::Null => "-".to_string(),
        Value::String(text) => Shown::new(text).to_string(),
        other => other.to_string(),
    };
    let names = ["pool", "state", "pid", "lane", "mount", "cpus", "weight", "policy", "device"];
    let head = names.map(str::to_uppercase);
    let rows = pools.iter().map(|pool| names.map(|name| word(&pool[name])));
    columns(std::iter::once(head).chain(rows).collect())
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
}
