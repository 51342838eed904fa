//! `pdc-fig3` and `pdc-fig5`: what recorded traces say about journals, without a device.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use polylane_block::cache::pdc::{Access, Admission, FlushSolo, Region, Rule};

use super::pdc_csv::{self, Trace};
use crate::report::{Better, Report};
use crate::{Options, progress};

/// The unit in which footprints and caches are counted.
pub(super) const BLOCK_BYTES: u64 = 4096;
/// Points in a plot: more are one blot.
const POINTS_MAX: usize = 20_000;

/// A trace with its name and where its journal is.
pub(super) struct Named {
    pub(super) name: String,
    pub(super) trace: Trace,
    pub(super) journal: Option<Region>,
}

/// The traces that were named, one at least.
///
/// # Errors
/// None was, or one cannot be read.
pub(super) fn load(options: &Options) -> Result<Vec<Named>> {
    ensure!(!options.traces.is_empty(), "it looks at recorded traces: give --trace FILE.csv[.gz]");
    let load = |path: &std::path::PathBuf| {
        progress(&format!("loading {}", path.display()));
        let trace = pdc_csv::load(path)?;
        let name = path.file_name().context("a trace is a file")?.to_string_lossy();
        let name = name.trim_end_matches(".gz").trim_end_matches(".csv").to_string();
        let told = options.journal.map(|range| (range.first, range.last)).or(trace.journal);
        let journal = told.map(|(first, last)| Region { first, end: last.saturating_add(1) });
        Ok(Named { name, trace, journal })
    };
    options.traces.iter().map(load).collect()
}

/// The blocks that a range touches.
pub(super) fn blocks(range: &Region) -> std::ops::Range<u64> {
    range.first / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES)
}

/// The journal's share of traffic, footprint and syncs.
///
/// # Errors
/// No trace was named, one cannot be read or says nothing of its journal.
pub fn shares(options: &Options) -> Result<Report> {
    let title = "the journal's share of bytes, of blocks touched and of flushes";
    let mut report = Report::new("pdc-fig3", title, "trace", "percent", Better::Lower);
    for Named { name, trace, journal } in load(options)? {
        let Some(journal) = journal else {
            report.notes.push(format!("{name}: no journal known by address: left out"));
            continue;
        };
        let (mut all, mut own) = (0u64, 0u64);
        let (mut touched, mut touched_own) = (HashSet::new(), HashSet::new());
        let (mut flushes, mut flushes_own, mut in_epoch) = (0u64, 0u64, false);
        for record in &trace.records {
            let is_journal = journal.overlaps(&record.range);
            match record.access {
                Access::Flush => {
                    flushes += 1;
                    flushes_own += u64::from(std::mem::take(&mut in_epoch));
                }
                Access::Discard => {}
                Access::Read | Access::Write { .. } => {
                    all += record.range.bytes();
                    touched.extend(blocks(&record.range));
                    if is_journal {
                        own += record.range.bytes();
                        touched_own.extend(blocks(&record.range));
                        in_epoch |= matches!(record.access, Access::Write { .. });
                    }
                }
            }
        }
        let percent = |part: u64, whole: u64| part as f64 * 100.0 / whole.max(1) as f64;
        report.add("traffic", &name, percent(own, all), &[]);
        let footprint = percent(touched_own.len() as u64, touched.len() as u64);
        report.add("footprint", &name, footprint, &[]);
        report.add("flushes", &name, percent(flushes_own, flushes), &[]);
    }
    Ok(report)
}

/// Where writes go over time, those past the cache in red: one SVG per trace.
///
/// # Errors
/// As [`shares`], or a plot cannot be written.
pub fn addresses(options: &Options) -> Result<Report> {
    let title =
        "addresses written over time; what goes past the cache is marked (one SVG per trace)";
    let mut report = Report::new("pdc-fig5", title, "trace", "MiB past the cache", Better::Higher);
    std::fs::create_dir_all(&options.out)?;
    for Named { name, trace, journal } in load(options)? {
        let mut rule = FlushSolo::default();
        let mut points = Vec::new();
        let mut past = 0;
        for record in &trace.records {
            let admission = rule.observe(record.time_us, record.access, record.range);
            if matches!(record.access, Access::Write { .. }) {
                let bypassed = admission == Admission::Bypass;
                past += if bypassed { record.range.bytes() } else { 0 };
                points.push((record.range.first, bypassed));
            }
        }
        let path = options.out.join(format!("pdc-fig5-{name}.svg"));
        draw(&points, journal, &path)?;
        report.add("flush-solo", &name, past as f64 / f64::from(1 << 20), &[]);
        report.notes.push(format!("{name}: {}", path.display()));
    }
    Ok(report)
}

fn draw(points: &[(u64, bool)], journal: Option<Region>, path: &Path) -> Result<()> {
    const WIDTH: f64 = 900.0;
    const HEIGHT: f64 = 400.0;
    let highest = points.iter().map(|point| point.0).max().unwrap_or(1).max(1) as f64;
    let y = |address: u64| HEIGHT - address as f64 / highest * HEIGHT;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    if let Some(region) = journal {
        let (top, bottom) = (y(region.end), y(region.first));
        let _ = writeln!(
            text,
            "<rect x=\"0\" y=\"{top:.1}\" width=\"{WIDTH}\" height=\"{:.1}\" fill=\"#ffe8a0\"/>",
            (bottom - top).max(1.0)
        );
    }
    let step = points.len().div_ceil(POINTS_MAX).max(1);
    for (index, (address, past)) in points.iter().enumerate().step_by(step) {
        let x = index as f64 / points.len() as f64 * WIDTH;
        let color = if *past { "#d00000" } else { "#909090" };
        let _ = writeln!(
            text,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"1\" height=\"1\" fill=\"{color}\"/>",
            y(*address)
        );
    }
    text += "</svg>\n";
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}
