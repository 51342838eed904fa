//! Threads that work at once, each in a directory of its own, while commits come at any moment.
//!
//! What a thread was promised must be there and its own directory must be a state that it went
//! through (or on the way between two), whatever the others did, and while the log is brought home.

use std::sync::Arc;
use std::time::Duration;

use polylane_base::rng::Rng;
use polylane_base::{Ino, TestClock};
use polylane_ext4::DataMode;
use polylane_testkit::effort::{is_full, number};
use polylane_testkit::sim::{Crash, Event, Image, SimDisk, SimOptions};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, FileSystem};

use super::oracle::{History, Span};
use super::script::{Op, Runner};
use super::states::{FEATURES, format, keep, open_with, reopen_with, tear};
use super::tree::{Tree, snapshot_of};
use super::{Limit, have_tools, judge, random};

const THREADS: usize = 3;

fn home(thread: usize) -> String {
    format!("T{thread}")
}

fn setup() -> Vec<Op> {
    let mut ops = Vec::new();
    for thread in 0..THREADS {
        let home = home(thread);
        ops.extend(["", "/A", "/B", "/A/deep"].map(|dir| Op::Mkdir(format!("{home}{dir}"))));
        ops.push(Op::Create(format!("{home}/foo")));
        ops.push(Op::Write(format!("{home}/foo"), 0, 30_000));
    }
    ops
}

/// A random workload, moved below the thread's directory. Blocks that move within a file are left
/// out: the oracle would have to follow them.
fn script(seed: u64, thread: usize, way: Way) -> Vec<Op> {
    let home = home(thread);
    let at = |path: String| format!("{home}/{path}");
    let below = |op: Op| {
        Some(match op {
            Op::Fallocate(_, Fallocate::CollapseRange | Fallocate::InsertRange, ..) => return None,
            Op::Tmpfile(_) | Op::LinkSlot(..) => return None,
            Op::Create(path) => Op::Create(at(path)),
            Op::Mkdir(path) => Op::Mkdir(at(path)),
            Op::Mknod(path) => Op::Mknod(at(path)),
            Op::Symlink(path, len) => Op::Symlink(at(path), len),
            Op::Hold(slot, path) => Op::Hold(slot, at(path)),
            Op::Write(path, offset, len) => Op::Write(at(path), offset, len),
            Op::Truncate(path, size) => Op::Truncate(at(path), size),
            Op::Fallocate(path, mode, offset, len) => Op::Fallocate(at(path), mode, offset, len),
            Op::Chmod(path, perm) => Op::Chmod(at(path), perm),
            Op::Link(from, to) => Op::Link(at(from), at(to)),
            Op::Unlink(path) => Op::Unlink(at(path)),
            Op::Rmdir(path) => Op::Rmdir(at(path)),
            Op::Rename(from, to, mode) => Op::Rename(at(from), at(to), mode),
            Op::SetXattr(path, name, len) => Op::SetXattr(at(path), name, len),
            Op::RemoveXattr(path, name) => Op::RemoveXattr(at(path), name),
            Op::SetAcl(path, users) => Op::SetAcl(at(path), users),
            Op::Inherit(kind, path, users) => Op::Inherit(kind, at(path), users),
            Op::Fsync(path) => Op::Fsync(at(path)),
            Op::Fdatasync(path) => Op::Fdatasync(at(path)),
            slot_or_sync => slot_or_sync,
        })
    };
    random::workload(seed, way.len, way.syncs).into_iter().filter_map(below).collect()
}

fn look(fs: &dyn FileSystem, runner: &Runner<'_>, home: Ino) -> Tree {
    let attr = fs.getattr(&OpCtx::service(), home).expect("the thread's directory");
    let mut tree = snapshot_of(fs, attr, &|ino| !runner.may_forget(ino)).expect("readable");
    let held = runner
        .held()
        .map(|ino| fs.getattr(&OpCtx::service(), ino).and_then(|a| super::tree::node(fs, a)));
    tree.held = held.collect::<Result<_, _>>().expect("readable");
    tree
}

/// One thread's life.
fn live(disk: &SimDisk, fs: &dyn FileSystem, thread: usize, ops: &[Op]) -> History {
    let root = fs.root().expect("the root").ino;
    let dir = fs
        .lookup(&OpCtx::service(), root, home(thread).as_bytes())
        .expect("the thread's directory")
        .ino;
    let mut history = History { splits: true, ..History::default() };
    let mut runner = Runner::new(fs, true);
    history.states.push(look(fs, &runner, dir));
    for op in ops {
        let synced = runner.synced(op);
        let start = disk.position();
        let ok = runner.apply(op).is_ok();
        let end = disk.position();
        history.states.push(look(fs, &runner, dir));
        let promises = match (op, synced) {
            (Op::Sync, _) => history.states.len() - 1,
            (Op::Fdatasync(_), Some(ino)) => history.last_change(ino, true),
            (_, Some(ino)) => history.last_change(ino, false),
            _ => 0,
        };
        history.spans.push(Span { op: op.clone(), start, end, ok, promises, bytes_of: synced });
    }
    runner.release_all();
    history
}

/// How threads work together.
#[derive(Clone, Copy)]
struct Way {
    /// Operations of each.
    len: usize,
    /// How many of a hundred are for durability.
    syncs: u64,
    /// How much of the data goes to the log.
    data: DataMode,
    /// Commits by the clock come after so much time; `None`: after some milliseconds.
    interval: Option<Duration>,
    /// Half of the disks have each request wait so long, at most.
    pause_us: u64,
    /// Cuts of each run, about.
    cuts: u64,
}

