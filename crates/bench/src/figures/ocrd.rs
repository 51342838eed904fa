//! `ocrd`: MultiLanes' metadata benchmark (FAST'14 §5.2), every tenant creating, renaming and
//! unlinking files as fast as it can; tenants share a kernel file system or have a lane each.
//!
//! Under a lease, the create, rename and unlink of one file cancel out before the service sees
//! them. `ocrd-spread` does the same work on files that live for 64 transactions, where nothing
//! cancels out; the rows "awaited" have no leases.

use anyhow::Result;

use crate::place::{Ground, Place, Tenant, together};
use crate::report::{Better, Report};
use crate::{Options, progress};

const PLACES: [Place; 9] = [
    Place::Kernel("ext4"),
    Place::Lane,
    Place::LaneAwaited,
    Place::LaneExt4,
    Place::LaneFuse,
    Place::Tmpfs,
    Place::Kernel("xfs"),
    Place::Kernel("btrfs"),
    Place::Kernel("ext3"),
];

/// Measures total transactions per second over places and tenant counts.
///
/// # Errors
/// Not root, or a tenant failed.
pub fn run(options: &Options) -> Result<Report> {
    let title = "ocrd: create + rename + unlink of one file, all tenants in total";
    measure(options, "ocrd", title)
}

/// The same for files that live for a while.
///
/// # Errors
/// As [`run`].
pub fn run_spread(options: &Options) -> Result<Report> {
    let title = "ocrd-spread: create + rename + unlink of three files, all tenants in total";
    measure(options, "ocrd-spread", title)
}

fn measure(options: &Options, load: &str, title: &str) -> Result<Report> {
    let ground = Ground::new()?;
    let mut report = Report::new(load, title, "tenants", "tx/s", Better::Higher);
    report.baseline = "ext4".into();
    let tenants: &[usize] = if options.quick { &[1, 16] } else { &[1, 2, 4, 8, 16] };
    let seconds = if options.quick { 0.5 } else { 1.5 };
    let ready = available(&ground, &PLACES, &mut report);
    for repeat in 0..options.repeats() {
        for count in tenants {
            for (place, shared) in &ready {
                progress(&format!("{load} {} × {count}, repeat {}", place.name(), repeat + 1));
                let start = |index| Tenant::start(*place, shared, load, index, seconds);
                let outcomes = together((0..*count).map(start).collect::<Result<_>>()?)?;
                let total = outcomes.iter().map(|o| o.rate()).sum();
                let count_of = outcomes.len() as f64;
                let mean = |ns: fn(&crate::worker::Outcome) -> f64| {
                    outcomes.iter().map(ns).sum::<f64>() / count_of / 1000.0
                };
                let p50 = mean(|outcome| outcome.latency.p50_ns);
                let p99 = mean(|outcome| outcome.latency.p99_ns);
                let point = count.to_string();
                report.add(place.name(), &point, total, &[("p50_us", p50), ("p99_us", p99)]);
            }
        }
    }
    report.notes.push(
        "lane: a lane per tenant, preload library, on memfs or ext4; all others share one".into(),
    );
    report.notes.push("lane (awaited): without leases (POLYLANE_LEASES=0)".into());
    report.notes.push("ext4, xfs, btrfs, ext3: one RAM-backed loop device for all tenants".into());
    Ok(report)
}

/// The places that this host can provide, with their shared directories; the others become notes.
pub fn available(
    ground: &Ground,
    places: &[Place],
    report: &mut Report,
) -> Vec<(Place, std::path::PathBuf)> {
    let mut ready = Vec::new();
    for place in places {
        match ground.prepare(*place) {
            Ok(shared) => ready.push((*place, shared)),
            Err(error) => report.notes.push(format!("{} left out: {error:#}", place.name())),
        }
    }
    ready
}
