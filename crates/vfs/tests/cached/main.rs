//! The cache libservice over others: what every file system must do, random operations beside the
//! reference with it and without it, failures below, changes by others, answers that come late,
//! what reaches what lies below and when.
//!
//! `POLYLANE_SEED` runs that seed alone.

mod below;
mod beside;
mod failures;
mod order;

use std::sync::Arc;
use std::time::Duration;

use polylane_base::{Clock, SystemClock, TestClock};
use polylane_testkit::driver::{self, Bench, Exact, compare_trees};
use polylane_testkit::fs_suite::{self, Can};
use polylane_testkit::model::Model;
use polylane_testkit::ops::{Limits, Step};
use polylane_testkit::probe;
use polylane_testkit::reference::Reference;
use polylane_testkit::subject::{Outcome, Subject, VfsSubject, small_options};
use polylane_vfs::cached::{Cached, Mode, Settings};
use polylane_vfs::fs::FileSystem;
use polylane_vfs::hostdir::HostDir;
use polylane_vfs::memfs::MemFs;

const MODES: [Mode; 2] = [Mode::WriteBack, Mode::WriteThrough];
/// 64 pages below files of up to 100: everything is evicted all the time.
const CACHE_BYTES: u64 = 64 * 4096;
const SEEDS: std::ops::Range<u64> = 1..5;
const STEPS: usize = 3000;
/// A step on the host costs system calls.
const HOST_STEPS: usize = 1000;

type Fs = Arc<dyn FileSystem>;

fn clock() -> Arc<TestClock> {
    Arc::new(TestClock::default())
}

fn settings(mode: Mode, clock: Arc<dyn Clock>) -> Settings {
    Settings {
        mode,
        bytes_limit: CACHE_BYTES,
        dirty_bytes_limit: CACHE_BYTES / 2,
        flush_interval: Duration::from_millis(20),
        clock,
    }
}

/// What is below, in a cache of `mode`; `None`: as it is.
fn cached(below: &Fs, mode: Option<Mode>, clock: Arc<dyn Clock>) -> Fs {
    match mode {
        Some(mode) => Arc::new(Cached::new(below.clone(), settings(mode, clock)).unwrap()),
        None => below.clone(),
    }
}

fn memfs() -> Fs {
    Arc::new(MemFs::new(1 << 40, 1 << 20, clock()))
}

fn model() -> Fs {
    model_by(clock())
}

fn model_by(clock: Arc<TestClock>) -> Fs {
    Arc::new(Model::new(clock))
}

/// Directories of the host, each its own.
struct Hosts {
    dir: tempfile::TempDir,
    count: std::cell::Cell<usize>,
}

impl Hosts {
    fn new() -> Hosts {
        Hosts { dir: tempfile::tempdir().unwrap(), count: std::cell::Cell::new(0) }
    }

    fn next(&self) -> Fs {
        self.count.set(self.count.get() + 1);
        let path = self.dir.path().join(self.count.get().to_string());
        std::fs::create_dir(&path).unwrap();
        let file = std::fs::File::open(path).unwrap();
        Arc::new(HostDir::with_descriptors(file.into(), 32).unwrap())
    }
}

#[test]
fn a_cache_over_memory_conforms() {
    for mode in MODES {
        let clock = clock();
        let memfs = || Arc::new(MemFs::new(1 << 40, 1 << 20, clock.clone())) as Fs;
        fs_suite::run(Can::ALL, &mut || cached(&memfs(), Some(mode), clock.clone()));
        let model = || model_by(clock.clone());
        fs_suite::run(Can::ALL, &mut || cached(&model(), Some(mode), clock.clone()));
    }
}

#[test]
fn a_cache_over_a_cache_conforms() {
    for (upper, lower) in [(MODES[0], MODES[1]), (MODES[1], MODES[0])] {
        let clock = clock();
        let one = || cached(&model_by(clock.clone()), Some(lower), clock.clone());
        fs_suite::run(Can::ALL, &mut || cached(&one(), Some(upper), clock.clone()));
    }
}

#[test]
fn a_cache_over_a_host_directory_conforms() {
    let hosts = Hosts::new();
    let can = probe::host(hosts.dir.path());
    for mode in MODES {
        let mut make = || cached(&hosts.next(), Some(mode), Arc::new(SystemClock));
        fs_suite::run(can, &mut make);
    }
}

/// A subject together with the file system below the cache.
struct Stack {
    subject: VfsSubject,
    below: Fs,
}

impl Stack {
    fn new(below: Fs, mode: Option<Mode>, clock: Arc<dyn Clock>) -> Stack {
        let fs = cached(&below, mode, clock.clone());
        let subject = VfsSubject::new(fs, small_options(clock, CACHE_BYTES));
        Stack { subject, below }
    }
}

impl Subject for Stack {
    fn apply(&mut self, step: &Step) -> Outcome {
        self.subject.apply(step)
    }
}

/// Everything must have reached what is below.
fn finish(stack: Stack, reference: &mut Reference, exact: Exact) {
    let Stack { subject, below } = stack;
    drop(subject);
    let mut without = VfsSubject::new(below, small_options(clock(), CACHE_BYTES));
    if let Err(difference) = compare_trees(exact, reference, &mut without) {
        panic!("below the cache, at the end: {difference}");
    }
}

/// The same random steps with each kind of cache and without one.
fn run(name: &str, (exact, limits): (Exact, Limits), steps: usize, make: &dyn Fn() -> Fs) {
    let seeds: Vec<u64> = match std::env::var("POLYLANE_SEED").ok().and_then(|s| s.parse().ok()) {
        Some(seed) => vec![seed],
        None => SEEDS.collect(),
    };
    for mode in [None, Some(Mode::WriteBack), Some(Mode::WriteThrough)] {
        let make = || {
            let below = make();
            let clock: Arc<dyn Clock> = match below.character().volatile {
                true => Arc::new(SystemClock),
                false => clock(),
            };
            Stack::new(below, mode, clock)
        };
        let name = format!("{name} {mode:?}");
        let bench = Bench { name: &name, exact, limits, make: &make, finish: &finish };
        for seed in &seeds {
            if let Err(difference) = driver::run_seed(&bench, *seed, steps) {
                panic!("{difference}");
            }
        }
    }
}

#[test]
fn a_cache_over_memory_is_as_the_reference() {
    run("model", (Exact::ALL, Limits::default()), STEPS, &model);
    run("memfs", (Exact::ALL, Limits::default()), STEPS, &memfs);
}

#[test]
fn a_cache_over_a_host_directory_is_as_the_reference() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: the first user of the steps is root");
        return;
    }
    let hosts = Hosts::new();
    let limits = probe::limits(probe::host(hosts.dir.path()));
    let dir_links = probe::counts_directories(hosts.dir.path());
    let exact = Exact { holes: false, times: false, dir_links, leaving: true };
    run("hostdir", (exact, limits), HOST_STEPS, &|| hosts.next());
}
