//! What a figure found: samples of named systems, as JSON, a table and a plot.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// Which direction is good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Throughput.
    Higher,
    /// Latency.
    Lower,
}

/// The repeated measurement of one system at one point of the sweep.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// What was measured, for example `lane`.
    pub system: String,
    /// Where in the sweep, for example `16` tenants; the label of the x axis.
    pub point: String,
    /// One value per repeat, in the figure's unit.
    pub samples: Vec<f64>,
    /// Further numbers of interest, medians over the repeats (`p99_us` …).
    pub extra: BTreeMap<String, f64>,
    /// What those medians are of.
    #[serde(skip)]
    extra_samples: BTreeMap<String, Vec<f64>>,
}

impl Cell {
    /// The median sample; NaN when there is none.
    pub fn median(&self) -> f64 {
        median(&self.samples)
    }
}

/// The middle value (lower one of two); NaN for none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

/// The median of what was found, as a number, and words about its range and its floor.
pub(crate) fn judged(found: &[f64], floor: f64, better: Better) -> (String, String) {
    let middle = median(found);
    let least = found.iter().copied().fold(f64::INFINITY, f64::min);
    let most = found.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let holds = match better {
        Better::Higher => middle >= floor,
        Better::Lower => middle <= floor,
    };
    let said = if holds { "holds" } else { "is missed" };
    let [middle, least, most, floor] = [middle, least, most, floor].map(number);
    (middle, format!("({least} to {most}); the floor {floor} {said}"))
}

/// The machine a result was obtained on: without it a number means nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// CPU model name.
    pub cpu: String,
    /// Logical CPUs this process may use.
    pub cpus: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Kernel release.
    pub kernel: String,
    /// One-minute load average when the run began.
    pub load: String,
    /// The host takes memory back that is free here, so that the first touch of a page costs
    /// microseconds, and again whenever it was free for seconds.
    #[serde(default)]
    pub memory_taken_back: bool,
}

impl Machine {
    /// This machine, now.
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, key: &str| {
            let line = text.lines().find(|line| line.starts_with(key));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_string())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kib = memory.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        Machine {
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".into()),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get()),
            memory_bytes: kib * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_string(),
            load: read("/proc/loadavg").split(' ').next().unwrap_or("").to_string(),
            memory_taken_back: polylane_sys::balloon::reports_free_pages(),
        }
    }
}

/// The result of one figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// The figure's name, as in `bench run NAME`.
    pub figure: String,
    /// One line that says what is shown.
    pub title: String,
    /// The command line that made it.
    pub command: String,
    /// Seconds since 1970 when it was made.
    pub unix_time: u64,
    /// Where it was made.
    pub machine: Machine,
    /// What `point` counts.
    pub axis: String,
    /// Unit of the samples.
    pub unit: String,
    /// Which direction is good.
    pub better: Better,
    /// The system that the others are divided by.
    pub baseline: String,
    /// All measurements, in the order they are to be shown.
    pub cells: Vec<Cell>,
    /// What a reader must know: what a row is, what was left out and why.
    pub notes: Vec<String>,
}

