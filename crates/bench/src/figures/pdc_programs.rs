//! Databases as guests run them, for `pdc-fig6` and `pdc-fig7`: how many operations a second they
//! do in a directory. Each is a shell script that prints that number last; its words are the
//! directory, seconds, and the files of a MariaDB server without any data.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::guest::{command, has};

/// A program under its load.
pub(super) struct Program {
    /// In the figures.
    pub(super) name: &'static str,
    /// Programs of the host that it runs.
    tools: &'static [&'static str],
    /// Functions that it runs, and what it does with them.
    parts: &'static [&'static str],
}

/// All, in the order of the paper's figures.
pub(super) const PROGRAMS: [Program; 4] = [
    Program { name: "OLTP", tools: SERVER_TOOLS, parts: &[SERVER, OLTP] },
    Program { name: "graph", tools: SERVER_TOOLS, parts: &[SERVER, GRAPH] },
    Program { name: "sqlite", tools: &["sqlite3", "awk"], parts: &[SQLITE] },
    Program { name: "RocksDB", tools: &["db_bench", "awk"], parts: &[ROCKSDB] },
];

const SERVER_TOOLS: &[&str] =
    &["mariadbd", "mariadb", "mariadb-admin", "mariadb-install-db", "sysbench", "awk"];

/// Makes the files of a server without any data.
const INSTALL: &str = "mariadb-install-db --no-defaults --user=root --datadir=\"$1\" \
    --innodb-log-file-size=16M --auth-root-authentication-method=normal >/dev/null 2>&1";

/// `with_server COMMAND`: a server in $dir, which the command finds at $socket.
const SERVER: &str = r#"
with_server() {
    socket=$(mktemp -d)/db
    cp -a "$made" "$dir/data"
    mariadbd --no-defaults --user=root --datadir="$dir/data" --socket="$socket" --skip-networking \
        --innodb-buffer-pool-size=16M --innodb-log-file-size=16M > "$dir/log" 2>&1 &
    server=$!
    trap 'kill $server 2> /dev/null || true; rm -rf "${socket%/db}"' EXIT
    for wait in $(seq 600); do
        mariadb-admin --no-defaults --socket="$socket" ping > /dev/null 2>&1 && break
        sleep 0.1
    done
    mariadb --no-defaults --socket="$socket" -e 'CREATE DATABASE sb'
    "$1"
    mariadb-admin --no-defaults --socket="$socket" shutdown
    wait $server
}
bench() {
    sysbench "$@" --mysql-socket="$socket" --mysql-user=root --mysql-db=sb --threads=4 \
        --time="$seconds" > "$dir/said" || { cat "$dir/said" >&2; return 1; }
}
rate() { sed -n 's/.*transactions: .*(\([0-9.]*\) per sec.*/\1/p' "$dir/said"; }
"#;

/// sysbench's OLTP, read and write: 4 threads on two tables of 40 000 rows.
const OLTP: &str = r#"
oltp() {
    size="--tables=2 --table-size=40000"
    bench oltp_read_write $size prepare
    bench oltp_read_write $size run
}
with_server oltp
rate
"#;

/// A social graph as LinkBench has it (Armstrong et al., SIGMOD'13): nodes, typed links and their
/// counts, in the published mix of requests; 4 threads, 10 000 nodes with 5 links each, skewed.
const GRAPH: &str = r#"
cat > "$dir/graph.lua" <<'LUA'
sysbench.cmdline.options = {}
local NODES = 10000
local function id() return sysbench.rand.pareto(1, NODES) end
function thread_init()
    drv = sysbench.sql.driver()
    con = drv:connect()
end
function thread_done() con:disconnect() end
function prepare()
    drv = sysbench.sql.driver()
    con = drv:connect()
    con:query("CREATE TABLE node(id INT AUTO_INCREMENT PRIMARY KEY, version INT, " ..
        "data VARBINARY(400))")
    con:query("CREATE TABLE link(id1 INT, id2 INT, type INT, visible INT, time INT, " ..
        "data VARBINARY(120), PRIMARY KEY(id1, type, id2), KEY(id1, type, visible, time, id2))")
    con:query("CREATE TABLE counts(id INT, type INT, count INT, PRIMARY KEY(id, type))")
    con:query("INSERT INTO node(version, data) SELECT 0, REPEAT('n', 128) FROM seq_1_to_" .. NODES)
    con:query("INSERT INTO link SELECT a.seq, 1 + (a.seq * 7 + b.seq * 131) % " .. NODES ..
        ", 1, 1, a.seq, REPEAT('l', 30) FROM seq_1_to_" .. NODES .. " a, seq_1_to_5 b")
    con:query("INSERT INTO counts SELECT id1, type, COUNT(*) FROM link GROUP BY id1, type")
end
local function add_link()
    local a, b = id(), id()
    con:query("BEGIN")
    con:query("INSERT INTO link VALUES(" .. a .. "," .. b .. ",1,1," .. os.time() ..
        ",REPEAT('l', 30)) ON DUPLICATE KEY UPDATE visible = 1, time = VALUES(time)")
    con:query("INSERT INTO counts VALUES(" .. a .. ",1,1) " ..
        "ON DUPLICATE KEY UPDATE count = count + 1")
    con:query("COMMIT")
