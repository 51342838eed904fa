//! Tenants that read one lower at the same time, each through a union of its own: what `srcdiff`
//! and `gapbs-bfs` share.
//!
//! Each tenant is a process that answers each line of its standard input with one line about what
//! it read. The unions are mounted anew for each measurement: the first round is the cold one, the
//! second the warm one. A round's rate is the work of all tenants over the time of the slowest.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::fs::Advice;
use rustix::process::{Pid, Signal, kill_process_group};

use super::pools::{cpu_ticks, processes, processes_of};
use crate::report::Report;
use crate::tools::cpu_seconds;
use crate::unions::{Ground, Union, Way};
use crate::{Options, progress};

/// The first is the baseline.
const WAYS: [Way; 4] = [Way::Overlayfs, Way::FuseOverlayfs, Way::LaneFuse, Way::Lane];

const TENANTS: &[usize] = &[1, 2, 4, 8, 16, 32];

/// The same for a look.
const TENANTS_QUICK: &[usize] = &[1, 4];

/// The rounds on one mount, and how many times in a row each tenant works in them: what is read
/// from memory alone takes too short a time to be measured once.
const ROUNDS: [(&str, usize); 2] = [("cold", 1), ("warm", 5)];

/// statfs(2).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

const NOTES: [&str; 5] = [
    "each tenant has a union of its own: the shared lower under a private upper; rate: the work of \
     all tenants over the time of the slowest",
    "stddev_s, mean_s, slowest_s: standard deviation, mean and maximum of the tenants' times",
    "cpu_s: CPU time of all tenants and their services; threads of the kernel's own do not count",
    "cold: the unions are fresh and no page of the lower's files is in the host's cache; names and \
     attributes of the lower stay there. warm: the same five times more, without a pause",
    "every answer is compared with that of the same program on the lower itself",
];

const CEPH_NOTES: [&str; 2] = [
    "the lower and all uppers are in one Ceph file system, each tenant's by a client of its own: \
     fuse-overlayfs over ceph-fuse, or a lane over '--lower ceph:'; overlayfs takes no upper on \
     FUSE",
    "cpu_s has no ceph-fuse; unionfs-fuse is not measured",
];

/// How many tenants read at a time, one point after the other.
pub(super) fn tenants(options: &Options) -> Vec<usize> {
    options.points(if options.quick { TENANTS_QUICK } else { TENANTS })
}

/// What each tenant runs, and on what.
pub(super) struct Reading<'a> {
    /// Where it lies.
    pub ground: &'a Ground,
    /// The shared lower.
    pub lower: &'a Path,
    /// The program: says `ready`, then answers each line with a line. It begins in the lower.
    pub program: &'a str,
    /// Its arguments.
    pub arguments: &'a [&'a str],
    /// How many of the report's units a tenant does for a line.
    pub units: f64,
}

