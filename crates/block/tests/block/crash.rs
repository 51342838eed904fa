//! Power cuts under volumes: the engine that makes space ahead, and a copy-on-write volume on it.
//!
//! A workload runs on a disk that records everything; afterwards the power is cut at every event,
//! with what was not durable there, missing and torn. Then the volume is opened anew, and each
//! sector shows its last durable content or a later one, as the contract of
//! [`polylane_block::device`] says. `POLYLANE_CRASH_SECONDS` runs more seeds, for that long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use polylane_base::rng::Rng;
use polylane_block::device::{BlockDevice, Error, SECTOR_BYTES, Sector};
use polylane_block::engine::{Engine, Options};
use polylane_block::map::{Unit, UnitOptions};
use polylane_block::overlay::{Format, Layout, Overlay};
use polylane_block::ram::RamDevice;
use polylane_block::wait::Waiter;
use polylane_sys::buffer::Buffer;
use polylane_testkit::effort::number;
use polylane_testkit::sim::{Crash, Fault, FaultOn, Image, SimDisk, SimOptions, Tear};

/// Sectors of the volume: 32 chunks.
const SECTORS: u64 = 256;
const CHUNK_BYTES: u64 = 4096;

/// What a volume is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A file of its own.
    Raw,
    /// On a snapshot that does not change.
    Copy,
}

/// A volume on a disk, as `open` makes it.
struct Volume {
    kind: Kind,
    base: Arc<RamDevice>,
    unit: Arc<Unit>,
}

impl Volume {
    fn new(kind: Kind) -> Volume {
        let base = Arc::new(RamDevice::new(SECTORS));
        let waiter = Waiter::new(base.clone());
        for sector in 0..SECTORS {
            let data = Buffer::copy_of(&[Volume::base_byte(sector); SECTOR_BYTES]);
            waiter.write(Sector(sector), data, false).expect("write");
        }
        base.set_read_only(true);
        let unit = Unit::start(&UnitOptions::default()).expect("thread");
        Volume { kind, base, unit }
    }

    fn base_byte(sector: u64) -> u8 {
        (sector % 100) as u8 + 1
    }

    /// What a sector shows before anything was written.
    fn first_content(&self, sector: u64) -> u8 {
        if self.kind == Kind::Raw { 0 } else { Volume::base_byte(sector) }
    }

    fn disk_bytes(&self) -> usize {
        let sectors = match self.kind {
            Kind::Raw => SECTORS,
            Kind::Copy => Layout::new(Format::V2, SECTORS).expect("layout").total(),
        };
        sectors as usize * SECTOR_BYTES
    }

    fn open(&self, disk: Arc<SimDisk>, unit: Option<Arc<Unit>>) -> Arc<dyn BlockDevice> {
        let options = Options {
            chunk_bytes: CHUNK_BYTES,
            ahead_bytes: 8 * CHUNK_BYTES,
            ahead_always: true,
            prefetch_bytes: 4 * CHUNK_BYTES,
            reserve_bytes: 0,
            ..Options::default()
        };
        let engine = Engine::open(disk, unit, &options).expect("engine");
        match self.kind {
            Kind::Raw => engine,
            Kind::Copy => Overlay::open(self.base.clone(), engine, Format::V2).expect("overlay"),
        }
    }
}

/// What a sector was told to hold, and whether that went well: else it may hold it all the same.
type Held = (u8, bool);

/// For each sector what it may show after a cut: its last durable content, and all later ones.
type Allowed = Vec<Vec<Held>>;

/// What happened: after so many events of the disk, this is allowed.
type History = Vec<(usize, Allowed)>;

/// One step of a workload.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write { sector: u64, count: u64, fua: bool },
    Zero { sector: u64, count: u64, unmap: bool },
    Discard { sector: u64, count: u64 },
    Flush,
}

