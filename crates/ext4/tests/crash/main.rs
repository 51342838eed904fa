//! Crash consistency, by cutting the power at every write.
//!
//! Workloads run on a simulated disk that records. At each cut, of the writes that are not durable
//! any may be there, missing or torn at 512-byte sectors (`states`). Each such image is opened with
//! our recovery and compared with what is legal (`oracle`), closed, and, for a sample or all of
//! them, judged by e2fsck before and after and recovered by the kernel (`judge`).
//!
//! `cargo test` looks at some thousand states. `POLYLANE_CRASH=full` looks at everything that
//! docs/design/crash.md lists, as `cargo xtask crash --full` does; `POLYLANE_CRASH_SECONDS` ends
//! each part that has no end after that time, `POLYLANE_CRASH_LIST_SECONDS` each that has one, and
//! says so. In full each part tells every minute how far it is. `POLYLANE_CRASH_KEEP` is a file for
//! the first bad image, `POLYLANE_CRASH_SEED` another beginning, and `POLYLANE_CRASH_FIRST` the
//! item from which on a list that was cut short is gone on with.

mod ace;
mod cached;
mod faults;
mod judge;
mod oracle;
mod random;
mod script;
mod states;
mod together;
mod torn;
mod tree;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use polylane_ext4::DataMode;
use polylane_testkit::effort::{is_full, number};
use polylane_testkit::sim::Image;

use script::Op;
use states::{Effort, Explorer, FEATURES, Totals, Workload, record};

/// Whether e2fsprogs are here; says so when they are not.
fn have_tools() -> bool {
    let found = std::process::Command::new("mke2fs").arg("-V").output().is_ok();
    if !found {
        eprintln!("skipped: mke2fs is not installed");
    }
    found
}

fn images() -> Vec<Image> {
    FEATURES.iter().map(|features| states::format(features, &ace::setup())).collect()
}

/// How much of a part there is, and when it ends anyway.
struct Limit {
    until: Instant,
    /// Its items; `None` for a part without an end.
    total: Option<usize>,
    /// When how far it is was last said.
    said: Mutex<Instant>,
}

/// Each part of an ordinary test.
const SHORT_SECONDS: u64 = 60;
/// A day: whole lists are done long before.
const LIST_SECONDS: u64 = 86_400;
/// A long run says how far it is this often.
const SAID_EVERY: Duration = Duration::from_secs(60);

impl Limit {
    fn after(seconds: u64, total: Option<usize>) -> Limit {
        let seconds = if is_full() { seconds } else { SHORT_SECONDS };
        let now = Instant::now();
        Limit { until: now + Duration::from_secs(seconds), total, said: Mutex::new(now) }
    }

    /// A list of `total` items: done whole, unless its time is bounded on purpose.
    fn list(total: usize) -> Limit {
        Limit::after(number("POLYLANE_CRASH_LIST_SECONDS", LIST_SECONDS), Some(total))
    }

    /// In full there is no end but `seconds`; else it is a list of `short` items.
    fn endless(short: usize, seconds: u64) -> Limit {
        let total = (!is_full()).then_some(short);
        Limit::after(number("POLYLANE_CRASH_SECONDS", seconds), total)
    }

    /// Whether item `at` is not to be done any more.
    fn ends_at(&self, at: usize) -> bool {
        self.total.is_some_and(|total| at >= total) || Instant::now() >= self.until
    }

    /// Says now and then that item `at` of `name` is begun; ordinary tests end before.
    fn progress(&self, name: &str, at: usize) {
        let mut said = self.said.lock().expect("no panic");
        if said.elapsed() >= SAID_EVERY {
            *said = Instant::now();
            let total = self.total.map_or("no end".into(), |total| total.to_string());
            println!("crash: {name}: at {at} of {total}");
        }
    }

    /// How far `done` items from `first` on went.
    fn told(&self, first: usize, done: usize) -> String {
        match self.total {
            Some(total) if first > 0 && first + done == total => {
                format!("the last {done} of {total}, from {first}")
            }
            Some(total) if done < total => format!("{done} of {total} from {first}, cut short"),
            Some(total) => format!("{done} of {total}, whole"),
            None => format!("{done}, without an end"),
        }
    }
}

