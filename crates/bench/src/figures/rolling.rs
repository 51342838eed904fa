//! `rolling`: on a host without reflinks the oldest of 16 snapshots of an attached volume is merged
//! and removed, while fio reads and writes the volume.
//!
//! Goals: 60 s at most for a volume of 10 GiB, and 2 x the p99 of its requests meanwhile.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::attached::{Attached, Front};
use crate::report::{Better, Report};
use crate::tools::{command, fill, path, polylane};
use crate::{Options, progress};

const SNAPSHOTS: usize = 16;

/// What lies between the first two snapshots, and what is to be copied so.
const CASES: [(&str, &str, u64); 2] =
    [("one piece", "--rw=write", 1 << 20), ("pieces of 4 KiB", "--rw=randwrite", 4096)];

/// Longer than any removal.
const LOAD_SECONDS_MAX: u64 = 1200;

/// Sizes in bytes, and how long the load runs alone.
struct Scale {
    volume: u64,
    written: u64,
    copied: u64,
    rest: u64,
    alone: Duration,
}

/// Runs it.
///
/// # Errors
/// Not root, fio is missing, the host's file system shares blocks, or a request failed.
pub fn run(options: &Options) -> Result<Report> {
    let disk = options.disk.as_deref().context("it measures a real disk: give --disk DIR")?;
    let title = "requests of an attached volume while its oldest of 16 snapshots is removed";
    let mut report = Report::new("rolling", title, "when", "us, worse p99", Better::Lower);
    let scale = match options.quick {
        true => Scale {
            volume: 1 << 30,
            written: 96 << 20,
            copied: 64 << 20,
            rest: 1 << 20,
            alone: Duration::from_secs(3),
        },
        false => Scale {
            volume: 10 << 30,
            written: 1 << 30,
            copied: 768 << 20,
            rest: 8 << 20,
            alone: Duration::from_secs(30),
        },
    };
    for repeat in 0..options.repeats() {
        for case in CASES {
            progress(&format!("rolling, {}, repeat {}", case.0, repeat + 1));
            let dir = tempfile::tempdir_in(disk).context("a directory")?;
            refuse_reflinks(dir.path())?;
            measure(&mut report, dir.path(), &scale, case)?;
        }
    }
    report.notes.extend(scale.notes());
    Ok(report)
}

impl Scale {
    fn notes(&self) -> [String; 3] {
        let [volume, written, copied, rest] =
            [self.volume, self.written, self.copied, self.rest].map(|bytes| bytes >> 20);
        [
            format!(
                "fio: 4 KiB by 4, 7 of 10 are reads, 600 reads and writes a second at most, within \
                 the first {written} MiB; the worse p99 of both. removal: from the first request \
                 to the last"
            ),
            "goals, for 10 GiB: seconds 60 at most, beside (p99 over that before) 2 at most. The \
             command reads this user's records of volumes: thousands in the state directory cost \
             seconds (XDG_STATE_HOME names another)"
                .into(),
            format!(
                "a volume of {volume} MiB, of which the first {written} are written, a snapshot, \
                 {copied} MiB of them in one piece or in pieces of 4 KiB, a snapshot, and 14 more \
                 with {rest} MiB between them"
            ),
        ]
    }
}

/// A copy of a file that shares its blocks is no overlay, and removing it no merge.
fn refuse_reflinks(dir: &Path) -> Result<()> {
    let (from, to) = (dir.join("probe"), dir.join("probe-2"));
    fs::write(&from, [1; 4096]).context("write a file")?;
    let shares = command("cp", &["--reflink=always", path(&from)?, path(&to)?]).is_ok();
    ensure!(
        !shares,
        "{}: this file system shares blocks: there is nothing to merge",
        dir.display()
    );
    Ok(())
}

