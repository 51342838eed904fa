//! Two subjects side by side: every step on both, answers compared, whole trees compared now and
//! then.
//!
//! A difference (or a panic) is shrunk and printed as the source text of a test case.

use crate::ops::{Generator, Limits, Op, Step, shrink};
use crate::reference::Reference;
use crate::subject::{Failure, Outcome, State, Subject, Value};
use polylane_base::TestClock;
use polylane_vfs::fs::Kind;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Steps between comparisons of whole trees.
const STEPS_PER_TREE: usize = 40;
/// A slot that generated steps do not use.
const TREE_SLOT: u8 = 200;
/// Runs that shrinking may take.
const SHRINK_TRIES: usize = 3000;

/// In what a subject must be exact.
#[derive(Clone, Copy, Debug)]
pub struct Exact {
    /// Where holes are.
    pub holes: bool,
    /// Modification times.
    pub times: bool,
    /// Link counts of directories.
    pub dir_links: bool,
    /// What leaves the lane; otherwise such steps are not asked of the subject.
    pub leaving: bool,
}

impl Exact {
    /// In everything.
    pub const ALL: Exact = Exact { holes: true, times: true, dir_links: true, leaving: true };
}

/// A kind of subject that can be made as often as needed.
pub struct Bench<'a, S> {
    /// For messages.
    pub name: &'a str,
    /// In what it must be exact.
    pub exact: Exact,
    /// What the generator leaves out.
    pub limits: Limits,
    /// Makes a fresh one.
    pub make: &'a dyn Fn() -> S,
    /// A look at the subject after the last step, for what only its maker can check.
    pub finish: &'a dyn Fn(S, &mut Reference, Exact),
}

/// One entry of a tree.
#[derive(PartialEq, Debug)]
struct Leaf {
    state: State,
    content: Outcome,
    xattrs: Vec<(Vec<u8>, Outcome)>,
    /// The first path of this inode in the order of paths.
    first: String,
}

/// Runs generated steps for `seed`.
///
/// # Errors
///
/// The first difference, with a shrunken list of steps.
pub fn run_seed<S: Subject>(bench: &Bench<'_, S>, seed: u64, count: usize) -> Result<(), String> {
    let mut generator = Generator::new(seed, bench.limits);
    let steps: Vec<Step> = (0..count).map(|_| generator.step()).collect();
    let Err(first) = run(bench, &steps) else { return Ok(()) };
    let mut fails = |steps: &[Step]| run(bench, steps).is_err();
    let short = shrink(steps, SHRINK_TRIES, &mut fails);
    let message = run(bench, &short).err().unwrap_or(first);
    let text: String = short.iter().map(|step| format!("    {step:?},\n")).collect();
    Err(format!("{}: seed {seed}, {count} steps: {message}\n[\n{text}]", bench.name))
}

/// Runs a list of steps; the first difference as text.
pub fn run<S: Subject>(bench: &Bench<'_, S>, steps: &[Step]) -> Result<(), String> {
    let run = || {
        let mut reference = Reference::new(Arc::new(TestClock::default()));
        let mut subject = (bench.make)();
        open_up(&mut reference, &mut subject);
        for (i, step) in steps.iter().enumerate() {
            compare(bench.exact, i, step, &mut reference, &mut subject)?;
            if i % STEPS_PER_TREE == STEPS_PER_TREE - 1 {
                compare_trees(bench.exact, &mut reference, &mut subject)?;
            }
        }
        compare_trees(bench.exact, &mut reference, &mut subject)?;
        (bench.finish)(subject, &mut reference, bench.exact);
        Ok(())
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied());
            Err(format!("panic: {}", text.unwrap_or("?")))
        }
    }
}

/// Everybody may create in the root.
fn open_up(reference: &mut Reference, subject: &mut dyn Subject) {
    for op in [
        Op::Chown { path: "/".into(), uid: Some(0), gid: Some(0), follow: true },
        Op::Chmod { path: "/".into(), perm: 0o777 },
    ] {
        let step = Step { who: 0, op };
        // A service that is not root may not chown; the tree comparison starts below the root.
        let _ = (reference.apply(&step), subject.apply(&step));
    }
}

fn compare(
    exact: Exact,
    at: usize,
    step: &Step,
    reference: &mut Reference,
    subject: &mut dyn Subject,
) -> Result<(), String> {
    let expected = level(exact, reference.apply(step));
    if expected == Err(Failure::Leaves) && !exact.leaving {
        return Ok(());
    }
    let got = level(exact, subject.apply(step));
    let inexact = matches!(step.op, Op::Seek { .. }) && !exact.holes;
    if expected == got || inexact {
        return Ok(());
    }
    Err(format!("step {at} {step:?}:\n  expected {}\n  got      {}", brief(&expected), brief(&got)))
}

