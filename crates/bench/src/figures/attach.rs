//! `attach`: what attached volumes cost. fio on volumes that this program serves, beside loop
//! devices of the kernel's alone on files of the same kind.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::attached::Front;
use crate::drive::{self, Found, Load, Until};
use crate::place::{Ground, Place, on_loop};
use crate::report::{Better, Report};
use crate::tools::{command, fill};
use crate::{Options, progress};

const LOOP_DIRECT: &str = "loop, direct";

/// Bytes of a volume, all of them used.
const SPAN: u64 = 512 << 20;

/// What is measured: writes, at random places, bytes per request, requests in flight.
const LOADS: [(bool, bool, u64, u64); 6] = [
    (false, true, 4096, 1),
    (true, true, 4096, 1),
    (false, true, 4096, 32),
    (true, true, 4096, 32),
    (false, false, 1 << 20, 8),
    (true, false, 1 << 20, 8),
];

/// Measures it on the disk below the current directory and in a tmpfs.
///
/// # Errors
/// Not root, fio is missing, or a request failed.
pub fn run(options: &Options) -> Result<Report> {
    let title = "direct requests to attached volumes and to plain loop devices";
    let mut report = Report::new("attach", title, "load", "IO/s", Better::Higher);
    report.baseline = LOOP_DIRECT.into();
    let ground = Ground::new()?;
    let span = if options.quick { SPAN / 8 } else { SPAN };
    let time = Duration::from_millis(if options.quick { 250 } else { 3000 });
    let mut systems = Vec::new();
    for (name, place) in [("disk", Place::Disk), ("tmpfs", Place::Tmpfs)] {
        let dir = ground.prepare(place)?.join("attach");
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        systems.push((name, prepare(&ground, &dir, name, span, &mut report)));
    }
    for repeat in 0..options.repeats() {
        for (place, systems) in &systems {
            for (write, random, piece, depth) in LOADS {
                let load = Load { write, random, piece, depth, span };
                let point = format!("{place} {}", load.name());
                for system in systems {
                    progress(&format!("{point}, {}, repeat {}", system.name, repeat + 1));
                    let found = system.target.run(&load, Until::Time(time))?;
                    report.add(system.name, &point, found.rate, &[("p99_us", found.p99_us)]);
                }
            }
        }
    }
    report.notes.extend(NOTES.map(String::from));
    Ok(report)
}

const NOTES: [&str; 4] = [
    "fio: io_uring, O_DIRECT; NBD by its own client. All blocks of the files are written before",
    "loop: the kernel's alone on such a file, through the page cache or by direct I/O",
    "FUSE+loop: a volume by `polylane attach`; passed through: with --passthrough",
    "requests of 1 MiB: IO/s are MiB/s; disk: what the current directory lies on",
];

/// One way to have a block device.
struct System {
    name: &'static str,
    target: Target,
}

/// What the load is sent to.
enum Target {
    /// A block device; a plain loop device lives as long as this process has it open.
    Device { path: PathBuf, _held: Option<File> },
    /// The socket of an NBD server.
    Nbd(PathBuf),
}

impl Target {
    fn run(&self, load: &Load, until: Until) -> Result<Found> {
        match self {
            Target::Device { path, .. } => drive::fio(path, load, until),
            Target::Nbd(socket) => drive::fio_nbd(socket, load, until),
        }
    }
}

/// All that this host has, on files in `dir`; the others become notes.
fn prepare(
    ground: &Ground,
    dir: &Path,
    place: &str,
    span: u64,
    report: &mut Report,
) -> Vec<System> {
    let attach = |name: &str, front| {
        let fill = |volume: &Path| fill(volume, span);
        ground.attachments().attach(&dir.join(name), span, front, &fill)
    };
    let device = |name: &str, front| Ok(Target::Device { path: attach(name, front)?, _held: None });
    let socket = dir.join("nbd");
    let nbd = || {
        let said = command("fio", &["--enghelp"])?;
        ensure!(said.split_whitespace().any(|word| word == "nbd"), "this fio has no client of it");
        Ok(Target::Nbd(attach("nbd.img", Front::Nbd(&socket))?))
    };
    let found: [(&'static str, Result<Target>); 5] = [
        (LOOP_DIRECT, plain(&dir.join("loop-direct.img"), span, true)),
        ("loop", plain(&dir.join("loop.img"), span, false)),
        ("FUSE+loop", device("fuse.img", Front::Loop)),
        ("FUSE+loop, passed through", device("passed.img", Front::LoopPassedThrough)),
        ("NBD", nbd()),
    ];
    let mut systems = Vec::new();
    for (name, target) in found {
        match target {
            Ok(target) => systems.push(System { name, target }),
            Err(error) => report.notes.push(format!("{name} on {place} left out: {error:#}")),
        }
    }
    systems
}

/// A loop device of the kernel's alone, which goes with the file that holds it open.
fn plain(file: &Path, span: u64, direct: bool) -> Result<Target> {
    let made = File::create(file).with_context(|| format!("create {}", file.display()))?;
    made.set_len(span)?;
    fill(file, span)?;
    let (device, held) = on_loop(file, direct, |device| {
        let held = File::open(device).with_context(|| format!("open {device}"))?;
        Ok((device.to_string(), held))
    })?;
    let is_direct = command("losetup", &["--noheadings", "--output", "DIO", &device])?;
    ensure!((is_direct.trim() == "1") == direct, "{device} does not do direct I/O as told");
    Ok(Target::Device { path: device.into(), _held: Some(held) })
}
