//! Random operations through the VFS and its page cache, beside the reference; in between the image
//! is closed and opened again, and e2fsck has the last word.
//!
//! `POLYLANE_SEED` runs that seed alone, `POLYLANE_STEPS` sets the number of steps. A failure
//! prints its seed and the shrunken steps.

use std::sync::{Arc, OnceLock};

use polylane_base::{Errno, TestClock};
use polylane_block::ram::RamDevice;
use polylane_ext4::Ext4;
use polylane_testkit::driver::{self, Bench, Exact, compare_trees};
use polylane_testkit::ops::{Generator, Limits, Op, Step};
use polylane_testkit::reference::Reference;
use polylane_testkit::subject::{Outcome, Subject, Value, VfsSubject, small_options};
use polylane_vfs::OpCtx;
use polylane_vfs::cached::Mode;
use polylane_vfs::fs::{FileSystem, Kind};

use crate::common;

const SEEDS: std::ops::Range<u64> = 1..5;
const STEPS: usize = 4000;
/// Steps between two openings of one image.
const STEPS_PER_ROUND: usize = 500;
const ROUNDS: usize = 6;
/// Open files that generated steps use.
const SLOTS: u8 = 4;
/// 64 pages of cache below files of up to 100: everything is evicted all the time.
const CACHE_BYTES: u64 = 64 * 4096;

/// An ext3: its files have block maps, which know no allocation without writing.
const EXT3: &[&str] = &["-t", "ext3", "-b", "4096", "-m", "0"];

/// An image, the file system on it and a VFS on that, with a cache in between if so.
struct Stack {
    args: &'static [&'static str],
    cache: Option<Mode>,
    device: Arc<RamDevice>,
    fs: Arc<Ext4>,
    subject: Option<VfsSubject>,
}

impl Stack {
    fn new(args: &'static [&'static str]) -> Stack {
        Stack::cached(args, None)
    }

    fn cached(args: &'static [&'static str], cache: Option<Mode>) -> Stack {
        static LANE: OnceLock<Vec<u8>> = OnceLock::new();
        static MAPS: OnceLock<Vec<u8>> = OnceLock::new();
        let image = if args == EXT3 { &MAPS } else { &LANE };
        let image = image.get_or_init(|| common::image(24, args));
        let mut stack = Stack::open(common::load(image), args, cache);
        assert_eq!(stack.root(Op::Rmdir { path: "/lost+found".into() }), Ok(Value::Done));
        stack
    }

    fn open(device: Arc<RamDevice>, args: &'static [&'static str], cache: Option<Mode>) -> Stack {
        let fs = common::open(&device);
        let options = small_options(Arc::new(TestClock::default()), CACHE_BYTES);
        let above = match cache {
            Some(mode) => common::cached(fs.clone(), mode, &options),
            None => fs.clone(),
        };
        let subject = Some(VfsSubject::new(above, options));
        Stack { args, cache, device, fs, subject }
    }

    /// Closes the image; it is clean.
    fn close(mut self) -> Arc<RamDevice> {
        drop(self.subject.take());
        self.fs.close().expect("closes");
        assert_eq!(common::complaints(&self.device), None);
        self.device
    }

    fn reopened(self) -> Stack {
        let (args, cache) = (self.args, self.cache);
        Stack::open(self.close(), args, cache)
    }

    fn root(&mut self, op: Op) -> Outcome {
        self.apply(&Step { who: 0, op })
    }

    fn remove_below(&mut self, dir: &str) {
        let Ok(Value::Names(names)) = self.root(Op::List { path: format!("{dir}/") }) else {
            panic!("{dir}/ cannot be listed");
        };
        for (name, kind) in names {
            let path = format!("{dir}/{}", String::from_utf8(name).expect("generated"));
            if kind == Kind::Dir {
                self.remove_below(&path);
            }
            let gone = self.root(match kind {
                Kind::Dir => Op::Rmdir { path },
                _ => Op::Unlink { path },
            });
            assert_eq!(gone, Ok(Value::Done));
        }
    }
}

impl Subject for Stack {
    fn apply(&mut self, step: &Step) -> Outcome {
        self.subject.as_mut().expect("open").apply(step)
    }
}

/// Everything must be on the image, and everything removed must be free again.
fn finish(stack: Stack, reference: &mut Reference, exact: Exact) {
    let mut stack = stack.reopened();
    if let Err(difference) = compare_trees(exact, reference, &mut stack) {
        panic!("after opening again: {difference}");
    }
    stack.remove_below("");
    let stack = stack.reopened();
    let (left, unused) =
        (stack.fs.statfs(&OpCtx::service()), Stack::new(stack.args).fs.statfs(&OpCtx::service()));
    let free = |totals: polylane_base::Result<polylane_vfs::fs::StatFs>| {
        totals.map(|totals| (totals.bfree, totals.ffree))
    };
    assert_eq!(free(left), free(unused), "space was lost");
}

