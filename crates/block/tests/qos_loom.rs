//! The page that a lane shares with the coordinator under loom: every interleaving and every value
//! that the memory model allows a load to see, up to the stated bound.
//!
//! Bound: two threads, one or two windows, at most [`PREEMPTIONS`] preemptions per execution. The
//! bell has no timeout here, so a lost wake-up is a deadlock, which loom reports. The lane's own
//! lock is the standard library's, so one thread alone asks for admission. Deaths are modelled as a
//! thread whose accesses stop reaching memory after the k-th, for every k.
//!
//! Two models are run with the algorithm weakened; these must fail, which shows that the models
//! can see what fence and orderings are for. A failing model leaves loom in no state to go on, so
//! each is an ignored test that [`must_fail`] runs in a process of its own.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p polylane-block --test qos_loom --release`, or `cargo xtask
//! loom`.
#![cfg(loom)]

use std::cell::Cell;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use polylane_block::qos::lane::Lane;
use polylane_block::qos::page::{self, Terms, Words, flag, lane};
use polylane_block::qos::{Io, Kind, Verdict};

const PREEMPTIONS: usize = 2;

/// Words of the page that lanes and coordinators touch here: lines A and B, and the costs.
const WORDS: usize = 48;

/// Those whose every value and order is tried. The others say the same in every window here, or are
/// for one thread alone.
const WATCHED: [usize; 6] = [
    lane::SPENT,
    lane::DONE,
    lane::WAITERS,
    page::terms::SEQUENCE,
    page::terms::BASE,
    page::terms::GRANT,
];

/// How much of the algorithm is kept.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Strength {
    /// As written.
    Full,
    /// Acquire and release are relaxed.
    NoAcquireRelease,
    /// Nothing orders a store against a later load.
    NoFence,
}

loom::thread_local! {
    /// Accesses that this thread has left to live.
    static LEFT: Cell<usize> = Cell::new(usize::MAX);
}

/// Counts one access; false once the thread is dead.
fn lives() -> bool {
    LEFT.with(|left| {
        let lives = left.get() > 0;
        left.set(left.get().saturating_sub(1));
        lives
    })
}

/// A word of the page.
enum Word {
    Watched(AtomicU64),
    Plain(std::sync::atomic::AtomicU64),
}

struct Page {
    words: Vec<Word>,
    bell: AtomicU32,
    sleepers: Mutex<()>,
    woken: Condvar,
    strength: Strength,
}

impl Page {
    fn new(strength: Strength) -> Arc<Page> {
        Arc::new(Page {
            words: (0..WORDS)
                .map(|word| match WATCHED.contains(&word) {
                    true => Word::Watched(AtomicU64::new(0)),
                    false => Word::Plain(Default::default()),
                })
                .collect(),
            bell: AtomicU32::new(0),
            sleepers: Mutex::new(()),
            woken: Condvar::new(),
            strength,
        })
    }

    fn order(&self, order: Ordering) -> Ordering {
        if self.strength == Strength::NoAcquireRelease { Ordering::Relaxed } else { order }
    }
}

impl Words for Page {
    fn load(&self, word: usize, order: Ordering) -> u64 {
        match &self.words[word] {
            Word::Watched(word) => word.load(self.order(order)),
            Word::Plain(word) => word.load(Ordering::Relaxed),
        }
    }

    fn store(&self, word: usize, value: u64, order: Ordering) {
        match &self.words[word] {
            Word::Watched(word) if lives() => word.store(value, self.order(order)),
            Word::Plain(word) => word.store(value, Ordering::Relaxed),
            Word::Watched(_) => {}
        }
    }

    fn add(&self, word: usize, value: u64, order: Ordering) -> u64 {
        match &self.words[word] {
            Word::Watched(word) => word.fetch_add(value, self.order(order)),
            Word::Plain(word) => word.fetch_add(value, Ordering::Relaxed),
        }
    }

    fn exchange(&self, word: usize, current: u64, new: u64, order: Ordering) -> bool {
        match &self.words[word] {
            Word::Watched(word) => {
                word.compare_exchange(current, new, order, Ordering::Relaxed).is_ok()
            }
            Word::Plain(word) => {
                word.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            }
        }
    }

    fn bell(&self) -> u32 {
        self.bell.load(Ordering::SeqCst)
    }

    fn ring(&self) {
        self.bell.fetch_add(1, Ordering::SeqCst);
        drop(self.sleepers.lock().unwrap());
        self.woken.notify_all();
    }

