//! `table1` and `table3`: the kernel locks that tenants wait for most (MultiLanes, FAST '14, Tables
//! 1 and 3), by `perf lock`, whose contention tracepoints stock kernels have from 5.19 on.
//!
//! A lock is named by the function that waits for it: several locks may be taken in one function,
//! and one lock in several. perf sees the whole machine, so other work on it shows too.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::sweep::{Work, available};
use crate::place::{Ground, Place, Tenant, together};
use crate::report::{Better, Report, median, number};
use crate::tools::command;
use crate::worker::{Length, Outcome};
use crate::{Options, progress};

const PLACES: [Place; 6] = [
    Place::Kernel("ext4"),
    Place::KernelEach("ext4"),
    Place::LaneExt4,
    Place::Kernel("ext3"),
    Place::Kernel("xfs"),
    Place::Kernel("btrfs"),
];

const TENANTS: usize = 16;

/// Locks shown of each place.
const HOTTEST: usize = 3;

/// How often a lock was waited for and how long, in one second of a run.
#[derive(Clone, Copy, Default)]
struct Wait {
    count: f64,
    us: f64,
}

/// What tenants did while they were watched, and the locks that they and all others waited for.
type Watched = (Vec<Outcome>, BTreeMap<String, Wait>);

/// What 16 tenants came to in one run, slowed down by the tracing.
struct Got {
    /// Operations per second of all of them.
    total: f64,
    /// 99 of 100 operations took this long at most, in µs: the tenants' mean, and the worst's.
    p99_us: f64,
    p99_worst_us: f64,
}

impl Got {
    fn of(outcomes: &[Outcome]) -> Got {
        let p99 = || outcomes.iter().map(|outcome| outcome.latency.p99_ns / 1000.0);
        Got {
            total: outcomes.iter().map(Outcome::rate).sum(),
            p99_us: p99().sum::<f64>() / outcomes.len().max(1) as f64,
            p99_worst_us: p99().fold(0.0, f64::max),
        }
    }

    /// Medians of several runs, for readers.
    fn typical(runs: &[Got]) -> String {
        let of =
            |value: fn(&Got) -> f64| number(median(&runs.iter().map(value).collect::<Vec<_>>()));
        let (total, each) = (of(|got| got.total), of(|got| got.total / TENANTS as f64));
        let (mean, worst) = (of(|got| got.p99_us), of(|got| got.p99_worst_us));
        format!("under perf {total} operations/s, {each} each; p99 {mean} µs, the worst {worst}")
    }
}

/// Locks under buffered sequential writes.
///
/// # Errors
/// perf is missing or may not trace, not root, or a tenant failed.
pub fn table1(options: &Options) -> Result<Report> {
    measure(options, "table1", "seqwrite", "16 tenants write 4 KiB at a time")
}

/// Locks when names come and go.
///
/// # Errors
/// As [`table1`].
pub fn table3(options: &Options) -> Result<Report> {
    measure(options, "table3", "ocrd", "16 tenants create, rename and unlink")
}

fn measure(options: &Options, figure: &str, load: &'static str, title: &str) -> Result<Report> {
    let ground = Ground::new()?;
    let title = format!("{figure}: kernel locks waited for most, {title}");
    let mut report = Report::new(figure, &title, "waiting in", "µs waited/s", Better::Lower);
    report.baseline = PLACES[0].name();
    let seconds = if options.quick { 1.0 } else { 3.0 };
    let work = Work::Load(load, Length::Seconds(seconds));
    let options = &options.slow(&mut report);
    for (place, shared) in available(&ground, &PLACES, &mut report) {
        let mut seen: BTreeMap<String, Vec<Wait>> = BTreeMap::new();
        let mut tenants_got = Vec::new();
        for repeat in 0..options.repeats() {
            progress(&format!("{load} {}, repeat {}", place.name(), repeat + 1));
            let tenants = (0..TENANTS).map(|index| work.start(place, &shared, index));
            let (outcomes, waits) = watched(tenants.collect::<Result<_>>()?, seconds)?;
            tenants_got.push(Got::of(&outcomes));
            for (lock, wait) in waits {
                seen.entry(lock).or_default().push(wait);
            }
            ground.tidy(place, &shared)?;
        }
        add(&mut report, &place.name(), seen, options.repeats());
        report.notes.push(format!("{}: {}", place.name(), Got::typical(&tenants_got)));
    }
    report.notes.push("every place's three hottest; a lock is named by who waits for it".into());
    report
        .notes
        .push("of the whole machine: futex and scheduler locks are of the benchmark".into());
    Ok(report)
}

