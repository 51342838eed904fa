//! The load of one tenant: an ordinary program that makes ordinary libc calls.
//!
//! A worker is a process of its own, so that it can run in a lane, unchanged, under the preload
//! library. It prepares its directory, prints `ready`, waits for a line on standard input, works
//! for the given time and prints one line of JSON. It uses `std` and `libc` only: a crate that
//! makes raw system calls would slip past the library and measure the wrong thing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::histogram::{Histogram, Summary};

/// What a worker reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Operations done.
    pub ops: u64,
    /// Seconds they took, by this worker's own clock.
    pub seconds: f64,
    /// Latency of one operation.
    pub latency: Summary,
}

impl Outcome {
    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.ops as f64 / self.seconds.max(1e-9)
    }
}

/// One operation, repeated.
type Step = Box<dyn FnMut(u64) -> io::Result<()>>;

/// A load: how to prepare it and how many operations share one look at the clock.
struct Load {
    name: &'static str,
    about: &'static str,
    batch: u64,
    prepare: fn(&Path) -> io::Result<Step>,
}

const BLOCK: usize = 4096;
const FILE_BLOCKS: u64 = 1024;
const LARGE: usize = 1 << 20;

/// Every load, by name. Batches keep the clock's own cost (some 30 ns) out of sub-microsecond
/// operations; loads with a batch of 1 show true per-operation tails.
const LOADS: &[Load] = &[
    Load { name: "ocrd", about: "create, rename, unlink one file", batch: 1, prepare: ocrd },
    Load {
        name: "ocrd-spread",
        about: "create, rename, unlink one file each, of files that live for a while",
        batch: 1,
        prepare: ocrd_spread,
    },
    Load { name: "cached-read", about: "pread 4 KiB of a 4 MiB file", batch: 64, prepare: read_4k },
    Load {
        name: "cached-write",
        about: "pwrite 4 KiB in a 4 MiB file",
        batch: 64,
        prepare: write_4k,
    },
    Load { name: "stat", about: "stat a path", batch: 64, prepare: stat },
    Load { name: "fstat", about: "fstat an open file", batch: 64, prepare: fstat },
    Load { name: "open-close", about: "open and close a file", batch: 32, prepare: open_close },
    Load { name: "seqread", about: "read 1 MiB after 1 MiB of 64 MiB", batch: 1, prepare: seqread },
    Load { name: "fileio", about: "read or write 16 KiB at random", batch: 8, prepare: fileio },
    Load { name: "transact", about: "write 4 KiB, fsync, rename", batch: 1, prepare: transact },
    Load {
        name: "flood",
        about: "write 256 KiB, fsync, again and again",
        batch: 1,
        prepare: flood,
    },
];

/// Names and one-line descriptions of all loads.
pub fn loads() -> impl Iterator<Item = (&'static str, &'static str)> {
    LOADS.iter().map(|load| (load.name, load.about))
}

