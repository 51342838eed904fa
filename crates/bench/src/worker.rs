//! The load of one tenant: an ordinary program that makes ordinary libc calls.
//!
//! A worker is a process of its own, so that it can run in a lane, unchanged, under the preload
//! library. It prepares its directory, prints `ready`, waits for a line on standard input, works
//! for the given length, prints one line of JSON, and removes its directory once its standard input
//! ends. It uses `std` and `libc` only: a crate that
//! makes raw system calls would slip past the library and measure the wrong thing.
//!
//! The loads of single calls are here; `stream` has IOzone's, `filebench` Filebench's
//! personalities, `tree` many small files, `synced` small syncs, `bfs` a graph, `libcephfs`
//! calls of Ceph's client library in place of libc's.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::histogram::{Histogram, Summary};

pub(crate) mod bfs;
mod filebench;
pub(crate) mod libcephfs;
pub(crate) mod limits;
mod stream;
mod synced;
mod tree;

/// What a worker reports.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Operations done.
    pub ops: u64,
    /// Seconds they took, by this worker's own clock.
    pub seconds: f64,
    /// Latency of one operation.
    pub latency: Summary,
    /// Seconds until everything was durable after the last operation, for loads that look at it.
    pub settle_seconds: f64,
    /// Latency by kind of operation (`get`, `put` …), for loads that tell kinds apart.
    #[serde(default)]
    pub kinds: BTreeMap<String, Summary>,
    /// CPU time of the tenant, its lane's included: booked by the bench.
    #[serde(default)]
    pub cpu_seconds: f64,
}

impl Outcome {
    /// Reads what a worker says, one line of JSON.
    ///
    /// # Errors
    /// It is none.
    pub fn from_json(line: &str) -> anyhow::Result<Self> {
        Ok(serde_json::from_str(line)?)
    }

    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.ops as f64 / self.seconds.max(1e-9)
    }
}

/// How long a load runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Length {
    /// So many seconds; after a short warm-up.
    Seconds(f64),
    /// So many operations from a fresh start.
    Ops(u64),
}

impl FromStr for Length {
    type Err = String;

    /// `1.5s` or `65536`.
    fn from_str(text: &str) -> Result<Self, String> {
        let length = match text.strip_suffix('s') {
            Some(seconds) => seconds.parse().ok().map(Length::Seconds),
            None => text.parse().ok().map(Length::Ops),
        };
        length.ok_or_else(|| format!("'{text}' is neither seconds such as 1.5s nor a count"))
    }
}

impl std::fmt::Display for Length {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Length::Seconds(seconds) => write!(out, "{seconds}s"),
            Length::Ops(ops) => write!(out, "{ops}"),
        }
    }
}

/// One operation, repeated.
type Step = Box<dyn FnMut(u64) -> io::Result<()> + Send>;

/// A load: how to prepare it and how many operations share one look at the clock.
struct Load {
    name: &'static str,
    about: &'static str,
    batch: u64,
    /// Takes its directory and how many operations are going to be asked for (`u64::MAX`: unknown).
    prepare: fn(&Path, u64) -> io::Result<Step>,
}

/// The file in a worker's directory that is synced after the last operation, if there is one.
const DATA: &str = "data";

const BLOCK: usize = 4096;
const FILE_BLOCKS: u64 = 1024;
const LARGE: usize = 1 << 20;

