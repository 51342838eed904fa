//! `rocksdb-flood`: RocksDB's puts beside a neighbour who floods: Polytropon's question (SoCC '20)
//! on a host that has not the CPUs for 32 tenants. `ceph-flood`: the same on one Ceph cluster.
//!
//! One tenant runs `db_bench`, half gets and half puts, first alone, then while another writes 256
//! KiB and syncs, over and over. Puts are synced or not: one that is not waits for the file system
//! only where RocksDB does, when a memtable is full and the one before is not yet written.

use anyhow::{Context, Result, ensure};

use super::rocksdb::{self, SCRIPT};
use super::sweep::available;
use crate::ceph::{Cluster, Way};
use crate::place::{Ground, Place, Tenant, on_cluster, together};
use crate::report::{Better, Report, align, number};
use crate::worker::{Length, Outcome};
use crate::{Options, progress};

/// The first is the baseline.
const PLACES: [Place; 6] = [
    Place::Kernel("ext4"),
    Place::KernelEach("ext4"),
    Place::LaneExt4,
    Place::LaneExt4Fuse,
    Place::Disk,
    Place::LaneExt4Disk,
];

/// How puts are done: the points alone and beside the flood, and `db_bench`'s `--sync`.
const PUTS: [([&str; 2], &str); 2] = [
    (["puts alone", "puts beside a flood"], "0"),
    (["synced puts alone", "synced puts beside a flood"], "1"),
];

/// How much longer the flood lasts than what is measured, seconds: `db_bench` opens its database
/// first.
const LONGER: f64 = 0.5;

const NOTES: [&str; 3] = [
    "one db_bench: keys of 16 bytes, values of 1 KiB, block cache 1 MiB, memtables 8 MiB",
    "the flood: another tenant writes 256 KiB and syncs, again and again; flood_per_s: its rate",
    "both tenants, their services too, share all CPUs",
];

/// On CephFS. The first is the baseline.
const CEPH_WAYS: [Way; 4] = [Way::CephFuse, Way::CephFuseUncached, Way::Lane, Way::LaneFuse];

const CEPH_NOTES: [&str; 2] = [
    "each tenant has a directory and a Ceph client of its own, on one cluster, whose daemons share \
     these CPUs, too",
    "ceph-fuse: the kernel caches file data; no page cache: its client alone does",
];

const LOCAL_NOTES: [&str; 3] = [
    "ext4: both in one kernel file system in RAM; each: one on a loop device in RAM for each",
    "lane (ext4): a lane each, ext4 in user space on a volume in RAM; FUSE: without the library",
    "disk: both in one directory of the host's own file system; lane (ext4, disk): volumes there",
];

/// Measures the p99 of puts.
///
/// # Errors
/// `db_bench` is missing, not root, or a tenant failed.
pub fn run(options: &Options) -> Result<Report> {
    let title = "rocksdb-flood: p99 of a RocksDB's puts, alone and beside a flood of fsyncs";
    let report = Report::new("rocksdb-flood", title, "the tenant's", "p99 µs", Better::Lower);
    measure(options, report, &PLACES, &LOCAL_NOTES)
}

/// The same on CephFS.
///
/// # Errors
/// `db_bench` is missing, no cluster is named, not root, or a tenant failed.
pub fn ceph(options: &Options) -> Result<Report> {
    let cluster = Cluster::of(options)?;
    let title = "ceph-flood: p99 of a RocksDB's puts on CephFS, alone and beside a flood of fsyncs";
    let mut report = Report::new("ceph-flood", title, "the tenant's", "p99 µs", Better::Lower);
    let places = on_cluster(cluster, &CEPH_WAYS, &mut report.notes);
    let names: Vec<_> = places.iter().map(|place| place.name()).collect();
    let chosen = options.chosen(&names)?.into_iter().map(|which| places[which]);
    measure(options, report, &chosen.collect::<Vec<_>>(), &CEPH_NOTES)
}

fn measure(
    options: &Options,
    mut report: Report,
    places: &[Place],
    notes: &[&str],
) -> Result<Report> {
    rocksdb::is_there()?;
    let (seconds, keys) = if options.quick { (1.0, "20000") } else { (5.0, "50000") };
    let ground = Ground::with_tenants(2)?;
    let figure = report.figure.clone();
    let ready = available(&ground, places, &mut report);
    report.baseline = ready.first().map(|(place, _)| place.name()).unwrap_or_default();
    for repeat in 0..options.repeats() {
        for (place, shared) in &ready {
            progress(&format!("{figure} {}, repeat {}", place.name(), repeat + 1));
            for ([alone, beside], sync) in PUTS {
                let load = ["readrandomwriterandom", &seconds.to_string(), keys, sync];
                let load = load.map(String::from);
                let database = || Tenant::script(*place, shared, &SCRIPT, 0, &load);
                record(&mut report, *place, alone, &together(vec![database()?])?)?;
                ground.tidy(*place, shared)?;
                let length = Length::Seconds(seconds + LONGER);
                let flood = Tenant::start(*place, shared, "flood", 1, length)?;
                record(&mut report, *place, beside, &together(vec![database()?, flood])?)?;
                ground.tidy(*place, shared)?;
            }
        }
    }
    progress("");
    report.notes.push(format!("{keys} random keys are put before, measured for {seconds} s"));
    report.notes.extend(NOTES.iter().chain(notes).map(|note| note.to_string()));
    crate::line!("{}", harm(&report));
    Ok(report)
}

/// Books what the tenant with the database found, and the flood's rate where there was one.
fn record(report: &mut Report, place: Place, point: &str, outcomes: &[Outcome]) -> Result<()> {
    let [database, flood @ ..] = outcomes else { return Ok(()) };
    let put = database.kinds.get("put").context("db_bench did no puts")?;
    let get = database.kinds.get("get").context("db_bench did no gets")?;
    ensure!(put.p99_ns > 0.0, "db_bench gave no p99 of its puts");
    let mut extra = vec![
        ("put_p50_us", put.p50_ns / 1000.0),
        ("get_p99_us", get.p99_ns / 1000.0),
        ("ops_per_s", database.rate()),
    ];
    extra.extend(flood.first().map(|flood| ("flood_per_s", flood.rate())));
    report.add(&place.name(), point, put.p99_ns / 1000.0, &extra);
    Ok(())
}

/// What the flood does to the puts, per place, and how their p99 is beside the baseline's.
fn harm(report: &Report) -> String {
    let heads = ["puts, beside a flood", "p99", "p50", "operations/s", "p99 of the shared ext4's"];
    let mut rows = vec![heads.map(String::from).to_vec()];
    for ([alone, beside], _) in PUTS {
        let shared = report.cell(&report.baseline, beside).map(|cell| cell.median());
        for system in report.systems() {
            let cells = (report.cell(system, alone), report.cell(system, beside));
            let (Some(alone), Some(flooded)) = cells else { continue };
            let change =
                |name: &str| format!("× {}", number(flooded.extra[name] / alone.extra[name]));
            rows.push(vec![
                format!("{}: {system}", beside.trim_end_matches(" beside a flood")),
                format!("× {}", number(flooded.median() / alone.median())),
                change("put_p50_us"),
                change("ops_per_s"),
                shared.map_or(String::new(), |of| number(flooded.median() / of)),
            ]);
        }
    }
    format!("  What the flood does to the puts:\n{}", align(&rows))
}