impl Reading<'_> {
    /// Adds the total rate for each way, number of tenants and round to `report`.
    ///
    /// # Errors
    /// Not root, a union cannot be mounted, a tenant failed or read what is not in the lower.
    pub(super) fn measure(&self, options: &Options, report: &mut Report) -> Result<()> {
        let chosen = Way::chosen(&WAYS, options)?;
        let ways = Way::available(&self.ground.ways(&chosen), &mut report.notes);
        if let Ground::Ceph(_) = self.ground {
            report.figure = format!("ceph-{}", report.figure);
            report.notes.extend(CEPH_NOTES.map(String::from));
        }
        self.ground.settle();
        ensure!(!ways.is_empty(), "nothing to measure is on this host");
        report.baseline = ways[0].name().to_string();
        let answer = self.answer()?;
        for repeat in 0..options.repeats() {
            for count in tenants(options) {
                for &way in &ways {
                    let name = way.name();
                    progress(&format!("{} {name} × {count}, repeat {}", report.figure, repeat + 1));
                    self.rounds(report, way, count, &answer)?;
                }
            }
        }
        report.notes.extend(NOTES.map(String::from));
        let kind = rustix::fs::statfs(self.lower).context("the lower's file system")?.f_type;
        if kind == TMPFS_MAGIC {
            let warm =
                "the lower is on a tmpfs, which has its pages in memory also when it is cold";
            report.notes.push(format!("{warm}: TMPDIR says where it is made"));
        }
        Ok(())
    }

    /// What the program says of the lower itself.
    fn answer(&self) -> Result<String> {
        let mut program = Command::new(self.program);
        program.args(self.arguments).current_dir(self.lower);
        let mut tenant = Tenant::start(program)?;
        let answer = tenant.ask()?;
        tenant.end()?;
        Ok(answer)
    }

    fn rounds(&self, report: &mut Report, way: Way, count: usize, answer: &str) -> Result<()> {
        let before = services(way)?;
        let lowers = [self.lower.to_path_buf()];
        let unions: Vec<Union> =
            (0..count).map(|_| self.ground.mount(way, &lowers)).collect::<Result<_>>()?;
        let services: Vec<u32> = services(way)?.difference(&before).copied().collect();
        // After the unions, so that what still runs ends before they are unmounted.
        let start = |union: &Union| Tenant::start(union.program(self.program, self.arguments));
        let mut tenants = unions.iter().map(start).collect::<Result<Vec<_>>>()?;
        drop_pages(self.lower)?;
        for (round, passes) in ROUNDS {
            let spent = cpu(&tenants, &services);
            let times = together(&mut tenants, passes, answer)?;
            let spent = cpu(&tenants, &services) - spent;
            let slowest = times.iter().copied().fold(0.0, f64::max);
            let (mean, deviation) = mean_and_deviation(&times);
            let extra = [
                ("stddev_s", deviation),
                ("mean_s", mean),
                ("slowest_s", slowest),
                ("cpu_s", spent),
            ];
            let rate = self.units * (passes * count) as f64 / slowest.max(1e-9);
            report.add(way.name(), &format!("{count} {round}"), rate, &extra);
        }
        tenants.into_iter().try_for_each(Tenant::end)
    }
}

/// Processes that serve unions of that kind, all of this host's.
fn services(way: Way) -> Result<BTreeSet<u32>> {
    match way {
        Way::LaneFuse | Way::Lane | Way::Cached => processes(),
        Way::FuseOverlayfs => processes_of(|program| program.ends_with("fuse-overlayfs")),
        Way::Plain | Way::Overlayfs | Way::Metacopy => Ok(BTreeSet::new()),
    }
}

/// CPU time of all that the tenants consist of, in seconds.
fn cpu(tenants: &[Tenant], services: &[u32]) -> f64 {
    let own: f64 = tenants.iter().map(|tenant| cpu_seconds(tenant.child.id())).sum();
    own + cpu_ticks(services) as f64 / 100.0
}

/// Lets all tenants work at the same time, `passes` times each; the seconds that each took.
///
/// # Errors
/// A tenant ended, or did not say `answer`.
fn together(tenants: &mut [Tenant], passes: usize, answer: &str) -> Result<Vec<f64>> {
    let start = Barrier::new(tenants.len());
    let work = |tenant: &mut Tenant| {
        start.wait();
        let begun = Instant::now();
        for _ in 0..passes {
            let said = tenant.ask()?;
            ensure!(said == answer, "a tenant read something else: '{said}', not '{answer}'");
        }
        Ok(begun.elapsed().as_secs_f64())
    };
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            tenants.iter_mut().map(|tenant| scope.spawn(move || work(tenant))).collect();
        threads.into_iter().map(|it| it.join().expect("a thread does not panic")).collect()
    })
}

/// Mean and standard deviation of all that there are.
fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

/// A program at work. Dropped before its end, it is killed with what it started.
struct Tenant {
    child: Child,
    // Closed to end it.
    asks: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Tenant {
    /// Starts the program and waits until it is ready.
    fn start(mut program: Command) -> Result<Tenant> {
        program.env("LC_ALL", "C").stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let name = program.get_program().to_os_string();
        let mut child = program.spawn().with_context(|| format!("run {}", name.display()))?;
        let (asks, answers) = (child.stdin.take(), child.stdout.take().context("a pipe")?);
        let mut tenant = Tenant { child, asks, answers: BufReader::new(answers) };
        let said = tenant.line()?;
        ensure!(said == "ready", "a tenant said '{said}', not ready");
        Ok(tenant)
    }

    /// Lets it work once; what it says.
    fn ask(&mut self) -> Result<String> {
        self.asks.as_mut().context("a pipe")?.write_all(b"go\n").context("a tenant ended")?;
        self.line()
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let bytes = self.answers.read_line(&mut line).context("a tenant's output")?;
        ensure!(bytes > 0, "a tenant ended");
        Ok(line.trim_end().to_string())
    }

    fn end(mut self) -> Result<()> {
        drop(self.asks.take());
        ensure!(self.child.wait().context("wait for a tenant")?.success(), "a tenant failed");
        Ok(())
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
            let _ = group.map(|group| kill_process_group(group, Signal::KILL));
            let _ = self.child.wait();
        }
    }
}

