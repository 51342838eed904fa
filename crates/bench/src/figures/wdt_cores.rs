//! `wdt-fig6`: what admission costs by policy and by threads, with a lock for each lane or one for
//! all; `qos-cost`: what the coordinator costs by lanes. No device: time of the threads alone.
//! `wdt-fig7`: cache misses of the former, where the CPU's counters can be read.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polylane_block::qos::board::{Board, Device, Limits, Rule};
use polylane_block::qos::cost::{CostModel, Line};
use polylane_block::qos::lane::Lane;
use polylane_block::qos::page::{Mapped, PAGE_BYTES, Private, Words, lane};
use polylane_block::qos::{Io, Kind, Verdict};
use polylane_sys::Region;
use rustix::time::{ClockId, clock_gettime};

use crate::report::{Better, Report};
use crate::{Options, progress};

const READ: Io = Io { kind: Kind::Read, bytes: 4096, sequential: false };

/// Requests between two looks at the window: what a lane may do in one.
const REQUESTS: u64 = 200_000;

fn cpu_ns() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// A device on which nothing is ever short of credit.
fn endless() -> Device {
    let line = Line { sequential_ns: 1, random_ns: 1, page_ns: 1 };
    let cost = CostModel { read: line, write: line, discard_ns: 1, flush_ns: 1 };
    Device { cost, capacity: Some(1e6), ..Device::default() }
}

/// Lanes of one board, as processes have them, in a window that is nearly over, and the time then.
fn lanes(rule: Rule, count: usize) -> Result<(u64, Vec<Lane<Mapped>>)> {
    let mut board = Board::new(rule, endless(), 0);
    let (_, lock) = Region::create("polylane-bench-lock", PAGE_BYTES)?;
    let mut lanes = Vec::new();
    for _ in 0..count {
        let (page, fd) = Region::create("polylane-bench", PAGE_BYTES)?;
        board.join(Mapped(page), Limits::default(), 0);
        let shared = match rule {
            Rule::WdtSharedLock => Some(Mapped(Region::attach(&lock, PAGE_BYTES)?)),
            Rule::Static | Rule::Wdt | Rule::Ledger => None,
        };
        lanes.push(Lane::new(Mapped(Region::attach(fd, PAGE_BYTES)?), shared));
    }
    for lane in &lanes {
        // Whoever did nothing has no window of its own.
        if lane.admit(&READ, || 1) == Verdict::Go {
            lane.complete(lane.cost(&READ));
        }
    }
    let begin = board.next_tick().max(board.tick_ns());
    board.tick(begin, None);
    Ok((begin + board.tick_ns() / 10 * 9, lanes))
}

/// Admission by threads and policy.
///
/// # Errors
/// A request is held back: the measurement would be of something else.
pub fn fig6(options: &Options) -> Result<Report> {
    let title = "admission and completion of a request, a lane for each thread, no device";
    let mut report = Report::new("wdt-fig6", title, "threads", "ns", Better::Lower);
    sweep(options, &mut report, |report, rule, count| {
        let (ns, per_second) = admit(rule, count)?;
        let extra = [("million_per_s", per_second / 1e6)];
        report.add(rule.name(), &count.to_string(), ns, &extra);
        Ok(())
    })?;
    report.notes.push(format!(
        "ns: CPU time of a thread for a request; million_per_s: of all by the clock; {} CPUs",
        cpus()
    ));
    Ok(report)
}

fn cpus() -> usize {
    thread::available_parallelism().map_or(1, |count| count.get())
}

/// Does `one` for each number of threads and policy, interleaved.
fn sweep(
    options: &Options,
    report: &mut Report,
    mut one: impl FnMut(&mut Report, Rule, usize) -> Result<()>,
) -> Result<()> {
    report.baseline = Rule::Wdt.name().into();
    for repeat in 0..options.repeats() {
        for count in [1, 2, 4, 8].into_iter().filter(|count| *count <= 2 * cpus()) {
            for rule in [Rule::Wdt, Rule::WdtSharedLock, Rule::Ledger] {
                let (figure, name) = (&report.figure, rule.name());
                progress(&format!("{figure} {name} {count}, repeat {}", repeat + 1));
                one(report, rule, count)?;
            }
        }
    }
    Ok(())
}

