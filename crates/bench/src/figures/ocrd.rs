//! `ocrd`: MultiLanes' metadata benchmark (FAST'14 §5.2), every tenant creating, renaming and
//! unlinking files as fast as it can; tenants share a kernel file system or have a lane each.
//!
//! Under a lease, the create, rename and unlink of one file cancel out before the service sees
//! them. `ocrd-spread` does the same work on files that live for 64 transactions, where nothing
//! cancels out; the rows "awaited" have no leases.

use anyhow::Result;

use super::sweep::{Sweep, Work, up_to_16};
use crate::Options;
use crate::place::{Ground, Place};
use crate::report::{Better, Report};
use crate::worker::Length;

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

fn measure(options: &Options, load: &'static str, title: &str) -> Result<Report> {
    let ground = Ground::for_tenants(&up_to_16(options))?;
    let mut report = Report::new(load, title, "tenants", "tx/s", Better::Higher);
    let seconds = if options.quick { 0.5 } else { 1.5 };
    let work = Work::Load(load, Length::Seconds(seconds));
    let sweep = Sweep { work, per_op: 1.0, tenants: up_to_16(options) };
    sweep.measure(options, &ground, &PLACES, &mut report)?;
    report.notes.push(
        "lane: a lane per tenant, preload library, on memfs or ext4; all others share one".into(),
    );
    report.notes.push("lane (awaited): without leases (POLYLANE_LEASES=0)".into());
    report.notes.push("ext4, xfs, btrfs, ext3: one RAM-backed loop device for all tenants".into());
    Ok(report)
}
