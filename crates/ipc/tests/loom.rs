//! The request queues and the mailbox protocol under loom: every interleaving and every value that
//! the memory model allows a load to see, up to the stated bound.
//!
//! Bound: two to three threads, one or two values each, rings of two slots (so that they wrap), at
//! most [`PREEMPTIONS`] preemptions per execution. Futexes and eventfds have no timeout here, so
//! that a lost wake-up is a deadlock, which loom reports.
//!
//! The same models are run with the algorithm's orderings weakened ([`Strength`]); these must fail,
//! which shows that the models can see what the orderings are for. A failing model leaves loom in
//! no state to go on, so each is an ignored test that [`must_fail`] runs in a process of its own.
//! Deaths are modelled as a thread whose accesses stop reaching memory after the k-th, for every k.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p polylane-ipc --test loom --release`, or `cargo xtask
//! loom`.
#![cfg(loom)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use polylane_ipc::channel::claim::Claim;
use polylane_ipc::channel::mailbox::Mailbox;
use polylane_ipc::layout::{control, mailbox};
use polylane_ipc::memory::{Memory, Word32, Word64};
use polylane_ipc::message::WireAttr;
use polylane_ipc::queue::bell::Bell;
use polylane_ipc::queue::doorbell::Doorbell;
use polylane_ipc::queue::lap_ring::LapRing;
use polylane_ipc::queue::rcqb::Rcqb;
use polylane_ipc::queue::{RequestQueue, Ticket};
use polylane_ipc::stream::{ENTRIES, Entry, Posted, Stream};
use polylane_ipc::view::{FRAME_BYTES, HAS_ATTR, HAS_DATA, NOTES_READS, UNTIL_WRITTEN, Views, tag};
use polylane_sys::futex::Woken;

const PREEMPTIONS: usize = 3;
const FOREVER: Duration = Duration::MAX;

/// How much of the algorithm's orderings is kept.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Strength {
    /// As written.
    Full,
    /// Acquire and release are relaxed.
    NoAcquireRelease,
    /// Sequential consistency is acquire and release.
    NoTotalOrder,
}

impl Strength {
    fn apply(self, order: Ordering) -> Ordering {
        if self == Strength::NoAcquireRelease { Ordering::Relaxed } else { order }
    }
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

/// Runs `victim` in a thread that dies after `accesses` accesses.
fn mortal<R: 'static>(
    accesses: usize,
    victim: impl FnOnce() -> R + 'static,
) -> thread::JoinHandle<R> {
    thread::spawn(move || {
        LEFT.with(|left| left.set(accesses));
        victim()
    })
}

struct Words {
    w32: BTreeMap<usize, W32>,
    w64: BTreeMap<usize, W64>,
    strength: Strength,
    sleepers: Mutex<()>,
    woken: Condvar,
}

struct W32(AtomicU32, Strength);
struct W64(AtomicU64, Strength);

macro_rules! word {
    ($trait:ident, $type:ident, $int:ty) => {
        impl $trait for $type {
            fn load(&self, order: Ordering) -> $int {
                if lives() { self.0.load(self.1.apply(order)) } else { 0 }
            }
            fn store(&self, value: $int, order: Ordering) {
                if lives() {
                    self.0.store(value, self.1.apply(order));
                }
            }
            fn swap(&self, value: $int, order: Ordering) -> $int {
                if lives() { self.0.swap(value, self.1.apply(order)) } else { 0 }
            }
            fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                if lives() { self.0.fetch_add(value, self.1.apply(order)) } else { 0 }
            }
            fn fetch_or(&self, bits: $int, order: Ordering) -> $int {
                if lives() { self.0.fetch_or(bits, self.1.apply(order)) } else { 0 }
            }
            fn fetch_and(&self, bits: $int, order: Ordering) -> $int {
                if lives() { self.0.fetch_and(bits, self.1.apply(order)) } else { 0 }
            }
            fn compare_exchange(
                &self,
                current: $int,
                new: $int,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$int, $int> {
                if !lives() {
                    return Err(current);
                }
                let (success, failure) = (self.1.apply(success), self.1.apply(failure));
                self.0.compare_exchange(current, new, success, failure)
            }
        }
    };
}

word!(Word32, W32, u32);
word!(Word64, W64, u64);

/// Words of a loom execution from a base on.
#[derive(Clone)]
struct Shared(Arc<Words>, usize);

