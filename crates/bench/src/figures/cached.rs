//! Single operations on data in memory: where a lane stands against the kernel's page cache.

use std::path::PathBuf;

use anyhow::Result;

use super::sweep::available;
use crate::in_process;
use crate::place::{Ground, Place, Tenant, together};
use crate::report::{Better, Cell, Report};
use crate::worker::Length;
use crate::{Options, progress};

const PLACES: [Place; 4] = [Place::Tmpfs, Place::Kernel("ext4"), Place::Lane, Place::LaneFuse];

/// Measures one load, one tenant, in all places; microseconds per operation.
///
/// # Errors
/// Not root, or the tenant failed.
pub fn run(options: &Options, load: &str) -> Result<Report> {
    let ground = Ground::new()?;
    let figure = if load == "fileio" { "fileio-ram" } else { load };
    let title = format!("{figure}: one tenant, data in memory");
    let mut report = Report::new(figure, &title, "operation", "µs/op", Better::Lower);
    report.baseline = "tmpfs".into();
    let loads: &[&str] = if load == "stat" { &["stat", "fstat"] } else { &[load] };
    let seconds = if options.quick { 0.3 } else { 1.0 };
    let ready = available(&ground, &PLACES, &mut report);
    for repeat in 0..options.repeats() {
        for load in loads {
            for place in &ready {
                progress(&format!("{load} {}, repeat {}", place.0.name(), repeat + 1));
                one(&mut report, place, load, seconds)?;
            }
            if matches!(*load, "seqread" | "fileio") {
                report.add(NO_WAY_IN, load, in_process::measure(load, seconds)?, &[]);
            }
        }
    }
    shares(&mut report);
    Ok(report)
}

/// The lane's own work without a way in.
const NO_WAY_IN: &str = "VFS called in process";

/// How much of a call is the way there and back: what a lane takes beyond the same work done in
/// process.
fn shares(report: &mut Report) {
    for point in report.points().iter().map(|point| point.to_string()).collect::<Vec<_>>() {
        let Some(own) = report.cell(NO_WAY_IN, &point).map(Cell::median) else { continue };
        for place in [Place::Lane, Place::LaneFuse] {
            if let Some(whole) = report.cell(&place.name(), &point).map(Cell::median) {
                let share = 100.0 * (1.0 - own / whole).max(0.0);
                let name = place.name();
                report.notes.push(format!("{point}, {name}: {share:.0} % of the time is IPC"));
            }
        }
    }
}

fn one(report: &mut Report, place: &(Place, PathBuf), load: &str, seconds: f64) -> Result<()> {
    let tenant = Tenant::start(place.0, &place.1, load, 0, Length::Seconds(seconds))?;
    let outcome = together(vec![tenant])?.remove(0);
    let extra =
        [("p50_us", outcome.latency.p50_ns / 1000.0), ("p99_us", outcome.latency.p99_ns / 1000.0)];
    report.add(&place.0.name(), load, 1e6 / outcome.rate(), &extra);
    Ok(())
}
