//! `pools`: what lasting pools and lanes cost at rest, and how long the start of a lane takes.
//!
//! Pools are created and lanes in memory mounted as many at a time as there are CPUs. Memory is the
//! proportional set size of every process that came to be: a page that several share counts for
//! each in parts.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polylane_sys::procstat::ProcessStat;

use crate::report::{Better, Report, median};
use crate::tools::polylane;
use crate::{Options, progress};

/// Lanes that are started one after the other, for the time of a start.
const STARTS: usize = 20;
/// Lanes of each pool that have services of their own, in the end.
const LANES: usize = 4;
/// After so long processes have given up what they have only used to start.
const SETTLED: Duration = Duration::from_secs(5);
/// A lane's SOURCE.
const SOURCE: &str = "mem:16M";

/// Measures by numbers of pools: with one lane each, with one more in the same service, and with
/// three more that have services of their own.
///
/// # Errors
/// Not root, or a pool or a lane could not be made.
pub fn run(options: &Options) -> Result<Report> {
    let title = "memory of a pool with one lane, and of one more lane in its service, at rest";
    let mut report = Report::new("pools", title, "pools", "MiB", Better::Lower);
    let counts: &[usize] = if options.quick { &[1, 16] } else { &[1, 16, 64] };
    let rest = Duration::from_secs(if options.quick { 5 } else { 20 });
    for repeat in 0..options.repeats() {
        for count in counts {
            progress(&format!("{count} pools, repeat {}", repeat + 1));
            measure(&mut report, *count, rest)?;
        }
    }
    report.notes.extend([
        "MiB: proportional set size of all processes, divided by the number of pools".to_string(),
        format!("cpu: percent of one CPU that a pool's processes took in {} s", rest.as_secs()),
        format!("start_ms: p50 of {STARTS} lanes mounted one after the other beside all others"),
        "all_s: creation of all pools and mounts of their lanes; with four lanes: mounts of \
         the other three"
            .to_string(),
    ]);
    Ok(report)
}

fn measure(report: &mut Report, count: usize, rest: Duration) -> Result<()> {
    let before = processes()?;
    let pools = Pools::new(count)?;
    let begun = Instant::now();
    pools.each(|pools, number| {
        polylane(&["pool", "create", &pools.name(number)])?;
        pools.mount(number, &pools.path(number, "a"), &[])
    })?;
    let all = begun.elapsed();
    let ours = || -> Result<Vec<u32>> { Ok(processes()?.difference(&before).copied().collect()) };
    sleep(SETTLED);
    let one = memory(&ours()?)?;
    let ticks = cpu_ticks(&ours()?);
    sleep(rest);
    // A tick is 10 ms.
    let spent = (cpu_ticks(&ours()?) - ticks) as f64 / 100.0;
    let starts = starts_of(&pools)?;
    pools.each(|pools, number| pools.mount(number, &pools.path(number, "b"), &["--share"]))?;
    sleep(SETTLED);
    let two = memory(&ours()?)?;
    let (point, each) = (count.to_string(), |bytes: f64| bytes / (1 << 20) as f64 / count as f64);
    let extra = [
        ("cpu_percent", spent / rest.as_secs_f64() / count as f64 * 100.0),
        ("start_ms", median(&starts)),
        ("all_s", all.as_secs_f64()),
    ];
    report.add("a pool with one lane", &point, each(one), &extra);
    report.add("one more lane in its service", &point, each(two - one), &[]);
    let begun = Instant::now();
    pools.each(|pools, number| {
        (1..LANES).try_for_each(|lane| pools.mount(number, &pools.lane(number, lane), &[]))
    })?;
    let all = begun.elapsed();
    sleep(SETTLED);
    let extra = [("start_ms", median(&starts_of(&pools)?)), ("all_s", all.as_secs_f64())];
    report.add("a pool with four lanes", &point, each(memory(&ours()?)?), &extra);
    Ok(())
}