/// Regular files below a directory, with their bytes.
///
/// # Errors
/// The host's.
pub(super) fn files_below(dir: &Path) -> Result<Vec<(PathBuf, u64)>> {
    let (mut files, mut dirs) = (Vec::new(), vec![dir.to_path_buf()]);
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
            let entry = entry?;
            // Symbolic links are not followed.
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                dirs.push(entry.path());
            } else if metadata.is_file() {
                files.push((entry.path(), metadata.len()));
            }
        }
    }
    Ok(files)
}

/// Takes the pages of all files below a directory out of the host's cache, and no others: the
/// host may have other work.
fn drop_pages(dir: &Path) -> Result<()> {
    let root = File::open(dir).with_context(|| format!("open {}", dir.display()))?;
    // Pages that are not written yet would stay.
    rustix::fs::syncfs(&root).context("write the lower back")?;
    for (path, _) in files_below(dir)? {
        let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).context("drop pages")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use polylane_sys::procstat::ProcessStat;

    use super::*;
    use crate::report::Better;

    fn reading<'a>(lower: &'a Path, arguments: &'a [&'a str]) -> Reading<'a> {
        Reading { ground: &Ground::Host, lower, program: "sh", arguments, units: 1.0 }
    }

    #[test]
    fn both_rounds_of_all_tenants_are_in_the_report() {
        let lower = tempfile::tempdir().expect("temporary directory");
        fs::write(lower.path().join("file"), "text").expect("a file");
        let arguments = ["-euc", "echo ready; while read -r go; do cat file; echo; done"];
        let reading = reading(lower.path(), &arguments);
        let mut report = Report::new("test", "a test", "tenants", "files/s", Better::Higher);
        let answer = reading.answer().expect("an answer");
        assert_eq!(answer, "text");
        reading.rounds(&mut report, Way::Plain, 3, &answer).expect("two rounds");
        assert_eq!(report.points(), ["3 cold", "3 warm"]);
        for cell in &report.cells {
            assert!(cell.median() > 0.0 && cell.extra["slowest_s"] >= cell.extra["mean_s"]);
            assert!(cell.extra.contains_key("stddev_s") && cell.extra.contains_key("cpu_s"));
        }
    }

    #[test]
    fn tenants_that_fail_or_read_something_else_are_errors() {
        let lower = tempfile::tempdir().expect("temporary directory");
        let mut report = Report::new("test", "a test", "tenants", "files/s", Better::Higher);
        for (script, error) in [
            ("echo ready; while read -r go; do echo other; done", "something else"),
            ("echo ready; read -r go", "ended"),
            ("echo no", "not ready"),
            ("exit 1", "ended"),
            ("echo ready; while read -r go; do echo text; done; exit 3", "failed"),
        ] {
            let arguments = ["-euc", script];
            let reading = reading(lower.path(), &arguments);
            let done = reading.rounds(&mut report, Way::Plain, 2, "text");
            let said = format!("{:#}", done.expect_err(script));
            assert!(said.contains(error), "{script}: {said}");
        }
    }

    #[test]
    fn a_dropped_tenant_takes_what_it_started_along() {
        let mut program = Command::new("sh");
        program.args(["-euc", "sleep 1000 & echo $!; wait"]);
        program.stdout(Stdio::piped()).stdin(Stdio::piped()).process_group(0);
        let mut child = program.spawn().expect("sh");
        let (asks, answers) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        let mut tenant = Tenant { child, asks, answers: BufReader::new(answers) };
        let sleeping = tenant.line().expect("a process");
        drop(tenant);
        let until = Instant::now() + std::time::Duration::from_secs(60);
        // Killed, it may be seen until the process that inherited it has waited for it.
        let sleeping: u32 = sleeping.trim().parse().expect("a number");
        while ProcessStat::of(sleeping).is_some_and(|stat| !stat.has_ended()) {
            assert!(Instant::now() < until, "{sleeping} lives on");
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_spread_is_the_standard_deviation() {
        assert_eq!(mean_and_deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]), (5.0, 2.0));
        assert_eq!(mean_and_deviation(&[3.0]), (3.0, 0.0));
    }
}