/// Every load, by name. Batches keep the clock's own cost (some 30 ns) out of sub-microsecond
/// operations; loads with a batch of 1 show true per-operation tails.
const LOADS: &[Load] = &[
    Load { name: "ocrd", about: "create, rename, unlink one file", batch: 1, prepare: ocrd },
    Load {
        name: "cwru",
        about: "create, write 4 KiB, rename, unlink one file",
        batch: 1,
        prepare: cwru,
    },
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
    Load { name: "create", about: "make a file of 4 KiB", batch: 1, prepare: create },
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
    Load { name: "seqwrite", about: "write the next 4 KiB", batch: 1, prepare: stream::buffered },
    Load {
        name: "seqwrite-direct",
        about: "write the next 4 KiB with O_DIRECT",
        batch: 1,
        prepare: stream::direct,
    },
    Load { name: "randwrite", about: "write 4 KiB anywhere", batch: 1, prepare: stream::random },
    Load { name: "streamwrite", about: "write the next 1 MiB", batch: 1, prepare: stream::large },
    Load {
        name: "varmail",
        about: "Filebench's mail server, one round of 13 operations",
        batch: 1,
        prepare: filebench::varmail,
    },
    Load {
        name: "fileserver",
        about: "Filebench's file server, one round of 11 operations",
        batch: 1,
        prepare: filebench::fileserver,
    },
    Load {
        name: "fileserver-small",
        about: "the same on a tenth of the files",
        batch: 1,
        prepare: filebench::small_fileserver,
    },
    Load {
        name: "webserver",
        about: "Filebench's web server, one round of 31 operations",
        batch: 1,
        prepare: filebench::webserver,
    },
    Load {
        name: "unpack",
        about: "make a small file as tar does",
        batch: 1,
        prepare: tree::unpack,
    },
    Load {
        name: "remove",
        about: "remove a small file as rm -r does",
        batch: 1,
        prepare: tree::remove,
    },
];

/// Loads of small syncs.
const SYNCED: &[Synced] = &[
    Synced::fresh("sync-lap", "overwrite 60 KiB, fsync", synced::lap),
    Synced::fresh("sync-append-fresh", "append 1 KiB, fdatasync", synced::append),
    Synced::past_lap("sync-append", "the same, past the journal's first lap", synced::append, 1),
    Synced::past_lap("sync-append-2", "the same by 2 threads", synced::append, 2),
    Synced::past_lap("sync-append-8", "the same by 8 threads", synced::append, 8),
    Synced::past_lap("sync-append-64", "the same by 64 threads", synced::append, 64),
    Synced::fresh("sync-overwrite-fresh", "overwrite 8 KiB, fdatasync", synced::overwrite),
    Synced::past_lap("sync-overwrite", "the same past the lap", synced::overwrite, 1),
    Synced::fresh("sync-publish-fresh", "write, sync, rename, sync the name", synced::publish),
    Synced::past_lap("sync-publish", "the same past the lap", synced::publish, 1),
];

/// Syncs of 60 KiB that take a journal of 64 MiB past its first lap.
const LAP_SYNCS: u64 = 1200;

/// A load of small syncs.
struct Synced {
    load: Load,
    /// Threads that do it; where there are several each has a directory of its own.
    threads: usize,
    /// Whether the file system's journal is taken past its first lap before.
    past_lap: bool,
}

impl Synced {
    const fn fresh(
        name: &'static str,
        about: &'static str,
        prepare: fn(&Path, u64) -> io::Result<Step>,
    ) -> Synced {
        Synced { load: Load { name, about, batch: 1, prepare }, threads: 1, past_lap: false }
    }

    const fn past_lap(
        name: &'static str,
        about: &'static str,
        prepare: fn(&Path, u64) -> io::Result<Step>,
        threads: usize,
    ) -> Synced {
        Synced { load: Load { name, about, batch: 1, prepare }, threads, past_lap: true }
    }
}

/// Names and one-line descriptions of all loads.
pub fn loads() -> impl Iterator<Item = (&'static str, &'static str)> {
    LOADS.iter().chain(SYNCED.iter().map(|it| &it.load)).map(|load| (load.name, load.about))
}