end
function event()
    local p, a = sysbench.rand.uniform(1, 1000), id()
    if p <= 512 then
        con:query("SELECT * FROM link WHERE id1 = " .. a .. " AND type = 1 AND visible = 1 " ..
            "ORDER BY time DESC LIMIT 1000")
    elseif p <= 641 then con:query("SELECT * FROM node WHERE id = " .. a)
    elseif p <= 690 then con:query("SELECT count FROM counts WHERE id = " .. a .. " AND type = 1")
    elseif p <= 695 then
        con:query("SELECT * FROM link WHERE id1 = " .. a .. " AND type = 1 AND id2 IN (" ..
            id() .. "," .. id() .. ")")
    elseif p <= 865 then add_link()
    elseif p <= 895 then
        con:query("BEGIN")
        con:query("UPDATE link SET visible = 0 WHERE id1 = " .. a .. " AND type = 1 LIMIT 1")
        con:query("UPDATE counts SET count = count - 1 WHERE id = " .. a .. " AND type = 1")
        con:query("COMMIT")
    elseif p <= 969 then
        con:query("UPDATE node SET version = version + 1, data = REPEAT('u', 128) WHERE id = " .. a)
    elseif p <= 995 then
        con:query("INSERT INTO node(version, data) VALUES(0, REPEAT('n', 128))")
    else con:query("DELETE FROM node WHERE id = " .. (NODES + a)) end
end
LUA
graph() {
    bench "$dir/graph.lua" prepare
    bench "$dir/graph.lua" --mysql-ignore-errors=1213,1205,1020 run
    sed -n 's/.*total number of events: *\([0-9]*\).*/\1/p' "$dir/said" > "$dir/events"
}
with_server graph
awk -v seconds="$seconds" '{ print $1 / seconds }' "$dir/events"
"#;

/// As Mobibench's SQLite test: one insert, update or delete a transaction, in turn, made durable;
/// rollback journal that is cut to nothing, the default of phones.
const SQLITE: &str = r#"
count=$(awk -v seconds="$seconds" 'BEGIN { print int(seconds * 200) }')
{
    echo 'pragma journal_mode=truncate; pragma synchronous=full; pragma cache_size=200;'
    echo 'create table t(a integer primary key, b text);'
    for row in $(seq "$count"); do
        case $((row % 3)) in
        0) echo "delete from t where a = $((row / 2));" ;;
        1) echo "update t set b = printf('%0200d', $row) where a = $((row / 2));" ;;
        2) echo "insert into t values($row, printf('%0200d', $row));" ;;
        esac
    done
} > "$dir/load.sql"
begun=$(date +%s%N)
sqlite3 "$dir/t.db" < "$dir/load.sql" > /dev/null
echo "$count $(($(date +%s%N) - begun))" | awk '{ print $1 / $2 * 1e9 }'
"#;

/// db_bench's synced random puts, of 100 bytes each.
const ROCKSDB: &str = r#"
db_bench --db="$dir/db" --benchmarks=fillrandom --sync=1 --num=1000000 --duration="$seconds" \
    --value_size=100 --write_buffer_size=1048576 --threads=1 2> "$dir/log" > "$dir/said"
awk '/fillrandom/ { for (i = 2; i <= NF; i++) if ($i == "ops/sec") print $(i - 1) }' "$dir/said"
"#;

impl Program {
    /// Whether everything that it needs is installed.
    pub(super) fn is_here(&self) -> bool {
        self.tools.iter().all(|tool| has(tool))
    }

    /// Operations per second in `dir`, which is empty before and after. `made`: the files of a
    /// server without any data.
    ///
    /// # Errors
    /// What one of its programs says.
    pub(super) fn run(&self, dir: &Path, time: Duration, made: &Path) -> Result<f64> {
        let own = dir.join("program");
        std::fs::create_dir(&own)?;
        let text = self.parts.concat();
        let script = format!("dir=$1 seconds=$2 made=$3\n{text}");
        let seconds = time.as_secs().max(1).to_string();
        let [at, made] = [&own, made].map(|path| path.to_str());
        let words = ["-euc", &script, "sh", at.context("a name")?, &seconds];
        let said = command("sh", &[&words[..], &[made.context("a name")?]].concat());
        let said = said.with_context(|| format!("the load '{}'", self.name))?;
        std::fs::remove_dir_all(&own)?;
        let last = said.lines().last().and_then(|line| line.trim().parse().ok());
        last.with_context(|| format!("the load '{}' gave no rate: {said}", self.name))
    }
}

/// Makes the files of a server without any data at `dir`.
///
/// # Errors
/// What mariadb-install-db says; nothing is made where it is not installed.
pub(super) fn install(dir: &Path) -> Result<()> {
    if has("mariadb-install-db") {
        command("sh", &["-c", INSTALL, "sh", dir.to_str().context("a name")?])?;
    }
    Ok(())
}
