//! `service-separation`: what one tenant feels when another tenant's service is killed, stopped,
//! out of memory or upgraded.
//!
//! Each tenant has a pool and a service of its own, which share nothing. One of them works; the
//! other appends a line to a file now and then, and something happens to it once in each
//! measurement.
//!
//! Each tenant's program and service have one CPU together, which the other tenant's do not use. A
//! program that has its service now beside it and now on another CPU is measured in two values, ten
//! times apart, whatever happens to others.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use polylane_sys::cpu;
use rustix::process::{Pid, Signal, kill_process};

use crate::lasting::{Lane, Worker};
use crate::report::{Better, Report};
use crate::tools::{path, polylane};
use crate::{Options, progress};

/// What happens to the other tenant's service.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Nothing,
    Killed,
    Stopped,
    OutOfMemory,
    Upgraded,
}

/// The first is the baseline.
const EVENTS: [Event; 5] =
    [Event::Nothing, Event::Killed, Event::Stopped, Event::OutOfMemory, Event::Upgraded];

/// Ways into the tenant's lane.
const DOORS: [&str; 2] = ["library", "FUSE"];

/// What the tenant does.
const LOAD: &str = "cwru";

/// How long it has worked when something happens.
const BEFORE: Duration = Duration::from_millis(150);

/// Memory of the other tenant's pool.
const MEMORY: &str = "64M";

impl Event {
    fn name(self) -> &'static str {
        match self {
            Event::Nothing => "nothing",
            Event::Killed => "killed",
            Event::Stopped => "stopped",
            Event::OutOfMemory => "out of memory",
            Event::Upgraded => "upgraded",
        }
    }

    /// Has it happen; what there is to wait for.
    fn happen(self, lane: &Lane, service: Pid) -> Result<Option<Child>> {
        let program = || Command::new("/proc/self/exe");
        let started = |command: &mut Command| -> Result<Option<Child>> {
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            Ok(Some(command.spawn().context("run polylane")?))
        };
        match self {
            Event::Nothing => Ok(None),
            Event::Killed => Ok(kill_process(service, Signal::KILL).map(|()| None)?),
            Event::Stopped => Ok(kill_process(service, Signal::STOP).map(|()| None)?),
            // It reads a line without an end, which it keeps.
            Event::OutOfMemory => {
                let words = ["exec", "--pool", lane.pool(), "--", "tail", "/dev/zero"];
                started(program().args(words))
            }
            Event::Upgraded => started(program().args(["pool", "upgrade", lane.pool()])),
        }
    }
}

/// Measures the 99th percentile of one tenant's operations.
///
/// # Errors
/// Not root, or a lane or a load failed.
pub fn run(options: &Options) -> Result<Report> {
    let title = "a tenant's create, write, rename, unlink as another tenant's service …";
    let mut report = Report::new("service-separation", title, "by", "µs (p99)", Better::Lower);
    report.baseline = EVENTS[0].name().to_string();
    let seconds = if options.quick { 0.6 } else { 1.2 };
    let dir = tempfile::tempdir().context("directory of lanes")?;
    let all = cpu::allowed()?;
    let cpus = Cpus { other: all[0].to_string(), tenant: all[all.len() - 1].to_string() };
    let tenant = Lane::mount(dir.path(), "tenant", &["--cpus", &cpus.tenant], &["mem:64M"])?;
    for repeat in 0..options.repeats() {
        for door in DOORS {
            // Nothing is always first: what the machine does beside changes.
            let mut events = EVENTS;
            events.rotate_left(repeat % EVENTS.len());
            for event in events {
                progress(&format!("{} {door}, repeat {}", event.name(), repeat + 1));
                one(&mut report, (&tenant, &cpus), (event, door), seconds, dir.path())?;
            }
        }
    }
    report.notes.extend([
        format!(
            "the tenant's program and service on CPU {}, the other's on {}",
            cpus.tenant, cpus.other
        ),
        format!("each measurement {seconds} s; it happens once, 0.15 s after its begin"),
        "the other tenant, on a volume, appends a line 50 times a second; order rotates".into(),
        format!("out of memory: a program in its pool of {MEMORY} takes what it gets"),
        "max_us: the longest operation, median of the repeats".into(),
    ]);
    Ok(report)
}

/// The CPU of each tenant's program and service.
struct Cpus {
    tenant: String,
    other: String,
}

impl Cpus {
    /// A command of this program, or of another one, on one CPU.
    fn on(cpu: &str, program: &str) -> Command {
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", cpu, program]);
        command
    }
}

fn one(
    report: &mut Report,
    (tenant, cpus): (&Lane, &Cpus),
    (event, door): (Event, &str),
    seconds: f64,
    dir: &Path,
) -> Result<()> {
    let volume = format!("volume:{}", dir.join("other.img").display());
    let limits = ["--memory", MEMORY, "--cpus", &cpus.other];
    let other = Lane::mount(dir, "other", &limits, &["--size", "64M", &volume])?;
    let script = "while :; do echo x >>line; sleep 0.02; done";
    let appends = Cpus::on(&cpus.other, "sh")
        .args(["-c", script])
        .current_dir(other.at())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _appends = Ends(appends.context("run sh")?);
    let service = Pid::from_raw(other.service()?.cast_signed()).context("a process")?;
    let program = std::env::current_exe().context("find this program")?;
    let mut command = Cpus::on(&cpus.tenant, path(&program)?);
    command.args(["bench", "worker", LOAD]).arg(tenant.at().join("load"));
    command.arg(format!("{seconds}s"));
    if door == DOORS[0] {
        command.envs(tenant.environment().iter().map(|(name, value)| (name, value)));
    }
    let mut worker = Worker::start(command)?;
    worker.go()?;
    sleep(BEFORE);
    let happens = event.happen(&other, service)?.map(Ends);
    let outcome = worker.outcome();
    if event == Event::Stopped {
        // Its lane is to be unmounted.
        kill_process(service, Signal::CONT)?;
    }
    drop(happens);
    let latency = outcome?.latency;
    let extra = [("p50_us", latency.p50_ns / 1e3), ("max_us", latency.max_ns / 1e3)];
    report.add(event.name(), door, latency.p99_ns / 1e3, &extra);
    drop(_appends);
    drop(other);
    std::fs::remove_dir(dir.join("other")).context("remove the directory of a lane")?;
    polylane(&["volume", "rm", &dir.join("other.img").display().to_string()]).map(drop)
}

/// A process that ends with this.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