/// Runs load `name` in `dir`, speaking with the bench over standard input and output.
///
/// # Errors
/// There is no such load, or one of its calls failed.
pub fn main(name: &str, dir: &Path, length: Length) -> anyhow::Result<()> {
    if name == limits::LOAD {
        return limits::work(dir, length);
    }
    if name == bfs::LOAD {
        return bfs::work(dir, length);
    }
    if let Some(load) = name.strip_prefix(libcephfs::PREFIX) {
        return libcephfs::work(load, dir, length);
    }
    let synced = SYNCED.iter().find(|it| it.load.name == name);
    let load = synced.map(|it| &it.load).or_else(|| LOADS.iter().find(|load| load.name == name));
    let load = load.ok_or_else(|| anyhow::anyhow!("load '{name}' does not exist"))?;
    let threads = synced.map_or(1, |it| it.threads);
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    fs::create_dir_all(dir)?;
    let ops = match length {
        Length::Seconds(_) => u64::MAX,
        Length::Ops(ops) => ops,
    };
    if synced.is_some_and(|it| it.past_lap) {
        let dir = dir.join("lap");
        fs::create_dir(&dir)?;
        run(&mut synced::lap(&dir, LAP_SYNCS)?, 1, Length::Ops(LAP_SYNCS))?;
    }
    let steps = prepare(load, dir, ops, threads)?;
    speak(steps, load.batch, length, || match (length, File::open(dir.join(DATA))) {
        (Length::Ops(_), Ok(data)) => data.sync_all(),
        _ => Ok(()),
    })?;
    Ok(fs::remove_dir_all(dir)?)
}

/// Works when the bench says so, and tells it what was done; returns when room may be made.
/// `settle`: makes all durable, where a load looks at that.
fn speak(
    mut steps: Vec<Step>,
    batch: u64,
    length: Length,
    settle: impl FnOnce() -> io::Result<()>,
) -> anyhow::Result<()> {
    if let Length::Seconds(_) = length {
        run_together(&mut steps, batch, Length::Seconds(0.05))?;
    }
    println!("ready");
    io::stdout().flush()?;
    io::stdin().lock().read_line(&mut String::new())?;
    let mut outcome = run_together(&mut steps, batch, length)?;
    drop(steps);
    if let Length::Ops(_) = length {
        let begin = Instant::now();
        settle()?;
        outcome.settle_seconds = begin.elapsed().as_secs_f64();
    }
    println!("{}", serde_json::to_string(&outcome)?);
    // The bench says when all tenants are done: only then may room be made.
    io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}

/// A load's steps, one for each thread.
fn prepare(load: &Load, dir: &Path, ops: u64, threads: usize) -> io::Result<Vec<Step>> {
    if threads == 1 {
        return Ok(vec![(load.prepare)(dir, ops)?]);
    }
    let own = |number: usize| {
        let dir = dir.join(number.to_string());
        fs::create_dir(&dir)?;
        (load.prepare)(&dir, ops)
    };
    (0..threads).map(own).collect()
}

/// Runs each step by a thread of its own; the first one's by this thread if there is one.
fn run_together(steps: &mut [Step], batch: u64, length: Length) -> io::Result<Outcome> {
    let ran = match steps {
        [step] => vec![run(step, batch, length)?],
        steps => std::thread::scope(|scope| {
            let start = |step| scope.spawn(move || run(step, batch, length));
            let threads: Vec<_> = steps.iter_mut().map(start).collect();
            let ran = threads.into_iter().map(|it| it.join().expect("a thread does not panic"));
            ran.collect::<io::Result<Vec<_>>>()
        })?,
    };
    let mut all = Histogram::default();
    ran.iter().for_each(|ran| all.merge(&ran.histogram));
    let ops = ran.iter().map(|ran| ran.ops).sum();
    let seconds = ran.iter().map(|ran| ran.seconds).fold(0.0, f64::max);
    Ok(Outcome { ops, seconds, latency: all.summary(), ..Outcome::default() })
}

/// What a thread did.
struct Ran {
    ops: u64,
    seconds: f64,
    histogram: Histogram,
}

fn run(step: &mut Step, batch: u64, length: Length) -> io::Result<Ran> {
    let (time, most) = match length {
        Length::Seconds(seconds) => (Duration::from_secs_f64(seconds), u64::MAX),
        Length::Ops(ops) => (Duration::MAX, ops),
    };
    let mut histogram = Histogram::default();
    let start = Instant::now();
    let mut before = start;
    let mut ops = 0;
    while before - start < time && ops < most {
        for index in ops..ops + batch {
            step(index)?;
        }
        ops += batch;
        let after = Instant::now();
        histogram.record((after - before).as_nanos() as u64 / batch, batch);
        before = after;
    }
    let seconds = (before - start).as_secs_f64();
    Ok(Ran { ops, seconds, histogram })
}

