//! `polylane pool`: running pools, and what each is to have of its device.

use clap::{Args, Subcommand};
use polylane_base::shown::Shown;
use polylane_base::size::ByteSize;
use polylane_pool::failure::Result;
use polylane_pool::share::{self, Wanted};
use polylane_pool::{stats, upgrade};
use serde_json::{Value, json};

use crate::cli::JsonArgs;
use crate::commands::{print, print_json};

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

/// Limits of a lane on its device.
#[derive(Debug, Args)]
pub(crate) struct LimitArgs {
    /// Requests per second that it is to have at least, if it wants them
    #[arg(long, value_name = "N")]
    min_iops: Option<u64>,
    /// Most requests per second
    #[arg(long, value_name = "N")]
    max_iops: Option<u64>,
    /// Bytes per second that it is to have at least, if it wants them, such as 20M
    #[arg(long, value_name = "SIZE")]
    min_bandwidth: Option<ByteSize>,
    /// Most bytes per second, such as 100M
    #[arg(long, value_name = "SIZE")]
    max_bandwidth: Option<ByteSize>,
    /// Time that 99 per cent of its requests are to stay below, such as 500us or 2ms
    #[arg(long, value_name = "TIME", value_parser = microseconds)]
    latency: Option<u64>,
}

impl LimitArgs {
    /// What they and a weight ask for.
    pub(crate) fn wanted(&self, weight: Option<u32>) -> Wanted {
        Wanted {
            weight,
            iops_max: self.max_iops,
            iops_min: self.min_iops,
            bw_max: self.max_bandwidth.map(|size| size.0),
            bw_min: self.min_bandwidth.map(|size| size.0),
            latency_target_us: self.latency,
        }
    }
}

/// A time such as `500us`, `2ms` or `1s`, or 0, in microseconds.
pub(crate) fn microseconds(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_us = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "" if number == "0" => 1,
        _ => return Err("write a number and us, ms or s".to_string()),
    };
    let number: u64 = number.parse().map_err(|_| "write a number and us, ms or s".to_string())?;
    number.checked_mul(unit_us).ok_or_else(|| "too long".to_string())
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
            share::set(&arguments.pool, arguments.limits.wanted(arguments.weight))?
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

/// Rows as lines, each column as wide as its widest word.
pub(crate) fn columns<const N: usize>(rows: Vec<[String; N]>) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let line = |row: &[String; N]| {
        let words = row.iter().zip(widths).map(|(word, width)| format!("{word:<width$}"));
        words.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let read = |text| microseconds(text).ok();
        assert_eq!(
            [read("500us"), read("2ms"), read("1s")],
            [Some(500), Some(2_000), Some(1_000_000)]
        );
        assert_eq!(read("0"), Some(0), "lifts");
        for wrong in ["", "5", "ms", "-1ms", "1.5ms", "1h", "99999999999999999999s"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert_eq!(read("18446744073709551615s"), None);
    }

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
