//! The programs of `synced`: SQLite, RocksDB and PostgreSQL, each as a tenant's script.
//!
//! Each is given its directory, the path of this program, seconds, what its row says and, for
//! PostgreSQL, a cluster to copy.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::rocksdb;
use crate::place::Script;
use crate::tools::{command, path};
use crate::worker::Outcome;

/// How a script begins: its directory is empty and the journal is past its first lap.
macro_rules! past_the_lap {
    ($work:literal) => {
        concat!(
            r#"
dir=$1 me=$2 seconds=$3 kind=$4
rm -rf "$dir"
mkdir -p "$dir"
"$me" bench worker sync-lap "$dir/lap" 1200 < /dev/null > /dev/null
"#,
            $work,
            r#"
read -r end || true
cd /
rm -rf "$dir"
"#
        )
    };
}

/// One insert a transaction, by the journal's mode.
pub(super) const SQLITE: Script = Script {
    name: "sqlite",
    text: past_the_lap!(
        r#"
cd "$dir"
count=$(awk -v s="$seconds" 'BEGIN { print int(s * 1000) }')
sqlite3 db "pragma journal_mode=$kind; create table t(a integer primary key, b text);" > /dev/null
awk -v n="$count" 'BEGIN {
    print "pragma synchronous=full;"
    for (i = 1; i <= n; i++) printf "insert into t(b) values(\"%0100d\");\n", i
}' > load.sql
sync -f .
echo ready
read -r go
begun=$(date +%s%N)
sqlite3 -bail db < load.sql
ended=$(date +%s%N)
[ "$(sqlite3 db 'select count(*) from t')" = "$count" ]
tell "$count" $((ended - begun))
"#
    ),
    outcome: Outcome::from_json,
};

/// `db_bench` with so many writers.
pub(super) const ROCKSDB: Script = Script {
    name: "rocksdb",
    text: past_the_lap!(
        r#"
echo ready
read -r go
db_bench --db="$dir/db" --benchmarks=fillrandom --num=1000000 --key_size=16 --value_size=1024 \
    --compression_type=none --threads="$kind" --duration="$(awk -v s="$seconds" 'BEGIN {
        print (s < 1 ? 1 : int(s + 0.5)) }')" --sync=1 --histogram=1 2>>"$dir/log" | tr '\n' '\t'
echo
"#
    ),
    outcome: rocksdb::outcome,
};

/// `pgbench -N` with so many clients, on a copy of a cluster.
pub(super) const PGBENCH: Script = Script {
    name: "pgbench",
    text: past_the_lap!(
        r#"
template=$5
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
sockets=$(mktemp -d)
chown postgres "$dir" "$sockets"
as() { setpriv --reuid postgres --regid postgres --clear-groups -- "$@"; }
cp -a "$template" "$dir/data"
sync -f "$dir"
cd "$dir"
as "$bin/pg_ctl" -D data -w -l data/log -o "-k $sockets -c listen_addresses=" start > out
stop() { as "$bin/pg_ctl" -D data -m fast -w stop >> out; rm -rf "$sockets"; }
trap stop EXIT
load() { pgbench -h "$sockets" -U postgres -n -N -c "$kind" -j "$kind" -T "$1" postgres; }
load 1 > /dev/null 2>> out
echo ready
read -r go
load "$(awk -v s="$seconds" 'BEGIN { print (s < 1 ? 1 : int(s * 2)) }')" 2>> out | awk '
    /number of transactions actually processed/ { split($NF, part, "/"); done = part[1] }
    /^tps = / { rate = $3 }
    END {
        form = "{\"ops\":%d,\"seconds\":%f,\"settle_seconds\":0,\"latency\":{}}\n"
        printf form, done, done / rate
    }'
read -r end || true
trap - EXIT
stop
cd /
rm -rf "$dir"
exit
"#
    ),
    outcome: Outcome::from_json,
};

/// Whether these can be run.
///
/// # Errors
/// One is missing.
pub(super) fn needs(programs: &[&str]) -> Result<()> {
    for program in programs {
        if command("sh", &["-c", &format!("command -v {program}")]).is_err() {
            bail!("{program} is missing: 'scripts/setup.sh apps' installs it");
        }
    }
    Ok(())
}

/// Whether there is a PostgreSQL server.
///
/// # Errors
/// There is none.
pub(super) fn has_server() -> Result<()> {
    let found = command("sh", &["-c", "ls /usr/lib/postgresql/*/bin/initdb && id postgres"]);
    found.map(drop).context("PostgreSQL is missing: 'scripts/setup.sh apps' installs it")
}

/// A cluster with pgbench's tables, shut down; it goes when it is dropped.
pub(super) struct Template(tempfile::TempDir);

impl Template {
    /// Where it is.
    pub(super) fn path(&self) -> PathBuf {
        self.0.path().join("data")
    }
}

/// Makes such a cluster where it is `wanted`.
///
/// # Errors
/// initdb, the server or pgbench failed.
pub(super) fn template(wanted: bool) -> Result<Option<Template>> {
    if !wanted {
        return Ok(None);
    }
    let dir = tempfile::tempdir().context("directory of a cluster")?;
    command("sh", &["-euc", MAKE_CLUSTER, "cluster", path(dir.path())?])?;
    Ok(Some(Template(dir)))
}

const MAKE_CLUSTER: &str = r#"
dir=$1
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
chown postgres "$dir"
cd "$dir"
as() { setpriv --reuid postgres --regid postgres --clear-groups -- "$@"; }
as "$bin/initdb" --no-sync --auth trust data > /dev/null
as "$bin/pg_ctl" -D data -w -l log -o "-F -k $dir -c listen_addresses=" start > /dev/null
stop() { as "$bin/pg_ctl" -D data -m fast -w stop > /dev/null; }
trap stop EXIT
pgbench -h "$dir" -U postgres -i -q -s 10 postgres
"#;