/// Milliseconds of starts of lanes, one after the other; they are unmounted again.
fn starts_of(pools: &Pools) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    for number in 0..STARTS {
        let path = pools.path(0, &format!("start{number}"));
        if path.exists() {
            std::fs::remove_dir(&path).context("remove the directory of a lane")?;
        }
        let begun = Instant::now();
        pools.mount(0, &path, &[])?;
        times.push(begun.elapsed().as_secs_f64() * 1000.0);
        polylane(&[OsStr::new("umount"), path.as_os_str()])?;
    }
    Ok(times)
}

/// Pools of this run, their lanes below a directory of their own; both go with it.
struct Pools {
    dir: tempfile::TempDir,
    count: usize,
}

impl Pools {
    fn new(count: usize) -> Result<Pools> {
        let dir = tempfile::tempdir().context("directory of lanes")?;
        Ok(Pools { dir, count })
    }

    fn name(&self, number: usize) -> String {
        format!("bench-{}-{number}", std::process::id())
    }

    fn path(&self, number: usize, lane: &str) -> PathBuf {
        self.dir.path().join(format!("{number}-{lane}"))
    }

    /// A lane besides the first that has a service of its own.
    fn lane(&self, number: usize, lane: usize) -> PathBuf {
        self.path(number, &format!("own{lane}"))
    }

    fn mount(&self, number: usize, path: &Path, words: &[&str]) -> Result<()> {
        std::fs::create_dir(path).with_context(|| format!("create {}", path.display()))?;
        let pool = self.name(number);
        let words = [&["mount", "--pool", &pool], words, &[SOURCE]].concat();
        let mut words: Vec<&OsStr> = words.into_iter().map(OsStr::new).collect();
        words.push(path.as_os_str());
        polylane(&words).map(drop)
    }

    /// Does something for each pool, as many at a time as there are CPUs.
    fn each(&self, work: impl Fn(&Pools, usize) -> Result<()> + Sync) -> Result<()> {
        let (next, cpus) = (AtomicUsize::new(0), polylane_sys::cpu::allowed()?.len());
        let turn = || -> Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= self.count {
                    return Ok(());
                }
                work(self, number)?;
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..cpus).map(|_| scope.spawn(turn)).collect();
            threads.into_iter().try_for_each(|it| it.join().expect("a thread does not panic"))
        })
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        let gone = self.each(|pools, number| {
            // A service's first lane goes last.
            let own = (1..LANES).map(|lane| pools.lane(number, lane));
            for lane in own.chain(["b", "a"].map(|lane| pools.path(number, lane))) {
                if lane.exists() {
                    polylane(&[OsStr::new("umount"), lane.as_os_str()])?;
                }
            }
            polylane(&["pool", "rm", &pools.name(number)]).map(drop)
        });
        if let Err(error) = gone {
            eprintln!("polylane: bench: pools: {error:#}");
        }
    }
}

/// Every process that runs this program.
pub(super) fn processes() -> Result<BTreeSet<u32>> {
    let me = std::fs::read_link("/proc/self/exe").context("own path")?;
    processes_of(|program| program == me)
}

/// Every process that runs a program that `is` one to count.
pub(super) fn processes_of(is: impl Fn(&Path) -> bool) -> Result<BTreeSet<u32>> {
    let all = std::fs::read_dir("/proc").context("read /proc")?;
    let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let ours = pids.filter(|pid: &u32| {
        std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| is(&program))
    });
    Ok(ours.collect())
}

/// Proportional set size of processes, bytes.
pub(super) fn memory(pids: &[u32]) -> Result<f64> {
    ensure!(!pids.is_empty(), "no process of the pools was found");
    let kib = |pid: &u32| {
        // One that has ended in between has none.
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
        line.and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok())
    };
    Ok(pids.iter().filter_map(kib).sum::<f64>() * 1024.0)
}

/// CPU time of processes, in the kernel's ticks of 10 ms.
pub(super) fn cpu_ticks(pids: &[u32]) -> u64 {
    let of = |pid: &u32| Some(ProcessStat::of(*pid)?.own_ticks);
    pids.iter().filter_map(of).flatten().sum()
}
