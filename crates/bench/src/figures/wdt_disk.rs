//! `wdt-fig8`, `wdt-fig9`, `joins` and `bully` on a real disk (`--disk DIR`): the same tenants, the
//! policies between real threads on a file in that directory, with peers of the kernel's where the
//! host has them. Repeats are interleaved; a policy's throughput is a ratio to the ungoverned run
//! beside it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use polylane_block::device::{BlockDevice, Op, Request, SECTOR_BYTES, Sector, Submitted};
use polylane_block::file::{FileDevice, Way as FileWay};
use polylane_block::image;
use polylane_block::qos::board::Rule;
use polylane_block::qos::calibrate;
use polylane_block::qos::cost::CostModel;
use polylane_block::qos::depth::Counted;
use polylane_block::qos::model::{Tenant, io};
use polylane_block::qos::{Kind, scenarios};
use polylane_sys::buffer::Buffer;

use crate::place::on_loop;
use crate::report::{Better, Report, number};
use crate::tenants::{self, Got, Run, SLICE, Way, jain};
use crate::{Options, progress};

/// The weights of Fig. 8's runs, of C1 to C4.
pub(super) const COMBINATIONS: [(&str, [u32; 4]); 4] = [
    ("10:5:2.5:1", [1000, 500, 250, 100]),
    ("1:2.5:5:10", [100, 250, 500, 1000]),
    ("4:3:2:1", [400, 300, 200, 100]),
    ("1:1:1:1", [100, 100, 100, 100]),
];

/// Bytes of the file, all of them written.
const SPAN: u64 = 1 << 30;

/// Requests in flight while the file is filled again.
const REFILL_DEPTH: usize = 8;

/// How long shares are measured.
const SHARES_MS: u64 = 2000;

/// The small reader of `bully` asks once a millisecond: a p99.9 is the slowest six of these.
const BULLY_MS: u64 = 6000;

/// A disk to measure on.
pub(super) struct Ground {
    pub(super) device: Arc<dyn BlockDevice>,
    cost: CostModel,
    /// What the kernel counts of its requests.
    depth: Option<Arc<Counted>>,
    peers: Peers,
    /// Discards have been sent since the file was filled: parts of it have no blocks.
    punched: Cell<bool>,
}

/// The kernel's own ways to share it, where the host has them.
#[derive(Default)]
struct Peers {
    /// The kernel's number of the disk, where control groups of version 1 can limit it.
    throttled: Option<String>,
    /// The same file under a scheduler that has weights.
    bfq: Option<Bfq>,
}

impl Peers {
    /// Those of a file on the disk of that number.
    fn find(file: &Path, number: String, report: &mut Report) -> Peers {
        if !Path::new(tenants::BLKIO).join("blkio.throttle.read_iops_device").exists() {
            let why = "blk-throttle, BFQ left out: no control groups of version 1";
            report.notes.push(why.into());
            return Peers::default();
        }
        let bfq = Bfq::new(file);
        report.notes.push(match &bfq {
            Ok(_) => "BFQ: weights on a loop device over the file, with direct I/O".into(),
            Err(error) => format!("BFQ left out: {error:#}"),
        });
        Peers { throttled: Some(number), bfq: bfq.ok() }
    }
}

