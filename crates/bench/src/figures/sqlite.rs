//! `sqlite`: a fixed load in the manner of SQLite's own `speedtest1`: bulk inserts with and without
//! an index, scans, lookups, updates, deletes, many small transactions, a check at the end.
//!
//! The page cache of SQLite is kept small, so that lookups reach the file system. A tenant is a
//! `sqlite3` process with a database of its own.

use anyhow::{Context, Result, bail};

use super::sweep::{Sweep, Work};
use crate::Options;
use crate::place::{Ground, Place, Script};
use crate::report::{Better, Report};
use crate::tools::command;
use crate::worker::Outcome;

/// The first is the baseline.
const PLACES: [Place; 5] =
    [Place::Kernel("ext4"), Place::LaneExt4, Place::LaneExt4Fuse, Place::Tmpfs, Place::Lane];

/// Databases side by side.
const TENANTS: &[usize] = &[1, 4];

/// The statements are written before, and each ends a line.
const SCRIPT: Script = Script {
    name: "sqlite",
    text: r#"
dir=$1 rows=$2
rm -rf "$dir"
mkdir -p "$dir"
awk -v rows="$rows" 'BEGIN {
    srand(1)
    print "pragma cache_size=200;"
    print "create table a(n integer, t text);"
    print "create table b(n integer primary key, t text);"
    print "create index bt on b(t);"
    split("a b", tables)
    for (i = 1; i <= 2; i++) {
        print "begin;"
        for (n = 1; n <= rows; n++)
            printf "insert into %s values(%d, \"%d:%060d\");\n", tables[i], n, rand() * 1e9, n
        print "commit;"
    }
    for (n = 0; n < rows / 200; n++)
        printf "select count(*), avg(n) from a where t like \"%%%d%%\";\n", n
    for (n = 0; n < rows; n++)
        printf "select t from b where n = %d;\n", 1 + rand() * rows
    print "begin;"
    for (n = 0; n < rows; n++)
        printf "update b set t = \"%d:%060d\" where n = %d;\n", rand() * 1e9, n, 1 + rand() * rows
    print "commit;"
    for (n = 0; n < rows / 20; n++)
        printf "insert into a values(%d, \"small\");\n", n
    printf "delete from b where n %% 3 = 0;\n"
    print "pragma integrity_check;"
}' > "$dir/load.sql"
echo ready
read -r go
begun=$(date +%s%N)
checked=$(sqlite3 -bail "$dir/db" < "$dir/load.sql" | tail -n 1)
ended=$(date +%s%N)
echo "$(wc -l < "$dir/load.sql") statements, $((ended - begun)) ns, $checked"
read -r end || true
rm -r "$dir"
"#,
    outcome,
};

const NOTES: [&str; 4] = [
    "a sqlite3 process and a database for each tenant; page cache of 200 pages, rollback journal",
    "bulk inserts, scans, lookups, updates, deletes, transactions of one statement, a check",
    "ext4: one kernel file system for all, on a loop device in RAM",
    "lane (ext4): ext4 in user space on a volume in RAM for each; FUSE: without the library",
];

/// The load by each way in.
///
/// # Errors
/// `sqlite3` is missing, not root, or a tenant failed.
pub fn run(options: &Options) -> Result<Report> {
    if command("sh", &["-c", "command -v sqlite3 awk"]).is_err() {
        bail!("sqlite3 is missing: 'scripts/setup.sh demo' installs it");
    }
    let rows = if options.quick { "4000" } else { "20000" };
    let tenants = options.points(TENANTS);
    let ground = Ground::for_tenants(&tenants)?;
    let title = "sqlite: a fixed load like speedtest1, all tenants in total";
    let mut report = Report::new("sqlite", title, "tenants", "statements/s", Better::Higher);
    let work = Work::Script(SCRIPT, vec![rows.into()]);
    let sweep = Sweep { work, per_op: 1.0, tenants };
    sweep.measure(options, &ground, &PLACES, &mut report)?;
    report.notes.push(format!("tables of {rows} rows"));
    report.notes.extend(NOTES.map(String::from));
    Ok(report)
}

/// Reads what the script says: `N statements, N ns, ok`.
fn outcome(said: &str) -> Result<Outcome> {
    let mut words = said.split_whitespace();
    let mut number = || words.by_ref().find_map(|word| word.parse::<u64>().ok());
    let (ops, ns) = (number().context("no count")?, number().context("no time")?);
    if ns == 0 || !said.ends_with(", ok") {
        bail!("the database is not what it should be");
    }
    Ok(Outcome { ops, seconds: ns as f64 / 1e9, ..Outcome::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tenant_says_is_read() {
        let said = outcome("13131 statements, 250000000 ns, ok").expect("an outcome");
        assert_eq!((said.ops, said.seconds), (13131, 0.25));
        for wrong in ["", "7 statements", "7 statements, 8 ns, *** in database", "x ns, ok"] {
            assert!(outcome(wrong).is_err(), "{wrong}");
        }
    }
}
