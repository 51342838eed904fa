//! Tenants that share a real device: each a thread with a channel of its own to one file, governed
//! by the very pages, lanes and board that pools and attachments use between processes.
//!
//! What is charged is booked per tenant and per slice of time, also where nothing is governed, so
//! that shares of device time can be compared between policies.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use polylane_base::rng::Rng;
use polylane_block::device::{
    BlockDevice, Channel, Completion, Op, Request, SECTOR_BYTES, Sector, Submitted,
};
use polylane_block::qos::board::{Board, Device, Limits, Rule};
use polylane_block::qos::cost::CostModel;
use polylane_block::qos::depth::{Counted, Depth};
use polylane_block::qos::governed::{Governed, Governor, monotonic_ns};
use polylane_block::qos::lane::Lane;
use polylane_block::qos::model::Tenant;
use polylane_block::qos::page::{Mapped, PAGE_BYTES, note};
use polylane_block::qos::{Io, Kind};
use polylane_sys::Region;
use polylane_sys::buffer::Buffer;

use crate::histogram::Histogram;

/// Most requests of a tenant at a time: a channel of a file takes no more.
const DEPTH_MAX: u32 = 64;

/// What is not answered so long after the end is held back for ever: a policy may starve a tenant.
const GRACE: Duration = Duration::from_secs(1);

/// How often one who is idle looks whether it still is.
const PAUSE: Duration = Duration::from_micros(500);

/// Slices in which what tenants got is booked.
pub const SLICE: Duration = Duration::from_millis(10);

/// Who decides which request goes.
#[derive(Clone, Debug)]
pub enum Way {
    /// Nobody.
    Ungoverned,
    /// A board, over pages in shared memory.
    Governed(Rule),
    /// The kernel: each tenant's thread is in a control group with these files.
    Groups(Vec<Vec<(String, String)>>),
}

/// A run of tenants on one device.
pub struct Run<'a> {
    /// What they work on.
    pub device: Arc<dyn BlockDevice>,
    /// Who they are. Each has an equal part of the device's bytes.
    pub tenants: &'a [Tenant],
    /// What the kernel counts of the requests at it, where it does.
    pub depth: Option<Arc<Counted>>,
    /// What is charged.
    pub cost: CostModel,
    /// Who decides.
    pub way: Way,
    /// Time that does not count, and time that does.
    pub length: (Duration, Duration),
    /// Repeats the choice of places.
    pub seed: u64,
}

/// What a tenant got in the time that counts.
#[derive(Clone, Default)]
pub struct Got {
    /// Charged device time per slice.
    pub slices: Vec<u64>,
    /// Requests.
    pub requests: u64,
    /// Bytes.
    pub bytes: u64,
    /// Times from submission to answer.
    pub latency: Histogram,
    /// Nanoseconds of windows in which it waited for credit and at whose end the device was idle.
    pub idle_ns: u64,
}

impl Got {
    /// Charged device time.
    pub fn cost_ns(&self) -> f64 {
        self.slices.iter().map(|ns| *ns as f64).sum()
    }
}

impl Run<'_> {
    /// Runs the tenants at the same time; what each got.
    ///
    /// # Errors
    /// A request failed, or a control group cannot be had.
    pub fn go(&self) -> Result<Vec<Got>> {
        let governors: Vec<Arc<Governor>> = self.tenants.iter().map(|_| Governor::new()).collect();
        let groups = match &self.way {
            Way::Groups(settings) => {
                settings.iter().map(|files| Group::make(files).map(Some)).collect()
            }
            _ => self.tenants.iter().map(|_| Ok(None)).collect::<Result<Vec<_>>>(),
        }?;
        let coordinator = match self.way {
            Way::Governed(rule) => Some(Coordinator::start(self, rule, &governors)?),
            _ => None,
        };
        let begin = Instant::now() + self.length.0;
        let got = thread::scope(|scope| {
            let started: Vec<_> = (0..self.tenants.len())
                .map(|index| {
                    let (governor, group) = (&governors[index], &groups[index]);
                    scope.spawn(move || {
                        if let Some(group) = group {
                            group.enter()?;
                        }
                        self.tenant(index, governor.clone(), begin)
                    })
                })
                .collect();
            started.into_iter().map(|tenant| tenant.join().expect("a tenant")).collect()
        });
        drop(coordinator);
        got
    }

    fn tenant(&self, index: usize, governor: Arc<Governor>, begin: Instant) -> Result<Got> {
        let device = match self.way {
            Way::Governed(_) => Governed::new(self.device.clone(), governor.clone()) as _,
            _ => self.device.clone(),
        };
        let mut channel = device.channel();
        let mut load = Load::new(self, index, begin);
        let done = load.run(&mut *channel);
        load.got.idle_ns = governor.total(note::IDLE_NS);
        done.map(|()| load.got)
    }
}

