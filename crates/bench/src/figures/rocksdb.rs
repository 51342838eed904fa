//! `rocksdb-mixed` and `rocksdb-read`: a RocksDB for each tenant under `db_bench`, as Polytropon
//! (SoCC '20) measures it: half gets and half puts, and gets alone. `ceph-rocksdb`: the former on
//! CephFS.
//!
//! Each tenant is a process with a database of its own, filled and compacted before anyone starts.
//! RocksDB's block cache is kept small, so that most gets reach the file system, and puts are not
//! synced, as is `db_bench`'s default.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use super::sweep::{Sweep, Work};
use crate::Options;
use crate::ceph::{Cluster, Way};
use crate::histogram::Summary;
use crate::place::{Ground, Place, Script, on_cluster};
use crate::report::{Better, Report};
use crate::tools::command;
use crate::worker::Outcome;

/// The first is the baseline.
const PLACES: [Place; 4] =
    [Place::Kernel("ext4"), Place::LaneExt4, Place::LaneExt4Fuse, Place::KernelEach("ext4")];

/// On CephFS. The first is the baseline.
const CEPH_WAYS: [Way; 4] = [Way::CephFuse, Way::CephFuseUncached, Way::Lane, Way::LaneFuse];

/// Databases side by side on CephFS: each has a client, of up to 300 MB.
const CEPH_TENANTS: &[usize] = &[1, 4];

/// Databases side by side.
const TENANTS: &[usize] = &[1, 4, 16, 32];

/// The same for a look.
const TENANTS_QUICK: &[usize] = &[1, 4];

/// A database under `db_bench`, given the benchmark, for how many seconds, the number of keys and
/// whether puts are synced (`0`, `1`). What `db_bench` reports takes many lines; the tenant answers
/// with one.
pub const SCRIPT: Script = Script {
    name: "rocksdb",
    text: r#"
dir=$1 load=$2 seconds=$3 keys=$4 sync=$5
rm -rf "$dir"
mkdir -p "$dir"
bench() {
    db_bench --db="$dir/db" --num="$keys" --key_size=16 --value_size=1024 --compression_type=none \
        --cache_size=1048576 --write_buffer_size=8388608 --threads=1 "$@" 2>>"$dir/log"
}
bench --benchmarks=fillrandom,compact >>"$dir/log"
echo ready
read -r go
bench --use_existing_db=1 --benchmarks="$load" --readwritepercent=50 --duration="$seconds" \
    --sync="$sync" --histogram=1 | tr '\n' '\t'
echo
read -r end || true
rm -r "$dir"
"#,
    outcome,
};

const NOTES: [&str; 3] = [
    "a db_bench process and a database for each tenant: keys of 16 bytes, values of 1 KiB",
    "block cache 1 MiB, memtables 8 MiB, no compression, one thread, puts are not synced",
    "get, put: mean over the tenants of each one's percentile, from db_bench's histograms",
];

const CEPH_NOTES: [&str; 3] = [
    "each tenant has a directory and a Ceph client of its own: ceph-fuse's with 200 MiB of cache, \
     a lane's with half of its cache",
    "ceph-fuse: the kernel caches file data, also what another host has changed meanwhile where \
     two write (docs/design/ceph.md); no page cache: its client alone does",
    "cpu_us: CPU time of the programs and of their services, or of ceph-fuse, for each operation, \
     by the kernel's ticks; the cluster's daemons and kernel threads are not counted",
];

const LOCAL_NOTES: [&str; 2] = [
    "ext4: one kernel file system for all; each: one of 2500 MB for each, on loop devices in RAM",
    "lane (ext4): ext4 in user space on a volume in RAM for each; FUSE: without the library",
];

/// Half gets, half puts.
///
/// # Errors
/// `db_bench` is missing, not root, or a tenant failed; so too for [`read`].
pub fn mixed(options: &Options) -> Result<Report> {
    let title = "rocksdb-mixed: db_bench, half gets and half puts, all tenants in total";
    measure(options, "rocksdb-mixed", title, "readrandomwriterandom")
}