impl Shared {
    fn new(strength: Strength, w32: &[usize], w64: &[usize]) -> Self {
        let word32 = |&at: &usize| (at, W32(AtomicU32::new(0), strength));
        let word64 = |&at: &usize| (at, W64(AtomicU64::new(0), strength));
        let words = Words {
            w32: w32.iter().map(word32).collect(),
            w64: w64.iter().map(word64).collect(),
            strength,
            sleepers: Mutex::new(()),
            woken: Condvar::new(),
        };
        Shared(Arc::new(words), 0)
    }

    fn at(&self, base: usize) -> Self {
        Shared(self.0.clone(), self.1 + base)
    }
}

impl Memory for Shared {
    type W32 = W32;
    type W64 = W64;

    fn word32(&self, offset: usize) -> &W32 {
        &self.0.w32[&(self.1 + offset)]
    }

    fn word64(&self, offset: usize) -> &W64 {
        &self.0.w64[&(self.1 + offset)]
    }

    fn wait(&self, offset: usize, expected: u32, _timeout: Duration) -> Woken {
        let guard = self.0.sleepers.lock().unwrap();
        // As the kernel: compared under a lock that every waker takes after its store.
        if self.word32(offset).0.load(Ordering::SeqCst) == expected {
            drop(self.0.woken.wait(guard).unwrap());
        }
        Woken::Changed
    }

    fn wake(&self, _offset: usize, _count: u32) {
        if !lives() {
            return;
        }
        drop(self.0.sleepers.lock().unwrap());
        self.0.woken.notify_all();
    }

    fn pause(&self) {
        thread::yield_now();
    }

    fn fence(&self) {
        self.total_order();
    }

    fn fence_acquire(&self) {
        if self.0.strength != Strength::NoAcquireRelease {
            fence(Ordering::Acquire);
        }
    }

    fn fence_release(&self) {
        if self.0.strength != Strength::NoAcquireRelease {
            fence(Ordering::Release);
        }
    }