fn measure(
    report: &mut Report,
    dir: &Path,
    scale: &Scale,
    (name, how, piece): (&str, &str, u64),
) -> Result<()> {
    let (attached, volume) = (Attached::new()?, dir.join("volume.img"));
    let whole = |volume: &Path| fill(volume, scale.written);
    let device = attached.attach(&volume, scale.volume, Front::Loop, &whole)?;
    let snapshot = |number: usize| dir.join(format!("snapshot-{number}"));
    for number in 1..=SNAPSHOTS {
        let (how, piece, bytes) = match number {
            1 => ("", 0, 0),
            2 => (how, piece, scale.copied),
            _ => ("--rw=randwrite", 4096, scale.rest),
        };
        if bytes > 0 {
            write(&device, how, piece, (bytes, scale.written))?;
        }
        polylane(&["volume", "snapshot", path(&volume)?, path(&snapshot(number))?])?;
    }
    let alone = load(&device, scale)?.after(scale.alone)?;
    add(report, name, "before", &alone, &[]);
    let load_beside = load(&device, scale)?;
    let begun = Instant::now();
    let removed = polylane(&["volume", "rm", path(&snapshot(1))?]);
    let seconds = begun.elapsed().as_secs_f64();
    let beside = load_beside.after(Duration::ZERO)?;
    removed?;
    let more = beside.worse_p99() / alone.worse_p99();
    add(report, name, "removal", &beside, &[("seconds", seconds), ("beside", more)]);
    add(report, name, "after", &load(&device, scale)?.after(scale.alone)?, &[]);
    attached.detach()
}

fn add(report: &mut Report, case: &str, when: &str, found: &Found, more: &[(&str, f64)]) {
    let [read, write] = [found.read_p99_us, found.write_p99_us];
    let all = [("read_p99_us", read), ("write_p99_us", write), ("longest_ms", found.longest_ms)];
    report.add(case, when, found.worse_p99(), &[&all[..], more].concat());
}

/// Writes `bytes` of the first `span` once, in pieces, direct.
fn write(device: &Path, how: &str, piece: u64, (bytes, span): (u64, u64)) -> Result<()> {
    let words = [
        "--name=write".into(),
        format!("--filename={}", path(device)?),
        how.into(),
        format!("--bs={piece}"),
        format!("--size={span}"),
        format!("--io_size={bytes}"),
        "--iodepth=16".into(),
        "--ioengine=libaio".into(),
        "--direct=1".into(),
        "--end_fsync=1".into(),
    ];
    command("fio", &words.iter().map(String::as_str).collect::<Vec<_>>()).map(drop)
}

/// A load that runs.
struct Load(Child);

fn load(device: &Path, scale: &Scale) -> Result<Load> {
    let mut command = Command::new("fio");
    command.arg(format!("--filename={}", path(device)?));
    command.arg(format!("--size={}", scale.written));
    command.arg(format!("--runtime={LOAD_SECONDS_MAX}"));
    command.args([
        "--name=load",
        "--rw=randrw",
        "--rwmixread=70",
        "--bs=4k",
        "--iodepth=4",
        "--ioengine=libaio",
        "--direct=1",
        "--rate_iops=600",
        "--time_based",
        "--output-format=json",
    ]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    Ok(Load(child.context("run fio")?))
}

impl Load {
    /// Ends it after this time; what it found.
    fn after(self, time: Duration) -> Result<Found> {
        std::thread::sleep(time);
        command("kill", &["-INT", &self.0.id().to_string()])?;
        let said = self.0.wait_with_output().context("wait for fio")?.stdout;
        // First it says that it was ended.
        let start = said.iter().position(|byte| *byte == b'{').context("fio said nothing")?;
        let said: Value = serde_json::from_slice(&said[start..]).context("what fio said")?;
        let job = &said["jobs"][0];
        ensure!(job["error"] == 0, "a request of fio's failed");
        let of = |direction: &str, what: &str| {
            let latency = &job[direction]["clat_ns"];
            let found = if what == "max" { &latency[what] } else { &latency["percentile"][what] };
            found.as_f64().with_context(|| format!("fio's {direction} {what}"))
        };
        Ok(Found {
            read_p99_us: of("read", "99.000000")? / 1e3,
            write_p99_us: of("write", "99.000000")? / 1e3,
            longest_ms: of("read", "max")?.max(of("write", "max")?) / 1e6,
        })
    }
}

/// What a load came to.
struct Found {
    read_p99_us: f64,
    write_p99_us: f64,
    longest_ms: f64,
}

impl Found {
    fn worse_p99(&self) -> f64 {
        self.read_p99_us.max(self.write_p99_us)
    }
}
