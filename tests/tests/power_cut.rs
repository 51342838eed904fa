//! Databases on lanes whose power is cut: what they said was committed is there afterwards, and
//! they find nothing wrong with their files.
//!
//! A cut ends every process of a run at once; what the service had not written to the volume is
//! lost. (What the host's disk loses with its own cache is the matter of the crash tests of
//! `polylane-ext4`.) `POLYLANE_POWER_CUTS` says how often each is cut, 2 unless set; PostgreSQL
//! takes part when it is more.

use std::time::Duration;

use polylane_base::rng::Rng;
use polylane_tests::pool::{Run, no_library};
use polylane_tests::volume::assert_clean;
use polylane_tests::{lacks, skip, unavailable};

/// The longest that a database works before its power is cut.
const LONGEST: Duration = Duration::from_millis(1500);

fn cuts() -> u32 {
    std::env::var("POLYLANE_POWER_CUTS").ok().and_then(|text| text.parse().ok()).unwrap_or(2)
}

/// Runs `work` on a volume again and again. It begins by looking at what is there and prints
/// `has N`, N being the last transaction it finds, or how it is damaged; then each transaction's
/// number as soon as it is committed. In between the power is cut.
fn cut_again_and_again(seed: u64, options: &str, work: &str) {
    let dir = tempfile::tempdir().expect("tempdir");
    let volume = dir.path().join("volume");
    let mut rng = Rng::new(seed);
    let mut promised = 0;
    for round in 0..=cuts() {
        let mut running = Run::new(&format!("{options} --size 1G --volume"))
            .arg(&volume)
            .script(&format!("cd /lane\n{work}"))
            .start();
        let first = running.line();
        let has: u64 = first
            .strip_prefix("has ")
            .and_then(|number| number.parse().ok())
            .unwrap_or_else(|| panic!("seed {seed}, round {round}: {first}"));
        assert!(has >= promised, "seed {seed}, round {round}: {promised} was committed, not {has}");
        promised = has.max(read_for(&mut running, &mut rng));
        running.cut_power();
    }
    let rest = Run::new("--volume").arg(&volume).script("true").output();
    assert!(rest.status.success(), "{}", String::from_utf8_lossy(&rest.stderr));
    assert_clean(&volume);
}

/// The last transaction that was committed in a while.
fn read_for(running: &mut polylane_tests::pool::Running, rng: &mut Rng) -> u64 {
    let length = LONGEST.mul_f64(0.1 + 0.9 * rng.below(1000) as f64 / 1000.0);
    let start = std::time::Instant::now();
    let mut last = 0;
    while start.elapsed() < length {
        let line = running.line();
        last = line.parse().unwrap_or_else(|_| panic!("no transaction's number: '{line}'"));
    }
    last
}

/// Commits rows of two tables and an index, some of them large, and takes others away.
const SQLITE: &str = r#"exec /usr/bin/python3 -u -c '
import sqlite3, sys
db = sqlite3.connect("db", isolation_level=None)
db.execute("PRAGMA journal_mode=" + sys.argv[1]); db.execute("PRAGMA synchronous=FULL")
db.execute("CREATE TABLE IF NOT EXISTS a(n INTEGER PRIMARY KEY, t)")
db.execute("CREATE TABLE IF NOT EXISTS b(n, t)"); db.execute("CREATE INDEX IF NOT EXISTS i ON b(t)")
wrong = [row for row in db.execute("PRAGMA integrity_check")]
n, = db.execute("SELECT coalesce(max(n), 0) FROM a").fetchone()
m, = db.execute("SELECT coalesce(max(n), 0) FROM b").fetchone()
print("has", n) if wrong == [("ok",)] and n == m else print("damaged", wrong, n, m)
while True:
    n += 1
    db.execute("BEGIN"); db.execute("INSERT INTO a VALUES(?, ?)", (n, "x" * (n * 7919 % 20000)))
    db.execute("INSERT INTO b VALUES(?, ?)", (n, str(n * 7919 % 1009)))
    db.execute("DELETE FROM a WHERE n = ?", (n - 50,)); db.execute("COMMIT")
    print(n)
' "#;

#[test]
fn sqlite_keeps_what_it_committed() {
    let name = "sqlite_keeps_what_it_committed";
    if unavailable(name) || no_library(name) || lacks(name, &["mke2fs", "/usr/bin/python3"]) {
        return;
    }
    for (seed, (mode, options)) in
        [("DELETE", ""), ("WAL", ""), ("WAL", "--no-preload"), ("TRUNCATE", "--no-preload")]
            .into_iter()
            .enumerate()
    {
        cut_again_and_again(seed as u64, options, &format!("{SQLITE} {mode}"));
    }
}

/// One client that commits and says so, three that make it busy.
const POSTGRESQL: &str = r#"
as="setpriv --reuid=postgres --regid=postgres --clear-groups env HOME=/lane/pg"
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
socket=$(mktemp -d); chown postgres: "$socket"; exec 3>&1 >/lane/log 2>&1
if ! [ -e pg/ready ]; then
    rm -rf pg; mkdir pg; chown postgres: pg; $as "$bin/initdb" -D pg/data -A trust
fi
cd pg; rm -f data/postmaster.pid
$as "$bin/postgres" -D data -k "$socket" -c listen_addresses= &
for _ in $(seq 300); do $as "$bin/pg_isready" -q -h "$socket" && break; sleep 0.1; done
ask() { $as psql -h "$socket" -v ON_ERROR_STOP=1 -Atc "$1" postgres; }
if ! [ -e ready ]; then
    ask 'CREATE TABLE t(n int PRIMARY KEY); CREATE EXTENSION amcheck'
    $as pgbench -q -h "$socket" -i -s 1 postgres; sync ready 2>/dev/null; touch ready; sync ready
fi
sums='SELECT (SELECT sum(abalance) FROM pgbench_accounts) =
             (SELECT sum(bbalance) FROM pgbench_branches)'
[ "$(ask "$sums")" = t ] || { echo "damaged: sums" >&3; exit 1; }
ask "SELECT count(bt_index_check(c.oid)) FROM pg_class c JOIN pg_am a ON a.oid = c.relam
     WHERE a.amname = 'btree' AND c.relkind = 'i'" || { echo "damaged: index" >&3; exit 1; }
n=$(ask 'SELECT coalesce(max(n), 0) FROM t'); echo "has $n" >&3
$as pgbench -n -h "$socket" -c 3 -T 1000 postgres &
while :; do
    n=$((n + 1)); echo "INSERT INTO t VALUES($n) RETURNING n;"
done | $as psql -qAt -h "$socket" postgres >&3
"#;

#[test]
fn postgresql_keeps_what_it_committed() {
    let name = "postgresql_keeps_what_it_committed";
    if unavailable(name) || no_library(name) || lacks(name, &["mke2fs", "setpriv", "pgbench"]) {
        return;
    }
    if cuts() <= 2 {
        return skip(name, "it is part of the campaign (POLYLANE_POWER_CUTS=20)");
    }
    for (seed, options) in ["", "--no-preload"].into_iter().enumerate() {
        cut_again_and_again(seed as u64, options, POSTGRESQL);
    }
}
