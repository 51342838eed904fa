//! `fig9`: a MariaDB server for each tenant under sysbench's update_key, now called
//! `oltp_update_index` (MultiLanes, FAST '14, §5.2.2): 10 000 rows, one thread, 20 000 requests.
//!
//! Client and server are on one machine here, which the paper's were not: what a client takes of
//! the CPUs is the same in every place.

use anyhow::{Context, Result, bail};

use super::multilanes::{NOTES, PLACES};
use super::sweep::{Sweep, Work, up_to_16};
use crate::Options;
use crate::place::{Ground, Script};
use crate::report::{Better, Report};
use crate::tools::{command, path};
use crate::worker::Outcome;

const SCRIPT: Script = Script {
    name: "mariadb",
    text: r#"
dir=$1 events=$2 made=$3
rm -rf "$dir"
mkdir -p "$dir"
socket=$(mktemp -d)/db
cp -a "$made" "$dir/data"
mariadbd --no-defaults --user=root --datadir="$dir/data" --socket="$socket" --skip-networking \
    --innodb-buffer-pool-size=64M --innodb-log-file-size=16M >>"$dir/log" 2>&1 &
server=$!
for wait in $(seq 600); do
    mariadb-admin --no-defaults --socket="$socket" ping >/dev/null 2>&1 && break
    sleep 0.1
done
mariadb --no-defaults --socket="$socket" -e 'CREATE DATABASE sb' >>"$dir/log" 2>&1
bench() {
    sysbench oltp_update_index --mysql-socket="$socket" --mysql-user=root --mysql-db=sb --tables=1 \
        --table-size=10000 --threads=1 --time=0 --percentile=99 "$@"
}
bench prepare >>"$dir/log" 2>&1
echo ready
read -r go
bench --events="$events" run | awk '
    /total number of events:/ { ops = $NF }
    /total time:/ { seconds = $NF; sub("s", "", seconds) }
    /99th percentile:/ { p99 = $NF }
    END { printf "{\"ops\":%d,\"seconds\":%s,\"settle_seconds\":0,\"latency\":{\"p99_ns\":%d}}\n",
          ops, seconds, p99 * 1e6 }'
read -r end || true
mariadb-admin --no-defaults --socket="$socket" shutdown >>"$dir/log" 2>&1
wait $server
rm -r "$dir" "${socket%/db}"
"#,
    outcome: Outcome::from_json,
};

/// Makes the files of a server without any data.
const INSTALL: &str = "mariadb-install-db --no-defaults --user=root --datadir=\"$1\" \
    --innodb-log-file-size=16M --auth-root-authentication-method=normal >/dev/null 2>&1";

/// Measures total updates per second over places and tenant counts.
///
/// # Errors
/// MariaDB or sysbench is missing, not root, or a tenant failed.
pub fn run(options: &Options) -> Result<Report> {
    let tools = "command -v mariadbd mariadb-install-db sysbench";
    if command("sh", &["-c", tools]).is_err() {
        bail!("mariadb-server and sysbench are needed");
    }
    // Making a server's files takes longer than a quick run of it: each tenant gets a copy.
    let made = tempfile::tempdir().context("directory for a server's files")?;
    let data = made.path().join("data");
    let data = path(&data)?;
    command("sh", &["-c", INSTALL, "sh", data])?;
    let title = "fig9: MariaDB, sysbench update_key, one thread each, all tenants in total";
    let mut report = Report::new("fig9", title, "tenants", "updates/s", Better::Higher);
    let events = if options.quick { "2000" } else { "20000" };
    let work = Work::Script(SCRIPT, vec![events.into(), data.into()]);
    let tenants = if options.quick { options.points(&[1, 4]) } else { up_to_16(options) };
    let ground = Ground::for_tenants(&tenants)?;
    let sweep = Sweep { work, per_op: 1.0, tenants };
    let slow = options.slow(&mut report);
    sweep.measure(&slow, &ground, &PLACES, &mut report)?;
    report.notes.extend(NOTES.map(String::from));
    Ok(report)
}
