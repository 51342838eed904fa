//! Benchmarks: one file per figure under `figures/`, each measuring the lane and its peers in the
//! same run, interleaved, and printing ratios with their spread. A benchmark never decides whether
//! a test passes.
#![forbid(unsafe_code)]

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

mod attached;
mod ceph;
mod drive;
mod figures;
pub use figures::AddressRange;
pub mod histogram;
mod in_process;
mod journaled;
mod lasting;
mod place;
mod plot;
mod report;
mod slow_disk;
mod tenants;
mod tools;
mod unions;
pub mod worker;

/// How to run figures.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Fewer points and shorter runs, for a look.
    pub quick: bool,
    /// Repeats of every measurement; `None`: 5, or 3 when quick, or 1 where one takes long.
    pub repeat: Option<usize>,
    /// Where JSON, table and plot go.
    pub out: PathBuf,
    /// What figures that replay block traces take: recorded requests.
    pub traces: Vec<PathBuf>,
    /// Where the journal lies in the trace: first and last byte address. `None`: as the trace says.
    pub journal: Option<AddressRange>,
    /// Directory on the disk to measure on, for figures that are of a simulated device otherwise.
    pub disk: Option<PathBuf>,
    /// How many tenants work at a time, one point after the other; empty: as the figure says.
    pub tenants: Vec<usize>,
    /// What is measured, by the names in tables; empty: all that the figure knows.
    pub systems: Vec<String>,
    /// Configuration of the Ceph cluster that figures are measured on.
    pub ceph_conf: Option<PathBuf>,
    /// The file system of it, `[USER@]FSNAME[:PATH]`; `None`: `cephfs`.
    pub ceph: Option<String>,
}

impl Options {
    /// Repeats of every measurement, at least one.
    pub fn repeats(&self) -> usize {
        self.repeat.unwrap_or(if self.quick { 3 } else { 5 }).max(1)
    }

    /// The same for a figure of which one repeat takes a minute: a quick run has one unless told
    /// otherwise, and a note in `report` says so.
    pub fn slow(&self, report: &mut report::Report) -> Options {
        let mut slow = self.clone();
        if self.quick && self.repeat.is_none() {
            slow.repeat = Some(1);
            report.notes.push("quick: one repeat, so no spread; fewer points, shorter runs".into());
        }
        slow
    }

    /// The numbers of tenants to measure where the figure has `usual` by itself.
    pub fn points(&self, usual: &[usize]) -> Vec<usize> {
        if self.tenants.is_empty() { usual.to_vec() } else { self.tenants.clone() }
    }

    /// Which of a figure's systems to measure, by their place among all that it has, in its order.
    ///
    /// # Errors
    /// One was asked for that the figure does not have.
    pub fn chosen(&self, names: &[String]) -> Result<Vec<usize>> {
        let unknown = self.systems.iter().find(|asked| !names.contains(asked));
        if let Some(unknown) = unknown {
            bail!("no system '{unknown}' is measured here, but {}", names.join(", "));
        }
        let is_asked =
            |which: &usize| self.systems.is_empty() || self.systems.contains(&names[*which]);
        Ok((0..names.len()).filter(is_asked).collect())
    }
}

/// Names and descriptions of all figures, in order.
pub fn list() -> Vec<(&'static str, &'static str)> {
    figures::FIGURES.iter().map(|figure| (figure.name, figure.about)).collect()
}

/// Runs the named figures one after the other, prints their tables and saves them. `fig6` stands
/// for `fig6-buffered` and all others that begin so.
///
/// # Errors
/// An unknown name (before anything is run), a host that lacks what a figure needs, a failed load.
pub fn run(names: &[String], options: &Options) -> Result<()> {
    let chosen = names.iter().map(|name| find(name)).collect::<Result<Vec<_>>>()?.concat();
    let choose = [figures::SWEEPS, figures::PDC_GUESTS, figures::BY_ROW].concat();
    let has_ceph = options.ceph_conf.is_some() || options.ceph.is_some();
    for (option, given, take_it) in [
        ("--trace", !options.traces.is_empty(), figures::TAKE_TRACES),
        ("--disk", options.disk.is_some(), figures::TAKE_A_DISK),
        ("--ceph-conf", has_ceph, figures::TAKE_A_CLUSTER),
        ("--tenants", !options.tenants.is_empty(), figures::SWEEPS),
        ("--system", !options.systems.is_empty(), &choose),
    ] {
        let deaf = chosen.iter().find(|figure| given && !take_it.contains(&figure.name));
        ensure!(deaf.is_none(), "figure {}: takes no {option}", deaf.map_or("", |it| it.name));
    }
    if chosen.iter().any(|figure| figure.mounts) {
        place::enter_namespace()?;
    }
    for figure in chosen {
        let report = (figure.run)(options).with_context(|| format!("figure {}", figure.name))?;
        progress("");
        let plot = save(&report, &options.out)?;
        print(&format!("{}\n  plot: {}\n", report.table(), plot.display()));
    }
    Ok(())
}

/// Writes `FIGURE.json`, `FIGURE.txt` and `FIGURE.svg` under `dir`; returns the plot's path.
fn save(report: &report::Report, dir: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    let path = |ending: &str| dir.join(format!("{}.{ending}", report.figure));
    std::fs::write(path("json"), serde_json::to_string_pretty(report)? + "\n")?;
    std::fs::write(path("txt"), report.table())?;
    plot::draw(report, &path("svg"))?;
    Ok(path("svg"))
}

fn find(name: &str) -> Result<Vec<&'static figures::Figure>> {
    let all = figures::FIGURES.iter();
    let part = |figure: &&figures::Figure| {
        figure.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'))
    };
    let found: Vec<_> = match all.clone().find(|figure| figure.name == name) {
        Some(figure) => vec![figure],
        None => all.filter(part).collect(),
    };
    ensure!(!found.is_empty(), "figure '{name}' does not exist; 'polylane bench list' names them");
    Ok(found)
}

/// `println!` for figures: see [`print`](fn@print).
macro_rules! line {
    ($($text:tt)*) => { crate::print(&format!($($text)*)) };
}
pub(crate) use line;

/// Prints a line to standard output. A reader that closed it (`| head`) has seen enough.
pub(crate) fn print(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Shows what is going on, on a terminal only; an empty text clears the line.
fn progress(text: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{text}");
        let _ = std::io::stderr().flush();
    }
}
