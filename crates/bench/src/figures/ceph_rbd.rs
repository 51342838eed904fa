//! `ceph-rbd`: 4 KiB requests at random places of an image of a Ceph cluster: through the block
//! engine, and attached as a block device, beside fio's own client of RBD.
//!
//! Each system has an image of its own, all of it written before: an image has one writer. fio's
//! client runs with librbd's cache off, as the engine's does (a write that is answered is on the
//! OSDs), and once more as it comes.

use std::cell::RefCell;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polylane_block::BlockDevice as _;
use polylane_block::engine::{Engine, Options as EngineOptions};
use polylane_ceph::rbd::{RbdDevice, Settings};

use crate::attached::Attached;
use crate::ceph::Cluster;
use crate::drive::{self, Found, Load, Until};
use crate::report::{Better, Report, median, number};
use crate::tools::command;
use crate::{Options, progress};

/// The pool that images are made in.
const POOL: &str = "rbd";

/// Bytes of an image.
const SPAN: u64 = 256 << 20;

/// Writes, requests in flight.
const LOADS: [(bool, u64); 4] = [(false, 1), (true, 1), (false, 32), (true, 32)];

/// What a lane's rate is to have of fio's.
const FLOOR: f64 = 0.9;

/// How an image is reached.
#[derive(Clone, Copy, PartialEq, Debug)]
enum System {
    Fio,
    FioCached,
    Engine,
    Attached,
}

/// The first is the baseline.
const SYSTEMS: [System; 4] = [System::Fio, System::FioCached, System::Engine, System::Attached];

impl System {
    fn name(self) -> &'static str {
        match self {
            System::Fio => "fio's rbd",
            System::FioCached => "fio's rbd, librbd's cache",
            System::Engine => "engine",
            System::Attached => "attached",
        }
    }

    fn image(self) -> String {
        let kind = match self {
            System::Fio => "fio",
            System::FioCached => "fio-cached",
            System::Engine => "engine",
            System::Attached => "attached",
        };
        format!("polylane-bench-{}-{kind}", std::process::id())
    }
}

const NOTES: [&str; 4] = [
    "each system has an image of its own, all of it written; 4 KiB at random places; who is first \
     rotates",
    "fio's rbd: librbd's cache off, as in the engine; with librbd's cache: as fio comes, reads \
     come from it and writes may",
    "engine: requests by one thread through the block engine in this process; attached: fio's \
     io_uring engine, direct, on the loop device of 'polylane attach'",
    "cpu_us: CPU time of fio's thread, or of the one that drives the engine, for each request: \
     threads of librbd, the attachment's engine and the cluster's daemons are not counted",
];

/// Measures requests per second.
///
/// # Errors
/// No cluster is named, it has no pool `rbd`, or a request failed.
pub fn run(options: &Options) -> Result<Report> {
    let title = "4 KiB requests at random places of an RBD image";
    let mut report = Report::new("ceph-rbd", title, "load", "IO/s", Better::Higher);
    let cluster = Cluster::of(options)?;
    let names: Vec<String> = SYSTEMS.iter().map(|system| system.name().to_string()).collect();
    let chosen: Vec<System> = options.chosen(&names)?.into_iter().map(|at| SYSTEMS[at]).collect();
    let engines = command("fio", &["--enghelp"]).unwrap_or_default();
    let has_peer = engines.split_whitespace().any(|word| word == "rbd");
    let images = Images::new(cluster)?;
    let mut ready = Vec::new();
    for system in chosen {
        let is_peer = matches!(system, System::Fio | System::FioCached);
        let made = if is_peer && !has_peer {
            Err(anyhow::anyhow!("there is no fio with an engine of RBD"))
        } else {
            progress(&format!("ceph-rbd: write an image for {}", system.name()));
            images.make(system)
        };
        match made {
            Ok(target) => ready.push((system, target)),
            Err(error) => report.notes.push(format!("{} left out: {error:#}", system.name())),
        }
    }
    ensure!(!ready.is_empty(), "nothing can be measured: {}", report.notes.join("; "));
    report.baseline = ready[0].0.name().into();
    let time = Duration::from_millis(if options.quick { 1000 } else { 3000 });
    for repeat in 0..options.repeats() {
        for (write, depth) in LOADS {
            let load = Load { write, random: true, piece: 4096, depth, span: SPAN };
            for turn in 0..ready.len() {
                let (system, target) = &ready[(turn + repeat) % ready.len()];
                progress(&format!("{}, {}, repeat {}", load.name(), system.name(), repeat + 1));
                let found = images.drive(*system, target, &load, Until::Time(time))?;
                report.add(system.name(), &load.name(), found.rate, &found.extra());
            }
        }
    }
    drop(ready);
    report.notes.extend(verdicts(&report));
    report.notes.extend(NOTES.map(String::from));
    Ok(report)
}

