//! Random operations on a union beside the reference. What begins in one memfs goes on in a union
//! over it, then in a union over that union, each opened again and again.
//!
//! `POLYLANE_SEED` runs that seed alone.

use polylane_base::TestClock;
use polylane_testkit::driver::{Exact, compare_trees};
use polylane_testkit::fault::Faulty;
use polylane_testkit::ops::{Generator, Limits, Op, Step};
use polylane_testkit::reference::Reference;
use polylane_testkit::subject::{
    Failure, Outcome, State, Subject, Value, VfsSubject, small_options,
};
use polylane_union::{Layer, Union, UpperOn};
use polylane_vfs::cached::{Cached, Mode, Settings};
use polylane_vfs::fs::{FileSystem, Kind};
use polylane_vfs::memfs::MemFs;
use std::sync::Arc;
use std::time::Duration;

const SEEDS: std::ops::Range<u64> = 1..9;
const STEPS_PER_ROUND: usize = 1500;
/// Times that one union is opened.
const ROUNDS: usize = 3;
/// Open files that generated steps use.
const SLOTS: u8 = 4;
/// 64 pages of cache below files of up to 100.
const CACHE_BYTES: u64 = 64 * 4096;
/// Not where holes are, which the lower's are told as data; links of merged directories are 1.
const EXACT: Exact = Exact { holes: false, times: true, dir_links: false, leaving: true };

fn clock() -> Arc<TestClock> {
    Arc::new(TestClock::default())
}

fn memfs() -> Arc<dyn FileSystem> {
    Arc::new(MemFs::new(1 << 40, 1 << 20, clock()))
}

/// Without what the subject need not be exact in.
fn level(outcome: Outcome) -> Outcome {
    outcome.map(|value| match value {
        Value::State(state) if state.kind == Kind::Dir => Value::State(State { nlink: 0, ..state }),
        value => value,
    })
}

fn round(
    what: &str,
    fs: &Arc<dyn FileSystem>,
    generator: &mut Generator,
    reference: &mut Reference,
) {
    let mut subject = VfsSubject::new(fs.clone(), small_options(clock(), CACHE_BYTES));
    if let Err(difference) = compare_trees(EXACT, reference, &mut subject) {
        panic!("{what}, opened: {difference}");
    }
    let close = |slot| Step { who: 0, op: Op::Close { slot } };
    let steps = (0..STEPS_PER_ROUND).map(|_| generator.step());
    let steps: Vec<Step> = steps.chain((0..SLOTS).map(close)).collect();
    for (number, step) in steps.iter().enumerate() {
        let expected = level(reference.apply(step));
        let got = level(subject.apply(step));
        if matches!(step.op, Op::Seek { .. }) && expected != Err(Failure::NoFile) {
            continue;
        }
        assert_eq!(got, expected, "{what}, step {number} {step:?}");
    }
    if let Err(difference) = compare_trees(EXACT, reference, &mut subject) {
        panic!("{what}, at its end: {difference}");
    }
}

fn cached(below: Arc<dyn FileSystem>, mode: Mode) -> Arc<dyn FileSystem> {
    let settings = Settings {
        mode,
        bytes_limit: CACHE_BYTES,
        dirty_bytes_limit: CACHE_BYTES / 2,
        flush_interval: Duration::from_millis(20),
        clock: clock(),
    };
    Arc::new(Cached::new(below, settings).expect("a root"))
}

/// What a union is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    /// Of file systems in memory.
    Usual,
    /// Of uppers that change one name at a time and tell no holes.
    Plain,
    /// Of such as the usual ones in caches, under a cache.
    Cached,
}

fn run(seed: u64, made: Made) {
    let is_plain = made == Made::Plain;
    let limits = Limits {
        no_whiteouts: true,
        no_exchanges: is_plain,
        no_fallocate: is_plain,
        no_unnamed: is_plain,
        ..Limits::default()
    };
    let mut generator = Generator::new(seed, limits);
    let mut reference = Reference::new(clock());
    let mut lower = memfs();
    let open_up = Step { who: 0, op: Op::Chmod { path: "/".into(), perm: 0o777 } };
    let mut first = VfsSubject::new(lower.clone(), small_options(clock(), CACHE_BYTES));
    assert_eq!(first.apply(&open_up), reference.apply(&open_up));
    drop(first);
    round(&format!("seed {seed}, memfs"), &lower, &mut generator, &mut reference);
    for depth in 1..3 {
        let upper = if is_plain { Faulty::plain(memfs()) } else { memfs() };
        for time in 0..ROUNDS {
            let (mut below, mut above) = (lower.clone(), upper.clone());
            if made == Made::Cached {
                below = cached(below, Mode::WriteBack);
                above = cached(above, Mode::WriteThrough);
            }
            let lowers = vec![Layer::new(below).expect("a root")];
            let union = Union::open(lowers, Some(UpperOn::new(above))).expect("opens");
            let mut fs: Arc<dyn FileSystem> = Arc::new(union);
            if made == Made::Cached {
                fs = cached(fs, Mode::WriteBack);
            }
            let what = format!("seed {seed}, union {depth}, opened {time} times");
            round(&what, &fs, &mut generator, &mut reference);
        }
        let lowers = vec![Layer::new(lower).expect("a root")];
        lower = Arc::new(Union::open(lowers, Some(UpperOn::new(upper))).expect("opens"));
    }
}

/// Runs every seed, or the one that was asked for.
fn run_all(made: Made) {
    match std::env::var("POLYLANE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => run(seed, made),
        None => SEEDS.for_each(|seed| run(seed, made)),
    }
}

#[test]
fn a_union_is_as_the_reference() {
    run_all(Made::Usual);
}

#[test]
fn a_union_on_what_changes_one_name_at_a_time_is_as_the_reference() {
    run_all(Made::Plain);
}

#[test]
fn a_union_with_caches_is_as_the_reference() {
    run_all(Made::Cached);
}