/// A tenant at work.
struct Load<'a> {
    run: &'a Run<'a>,
    tenant: &'a Tenant,
    /// First sector and number of sectors.
    place: (u64, u64),
    begin: Instant,
    end: Instant,
    rng: Rng,
    /// Idle buffers.
    spare: Vec<Buffer>,
    /// By tag: what, and since when.
    sent: Vec<(Io, Instant)>,
    free: Vec<usize>,
    got: Got,
}

impl<'a> Load<'a> {
    fn new(run: &'a Run<'a>, index: usize, begin: Instant) -> Self {
        let tenant = &run.tenants[index];
        let part = run.device.sector_count() / run.tenants.len() as u64;
        let end = begin + run.length.1;
        let depth = tenant.depth.min(DEPTH_MAX) as usize;
        let nothing = Io { kind: Kind::Read, bytes: 0, sequential: false };
        let slices = run.length.1.as_nanos().div_ceil(SLICE.as_nanos()) as usize;
        Load {
            run,
            tenant,
            place: (index as u64 * part, part),
            begin,
            end,
            rng: Rng::new(run.seed.wrapping_mul(1000) + index as u64),
            spare: Vec::new(),
            sent: vec![(nothing, begin); depth],
            free: (0..depth).collect(),
            got: Got { slices: vec![0; slices], ..Got::default() },
        }
    }

    fn run(&mut self, channel: &mut dyn Channel) -> Result<()> {
        let mut done = Vec::new();
        loop {
            let now = Instant::now();
            let answered = self.free.len() == self.sent.len();
            if now >= self.end && (answered || now >= self.end + GRACE) {
                return Ok(());
            }
            let active = now < self.end && self.is_active(now);
            if !active && answered {
                thread::sleep(PAUSE);
                continue;
            }
            while let Some(tag) = self.free.pop_if(|_| active) {
                if let Some(completion) = self.send(channel, tag, now)? {
                    done.push(completion);
                }
            }
            channel.poll(&mut done);
            if done.is_empty() {
                channel.park();
                channel.poll(&mut done);
            }
            for completion in done.drain(..) {
                self.book(completion)?;
            }
        }
    }

    /// Whether it is active now; what lies before the time that counts is its begin.
    fn is_active(&self, now: Instant) -> bool {
        let at = now.saturating_duration_since(self.begin).as_nanos() as u64;
        self.tenant.active.iter().any(|(from, until)| (*from..*until).contains(&at))
    }

    fn send(
        &mut self,
        channel: &mut dyn Channel,
        tag: usize,
        now: Instant,
    ) -> Result<Option<Completion>> {
        let io = self.choose();
        let bytes = io.bytes as usize;
        self.sent[tag] = (io, now);
        let request = match io.kind {
            Kind::Read => self.transfer(Op::Read, bytes, tag),
            Kind::Write | Kind::Flush => self.transfer(Op::Write { fua: false }, bytes, tag),
            Kind::Discard => {
                let count = (bytes / SECTOR_BYTES) as u64;
                Request::without_data(Op::Discard, self.somewhere(bytes), count, tag as u64)
            }
        };
        match channel.submit(request) {
            Submitted::Done(completion) => Ok(Some(completion)),
            Submitted::Pending => Ok(None),
            Submitted::Busy(request) => {
                drop(request.complete(Ok(())));
                bail!("the channel is full")
            }
        }
    }

    /// Where a request of so many bytes may be.
    fn somewhere(&mut self, bytes: usize) -> Sector {
        let align = bytes.next_power_of_two().min(4096) as u64 / SECTOR_BYTES as u64;
        let room = (self.place.1 - (bytes / SECTOR_BYTES) as u64) / align;
        Sector(self.place.0 + self.rng.below(room) * align)
    }

    fn transfer(&mut self, op: Op, bytes: usize, tag: usize) -> Request {
        let mut data = match self.spare.iter().position(|buffer| buffer.capacity() >= bytes) {
            Some(at) => self.spare.swap_remove(at),
            None => Buffer::zeroed(bytes),
        };
        data.set_len(bytes);
        Request::with_data(op, self.somewhere(bytes), vec![data], tag as u64)
    }

    fn choose(&mut self) -> Io {
        let all = self.tenant.mix.iter().map(|(part, _)| part).sum();
        let mut dice = self.rng.below(all);
        for (part, io) in &self.tenant.mix {
            if dice < *part {
                return *io;
            }
            dice -= part;
        }
        self.tenant.mix[0].1
    }

