//! Block loads: the same requests through a channel in this process, and by fio on a file.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use polylane_base::rng::Rng;
use polylane_block::device::{Channel, Completion, Op, Request, SECTOR_BYTES, Sector, Submitted};
use polylane_sys::buffer::Buffer;
use rustix::time::{ClockId, clock_gettime};

use crate::histogram::Histogram;
use crate::tools::command;

/// What is read or written.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Writes; else reads.
    pub write: bool,
    /// At random places; else from the start to the end.
    pub random: bool,
    /// Bytes per request.
    pub piece: u64,
    /// Requests in flight.
    pub depth: u64,
    /// Bytes that requests fall into.
    pub span: u64,
}

/// When a load ends.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After this time.
    Time(Duration),
    /// After the end of the span.
    End,
}

impl Load {
    /// Its name in tables.
    pub fn name(&self) -> String {
        let kind = match (self.write, self.random) {
            (true, true) => "randwrite",
            (true, false) => "write",
            (false, true) => "randread",
            (false, false) => "read",
        };
        let size = match self.piece >> 20 {
            0 => format!("{}k", self.piece >> 10),
            size => format!("{size}m"),
        };
        format!("{kind} {size} qd{}", self.depth)
    }

    fn place(&self, number: u64, rng: &mut Rng) -> Sector {
        let pieces = self.span / self.piece;
        let piece = if self.random { rng.below(pieces) } else { number % pieces };
        Sector(piece * self.piece / SECTOR_BYTES as u64)
    }
}

/// What a load came to. CPU time and switches, unlike rates, tell systems apart on a busy machine
/// too.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Requests per second.
    pub rate: f64,
    /// From a request's submission to its completion, in microseconds, 99 of 100.
    pub p99_us: f64,
    /// CPU time of the thread that drives the load, in microseconds per request.
    pub cpu_us: f64,
    /// How often that thread slept, per request.
    pub switches: f64,
}

impl Found {
    /// All but the rate, for a report.
    pub fn extra(&self) -> [(&'static str, f64); 3] {
        [("p99_us", self.p99_us), ("cpu_us", self.cpu_us), ("switches", self.switches)]
    }
}

/// What this thread took up to now.
struct Spent {
    wall: Instant,
    cpu: Duration,
    switches: u64,
}

impl Spent {
    fn now() -> Spent {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        let switches = count.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let cpu = Duration::new(cpu.tv_sec as u64, cpu.tv_nsec as u32);
        Spent { wall: Instant::now(), cpu, switches }
    }