/// Streams of small writes, which have space made ahead, among everything else.
fn workload(rng: &mut Rng) -> Vec<Step> {
    let mut steps = Vec::new();
    for _ in 0..5 {
        let start = rng.below(SECTORS - 40);
        let any = |rng: &mut Rng| (rng.below(SECTORS - 20), rng.below(20) + 1);
        match rng.below(4) {
            0 => {
                let stream = (0..rng.below(6) + 9).map(|at| start + at * 2);
                steps.extend(stream.map(|sector| Step::Write { sector, count: 2, fua: false }));
            }
            1 => {
                let (sector, count) = any(rng);
                steps.push(Step::Write { sector, count, fua: rng.percent(30) });
            }
            2 => {
                let (sector, count) = any(rng);
                steps.push(Step::Zero { sector, count, unmap: rng.percent(50) });
            }
            _ => {
                let (sector, count) = any(rng);
                steps.push(Step::Discard { sector, count });
            }
        }
        if rng.percent(50) {
            steps.push(Step::Flush);
        }
    }
    steps
}

/// Runs the steps; one that fails leaves old and new possible.
fn run(
    volume: &Volume,
    disk: &Arc<SimDisk>,
    steps: &[Step],
    fault: Option<Fault>,
) -> (History, Allowed) {
    let waiter = Waiter::new(volume.open(disk.clone(), Some(volume.unit.clone())));
    disk.set_fault(fault);
    let mut allowed: Allowed =
        (0..SECTORS).map(|s| vec![(volume.first_content(s), true)]).collect();
    let mut history = vec![(0, allowed.clone())];
    for (number, step) in steps.iter().enumerate() {
        let value = 0x80 | number as u8;
        let (value, range) = match *step {
            Step::Write { sector, count, .. } => (value, sector..sector + count),
            Step::Zero { sector, count, .. } => (0, sector..sector + count),
            Step::Discard { sector, count } => (0, sector..sector + count),
            Step::Flush => (0, 0..0),
        };
        let range = range.start as usize..range.end as usize;
        allowed[range.clone()].iter_mut().for_each(|held| held.push((value, false)));
        // While it is under way, old and new are possible.
        history.push((disk.position(), allowed.clone()));
        let done: Result<(), Error> = match *step {
            Step::Flush => waiter.flush(),
            Step::Discard { sector, count } => waiter.discard(Sector(sector), count),
            Step::Zero { sector, count, unmap } => {
                waiter.write_zeroes(Sector(sector), count, unmap)
            }
            Step::Write { sector, count, fua } => {
                let data = Buffer::copy_of(&vec![value; count as usize * SECTOR_BYTES]);
                waiter.write(Sector(sector), data, fua).map(drop)
            }
        };
        let durable = match *step {
            Step::Flush => 0..SECTORS as usize,
            Step::Write { fua: true, .. } => range.clone(),
            _ => 0..0,
        };
        if done.is_ok() {
            allowed[range]
                .iter_mut()
                .filter_map(|held| held.last_mut())
                .for_each(|last| last.1 = true);
            for held in &mut allowed[durable] {
                let sure = held.iter().rposition(|(_, sure)| *sure).unwrap_or(0);
                held.drain(..sure);
            }
        }
        history.push((disk.position(), allowed.clone()));
    }
    (history, allowed)
}

/// Every sector of the volume shows something that is allowed.
fn check(device: Arc<dyn BlockDevice>, allowed: &Allowed, what: &dyn Fn() -> String) {
    let read = Waiter::new(device).read(Sector(0), SECTORS as usize * SECTOR_BYTES).expect("read");
    for (sector, content) in read.chunks(SECTOR_BYTES).enumerate() {
        let byte = content[0];
        assert!(
            content.iter().all(|b| *b == byte)
                && allowed[sector].iter().any(|(value, _)| *value == byte),
            "{}, sector {sector}: {byte:#x}, not of {:x?}",
            what(),
            allowed[sector]
        );
    }
}

