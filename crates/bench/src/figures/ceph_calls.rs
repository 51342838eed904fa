//! `ceph-calls`: what single calls on CephFS take through a lane, beside ceph-fuse and beside the
//! client library called by the program itself; and `ceph-seqread`, a file read from the client's
//! cache.
//!
//! Each measurement is a program of its own with a client of its own, which wrote the file before,
//! so its client may cache it. Ways go by turns, and who goes first changes.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::sweep::available;
use crate::ceph::{Cluster, Way};
use crate::place::{Ground, Place, Tenant, on_cluster, together};
use crate::report::{Better, Report, judged, median};
use crate::worker::Length;
use crate::{Options, progress};

/// The first is the baseline.
const WAYS: [Way; 5] =
    [Way::CephFuse, Way::CephFuseUncached, Way::Library, Way::Lane, Way::LaneFuse];

const CALLS: [&str; 6] = ["cached-read", "cached-write", "fstat", "stat", "open-close", "create"];

const STREAMS: [&str; 1] = ["seqread"];

const NOTES: [&str; 6] = [
    "each measurement: a program and a Ceph client of its own. cached-read, cached-write: 4 KiB of \
     a file of 4 MiB that it wrote; fstat, stat, open-close: of a file of 4 KiB; create: with \
     4 KiB written and closed",
    "libcephfs: the library's calls by inode, by the program itself, with no rights, no table of \
     open files and no path but one name",
    "ceph-fuse: the kernel caches file data, also what another host has changed meanwhile where \
     two write (docs/design/ceph.md); no page cache: its client alone does",
    "cpu_us: CPU time of the program and of its service, or of ceph-fuse, for each operation, by \
     the kernel's ticks; the cluster's daemons and kernel threads are not counted",
    "no client keeps debug lines (debug_client=0/0 and others): as they come, ceph-fuse and \
     libcephfs do, and take several microseconds more for each call",
    "caches of the client: ceph-fuse and libcephfs 200 MiB, a lane half of its cache",
];

/// Measures microseconds for each call.
///
/// # Errors
/// No cluster is named, not root, or a tenant failed; so too for [`seqread`].
pub fn run(options: &Options) -> Result<Report> {
    let title = "calls on CephFS, one program at a time";
    let mut report = Report::new("ceph-calls", title, "call", "µs/op", Better::Lower);
    measure(options, &mut report, &CALLS)?;
    verdicts(&mut report);
    Ok(report)
}

/// Measures microseconds for each MiB of a file read from its client's cache.
///
/// # Errors
/// See [`run`].
pub fn seqread(options: &Options) -> Result<Report> {
    let title = "64 MiB of a file on CephFS read by 1 MiB, again and again";
    let mut report = Report::new("ceph-seqread", title, "load", "µs/MiB", Better::Lower);
    measure(options, &mut report, &STREAMS)?;
    shares(&mut report);
    Ok(report)
}