/// Runs load `name` in `dir` for `seconds`, speaking with the bench over standard input and output.
pub fn main(name: &str, dir: &Path, seconds: f64) -> anyhow::Result<()> {
    let load = LOADS.iter().find(|load| load.name == name);
    let load = load.ok_or_else(|| anyhow::anyhow!("load '{name}' does not exist"))?;
    fs::create_dir_all(dir)?;
    let mut step = (load.prepare)(dir)?;
    run(&mut step, load.batch, Duration::from_millis(50))?;
    println!("ready");
    io::stdout().flush()?;
    io::stdin().lock().read_line(&mut String::new())?;
    let outcome = run(&mut step, load.batch, Duration::from_secs_f64(seconds))?;
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

fn run(step: &mut Step, batch: u64, length: Duration) -> io::Result<Outcome> {
    let mut histogram = Histogram::default();
    let start = Instant::now();
    let mut before = start;
    let mut ops = 0;
    while before - start < length {
        for index in ops..ops + batch {
            step(index)?;
        }
        ops += batch;
        let after = Instant::now();
        histogram.record((after - before).as_nanos() as u64 / batch, batch);
        before = after;
    }
    Ok(Outcome { ops, seconds: (before - start).as_secs_f64(), latency: histogram.summary() })
}

/// MultiLanes' metadata benchmark: one transaction creates, renames and unlinks one file.
fn ocrd(dir: &Path) -> io::Result<Step> {
    let (old, new) = (dir.join("old"), dir.join("new"));
    Ok(Box::new(move |_| {
        drop(OpenOptions::new().write(true).create_new(true).open(&old)?);
        fs::rename(&old, &new)?;
        fs::remove_file(&new)
    }))
}

/// Files between their creation and their renaming, and between that and their end.
const SPREAD: u64 = 32;

/// The same work on files that live for 64 transactions: nothing that a transaction does undoes
/// what it did.
fn ocrd_spread(dir: &Path) -> io::Result<Step> {
    let name = |kind: &str, number: u64| dir.join(format!("{kind}-{}", number % (4 * SPREAD)));
    let paths = |kind| (0..4 * SPREAD).map(|number| name(kind, number)).collect::<Vec<_>>();
    let (old, new) = (paths("old"), paths("new"));
    // What an earlier run left.
    old.iter().chain(&new).for_each(|path| _ = fs::remove_file(path));
    let make = |path: &Path| OpenOptions::new().write(true).create_new(true).open(path).map(drop);
    (0..SPREAD).try_for_each(|number| make(&new[number as usize]))?;
    (SPREAD..2 * SPREAD).try_for_each(|number| make(&old[number as usize]))?;
    let mut number = 2 * SPREAD;
    Ok(Box::new(move |_| {
        make(at(&old, number))?;
        fs::rename(at(&old, number - SPREAD), at(&new, number - SPREAD))?;
        fs::remove_file(at(&new, number - 2 * SPREAD))?;
        number += 1;
        Ok(())
    }))
}

fn at(paths: &[PathBuf], number: u64) -> &Path {
    &paths[(number % (4 * SPREAD)) as usize]
}

fn filled(dir: &Path, bytes: u64) -> io::Result<(PathBuf, File)> {
    let path = dir.join("data");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
    let block = vec![0x5a; LARGE];
    let mut offset = 0;
    while offset < bytes {
        let length = (bytes - offset).min(LARGE as u64);
        file.write_all_at(&block[..length as usize], offset)?;
        offset += length;
    }
    Ok((path, file))
}

/// Spreads successive numbers over `0..FILE_BLOCKS`: coprime stride, so every block comes up.
fn scattered(index: u64) -> u64 {
    index.wrapping_mul(607) % FILE_BLOCKS * BLOCK as u64
}

fn read_4k(dir: &Path) -> io::Result<Step> {
    let (_, file) = filled(dir, FILE_BLOCKS * BLOCK as u64)?;
    let mut buffer = [0; BLOCK];
    Ok(Box::new(move |index| file.read_exact_at(&mut buffer, scattered(index))))
}

fn write_4k(dir: &Path) -> io::Result<Step> {
    let (_, file) = filled(dir, FILE_BLOCKS * BLOCK as u64)?;
    let buffer = [1; BLOCK];
    Ok(Box::new(move |index| file.write_all_at(&buffer, scattered(index))))
}

fn stat(dir: &Path) -> io::Result<Step> {
    let (path, _) = filled(dir, BLOCK as u64)?;
    Ok(Box::new(move |_| fs::metadata(&path).map(drop)))
}

fn fstat(dir: &Path) -> io::Result<Step> {
    let (_, file) = filled(dir, BLOCK as u64)?;
    Ok(Box::new(move |_| file.metadata().map(drop)))
}

fn open_close(dir: &Path) -> io::Result<Step> {
    let (path, _) = filled(dir, BLOCK as u64)?;
    Ok(Box::new(move |_| File::open(&path).map(drop)))
}

fn seqread(dir: &Path) -> io::Result<Step> {
    let (_, file) = filled(dir, 64 * LARGE as u64)?;
    let mut buffer = vec![0; LARGE];
    Ok(Box::new(move |index| file.read_exact_at(&mut buffer, index % 64 * LARGE as u64)))
}

fn fileio(dir: &Path) -> io::Result<Step> {
    let (_, file) = filled(dir, 64 * LARGE as u64)?;
    let mut buffer = vec![2; 4 * BLOCK];
    Ok(Box::new(move |index| {
        let offset = scattered(index) * 4;
        match index % 2 {
            0 => file.read_exact_at(&mut buffer, offset),
            _ => file.write_all_at(&buffer, offset),
        }
    }))
}

/// A tenant that keeps the disk and its journal busy: four files, written and synced in turns.
fn flood(dir: &Path) -> io::Result<Step> {
    let names = (0..4).map(|number| dir.join(format!("flood-{number}")));
    let files = names.map(File::create).collect::<io::Result<Vec<_>>>()?;
    let block = vec![4; LARGE / 4];
    Ok(Box::new(move |index| {
        let file = &files[index as usize % files.len()];
        file.write_all_at(&block, index % 64 * block.len() as u64)?;
        file.sync_all()
    }))
}

/// What a small database does: write a block, make it durable, publish it by a rename.
fn transact(dir: &Path) -> io::Result<Step> {
    let (temporary, published) = (dir.join("record.tmp"), dir.join("record"));
    let block = [3; BLOCK];
    Ok(Box::new(move |_| {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&temporary)?;
        file.write_all_at(&block, 0)?;
        file.sync_all()?;
        fs::rename(&temporary, &published)
    }))
}
