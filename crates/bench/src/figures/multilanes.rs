//! MultiLanes' figures (FAST '14, §2 and §5.2): IOzone-style writes, Filebench's servers, and a
//! tree of small files, by 1 to 16 tenants.
//!
//! The paper compares one shared file system with a lane each. A kernel file system of each
//! tenant's own on a loop device is what a host can do today without lanes, so it stands beside
//! them, with and without direct I/O of the loop device. All lie in one RAM-backed tmpfs.

use anyhow::Result;

use super::sweep::{Sweep, Work, up_to_16};
use crate::Options;
use crate::place::{Ground, Place};
use crate::report::{Better, Report};
use crate::worker::Length;

/// Shared and own file systems; the first is the baseline. Of figures that take long.
pub(super) const PLACES: [Place; 10] = [
    Place::Kernel("ext4"),
    Place::KernelEach("ext4"),
    Place::KernelEachDirect("ext4"),
    Place::LaneExt4,
    Place::Attached("ext4"),
    Place::Kernel("ext3"),
    Place::Kernel("xfs"),
    Place::KernelEach("xfs"),
    Place::Kernel("btrfs"),
    Place::KernelEach("btrfs"),
];

/// The same of all kinds: shared, on a loop device each, on a lane each.
const KINDS: [Place; 14] = [
    Place::Kernel("ext4"),
    Place::KernelEach("ext4"),
    Place::KernelEachDirect("ext4"),
    Place::LaneExt4,
    Place::Attached("ext4"),
    Place::Kernel("ext3"),
    Place::KernelEach("ext3"),
    Place::Attached("ext3"),
    Place::Kernel("xfs"),
    Place::KernelEach("xfs"),
    Place::Attached("xfs"),
    Place::Kernel("btrfs"),
    Place::KernelEach("btrfs"),
    Place::Attached("btrfs"),
];

/// What is measured besides when there is time: loop devices with direct I/O under the other kinds,
/// and data in the journal as the paper's guests had it.
const MORE: [Place; 5] = [
    Place::KernelEachDirect("ext3"),
    Place::KernelEachDirect("xfs"),
    Place::KernelEachDirect("btrfs"),
    Place::AttachedJournal("ext3"),
    Place::AttachedJournal("ext4"),
];

/// Where a figure is measured. Direct I/O is never in a journal: the paper's guests have
/// data=ordered then.
fn places(options: &Options, direct: bool) -> Vec<Place> {
    let more = if options.quick { &[][..] } else { &MORE[..] };
    let fits = |place: &&Place| !(direct && matches!(place, Place::AttachedJournal(_)));
    KINDS.iter().chain(more).filter(fits).copied().collect()
}

/// Operations of 4 KiB for the paper's 256 MB.
const FILE_OPS: u64 = 65536;

