//! Random operations on the whole VFS beside the reference on the model file system.
//!
//! Three stacks: on `memfs` (no page cache), on the model (with a page cache that is always
//! full), on a host directory. `POLYLANE_SEED` runs that seed alone, `POLYLANE_STEPS` sets the
//! number of steps. A failure prints its seed and the shrunken steps: they become a named case in
//! `cases.rs`.

mod cases;

use polylane_base::{Errno, TestClock};
use polylane_testkit::driver::{self, Bench, Exact, compare_trees};
use polylane_testkit::fs_suite::{self, Can};
use polylane_testkit::kernel::Kernel;
use polylane_testkit::model::Model;
use polylane_testkit::ops::{Generator, Limits, Op, Step, UMASK};
use polylane_testkit::probe;
use polylane_testkit::reference::Reference;
use polylane_testkit::subject::{Subject, VfsSubject, small_options};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind, StatFs};
use polylane_vfs::hostdir::HostDir;
use polylane_vfs::memfs::MemFs;
use std::sync::Arc;

const SEEDS: std::ops::Range<u64> = 1..9;
const STEPS: usize = 8000;
/// A step on the host costs system calls.
const HOST_STEPS: usize = 2000;

fn clock() -> Arc<TestClock> {
    Arc::new(TestClock::default())
}

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The fixed seeds and two that were never tried.
fn run<S: Subject>(bench: &Bench<'_, S>, steps: usize) {
    let steps = env("POLYLANE_STEPS").map_or(steps, |steps| steps as usize);
    if let Some(seed) = env("POLYLANE_SEED") {
        return run_seed(bench, seed, steps);
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let new = now.as_nanos() as u64;
    for seed in SEEDS.chain([new, new + 1]) {
        run_seed(bench, seed, steps);
    }
}

fn run_seed<S: Subject>(bench: &Bench<'_, S>, seed: u64, steps: usize) {
    if let Err(difference) = driver::run_seed(bench, seed, steps) {
        panic!("{difference}");
    }
}

/// A subject together with the file system below it.
struct Stack {
    subject: VfsSubject,
    fs: Arc<dyn FileSystem>,
    unused: StatFs,
    cache_bytes_limit: u64,
}

impl Stack {
    fn new(fs: Arc<dyn FileSystem>, cache_bytes_limit: u64) -> Stack {
        let unused = fs.statfs(&OpCtx::service()).unwrap();
        let options = small_options(clock(), cache_bytes_limit);
        let subject = VfsSubject::new(fs.clone(), options);
        Stack { subject, fs, unused, cache_bytes_limit }
    }

    /// The same file system under a `Vfs` that knows nothing yet.
    fn reopened(self) -> Stack {
        let Stack { subject, fs, unused, cache_bytes_limit } = self;
        drop(subject);
        Stack { unused, ..Stack::new(fs, cache_bytes_limit) }
    }
}

impl Subject for Stack {
    fn apply(&mut self, step: &Step) -> polylane_testkit::subject::Outcome {
        self.subject.apply(step)
    }
}

/// Everything must have reached the file system, and everything removed must be free again.
fn finish(stack: Stack, reference: &mut Reference, exact: Exact) {
    let mut stack = stack.reopened();
    if let Err(difference) = compare_trees(exact, reference, &mut stack) {
        panic!("after opening again: {difference}");
    }
    remove_below(&mut stack, "");
    let (unused, stack_is_shared) = (stack.unused, stack.fs.character().volatile);
    let left = stack.reopened().fs.statfs(&OpCtx::service()).unwrap();
    // A host's totals change under others' hands.
    if !stack_is_shared {
        assert_eq!((left.bfree, left.ffree), (unused.bfree, unused.ffree), "space was lost");
    }
}

fn remove_below(stack: &mut Stack, dir: &str) {
    use polylane_testkit::subject::Value;
    let mut root = |op| stack.apply(&Step { who: 0, op });
    let Ok(Value::Names(names)) = root(Op::List { path: format!("{dir}/") }) else {
        panic!("{dir}/ cannot be listed");
    };
    for (name, kind) in names {
        let path = format!("{dir}/{}", String::from_utf8(name).unwrap());
        if kind == Kind::Dir {
            remove_below(stack, &path);
        }
        let op = match kind {
            Kind::Dir => Op::Rmdir { path },
            _ => Op::Unlink { path },
        };
        let gone = stack.apply(&Step { who: 0, op });
        assert_eq!(gone, Ok(Value::Done));
    }
}

/// A bench of a stack; `make` is called for every run.
fn with_bench(
    name: &str,
    (exact, limits): (Exact, Limits),
    make: &dyn Fn() -> Stack,
    work: &dyn Fn(&Bench<'_, Stack>),
) {
    work(&Bench { name, exact, limits, make, finish: &finish });
}

fn on_memfs(work: &dyn Fn(&Bench<'_, Stack>)) {
    let make = || Stack::new(Arc::new(MemFs::new(1 << 40, 1 << 20, clock())), 1 << 20);
    with_bench("memfs", (Exact::ALL, Limits::default()), &make, work);
}

/// 64 pages of cache below files of up to 100: everything is evicted all the time.
fn on_model(work: &dyn Fn(&Bench<'_, Stack>)) {
    let make = || Stack::new(Arc::new(Model::new(clock())), 64 * 4096);
    with_bench("model", (Exact::ALL, Limits::default()), &make, work);
}

fn on_hostdir(work: &dyn Fn(&Bench<'_, Stack>)) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: the first user of the steps is root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let limits = probe::limits(probe::host(dir.path()));
    let dir_links = probe::counts_directories(dir.path());
    let exact = Exact { holes: false, times: false, dir_links, leaving: true };
    let count = std::cell::Cell::new(0);
    let make = || {
        count.set(count.get() + 1);
        let path = dir.path().join(count.get().to_string());
        std::fs::create_dir(&path).unwrap();
        let fs = HostDir::with_descriptors(std::fs::File::open(path).unwrap().into(), 32).unwrap();
        Stack::new(Arc::new(fs), 64 * 4096)
    };
    with_bench("hostdir", (exact, limits), &make, work);
}

/// A list of steps on every stack.
fn everywhere(steps: &[Step]) {
    let check = |bench: &Bench<'_, Stack>| {
        if let Err(difference) = driver::run(bench, steps) {
            panic!("{}: {difference}", bench.name);
        }
    };
    on_memfs(&check);
    on_model(&check);
    on_hostdir(&|bench| {
        let Limits { root_only, no_fallocate, .. } = bench.limits;
        if !root_only && !no_fallocate {
            check(bench);
        }
    });
}

#[test]
fn the_model_itself_conforms() {
    let mut make = || Arc::new(Model::new(clock())) as Arc<dyn FileSystem>;
    fs_suite::run(Can::ALL, &mut make);
}

#[test]
fn memfs_is_as_the_reference() {
    on_memfs(&|bench| run(bench, STEPS));
}

#[test]
fn the_page_cache_is_as_the_reference() {
    on_model(&|bench| run(bench, STEPS));
}

#[test]
fn hostdir_is_as_the_reference() {
    on_hostdir(&|bench| run(bench, HOST_STEPS));
}

/// Operations on a file system that is always full: whatever fails, no page and no inode is lost.
#[test]
fn a_full_memfs_loses_no_space() {
    for seed in SEEDS {
        let fs = Arc::new(MemFs::new(40 * 4096, 24, clock()));
        let mut stack = Stack::new(fs, 1 << 20);
        let mut generator = Generator::new(seed, Limits::default());
        let mut full = 0;
        for _ in 0..STEPS {
            let outcome = stack.apply(&generator.step());
            full += u32::from(outcome == Err(Errno::ENOSPC.into()));
        }
        assert!(full > 50, "seed {seed} filled it {full} times only");
        let mut stack = stack.reopened();
        remove_below(&mut stack, "");
        let unused = stack.unused;
        let left = stack.reopened().fs.statfs(&OpCtx::service()).unwrap();
        assert_eq!((left.bfree, left.ffree), (unused.bfree, unused.ffree), "seed {seed}");
        assert_eq!((left.bfree, left.ffree), (40, 23));
    }
}

/// The reference is worth nothing if it is not as Linux is.
#[test]
fn linux_is_as_the_reference() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: takes on the users of the steps");
        return;
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(UMASK));
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let count = std::cell::Cell::new(0);
    let make = || {
        count.set(count.get() + 1);
        let path = dir.path().join(count.get().to_string());
        std::fs::create_dir(&path).unwrap();
        Kernel::new(path)
    };
    let can = probe::host(dir.path());
    let dir_links = probe::counts_directories(dir.path());
    let bench = Bench {
        name: "kernel",
        // File systems differ in whether fallocate moves the modification time.
        exact: Exact { holes: false, times: false, dir_links, leaving: false },
        limits: Limits { host: true, no_whiteouts: true, ..probe::limits(can) },
        make: &make,
        finish: &|_, _, _| {},
    };
    run(&bench, HOST_STEPS);
}

/// Forgets one write.
struct Forgetful(Stack);

impl Subject for Forgetful {
    fn apply(&mut self, step: &Step) -> polylane_testkit::subject::Outcome {
        use polylane_testkit::subject::Value;
        match step.op {
            Op::Write { at: Some(at), len: 4096, .. } if at > 4096 => Ok(Value::Offset(at + 4096)),
            _ => self.0.apply(step),
        }
    }
}

#[test]
fn a_lost_write_is_noticed_and_shrunk_to_a_few_steps() {
    let make = || Forgetful(Stack::new(Arc::new(MemFs::new(1 << 40, 1 << 20, clock())), 1 << 20));
    let bench = Bench {
        name: "forgetful",
        exact: Exact::ALL,
        limits: Limits::default(),
        make: &make,
        finish: &|_, _, _| {},
    };
    let text = driver::run_seed(&bench, 1, 3000).unwrap_err();
    assert!(text.matches("Step {").count() < 8, "{text}");
}