/// Takes out what the subject need not be exact in.
fn level(exact: Exact, outcome: Outcome) -> Outcome {
    outcome.map(|value| match value {
        Value::State(state) => Value::State(level_state(exact, state)),
        value => value,
    })
}

fn level_state(exact: Exact, state: State) -> State {
    State {
        mtime: state.mtime.filter(|_| exact.times),
        nlink: if state.kind == Kind::Dir && !exact.dir_links { 0 } else { state.nlink },
        ..state
    }
}

/// An outcome in a line: long bytes as length and the runs at their start.
fn brief(outcome: &Outcome) -> String {
    match outcome {
        Ok(Value::Bytes(bytes)) if bytes.len() > 40 => {
            format!("Ok({} bytes, sum {:x}, {:?}…)", bytes.len(), sum(bytes), &bytes[..16])
        }
        outcome => format!("{outcome:?}"),
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, &byte: &u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// Compares all that can be seen of both trees.
///
/// # Errors
///
/// The first path that differs.
pub fn compare_trees(
    exact: Exact,
    reference: &mut dyn Subject,
    subject: &mut dyn Subject,
) -> Result<(), String> {
    let (expected, got) = (tree(exact, reference), tree(exact, subject));
    for (path, leaf) in &expected {
        match got.get(path) {
            Some(found) if found == leaf => {}
            found => return Err(difference(path, Some(leaf), found)),
        }
    }
    match got.iter().find(|(path, _)| !expected.contains_key(*path)) {
        Some((path, leaf)) => Err(difference(path, None, Some(leaf))),
        None => Ok(()),
    }
}

fn difference(path: &str, expected: Option<&Leaf>, got: Option<&Leaf>) -> String {
    let show = |leaf: Option<&Leaf>| match leaf {
        None => "nothing".to_string(),
        Some(leaf) => format!(
            "{:?} {} {:?} first at {}",
            leaf.state,
            brief(&leaf.content),
            leaf.xattrs,
            leaf.first
        ),
    };
    format!("tree at {path}:\n  expected {}\n  got      {}", show(expected), show(got))
}

fn tree(exact: Exact, subject: &mut dyn Subject) -> BTreeMap<String, Leaf> {
    let mut leaves = BTreeMap::new();
    let mut first = BTreeMap::new();
    let mut left = vec![String::new()];
    while let Some(dir) = left.pop() {
        let names = match subject.apply(&root(Op::List { path: format!("{dir}/") })) {
            Ok(Value::Names(names)) => names,
            other => panic!("listing {dir}/: {other:?}"),
        };
        for (name, kind) in names.iter().rev() {
            let path = format!("{dir}/{}", String::from_utf8_lossy(name));
            let leaf = leaf(exact, subject, &path, *kind, &mut first);
            if leaf.state.kind == Kind::Dir {
                left.push(path.clone());
            }
            leaves.insert(path, leaf);
        }
    }
    leaves
}

fn leaf(
    exact: Exact,
    subject: &mut dyn Subject,
    path: &str,
    listed: Kind,
    first: &mut BTreeMap<u64, String>,
) -> Leaf {
    let path = path.to_string();
    let stat = subject.apply(&root(Op::Stat { path: path.clone(), follow: false }));
    let Ok(Value::State(state)) = stat else { panic!("stat of listed {path}: {stat:?}") };
    assert_eq!(state.kind, listed, "{path} is not what the listing says");
    let content = match state.kind {
        Kind::File => read_whole(subject, &path, state.size),
        Kind::Symlink => subject.apply(&root(Op::Readlink { path: path.clone() })),
        _ => Ok(Value::Done),
    };
    let mut xattrs = Vec::new();
    if matches!(state.kind, Kind::File | Kind::Dir) {
        let listed = subject.apply(&root(Op::ListXattr { path: path.clone() }));
        let Ok(Value::Xattrs(names)) = listed else { panic!("attributes of {path}: {listed:?}") };
        for bytes in names {
            let name = String::from_utf8_lossy(&bytes).into_owned();
            let value = subject.apply(&root(Op::GetXattr { path: path.clone(), name }));
            xattrs.push((bytes, value));
        }
    }
    let first = first.entry(state.ino).or_insert_with(|| path.clone()).clone();
    Leaf { state: level_state(exact, state), content, xattrs, first }
}

fn read_whole(subject: &mut dyn Subject, path: &str, size: u64) -> Outcome {
    let (slot, flags) = (TREE_SLOT, libc::O_RDONLY);
    let open = Op::Open { slot, path: path.to_string(), flags, perm: 0 };
    subject.apply(&root(open))?;
    let bytes = subject.apply(&root(Op::Read { slot, at: 0, len: size as usize + 100 }));
    subject.apply(&root(Op::Close { slot }))?;
    match &bytes {
        Ok(Value::Bytes(bytes)) if bytes.len() as u64 != size => Err(Failure::NoFile),
        _ => bytes,
    }
}

fn root(op: Op) -> Step {
    Step { who: 0, op }
}
