//! `engine`: what the block engine costs. Direct 4 KiB requests through it, in process, beside
//! fio's io_uring engine on the plain file; and its own work alone, on a medium that answers at
//! once.

use std::fs::OpenOptions;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use polylane_base::Errno;
use polylane_block::device::{BlockDevice, Channel, Completion, Error, Request, Submitted};
use polylane_block::engine::{Engine, Options as EngineOptions};
use polylane_block::file::{FileDevice, Way};
use polylane_block::image;
use polylane_block::map::{Unit, UnitOptions};
use polylane_block::medium::{Medium, Run, Space};

use crate::drive::{self, Load, Until};
use crate::place::{Ground, Place};
use crate::report::{Better, Report};
use crate::{Options, progress};

const SPAN: u64 = 1 << 30;

const ENGINE: &str = "engine";
const FIO: &str = "fio, plain file";
const FILE: &str = "file device";

/// Measures it on the disk below the current directory and on ext4 in RAM.
///
/// # Errors
/// fio is missing, or a request failed.
pub fn run(options: &Options) -> Result<Report> {
    let title = "direct 4 KiB requests through the engine, and by fio on the plain file";
    let mut report = Report::new("engine", title, "load", "IO/s", Better::Higher);
    report.baseline = FIO.into();
    let ground = Ground::new()?;
    let span = if options.quick { SPAN / 8 } else { SPAN };
    let time = Duration::from_millis(if options.quick { 1000 } else { 3000 });
    let disk = ground.prepare(Place::Disk)?.join("volume");
    let mut files = vec![("disk", disk)];
    match ground.prepare(Place::Kernel("ext4")) {
        Ok(dir) => files.push(("RAM", dir.join("volume"))),
        Err(error) => report.notes.push(format!("ext4 in RAM left out: {error:#}")),
    }
    for (_, path) in &files {
        fill(path, span)?;
    }
    for repeat in 0..options.repeats() {
        for (place, path) in &files {
            for (write, depth) in [(false, 1), (true, 1), (false, 32), (true, 32)] {
                let load = Load { write, random: true, piece: 4096, depth, span };
                let point = format!("{place} {}", load.name());
                progress(&format!("{point}, repeat {}", repeat + 1));
                one(&mut report, path, &point, &load, time)?;
            }
        }
        alone(&mut report)?;
    }
    report.notes.push("all blocks of the file are written before".into());
    report.notes.push("null: a medium that answers at once; 10^9 / (IO/s) is ns a request".into());
    Ok(report)
}

/// Writes the whole file, so that no request changes its map.
fn fill(path: &Path, span: u64) -> Result<()> {
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(path);
    let file = file.with_context(|| format!("create {}", path.display()))?;
    let data = vec![0x5a; 1 << 20];
    for at in (0..span).step_by(data.len()) {
        file.write_all_at(&data, at)?;
    }
    Ok(file.sync_all()?)
}

fn one(report: &mut Report, path: &Path, point: &str, load: &Load, time: Duration) -> Result<()> {
    let until = Until::Time(time);
    report.add(FIO, point, drive::fio(path, load, until)?, &[]);
    let files = image::open(path).map_err(|error| anyhow::anyhow!("{error:?}"))?;
    let file = FileDevice::open(files, Way::Ring).context("open the file")?;
    let unit = Unit::start(&UnitOptions::default())?;
    let engine = Engine::open(file.clone(), Some(unit), &EngineOptions::default())?;
    let rate = drive::channel(&mut *engine.channel(), load, until)?;
    report.add(ENGINE, point, rate, &[]);
    report.add(FILE, point, drive::channel(&mut *file.channel(), load, until)?, &[]);
    Ok(())
}

/// The engine's own work, and that of the loop around it.
fn alone(report: &mut Report) -> Result<()> {
    for write in [false, true] {
        let load = Load { write, random: true, piece: 4096, depth: 1, span: SPAN };
        let until = Until::Time(Duration::from_millis(300));
        let point = format!("null {}", load.name());
        let null: Arc<dyn Medium> = Arc::new(Null);
        let unit = Unit::start(&UnitOptions::default())?;
        let engine = Engine::open(null.clone(), Some(unit), &EngineOptions::default())?;
        let bare = drive::channel(&mut *null.channel(), &load, until)?;
        let through = drive::channel(&mut *engine.channel(), &load, until)?;
        let own_ns = 1e9 / through - 1e9 / bare;
        report.add(ENGINE, &point, through, &[("own_ns", own_ns)]);
        report.add(FILE, &point, bare, &[]);
    }
    Ok(())
}

/// A medium that answers at once, all of it written.
struct Null;

impl BlockDevice for Null {
    fn sector_count(&self) -> u64 {
        SPAN / 512
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        Box::new(NullChannel)
    }
}

impl Medium for Null {
    fn runs(&self, range: Range<u64>) -> Result<Vec<Run>, Error> {
        Ok(vec![Run { sectors: range, space: Space::Written, place: None }])
    }

    fn allocate(&self, _range: Range<u64>) -> Result<(), Error> {
        Err(Error::Medium(Errno::EINVAL))
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }
}

struct NullChannel;

impl Channel for NullChannel {
    fn submit(&mut self, request: Request) -> Submitted {
        Submitted::Done(request.complete(Ok(())))
    }

    fn poll(&mut self, _done: &mut Vec<Completion>) {}

    fn park(&mut self) {}
}