fn record(base: &Image, seed: u64, way: Way) -> (Vec<Event>, Vec<History>) {
    let delay = (seed % 2 == 1).then_some(seed);
    let pause = Duration::from_micros(if seed % 4 < 2 { way.pause_us } else { 0 });
    let options = SimOptions { record: true, delay, pause, ..SimOptions::default() };
    let disk = SimDisk::new(base.clone(), options);
    // Odd ones overlap, see `open_with`: on prompt disks and on late ones.
    let interval = match way.interval {
        Some(interval) => interval + Duration::from_millis(seed / 2 % 2),
        None => Duration::from_millis(1 + seed / 2 % 4),
    };
    let fs = open_with(&disk, Arc::new(TestClock::default()), (interval, way.data)).expect("opens");
    let histories = std::thread::scope(|scope| {
        let start = |thread: usize| {
            let (disk, fs) = (&disk, &fs);
            let ops = script(seed * 16 + thread as u64, thread, way);
            scope.spawn(move || live(disk, fs, thread, &ops))
        };
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    fs.close().expect("closes");
    judge::clean(&disk.image()).expect("clean after an orderly close");
    (disk.events(), histories)
}

/// Cuts a recorded run here and there. How many states were looked at.
fn explore(
    base: &Image,
    seed: u64,
    cuts: u64,
    (events, histories): &(Vec<Event>, Vec<History>),
) -> (u64, Result<(), String>) {
    let (mut crash, mut rng, mut states) = (Crash::new(base, events), Rng::new(seed), 0);
    while crash.advance().is_some() {
        if rng.below(events.len() as u64) >= cuts {
            continue;
        }
        let position = crash.position();
        for fates in crash.choices(&mut rng, 1, 1) {
            let image = crash.image(&tear(false), |n| fates[n]);
            let judge = |found: &Tree| {
                histories.iter().enumerate().try_for_each(|(thread, history)| {
                    let mine = found.below(&home(thread));
                    let judged = history.judge(&mine, &history.window(position));
                    judged.map(drop).map_err(|why| format!("thread {thread}: {why}"))
                })
            };
            let fsck = rng.below(if is_full() { 5 } else { 30 }) == 0;
            let found = reopen_with(&image, fsck, &judge);
            let found = found.and_then(|_| match fsck {
                true => judge::recovered(&image).map(drop),
                false => Ok(()),
            });
            states += 1;
            if let Err(why) = found {
                keep(&image);
                return (states, Err(format!("{why}\nafter event {position}: {fates:?}")));
            }
        }
    }
    (states, Ok(()))
}

/// Runs one seed after the other until `limit`, and cuts each. How often the log was brought home
/// before the end.
fn explore_all(name: &str, (way, runs): (Way, usize)) -> usize {
    let bases = FEATURES.map(|features| format(features, &setup()));
    let first = number("POLYLANE_CRASH_SEED", 1) << 20;
    let (mut states, mut done, mut checkpoints, limit) = (0, 0, 0, Limit::list(runs));
    while !limit.ends_at(done) {
        limit.progress(name, done);
        let seed = first + done as u64;
        let base = &bases[done % bases.len()];
        done += 1;
        let recorded = record(base, seed, way);
        checkpoints += journal_superblocks(&recorded.0).saturating_sub(OF_A_SHORT_LIFE);
        let (count, outcome) = explore(base, seed, way.cuts, &recorded);
        states += count;
        if let Err(why) = outcome {
            panic!("{name}, seed {seed}: {why}");
        }
    }
    let told = limit.told(0, done);
    println!(
        "crash: {name}: {THREADS} threads, runs: {told}, {states} states, {checkpoints} checkpoints"
    );
    assert!(states > 100, "{name}: {states}");
    checkpoints
}

/// Superblocks of the journal that are written where no checkpoint is made before the end: when it
/// is opened, and two when it is closed.
const OF_A_SHORT_LIFE: usize = 3;

/// How often the journal's superblock was written.
fn journal_superblocks(events: &[Event]) -> usize {
    const SUPERBLOCK: [u8; 8] = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 4];
    let is_one = |event: &&Event| match event {
        Event::Write { data, .. } => data.starts_with(&SUPERBLOCK),
        _ => false,
    };
    events.iter().filter(is_one).count()
}

#[test]
fn threads_get_what_they_were_promised() {
    if have_tools() {
        let (runs, len, cuts) = if is_full() { (400, 300, 200) } else { (8, 60, 40) };
        let way =
            Way { len, syncs: 20, data: DataMode::Ordered, interval: None, pause_us: 1500, cuts };
        explore_all("together", (way, runs));
    }
}

/// Half a log and more of syncs while the committer brings home what is in it: what is newer, freed
/// or given to others meanwhile is what a cut leaves.
#[test]
fn a_log_that_is_brought_home_beside_commits_survives_cuts() {
    if have_tools() {
        let (runs, cuts) = if is_full() { (200, 200) } else { (3, 60) };
        let interval = Some(Duration::from_secs(3600));
        let way = Way { len: 900, syncs: 60, data: DataMode::Data, interval, pause_us: 100, cuts };
        let checkpoints = explore_all("brought home", (way, runs));
        assert!(checkpoints > 0, "the log was never half full");
    }
}