    fn book(&mut self, completion: Completion) -> Result<()> {
        completion.result.context("a request")?;
        self.spare.extend(completion.data);
        let tag = completion.tag as usize;
        self.free.push(tag);
        let (io, since) = self.sent[tag];
        let now = Instant::now();
        let slice =
            (now.saturating_duration_since(self.begin).as_nanos() / SLICE.as_nanos()) as usize;
        if now >= self.begin && now < self.end && slice < self.got.slices.len() {
            self.got.slices[slice] += self.run.cost.cost_ns(&io);
            self.got.requests += 1;
            self.got.bytes += io.bytes;
            self.got.latency.record(now.duration_since(since).as_nanos() as u64, 1);
        }
        if self.tenant.think_ns > 0 {
            thread::sleep(Duration::from_nanos(self.tenant.think_ns));
        }
        Ok(())
    }
}

/// A thread that plans windows, as a pool's keeper does.
struct Coordinator {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Coordinator {
    fn start(run: &Run<'_>, rule: Rule, governors: &[Arc<Governor>]) -> Result<Self> {
        let device = Device { cost: run.cost, ..Device::default() };
        let mut board = Board::new(rule, device, monotonic_ns());
        let (_, lock) = Region::create("polylane-bench-lock", PAGE_BYTES)?;
        for (tenant, governor) in run.tenants.iter().zip(governors) {
            let (page, fd) = Region::create("polylane-bench", PAGE_BYTES)?;
            let limits = Limits { weight: tenant.weight, ..Limits::default() };
            board.join(Mapped(page), limits, monotonic_ns());
            let shared = match rule {
                Rule::WdtSharedLock => Some(Mapped(Region::attach(&lock, PAGE_BYTES)?)),
                Rule::Static | Rule::Wdt | Rule::Ledger => None,
            };
            let depth = run.depth.clone().map(|depth| depth as Arc<dyn Depth>);
            let lane = Lane::new(Mapped(Region::attach(fd, PAGE_BYTES)?), shared);
            let lane = lane.with_depth(depth);
            governor.set(Some(lane));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, depth) = (stop.clone(), run.depth.clone());
        let thread = thread::spawn(move || {
            // As the coordinator of pools.
            let _ = rustix::process::setpriority_process(None, -20);
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
            while !stopped.load(Ordering::Relaxed) {
                let left = board.next_tick().saturating_sub(monotonic_ns());
                thread::sleep(Duration::from_nanos(left));
                let depth = depth.as_ref().and_then(|depth| depth.requests());
                board.tick(monotonic_ns(), depth);
            }
        });
        Ok(Coordinator { stop, thread: Some(thread) })
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A control group of version 1 for the block devices, for one thread. Dropped, it is gone.
struct Group(PathBuf);

/// Where version 1 has the controller of block devices.
pub const BLKIO: &str = "/sys/fs/cgroup/blkio";

impl Group {
    fn make(files: &[(String, String)]) -> Result<Group> {
        let number = (0..).find(|n| !Group::path(*n).exists()).unwrap_or(0);
        let path = Group::path(number);
        fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        let group = Group(path);
        for (file, value) in files {
            let path = group.0.join(file);
            fs::write(&path, value).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(group)
    }

    fn path(number: u32) -> PathBuf {
        Path::new(BLKIO).join(format!("polylane-bench-{}-{number}", std::process::id()))
    }

    fn enter(&self) -> Result<()> {
        let me = rustix::thread::gettid().as_raw_nonzero().to_string();
        fs::write(self.0.join("tasks"), me).context("enter a control group")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Empty a moment after its thread has ended.
        for _ in 0..200 {
            match fs::remove_dir(&self.0) {
                Ok(()) => return,
                Err(_) => thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

/// Weighted Jain index of what tenants got in the slices of `range`.
pub fn jain(got: &[Got], weights: &[u32], range: std::ops::Range<usize>) -> f64 {
    let parts: Vec<f64> = got
        .iter()
        .zip(weights)
        .map(|(got, weight)| {
            let sum: u64 = got.slices[range.clone()].iter().sum();
            sum as f64 / f64::from(*weight)
        })
        .collect();
    let (sum, squares) = (parts.iter().sum::<f64>(), parts.iter().map(|x| x * x).sum::<f64>());
    sum * sum / (parts.len() as f64 * squares)
}

/// A file of `bytes` in `dir`, all of them written, without a name.
///
/// # Errors
/// The directory's file system is full, or cannot do direct I/O.
pub fn scratch(dir: &Path, bytes: u64) -> Result<PathBuf> {
    let path = dir.join(format!("polylane-bench-{}", std::process::id()));
    let file = OpenOptions::new().create_new(true).write(true).open(&path);
    drop(file.with_context(|| format!("create {}", path.display()))?);
    crate::tools::fill(&path, bytes)?;
    Ok(path)
}
