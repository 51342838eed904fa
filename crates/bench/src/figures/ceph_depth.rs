//! `ceph-depth`: reads under way side by side on one file of CephFS, by the threads of one program
//! in a lane, beside fio's own client of RADOS.
//!
//! What is read is far larger than the client's cache, so that nearly each read is one of an OSD.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::ceph::{Cluster, Tenants, Way};
use crate::drive::{self, Found, Load, Until};
use crate::report::{Better, Report, judged};
use crate::tools::{command, path, polylane};
use crate::{Options, progress};

/// The pool that fio's objects are in.
const POOL: &str = "rbd";

/// Bytes that are read.
const SPAN: u64 = 128 << 20;

/// Objects of fio, each of as many bytes as those of a file.
const OBJECTS: u64 = SPAN / (4 << 20);

/// What a lane's rate is to have of fio's.
const FLOOR: f64 = 0.9;

/// Reads under way.
const DEPTHS: [u64; 3] = [1, 8, 32];

/// How the bytes are reached.
#[derive(Clone, Copy, PartialEq, Debug)]
enum System {
    /// Objects, by fio's client of RADOS.
    Rados,
    /// A file, by a lane with so many threads that wait for the cluster.
    Lane(Way, &'static str),
}

/// The first is the baseline. 8 threads are a lane's default.
const SYSTEMS: [System; 5] = [
    System::Rados,
    System::Lane(Way::Lane, "8"),
    System::Lane(Way::Lane, "32"),
    System::Lane(Way::LaneFuse, "8"),
    System::Lane(Way::LaneFuse, "32"),
];

impl System {
    fn name(self) -> String {
        match self {
            System::Rados => "fio's rados".to_string(),
            System::Lane(way, threads) => format!("{}, {threads} threads", way.name()),
        }
    }
}

const NOTES: [&str; 3] = [
    "reads of 4 KiB at random places of 128 MiB, all written before; a lane's client has a cache \
     of 8 MiB and reads nothing ahead",
    "fio's rados: one thread, 32 objects of 4 MiB in the pool 'rbd'; lanes: one file, as many \
     threads of one program as reads are under way",
    "threads: of the lane, that wait for the cluster ('--ceph-threads'; 8 by default)",
];

/// Measures reads per second.
///
/// # Errors
/// No cluster is named, it has no pool `rbd`, fio is missing, or a read failed.
pub fn run(options: &Options) -> Result<Report> {
    let title = "4 KiB at random places of one file on CephFS";
    let mut report = Report::new("ceph-depth", title, "load", "IO/s", Better::Higher);
    let cluster = Cluster::of(options)?;
    let names = SYSTEMS.map(System::name);
    let chosen: Vec<System> = options.chosen(&names)?.into_iter().map(|at| SYSTEMS[at]).collect();
    let engines = command("fio", &["--enghelp"])?;
    let has_peer = engines.split_whitespace().any(|word| word == "rados");
    let (mut tenants, objects) = (Tenants::new(cluster, 1), Objects::of(cluster));
    let dir = tenants.prepare(Way::Lane, Path::new(""))?.join("0");
    let mut ready = Vec::new();
    for system in chosen {
        if system == System::Rados && !has_peer {
            report.notes.push(format!("{} left out: fio has no such engine", system.name()));
            continue;
        }
        progress(&format!("ceph-depth: write for {}", system.name()));
        let whole = Load { write: true, random: false, piece: 1 << 20, depth: 1, span: SPAN };
        drive(system, cluster, (&dir, &objects), &whole, Until::End)?;
        ready.push(system);
    }
    ensure!(!ready.is_empty(), "nothing can be measured: {}", report.notes.join("; "));
    report.baseline = ready[0].name();
    let time = Until::Time(Duration::from_millis(if options.quick { 1000 } else { 3000 }));
    for repeat in 0..options.repeats() {
        for depth in DEPTHS {
            let load = Load { write: false, random: true, piece: 4096, depth, span: SPAN };
            for turn in 0..ready.len() {
                let system = ready[(turn + repeat) % ready.len()];
                progress(&format!("{}, {}, repeat {}", load.name(), system.name(), repeat + 1));
                let found = drive(system, cluster, (&dir, &objects), &load, time)?;
                report.add(&system.name(), &load.name(), found.rate, &[("p99_us", found.p99_us)]);
            }
        }
    }
    report.notes.extend(verdicts(&report));
    report.notes.extend(NOTES.map(String::from));
    Ok(report)
}

/// Lines about lanes where the most reads are under way.
fn verdicts(report: &Report) -> Vec<String> {
    let Some(point) = report.points().last().map(|point| point.to_string()) else {
        return Vec::new();
    };
    let samples = |system: System| match report.cell(&system.name(), &point) {
        Some(cell) => &cell.samples[..],
        None => &[],
    };
    let [peer, lanes @ ..] = SYSTEMS;
    let line = |system: System| {
        let pairs = samples(system).iter().zip(samples(peer));
        let ratios: Vec<f64> = pairs.map(|(own, peer)| own / peer).collect();
        let (middle, said) = judged(&ratios, FLOOR, Better::Higher);
        let line = format!("{}, {point}: {middle} × {} {said}", system.name(), peer.name());
        (!ratios.is_empty()).then_some(line)
    };
    lanes.into_iter().filter_map(line).collect()
}

fn drive(
    system: System,
    cluster: &Cluster,
    (dir, objects): (&Path, &Objects),
    load: &Load,
    until: Until,
) -> Result<Found> {
    match system {
        System::Rados => drive::fio_rados(cluster.conf(), &objects.options(), load, until),
        System::Lane(way, threads) => {
            let mut lane = cluster.lane(dir, way);
            let settings =
                ["--ceph-cache", "8M", "--ceph-read-ahead", "0", "--ceph-threads", threads, "--"];
            lane.extend(settings.map(OsString::from));
            drive::fio_threads(|fio| polylane(&[&lane[..], fio].concat()), load, until)
        }
    }
}

/// fio's objects. Dropped, they are gone.
struct Objects {
    conf: PathBuf,
    user: String,
    name: String,
}

impl Objects {
    fn of(cluster: &Cluster) -> Objects {
        let name = format!("polylane-bench-{}", std::process::id());
        Objects { conf: cluster.conf().to_path_buf(), user: cluster.user().to_string(), name }
    }