/// Gets of random keys.
pub fn read(options: &Options) -> Result<Report> {
    let title = "rocksdb-read: db_bench readrandom, all tenants in total";
    measure(options, "rocksdb-read", title, "readrandom")
}

/// Half gets, half puts, on CephFS.
///
/// # Errors
/// `db_bench` is missing, no cluster is named, not root, or a tenant failed.
pub fn ceph(options: &Options) -> Result<Report> {
    is_there()?;
    let cluster = Cluster::of(options)?;
    let (seconds, keys) = if options.quick { ("1", "20000") } else { ("5", "50000") };
    let title = "ceph-rocksdb: db_bench on CephFS, half gets and half puts, all tenants in total";
    let mut report = Report::new("ceph-rocksdb", title, "tenants", "ops/s", Better::Higher);
    let tenants = options.points(CEPH_TENANTS);
    let ground = Ground::for_tenants(&tenants)?;
    let places = on_cluster(cluster, &CEPH_WAYS, &mut report.notes);
    let arguments = ["readrandomwriterandom", seconds, keys, "0"].map(String::from).to_vec();
    let sweep = Sweep { work: Work::Script(SCRIPT, arguments), per_op: 1.0, tenants };
    sweep.measure(options, &ground, &places, &mut report)?;
    report.notes.push(format!("{keys} random keys are put before, measured for {seconds} s"));
    report.notes.extend(NOTES.iter().chain(&CEPH_NOTES).map(|note| note.to_string()));
    Ok(report)
}

fn measure(options: &Options, figure: &str, title: &str, load: &str) -> Result<Report> {
    is_there()?;
    let (tenants, seconds, keys) = match options.quick {
        true => (TENANTS_QUICK, "1", "20000"),
        false => (TENANTS, "5", "50000"),
    };
    let tenants = options.points(tenants);
    let ground = Ground::for_tenants(&tenants)?;
    let mut report = Report::new(figure, title, "tenants", "ops/s", Better::Higher);
    let arguments = [load, seconds, keys, "0"].map(String::from).to_vec();
    let sweep = Sweep { work: Work::Script(SCRIPT, arguments), per_op: 1.0, tenants };
    sweep.measure(options, &ground, &PLACES, &mut report)?;
    report.notes.push(format!("{keys} random keys are put before, measured for {seconds} s"));
    report.notes.extend(NOTES.iter().chain(&LOCAL_NOTES).map(|note| note.to_string()));
    Ok(report)
}

/// Whether `db_bench` can be run here.
///
/// # Errors
/// It is missing.
pub fn is_there() -> Result<()> {
    if command("sh", &["-c", "command -v db_bench"]).is_err() {
        bail!("db_bench is missing: install rocksdb-tools ('scripts/setup.sh apps' does)");
    }
    Ok(())
}

/// Reads `db_bench`'s report of one benchmark with histograms, its lines ended by tabs.
///
/// # Errors
/// There is no summary or no histogram in it: `db_bench` failed.
pub(super) fn outcome(said: &str) -> Result<Outcome> {
    let summary = said.split('\t').find_map(summary).context("no summary of db_bench")?;
    let kinds = histograms(said)?;
    if kinds.is_empty() {
        bail!("no histogram of db_bench");
    }
    Ok(Outcome { ops: summary.0, seconds: summary.1, kinds, ..Outcome::default() })
}

/// Operations and seconds in `NAME : N micros/op N ops/sec N seconds N operations; …`.
fn summary(line: &str) -> Option<(u64, f64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.iter().position(|word| *word == "micros/op")?;
    let before = |unit: &str| {
        let at = words.iter().position(|word| word.trim_end_matches(';') == unit)?;
        words.get(at.checked_sub(1)?).copied()
    };
    let (ops, seconds) = (before("operations")?.parse().ok()?, before("seconds")?.parse().ok()?);
    (ops > 0 && seconds > 0.0).then_some((ops, seconds))
}

