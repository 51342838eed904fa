//! Random operations on a union beside the reference. What begins in one memfs goes on in a union
//! over it, then in a union over that union, each opened again and again. A union over two layers
//! begins as these are merged by a few lines here.
//!
//! `POLYLANE_SEED` runs that seed alone.

use polylane_base::rng::Rng;
use polylane_base::{Gid, Ino, TestClock, Uid};
use polylane_testkit::driver::{Exact, compare_trees};
use polylane_testkit::fault::Faulty;
use polylane_testkit::model::Model;
use polylane_testkit::ops::{Generator, Limits, Op, Step, USERS};
use polylane_testkit::reference::Reference;
use polylane_testkit::subject::{
    Failure, Outcome, State, Subject, Value, VfsSubject, pattern, small_options,
};
use polylane_union::{Layer, Union, UpperOn};
use polylane_vfs::OpCtx;
use polylane_vfs::cached::{Cached, Mode, Settings};
use polylane_vfs::fs::{Attr, DirEntry, FileSystem, Kind, NewNode, SetAttr, XattrMode};
use polylane_vfs::memfs::MemFs;
use std::collections::BTreeSet;
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
fn with_seeds(run: impl Fn(u64)) {
    match std::env::var("POLYLANE_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => run(seed),
        None => SEEDS.for_each(run),
    }
}

fn run_all(made: Made) {
    with_seeds(|seed| run(seed, made));
}

/// Fills a directory with what the generator's steps know by name; names of two layers are of the
/// same kind, or not.
fn grow(fs: &Model, dir: Ino, depth: u32, rng: &mut Rng) {
    let ctx = &OpCtx::service();
    for name in ["a", "b", "c", "d", "e"] {
        let kind = match rng.below(8) {
            0 | 1 => continue,
            2..5 if depth < 3 => Kind::Dir,
            5 => Kind::Symlink,
            6 => Kind::Fifo,
            _ => Kind::File,
        };
        let (uid, gid, _) = USERS[rng.below(3) as usize];
        let perm = *rng.pick(&[0o777, 0o755, 0o700, 0o4751, 0o644]);
        let target: &[u8] = if kind == Kind::Symlink { b"a/c" } else { b"" };
        let new = NewNode { uid: Uid(uid), gid: Gid(gid), target, ..NewNode::new(kind, perm) };
        let made = fs.create(ctx, dir, name.as_bytes(), &new).expect("room").node.ino;
        match kind {
            Kind::Dir => grow(fs, made, depth + 1, rng),
            Kind::File => {
                let bytes = pattern(rng.below(256) as u8, rng.below(150_000) as usize);
                fs.write(ctx, made, 0, &mut bytes.as_slice()).expect("room");
                let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
                fs.setattr(ctx, made, &set).expect("set");
            }
            _ => continue,
        }
        if rng.below(3) == 0 {
            fs.setxattr(ctx, made, b"user.a", name.as_bytes(), XattrMode::Any).expect("room");
        }
    }
}

/// Makes in `to` what directories of two models are as one: `at` says which of them, the upper one
/// first.
fn merge(at: &[(&Model, Ino)], to: (&Model, Ino)) {
    let ctx = &OpCtx::service();
    let mut names = BTreeSet::new();
    for (fs, dir) in at {
        let mut each = |entry: DirEntry<'_>| {
            names.insert(entry.name.to_vec());
            true
        };
        fs.readdir(ctx, *dir, 0, &mut each).expect("a directory");
    }
    for name in names {
        let found: Vec<(&Model, Attr)> = at
            .iter()
            .filter_map(|(fs, dir)| Some((*fs, fs.lookup(ctx, *dir, &name).ok()?)))
            .collect();
        let (fs, attr) = found[0];
        let target = match attr.kind {
            Kind::Symlink => fs.readlink(ctx, attr.ino).expect("a link"),
            _ => Vec::new(),
        };
        let new = NewNode {
            uid: attr.uid,
            gid: attr.gid,
            target: &target,
            ..NewNode::new(attr.kind, attr.perm)
        };
        let made = to.0.create(ctx, to.1, &name, &new).expect("room").node.ino;
        if attr.kind == Kind::File {
            let mut bytes = vec![0; attr.size as usize];
            fs.read(ctx, attr.ino, 0, bytes.len(), &mut bytes.as_mut_slice()).expect("reads");
            to.0.write(ctx, made, 0, &mut bytes.as_slice()).expect("room");
            let set = SetAttr { perm: Some(attr.perm), ..SetAttr::default() };
            to.0.setattr(ctx, made, &set).expect("set");
        }
        if let Ok(value) = fs.getxattr(ctx, attr.ino, b"user.a") {
            to.0.setxattr(ctx, made, b"user.a", &value, XattrMode::Any).expect("room");
        }
        let dirs = found.iter().take_while(|(_, attr)| attr.kind == Kind::Dir);
        let dirs: Vec<_> = dirs.map(|(fs, attr)| (*fs, attr.ino)).collect();
        if attr.kind == Kind::Dir {
            merge(&dirs, (to.0, made));
        }
    }
}

/// Two layers with names in common are as their merged trees, from the first lookup on and for all
/// that is done to them.
#[test]
fn a_union_of_two_models_is_as_they_are_merged() {
    with_seeds(|seed| {
        let mut rng = Rng::new(seed);
        let [high, low, both] = [(); 3].map(|()| Model::new(clock()));
        let root = high.root().expect("a root").ino;
        let open = SetAttr { perm: Some(0o777), ..SetAttr::default() };
        for fs in [&high, &low, &both] {
            fs.setattr(&OpCtx::service(), root, &open).expect("set");
        }
        grow(&high, root, 1, &mut rng);
        grow(&low, root, 1, &mut rng);
        merge(&[(&high, root), (&low, root)], (&both, root));
        let mut reference = Reference::on(both);
        let limits = Limits { no_whiteouts: true, ..Limits::default() };
        let mut generator = Generator::new(seed, limits);
        let (high, low, upper) = (Arc::new(high), Arc::new(low), memfs());
        for time in 0..ROUNDS {
            let layer = |fs: &Arc<Model>| Layer::new(fs.clone()).expect("a root");
            let lowers = vec![layer(&high), layer(&low)];
            let union = Union::open(lowers, Some(UpperOn::new(upper.clone()))).expect("opens");
            let fs: Arc<dyn FileSystem> = Arc::new(union);
            let what = format!("seed {seed}, two models, opened {time} times");
            round(&what, &fs, &mut generator, &mut reference);
        }
    });
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