fn add(report: &mut Report, place: &str, mut seen: BTreeMap<String, Vec<Wait>>, repeats: usize) {
    if seen.is_empty() {
        seen.insert("no lock".into(), Vec::new());
    }
    // A lock that a repeat did not see was not waited for in it.
    seen.values_mut().for_each(|waits| waits.resize(repeats, Wait::default()));
    let typical = |waits: &[Wait]| median(&waits.iter().map(|w| w.us).collect::<Vec<_>>());
    let mut order: Vec<_> = seen.into_iter().collect();
    order.sort_by(|a, b| typical(&b.1).total_cmp(&typical(&a.1)));
    for (lock, waits) in order.into_iter().take(HOTTEST) {
        waits.iter().for_each(|w| report.add(place, &lock, w.us, &[("waits_per_s", w.count)]));
    }
}

/// Lets the tenants work under perf; what they and all others waited for.
fn watched(tenants: Vec<Tenant>, seconds: f64) -> Result<Watched> {
    let dir = tempfile::tempdir().context("directory for perf's data")?;
    let data = dir.path().join("perf.data");
    let data = data.to_str().context("temporary directory is not UTF-8")?;
    let recorder = record(data, seconds)?;
    let outcomes = together(tenants)?;
    let done = recorder.wait_with_output().context("wait for perf")?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        bail!("perf lock record: {}", said.lines().next().unwrap_or("no message"));
    }
    let text = command("sh", &["-c", "exec perf lock contention -i \"$0\" 2>&1", data])?;
    // The head of its table comes before nothing where nobody waited.
    ensure!(text.contains("contended"), "perf lock contention told nothing: {text}");
    let waits = parse(&text).into_iter().map(|(lock, w)| (lock, per_second(w, seconds))).collect();
    Ok((outcomes, waits))
}

fn per_second(wait: Wait, seconds: f64) -> Wait {
    Wait { count: wait.count / seconds, us: wait.us / seconds }
}

fn record(data: &str, seconds: f64) -> Result<Child> {
    Command::new("perf")
        .args(["lock", "record", "--all-cpus", "-o", data, "--", "sleep", &seconds.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("perf (package linux-perf) is needed")
}

/// Reads lines such as `1402  9.96 ms  118.37 us  7.10 us  spinlock  wake_up_q+0x33`.
fn parse(text: &str) -> BTreeMap<String, Wait> {
    let mut locks: BTreeMap<String, Wait> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [count, total, unit, .., kind, caller] = words[..] else { continue };
        let (Ok(count), Ok(total)) = (count.parse::<f64>(), total.parse::<f64>()) else { continue };
        let scale = match unit {
            "ns" => 0.001,
            "us" => 1.0,
            "ms" => 1000.0,
            "s" => 1e6,
            _ => continue,
        };
        let function = caller.split('+').next().unwrap_or(caller);
        let wait = locks.entry(format!("{function} ({kind})")).or_default();
        wait.count += count;
        wait.us += total * scale;
    }
    locks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perf_is_understood() {
        let text = " contended   total wait     max wait     avg wait         type   caller\n\n\
                    1402  9.96 ms  118.37 us  7.10 us  spinlock  evict+0x33\n\
                    2  4.00 us  3 us  2.00 us  spinlock  evict+0x51\n\
                    1  7.00 us  7.00 us  7.00 us  rwsem:W  ext4_rename+0x4a\n";
        let locks = parse(text);
        assert_eq!(locks.len(), 2);
        assert_eq!(locks["evict (spinlock)"].count, 1404.0);
        assert!((locks["evict (spinlock)"].us - 9964.0).abs() < 1e-6);
        assert_eq!(locks["ext4_rename (rwsem:W)"].us, 7.0);
    }
}
