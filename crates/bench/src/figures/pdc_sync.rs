//! `pdc-fig2` and `pdc-fig4`: volumes through the host's cache and past it, without a guest.
//!
//! The requests are those that a front end would make; block devices of this program's own, on
//! files in the results' directory, answer them.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, anyhow};
use polylane_base::rng::Rng;
use polylane_base::sync::Arc;
use polylane_block::cache::host::HostStore;
use polylane_block::cache::own::OwnStore;
use polylane_block::cache::{Cached, Mode};
use polylane_block::file::{FileDevice, Files, Way};
use polylane_block::wait::Waiter;
use polylane_block::{BlockDevice, Sector, image};
use polylane_sys::buffer::Buffer;

use crate::histogram::Histogram;
use crate::report::{Better, Report};
use crate::{Options, progress};

const FILE_BYTES: u64 = 128 << 20;
/// Where the journal of `pdc-fig4` lies.
const JOURNAL_BYTES: u64 = 16 << 20;

/// Ways to a volume's file.
const SYSTEMS: [&str; 4] = ["none", "WB", "WB, own memory", "PDC"];

/// One device for each system, on a file of its own: what one leaves dirty in the page cache would
/// meet the direct writes of another.
fn devices(dir: &Path) -> Result<Vec<Arc<dyn BlockDevice>>> {
    let [none, wb, own, pdc] = ["none", "wb", "own", "pdc"].map(|name| volume(&dir.join(name)));
    let (wb, pdc) = (wb?, pdc?);
    let pdc = Cached::new(HostStore::new(through(&pdc)?, around(&pdc)?, true), Mode::Pdc);
    pdc.mark_journal(Sector(0), JOURNAL_BYTES / 512);
    Ok(vec![
        around(&none?)?,
        Cached::new(HostStore::new(through(&wb)?, around(&wb)?, false), Mode::Writeback),
        Cached::new(OwnStore::new(around(&own?)?, FILE_BYTES), Mode::Writeback),
        pdc,
    ])
}

/// A file with data in every block.
fn volume(path: &Path) -> Result<Files> {
    std::fs::write(path, vec![0x5a; FILE_BYTES as usize])?;
    image::open(path).map_err(|error| anyhow!("{error:?}"))
}

/// The file through the page cache.
fn through(files: &Files) -> Result<Arc<FileDevice>> {
    open(&files.plain, files)
}

/// The file past it.
fn around(files: &Files) -> Result<Arc<FileDevice>> {
    open(&files.io, files)
}

fn open(io: &OwnedFd, files: &Files) -> Result<Arc<FileDevice>> {
    let (plain, lock) = (files.plain.try_clone()?, files.lock.try_clone()?);
    Ok(FileDevice::open(Files { io: io.try_clone()?, plain, lock }, Way::Ring)?)
}

/// A write that is followed by a flush, as a journal's are: through the cache and around it.
///
/// # Errors
/// The results' directory cannot be used.
pub fn fig4(options: &Options) -> Result<Report> {
    let title = "a journal's write and flush, through the host's cache and around it";
    let mut report = Report::new("pdc-fig4", title, "write", "p50 µs", Better::Lower);
    report.baseline = "WB".into();
    std::fs::create_dir_all(&options.out)?;
    let dir = tempfile::tempdir_in(&options.out)?;
    let waiters: Vec<Waiter> = devices(dir.path())?.into_iter().map(Waiter::new).collect();
    let count = if options.quick { 200 } else { 2000 };
    let points = [
        ("4 KiB", 4096, 0, false),
        ("32 KiB", 32768, 0, false),
        ("4 KiB FUA", 4096, 0, true),
        ("4 KiB, 16 dirty", 4096, 16, false),
        ("4 KiB FUA, 16 dirty", 4096, 16, true),
    ];
    for (point, bytes, dirty, fua) in points {
        for repeat in 0..options.repeats() {
            for turn in 0..waiters.len() {
                let which = (turn + repeat) % waiters.len();
                progress(&format!("pdc-fig4 {point} {} {repeat}", SYSTEMS[which]));
                let found = journal(&waiters[which], count, bytes, dirty, fua)?;
                let us = |fraction: f64| found.quantile(fraction) / 1000.0;
                report.add(SYSTEMS[which], point, us(0.5), &[("p99_us", us(0.99))]);
            }
        }
    }
    report.notes.push(
        "16 dirty: before each, 16 random 4 KiB blocks elsewhere are written and not flushed; FUA: \
         the write is durable by itself, without a flush (vhost-user and loop carry none)"
            .into(),
    );
    Ok(report)
}

fn journal(waiter: &Waiter, count: u64, bytes: u64, dirty: u64, fua: bool) -> Result<Histogram> {
    let mut histogram = Histogram::default();
    let mut rng = Rng::new(bytes + dirty);
    let mut data = Buffer::zeroed(bytes as usize);
    for number in 0..count {
        for _ in 0..dirty {
            let elsewhere = JOURNAL_BYTES / 4096..FILE_BYTES / 4096;
            let block = elsewhere.start + rng.below(elsewhere.end - elsewhere.start);
            waiter.write(Sector(block * 8), Buffer::zeroed(4096), false)?;
        }
        let at = Sector(number * bytes % JOURNAL_BYTES / 512);
        let start = Instant::now();
        data = waiter.write(at, data, fua)?;
        if !fua {
            waiter.flush()?;
        }
        histogram.record(start.elapsed().as_nanos() as u64, 1);
    }
    Ok(histogram)
}

/// The host's cache against none, on data that fits it.
///
/// # Errors
/// As [`fig4`].
pub fn fig2(options: &Options) -> Result<Report> {
    let title = "random 4 KiB requests on data that fits the cache, a flush after every 64";
    let mut report = Report::new("pdc-fig2", title, "reads", "requests/s", Better::Higher);
    report.baseline = "none".into();
    std::fs::create_dir_all(&options.out)?;
    let dir = tempfile::tempdir_in(&options.out)?;
    let waiters: Vec<Waiter> = devices(dir.path())?.into_iter().map(Waiter::new).collect();
    let count = if options.quick { 2000 } else { 20_000 };
    for (point, reads) in [("0 %", 0), ("50 %", 50), ("90 %", 90)] {
        for repeat in 0..options.repeats() {
            for turn in 0..waiters.len() {
                let which = (turn + repeat) % waiters.len();
                progress(&format!("pdc-fig2 {point} {} {repeat}", SYSTEMS[which]));
                report.add(SYSTEMS[which], point, mixed(&waiters[which], count, reads)?, &[]);
            }
        }
    }
    Ok(report)
}

fn mixed(waiter: &Waiter, count: u64, reads: u64) -> Result<f64> {
    let mut rng = Rng::new(reads);
    let start = Instant::now();
    let mut data = Buffer::zeroed(4096);
    for number in 0..count {
        let block = JOURNAL_BYTES / 4096 + rng.below((FILE_BYTES - JOURNAL_BYTES) / 4096);
        data = match rng.percent(reads) {
            true => waiter.read_into(Sector(block * 8), data)?,
            false => waiter.write(Sector(block * 8), data, false)?,
        };
        if number % 64 == 63 {
            waiter.flush()?;
        }
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}