    fn total_order(&self) {
        if self.0.strength == Strength::Full {
            fence(Ordering::SeqCst);
        }
    }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

/// Runs the ignored test `name` and expects it to fail with `reason` in what it prints.
fn must_fail(name: &str, reason: &str) {
    let exe = std::env::current_exe().unwrap();
    let out = Command::new(exe).args(["--exact", "--ignored", "--nocapture", name]).output();
    let out = out.unwrap();
    let text = String::from_utf8_lossy(&out.stderr) + String::from_utf8_lossy(&out.stdout);
    assert!(!out.status.success(), "{name} passed with weakened orderings");
    assert!(text.contains(reason), "{name} failed, but not by '{reason}'");
}

#[test]
fn weakened_orderings_are_found_out() {
    must_fail("weak_lap_ring_loses_a_wake_up", "deadlock");
    must_fail("weak_rcqb_yields_a_stale_value", "stale: ");
    must_fail("weak_rcqb_loses_a_wake_up", "deadlock");
    must_fail("weak_mailbox_yields_stale_words", "stale: ");
    must_fail("weak_mailbox_loses_a_wake_up", "deadlock");
    must_fail("weak_mailbox_is_served_garbled", "garbled");
    must_fail("weak_mailbox_watch_strands_a_request", "stranded");
    must_fail("weak_stream_yields_a_stale_entry", "stale: ");
    must_fail("weak_frame_is_read_torn", "stale: ");
    must_fail("weak_gate_loses_a_write", "lost: ");
    must_fail("weak_switch_takes_a_stale_page", "stale: ");
    must_fail("weak_rest_keeps_a_file_without_a_name", "kept: ");
}

// ---- values through queues -------------------------------------------------------------------

const RING_W64: [usize; 4] = [0, 64, 128, 192];

fn lap_ring(strength: Strength) -> LapRing<Shared> {
    LapRing::new(Shared::new(strength, &[8, 72], &RING_W64), 2)
}

fn rcqb(strength: Strength) -> Rcqb<Shared> {
    let w32 = [128, 132, 136, 192, 196, 200];
    Rcqb::new(Shared::new(strength, &w32, &[0, 64]), 2)
}

/// Takes `count` values, sleeping when there is none.
fn take<Q: RequestQueue>(queue: &Q, count: usize) -> Vec<u32> {
    let (mut ticket, mut taken) = (Ticket::default(), Vec::new());
    while taken.len() < count {
        taken.extend(queue.pop_wait(&mut ticket, 0, FOREVER));
    }
    taken
}

fn push<Q: RequestQueue>(queue: &Q, value: u32) {
    while !queue.push(value) {
        thread::yield_now();
    }
}

/// Two producers, the main thread consumes: every value comes once.
fn two_producers<Q>(queue: Q, each: u32)
where
    Q: RequestQueue + Clone + Send + 'static,
{
    let producers = [10, 20].map(|base| {
        let queue = queue.clone();
        thread::spawn(move || (1..=each).for_each(|n| push(&queue, base + n)))
    });
    let mut taken = take(&queue, 2 * each as usize);
    producers.into_iter().for_each(|producer| producer.join().unwrap());
    taken.sort_unstable();
    let expected: Vec<u32> =
        [10, 20].iter().flat_map(|base| (1..=each).map(move |n| base + n)).collect();
    assert_eq!(taken, expected);
}

/// Two consumers of one value each, the main thread produces.
fn two_consumers<Q>(queue: Q)
where
    Q: RequestQueue + Clone + Send + 'static,
{
    let consumers = [0, 1].map(|_| {
        let queue = queue.clone();
        thread::spawn(move || take(&queue, 1)[0])
    });
    push(&queue, 7);
    push(&queue, 8);
    let mut taken = consumers.map(|consumer| consumer.join().unwrap());
    taken.sort_unstable();
    assert_eq!(taken, [7, 8]);
}

#[test]
fn lap_ring_with_two_producers() {
    check(|| two_producers(lap_ring(Strength::Full), 1));
}

#[test]
fn lap_ring_with_two_consumers() {
    check(|| two_consumers(lap_ring(Strength::Full)));
}

#[test]
fn lap_ring_wraps_in_order() {
    check(|| {
        let queue = lap_ring(Strength::Full);
        let producer = queue.clone();
        let producer = thread::spawn(move || (1..=5).for_each(|n| push(&producer, n)));
        assert_eq!(take(&queue, 5), [1, 2, 3, 4, 5]);
        producer.join().unwrap();
    });
}

#[test]
#[ignore = "must fail; run by weakened_orderings_are_found_out"]
fn weak_lap_ring_loses_a_wake_up() {
    check(|| two_consumers(lap_ring(Strength::NoTotalOrder)));
}

/// For every k: a producer dies at its k-th access. The survivor's values come in order, the dead
/// one's at most once, and the ring stays usable.
#[test]
fn lap_ring_survives_a_producer() {
    for accesses in 0..6 {
        check(move || {
            let queue = lap_ring(Strength::Full);
            let victim = queue.clone();
            let victim = mortal(accesses, move || victim.push(99));
            let mut seen = Vec::new();
            for value in [1, 2, 3] {
                push(&queue, value);
                while seen.last() != Some(&value) {
                    seen.extend(queue.pop(&mut Ticket::default()));
                }
            }
            victim.join().unwrap();
            seen.extend(queue.pop(&mut Ticket::default()));
            let dead = seen.iter().filter(|&&value| value == 99).count();
            seen.retain(|&value| value != 99);
            assert!(seen == [1, 2, 3] && dead <= 1, "{seen:?} and {dead}");
        });
    }
}

/// For every k: a consumer dies at its k-th access. It takes at most one value with it; the others
/// come once and in order.
#[test]
fn lap_ring_survives_a_consumer() {
    for accesses in 0..6 {
        check(move || {
            let queue = lap_ring(Strength::Full);
            let victim = queue.clone();
            let victim = mortal(accesses, move || victim.pop(&mut Ticket::default()));
            let mut seen = Vec::new();
            for value in [1, 2, 3] {
                while !queue.push(value) {
                    seen.extend(queue.pop(&mut Ticket::default()));
                }
            }
            victim.join().unwrap();
            seen.extend(std::iter::from_fn(|| queue.pop(&mut Ticket::default())));
            assert!(seen.is_sorted() && seen.len() >= 2, "{seen:?}");
        });
    }
}

/// A few looks without sleeping: what is found must be what was pushed.
fn rcqb_awake(strength: Strength) {
    let queue = rcqb(strength);
    let consumer = queue.clone();
    let consumer = thread::spawn(move || {
        let mut ticket = Ticket::default();
        let found: Vec<u32> = (0..2).filter_map(|_| consumer.pop(&mut ticket)).collect();
        assert!(found.iter().all(|&value| value == 7), "stale: {found:?}");
    });
    push(&queue, 7);
    consumer.join().unwrap();
}

#[test]
fn rcqb_without_sleep() {
    check(|| rcqb_awake(Strength::Full));
}

#[test]
fn rcqb_with_two_producers() {
    check(|| two_producers(rcqb(Strength::Full), 1));
}

#[test]
fn rcqb_with_two_consumers() {
    check(|| two_consumers(rcqb(Strength::Full)));
}

#[test]
#[ignore = "must fail; run by weakened_orderings_are_found_out"]
fn weak_rcqb_yields_a_stale_value() {
    check(|| rcqb_awake(Strength::NoAcquireRelease));
}

#[test]
#[ignore = "must fail; run by weakened_orderings_are_found_out"]
fn weak_rcqb_loses_a_wake_up() {
    check(|| two_producers(rcqb(Strength::NoTotalOrder), 1));
}

// ---- mailboxes: post, doorbell, bell, reply --------------------------------------------------

/// Word of the eventfd model; the doorbell's word; the bell's two; one mailbox each.
const EVENT: usize = 512;
const BITS: usize = 256;
const CLAIM: usize = 600;
const BELL: usize = 520;
const BOX: usize = 0;
const BOX2: usize = 64;

fn channel(strength: Strength) -> Shared {
    let bell = [BELL + control::CPU, BELL + control::ASLEEP];
    let boxes = [BOX, BOX2].map(|at| {
        [mailbox::STATE, mailbox::PROGRESS, mailbox::CPU, mailbox::WAITING].map(|n| at + n)
    });
    let others = [bell[0], bell[1], BELL + control::WATCHED, EVENT, CLAIM];
    let w32 = [&boxes[0][..], &boxes[1], &others].concat();
    Shared::new(strength, &w32, &[BOX + 16, BOX2 + 16, BITS])
}

/// A client's call: word out, doubled word back.
fn call(memory: &Shared, number: u32, value: u64) -> u64 {
    let mailbox = Mailbox(memory.at([BOX, BOX2][number as usize]));
    mailbox.put_words(0, &[value]);
    mailbox.post(0);
    Doorbell::new(memory.at(BITS), 2).push(number);
    if Bell(memory.at(BELL)).must_ring() {
        memory.word32(EVENT).0.fetch_add(1, Ordering::SeqCst);
        memory.wake(EVENT, 1);
    }
    while mailbox.announce_sleep() {
        mailbox.sleep(FOREVER);
    }
    let mut words = [0];
    mailbox.get_words(0, &mut words);
    words[0]
}

/// A worker that serves `count` requests and sleeps whenever there is none.
fn work(memory: &Shared, count: usize) {
    let (queue, bell) = (Doorbell::new(memory.at(BITS), 2), Bell(memory.at(BELL)));
    let (mut ticket, mut served, mut seen) = (Ticket::default(), 0, 0);
    while served < count {
        if let Some(number) = queue.pop(&mut ticket) {
            let mailbox = Mailbox(memory.at([BOX, BOX2][number as usize]));
            assert!(mailbox.is_posted());
            let mut words = [0];
            mailbox.get_words(0, &mut words);
            mailbox.put_words(0, &[words[0] * 2]);
            mailbox.reply();
            mailbox.wake();
            served += 1;
            continue;
        }
        bell.set_asleep(true);
        if !queue.ready(&ticket) {
            memory.wait(EVENT, seen, FOREVER);
            seen = memory.word32(EVENT).0.load(Ordering::SeqCst);
        }
        bell.set_asleep(false);
    }
}

fn one_client(strength: Strength) {
    let memory = channel(strength);
    let worker = memory.clone();
    let worker = thread::spawn(move || work(&worker, 2));
    assert_eq!(call(&memory, 0, 21), 42);
    assert_eq!(call(&memory, 0, 4), 8);
    worker.join().unwrap();
}

fn two_clients(strength: Strength) {
    let memory = channel(strength);
    let clients = [0, 1].map(|number| {
        let memory = memory.clone();
        thread::spawn(move || {
            assert_eq!(call(&memory, number, 5 + u64::from(number)), 10 + 2 * u64::from(number));
        })
    });
    work(&memory, 2);
    clients.into_iter().for_each(|client| client.join().unwrap());
}

/// A few looks without sleeping: the number that the doorbell gives stands for a posted request,
/// whose words are the client's.
fn one_post(strength: Strength) {
    let memory = channel(strength);
    let worker = memory.clone();
    let worker = thread::spawn(move || {
        let (queue, mut ticket) = (Doorbell::new(worker.at(BITS), 2), Ticket::default());
        if (0..2).any(|_| queue.pop(&mut ticket) == Some(0)) {
            let mailbox = Mailbox(worker.at(BOX));
            let (posted, mut words) = (mailbox.is_posted(), [0]);
            mailbox.get_words(0, &mut words);
            assert!(posted && words == [21], "stale: {posted} {words:?}");
        }
    });
    let mailbox = Mailbox(memory.at(BOX));
    mailbox.put_words(0, &[21]);
    mailbox.post(0);
    Doorbell::new(memory.at(BITS), 2).push(0);
    worker.join().unwrap();
}

/// A mailbox that two workers hear of: each looks at it itself, as if it watched it. Two requests
/// are served once each, with their own words.
fn two_workers(strength: Strength) {
    let memory = channel(strength);
    let workers = [0, 1].map(|_| {
        let memory = memory.clone();
        thread::spawn(move || {
            let mailbox = Mailbox(memory.at(BOX));
            let served = (0..2).filter(|_| serve_if_posted(&memory, &mailbox)).count();
            served as u32
        })
    });
    let mailbox = Mailbox(memory.at(BOX));
    let mut posted = 1;
    mailbox.put_words(0, &[5]);
    mailbox.post(0);
    if mailbox.is_free() {
        assert_eq!(reply_of(&mailbox), 10, "garbled");
        mailbox.put_words(0, &[7]);
        mailbox.post(0);
        posted += 1;
    }
    let served: u32 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
    // The workers may have looked too early; what is left must still be there for a later look.
    let left = u32::from(!mailbox.is_free());
    assert_eq!(served + left, posted, "served twice, or lost");
    assert_eq!(u32::from(serve_if_posted(&memory, &mailbox)), left, "stranded");
    assert_eq!(reply_of(&mailbox), [10, 14][posted as usize - 1], "garbled");
}

fn reply_of(mailbox: &Mailbox<Shared>) -> u64 {
    let mut words = [0];
    mailbox.get_words(0, &mut words);
    words[0]
}

fn serve_if_posted(memory: &Shared, mailbox: &Mailbox<Shared>) -> bool {
    let claim = Claim(memory.word32(CLAIM));
    let accepted = claim.accept(|| mailbox.is_posted(), thread::yield_now);
    if accepted {
        mailbox.put_words(0, &[reply_of(mailbox) * 2]);
        claim.finish(|| mailbox.reply());
    }
    accepted
}

#[test]
fn mailbox_with_two_workers() {
    check(|| two_workers(Strength::Full));
}

#[test]
#[ignore = "must fail; run by weakened_orderings_are_found_out"]
fn weak_mailbox_is_served_garbled() {
    check(|| two_workers(Strength::NoAcquireRelease));
}

/// The worker ends its watch while the client posts: one of them sees it, and the request is found.
fn end_of_watch(strength: Strength) {
    let memory = channel(strength);
    Bell(memory.at(BELL)).watch(Some(0));
    let worker = memory.clone();
    let worker = thread::spawn(move || {
        Bell(worker.at(BELL)).watch(None);
        Mailbox(worker.at(BOX)).is_posted()
    });
    Mailbox(memory.at(BOX)).post(0);
    let watched = Bell(memory.at(BELL)).watches(0);
    let seen = worker.join().unwrap();
    assert!(seen || !watched, "stranded");
}

#[test]
fn mailbox_watch_strands_no_request() {
    check(|| end_of_watch(Strength::Full));
}

#[test]
#[ignore = "must fail; run by weakened_orderings_are_found_out"]
fn weak_mailbox_watch_strands_a_request() {
    check(|| end_of_watch(Strength::NoTotalOrder));
}

#[test]
fn mailbox_words_come_with_the_doorbell() {
    check(|| one_post(Strength::Full));
}

#[test]
fn mailbox_calls_of_one_client() {
    check(|| one_client(Strength::Full));
}

#[test]
fn mailbox_calls_of_two_clients() {
    check(|| two_clients(Strength::Full));
}

#[test]
#[ignore = "must fail; run by weakened_orderings_are_found_out"]
fn weak_mailbox_yields_stale_words() {
    check(|| one_post(Strength::NoAcquireRelease));
}

#[test]
#[ignore = "must fail; run by weakened_orderings_are_found_out"]
fn weak_mailbox_loses_a_wake_up() {
    check(|| one_client(Strength::NoTotalOrder));
}

// ---- the stream ------------------------------------------------------------------------------

/// Offset of the stream's count of applied entries.
const STREAM_DONE: usize = 64;

fn stream(strength: Strength) -> Stream<Shared> {
    let places = 0..2 * ENTRIES as usize;
    let words = places.flat_map(|place| [16, 24, 120].map(|word| 128 + 128 * place + word));
    let stream = Stream(Shared::new(
        strength,
        &[STREAM_DONE],
        &[0].into_iter().chain(words).collect::<Vec<_>>(),
    ));
    stream.open(0);
    stream
}

/// An entry that shows when it is not of one piece.
fn entry(number: u64) -> Entry {
    Entry { handle: number, time: number.cast_signed(), ..Entry::default() }
}

/// A step of a client.
#[derive(Clone, Copy)]
enum Step {
    Post(u64),
    Replace(u64),
}

/// Does the steps; returns what the stream said that it holds, in the form it said last.
fn stream_client(stream: &Stream<Shared>, steps: &[Step]) -> Vec<u64> {
    let mut told = Vec::new();
    for step in steps {
        match *step {
            Step::Post(number) => {
                if matches!(stream.post(&entry(number)), Posted::Waiting(_)) {
                    told.push(number);
                }
            }
            Step::Replace(number) => {
                if stream.replace(&entry(number)) {
                    *told.last_mut().expect("an entry to replace") = number;
                }
            }
        }
    }
    told
}

/// Claims and finishes twice, then shuts the gate and takes the rest.
fn stream_service(stream: &Stream<Shared>) -> Vec<u64> {
    let (mut claimed, mut all) = (0, Vec::new());
    for turn in 0..3 {
        if turn == 2 {
            stream.shut();
        }
        claimed = stream.claim(claimed, &mut all).expect("an honest client");
        stream.finish(claimed);
    }
    let whole = |entry: &Entry| entry.handle != 0 && entry.handle == entry.time.cast_unsigned();
    assert!(all.iter().all(whole), "stale: {all:?}");
    all.iter().map(|entry| entry.handle).collect()
}

/// What a client was told is applied, once, in order and in its last form; nothing else is.
fn stream_agrees(strength: Strength, steps: &'static [Step]) {
    let theirs = stream(strength);
    let ours = theirs.clone();
    let client = thread::spawn(move || stream_client(&theirs, steps));
    let applied = stream_service(&ours);
    let told = client.join().unwrap();
    assert_eq!(applied, told, "applied and told");
}

const REPLACING: [Step; 4] = [Step::Post(1), Step::Replace(2), Step::Replace(3), Step::Post(4)];
const WRAPPING: [Step; 4] = [Step::Post(1), Step::Post(2), Step::Post(3), Step::Replace(4)];

#[test]
fn stream_entries_are_applied_in_their_last_form() {
    check(|| stream_agrees(Strength::Full, &REPLACING));
}

#[test]
fn stream_entries_wrap() {
    check(|| stream_agrees(Strength::Full, &WRAPPING));
}

#[test]
#[ignore = "must fail; run by weakened_orderings_are_found_out"]
fn weak_stream_yields_a_stale_entry() {
    check(|| stream_agrees(Strength::NoAcquireRelease, &REPLACING));
}

// ---- views -----------------------------------------------------------------------------------

/// Where the entry of the one frame lies: behind the one view.
const FIRST_ENTRY: usize = 512;

/// Words of one view and one frame: a sequence number, the state, two words for 13 of the file's
/// own, the gate with its times, the room to grow, the two ends, where to ask for more, the open
/// file that may rest, the spare frame, what the gate said at first; the entry's, and two words for
/// the bytes of the frame.
fn views(strength: Strength) -> (Views<Shared>, Shared) {
    let attr: Vec<usize> = (0..13).map(|n| 24 + 8 * n).collect();
    let own = [8, 16, 128, 136, 144, 152, 160, 168, 176, 184, 208, FIRST_ENTRY + 8];
    let w64 = [&own[..], &attr].concat();
    let views = Views {
        memory: Shared::new(strength, &[0, 200, FIRST_ENTRY, FIRST_ENTRY + 4], &w64),
        frames: 1,
    };
    (views, Shared::new(strength, &[], &[0, 8]))
}

fn put_bytes(bytes: &Shared, value: u64) {
    [0, 8].iter().for_each(|&at| bytes.word64(at).store(value, Ordering::Relaxed));
}

fn get_bytes(bytes: &Shared) -> [u64; 2] {
    [0, 8].map(|at| bytes.word64(at).load(Ordering::Relaxed))
}

/// A page is changed, and then another file's is put in its place: who finds it reads one of its
/// own states, and the last one once told that it changed.
fn frame_is_read_whole(strength: Strength) {
    let ((ours, bytes), told) = (views(strength), Arc::new(AtomicU32::new(0)));
    let no_attr = WireAttr::default();
    let put = |value, tag| ours.put_page(0, (tag, 0), |_| put_bytes(&bytes, value));
    ours.put(0, (1, HAS_DATA), 1, &no_attr);
    put(1, tag(1, 0).unwrap());
    let (theirs, seen, heard) = (ours.clone(), bytes.clone(), told.clone());
    let client = thread::spawn(move || {
        let after = heard.load(Ordering::Acquire);
        let look = theirs.look(0)?;
        let found = theirs.find(look, 0)?;
        let got = get_bytes(&seen);
        let counts = theirs.is_whole(found) && theirs.is_same(0, look);
        counts.then_some((got, after))
    });
    put(2, tag(1, 0).unwrap());
    told.store(1, Ordering::Release);
    put(3, tag(2, 0).unwrap());
    if let Some((got, after)) = client.join().unwrap() {
        assert!(got == [1, 1] && after == 0 || got == [2, 2], "stale: {got:?} after {after}");
    }
}

#[test]
fn frames_are_read_whole() {
    check(|| frame_is_read_whole(Strength::Full));
}

#[test]
#[ignore = "must fail; run by weakened_orderings_are_found_out"]
fn weak_frame_is_read_torn() {
    check(|| frame_is_read_whole(Strength::NoAcquireRelease));
}

/// A client reads a file that is on loan, and writes to it, while the service takes in when it was
/// read: the client is told the time of its read, and no state once it wrote; nor does the service
/// find the loan unwritten then.
#[test]
fn the_state_of_a_file_on_loan_is_one_that_was() {
    check(|| {
        let ((ours, _), told) = (views(Strength::Full), Arc::new(AtomicU32::new(0)));
        let on_loan = HAS_DATA | HAS_ATTR | NOTES_READS | UNTIL_WRITTEN;
        ours.shut_gate(0);
        ours.put(0, (1, HAS_DATA | HAS_ATTR), 1, &WireAttr::default());
        ours.put_has(0, (1, on_loan));
        let opened = ours.open_gate(0, 1, (0, 0));
        let (theirs, says) = (ours.clone(), told.clone());
        let client = thread::spawn(move || {
            theirs.note_read(0, || 9);
            let read = theirs.attr(0).map(|attr| attr.nsec[0]);
            let inside = theirs.enter(0).expect("the gate is open");
            assert!(theirs.leave(0, inside, Some(10), 1));
            says.store(1, Ordering::Release);
            assert_eq!(theirs.attr(0), None, "it was written to");
            read
        });
        let after = told.load(Ordering::Acquire) == 1;
        let unwritten = ours.is_as_opened(0, opened);
        assert!(!(after && unwritten), "lost: what was written");
        if unwritten && ours.has_noted(0) {
            ours.put_has(0, (1, HAS_DATA | NOTES_READS));
            assert_eq!(ours.take_read(0), Some(9));
        }
        let read = client.join().unwrap();
        assert!(matches!(read, None | Some(9)), "a read that the client did is lost: {read:?}");
    });
}

/// A page of ones on loan, and its bytes.
fn lent_page(strength: Strength) -> (Views<Shared>, Shared) {
    let (ours, bytes) = views(strength);
    ours.put(0, (1, HAS_DATA), 1, &WireAttr::default());
    ours.put_page(0, (tag(1, 0).unwrap(), 0), |_| put_bytes(&bytes, 1));
    assert!(ours.shut_gate(0));
    ours.let_write(0, 0);
    ours.open_gate(0, 0, (0, 0));
    (ours, bytes)
}

/// A client writes while the service takes back: what counts as written is taken, and the frame is
/// used for something else only when nobody is inside.
fn written_is_taken(strength: Strength) {
    let (ours, bytes) = lent_page(strength);
    let (theirs, frame) = (ours.clone(), bytes.clone());
    let client = thread::spawn(move || {
        let inside = theirs.enter(0)?;
        let found = theirs.find(theirs.look(0)?, 0).expect("it stays while we are inside");
        let may = theirs.mark(found);
        if may {
            put_bytes(&frame, 2);
            assert!(get_bytes(&frame) == [2, 2], "torn: another has the frame");
        }
        let counts = theirs.leave(0, inside, None, 0);
        assert!(may || !counts, "it was taken back with the gate shut");
        counts.then_some(())
    });
    let left = ours.shut_gate(0);
    let taken = if ours.take_back(0).written { get_bytes(&bytes) } else { [1, 1] };
    if left || ours.is_left(0) {
        put_bytes(&bytes, 9);
    }
    let done = client.join().unwrap().is_some();
    assert!(!done || taken == [2, 2], "lost: {taken:?}");
    assert!(ours.is_left(0));
}

/// A page is taken back while the gate stays open: once nobody was found inside, it stays what it
/// is, and what counts as written before is in it.
fn passed_stays(strength: Strength) {
    let (ours, bytes) = lent_page(strength);
    let (theirs, frame) = (ours.clone(), bytes.clone());
    let client = thread::spawn(move || {
        let inside = theirs.enter(0)?;
        let found = theirs.find(theirs.look(0)?, 0).expect("it stays while we are inside");
        let may = theirs.mark(found);
        if may {
            put_bytes(&frame, 2);
        }
        let counts = theirs.leave(0, inside, None, 0);
        assert!(counts, "nobody shuts the gate");
        may.then_some(())
    });
    ours.take_back(0);
    let taken = ours.is_passed(0).then(|| get_bytes(&bytes));
    let done = client.join().unwrap().is_some();
    if let Some(taken) = taken {
        assert!(
            taken == if done { [2, 2] } else { [1, 1] },
            "changed after it was taken: {taken:?}"
        );
    }
}

/// A client writes a page anew in a spare frame, and then once more, while the service takes it
/// back and another thread reads it: both find one that was there, and what counts is taken.
fn switched_is_whole(strength: Strength) {
    let (ours, bytes) = lent_page(strength);
    let frames = [bytes, Shared::new(strength, &[], &[0, 8])];
    ours.put_spare(0, Some(1));
    let (theirs, mine) = (ours.clone(), frames.clone());
    let client = thread::spawn(move || {
        let inside = theirs.enter(0)?;
        let mut done = 1;
        for value in [2, 3] {
            let found = theirs.find(theirs.look(0)?, 0).expect("it stays while we are inside");
            let spare = theirs.spare(0).expect("a spare frame");
            put_bytes(&mine[spare as usize], value);
            if !theirs.switch(0, found, spare) {
                break;
            }
            done = value;
        }
        theirs.leave(0, inside, None, 0).then_some(done)
    });
    let (reads, seen) = (ours.clone(), frames.clone());
    let reader = thread::spawn(move || {
        let look = reads.look(0)?;
        let found = reads.find(look, 0)?;
        let frame = (reads.found_offset(found) - reads.frame_offset(0)) / FRAME_BYTES;
        let got = get_bytes(&seen[frame]);
        reads.is_whole(found).then_some(got)
    });
    ours.shut_gate(0);
    let taken = ours.take_back(0);
    let got = get_bytes(&frames[taken.frame as usize]);
    assert!(got[0] == got[1] && got[0] > 0, "torn: {got:?}");
    assert!(taken.written == (got[0] > 1), "stale: {got:?}");
    if let Some(read) = reader.join().unwrap() {
        assert!(read[0] == read[1] && read[0] > 0, "read torn: {read:?}");
    }
    if let Some(done) = client.join().unwrap() {
        assert!(got == [done, done], "lost: {got:?} of {done}");
    }
}

#[test]
fn what_is_switched_is_whole() {
    check(|| switched_is_whole(Strength::Full));
}

#[test]
#[ignore = "must fail; run by weakened_orderings_are_found_out"]
fn weak_switch_takes_a_stale_page() {
    check(|| switched_is_whole(Strength::NoAcquireRelease));
}

#[test]
fn what_was_passed_stays() {
    check(|| passed_stays(Strength::Full));
}

#[test]
fn what_counts_as_written_is_taken() {
    check(|| written_is_taken(Strength::Full));
}

#[test]
#[ignore = "must fail; run by weakened_orderings_are_found_out"]
fn weak_gate_loses_a_write() {
    check(|| written_is_taken(Strength::NoAcquireRelease));
}

/// A client closes a file that may rest, and may find it again, while its last name is removed: it
/// stays open afterwards only where the client knows that its name is gone, and closes it.
fn nothing_nameless_rests(strength: Strength, opens_again: bool) {
    let (ours, mark) = views(strength);
    ours.put_rest(0, 1);
    let (theirs, seen) = (ours.clone(), mark.clone());
    let holds = move || seen.word64(0).load(Ordering::Acquire) == 0;
    let client = thread::spawn(move || {
        let mut rests = theirs.lie_down(0, 1) && (holds() || !theirs.get_up(0, 1));
        if rests && opens_again && theirs.get_up(0, 1) {
            // In use while it had its name; closed at once, by a request.
            let _ = holds();
            rests = false;
        }
        rests
    });
    mark.word64(0).fetch_add(1, Ordering::SeqCst);
    let taken = ours.take_rest(0, 1);
    assert!(!client.join().unwrap() || taken, "kept: at rest without a name");
}

#[test]
fn what_rests_has_a_name() {
    check(|| nothing_nameless_rests(Strength::Full, false));
    check(|| nothing_nameless_rests(Strength::Full, true));
}

#[test]
#[ignore = "must fail; run by weakened_orderings_are_found_out"]
fn weak_rest_keeps_a_file_without_a_name() {
    check(|| nothing_nameless_rests(Strength::NoTotalOrder, false));
}
