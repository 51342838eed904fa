//! Random operations on the whole VFS beside the reference on the model file system.
//!
//! Three stacks: on `memfs` (no page cache), on the model (with a page cache that is always full), on a
//! host directory. `POLYLANE_SEED` runs that seed alone, `POLYLANE_STEPS` sets the number of steps. A
//! failure prints its seed and the shrunken steps: they become a named case below.

use polylane_base::TestClock;
use polylane_testkit::driver::{self, Bench, Exact, compare_trees};
use polylane_testkit::fs_suite::{self, Can};
use polylane_testkit::model::Model;
use polylane_testkit::ops::{Limits, Op, Step};
use polylane_testkit::reference::Reference;
use polylane_testkit::subject::{Subject, VfsSubject, small_options};
use polylane_vfs::fs::{FileSystem, Kind};
use polylane_vfs::hostdir::HostDir;
use polylane_vfs::memfs::MemFs;
use std::sync::Arc;

const SEEDS: std::ops::Range<u64> = 1..9;
const STEPS: usize = 1500;

fn clock() -> Arc<TestClock> {
    Arc::new(TestClock::default())
}

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The fixed seeds and two that were never tried.
fn run(bench: &Bench<'_>) {
    let steps = env("POLYLANE_STEPS").map_or(STEPS, |steps| steps as usize);
    if let Some(seed) = env("POLYLANE_SEED") {
        return driver::run_seed(bench, seed, steps);
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let new = now.as_nanos() as u64;
    for seed in SEEDS.chain([new, new + 1]) {
        driver::run_seed(bench, seed, steps);
    }
}

fn nothing_more(_: Box<dyn Subject>, _: &mut Reference, _: Exact) {}

fn on_memfs() -> Box<dyn Subject> {
    let fs = Arc::new(MemFs::new(1 << 40, 1 << 20, clock()));
    Box::new(VfsSubject::new(fs, small_options(clock(), 1 << 20)))
}

fn memfs_bench() -> Bench<'static> {
    Bench {
        name: "memfs",
        exact: Exact::ALL,
        limits: Limits::default(),
        make: &on_memfs,
        finish: &nothing_more,
    }
}

#[test]
fn the_model_itself_conforms() {
    let mut make = || Arc::new(Model::new(clock())) as Arc<dyn FileSystem>;
    fs_suite::run(Can::ALL, &mut make);
}

#[test]
fn memfs_is_as_the_reference() {
    run(&memfs_bench());
}
