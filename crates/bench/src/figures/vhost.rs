//! `vhost-user`: a native virtio driver on this program's vhost-user-blk server and on
//! qemu-storage-daemon's, on files of their own, in turns.
//!
//! The driver sleeps until it is called, as a guest does; both servers reach their files with
//! O_DIRECT, one queue each.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use polylane_base::rng::Rng;
use polylane_front::vhost_user::driver::{Driver, DriverQueue, Kind, Shape};

use crate::histogram::Histogram;
use crate::report::{Better, Report};
use crate::{Options, progress};

const BLOCK_BYTES: usize = 4096;
const FILE_BYTES: u64 = 256 << 20;
const SYSTEMS: [&str; 2] = ["qemu-storage-daemon", "polylane"];
const POINTS: [(&str, Kind, usize); 6] = [
    ("read qd1", Kind::Read, 1),
    ("read qd32", Kind::Read, 32),
    ("write qd1", Kind::Write, 1),
    ("write qd32", Kind::Write, 32),
    ("write+flush qd1", Kind::Flush, 1),
    ("write+flush qd32", Kind::Flush, 32),
];

/// # Errors
/// qemu-storage-daemon is not installed, or a server does not answer.
pub fn run(options: &Options) -> Result<Report> {
    let title = "4 KiB requests of a native virtio driver by vhost-user-blk server";
    let mut report = Report::new("vhost-user", title, "load", "requests/s", Better::Higher);
    report.baseline = SYSTEMS[0].into();
    let seconds = if options.quick { 0.3 } else { 2.0 };
    std::fs::create_dir_all(&options.out)?;
    let dir = tempfile::tempdir_in(&options.out)?;
    let servers = [Server::qemu(dir.path())?, Server::own(dir.path())?];
    for (point, kind, depth) in POINTS {
        for repeat in 0..options.repeats() {
            for turn in 0..servers.len() {
                let which = (turn + repeat) % servers.len();
                progress(&format!("vhost-user {point} {} {repeat}", SYSTEMS[which]));
                let shape = Shape { queues: 1, depth, data_bytes: BLOCK_BYTES };
                let mut driver = Driver::connect(&servers[which].socket, shape)?;
                let queue = driver.queues().first_mut().context("a queue")?;
                let before = servers[which].cpu_ns();
                let found = load(queue, kind, depth, seconds)?;
                let cpu_ns = servers[which].cpu_ns().saturating_sub(before);
                let cpu_us = cpu_ns as f64 / 1000.0 / found.count.max(1) as f64;
                let more = [("p50_us", found.p50), ("p99_us", found.p99), ("cpu_us", cpu_us)];
                report.add(SYSTEMS[which], point, found.rate, &more);
                driver.stop(0)?;
            }
        }
    }
    report.notes.push(
        "both: O_DIRECT on a preallocated, written file, one queue, split ring, event index; the \
         driver sleeps on its call descriptor; write+flush: every eighth request is a flush; \
         cpu_us: CPU time of the server's threads per request"
            .into(),
    );
    Ok(report)
}

/// A server process.
struct Server {
    socket: PathBuf,
    kind: ServerKind,
}

impl Server {
    /// CPU time that its threads have taken so far, as far as the host says; 0 where it does not.
    fn cpu_ns(&self) -> u64 {
        let pid = match &self.kind {
            ServerKind::Qemu(child) => Some(child.id()),
            ServerKind::Own(volume) => engine_of(volume),
        };
        let Some(pid) = pid else { return 0 };
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
        let taken = threads.flatten().filter_map(|thread| {
            let line = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
            line.split(' ').next()?.parse::<u64>().ok()
        });
        taken.sum()
    }
}

/// The engine that has a volume open.
fn engine_of(volume: &Path) -> Option<u32> {
    let file = volume.canonicalize().ok()?;
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        let open = std::fs::read_dir(entry.path().join("fd")).ok()?.flatten();
        let mut files = open.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        (line.starts_with(b"polylane-engine[") && files.any(|open| open == file)).then_some(pid)
    })
}

enum ServerKind {
    Qemu(Child),
    /// The volume that is attached.
    Own(PathBuf),
}

