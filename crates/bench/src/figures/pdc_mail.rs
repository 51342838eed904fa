//! `pdc-fig6`: a mail server's load on the kernel's ext4 on an attached volume, by cache mode.
//!
//! The guest is this host's kernel, by a loop device on the volume: an emulated one would drown the
//! effect. Loop carries no FUA, so a journal commit is flush, write, flush, as with virtio-blk.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polylane_base::rng::Rng;

use crate::report::{Better, Report};
use crate::{Options, progress};

/// Cache modes, by their names on the command line and in the paper.
const SYSTEMS: [(&str, &str); 3] = [("none", "NONE"), ("writeback", "WB"), ("pdc", "PDC")];
/// Files that a thread keeps.
const FILES: u64 = 64;

/// # Errors
/// Loop devices cannot be had here, or mke2fs is missing.
pub fn run(options: &Options) -> Result<Report> {
    let title =
        "mail-like load (create, append, fsync, read, remove) on ext4 on a volume, by cache";
    let mut report = Report::new("pdc-fig6", title, "threads", "mails/s", Better::Higher);
    report.baseline = "WB".into();
    let seconds = Duration::from_secs_f64(if options.quick { 1.0 } else { 5.0 });
    fs::create_dir_all(&options.out)?;
    let dir = tempfile::tempdir_in(&options.out)?;
    let places: Vec<Place> =
        SYSTEMS.iter().map(|system| Place::new(dir.path(), system.0)).collect::<Result<_>>()?;
    for threads in [1u64, 4, 16] {
        for repeat in 0..options.repeats() {
            for turn in 0..places.len() {
                let which = (turn + repeat) % places.len();
                progress(&format!("pdc-fig6 {threads} {} {repeat}", SYSTEMS[which].1));
                let rate = mail(&places[which].mount, threads, seconds)?;
                report.add(SYSTEMS[which].1, &threads.to_string(), rate, &[]);
            }
        }
    }
    report.notes.push(
        "guest: this host's kernel, ext4 ordered, on a loop device of 'polylane attach'; loop \
         carries no FUA"
            .into(),
    );
    Ok(report)
}

/// An attached volume with a mounted ext4.
struct Place {
    volume: PathBuf,
    mount: PathBuf,
}

impl Place {
    fn new(dir: &Path, cache: &str) -> Result<Place> {
        let (volume, mount) = (dir.join(format!("{cache}.img")), dir.join(cache));
        fs::create_dir(&mount)?;
        let place = Place { volume, mount };
        let volume = &place.volume;
        polylane(&["volume", "create", "--size", "1G", "--fs", "none", "--cache", cache], volume)?;
        let device = polylane(&["attach", "--via", "loop"], volume)?;
        let mount = place.mount.to_str().context("a name")?;
        command("mkfs.ext4", &["-F", "-q", "-E", "lazy_itable_init=0", device.trim()])?;
        command("mount", &[device.trim(), mount])?;
        Ok(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.mount).status();
        let _ = polylane(&["detach"], &self.volume);
    }
}

fn polylane(words: &[&str], volume: &Path) -> Result<String> {
    let output = Command::new(std::env::current_exe()?).args(words).arg(volume).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "polylane {}: {}", words[0], said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn command(tool: &str, words: &[&str]) -> Result<()> {
    let output = Command::new(tool).args(words).output().with_context(|| format!("run {tool}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{tool}: {}", said.trim());
    Ok(())
}

/// Mails per second that `threads` threads deliver.
fn mail(mount: &Path, threads: u64, time: Duration) -> Result<f64> {
    let start = Instant::now();
    let counts: Vec<Result<u64>> = std::thread::scope(|scope| {
        let start = |thread| scope.spawn(move || deliver(mount, thread, start, time));
        let workers: Vec<_> = (0..threads).map(start).collect();
        let ended = workers.into_iter().map(|worker| worker.join());
        ended.map(|count| count.unwrap_or_else(|_| Ok(0))).collect()
    });
    let total = counts.into_iter().sum::<Result<u64>>()?;
    Ok(total as f64 / start.elapsed().as_secs_f64())
}

/// One thread: delivers a mail, appends to one, reads one, and removes what is too much.
fn deliver(mount: &Path, thread: u64, start: Instant, time: Duration) -> Result<u64> {
    let mut rng = Rng::new(thread);
    let box_of = |number: u64| mount.join(format!("{thread}-{number}"));
    let (data, mut read) = (vec![0x6d; 16 << 10], Vec::new());
    let mut count = 0;
    while start.elapsed() < time {
        let mut file = File::create(box_of(rng.below(FILES)))?;
        file.write_all(&data[..(rng.below(4) as usize + 1) * 4096])?;
        file.sync_all()?;
        if let Ok(mut old) = File::options().append(true).open(box_of(rng.below(FILES))) {
            old.write_all(&data[..4096])?;
            old.sync_all()?;
        }
        if let Ok(mut old) = File::open(box_of(rng.below(FILES))) {
            read.clear();
            old.read_to_end(&mut read)?;
        }
        let _ = fs::remove_file(box_of(rng.below(FILES)));
        count += 1;
    }
    Ok(count)
}