/// Nanoseconds of a thread for each request, and requests per second of all.
fn admit(rule: Rule, count: usize) -> Result<(f64, f64)> {
    let (now, lanes) = lanes(rule, count)?;
    let begin = std::time::Instant::now();
    let done: Vec<Option<f64>> = thread::scope(|scope| {
        let work = |lane: Lane<Mapped>| {
            move || {
                let (begin, cost) = (cpu_ns(), lane.cost(&READ));
                for _ in 0..REQUESTS {
                    // A window that never ends: the lane's clock stands still.
                    if lane.admit(&READ, || now) != Verdict::Go {
                        return None;
                    }
                    lane.complete(cost);
                }
                Some((cpu_ns() - begin) / REQUESTS as f64)
            }
        };
        let threads: Vec<_> = lanes.into_iter().map(|lane| scope.spawn(work(lane))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
    });
    let seconds = begin.elapsed().as_secs_f64();
    let known: Vec<f64> = done.iter().flatten().copied().collect();
    ensure!(known.len() == count, "{}: a request was held back", rule.name());
    let mean = known.iter().sum::<f64>() / count as f64;
    Ok((mean, (REQUESTS * count as u64) as f64 / seconds))
}

/// Cache misses of admission, by threads and policy.
///
/// # Errors
/// The load failed.
pub fn fig7(options: &Options) -> Result<Report> {
    let title = "cache references that miss in admission";
    let mut report = Report::new("wdt-fig7", title, "threads", "part", Better::Lower);
    let nothing = || {
        thread::sleep(Duration::from_millis(10));
        Ok(())
    };
    match misses(nothing) {
        Ok(Some(_)) => {}
        Ok(None) => {
            report.notes.push("left out: this CPU's counters are not read here".into());
            return Ok(report);
        }
        Err(error) => {
            report.notes.push(format!("left out: {error:#}"));
            return Ok(report);
        }
    }
    sweep(options, &mut report, |report, rule, count| {
        let part = misses(|| admit(rule, count).map(drop))?.context("perf counts no more")?;
        report.add(rule.name(), &count.to_string(), part, &[]);
        Ok(())
    })?;
    Ok(report)
}

/// The part of this process's cache references that miss while `work` is done over and over for a
/// moment; `None` where they are not counted.
fn misses(mut work: impl FnMut() -> Result<()>) -> Result<Option<f64>> {
    let me = std::process::id().to_string();
    let events = ["stat", "-x", ",", "-e", "cache-references,cache-misses", "-p", &me];
    let mut perf = Command::new("perf");
    perf.args(events).args(["--", "sleep", "0.3"]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut perf = perf.spawn().context("run perf")?;
    while perf.try_wait().context("wait for perf")?.is_none() {
        work()?;
    }
    let text = String::from_utf8(perf.wait_with_output().context("hear perf")?.stderr)?;
    let count = |name: &str| {
        let line = text.lines().find(|line| line.contains(name))?;
        line.split(',').next()?.parse::<f64>().ok()
    };
    Ok(count("cache-misses").zip(count("cache-references")).map(|(misses, all)| misses / all))
}

/// The coordinator's CPU time by lanes and how many of them are active.
///
/// # Errors
/// None.
pub fn cost(options: &Options) -> Result<Report> {
    let title = "CPU time of the ledger's coordinator for a window";
    let mut report = Report::new("qos-cost", title, "active of all lanes", "us", Better::Lower);
    for _ in 0..options.repeats() {
        for (active, count) in [(4, 4), (100, 100), (50, 1000), (1000, 1000)] {
            progress(&format!("qos-cost {active} of {count}"));
            let (us, part) = windows(active, count);
            let label = format!("{active} of {count}");
            report.add("ledger", &label, us, &[("percent_of_a_core", 100.0 * part)]);
        }
    }
    report.notes.push("CPU time of the thread; memory of one process, no futexes rung".into());
    Ok(report)
}

/// Microseconds of CPU that a window takes, and the part of a core that they are.
fn windows(active: u64, count: u64) -> (f64, f64) {
    const WINDOWS: u64 = 200;
    let order = std::sync::atomic::Ordering::Relaxed;
    let mut board = Board::new(Rule::Ledger, Device::default(), 0);
    let pages: Vec<Arc<Private>> = (0..count).map(|_| Arc::default()).collect();
    for page in &pages {
        board.join(page.clone(), Limits::default(), 0);
    }
    let mut ns = 0.0;
    for _ in 0..WINDOWS {
        let now = board.next_tick();
        for page in pages.iter().step_by((count / active) as usize) {
            for word in [lane::SPENT, lane::DONE] {
                page.add(word, board.tick_ns() / active, order);
            }
        }
        let begin = cpu_ns();
        board.tick(now, None);
        ns += cpu_ns() - begin;
    }
    let length = board.next_tick() as f64;
    (ns / WINDOWS as f64 / 1e3, ns / length)
}
