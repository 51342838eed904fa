//! `shared-instance`: two mounts of one service beside two services, each with the same files.
//!
//! Two tenants read the same files one after the other. With one service the second finds them in
//! the first one's cache; with two each has a cache of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::pools::{memory, processes};
use crate::lasting::Lane;
use crate::report::{Better, Report};
use crate::tools::fill;
use crate::{Options, progress};

/// Bytes that both read.
const BYTES: u64 = 48 << 20;

const SHARED: &str = "one service, two mounts";
const SEPARATE: &str = "two services";

/// Ways in.
const DOORS: [&str; 2] = ["library", "FUSE"];

/// Measures memory of all processes of the lanes once both have read.
///
/// # Errors
/// Not root, or a lane cannot be made.
pub fn run(options: &Options) -> Result<Report> {
    let title = "two tenants read the same 48 MiB: a shared instance beside separate ones";
    let mut report = Report::new("shared-instance", title, "by", "MiB", Better::Lower);
    report.baseline = SEPARATE.to_string();
    for repeat in 0..options.repeats() {
        for door in DOORS {
            for system in [SEPARATE, SHARED] {
                progress(&format!("{system}, {door}, repeat {}", repeat + 1));
                one(&mut report, system, door)?;
            }
        }
    }
    report.notes.extend([
        "MiB: proportional set size of all processes, less than before they read".to_string(),
        "second_hit_percent: pages that the second tenant found in the cache; read_mib: what was \
         read from the volumes; second_ms: how long the second tenant read"
            .to_string(),
    ]);
    Ok(report)
}

fn one(report: &mut Report, system: &str, door: &str) -> Result<()> {
    let dir = tempfile::tempdir().context("directory of lanes")?;
    let before = processes()?;
    let sources = ["a", "b"].map(|name| format!("volume:{}/{name}.img", dir.path().display()));
    let with = |source: &str| ["--size".to_string(), "128M".into(), source.to_string()];
    let mount = |name: &str, source: &str| {
        let source = with(source);
        let words: Vec<&str> = source.iter().map(String::as_str).collect();
        Lane::mount(dir.path(), name, &[], &words)
    };
    for (name, source) in ["a", "b"].into_iter().zip(&sources) {
        let lane = mount(name, source)?;
        fill(&lane.at().join("data"), BYTES)?;
        drop(lane);
        std::fs::remove_dir(dir.path().join(name)).context("remove the directory of a lane")?;
    }
    let mut lanes = vec![mount("a", &sources[0])?];
    let second = match system {
        SHARED => {
            let at = lanes[0].share(&[&sources[0]])?;
            (at, 0)
        }
        _ => {
            lanes.push(mount("b", &sources[1])?);
            (lanes[1].at().to_path_buf(), 1)
        }
    };
    let ours = || -> Result<Vec<u32>> { Ok(processes()?.difference(&before).copied().collect()) };
    let idle = memory(&ours()?)?;
    read(&lanes[0], lanes[0].at(), door)?;
    let (at, of) = second;
    let was = lanes[of].stats()?;
    let took_ms = read(&lanes[of], &at, door)?;
    let is = lanes[of].stats()?;
    let grown = |place: &str| number(&is, place) - number(&was, place);
    let (hits, misses) = (grown("/service/vfs/page_hits"), grown("/service/vfs/page_misses"));
    let volumes = lanes.iter().map(Lane::stats).collect::<Result<Vec<_>>>()?;
    let read: f64 = volumes.iter().map(|it| number(it, "/service/volume/read_bytes")).sum();
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let extra = [
        ("second_hit_percent", 100.0 * hits / (hits + misses).max(1.0)),
        ("read_mib", mib(read)),
        ("second_ms", took_ms),
    ];
    report.add(system, door, mib(memory(&ours()?)? - idle), &extra);
    Ok(())
}

fn number(stats: &Value, at: &str) -> f64 {
    stats.pointer(at).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

/// Has a program read the file in a mount of the lane; milliseconds.
fn read(lane: &Lane, at: &Path, door: &str) -> Result<f64> {
    let file: PathBuf = at.join("data");
    let mut command = Command::new("dd");
    command.arg(format!("if={}", file.display())).args(["of=/dev/null", "bs=128k"]);
    command.stderr(std::process::Stdio::null());
    if door == DOORS[0] {
        command.envs(lane.environment().iter().map(|(name, value)| (name, value)));
        command.env("POLYLANE_MOUNT", at);
        let run = format!("{}:{}", lane.run_dir().display(), at.display());
        command.env("POLYLANE_RUN", run);
    }
    let begun = std::time::Instant::now();
    let status = command.status().context("run dd")?;
    ensure!(status.success(), "dd: {status}");
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}