fn seeds() -> Vec<u64> {
    match std::env::var("POLYLANE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => vec![seed],
        None => SEEDS.collect(),
    }
}

fn steps(usual: usize) -> usize {
    std::env::var("POLYLANE_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(usual)
}

#[test]
fn ext4_is_as_the_reference() {
    if !common::have_tools() {
        return;
    }
    let bench = Bench {
        name: "ext4",
        exact: Exact::ALL,
        limits: Limits::default(),
        make: &|| Stack::new(common::LANE),
        finish: &finish,
    };
    for seed in seeds() {
        if let Err(difference) = driver::run_seed(&bench, seed, steps(STEPS)) {
            panic!("{difference}");
        }
    }
}

#[test]
fn ext4_in_a_cache_is_as_the_reference() {
    if !common::have_tools() {
        return;
    }
    for mode in [Mode::WriteBack, Mode::WriteThrough] {
        let bench = Bench {
            name: &format!("ext4, {mode:?}"),
            exact: Exact::ALL,
            limits: Limits::default(),
            make: &|| Stack::cached(common::LANE, Some(mode)),
            finish: &finish,
        };
        for seed in seeds() {
            if let Err(difference) = driver::run_seed(&bench, seed, steps(STEPS)) {
                panic!("{difference}");
            }
        }
    }
}

#[test]
fn ext3_is_as_the_reference() {
    if !common::have_tools() {
        return;
    }
    let bench = Bench {
        name: "ext3",
        exact: Exact::ALL,
        limits: Limits { no_fallocate: true, ..Limits::default() },
        make: &|| Stack::new(EXT3),
        finish: &finish,
    };
    for seed in seeds() {
        if let Err(difference) = driver::run_seed(&bench, seed, steps(STEPS)) {
            panic!("{difference}");
        }
    }
}

/// One image, opened many times while the reference goes on.
#[test]
fn a_tree_is_the_same_after_opening_again() {
    if !common::have_tools() {
        return;
    }
    for seed in seeds() {
        let mut reference = Reference::new(Arc::new(TestClock::default()));
        let mut stack = Stack::new(common::LANE);
        let mut generator = Generator::new(seed, Limits::default());
        for round in 0..ROUNDS {
            for number in 0..steps(STEPS_PER_ROUND) {
                let step = generator.step();
                let expected = reference.apply(&step);
                let got = stack.apply(&step);
                assert_eq!(got, expected, "seed {seed}, round {round}, step {number} {step:?}");
            }
            for slot in 0..SLOTS {
                let close = Step { who: 0, op: Op::Close { slot } };
                assert_eq!(stack.apply(&close), reference.apply(&close));
            }
            stack = stack.reopened();
            if let Err(difference) = compare_trees(Exact::ALL, &mut reference, &mut stack) {
                panic!("seed {seed}, round {round}: {difference}");
            }
        }
    }
}

/// Operations on a file system that is nearly always full: whatever fails, nothing is lost.
#[test]
fn a_full_file_system_loses_no_space() {
    if !common::have_tools() {
        return;
    }
    let both = |seed| [(common::LANE, seed), (EXT3, seed)];
    for (args, seed) in seeds().into_iter().flat_map(both) {
        let stack = Stack::new(args);
        let root = stack.fs.root().expect("root").ino;
        // All but some 30 blocks go to one file.
        let new = polylane_testkit::fs_suite::node(Kind::File, 0o600);
        let hog = stack
            .fs
            .create(&OpCtx::service(), root, b"hog", &new)
            .expect("room for a name")
            .node
            .ino;
        let free = stack.fs.statfs(&OpCtx::service()).expect("totals").bavail;
        let bytes = vec![7; (free as usize - 30) * 4096];
        assert_eq!(stack.fs.write(&OpCtx::service(), hog, 0, &mut &bytes[..]), Ok(bytes.len()));
        let mut stack = stack.reopened();
        let mut generator = Generator::new(seed, Limits::default());
        let mut full = 0;
        for _ in 0..STEPS {
            full += u32::from(stack.apply(&generator.step()) == Err(Errno::ENOSPC.into()));
        }
        assert!(full > 10, "seed {seed} filled it {full} times only");
        let mut stack = stack.reopened();
        stack.remove_below("");
        let stack = stack.reopened();
        let (left, unused) =
            (stack.fs.statfs(&OpCtx::service()), Stack::new(args).fs.statfs(&OpCtx::service()));
        assert_eq!(left.map(|s| (s.bfree, s.ffree)), unused.map(|s| (s.bfree, s.ffree)));
    }
}