fn measure(options: &Options, report: &mut Report, loads: &[&'static str]) -> Result<()> {
    let cluster = Cluster::of(options)?;
    let (ways, loads) = chosen(options, loads)?;
    let seconds = if options.quick { 0.3 } else { 2.0 };
    let ground = Ground::with_tenants(1)?;
    let places = on_cluster(cluster, &ways, &mut report.notes);
    let ready = available(&ground, &places, report);
    ensure!(!ready.is_empty(), "nothing to measure is on this host");
    report.baseline = ready[0].0.name();
    for repeat in 0..options.repeats() {
        for load in &loads {
            for turn in 0..ready.len() {
                let place = &ready[(turn + repeat) % ready.len()];
                progress(&format!("{load} {}, repeat {}", place.0.name(), repeat + 1));
                one(report, &ground, place, load, seconds)?;
            }
        }
    }
    report.notes.extend(NOTES.map(String::from));
    Ok(())
}

/// The ways and the loads that are to be measured: names of both can be given.
fn chosen(options: &Options, loads: &[&'static str]) -> Result<(Vec<Way>, Vec<&'static str>)> {
    let ways = WAYS.iter().map(|way| way.name());
    let names: Vec<String> = ways.chain(loads.iter().copied()).map(String::from).collect();
    let found = options.chosen(&names)?;
    let ways: Vec<Way> = found.iter().filter_map(|&at| WAYS.get(at).copied()).collect();
    let rows = found.iter().filter_map(|&at| loads.get(at.checked_sub(WAYS.len())?).copied());
    let rows: Vec<_> = rows.collect();
    Ok((
        if ways.is_empty() { WAYS.to_vec() } else { ways },
        if rows.is_empty() { loads.to_vec() } else { rows },
    ))
}

fn one(
    report: &mut Report,
    ground: &Ground,
    (place, shared): &(Place, PathBuf),
    load: &str,
    seconds: f64,
) -> Result<()> {
    let tenant = Tenant::start(*place, shared, load, 0, Length::Seconds(seconds))?;
    let before = ground.cpu_seconds(*place);
    let outcome = together(vec![tenant])?.remove(0);
    let spent = outcome.cpu_seconds + ground.cpu_seconds(*place) - before;
    let extra = [
        ("p50_us", outcome.latency.p50_ns / 1e3),
        ("p99_us", outcome.latency.p99_ns / 1e3),
        ("cpu_us", spent * 1e6 / outcome.ops.max(1) as f64),
    ];
    report.add(&place.name(), load, 1e6 / outcome.rate(), &extra);
    Ok(())
}

/// Lines about the calls of lanes and their floors.
fn verdicts(report: &mut Report) {
    let samples = |report: &Report, way: Way, point: &str| {
        report.cell(way.name(), point).map(|cell| cell.samples.clone())
    };
    for way in [Way::Lane, Way::LaneFuse] {
        for (point, floor) in [("cached-read", 2.0), ("fstat", 2.0)] {
            let Some(own) = samples(report, way, point) else { continue };
            let said = line(way, point, "µs", &own, floor);
            report.notes.push(said);
        }
        let library = |report: &Report, point| samples(report, Way::Library, point);
        if let (Some(own), Some(bare)) = (samples(report, way, "stat"), library(report, "stat")) {
            let more: Vec<f64> = own.iter().zip(bare).map(|(own, bare)| own - bare).collect();
            report.notes.push(line(way, "stat", "µs more than libcephfs", &more, 3.0));
        }
        if let (Some(own), Some(bare)) = (samples(report, way, "create"), library(report, "create"))
        {
            let times: Vec<f64> = own.iter().zip(bare).map(|(own, bare)| own / bare).collect();
            report.notes.push(line(way, "create", "× libcephfs", &times, 1.1));
        }
    }
}

/// How the time of a lane is beside that of ceph-fuse, and its part for the way there and back.
fn shares(report: &mut Report) {
    let Some(point) = report.points().first().map(|point| point.to_string()) else { return };
    let samples = |way: Way| report.cell(way.name(), &point).map(|cell| cell.samples.clone());
    let mut lines = Vec::new();
    for way in [Way::Lane, Way::LaneFuse] {
        let Some(own) = samples(way) else { continue };
        for peer in [Way::CephFuse, Way::CephFuseUncached] {
            let Some(peers) = samples(peer) else { continue };
            let times: Vec<f64> = own.iter().zip(peers).map(|(own, peer)| own / peer).collect();
            lines.push(line(way, &point, &format!("× {}", peer.name()), &times, 0.7));
        }
        if let Some(bare) = samples(Way::Library) {
            let share = 100.0 * (1.0 - median(&bare) / median(&own)).max(0.0);
            lines.push(format!("{}, {point}: {share:.0} % of the time is IPC", way.name()));
        }
    }
    report.notes.extend(lines);
}

fn line(way: Way, point: &str, of: &str, found: &[f64], floor: f64) -> String {
    let (middle, said) = judged(found, floor, Better::Lower);
    format!("{}, {point}: {middle} {of} {said}", way.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_and_calls_can_be_chosen() {
        let asked = |names: &[&str]| {
            let systems = names.iter().map(|name| name.to_string()).collect();
            chosen(&Options { systems, ..Options::default() }, &CALLS)
        };
        let (ways, calls) = asked(&[]).expect("all");
        assert_eq!((ways.len(), calls.len()), (WAYS.len(), CALLS.len()));
        let (ways, calls) = asked(&["stat", "libcephfs"]).expect("one of each");
        assert_eq!((&ways[..], &calls[..]), (&[Way::Library][..], &["stat"][..]));
        let (ways, calls) = asked(&["create"]).expect("a call");
        assert_eq!((ways.len(), &calls[..]), (WAYS.len(), &["create"][..]));
        assert!(asked(&["seqread"]).is_err());
    }

    #[test]
    fn a_floor_is_of_the_median() {
        let said = |found: &[f64]| line(Way::Lane, "stat", "µs", found, 3.0);
        assert!(said(&[1.0, 2.0, 9.0]).ends_with("the floor 3.00 holds"));
        assert!(said(&[1.0, 4.0, 9.0]).ends_with("is missed"));
    }
}
