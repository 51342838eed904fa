//! `pdc-fig6` and `pdc-fig7`: what guests do on the kernel's ext4 on attached volumes, by cache
//! mode: one guest, and four at the same time. Mail with more and more threads, as the paper's
//! sweep; databases as `pdc_programs` has them.
//!
//! The guests are this host's kernel, by a loop device on each volume: an emulated one would drown
//! the effect. Loop carries no FUA, so a journal commit is flush, write, flush, as with virtio-blk.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::guest::Guest;
use super::pdc_loads::mail;
use super::pdc_programs::{PROGRAMS, Program, install};
use crate::report::{Better, Report};
use crate::{Options, progress};

/// A system's name, and its options of `volume create`.
type System = (&'static str, &'static [&'static str]);

/// Cache modes, by their names in the paper; the last two are of the own store.
const SYSTEMS: [System; 5] = [
    ("NONE", &["--cache", "none"]),
    ("WB", &["--cache", "writeback", "--cache-store", "host"]),
    ("PDC", &["--cache", "pdc", "--cache-store", "host"]),
    ("WB, own memory", &["--cache", "writeback", "--cache-store", "own"]),
    ("PDC, own memory", &["--cache", "pdc", "--cache-store", "own"]),
];

/// Guests of `pdc-fig7`.
const GUESTS: usize = 4;

const NOTES: [&str; 3] = [
    "guest: this host's kernel, ext4 ordered, on a loop device of 'polylane attach'; loop carries \
     no FUA",
    "mail: mails by so many threads; OLTP: sysbench's transactions on MariaDB, graph: a \
     LinkBench-like mix on it, 4 threads each",
    "sqlite: one insert, update or delete a transaction; RocksDB: synced random puts",
];

/// What a guest does.
#[derive(Clone, Copy)]
enum Load {
    /// Mails by so many threads.
    Mail(u64),
    Program(&'static Program),
}

impl Load {
    fn name(self) -> String {
        match self {
            Load::Mail(1) => "mail, 1 thread".into(),
            Load::Mail(threads) => format!("mail, {threads} threads"),
            Load::Program(program) => program.name.into(),
        }
    }

    /// Operations a second. `made`: the files of a database server without any data.
    fn run(self, dir: &Path, time: Duration, made: &Path) -> Result<f64> {
        match self {
            Load::Mail(threads) => mail(dir, threads, time),
            Load::Program(program) => program.run(dir, time, made),
        }
    }
}

/// Mail by each number of threads, and the programs that are here; the others are noted.
fn loads(report: &mut Report, threads: &[u64]) -> Vec<Load> {
    let mails = threads.iter().map(|threads| Load::Mail(*threads));
    let missing = PROGRAMS.iter().filter(|program| !program.is_here());
    report.notes.extend(missing.map(|one| format!("{}: not installed, left out", one.name)));
    let here = PROGRAMS.iter().filter(|program| program.is_here());
    mails.chain(here.map(Load::Program)).collect()
}

/// Where guests live, and the files of a database server without any data.
fn place(options: &Options) -> Result<(tempfile::TempDir, PathBuf)> {
    fs::create_dir_all(&options.out)?;
    let dir = tempfile::tempdir_in(&options.out)?;
    let made = dir.path().join("made");
    install(&made)?;
    Ok((dir, made))
}

/// The systems that `options` name.
fn systems(options: &Options) -> Result<Vec<System>> {
    let chosen = options.chosen(&SYSTEMS.map(|system| system.0.to_string()))?;
    Ok(chosen.into_iter().map(|which| SYSTEMS[which]).collect())
}

/// In which order systems are measured: each comes after each other one as often as before it, so
/// that none always finds what the same one has left for the disk to do.
fn order(repeat: usize, count: usize) -> Vec<usize> {
    let turned = (0..count).map(|turn| (turn + repeat / 2) % count);
    if repeat.is_multiple_of(2) { turned.collect() } else { turned.rev().collect() }
}

/// One guest.
///
/// # Errors
/// Loop devices cannot be had here, mke2fs is missing, or a program fails.
pub fn fig6(options: &Options) -> Result<Report> {
    let title = "mail by threads, and databases, on ext4 on a volume, by cache";
    let mut report = Report::new("pdc-fig6", title, "load", "operations/s", Better::Higher);
    report.baseline = "WB".into();
    let (dir, made) = place(options)?;
    let systems = systems(options)?;
    let guests: Vec<Guest> = systems
        .iter()
        .enumerate()
        .map(|(which, system)| guest(dir.path(), &which.to_string(), system))
        .collect::<Result<_>>()?;
    for load in loads(&mut report, &[1, 2, 4, 8, 16]) {
        for repeat in 0..options.repeats() {
            for which in order(repeat, guests.len()) {
                let (name, point) = (systems[which].0, load.name());
                progress(&format!("pdc-fig6 {point} {name} {repeat}"));
                rustix::fs::sync();
                let rate = load.run(&guests[which].mount, time(options), &made)?;
                report.add(name, &point, rate, &[]);
            }
        }
    }
    for (system, guest) in systems.iter().zip(&guests) {
        let cache = &guest.stats()?["cache"];
        let mib = |field: &str| cache[field].as_u64().unwrap_or(0) >> 20;
        let (written, bypassed) = (mib("written_bytes"), mib("bypassed_bytes"));
        let line = format!(
            "{}: of {written} MiB {bypassed} were kept out of the cache, {} of them behind a flush",
            system.0,
            mib("forgotten_bytes")
        );
        report.notes.push(line);
    }
    report.notes.extend(NOTES.map(String::from));
    Ok(report)
}

/// Four guests at the same time; the sum of what they do.
///
/// # Errors
/// As [`fig6`].
pub fn fig7(options: &Options) -> Result<Report> {
    let title =
        "the same loads on four guests at the same time, each on a volume of its own, in sum";
    let mut report = Report::new("pdc-fig7", title, "load", "operations/s", Better::Higher);
    report.baseline = "WB".into();
    let (dir, made) = place(options)?;
    let (systems, loads) = (systems(options)?, loads(&mut report, &[4]));
    for repeat in 0..options.repeats() {
        for which in order(repeat, systems.len()) {
            let own = dir.path().join(format!("{repeat}-{which}"));
            fs::create_dir(&own)?;
            let named = |index: usize| guest(&own, &index.to_string(), &systems[which]);
            let guests: Vec<Guest> = (0..GUESTS).map(named).collect::<Result<_>>()?;
            for load in &loads {
                let (name, point) = (systems[which].0, load.name());
                progress(&format!("pdc-fig7 {point} {name} {repeat}"));
                rustix::fs::sync();
                let rate = together(&guests, *load, time(options), &made)?;
                report.add(name, &point, rate, &[]);
            }
        }
    }
    report.notes.push(format!("{GUESTS} guests; threads are those of each"));
    report.notes.extend(NOTES.map(String::from));
    Ok(report)
}

/// The sum of what guests do at the same time.
fn together(guests: &[Guest], load: Load, time: Duration, made: &Path) -> Result<f64> {
    let rates: Vec<Result<f64>> = std::thread::scope(|scope| {
        let start = |guest: &Guest| {
            let mount = guest.mount.clone();
            scope.spawn(move || load.run(&mount, time, made))
        };
        let workers: Vec<_> = guests.iter().map(start).collect();
        let ended = workers.into_iter().map(|worker| worker.join());
        ended.map(|rate| rate.unwrap_or_else(|_| Ok(0.0))).collect()
    });
    rates.into_iter().sum()
}

fn time(options: &Options) -> Duration {
    Duration::from_secs(if options.quick { 1 } else { 5 })
}

fn guest(dir: &Path, name: &str, system: &System) -> Result<Guest> {
    let mut guest = Guest::new(dir, name, "1G", system.1, &[])?;
    guest.format("mkfs.ext4", &["-F", "-q", "-E", "lazy_itable_init=0"], &[])?;
    Ok(guest)
}