/// The histograms by kind of operation; `db_bench` counts in microseconds.
fn histograms(said: &str) -> Result<BTreeMap<String, Summary>> {
    let mut kinds: BTreeMap<String, Summary> = BTreeMap::new();
    let mut kind = None;
    for line in said.split('\t') {
        if let Some(title) = line.strip_prefix("Microseconds per ") {
            kind = Some(kind_of(title.trim_end_matches(':'))?);
        }
        let Some(kind) = kind else { continue };
        let of = |name: &str| value(line, name).map(|micros| micros * 1000.0);
        if let (Some(count), Some(mean_ns)) = (value(line, "Count:"), of("Average:")) {
            let entry = Summary { count: count as u64, mean_ns, ..Summary::default() };
            kinds.insert(kind.into(), entry);
        }
        if let (Some(p50), Some(p99), Some(p999)) = (of("P50:"), of("P99:"), of("P99.9:")) {
            let entry = kinds.entry(kind.into()).or_default();
            (entry.p50_ns, entry.p99_ns, entry.p999_ns) = (p50, p99, p999);
        }
    }
    Ok(kinds)
}

fn kind_of(title: &str) -> Result<&'static str> {
    match title {
        "read" => Ok("get"),
        "write" => Ok("put"),
        other => bail!("db_bench has a histogram of '{other}'"),
    }
}

/// The number after the word `name`.
fn value(line: &str, name: &str) -> Option<f64> {
    let mut words = line.split_whitespace().skip_while(|word| *word != name);
    words.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What db_bench 7.8.3 prints, shortened.
    const MIXED: &str = "\
DB path: [/lane/rocksdb/db]
readrandomwriterandom :      11.038 micros/op 90285 ops/sec 1.008 seconds 90999 operations; \
( reads:45500 writes:45499 total:20000 found:38993)
Microseconds per read:
Count: 45500 Average: 8.6315  StdDev: 191.34
Min: 0  Median: 2.7112  Max: 20099
Percentiles: P50: 2.71 P75: 4.39 P99: 14.09 P99.9: 158.95 P99.99: 9198.75
------------------------------------------------------
[       0,       1 ]     4044   8.888%   8.888% ##

Microseconds per write:
Count: 45499 Average: 13.5234  StdDev: 211.73
Min: 3  Median: 5.8327  Max: 12108
Percentiles: P50: 5.83 P75: 8.08 P99: 20.36 P99.9: 3033.98 P99.99: 9779.02
";

    fn as_said(report: &str) -> String {
        report.replace('\n', "\t")
    }

    #[test]
    fn a_report_of_both_kinds_is_read() {
        let outcome = outcome(&as_said(MIXED)).expect("a report");
        assert_eq!((outcome.ops, outcome.seconds), (90999, 1.008));
        assert_eq!(outcome.kinds.keys().collect::<Vec<_>>(), ["get", "put"]);
        let (get, put) = (outcome.kinds["get"], outcome.kinds["put"]);
        assert_eq!((get.count, put.count), (45500, 45499));
        let micros = [get.p50_ns, get.p99_ns, put.p50_ns, put.p99_ns].map(|ns| ns / 1000.0);
        for (found, said) in micros.into_iter().zip([2.71, 14.09, 5.83, 20.36]) {
            assert!((found - said).abs() < 1e-9, "{found} is not {said}");
        }
    }

    #[test]
    fn a_report_without_puts_has_none() {
        let reads = MIXED.split("Microseconds per write").next().expect("the first part");
        let outcome = outcome(&as_said(reads)).expect("a report");
        assert_eq!(outcome.kinds.keys().collect::<Vec<_>>(), ["get"]);
    }

    #[test]
    fn what_a_failed_run_says_is_an_error() {
        let whole = as_said(MIXED);
        for said in ["", "open error: IO error: No space left on device\t", "\u{fffd}\t\t:"] {
            assert!(outcome(said).is_err(), "{said}");
        }
        let cut = whole.find("Microseconds").expect("histograms");
        assert!(outcome(&whole[..cut]).is_err(), "no histogram");
        let zero = whole.replace("90999 operations", "0 operations");
        assert!(outcome(&zero).is_err(), "nothing done");
        let other = whole.replace("per write", "per merge");
        assert!(outcome(&other).is_err(), "an unknown kind");
    }
}
