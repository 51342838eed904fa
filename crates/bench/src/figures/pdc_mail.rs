//! `pdc-fig6` and `pdc-fig7`: a mail server's load on the kernel's ext4 on attached volumes, by
//! cache mode: one guest with more and more threads, and four guests at the same time.
//!
//! The guests are this host's kernel, by a loop device on each volume: an emulated one would drown
//! the effect. Loop carries no FUA, so a journal commit is flush, write, flush, as with virtio-blk.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::guest::Guest;
use super::pdc_loads::mail;
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

/// Guests of `pdc-fig7`, and the threads of each.
const GUESTS: usize = 4;
const THREADS: u64 = 4;

const NOTE: &str = "guest: this host's kernel, ext4 ordered, on a loop device of 'polylane \
                    attach'; loop carries no FUA";

/// One guest, by threads.
///
/// # Errors
/// Loop devices cannot be had here, or mke2fs is missing.
pub fn fig6(options: &Options) -> Result<Report> {
    let title =
        "mail-like load (create, append, fsync, read, remove) on ext4 on a volume, by cache";
    let mut report = Report::new("pdc-fig6", title, "threads", "mails/s", Better::Higher);
    report.baseline = "WB".into();
    let time = time(options);
    fs::create_dir_all(&options.out)?;
    let dir = tempfile::tempdir_in(&options.out)?;
    let guests: Vec<Guest> = SYSTEMS
        .iter()
        .enumerate()
        .map(|(which, system)| guest(dir.path(), &which.to_string(), system))
        .collect::<Result<_>>()?;
    for threads in [1u64, 2, 4, 8, 16] {
        for repeat in 0..options.repeats() {
            for turn in 0..guests.len() {
                let which = (turn + repeat) % guests.len();
                progress(&format!("pdc-fig6 {threads} {} {repeat}", SYSTEMS[which].0));
                let rate = mail(&guests[which].mount, threads, time)?;
                report.add(SYSTEMS[which].0, &threads.to_string(), rate, &[]);
            }
        }
    }
    for (system, guest) in SYSTEMS.iter().zip(&guests) {
        let cache = &guest.stats()?["cache"];
        let mib = |field: &str| cache[field].as_u64().unwrap_or(0) >> 20;
        let (written, bypassed) = (mib("written_bytes"), mib("bypassed_bytes"));
        let line = format!("{}: {bypassed} of {written} MiB went past the cache", system.0);
        report.notes.push(line);
    }
    report.notes.push(NOTE.into());
    Ok(report)
}

/// Four guests at the same time; the sum of what they do.
///
/// # Errors
/// As [`fig6`].
pub fn fig7(options: &Options) -> Result<Report> {
    let title =
        "the same load on four guests at the same time, each on a volume of its own, in sum";
    let mut report = Report::new("pdc-fig7", title, "guests", "mails/s", Better::Higher);
    report.baseline = "WB".into();
    let time = time(options);
    fs::create_dir_all(&options.out)?;
    for repeat in 0..options.repeats() {
        for turn in 0..SYSTEMS.len() {
            let system = &SYSTEMS[(turn + repeat) % SYSTEMS.len()];
            progress(&format!("pdc-fig7 {} {repeat}", system.0));
            let dir = tempfile::tempdir_in(&options.out)?;
            let made = (0..GUESTS).map(|index| guest(dir.path(), &index.to_string(), system));
            let guests: Vec<Guest> = made.collect::<Result<_>>()?;
            let rates: Vec<Result<f64>> = std::thread::scope(|scope| {
                let start = |guest: &Guest| {
                    let mount = guest.mount.clone();
                    scope.spawn(move || mail(&mount, THREADS, time))
                };
                let workers: Vec<_> = guests.iter().map(start).collect();
                let ended = workers.into_iter().map(|worker| worker.join());
                ended.map(|rate| rate.unwrap_or_else(|_| Ok(0.0))).collect()
            });
            let total = rates.into_iter().sum::<Result<f64>>()?;
            report.add(system.0, &GUESTS.to_string(), total, &[]);
        }
    }
    report.notes.push(format!("{THREADS} threads in each guest"));
    report.notes.push(NOTE.into());
    Ok(report)
}

fn time(options: &Options) -> Duration {
    Duration::from_secs_f64(if options.quick { 1.0 } else { 5.0 })
}

fn guest(dir: &Path, name: &str, system: &System) -> Result<Guest> {
    let mut guest = Guest::new(dir, name, "1G", system.1, &[])?;
    guest.format("mkfs.ext4", &["-F", "-q", "-E", "lazy_itable_init=0"], &[])?;
    Ok(guest)
}
