//! `engine`: what the block engine costs. Direct 4 KiB requests through it, in process, beside
//! fio's io_uring engine on the plain file; past the host's file system (bypass) beside the file;
//! and its own work alone, on a medium that answers at once.

use std::fs::OpenOptions;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use polylane_base::Errno;
use polylane_base::rng::Rng;
use polylane_block::bypass::{BypassVolume, Claim, Id, Layout, PoolError, PoolFile, Use};
use polylane_block::device::{
    BlockDevice, Channel, Completion, Error, Op, Request, Sector, Submitted,
};
use polylane_block::engine::{Engine, Options as EngineOptions};
use polylane_block::file::{FileDevice, Way};
use polylane_block::image;
use polylane_block::map::{Unit, UnitOptions};
use polylane_block::medium::{Medium, Run, Space};
use polylane_sys::buffer::Buffer;
use rustix::time::{ClockId, clock_gettime};

use crate::drive::{self, Found, Load, Until};
use crate::place::{Ground, Place};
use crate::report::{Better, Report};
use crate::tools::fill;
use crate::{Options, progress};

const SPAN: u64 = 1 << 30;

const POOL_ID: Id = *b"bench of bypass.";
const VOLUME_ID: Id = *b"the one in there";

const ENGINE: &str = "engine";
const FIO: &str = "fio, plain file";
const FILE: &str = "file device";
const BYPASS: &str = "bypass device";

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
    let mut pools = Vec::new();
    for (place, path) in &files {
        fill(path, span)?;
        let pool = Pool::new(path, span);
        if let Err(error) = &pool {
            report.notes.push(format!("bypass on {place} left out: {error:#}"));
        }
        pools.push(pool.ok());
    }
    for repeat in 0..options.repeats() {
        for ((place, path), pool) in files.iter().zip(&pools) {
            for (write, depth) in [(false, 1), (true, 1), (false, 32), (true, 32)] {
                let load = Load { write, random: true, piece: 4096, depth, span };
                let point = format!("{place} {}", load.name());
                progress(&format!("{point}, repeat {}", repeat + 1));
                // Nobody is always first: the disk of a virtual machine may be fast for a while.
                let mut systems = vec![FIO, ENGINE, FILE, BYPASS];
                systems.truncate(if pool.is_some() { 4 } else { 3 });
                let first = repeat % systems.len();
                systems.rotate_left(first);
                for system in systems {
                    let found = one(system, path, pool.as_ref(), &load, time)?;
                    report.add(system, &point, found.rate, &found.extra());
                }
            }
        }
        alone(&mut report)?;
    }
    report.notes.push("all blocks of the file are written before; who is first rotates".into());
    report.notes.push(CPU_NOTE.into());
    report.notes.push("null: a medium that answers at once; own_ns is the engine's part".into());
    Ok(report)
}

/// What the further columns are.
pub(super) const CPU_NOTE: &str =
    "cpu_us, switches: of the thread that drives the load, per request";

/// A pool file with one volume in it, beside the plain file.
struct Pool {
    used: Use,
    path: PathBuf,
}

impl Pool {
    fn new(beside: &Path, span: u64) -> Result<Pool> {
        let path = beside.with_extension("pool");
        let chunks = u32::try_from(span.div_ceil(Layout::POOL.chunk_bytes))?;
        let failed = |error: PoolError| anyhow::anyhow!("{}: {error}", path.display());
        PoolFile::make(&path, POOL_ID, chunks, &|_| ()).map_err(failed)?;
        let used = PoolFile::open(&path).and_then(PoolFile::use_it).map_err(failed)?;
        // From here on it is unpinned, whatever happens.
        let pool = Pool { used, path: path.clone() };
        pool.used.make_volume(VOLUME_ID, span, &|_| ()).map_err(failed)?;
        Ok(pool)
    }

    fn open(&self) -> Result<Arc<BypassVolume>> {
        let failed = |error: PoolError| anyhow::anyhow!("{}: {error}", self.path.display());
        let stub = self.path.with_extension("stub");
        let stub = OpenOptions::new().create(true).truncate(false).write(true).open(stub)?;
        let claim = self.used.files().and_then(|files| Claim::new(&stub, files)).map_err(failed)?;
        let tell = |line: &str| eprintln!("bench: {line}");
        let volume = claim.open(VOLUME_ID, Way::Ring, Box::new(tell)).map_err(failed)?;
        anyhow::ensure!(volume.is_on_disk(), "it does not bypass");
        Ok(volume)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.used.end();
    }
}

/// One system under a load.
fn one(
    system: &str,
    path: &Path,
    pool: Option<&Pool>,
    load: &Load,
    time: Duration,
) -> Result<Found> {
    let until = Until::Time(time);
    if let (BYPASS, Some(pool)) = (system, pool) {
        return drive::channel(&mut *pool.open()?.channel(), load, until);
    }
    if system == FIO {
        return drive::fio(path, load, until);
    }
    let files = image::open(path).map_err(|error| anyhow::anyhow!("{error:?}"))?;
    let file = FileDevice::open(files, Way::Ring).context("open the file")?;
    if system == FILE {
        return drive::channel(&mut *file.channel(), load, until);
    }
    let unit = Unit::start(&UnitOptions::default())?;
    let engine = Engine::open(file, Some(unit), &EngineOptions::default())?;
    drive::channel(&mut *engine.channel(), load, until)
}

/// The engine's own work: what a request costs with it, less what it costs without. Time of this
/// thread, so that what else runs does not count.
fn alone(report: &mut Report) -> Result<()> {
    for (write, point) in [(false, "null read 4k"), (true, "null write 4k")] {
        let null: Arc<dyn Medium> = Arc::new(Null { sectors: SPAN / 512 });
        let unit = Unit::start(&UnitOptions::default())?;
        let engine = Engine::open(null.clone(), Some(unit), &EngineOptions::default())?;
        let bare_ns = cost_ns(&mut *null.channel(), write)?;
        let through_ns = cost_ns(&mut *engine.channel(), write)?;
        let own_ns = through_ns - bare_ns;
        report.add(ENGINE, point, 1e9 / through_ns, &[("own_ns", own_ns)]);
        report.add(FILE, point, 1e9 / bare_ns, &[]);
    }
    Ok(())
}

/// Nanoseconds of this thread per request at random places.
fn cost_ns(channel: &mut dyn Channel, write: bool) -> Result<f64> {
    const COUNT: u64 = 2_000_000;
    let op = if write { Op::Write { fua: false } } else { Op::Read };
    let (mut rng, mut data) = (Rng::new(7), vec![Buffer::zeroed(4096)]);
    let begin = clock_gettime(ClockId::ThreadCPUTime);
    for tag in 0..COUNT {
        let sector = Sector(rng.below(SPAN / 4096) * 8);
        let request = Request::with_data(op, sector, std::mem::take(&mut data), tag);
        let Submitted::Done(completion) = channel.submit(request) else {
            anyhow::bail!("a medium that answers at once did not");
        };
        data = completion.data;
    }
    let end = clock_gettime(ClockId::ThreadCPUTime);
    let ns = (end.tv_sec - begin.tv_sec) * 1_000_000_000 + (end.tv_nsec - begin.tv_nsec);
    Ok(ns as f64 / COUNT as f64)
}

/// A medium that answers at once, all of it written, and holds nothing.
pub(super) struct Null {
    pub(super) sectors: u64,
}

impl BlockDevice for Null {
    fn sector_count(&self) -> u64 {
        self.sectors
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