/// Lines about the systems that are a lane's.
fn verdicts(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    for system in [System::Engine, System::Attached] {
        for point in report.points() {
            let cell = |system: System| report.cell(system.name(), point);
            let (Some(own), Some(peer)) = (cell(system), cell(System::Fio)) else { continue };
            let pairs = own.samples.iter().zip(&peer.samples);
            let ratios: Vec<f64> = pairs.map(|(own, peer)| own / peer).collect();
            let middle = median(&ratios);
            let said = if middle >= FLOOR { "holds" } else { "is missed" };
            let (name, middle) = (system.name(), number(middle));
            lines.push(format!("{name}, {point}: {middle} × fio's rbd; the floor {FLOOR} {said}"));
        }
    }
    lines
}

/// What a system's load is sent to.
enum Target {
    /// The image, by fio with this configuration.
    Fio(PathBuf),
    /// The image, open in this process.
    Open(Arc<RbdDevice>),
    /// A block device.
    Device(PathBuf),
}

/// The images of a run. Dropped, they are gone.
struct Images {
    cluster: &'static Cluster,
    dir: tempfile::TempDir,
    attached: Attached,
    made: RefCell<Vec<System>>,
}

impl Images {
    fn new(cluster: &'static Cluster) -> Result<Images> {
        let dir = tempfile::tempdir().context("directory of configurations")?;
        Ok(Images { cluster, dir, attached: Attached::new()?, made: RefCell::default() })
    }

    fn settings(&self, system: System) -> Result<Settings> {
        let conf = self.cluster.conf().as_os_str().as_bytes();
        Ok(Settings {
            user: self.cluster.user().to_string(),
            pool: POOL.to_string(),
            image: system.image(),
            snapshot: None,
            conf: CString::new(conf)?,
            key: self.cluster.key()?,
            timeout: Duration::from_secs(30),
            session: system.image(),
            request_time_max: None,
            holder: "polylane bench".to_string(),
        })
    }

    /// Makes a system's image, writes all of it, and has the system use it.
    fn make(&self, system: System) -> Result<Target> {
        let device = self.settings(system)?.prepare()?.create(SPAN)?;
        self.made.borrow_mut().push(system);
        let whole = Load { write: true, random: false, piece: 1 << 20, depth: 8, span: SPAN };
        drive::channel(&mut *device.clone().channel(), &whole, Until::End)?;
        if system == System::Engine {
            return Ok(Target::Open(device));
        }
        // Others are to have its lock.
        drop(device);
        Ok(match system {
            System::Fio => Target::Fio(self.conf(false)?),
            System::FioCached => Target::Fio(self.conf(true)?),
            _ => Target::Device(self.attach(system)?),
        })
    }

    /// A configuration with librbd's cache as it comes, or off.
    fn conf(&self, cached: bool) -> Result<PathBuf> {
        let text = fs::read_to_string(self.cluster.conf()).context("the configuration")?;
        let client = if cached { "" } else { "\n[client]\nrbd cache = false\n" };
        let path = self.dir.path().join(if cached { "cached.conf" } else { "uncached.conf" });
        fs::write(&path, text + client).context("write a configuration")?;
        Ok(path)
    }

    fn attach(&self, system: System) -> Result<PathBuf> {
        let image = format!("rbd:{}@{POOL}/{}", self.cluster.user(), system.image());
        self.attached.attach_image(&image, self.cluster.conf())
    }

    fn drive(&self, system: System, target: &Target, load: &Load, until: Until) -> Result<Found> {
        match target {
            Target::Fio(conf) => {
                let image = (self.cluster.user(), POOL, system.image());
                drive::fio_rbd(conf, (image.0, image.1, &image.2), load, until)
            }
            Target::Device(device) => drive::fio(device, load, until),
            Target::Open(device) => {
                let engine = Engine::open(device.clone(), None, &EngineOptions::default())?;
                drive::channel(&mut *engine.channel(), load, until)
            }
        }
    }

    fn remove(&self, system: System) -> Result<()> {
        Ok(self.settings(system)?.prepare()?.remove()?)
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        if let Err(error) = self.attached.detach() {
            eprintln!("polylane: bench: {error:#}; see 'polylane attach --list'");
        }
        for system in self.made.take() {
            if let Err(error) = self.remove(system) {
                let (image, path) = (system.image(), self.cluster.conf().display());
                eprintln!("polylane: bench: remove {POOL}/{image} of {path}: {error:#}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_are_judged_beside_fio() {
        let mut report = Report::new("ceph-rbd", "x", "load", "IO/s", Better::Higher);
        for (system, rate) in
            [(System::Fio, 100.0), (System::Engine, 95.0), (System::Attached, 50.0)]
        {
            report.add(system.name(), "randread 4k qd1", rate, &[]);
        }
        let lines = verdicts(&report);
        assert!(lines[0].contains("engine") && lines[0].ends_with("holds"), "{lines:?}");
        assert!(lines[1].contains("attached") && lines[1].ends_with("is missed"), "{lines:?}");
        let images: std::collections::BTreeSet<_> = SYSTEMS.map(System::image).into();
        assert_eq!(images.len(), SYSTEMS.len());
    }
}