    fn found(self, requests: u64, latencies: &Histogram) -> Found {
        let (end, requests) = (Spent::now(), requests as f64);
        Found {
            rate: requests / (end.wall - self.wall).as_secs_f64(),
            p99_us: latencies.quantile(0.99) / 1e3,
            cpu_us: (end.cpu - self.cpu).as_secs_f64() * 1e6 / requests,
            switches: (end.switches - self.switches) as f64 / requests,
        }
    }
}

/// Runs the load through a channel.
///
/// # Errors
/// A request failed.
pub fn channel(channel: &mut dyn Channel, load: &Load, until: Until) -> Result<Found> {
    let mut rng = Rng::new(7);
    // A buffer's place among these is its request's tag: who is in flight has none to spare.
    let fresh = |tag| (tag, vec![Buffer::copy_of(&vec![0x5a; load.piece as usize])]);
    let mut spare: Vec<(u64, Vec<Buffer>)> = (0..load.depth).map(fresh).collect();
    let mut starts = vec![Instant::now(); load.depth as usize];
    let mut latencies = Histogram::default();
    let mut done: Vec<Completion> = Vec::with_capacity(load.depth as usize);
    let op = if load.write { Op::Write { fua: false } } else { Op::Read };
    let (spent, begin, mut sent, mut answered) = (Spent::now(), Instant::now(), 0, 0);
    let goes_on = |sent: u64| match until {
        Until::Time(time) => !sent.is_multiple_of(16) || begin.elapsed() < time,
        Until::End => sent < load.span / load.piece,
    };
    let mut open = true;
    while open || answered < sent {
        while open && !spare.is_empty() {
            open = goes_on(sent);
            let Some((tag, data)) = spare.pop_if(|_| open) else { break };
            let request = Request::with_data(op, load.place(sent, &mut rng), data, tag);
            starts[tag as usize] = Instant::now();
            match channel.submit(request) {
                Submitted::Done(completion) => done.push(completion),
                Submitted::Pending => {}
                Submitted::Busy(request) => {
                    drop(request.complete(Ok(())));
                    bail!("the channel is full");
                }
            }
            sent += 1;
        }
        if done.is_empty() && answered < sent {
            channel.park();
        }
        channel.poll(&mut done);
        for completion in done.drain(..) {
            completion.result.context("a request")?;
            latencies.record(starts[completion.tag as usize].elapsed().as_nanos() as u64, 1);
            spare.push((completion.tag, completion.data));
            answered += 1;
        }
    }
    Ok(spent.found(answered, &latencies))
}

/// Runs the load by fio's io_uring engine, direct, on a file.
///
/// # Errors
/// fio is missing or failed.
pub fn fio(file: &Path, load: &Load, until: Until) -> Result<Found> {
    let file = format!("--filename={}", file.display());
    let engine = ["--ioengine=io_uring", "--direct=1", "--fallocate=none", "--overwrite=0"];
    fio_by(&[&engine[..], &[&file]].concat(), load, until)
}

/// Runs the load by fio's client of the Network Block Device protocol on the server that listens at
/// `socket`.
///
/// # Errors
/// fio is missing, has no such engine, or failed.
pub fn fio_nbd(socket: &Path, load: &Load, until: Until) -> Result<Found> {
    let uri = format!("--uri=nbd+unix:///?socket={}", socket.display());
    fio_by(&["--ioengine=nbd", &uri], load, until)
}

/// Runs the load by fio's client of RBD on an image: `(USER, POOL, IMAGE)`.
///
/// # Errors
/// fio is missing, has no such engine, or failed.
pub fn fio_rbd(conf: &Path, of: (&str, &str, &str), load: &Load, until: Until) -> Result<Found> {
    let (user, pool, image) = of;
    let [user, pool, image] = [("clientname", user), ("pool", pool), ("rbdname", image)]
        .map(|(option, value)| format!("--{option}={value}"));
    let conf = format!("CEPH_CONF={}", conf.display());
    let engine = ["--ioengine=rbd", &user, &pool, &image];
    fio_with(&["env", &conf, "fio"], &engine, load, until)
}

/// Runs the load by fio's client of RADOS on objects that are there or are made.
///
/// # Errors
/// fio is missing, has no such engine, or failed.
pub fn fio_rados(conf: &Path, objects: &[String], load: &Load, until: Until) -> Result<Found> {
    let conf = format!("--conf={}", conf.display());
    // What is there is read as it is.
    let touch = format!("--touch_objects={}", u8::from(load.write));
    let objects = objects.iter().map(String::as_str);
    let engine: Vec<&str> =
        ["--ioengine=rados", &conf, &touch].into_iter().chain(objects).collect();
    fio_by(&engine, load, until)
}

/// Runs the load by threads of one fio that `start` starts, a thread for each request under way, on
/// the file `data` of a lane.
///
/// # Errors
/// fio is missing or failed.
pub fn fio_threads(
    start: impl FnOnce(&[OsString]) -> Result<String>,
    load: &Load,
    until: Until,
) -> Result<Found> {
    let threads = format!("--numjobs={}", load.depth);
    let engine = ["--ioengine=psync", "--thread", "--group_reporting", "--filename=/lane/data"];
    let args = arguments(&[&engine[..], &[&threads]].concat(), load, until);
    let words: Vec<OsString> =
        ["fio".to_string()].into_iter().chain(args).map(Into::into).collect();
    understand(&start(&words)?, load)
}

fn fio_by(engine: &[&str], load: &Load, until: Until) -> Result<Found> {
    fio_with(&["fio"], engine, load, until)
}

/// `fio`: the words that start it.
fn fio_with(fio: &[&str], engine: &[&str], load: &Load, until: Until) -> Result<Found> {
    let args = arguments(engine, load, until);
    let (program, before) = fio.split_first().context("a program")?;
    let args: Vec<&str> = before.iter().copied().chain(args.iter().map(String::as_str)).collect();
    understand(&command(program, &args)?, load)
}

fn arguments(engine: &[&str], load: &Load, until: Until) -> Vec<String> {
    let kind = match (load.write, load.random) {
        (true, true) => "randwrite",
        (true, false) => "write",
        (false, true) => "randread",
        (false, false) => "read",
    };
    let mut args: Vec<String> =
        ["--name=load", "--norandommap", "--output-format=json"].map(String::from).into();
    args.extend(engine.iter().map(|arg| arg.to_string()));
    // From the submission on, as ours.
    args.push("--lat_percentiles=1".into());
    args.push(format!("--rw={kind}"));
    args.push(format!("--bs={}", load.piece));
    args.push(format!("--iodepth={}", load.depth));
    args.push(format!("--size={}", load.span));
    if let Until::Time(time) = until {
        args.push("--time_based".into());
        args.push(format!("--runtime={}ms", time.as_millis()));
    }
    args
}

/// Reads fio's report.
fn understand(said: &str, load: &Load) -> Result<Found> {
    // Notes may come before the report.
    let json = said.find('{').map(|at| &said[at..]).unwrap_or_default();
    let report: serde_json::Value = serde_json::from_str(json).context("fio's report")?;
    let job = &report["jobs"][0];
    let side = &job[if load.write { "write" } else { "read" }];
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or(0.0);
    let (rate, count) = (number(&side["iops"]), number(&side["total_ios"]));
    ensure!(rate > 0.0 && count > 0.0, "fio did nothing");
    // Shares of the job's run time, in percent.
    let cpu = (number(&job["usr_cpu"]) + number(&job["sys_cpu"])) / 100.0;
    Ok(Found {
        rate,
        p99_us: number(&side["lat_ns"]["percentile"]["99.000000"]) / 1e3,
        cpu_us: cpu * number(&job["job_runtime"]) * 1e3 / count,
        switches: number(&job["ctx"]) / count,
    })
}