    /// As futex(2): the look and the going to sleep are one. Without a limit of time.
    fn sleep(&self, heard: u32, _limit: Duration) {
        let sleepers = self.sleepers.lock().unwrap();
        if self.bell.load(Ordering::SeqCst) == heard {
            drop(self.woken.wait(sleepers).unwrap());
        }
    }

    fn fence(&self) {
        if self.strength != Strength::NoFence {
            fence(Ordering::SeqCst);
        }
    }
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(run);
}

/// Runs the ignored test `name` and expects it to fail with `reason` in what it prints.
fn must_fail(name: &str, reason: &str) {
    let exe = std::env::current_exe().unwrap();
    let out = Command::new(exe).args(["--exact", "--ignored", "--nocapture", name]).output();
    let out = out.unwrap();
    let text = String::from_utf8_lossy(&out.stderr) + String::from_utf8_lossy(&out.stdout);
    assert!(!out.status.success(), "{name} passed although weakened");
    assert!(text.contains(reason), "{name} failed, but not by '{reason}': {text}");
}

#[test]
fn a_weakened_page_is_found_out() {
    must_fail("weak_page_loses_a_wake_up", "deadlock");
    must_fail("weak_line_is_read_torn", "torn: ");
}

const READ: Io = Io { kind: Kind::Read, bytes: 4096, sequential: false };

/// Line B of a window that lets `base` sectors go, `inflight` of them at a time, for ever.
fn terms(base: u64, inflight_max: u64) -> Terms {
    let flags = flag::SECTORS;
    let (tick, slices, stale_at) = (1, 1, u64::MAX);
    Terms { flags, base, inflight_max, tick, slices, stale_at, ..Terms::default() }
}

/// Waits until a request may go.
fn go(lane: &Lane<Arc<Page>>) {
    let attempt = || match lane.admit(&READ, || 1) {
        Verdict::Go => Ok(()),
        Verdict::Wait(until) => Err(until),
    };
    while lane.wait(|| 1, attempt).is_err() {}
}

fn grant(strength: Strength) {
    let page = Page::new(strength);
    terms(0, u64::MAX).publish(&page);
    let lane = Lane::new(page.clone(), None);
    let coordinator = thread::spawn(move || {
        terms(8, u64::MAX).publish(&page);
    });
    go(&lane);
    coordinator.join().unwrap();
    assert_eq!(lane.words().load(lane::SPENT, Ordering::Relaxed), 8, "charged once");
    assert_eq!(lane.words().load(lane::WAITERS, Ordering::Relaxed), 0, "nobody is left waiting");
}

#[test]
fn a_waiter_hears_of_a_grant() {
    model(|| grant(Strength::Full));
}

#[test]
#[ignore = "must fail"]
fn weak_page_loses_a_wake_up() {
    model(|| grant(Strength::NoFence));
}

#[test]
fn a_waiter_hears_of_room_in_flight() {
    model(|| {
        let page = Page::new(Strength::Full);
        terms(64, 8).publish(&page);
        let lane = Arc::new(Lane::new(page, None));
        assert_eq!(lane.admit(&READ, || 1), Verdict::Go);
        let other = lane.clone();
        let answered = thread::spawn(move || other.complete(8));
        go(&lane);
        answered.join().unwrap();
        assert_eq!(lane.words().load(lane::SPENT, Ordering::Relaxed), 16);
        assert_eq!(lane.words().load(lane::DONE, Ordering::Relaxed), 8);
    });
}

/// Line B is read whole or not at all, wherever its writer is, or died.
fn torn(strength: Strength, writes: usize) {
    let page = Page::new(strength);
    let line = |number: u64| Terms { base: number, grant: number, ..terms(0, 9) };
    line(1).publish(&page);
    let writer = page.clone();
    let writing = thread::spawn(move || {
        LEFT.with(|left| left.set(writes));
        line(2).publish(&writer);
    });
    if let Some(seen) = Terms::read(&page) {
        assert!(seen.base == seen.grant, "torn: {seen:?}");
    }
    writing.join().unwrap();
}

#[test]
fn a_line_is_read_whole() {
    model(|| torn(Strength::Full, usize::MAX));
}

#[test]
#[ignore = "must fail"]
fn weak_line_is_read_torn() {
    model(|| torn(Strength::NoAcquireRelease, usize::MAX));
}

/// A coordinator that dies at any point leaves a line that is whole, or that no lane reads.
#[test]
fn a_coordinator_may_die_at_any_point() {
    // The sequence, two words of the line, the sequence.
    for writes in 0..4 {
        model(move || torn(Strength::Full, writes));
    }
}