/// MultiLanes' metadata benchmark: one transaction creates, renames and unlinks one file.
fn ocrd(dir: &Path, _: u64) -> io::Result<Step> {
    let (old, new) = (dir.join("old"), dir.join("new"));
    Ok(Box::new(move |_| {
        drop(OpenOptions::new().write(true).create_new(true).open(&old)?);
        fs::rename(&old, &new)?;
        fs::remove_file(&new)
    }))
}

/// The same with data: what a program does that replaces a file's content and is done with it.
fn cwru(dir: &Path, _: u64) -> io::Result<Step> {
    let (old, new) = (dir.join("old"), dir.join("new"));
    let data = vec![0x5a; BLOCK];
    Ok(Box::new(move |_| {
        let file = OpenOptions::new().write(true).create_new(true).open(&old)?;
        file.write_all_at(&data, 0)?;
        drop(file);
        fs::rename(&old, &new)?;
        fs::remove_file(&new)
    }))
}

/// Files between their creation and their renaming, and between that and their end.
const SPREAD: u64 = 32;

/// The same work on files that live for 64 transactions: nothing that a transaction does undoes
/// what it did.
fn ocrd_spread(dir: &Path, _: u64) -> io::Result<Step> {
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
    let path = dir.join(DATA);
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

fn read_4k(dir: &Path, _: u64) -> io::Result<Step> {
    let (_, file) = filled(dir, FILE_BLOCKS * BLOCK as u64)?;
    let mut buffer = [0; BLOCK];
    Ok(Box::new(move |index| file.read_exact_at(&mut buffer, scattered(index))))
}

fn write_4k(dir: &Path, _: u64) -> io::Result<Step> {
    let (_, file) = filled(dir, FILE_BLOCKS * BLOCK as u64)?;
    let buffer = [1; BLOCK];
    Ok(Box::new(move |index| file.write_all_at(&buffer, scattered(index))))
}

fn stat(dir: &Path, _: u64) -> io::Result<Step> {
    let (path, _) = filled(dir, BLOCK as u64)?;
    Ok(Box::new(move |_| fs::metadata(&path).map(drop)))
}

fn fstat(dir: &Path, _: u64) -> io::Result<Step> {
    let (_, file) = filled(dir, BLOCK as u64)?;
    Ok(Box::new(move |_| file.metadata().map(drop)))
}

/// Files that are made, written and closed; they stay until the end.
fn create(dir: &Path, _: u64) -> io::Result<Step> {
    let (dir, data, mut number) = (dir.to_path_buf(), [7; BLOCK], 0_u64);
    Ok(Box::new(move |_| {
        number += 1;
        let path = dir.join(format!("new-{number}"));
        OpenOptions::new().write(true).create_new(true).open(path)?.write_all_at(&data, 0)
    }))
}

fn open_close(dir: &Path, _: u64) -> io::Result<Step> {
    let (path, _) = filled(dir, BLOCK as u64)?;
    Ok(Box::new(move |_| File::open(&path).map(drop)))
}

fn seqread(dir: &Path, _: u64) -> io::Result<Step> {
    let (_, file) = filled(dir, 64 * LARGE as u64)?;
    let mut buffer = vec![0; LARGE];
    Ok(Box::new(move |index| file.read_exact_at(&mut buffer, index % 64 * LARGE as u64)))
}

fn fileio(dir: &Path, _: u64) -> io::Result<Step> {
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
fn flood(dir: &Path, _: u64) -> io::Result<Step> {
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
fn transact(dir: &Path, _: u64) -> io::Result<Step> {
    let (temporary, published) = (dir.join("record.tmp"), dir.join("record"));
    let block = [3; BLOCK];
    Ok(Box::new(move |_| {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&temporary)?;
        file.write_all_at(&block, 0)?;
        file.sync_all()?;
        fs::rename(&temporary, &published)
    }))
}