    /// What fio is told of them.
    fn options(&self) -> Vec<String> {
        let names: Vec<String> = (0..OBJECTS).map(|number| self.object(number)).collect();
        vec![
            format!("--clientname={}", self.user),
            format!("--pool={POOL}"),
            format!("--filename={}", names.join(":")),
            format!("--filesize={}", SPAN / OBJECTS),
        ]
    }

    fn object(&self, number: u64) -> String {
        format!("{}.{number}", self.name)
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        let Ok(conf) = path(&self.conf) else { return };
        let names: Vec<String> = (0..OBJECTS).map(|number| self.object(number)).collect();
        let mut words = vec!["-c", conf, "--id", &self.user, "-p", POOL, "rm", "--force-full"];
        words.extend(names.iter().map(String::as_str));
        // There are none where fio was not asked for any.
        let _ = command("rados", &words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_judged_where_most_reads_are_under_way() {
        let mut report = Report::new("ceph-depth", "x", "load", "IO/s", Better::Higher);
        for (system, rates) in SYSTEMS.into_iter().zip([[50.0, 100.0], [10.0, 95.0], [90.0, 80.0]])
        {
            for (point, rate) in ["randread 4k qd1", "randread 4k qd32"].into_iter().zip(rates) {
                report.add(&system.name(), point, rate, &[]);
            }
        }
        let lines = verdicts(&report);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("8 threads, randread 4k qd32: 0.950 ×"), "{lines:?}");
        assert!(lines[0].ends_with("holds") && lines[1].ends_with("is missed"), "{lines:?}");
    }
}
