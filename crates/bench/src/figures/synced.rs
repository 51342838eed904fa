//! `synced`: what small syncs cost beside the host's ext4 with a journal: calls of one program,
//! threads that sync together, databases, and a neighbour that floods.
//!
//! The volume's file and the host's files lie on the same file system (`journaled`). Each
//! measurement is a program of its own on a fresh volume, and on the host, by turns; the one that
//! goes first changes. Before it the journal is taken past its first lap, but for the rows that say
//! `first lap`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::{rocksdb, synced_programs as programs};
use crate::journaled::Journaled;
use crate::place::{Ground, Place, Script, Tenant, together};
use crate::report::{Better, Report, judged};
use crate::worker::{Length, Outcome};
use crate::{Options, progress};

/// The first is the baseline.
const PLACES: [(Place, &str); 2] = [(Place::Disk, "host"), (Place::LaneExt4Disk, "lane")];

/// How much longer a flood lasts than what is measured, seconds.
const LONGER: f64 = 0.5;

/// What a row measures.
#[derive(Clone, Copy)]
enum Work {
    /// A load of the worker.
    Load(&'static str),
    /// A script, with its arguments.
    Script(&'static Script, &'static [&'static str]),
    /// The load beside a neighbour that floods: both on all CPUs, or each on one of its own.
    Beside(&'static str, Cpus),
}

#[derive(Clone, Copy, PartialEq)]
enum Cpus {
    Shared,
    Own,
}

/// What of a row is compared, and the ratio to the host's that it must not miss.
#[derive(Clone, Copy)]
enum Floor {
    /// The p50, at most.
    P50(f64),
    /// The rate, at least.
    Rate(f64),
    /// The lane's p99 beside the flood by its p99 alone, at most.
    Harm(f64),
}

struct Row {
    name: &'static str,
    work: Work,
    floor: Floor,
}

const fn row(name: &'static str, work: Work, floor: Floor) -> Row {
    Row { name, work, floor }
}

const ROWS: [Row; 18] = [
    row("append, first lap", Work::Load("sync-append-fresh"), Floor::P50(1.15)),
    row("append", Work::Load("sync-append"), Floor::P50(1.15)),
    row("overwrite, first lap", Work::Load("sync-overwrite-fresh"), Floor::P50(1.15)),
    row("overwrite", Work::Load("sync-overwrite"), Floor::P50(1.15)),
    row("publish, first lap", Work::Load("sync-publish-fresh"), Floor::P50(1.0)),
    row("publish", Work::Load("sync-publish"), Floor::P50(1.0)),
    row("2 threads", Work::Load("sync-append-2"), Floor::Rate(1.0)),
    row("8 threads", Work::Load("sync-append-8"), Floor::Rate(1.0)),
    row("64 threads", Work::Load("sync-append-64"), Floor::Rate(1.0)),
    row("SQLite rollback", Work::Script(&programs::SQLITE, &["delete"]), Floor::Rate(1.1)),
    row("SQLite WAL", Work::Script(&programs::SQLITE, &["wal"]), Floor::Rate(1.1)),
    row("RocksDB, 1 writer", Work::Script(&programs::ROCKSDB, &["1"]), Floor::Rate(0.9)),
    row("RocksDB, 8 writers", Work::Script(&programs::ROCKSDB, &["8"]), Floor::Rate(0.9)),
    row("pgbench, 1 client", Work::Script(&programs::PGBENCH, &["1"]), Floor::Rate(1.0)),
    row("pgbench, 4 clients", Work::Script(&programs::PGBENCH, &["4"]), Floor::Rate(1.0)),
    row("pgbench, 16 clients", Work::Script(&programs::PGBENCH, &["16"]), Floor::Rate(1.0)),
    row("flood, all CPUs", Work::Beside("sync-append", Cpus::Shared), Floor::Harm(2.0)),
    row("flood, a CPU each", Work::Beside("sync-append", Cpus::Own), Floor::Harm(1.0)),
];

const NOTES: [&str; 8] = [
    "append: 1 KiB, fdatasync; overwrite: 8 KiB of written blocks, fdatasync; publish: create, \
     write 4 KiB, fsync, rename, fsync of the directory; threads: each a file of its own",
    "first lap: the journal of a fresh volume, whose blocks take no space on the host yet; else \
     1200 syncs of 60 KiB go before",
    "SQLite: one insert a transaction, synchronous=FULL; RocksDB: db_bench fillrandom, --sync=1, \
     values of 1 KiB; pgbench: -N, scale 10, a fresh copy of one cluster",
    "flood: beside another lane, or directory, whose program writes 256 KiB and syncs, again and \
     again; p99_alone_us: without it, right before",
    "cpu_us: CPU time of the program and, on a lane, of its service, by the kernel's ticks; \
     kernel threads are not counted",
    "ratios are of two measurements one after the other: median (and range)",
    "p50 and p99 of SQLite and pgbench are not told",
    "the lane's volume is a sparse file",
];

/// Measures operations a second.
///
/// # Errors
/// Not root, or a tenant failed.
pub fn run(options: &Options) -> Result<Report> {
    let names = ROWS.map(|row| row.name.to_string());
    let chosen = options.chosen(&names)?;
    let title = "synced work beside the host's ext4 with a journal";
    let mut report = Report::new("synced", title, "work", "ops/s", Better::Higher);
    report.baseline = PLACES[0].1.into();
    let journaled = Journaled::at(options.disk.as_deref().unwrap_or(Path::new(".")))?;
    report.notes.push(journaled.note());
    let ground = Ground::on(journaled.dir(), 2)?;
    let shared = shared(&ground)?;
    for which in chosen {
        let row = &ROWS[which];
        match missing(row) {
            Some(why) => report.notes.push(format!("{} left out: {why}", row.name)),
            None => measure(options, &ground, &shared, row, &mut report)?,
        }
    }
    progress("");
    report.notes.extend(NOTES.map(String::from));
    Ok(report)
}

/// The directory of each place. A server that is another user's reaches it.
fn shared(ground: &Ground) -> Result<[PathBuf; 2]> {
    let [host, lane] = PLACES.map(|(place, _)| ground.prepare(place));
    let (host, lane) = (host?, lane?);
    fs::set_permissions(&host, fs::Permissions::from_mode(0o755)).context("open the directory")?;
    Ok([host, lane])
}

/// Why a row's program cannot be run here.
fn missing(row: &Row) -> Option<String> {
    let Work::Script(script, _) = row.work else { return None };
    let why = match script.name {
        "sqlite" => programs::needs(&["sqlite3"]),
        "rocksdb" => rocksdb::is_there(),
        _ => programs::needs(&["pgbench", "setpriv"]).and_then(|()| programs::has_server()),
    };
    why.err().map(|why| format!("{why:#}"))
}

/// What one measurement found.
struct Found {
    outcome: Outcome,
    /// Without the neighbour that floods, where there is one.
    alone: Option<Outcome>,
}

fn measure(
    options: &Options,
    ground: &Ground,
    shared: &[PathBuf; 2],
    row: &Row,
    report: &mut Report,
) -> Result<()> {
    let seconds = if options.quick { 0.5 } else { 1.5 };
    let cluster = programs::template(row.name.starts_with("pgbench"))?;
    let template = cluster.as_ref().map(programs::Template::path);
    let (mut ratios, mut hosts) = (Vec::new(), Vec::new());
    for repeat in 0..options.repeats() {
        let mut pair = [None, None];
        for turn in 0..PLACES.len() {
            let which = (turn + repeat) % PLACES.len();
            let ((place, name), shared) = (PLACES[which], &shared[which]);
            progress(&format!("synced {}, {name}, repeat {}", row.name, repeat + 1));
            let seconds = seconds.to_string();
            let found = one(row, place, shared, (&seconds, template.as_deref()))
                .with_context(|| format!("{}, {name}", row.name))?;
            ground.tidy(place, shared)?;
            report.add(name, row.name, found.outcome.rate(), &extra(row, &found));
            pair[which] = Some(found);
        }
        if let [Some(host), Some(lane)] = &pair {
            ratios.push(ratio(row.floor, host, lane));
            hosts.extend(matches!(row.floor, Floor::Harm(_)).then(|| harm(host)));
        }
    }
    report.notes.push(verdict(row, &ratios, &hosts));
    Ok(())
}

/// One measurement in one place.
fn one(
    row: &Row,
    place: Place,
    shared: &Path,
    (seconds, template): (&str, Option<&Path>),
) -> Result<Found> {
    let length = Length::Seconds(seconds.parse().context("seconds")?);
    let only = |tenant: Tenant| -> Result<Outcome> { Ok(together(vec![tenant])?.remove(0)) };
    match row.work {
        Work::Load(load) => {
            let tenant = Tenant::start(place, shared, load, 0, length)?;
            Ok(Found { outcome: only(tenant)?, alone: None })
        }
        Work::Script(script, own) => {
            let me = std::env::current_exe().context("own path")?.display().to_string();
            let mut words = vec![me, seconds.to_string()];
            words.extend(own.iter().map(|word| word.to_string()));
            words.extend(template.map(|template| template.display().to_string()));
            let tenant = Tenant::script(place, shared, script, 0, &words)?;
            Ok(Found { outcome: only(tenant)?, alone: None })
        }
        Work::Beside(load, cpus) => {
            let cpu = |number: usize| -> Result<Option<u32>> {
                let all = polylane_sys::cpu::allowed()?;
                let own = cpus == Cpus::Own;
                ensure!(!own || all.len() > 1, "there is one CPU");
                Ok(own.then(|| all[number]))
            };
            let start = |cpu| Tenant::start_on(cpu, place, shared, load, 0, length);
            let alone = Some(only(start(cpu(0)?)?)?);
            let flood = Length::Seconds(seconds.parse::<f64>().context("seconds")? + LONGER);
            let neighbour = Tenant::start_on(cpu(1)?, place, shared, "flood", 1, flood)?;
            let outcome = together(vec![start(cpu(0)?)?, neighbour])?.remove(0);
            Ok(Found { outcome, alone })
        }
    }
}

/// What is told beside the rate.
fn extra(row: &Row, found: &Found) -> Vec<(&'static str, f64)> {
    let (outcome, mut extra) = (&found.outcome, Vec::new());
    // On the host PostgreSQL's server is no descendant of the tenant's.
    if !row.name.starts_with("pgbench") {
        extra.push(("cpu_us", outcome.cpu_seconds * 1e6 / outcome.ops.max(1) as f64));
    }
    let latency = match outcome.kinds.get("put") {
        Some(puts) => *puts,
        None => outcome.latency,
    };
    // Scripts do not know it.
    if latency.p50_ns > 0.0 {
        extra.extend([("p50_us", latency.p50_ns / 1e3), ("p99_us", latency.p99_ns / 1e3)]);
    }
    extra.extend(found.alone.iter().map(|alone| ("p99_alone_us", alone.latency.p99_ns / 1e3)));
    extra
}

/// What the floor is of.
fn ratio(floor: Floor, host: &Found, lane: &Found) -> f64 {
    match floor {
        Floor::P50(_) => lane.outcome.latency.p50_ns / host.outcome.latency.p50_ns,
        Floor::Rate(_) => lane.outcome.rate() / host.outcome.rate(),
        Floor::Harm(_) => harm(lane),
    }
}

/// The p99 beside the flood by that alone.
fn harm(found: &Found) -> f64 {
    let alone = found.alone.as_ref().map_or(f64::NAN, |alone| alone.latency.p99_ns);
    found.outcome.latency.p99_ns / alone
}

/// A line about a row and its floor. `hosts`: what the flood does to the host's own program, which
/// shares the disk as well.
fn verdict(row: &Row, ratios: &[f64], hosts: &[f64]) -> String {
    let (of, floor, better) = match row.floor {
        Floor::P50(floor) => ("p50 × host", floor, Better::Lower),
        Floor::Rate(floor) => ("rate × host", floor, Better::Higher),
        Floor::Harm(floor) => ("p99 × alone", floor, Better::Lower),
    };
    let (found, said) = judged(ratios, floor, better);
    let beside = match hosts {
        [] => String::new(),
        hosts => format!("; on the host {}", judged(hosts, floor, better).0),
    };
    format!("{}: {of} {found} {said}{beside}", row.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_name_the_median_and_the_floor() {
        let said = |floor, ratios: &[f64]| verdict(&row("x", Work::Load("y"), floor), ratios, &[]);
        let [low, high] = [[0.5, 0.8, 1.0], [1.0, 1.5, 2.5]];
        assert!(said(Floor::P50(1.15), &low).ends_with("holds"));
        assert!(said(Floor::P50(1.15), &high).ends_with("is missed"));
        assert!(said(Floor::Rate(0.9), &low).ends_with("is missed"));
        assert!(said(Floor::Rate(0.9), &high).ends_with("holds"));
        assert!(said(Floor::Harm(2.0), &high).contains("p99 × alone 1.5"));
        let beside = verdict(&row("x", Work::Load("y"), Floor::Harm(1.0)), &high, &[1.8, 2.0, 1.9]);
        assert!(beside.ends_with("is missed; on the host 1.90"), "{beside}");
    }

    #[test]
    fn rows_have_names_of_their_own_and_loads_that_are_there() {
        let names: std::collections::BTreeSet<_> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ROWS.len());
        for row in &ROWS {
            if let Work::Load(load) | Work::Beside(load, _) = row.work {
                assert!(crate::worker::loads().any(|(name, _)| name == load), "{load}");
            }
        }
    }
}