/// Item `at` of a list in an order that spreads: a run that ends early has seen some of all.
fn spread<T>(list: &[T], at: usize) -> &T {
    &list[at * 7919 % list.len()]
}

/// The effort of a test that runs every time, and that of a campaign.
fn effort() -> Effort {
    let kernel = u64::from(judge::may_mount());
    match is_full() {
        true => Effort {
            cut_every: 1,
            single: 8,
            random: 4,
            fsck_every: 3,
            kernel_every: kernel * 300,
            double_every: 100,
        },
        false => Effort {
            cut_every: 3,
            single: 1,
            random: 1,
            fsck_every: 40,
            kernel_every: kernel * 800,
            double_every: 0,
        },
    }
}

/// Runs workloads on images of every kind, as many threads as there are cores, until `limit`;
/// panics at the first failure.
fn explore_all(
    name: &str,
    effort: Effort,
    limit: &Limit,
    next: &(dyn Fn(usize) -> Workload + Sync),
) {
    explore_on(&images(), name, effort, limit, next);
}

fn explore_on(
    images: &[Image],
    name: &str,
    effort: Effort,
    limit: &Limit,
    next: &(dyn Fn(usize) -> Workload + Sync),
) {
    let (started, totals) = (Instant::now(), Mutex::new((0, Totals::default())));
    let first = number("POLYLANE_CRASH_FIRST", 0) as usize;
    let (index, failed) = (AtomicUsize::new(first), AtomicBool::new(false));
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let at = index.fetch_add(1, Ordering::Relaxed);
            if limit.ends_at(at) {
                return;
            }
            limit.progress(name, at);
            let workload = next(at);
            match explore_one(&images[at % images.len()], &workload, effort, at as u64) {
                Ok(found) => {
                    let mut totals = totals.lock().expect("no panic");
                    totals.0 += 1;
                    totals.1.add(found);
                }
                Err(why) => {
                    failed.store(true, Ordering::Relaxed);
                    panic!("{name} {at}: {why}\n{workload}");
                }
            }
        }
    };
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    let (done, totals) = totals.into_inner().expect("no panic");
    report(&format!("{name}: {}", limit.told(first, done)), started.elapsed(), &totals);
}

fn explore_one(
    base: &Image,
    workload: &Workload,
    effort: Effort,
    seed: u64,
) -> Result<Totals, String> {
    let run = record(base, workload)?;
    judge::clean(&run.after).map_err(|why| format!("after an orderly close: {why}"))?;
    let mut explorer = Explorer::new(&run, effort, seed);
    explorer.explore()?;
    Ok(explorer.totals)
}

fn report(name: &str, took: Duration, totals: &Totals) {
    let rate = (totals.states + totals.double) as f64 / took.as_secs_f64();
    println!("crash: {name}: {totals:?} in {:.1} s, {rate:.0} states/s", took.as_secs_f64());
    assert!(totals.states > 50, "too few states were looked at");
}

/// Variants take turns: cold and warm inodes, a prompt and a lazy disk, both modes of data.
fn varied(ops: Vec<Op>, at: usize) -> Workload {
    let delay = (at / 2 % 3 == 2).then_some(at as u64);
    let data = match at % 7 {
        3 => DataMode::Writeback,
        5 => DataMode::Data,
        _ => DataMode::Ordered,
    };
    Workload { ops, delay, warm: at / 2 % 2 == 1, backwards: at % 5 == 4, data }
}

#[test]
fn single_operations_survive_every_cut() {
    if have_tools() {
        let all = ace::depth_one();
        let next = |at: usize| varied(spread(&all, at).clone(), at);
        explore_all("depth 1", effort(), &Limit::list(all.len()), &next);
    }
}