/// What is measured, and how much of it when there is time and when there is none.
struct Figure {
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    per_op: f64,
    full: (&'static str, Length),
    quick: (&'static str, Length),
}

impl Figure {
    fn run(self, options: &Options) -> Result<Report> {
        let ground = Ground::for_tenants(&up_to_16(options))?;
        let title = format!("{}: {}, all tenants in total", self.name, self.title);
        let mut report = Report::new(self.name, &title, "tenants", self.unit, Better::Higher);
        let (load, length) = if options.quick { self.quick } else { self.full };
        let work = Work::Load(load, length);
        let sweep = Sweep { work, per_op: self.per_op, tenants: up_to_16(options) };
        let slow = options.slow(&mut report);
        let places = places(options, load.ends_with("-direct"));
        sweep.measure(&slow, &ground, &places, &mut report)?;
        report.notes.extend(NOTES.map(String::from));
        Ok(report)
    }
}

pub(super) const NOTES: [&str; 6] = [
    "ext4, ext3, xfs, btrfs: one kernel file system of 8 GiB for all tenants, on a loop device",
    "each: one of 2500 MB for each tenant; direct: the loop devices do direct I/O",
    "lane (ext4): ext4 in user space, on a volume of 2500 MB for each tenant; all in one tmpfs",
    "on a lane: a kernel file system on such a volume, attached to the host by `polylane attach`",
    "each: one tenant's mean share; until_durable: the same with a final fsync",
    "p99_us: mean of the tenants' 99th percentiles; p99_worst_us: of the tenant who had it worst",
];

/// MiB in one operation of 4 KiB.
const MIB: f64 = 1.0 / 256.0;

fn file(name: &'static str, title: &'static str, load: &'static str) -> Figure {
    let [full, quick] = [FILE_OPS, FILE_OPS / 8].map(|ops| (load, Length::Ops(ops)));
    Figure { name, title, unit: "MiB/s", per_op: MIB, full, quick }
}

fn servers(name: &'static str, load: &'static str, title: &'static str, per_op: f64) -> Figure {
    let [full, quick] = [10.0, 0.5].map(|seconds| (load, Length::Seconds(seconds)));
    Figure { name, title, unit: "operations/s", per_op, full, quick }
}

fn tree(name: &'static str, title: &'static str) -> Figure {
    let [full, quick] = [100_000, 5_000].map(|ops| (name, Length::Ops(ops)));
    Figure { name, title, unit: "files/s", per_op: 1.0, full, quick }
}

/// Figure 1: what tenants of one kernel file system do to each other.
///
/// # Errors
/// As [`Sweep::measure`], which holds for all functions here.
pub fn fig1(options: &Options) -> Result<Report> {
    file("fig1", "256 MB of 4 KiB buffered writes each", "seqwrite").run(options)
}

/// Figure 6, left: sequential writes through the page cache.
pub fn fig6_buffered(options: &Options) -> Result<Report> {
    file("fig6-buffered", "sequential 4 KiB writes, buffered", "seqwrite").run(options)
}

/// Figure 6, right: sequential writes past the page cache.
pub fn fig6_direct(options: &Options) -> Result<Report> {
    file("fig6-direct", "sequential 4 KiB writes, O_DIRECT", "seqwrite-direct").run(options)
}

/// Figure 7: random writes through the page cache.
pub fn fig7(options: &Options) -> Result<Report> {
    file("fig7", "random 4 KiB writes to 256 MB, buffered", "randwrite").run(options)
}

/// Figure 8, left.
pub fn fig8_varmail(options: &Options) -> Result<Report> {
    servers("fig8-varmail", "varmail", "Filebench varmail, one thread each", 13.0).run(options)
}

/// Figure 8, right.
pub fn fig8_fileserver(options: &Options) -> Result<Report> {
    let title = "Filebench fileserver, one thread each";
    let mut figure = servers("fig8-fileserver", "fileserver", title, 11.0);
    figure.quick.0 = "fileserver-small";
    let mut report = figure.run(options)?;
    if options.quick {
        report.notes.push("quick: 200 files for each tenant where Filebench has 2000".into());
    }
    Ok(report)
}

/// Figure 5: what each part of a lane gains when only names change. The paper took its private VFS
/// away to see what the virtual device does alone; a kernel file system on a lane's volume has the
/// kernel's shared VFS in front of it, and the user-space lane has none.
pub fn fig5(options: &Options) -> Result<Report> {
    const PLACES: [Place; 5] = [
        Place::Kernel("ext4"),
        Place::KernelEach("ext4"),
        Place::Attached("ext4"),
        Place::AttachedJournal("ext4"),
        Place::LaneExt4,
    ];
    let ground = Ground::for_tenants(&up_to_16(options))?;
    let title = "fig5: ocrd (create, rename, remove of one file), all tenants in total";
    let mut report = Report::new("fig5", title, "tenants", "tx/s", Better::Higher);
    let ops = if options.quick { TRANSACTIONS / 16 } else { TRANSACTIONS };
    let work = Work::Load("ocrd", Length::Ops(ops));
    let sweep = Sweep { work, per_op: 1.0, tenants: up_to_16(options) };
    let slow = options.slow(&mut report);
    sweep.measure(&slow, &ground, &PLACES, &mut report)?;
    report.notes.push(format!("{ops} transactions of each tenant; the paper has {TRANSACTIONS}"));
    report.notes.extend(FIG5_NOTES.map(String::from));
    Ok(report)
}

/// Transactions of a tenant in the paper.
const TRANSACTIONS: u64 = 65536;

const FIG5_NOTES: [&str; 5] = [
    "ext4: Linux, one file system of 8 GiB for all tenants on a loop device, data=ordered",
    "each: one of 2500 MB on a loop device for each tenant: what a host can do without lanes",
    "on a lane: without the private VFS, the kernel's ext4 on a volume of 2500 MB for each tenant",
    "lane (ext4): complete, ext4 in user space on such a volume, by the preload library",
    "lane (ext4): under a lease one file's create, rename and removal cancel out; see ocrd-spread",
];

/// Making many small files.
pub fn unpack(options: &Options) -> Result<Report> {
    tree("unpack", "small files of 0–8 KiB made as tar does").run(options)
}

/// Removing them.
pub fn remove(options: &Options) -> Result<Report> {
    tree("remove", "small files removed as rm -r does").run(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_stands_beside_its_baselines() {
        let quick = places(&Options { quick: true, ..Options::default() }, false);
        let whole = places(&Options::default(), false);
        for kind in ["ext3", "ext4", "xfs", "btrfs"] {
            for place in [Place::Kernel(kind), Place::KernelEach(kind), Place::Attached(kind)] {
                assert!(quick.contains(&place), "{}", place.name());
            }
            assert!(whole.contains(&Place::KernelEachDirect(kind)), "{kind}");
        }
        assert!(whole.contains(&Place::AttachedJournal("ext4")));
        let direct = places(&Options::default(), true);
        assert!(!direct.contains(&Place::AttachedJournal("ext4")));
    }
}
