//! `translate`: what binding the translation threads to few cores gains, and what prefetching does
//! (MultiLanes, FAST'14 §3.3.2). Lanes read one block of every chunk of cold volumes, in any order,
//! and each read waits until it is known where its chunk lies.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use polylane_base::rng::Rng;
use polylane_block::device::{BlockDevice, Sector};
use polylane_block::engine::{Engine, Options as EngineOptions};
use polylane_block::file::{FileDevice, Way};
use polylane_block::image;
use polylane_block::map::{Unit, UnitOptions};
use polylane_block::wait::Waiter;
use polylane_sys::cpu;

use crate::place::{Ground, Place};
use crate::report::{Better, Report};
use crate::{Options, progress};

const LANES: usize = 8;
const SPAN: u64 = 64 << 20;
const CHUNK: u64 = 64 << 10;

/// Bytes that one look at the host's map takes in, and its name. The first is no prefetching.
const PREFETCH: [(u64, &str); 4] =
    [(CHUNK, "64k"), (1 << 20, "1m"), (8 << 20, "8m"), (SPAN, "64m")];

/// Threads, and whether they are bound to one core.
const UNITS: [(&str, usize, bool); 4] = [
    ("thread per lane, anywhere", LANES, false),
    ("thread per lane, one core", LANES, true),
    ("one thread, anywhere", 1, false),
    ("one thread, one core", 1, true),
];

/// Measures it on ext4 in RAM.
///
/// # Errors
/// Not root, or a request failed.
pub fn run(options: &Options) -> Result<Report> {
    let title = "first reads of every chunk of 8 cold volumes, which wait for translation";
    let mut report = Report::new("translate", title, "prefetch", "reads/s", Better::Higher);
    report.baseline = UNITS[0].0.into();
    let ground = Ground::new()?;
    let dir = ground.prepare(Place::Kernel("ext4"))?;
    let paths: Vec<PathBuf> = (0..LANES).map(|lane| dir.join(format!("lane-{lane}"))).collect();
    for path in &paths {
        scatter(path)?;
    }
    for repeat in 0..options.repeats() {
        for (prefetch, point) in PREFETCH {
            for (system, threads, bound) in UNITS {
                progress(&format!("{system}, prefetch {point}, repeat {}", repeat + 1));
                let cpus =
                    if bound { cpu::allowed()?.into_iter().take(1).collect() } else { vec![] };
                let unit = Unit::start(&UnitOptions { threads, cpus })?;
                let (rate, looks) = measure(&paths, &unit, prefetch)?;
                report.add(system, point, rate, &[("looks", looks as f64)]);
            }
        }
    }
    report.notes.push("looks: how often the host was asked; prefetch 64k is one chunk".into());
    Ok(report)
}

/// A volume whose every other chunk is written, so that its map is long.
fn scatter(path: &Path) -> Result<()> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    file.set_len(SPAN)?;
    let data = vec![0x5a; CHUNK as usize];
    for at in (0..SPAN).step_by(2 * CHUNK as usize) {
        file.write_all_at(&data, at)?;
    }
    Ok(file.sync_all()?)
}

/// Reads per second of all lanes together, and looks.
fn measure(paths: &[PathBuf], unit: &Arc<Unit>, prefetch: u64) -> Result<(f64, u64)> {
    let mut engines = Vec::new();
    for path in paths {
        let files = image::open(path).map_err(|error| anyhow::anyhow!("{error:?}"))?;
        let file = FileDevice::open(files, Way::Ring).context("open the file")?;
        let options = EngineOptions {
            chunk_bytes: CHUNK,
            prefetch_bytes: prefetch,
            must_translate: true,
            ..EngineOptions::default()
        };
        engines.push(Engine::open(file, Some(unit.clone()), &options)?);
    }
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let read = |(seed, engine): (usize, &Arc<Engine>)| {
            let engine = engine.clone();
            scope.spawn(move || read_all(engine, seed as u64))
        };
        let lanes: Vec<_> = engines.iter().enumerate().map(read).collect();
        lanes.into_iter().try_for_each(|lane| lane.join().expect("no lane panics"))
    })?;
    let reads = paths.len() as u64 * (SPAN / CHUNK);
    let looks = engines.iter().map(|engine| engine.totals().translations).sum();
    Ok((reads as f64 / begin.elapsed().as_secs_f64(), looks))
}

/// One block of every chunk, in any order.
fn read_all(engine: Arc<Engine>, seed: u64) -> Result<()> {
    let mut chunks: Vec<u64> = (0..engine.sector_count() * 512 / CHUNK).collect();
    let mut rng = Rng::new(seed);
    for at in (1..chunks.len()).rev() {
        chunks.swap(at, rng.below(at as u64 + 1) as usize);
    }
    let waiter = Waiter::new(engine);
    for chunk in chunks {
        waiter.read(Sector(chunk * CHUNK / 512), 4096).context("a read")?;
    }
    Ok(())
}
