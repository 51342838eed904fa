//! Single operations on data in memory: where a lane stands against the kernel's page cache.

use std::path::PathBuf;

use anyhow::Result;

use super::ocrd::available;
use crate::place::{Ground, Place, Tenant, together};
use crate::report::{Better, Report};
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
        }
    }
    Ok(report)
}

fn one(report: &mut Report, place: &(Place, PathBuf), load: &str, seconds: f64) -> Result<()> {
    let tenant = Tenant::start(place.0, &place.1, load, 0, seconds)?;
    let outcome = together(vec![tenant])?.remove(0);
    let extra =
        [("p50_us", outcome.latency.p50_ns / 1000.0), ("p99_us", outcome.latency.p99_ns / 1000.0)];
    report.add(place.0.name(), load, 1e6 / outcome.rate(), &extra);
    Ok(())
}