/// Cuts the power at every event. How many states were looked at.
fn cut(volume: &Volume, first: &Image, disk: &SimDisk, history: &History, seed: u64) -> usize {
    let events = disk.events();
    let (mut crash, mut rng) = (Crash::new(first, &events), Rng::new(seed ^ 0xc0de));
    let (tear, mut states) = (Tear::at(SECTOR_BYTES), 0);
    loop {
        let at = history.iter().rposition(|(position, _)| *position <= crash.position());
        let allowed = &history[at.expect("a state before")].1;
        for fates in crash.choices(&mut rng, 2, 2) {
            let image = crash.image(&tear, |index| fates[index]);
            let disk = SimDisk::new(image, SimOptions::default());
            let what = || format!("seed {seed}, {:?}, event {}", volume.kind, crash.position());
            check(volume.open(disk, None), allowed, &what);
            states += 1;
        }
        if crash.advance().is_none() {
            return states;
        }
    }
}

/// How long to go on with new seeds.
fn time() -> Duration {
    Duration::from_secs(number("POLYLANE_CRASH_SECONDS", 0))
}

/// Runs a test for the first seeds, and for more of them as long as there is time.
fn for_seeds(first: u64, mut test: impl FnMut(u64) -> usize) {
    let (begin, time) = (Instant::now(), time());
    let (mut seed, mut states) = (0, 0);
    while seed < first || begin.elapsed() < time {
        states += test(seed);
        seed += 1;
    }
    println!("{seed} workloads, {states} states");
}

#[test]
fn after_a_power_cut_every_sector_shows_durable_content_or_later() {
    for kind in [Kind::Raw, Kind::Copy] {
        let volume = Volume::new(kind);
        for_seeds(12, |seed| {
            // The translation thread gets between, now and then.
            let pause = Duration::from_micros([0, 30, 200][seed as usize % 3]);
            let options = SimOptions { record: true, pause, ..SimOptions::default() };
            let first = Image::zeroed(volume.disk_bytes());
            let disk = SimDisk::new(first.clone(), options);
            let (history, _) = run(&volume, &disk, &workload(&mut Rng::new(seed)), None);
            cut(&volume, &first, &disk, &history, seed)
        });
    }
}

/// The same on a host that has not enough room, then has: what is refused may be there in part,
/// what was acknowledged is.
#[test]
fn a_host_that_fills_up_takes_nothing_back() {
    for kind in [Kind::Raw, Kind::Copy] {
        let volume = Volume::new(kind);
        for_seeds(12, |seed| {
            let first = Image::zeroed(volume.disk_bytes());
            let options = SimOptions { record: true, blocks: 10 + seed, ..SimOptions::default() };
            let disk = SimDisk::new(first.clone(), options);
            let mut rng = Rng::new(seed ^ 0xf011);
            let (history, allowed) = run(&volume, &disk, &workload(&mut rng), None);
            disk.set_blocks(1 << 20);
            let what = || format!("seed {seed}, {kind:?}, with room again");
            check(volume.open(disk.clone(), None), &allowed, &what);
            cut(&volume, &first, &disk, &history, seed)
        });
    }
}

/// Each request of a run fails in turn.
#[test]
fn a_failing_medium_loses_nothing_that_was_durable() {
    for kind in [Kind::Raw, Kind::Copy] {
        let volume = Volume::new(kind);
        for_seeds(3, |seed| {
            let steps = workload(&mut Rng::new(seed ^ 0xe10));
            let mut failed = 0;
            for nth in 0.. {
                let first = Image::zeroed(volume.disk_bytes());
                let disk =
                    SimDisk::new(first, SimOptions { record: true, ..SimOptions::default() });
                let fault = Some(Fault::eio(FaultOn::Any, nth));
                let (_, allowed) = run(&volume, &disk, &steps, fault);
                if disk.failures() == 0 {
                    break;
                }
                failed += 1;
                disk.set_fault(None);
                let again = SimDisk::new(disk.image(), SimOptions::default());
                let what = || format!("seed {seed}, {kind:?}, request {nth} failed");
                check(volume.open(again, None), &allowed, &what);
            }
            failed
        });
    }
}