/// A way, its name, and what it is measured on.
pub(super) type Entry = (&'static str, Way, Arc<dyn BlockDevice>);

/// A loop device on the file, with direct I/O and the kernel's scheduler BFQ: the disk's own is
/// what its owner chose. It goes with the last who has it open.
struct Bfq {
    device: Arc<dyn BlockDevice>,
    /// Where its scheduler is chosen, and the former one.
    scheduler: (PathBuf, String),
}

impl Bfq {
    fn new(file: &Path) -> Result<Bfq> {
        on_loop(file, true, |device| Bfq::on(Path::new(device)))
    }

    fn on(node: &Path) -> Result<Bfq> {
        let name = node.file_name().context("a loop device has a name")?.to_string_lossy();
        let place = PathBuf::from(format!("/sys/block/{name}/queue/scheduler"));
        let all = fs::read_to_string(&place).context("look at its scheduler")?;
        let former = all.split(['[', ']']).nth(1).unwrap_or("none").to_string();
        let device = open(node)?;
        fs::write(&place, "bfq").context("the kernel has no scheduler BFQ")?;
        Ok(Bfq { device, scheduler: (place, former) })
    }
}

impl Drop for Bfq {
    fn drop(&mut self) {
        let (place, former) = &self.scheduler;
        let _ = fs::write(place, former);
    }
}

fn open(path: &Path) -> Result<Arc<dyn BlockDevice>> {
    let files = image::open(path).map_err(|error| anyhow::anyhow!("{error:?}"))?;
    Ok(FileDevice::open(files, FileWay::Ring).context("open the file")?)
}

impl Ground {
    /// A file in `dir` that has no name any more, and what requests to it cost.
    fn new(dir: &Path, report: &mut Report) -> Result<Ground> {
        Ground::with(dir, report, |_, _, _| Peers::default())
    }

    /// The same, with the kernel's own ways beside ours.
    pub(super) fn beside_peers(dir: &Path, report: &mut Report) -> Result<Ground> {
        Ground::with(dir, report, Peers::find)
    }

    fn with(
        dir: &Path,
        report: &mut Report,
        find: impl FnOnce(&Path, String, &mut Report) -> Peers,
    ) -> Result<Ground> {
        progress("fill a file, measure costs");
        let stat = rustix::fs::stat(dir).context("look at the directory")?;
        let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        let path = tenants::scratch(dir, SPAN)?;
        let (device, peers) = (open(&path), find(&path, format!("{major}:{minor}"), report));
        fs::remove_file(&path).context("remove the file's name")?;
        let device = device?;
        let cost = calibrate::measure(&device, Duration::from_millis(300))?.cost;
        report.notes.push(format!(
            "costs as measured before, in ns: read {} + {} per page, write {} + {}",
            cost.read.random_ns, cost.read.page_ns, cost.write.random_ns, cost.write.page_ns
        ));
        let depth = Counted::of(major, minor).map(Arc::new);
        Ok(Ground { device, cost, depth, peers, punched: Cell::new(false) })
    }

    /// The policies, ungoverned first.
    fn ways(&self) -> VecDeque<Entry> {
        let rules = Rule::ALL.map(|rule| (rule.name(), Way::Governed(rule)));
        let all = [("none", Way::Ungoverned)].into_iter().chain(rules);
        all.map(|(name, way)| (name, way, self.device.clone())).collect()
    }

    /// The kernel's own ways, given what was done by nobody's rule.
    pub(super) fn peers(&self, tenants: &[Tenant], got: &[Got]) -> Vec<Entry> {
        let mut ways = Vec::new();
        let seconds = got[0].slices.len() as f64 * SLICE.as_secs_f64();
        let weights: f64 = tenants.iter().map(|tenant| f64::from(tenant.weight)).sum();
        let all: f64 = got.iter().map(Got::cost_ns).sum::<f64>() / seconds;
        if let Some(number) = &self.peers.throttled {
            let limits = |tenant: &Tenant| {
                let part = all * f64::from(tenant.weight) / weights;
                let (sum, reads, cost) = self.mean(tenant);
                let rate = |count: f64| ((part / cost * count / sum) as u64).max(1);
                [("read", rate(reads)), ("write", rate(sum - reads))]
                    .map(|(kind, rate)| {
                        let file = format!("blkio.throttle.{kind}_iops_device");
                        (file, format!("{number} {rate}"))
                    })
                    .to_vec()
            };
            let limits = Way::Groups(tenants.iter().map(limits).collect());
            ways.push(("blk-throttle", limits, self.device.clone()));
        }
        if let Some(bfq) = &self.peers.bfq {
            let weight = |tenant: &Tenant| {
                vec![("blkio.bfq.weight".to_string(), tenant.weight.clamp(1, 1000).to_string())]
            };
            let weights = Way::Groups(tenants.iter().map(weight).collect());
            ways.push(("BFQ", weights, bfq.device.clone()));
        }
        ways
    }

    /// Parts of a tenant's mix in all and of them reads, and what a request costs on average.
    fn mean(&self, tenant: &Tenant) -> (f64, f64, f64) {
        let sum: u64 = tenant.mix.iter().map(|(part, _)| part).sum();
        let reads = tenant.mix.iter().filter(|(_, io)| io.kind == Kind::Read);
        let reads: u64 = reads.map(|(part, _)| part).sum();
        let cost: u64 = tenant.mix.iter().map(|(part, io)| part * self.cost.cost_ns(io)).sum();
        (sum as f64, reads as f64, cost as f64 / sum as f64)
    }

    /// Writes the whole file again. What was discarded is read and written at other speeds.
    fn refill(&self) -> Result<()> {
        const PIECE: usize = 1 << 20;
        let mut channel = self.device.clone().channel();
        let mut spare: Vec<Buffer> =
            (0..REFILL_DEPTH).map(|_| Buffer::copy_of(&vec![0x5a; PIECE])).collect();
        let (mut next, mut answered, mut done) = (0, 0, Vec::new());
        let pieces = self.device.sector_count() * SECTOR_BYTES as u64 / PIECE as u64;
        while answered < pieces {
            while let Some(data) = spare.pop_if(|_| next < pieces) {
                let sector = Sector(next * (PIECE / SECTOR_BYTES) as u64);
                let write = Request::with_data(Op::Write { fua: false }, sector, vec![data], 0);
                match channel.submit(write) {
                    Submitted::Done(completion) => done.push(completion),
                    Submitted::Pending => {}
                    Submitted::Busy(request) => {
                        drop(request.complete(Ok(())));
                        bail!("the channel is full")
                    }
                }
                next += 1;
            }
            channel.poll(&mut done);
            if done.is_empty() {
                channel.park();
            }
            for completion in done.drain(..) {
                completion.result.context("fill the file again")?;
                spare.extend(completion.data);
                answered += 1;
            }
        }
        Ok(())
    }

    /// Has tenants at the device for so many milliseconds, for half of them in a quick run. All of
    /// the file has blocks when they begin.
    pub(super) fn run(
        &self,
        tenants: &[Tenant],
        (way, device): (Way, Arc<dyn BlockDevice>),
        options: &Options,
        (measured_ms, seed): (u64, u64),
    ) -> Result<Vec<Got>> {
        let discards = |tenant: &Tenant| tenant.mix.iter().any(|(_, io)| io.kind == Kind::Discard);
        if self.punched.replace(tenants.iter().any(discards)) {
            self.refill()?;
        }
        let ms = |ms| Duration::from_millis(if options.quick { ms / 2 } else { ms });
        let run = Run {
            device,
            depth: self.depth.clone(),
            tenants,
            cost: self.cost,
            way,
            length: (ms(1200), ms(measured_ms)),
            seed,
        };
        run.go()
    }
}

/// Shares by policy: `labels` are sets of tenants.
fn shares(
    options: &Options,
    disk: &Path,
    name: &str,
    sets: &[(&str, Vec<Tenant>)],
) -> Result<Report> {
    let title = "device time over what the weight gives, on a disk";
    let mut report =
        Report::new(name, title, "weights, container", "achieved/entitled", Better::Higher);
    report.baseline = "none".into();
    let ground = Ground::beside_peers(disk, &mut report)?;
    for repeat in 0..options.repeats() {
        for (label, tenants) in sets {
            let mut ungoverned = f64::NAN;
            let mut ways = ground.ways();
            while let Some((policy, way, device)) = ways.pop_front() {
                progress(&format!("{name} {label}, {policy}, repeat {}", repeat + 1));
                let when = (SHARES_MS, repeat as u64);
                let got = ground.run(tenants, (way, device), options, when)?;
                let all: f64 = got.iter().map(Got::cost_ns).sum();
                if policy == "none" {
                    ungoverned = all;
                    ways.extend(ground.peers(tenants, &got));
                }
                add(&mut report, policy, label, tenants, &got, all / ungoverned);
            }
        }
    }
    report.notes.extend(NOTES.map(String::from));
    Ok(report)
}

const NOTES: [&str; 5] = [
    "1 is fair; jain: weighted, of charged device time; jain_worst: of the worst half second",
    "throughput: charged device time of all over that of the ungoverned run beside it",
    "idle_ms: ledger: windows in which a tenant waited for credit and the device ended up idle",
    "blk-throttle: limits of requests a second, by weight, of what the ungoverned run did",
    "tenants: threads with 64 requests in flight, each on a quarter of a file, O_DIRECT, io_uring",
];

fn add(
    report: &mut Report,
    policy: &str,
    label: &str,
    tenants: &[Tenant],
    got: &[Got],
    ratio: f64,
) {
    let weights: Vec<u32> = tenants.iter().map(|tenant| tenant.weight).collect();
    let sum: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
    let all: f64 = got.iter().map(Got::cost_ns).sum();
    let slices = got[0].slices.len();
    let each = (500 / SLICE.as_millis()) as usize;
    let spans = (0..slices / each).map(|n| n * each..(n + 1) * each);
    let worst = spans.map(|span| jain(got, &weights, span)).fold(1.0, f64::min);
    let seconds = slices as f64 * SLICE.as_secs_f64();
    let idle = got.iter().map(|got| got.idle_ns).max().unwrap_or(0) as f64 / 1e6;
    for (index, (got_one, weight)) in got.iter().zip(&weights).enumerate() {
        let extra = [
            ("jain", jain(got, &weights, 0..slices)),
            ("jain_worst", worst),
            ("throughput", ratio),
            ("idle_ms", idle),
            ("mb_per_s", got_one.bytes as f64 / seconds / 1e6),
            ("p99_us", got_one.latency.quantile(0.99) / 1e3),
        ];
        let part = got_one.cost_ns() / all.max(1.0) * sum / f64::from(*weight);
        report.add(policy, &format!("{label} C{}", index + 1), part, &extra);
    }
}

/// `wdt-fig8` there.
///
/// # Errors
/// The directory cannot be written to, or a request failed.
pub fn fig8(options: &Options, disk: &Path) -> Result<Report> {
    let weighted = |weights: [u32; 4]| {
        let mut tenants = scenarios::table1();
        tenants.iter_mut().zip(weights).for_each(|(tenant, weight)| tenant.weight = weight);
        tenants
    };
    let sets = COMBINATIONS.map(|(label, weights)| (label, weighted(weights)));
    shares(options, disk, "wdt-fig8-disk", &sets)
}

/// `wdt-fig9` there.
///
/// # Errors
/// As [`fig8`].
pub fn fig9(options: &Options, disk: &Path) -> Result<Report> {
    shares(options, disk, "wdt-fig9-disk", &[("10:5:2.5:1", scenarios::fig9())])
}

/// A tenant has its share when so many slices show so much of it: the rest is the disk's noise.
const SETTLED_SLICES: usize = 5;
const SETTLED_PART: f64 = 0.9;

/// `joins` there: the heaviest is idle for half of the time.
///
/// # Errors
/// As [`fig8`].
pub fn joins(options: &Options, disk: &Path) -> Result<Report> {
    let title = "the heaviest of four is idle, then joins: until it has its share, on a disk";
    let mut report = Report::new("joins-disk", title, "weights", "ms", Better::Lower);
    report.baseline = "none".into();
    let ground = Ground::new(disk, &mut report)?;
    let mut tenants = scenarios::fig9();
    let half = Duration::from_millis(if options.quick { SHARES_MS / 4 } else { SHARES_MS / 2 });
    tenants[0] = tenants[0].clone().active_in(vec![(half.as_nanos() as u64, u64::MAX)]);
    let entitled = part(&tenants);
    let half = (half.as_nanos() / SLICE.as_nanos()) as usize;
    for repeat in 0..options.repeats() {
        let mut ungoverned = f64::NAN;
        for (policy, way, device) in ground.ways() {
            progress(&format!("joins {policy}, repeat {}", repeat + 1));
            let when = (SHARES_MS, repeat as u64);
            let got = ground.run(&tenants, (way, device), options, when)?;
            let before: u64 = got.iter().flat_map(|got| &got.slices[..half]).sum();
            if policy == "none" {
                ungoverned = before as f64;
            }
            let after: Vec<&[u64]> = got.iter().map(|got| &got.slices[half..]).collect();
            let slices = settles(&after, entitled).unwrap_or(after[0].len());
            let ms = slices as f64 * SLICE.as_secs_f64() * 1e3;
            let extra = [
                ("idle_throughput", before as f64 / ungoverned),
                ("share", share(&after, 0..after[0].len()) / entitled),
            ];
            report.add(policy, "10:5:2.5:1", ms, &extra);
        }
    }
    report.notes.extend([
        "the first 50 ms, in steps of 10 ms, with 0.9 of its share or more; never: all of the time"
            .into(),
        "share: what it got after it joined, over what its weight gives".into(),
        "idle_throughput: of all before, over that of the ungoverned run beside it".into(),
    ]);
    Ok(report)
}

/// What the first tenant's weight gives it of the whole.
fn part(tenants: &[Tenant]) -> f64 {
    let sum: f64 = tenants.iter().map(|tenant| f64::from(tenant.weight)).sum();
    f64::from(tenants[0].weight) / sum
}

/// What the first tenant got of the whole.
fn share(got: &[&[u64]], slices: std::ops::Range<usize>) -> f64 {
    let sum = |slices: &[u64]| slices.iter().sum::<u64>() as f64;
    let all: f64 = got.iter().map(|one| sum(&one[slices.clone()])).sum();
    sum(&got[0][slices]) / all.max(1.0)
}

/// The first slice from which on the first tenant has its share, for as long as is looked at.
fn settles(got: &[&[u64]], entitled: f64) -> Option<usize> {
    let spans = got[0].len().saturating_sub(SETTLED_SLICES);
    let has = |at: usize| share(got, at..at + SETTLED_SLICES) >= SETTLED_PART * entitled;
    (0..spans).find(|at| has(*at))
}

/// `bully` there.
///
/// # Errors
/// As [`fig8`].
pub fn bully(options: &Options, disk: &Path) -> Result<Report> {
    let title = "latency of a small reader beside a flood, on a disk";
    let mut report = Report::new("bully-disk", title, "flood, percentile", "us", Better::Lower);
    report.baseline = "alone".into();
    let ground = Ground::beside_peers(disk, &mut report)?;
    let small = Tenant::reader(100, 1).thinking(1_000_000);
    let large = vec![(100, io(Kind::Write, 128 << 10))];
    let floods = [
        ("4k reads", Tenant::reader(100, 64)),
        ("128k writes", Tenant::reader(100, 64).with_mix(large)),
    ];
    let measured_ms = if options.quick { SHARES_MS } else { BULLY_MS };
    for repeat in 0..options.repeats() {
        for (label, flood) in &floods {
            let all = [small.clone(), flood.clone(), flood.clone(), flood.clone()];
            let mut ungoverned = f64::NAN;
            let mut ways = ground.ways();
            ways.push_front(("alone", Way::Ungoverned, ground.device.clone()));
            while let Some((policy, way, device)) = ways.pop_front() {
                progress(&format!("bully {label}, {policy}, repeat {}", repeat + 1));
                let tenants = if policy == "alone" { &all[..1] } else { &all[..] };
                let when = (measured_ms, repeat as u64);
                let got = ground.run(tenants, (way, device), options, when)?;
                let done: f64 = got.iter().map(Got::cost_ns).sum();
                if policy == "none" {
                    ungoverned = done;
                    ways.extend(ground.peers(tenants, &got));
                }
                for (part, name) in [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")] {
                    let us = got[0].latency.quantile(part) / 1e3;
                    let extra = [("throughput", done / ungoverned)];
                    report.add(policy, &format!("{label} {name}"), us, &extra);
                }
            }
        }
    }
    report.notes.push(format!(
        "small: one 4 KiB read a millisecond; flood: three tenants with 64 requests; {} MiB",
        number(SPAN as f64 / f64::from(1 << 20))
    ));
    Ok(report)
}