#[test]
fn pairs_of_operations_survive_every_cut() {
    if have_tools() {
        let all = ace::depth_two();
        let count = if is_full() { all.len() } else { 40 };
        let effort = match is_full() {
            true => Effort { single: 4, random: 2, fsck_every: 20, ..effort() },
            false => effort(),
        };
        let next = |at: usize| varied(spread(&all, at).clone(), at);
        explore_all("depth 2", effort, &Limit::list(count), &next);
    }
}

/// Three operations in a row, chosen at random: all of them would be millions.
#[test]
fn triples_of_operations_survive_cuts() {
    if have_tools() {
        let seed = number("POLYLANE_CRASH_SEED", 1) << 32;
        let effort = match is_full() {
            true => Effort { cut_every: 2, single: 2, random: 2, fsck_every: 20, ..effort() },
            false => effort(),
        };
        let next = |at: usize| varied(ace::triple(seed + at as u64), at);
        explore_all("depth 3", effort, &Limit::endless(24, 1800), &next);
    }
}

#[test]
fn random_workloads_survive_cuts() {
    if have_tools() {
        let seed = number("POLYLANE_CRASH_SEED", 1) << 32;
        let next = |at: usize| {
            let syncs = [5, 15, 40][at % 3];
            varied(random::workload(seed + at as u64, 60, syncs), at)
        };
        let effort = Effort { cut_every: 4, fsck_every: 30, ..effort() };
        explore_all("random", effort, &Limit::endless(60, 600), &next);
    }
}

/// Enough transactions that the log wraps and is checkpointed.
#[test]
fn a_log_that_wraps_survives_cuts() {
    if have_tools() {
        let count = if is_full() { 40 } else { 2 };
        let next = |at: usize| varied(random::workload(77 + at as u64, 500, 35), at);
        let effort = Effort { cut_every: 150, fsck_every: 30, ..effort() };
        explore_all("wrapping log", effort, &Limit::list(count), &next);
    }
}

/// Transactions are numbered in 32 bits; the one after the last is 0, for e2fsck and the kernel
/// too.
#[test]
fn numbers_that_wrap_survive_cuts() {
    if have_tools() {
        let count = if is_full() { 40 } else { 4 };
        let images: Vec<Image> = images().into_iter().map(states::late_numbered).collect();
        let next = |at: usize| varied(random::workload(99 + at as u64, 200, 60), at);
        let kernel_every = effort().kernel_every / 10;
        let effort = Effort { cut_every: 8, fsck_every: 10, kernel_every, ..effort() };
        explore_on(&images, "wrapping numbers", effort, &Limit::list(count), &next);
    }
}

#[test]
fn a_growing_directory_survives_cuts() {
    if have_tools() {
        let count = if is_full() { 20 } else { 1 };
        let next = |at: usize| varied(random::directory(5 + at as u64, 150), at);
        let effort = Effort { cut_every: 1, fsck_every: 20, ..effort() };
        explore_all("directory", effort, &Limit::list(count), &next);
    }
}

/// The power goes while the journal is replayed or orphans are freed.
#[test]
fn a_recovery_that_is_cut_is_done_again() {
    if have_tools() {
        let all = ace::depth_one();
        let count = if is_full() { all.len() } else { 12 };
        let effort = Effort {
            cut_every: 6,
            single: 0,
            random: 1,
            double_every: if is_full() { 2 } else { 6 },
            fsck_every: if is_full() { 10 } else { 40 },
            ..effort()
        };
        let next = |at: usize| varied(spread(&all, at).clone(), at);
        explore_all("recovery", effort, &Limit::list(count), &next);
    }
}

/// A list that is said to be done was done.
#[test]
fn a_list_that_was_cut_says_so() {
    let mut list = Limit::list(5);
    list.until = Instant::now();
    assert!(list.ends_at(0));
    assert_eq!(list.told(0, 3), "3 of 5 from 0, cut short");
    assert_eq!(list.told(0, 5), "5 of 5, whole");
    assert_eq!(list.told(3, 2), "the last 2 of 5, from 3");
    let endless = Limit { total: None, until: Instant::now() + Duration::from_secs(600), ..list };
    assert!(!endless.ends_at(usize::MAX));
    assert_eq!(endless.told(0, 3), "3, without an end");
}
