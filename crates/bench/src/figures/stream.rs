//! `stream`: a stream of writes onto a fresh sparse volume, where each piece needs space of the
//! host first. MultiLanes lost 9 to 45 % there (FAST'14 §5.4).

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use polylane_block::device::BlockDevice;
use polylane_block::engine::{Engine, Options as EngineOptions};
use polylane_block::file::{FileDevice, Way};
use polylane_block::image;
use polylane_block::map::{Unit, UnitOptions};

use crate::drive::{self, Load, Until};
use crate::place::{Ground, Place};
use crate::report::{Better, Report};
use crate::{Options, progress};

const FIO: &str = "fio, sparse file";

/// How far ahead space is made, in MiB; 0: not at all.
const AHEAD_MIB: [u64; 4] = [0, 4, 16, 64];

/// Measures it on the disk below the current directory, ext4 and XFS in RAM.
///
/// # Errors
/// fio is missing, or a request failed.
pub fn run(options: &Options) -> Result<Report> {
    let title = "stream of direct writes onto a fresh sparse volume";
    let mut report = Report::new("stream", title, "load", "MiB/s", Better::Higher);
    report.baseline = FIO.into();
    let ground = Ground::new()?;
    let mut dirs = vec![("disk", ground.prepare(Place::Disk)?)];
    for kind in ["ext4", "xfs"] {
        match ground.prepare(Place::Kernel(kind)) {
            Ok(dir) => dirs.push((kind, dir)),
            Err(error) => report.notes.push(format!("{kind} in RAM left out: {error:#}")),
        }
    }
    let shift = if options.quick { 3 } else { 0 };
    // Small pieces take longer: less of them.
    let loads: [(u64, u64, u64); 5] =
        [(4, 1, 64), (4, 32, 256), (16, 32, 512), (64, 32, 1024), (1024, 8, 1024)];
    for repeat in 0..options.repeats() {
        for (kind, dir) in &dirs {
            for (kib, depth, mib) in loads {
                let (piece, span) = (kib << 10, mib << 20 >> shift);
                let load = Load { write: true, random: false, piece, depth, span };
                let point = format!("{kind} {}", load.name());
                progress(&format!("{point}, repeat {}", repeat + 1));
                one(&mut report, dir, &point, &load)?;
            }
        }
    }
    report.notes.push("ahead N: space is made up to N MiB ahead of the stream".into());
    report.notes.push(super::engine::CPU_NOTE.into());
    report.notes.push("written file: fio where all space had been written before".into());
    Ok(report)
}

fn one(report: &mut Report, dir: &Path, point: &str, load: &Load) -> Result<()> {
    let path = dir.join("stream");
    let mib = |rate: f64| rate * load.piece as f64 / (1 << 20) as f64;
    fresh(&path, load.span)?;
    let first = drive::fio(&path, load, Until::End)?;
    report.add(FIO, point, mib(first.rate), &first.extra());
    let again = drive::fio(&path, load, Until::End)?;
    report.add("fio, written file", point, mib(again.rate), &again.extra());
    for ahead in AHEAD_MIB {
        fresh(&path, load.span)?;
        let files = image::open(&path).map_err(|error| anyhow::anyhow!("{error:?}"))?;
        let file = FileDevice::open(files, Way::Ring).context("open the file")?;
        let unit = Unit::start(&UnitOptions::default())?;
        let options = EngineOptions { ahead_bytes: ahead << 20, ..EngineOptions::default() };
        let engine = Engine::open(file, Some(unit), &options)?;
        let found = drive::channel(&mut *engine.clone().channel(), load, Until::End)?;
        let made = ("chunks", engine.totals().made_ahead as f64);
        let extra = [&found.extra()[..], &[made]].concat();
        report.add(&format!("engine, ahead {ahead}"), point, mib(found.rate), &extra);
    }
    std::fs::remove_file(&path).context("remove the volume")
}

/// A sparse file, and a device that has nothing left to do.
fn fresh(path: &Path, bytes: u64) -> Result<()> {
    let _ = std::fs::remove_file(path);
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    file.set_len(bytes)?;
    file.sync_all()?;
    rustix::fs::syncfs(&file).context("sync the file system")
}