impl Server {
    fn qemu(dir: &Path) -> Result<Server> {
        let (file, socket) = (filled(dir, "qemu.img")?, dir.join("qemu.sock"));
        let blockdev = format!(
            "driver=file,filename={},node-name=f,cache.direct=on,aio=io_uring",
            file.display()
        );
        let export = format!(
            "type=vhost-user-blk,id=e,node-name=f,writable=on,num-queues=1,addr.type=unix,\
             addr.path={}",
            socket.display()
        );
        let child = Command::new("qemu-storage-daemon")
            .args(["--blockdev", &blockdev, "--export", &export])
            .stdin(Stdio::null())
            .spawn()
            .context("start qemu-storage-daemon (Debian: qemu-system-common)")?;
        let server = Server { socket, kind: ServerKind::Qemu(child) };
        for _ in 0..100 {
            if server.socket.exists() {
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("qemu-storage-daemon does not listen")
    }

    fn own(dir: &Path) -> Result<Server> {
        let (volume, socket) = (filled(dir, "own.img")?, dir.join("own.sock"));
        let program = std::env::current_exe()?;
        let status = Command::new(program)
            .args(["attach", "--via", "vhost-user", "--socket"])
            .args([&socket, &volume])
            .stdout(Stdio::null())
            .status()?;
        ensure!(status.success(), "polylane attach --via vhost-user failed");
        Ok(Server { socket, kind: ServerKind::Own(volume) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        match &mut self.kind {
            ServerKind::Qemu(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            ServerKind::Own(volume) => {
                let program = std::env::current_exe().unwrap_or_default();
                let _ = Command::new(program).arg("detach").arg(volume).status();
            }
        }
    }
}

/// A file with data in every block.
fn filled(dir: &Path, name: &str) -> Result<PathBuf> {
    use std::io::Write;
    let path = dir.join(name);
    let mut file = std::fs::File::create(&path)?;
    let chunk = vec![0x5a; 1 << 20];
    for _ in 0..FILE_BYTES >> 20 {
        file.write_all(&chunk)?;
    }
    file.sync_all()?;
    Ok(path)
}

/// What a load found.
struct Found {
    /// Requests.
    count: u64,
    /// A second.
    rate: f64,
    /// Quantiles of their time, in µs.
    p50: f64,
    p99: f64,
}

/// Keeps `depth` requests at random places under way.
fn load(queue: &mut DriverQueue, kind: Kind, depth: usize, seconds: f64) -> Result<Found> {
    let mut rng = Rng::new(depth as u64);
    let mut began = vec![Instant::now(); depth];
    let mut histogram = Histogram::default();
    let (start, mut count) = (Instant::now(), 0u64);
    let mut submit = |queue: &mut DriverQueue, slot: usize| {
        count += 1;
        let sector = rng.below(FILE_BYTES / BLOCK_BYTES as u64) * 8;
        match (kind, count % 8) {
            (Kind::Flush, 0) => queue.submit(slot, Kind::Flush, 0, 0),
            (Kind::Read, _) => queue.submit(slot, Kind::Read, sector, BLOCK_BYTES as u32),
            _ => queue.submit(slot, Kind::Write, sector, BLOCK_BYTES as u32),
        }
    };
    for slot in 0..depth {
        submit(queue, slot);
    }
    queue.notify()?;
    let (mut answered, mut left, mut idle) = (0u64, depth, 0);
    while left > 0 {
        let mut more = false;
        while let Some((slot, _)) = queue.take() {
            ensure!(queue.status(slot) == 0, "a request failed");
            histogram.record(began[slot].elapsed().as_nanos() as u64, 1);
            answered += 1;
            match start.elapsed().as_secs_f64() < seconds {
                true => {
                    began[slot] = Instant::now();
                    submit(queue, slot);
                    more = true;
                }
                false => left -= 1,
            }
            idle = 0;
        }
        if more {
            queue.notify()?;
        }
        if left > 0 {
            queue.wait(1000);
            idle += 1;
            ensure!(idle < 100, "the server does not answer");
        }
    }
    let rate = answered as f64 / start.elapsed().as_secs_f64();
    let us = |fraction: f64| histogram.quantile(fraction) / 1000.0;
    Ok(Found { count: answered, rate, p50: us(0.5), p99: us(0.99) })
}