impl Report {
    /// An empty report of `figure` made here and now.
    pub fn new(figure: &str, title: &str, axis: &str, unit: &str, better: Better) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let machine = Machine::here();
        let taken = "the host of this machine takes free memory back: the first touch of a page \
                     may cost more here than what is measured (docs/HACKING.md)";
        let notes = machine.memory_taken_back.then(|| taken.to_string());
        Report {
            figure: figure.into(),
            title: title.into(),
            command: std::env::args().skip(1).fold("polylane".into(), |all, arg| all + " " + &arg),
            unix_time: now.unwrap_or_default().as_secs(),
            machine,
            axis: axis.into(),
            unit: unit.into(),
            better,
            baseline: String::new(),
            cells: Vec::new(),
            notes: notes.into_iter().collect(),
        }
    }

    /// Adds one sample and its side values to the cell of `system` at `point`.
    pub fn add(&mut self, system: &str, point: &str, sample: f64, extra: &[(&str, f64)]) {
        let found = self.cells.iter_mut().find(|c| c.system == system && c.point == point);
        let cell = match found {
            Some(cell) => cell,
            None => {
                self.cells.push(Cell {
                    system: system.into(),
                    point: point.into(),
                    samples: Vec::new(),
                    extra: BTreeMap::new(),
                    extra_samples: BTreeMap::new(),
                });
                self.cells.last_mut().expect("just pushed")
            }
        };
        cell.samples.push(sample);
        for (name, value) in extra {
            let samples = cell.extra_samples.entry((*name).into()).or_default();
            samples.push(*value);
            cell.extra.insert((*name).into(), median(samples));
        }
    }

    /// Systems in order of first appearance.
    pub fn systems(&self) -> Vec<&str> {
        distinct(self.cells.iter().map(|cell| cell.system.as_str()))
    }

    /// Points in order of first appearance.
    pub fn points(&self) -> Vec<&str> {
        distinct(self.cells.iter().map(|cell| cell.point.as_str()))
    }

    /// The cell of `system` at `point`, if it was measured.
    pub fn cell(&self, system: &str, point: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.system == system && cell.point == point)
    }

    /// The table people read: median, spread and the ratio to the baseline at the same point.
    pub fn table(&self) -> String {
        let extras = distinct(self.cells.iter().flat_map(|c| c.extra.keys().map(String::as_str)));
        let mut head = vec!["system".to_string(), self.axis.clone(), self.unit.clone()];
        head.extend(["min … max".into(), format!("× {}", self.baseline)]);
        head.extend(extras.iter().map(|name| name.to_string()));
        let mut rows = vec![head];
        for cell in &self.cells {
            let least = cell.samples.iter().copied().fold(f64::INFINITY, f64::min);
            let most = cell.samples.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let base = self.cell(&self.baseline, &cell.point).map_or(f64::NAN, Cell::median);
            let ratio = cell.median() / base;
            let mut row = vec![cell.system.clone(), cell.point.clone(), number(cell.median())];
            row.push(format!("{} … {}", number(least), number(most)));
            row.push(if ratio.is_finite() { format!("{ratio:.2}") } else { "–".into() });
            let extra = |name: &&str| cell.extra.get(*name).map_or("–".into(), |v| number(*v));
            row.extend(extras.iter().map(extra));
            rows.push(row);
        }
        let mut text = format!("{}: {}\n", self.figure, self.title);
        text += &align(&rows);
        for note in &self.notes {
            let _ = writeln!(text, "  · {note}");
        }
        text
    }
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    names.for_each(|name| {
        if !seen.contains(&name) {
            seen.push(name);
        }
    });
    seen
}

/// A number with three significant digits and thousands marked.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    let decimals = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut marked = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 && digit != '-' {
            marked.push(' ');
        }
        marked.push(digit);
    }
    marked + rest
}

/// Columns padded to their widest cell; the first left-aligned, the rest right-aligned.
pub fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            let _ = match column {
                0 => write!(text, "  {cell}{pad}"),
                _ => write!(text, "  {pad}{cell}"),
            };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        for (value, text) in [(0.1234, "0.123"), (12.34, "12.3"), (1234567.0, "1 234 567")] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn the_table_shows_ratios_to_the_baseline_of_the_same_point() {
        let mut report = Report::new("test", "a test", "tenants", "tx/s", Better::Higher);
        report.baseline = "kernel".into();
        for (system, samples) in [("kernel", [10.0, 12.0, 11.0]), ("lane", [20.0, 22.0, 24.0])] {
            samples.iter().for_each(|s| report.add(system, "1", *s, &[("p99_us", 5.0)]));
        }
        let table = report.table();
        assert!(table.contains("2.00"), "{table}");
        assert!(table.contains("p99_us"), "{table}");
    }
}
