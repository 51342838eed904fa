//! `fileappend`: each of several containers opens a large file of its image, appends 1 MiB to it
//! and closes it (Polytropon's Fileappend). The image's file is in the host's page cache.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use crate::report::{Better, Report, median};
use crate::unions::{Ground, Union, Way};
use crate::{Options, progress, tools};

/// The first is the baseline.
const WAYS: [Way; 6] =
    [Way::Overlayfs, Way::Metacopy, Way::FuseOverlayfs, Way::Plain, Way::LaneFuse, Way::Lane];

/// Opens, appends and closes when it is told to, and says how long that took. What it writes is in
/// memory before.
const APPENDS: &str = r#"
import os, sys, time
data = os.urandom(1 << 20)
print("ready", flush=True)
sys.stdin.readline()
begun = time.perf_counter_ns()
file = os.open("large", os.O_WRONLY | os.O_APPEND)
done = os.write(file, data)
os.close(file)
print(time.perf_counter_ns() - begun if done == len(data) else "short", flush=True)
"#;

/// Bytes of the file, by how many containers append to it: what peers copy is to fit on a disk.
fn size(containers: usize, quick: bool) -> u64 {
    match (quick, containers) {
        (true, _) => 256 << 20,
        (false, 1..=2) => 2 << 30,
        (false, _) => (8 << 30) / containers as u64,
    }
}

/// The same on CephFS, for all containers together: an upper there takes the whole file.
const CEPH_BYTES: u64 = 256 << 20;

const CEPH_NOTES: [&str; 2] = [
    "lower and uppers in one Ceph file system, each container by a client of its own: \
     fuse-overlayfs over ceph-fuse, or a lane over '--lower ceph:'; overlayfs takes no \
     upper on FUSE",
    "unionfs-fuse: not measured",
];

/// Measures milliseconds from the open call to the end of close, the median of all containers.
///
/// # Errors
/// Not root, no python3, or a union cannot be mounted.
pub fn run(options: &Options) -> Result<Report> {
    let title = "open a large file of a lower, append 1 MiB, close";
    let mut report = Report::new("fileappend", title, "containers", "ms", Better::Lower);
    let ground = Ground::of(options)?;
    let ways = Way::available(&ground.ways(&Way::chosen(&WAYS, options)?), &mut report.notes);
    ensure!(!ways.is_empty(), "nothing to measure is on this host");
    report.baseline = ways[0].name().to_string();
    if let Ground::Ceph(_) = ground {
        report.figure = "ceph-fileappend".into();
        report.notes.extend(CEPH_NOTES.map(String::from));
    }
    let points: &[usize] = if options.quick { &[1, 4] } else { &[1, 2, 4, 8, 32] };
    for containers in options.points(points) {
        let lower = ground.lower()?;
        let bytes = match ground {
            Ground::Host => size(containers, options.quick),
            Ground::Ceph(_) => CEPH_BYTES / containers as u64,
        };
        tools::fill(&lower.path().join("large"), bytes)?;
        report.notes.push(format!("{containers}: a file of {} MiB", bytes >> 20));
        for repeat in 0..options.repeats() {
            for &way in &ways {
                progress(&format!("{containers}, {}, repeat {}", way.name(), repeat + 1));
                measure(&mut report, (&ground, way), containers, lower.path())?;
            }
        }
    }
    let notes = ["grown_mib: what the changes of one container take on the host afterwards"];
    report.notes.extend(notes.map(String::from));
    Ok(report)
}

fn measure(
    report: &mut Report,
    (ground, way): (&Ground, Way),
    containers: usize,
    lower: &Path,
) -> Result<()> {
    // What is read of the lower comes from memory.
    let mut file = fs::File::open(lower.join("large")).context("the lower's file")?;
    std::io::copy(&mut file, &mut std::io::sink()).context("read the lower")?;
    let lowers = [lower.to_path_buf()];
    let unions: Vec<Union> =
        (0..containers).map(|_| ground.mount(way, &lowers)).collect::<Result<_>>()?;
    let before = grown(&unions)?;
    let mut working = Vec::new();
    for union in &unions {
        let mut program = union.program("python3", &["-c", APPENDS]);
        let mut child =
            program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("run python3")?;
        let mut out = BufReader::new(child.stdout.take().context("a pipe")?);
        let mut line = String::new();
        out.read_line(&mut line)?;
        ensure!(line == "ready\n", "python3 is not ready");
        working.push((child, out));
    }
    for (child, _) in &mut working {
        child.stdin.take().context("a pipe")?.write_all(b"\n")?;
    }
    let mut times = Vec::new();
    for (mut child, mut out) in working {
        let mut said = String::new();
        out.read_to_string(&mut said)?;
        ensure!(child.wait()?.success(), "an append failed");
        times.push(said.trim().parse::<f64>().context("a time")? / 1e6);
    }
    let grown = (grown(&unions)?.saturating_sub(before)) as f64 / containers as f64;
    let slowest = times.iter().copied().fold(0.0, f64::max);
    let extra = [("grown_mib", grown / f64::from(1 << 20)), ("slowest_ms", slowest)];
    report.add(way.name(), &containers.to_string(), median(&times), &extra);
    Ok(())
}

/// What the changes take on the host, once they are durable: lanes write back later.
fn grown(unions: &[Union]) -> Result<u64> {
    for union in unions {
        let file = fs::File::open(union.at().join("large")).context("the file")?;
        file.sync_all().context("sync it")?;
    }
    unions.iter().map(Union::changed_bytes).sum()
}
