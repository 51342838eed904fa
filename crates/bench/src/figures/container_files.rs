//! `container-files`: create, write, rename and unlink in a container of runc, on a lane by the
//! library and by FUSE, and on directories of the host's kernel file systems.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::lasting::{Lane, Worker};
use crate::place::{Ground, Place};
use crate::report::{Better, Report};
use crate::{Options, progress};

/// What a worker does.
const LOAD: &str = "cwru";

/// What the container has as its `/data`.
struct Data {
    name: &'static str,
    dir: PathBuf,
    /// The lane's run directory, where the library is used.
    run: Option<PathBuf>,
}

/// Measures microseconds for each round of the four calls.
///
/// # Errors
/// Not root, no runc, or a load failed.
pub fn run(options: &Options) -> Result<Report> {
    let title = "create, write 4 KiB, rename, unlink one file in a container";
    let mut report = Report::new("container-files", title, "round", "µs", Better::Lower);
    report.baseline = "ext4 (RAM)".into();
    let seconds = if options.quick { 0.3 } else { 1.0 };
    let ground = Ground::new()?;
    let place = tempfile::tempdir().context("directory of lanes")?;
    let memory = Lane::mount(place.path(), "memory", &[], &["mem:64M"])?;
    let volume = ground.prepare(Place::LaneExt4)?.join("volume.img");
    let source = format!("volume:{}", volume.display());
    let ext4 = Lane::mount(place.path(), "ext4", &[], &["--size", "1G", &source])?;
    let mut all = Vec::new();
    for (name, place) in [("tmpfs", Place::Tmpfs), ("ext4 (RAM)", Place::Kernel("ext4"))] {
        match ground.prepare(place) {
            Ok(dir) => all.push(Data { name, dir, run: None }),
            Err(error) => report.notes.push(format!("{name} left out: {error:#}")),
        }
    }
    for (lane, fast, slow) in
        [(&memory, "lane", "lane (FUSE)"), (&ext4, "lane (ext4)", "lane (ext4, FUSE)")]
    {
        let (dir, run) = (lane.at().to_path_buf(), Some(lane.run_dir().to_path_buf()));
        all.push(Data { name: fast, dir: dir.clone(), run });
        all.push(Data { name: slow, dir, run: None });
    }
    for repeat in 0..options.repeats() {
        for data in &all {
            progress(&format!("{}, repeat {}", data.name, repeat + 1));
            let outcome = work(data, place.path(), seconds)?;
            let (p50, p99) = (outcome.latency.p50_ns / 1e3, outcome.latency.p99_ns / 1e3);
            let extra = [("p50_us", p50), ("p99_us", p99)];
            report.add(data.name, "create–write–rename–unlink", 1e6 / outcome.rate(), &extra);
        }
    }
    report.notes.push("runc; mount, pid, IPC and UTS namespaces; /data is a bind mount".into());
    Ok(report)
}

fn work(data: &Data, place: &Path, seconds: f64) -> Result<crate::worker::Outcome> {
    let bundle = place.join("bundle");
    make_bundle(&bundle, data, seconds)?;
    let mut command = Command::new("runc");
    command.arg("--root").arg(place.join("state")).args(["run", "--bundle"]).arg(&bundle);
    command.arg(format!("polylane-bench-{}", std::process::id()));
    let mut worker = Worker::start(command)?;
    worker.go()?;
    worker.outcome()
}

/// A container with the host's programs, this one, and the data.
fn make_bundle(dir: &Path, data: &Data, seconds: f64) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).context("remove a bundle")?;
    }
    let root = dir.join("rootfs");
    for place in ["data", "proc", "dev", "tmp", "lane-run"] {
        fs::create_dir_all(root.join(place)).context("make a bundle")?;
    }
    fs::write(root.join("program"), "").context("make a bundle")?;
    let bind = |source: &Path, at: &str, option: &str| {
        json!({ "destination": at, "type": "bind", "source": source,
                "options": ["rbind", "nosuid", "nodev", option] })
    };
    let mut mounts = vec![
        json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
        json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs" }),
        bind(&data.dir, "/data", "rw"),
        bind(&std::env::current_exe().context("own path")?, "/program", "ro"),
    ];
    let mut environment = vec!["PATH=/usr/bin:/bin".to_string()];
    if let Some(run) = &data.run {
        mounts.push(bind(run, "/lane-run", "ro"));
        environment.extend(
            [
                "LD_PRELOAD=/lane-run/libpolylane.so",
                "POLYLANE_MOUNT=/data",
                "POLYLANE_RUN=/lane-run:/data",
            ]
            .map(String::from),
        );
    }
    for name in ["usr", "etc", "bin", "lib", "lib64", "sbin"] {
        let host = Path::new("/").join(name);
        match fs::read_link(&host) {
            Ok(target) => std::os::unix::fs::symlink(target, root.join(name))?,
            Err(_) if host.exists() => mounts.push(bind(&host, &format!("/{name}"), "ro")),
            Err(_) => {}
        }
    }
    // What engines give a container's root.
    let capabilities = [
        "CAP_CHOWN",
        "CAP_DAC_OVERRIDE",
        "CAP_FOWNER",
        "CAP_FSETID",
        "CAP_KILL",
        "CAP_SETGID",
        "CAP_SETUID",
    ];
    let sets = json!({ "bounding": capabilities, "effective": capabilities,
                       "permitted": capabilities });
    let namespaces: Vec<Value> =
        ["pid", "mount", "ipc", "uts"].iter().map(|kind| json!({ "type": kind })).collect();
    let config = json!({
        "ociVersion": "1.0.2",
        "root": { "path": "rootfs" },
        "process": {
            "terminal": false, "user": { "uid": 0, "gid": 0 }, "cwd": "/", "env": environment,
            "capabilities": sets,
            "args": ["/program", "bench", "worker", LOAD, "/data/load", format!("{seconds}s")],
        },
        "mounts": mounts,
        "linux": { "namespaces": namespaces },
    });
    fs::write(dir.join("config.json"), config.to_string()).context("make a bundle")
}
