//! The request queues beside two in-process ones that Rust programs use, with 1 to 16 producers and
//! as many consumers: throughput, and percentiles of enqueue, dequeue and of an item's time in the
//! queue.
//!
//! Every producer has [`WINDOW`] values of its own and enqueues one again only after it was taken:
//! what mailboxes are, and the same load for all.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use concurrent_queue::ConcurrentQueue;
use crossbeam_queue::ArrayQueue;
use polylane_ipc::memory::Mapped;
use polylane_ipc::queue::doorbell::Doorbell;
use polylane_ipc::queue::lap_ring::LapRing;
use polylane_ipc::queue::rcqb::Rcqb;
use polylane_ipc::queue::{RequestQueue, Ticket};
use polylane_sys::Region;

use crate::histogram::Histogram;
use crate::report::{Better, Report};
use crate::{Options, progress};

/// Values of one producer.
const WINDOW: usize = 16;
/// Most producers, and most consumers.
const SIDES: [usize; 5] = [1, 2, 4, 8, 16];
/// Slots of every ring.
const SLOTS: usize = 256;
/// One in so many operations is timed.
const SAMPLE: u64 = 16;
/// Vain looks before a thread lets others run.
const PATIENCE: u32 = 64;

const _: () = assert!(16 * WINDOW <= SLOTS);

/// A queue of the standard kind as a [`RequestQueue`].
struct Other<P, Q>(P, Q);

impl<P: Fn(u32) -> bool, Q: Fn() -> Option<u32>> RequestQueue for Other<P, Q> {
    fn push(&self, value: u32) -> bool {
        self.0(value)
    }

    fn pop(&self, _ticket: &mut Ticket) -> Option<u32> {
        self.1()
    }

    fn ready(&self, _ticket: &Ticket) -> bool {
        true
    }

    fn pop_wait(&self, ticket: &mut Ticket, _spins: u32, _timeout: Duration) -> Option<u32> {
        self.pop(ticket)
    }
}

/// # Errors
/// No memory for a region.
pub fn run(options: &Options) -> Result<Report> {
    let title = "n producers and n consumers, 16 values in flight per producer";
    let axis = "producers = consumers";
    let mut report = Report::new("queue", title, axis, "M items/s", Better::Higher);
    report.baseline = "mailbox".into();
    let time = Duration::from_millis(if options.quick { 80 } else { 300 });
    for repeat in 0..options.repeats() {
        for sides in SIDES {
            progress(&format!("queue: {sides} producers, repeat {}", repeat + 1));
            all_systems(&mut report, sides, time)?;
        }
    }
    let cpus = polylane_sys::cpu::allowed()?.len();
    report.notes.push(format!("threads are not pinned; beyond {cpus} of them they share CPUs"));
    report
        .notes
        .push("mailbox, rcqb and lap-ring lie in shared memory, the others on the heap".into());
    Ok(report)
}

fn all_systems(report: &mut Report, sides: usize, time: Duration) -> Result<()> {
    let bytes = Rcqb::<Mapped<'_>>::bytes(SLOTS).next_multiple_of(4096);
    let fresh = || Region::create("polylane-bench-queue", bytes);
    let region = fresh()?.0;
    let queue = Doorbell::new(Mapped::new(&region, 0), SLOTS);
    measure(report, "mailbox", sides, time, &queue);
    let region = fresh()?.0;
    measure(report, "rcqb", sides, time, &Rcqb::new(Mapped::new(&region, 0), SLOTS));
    let region = fresh()?.0;
    measure(report, "lap-ring", sides, time, &LapRing::new(Mapped::new(&region, 0), SLOTS));
    let array = ArrayQueue::new(SLOTS);
    let queue = Other(|value| array.push(value).is_ok(), || array.pop());
    measure(report, "crossbeam ArrayQueue", sides, time, &queue);
    let bounded = ConcurrentQueue::bounded(SLOTS);
    let queue = Other(|value| bounded.push(value).is_ok(), || bounded.pop().ok());
    measure(report, "concurrent-queue", sides, time, &queue);
    Ok(())
}

/// What the threads of one measurement share.
struct Load<'a, Q> {
    queue: &'a Q,
    /// Per value: 0 free, else in the queue: 1, or the nanosecond since `start` at which it was
    /// pushed.
    stamps: Vec<AtomicU64>,
    start: Instant,
    stop: AtomicBool,
    taken: AtomicU64,
}

fn measure<Q: RequestQueue + Sync>(
    report: &mut Report,
    system: &str,
    sides: usize,
    time: Duration,
    queue: &Q,
) {
    let load = Load {
        queue,
        stamps: (0..sides * WINDOW).map(|_| AtomicU64::new(0)).collect(),
        start: Instant::now(),
        stop: AtomicBool::new(false),
        taken: AtomicU64::new(0),
    };
    let (mut enqueue, mut dequeue, mut queueing) =
        (Histogram::default(), Histogram::default(), Histogram::default());
    std::thread::scope(|scope| {
        let load = &load;
        let producers: Vec<_> =
            (0..sides).map(|side| scope.spawn(move || load.produce(side))).collect();
        let consumers: Vec<_> = (0..sides).map(|_| scope.spawn(move || load.consume())).collect();
        std::thread::sleep(time);
        load.stop.store(true, Ordering::Relaxed);
        for producer in producers {
            enqueue.merge(&producer.join().expect("no panic"));
        }
        for consumer in consumers {
            let (operation, item) = consumer.join().expect("no panic");
            dequeue.merge(&operation);
            queueing.merge(&item);
        }
    });
    let rate = load.taken.load(Ordering::Relaxed) as f64 / load.start.elapsed().as_secs_f64();
    let extra = [
        ("enq_p50_ns", enqueue.quantile(0.5)),
        ("enq_p99_ns", enqueue.quantile(0.99)),
        ("deq_p50_ns", dequeue.quantile(0.5)),
        ("deq_p99_ns", dequeue.quantile(0.99)),
        ("item_p50_us", queueing.quantile(0.5) / 1e3),
        ("item_p99_us", queueing.quantile(0.99) / 1e3),
    ];
    report.add(system, &sides.to_string(), rate / 1e6, &extra);
}

impl<Q: RequestQueue> Load<'_, Q> {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn produce(&self, side: usize) -> Histogram {
        let (mut histogram, mut count, mut vain) = (Histogram::default(), 0u64, 0);
        let own = side * WINDOW..(side + 1) * WINDOW;
        for value in own.cycle() {
            while self.stamps[value].load(Ordering::Acquire) != 0 {
                if self.stopped() {
                    return histogram;
                }
                relax(&mut vain);
            }
            count += 1;
            if count.is_multiple_of(SAMPLE) {
                let start = self.now().max(2);
                self.stamps[value].store(start, Ordering::Relaxed);
                self.push(value);
                histogram.record(self.now() - start, 1);
            } else {
                self.stamps[value].store(1, Ordering::Relaxed);
                self.push(value);
            }
            if self.stopped() {
                break;
            }
        }
        histogram
    }

    fn push(&self, value: usize) {
        // Rings have a slot for every value, so this fails in passing only.
        let mut vain = 0;
        while !self.queue.push(value as u32) {
            relax(&mut vain);
        }
    }

    fn consume(&self) -> (Histogram, Histogram) {
        let (mut operation, mut item) = (Histogram::default(), Histogram::default());
        let (mut ticket, mut taken, mut vain) = (Ticket::default(), 0u64, 0);
        while !self.stopped() {
            let timed = taken.is_multiple_of(SAMPLE);
            let start = if timed { self.now() } else { 0 };
            let Some(value) = self.queue.pop(&mut ticket) else {
                relax(&mut vain);
                continue;
            };
            let stamp = self.stamps[value as usize].load(Ordering::Relaxed);
            if timed || stamp > 1 {
                let now = self.now();
                if timed {
                    operation.record(now - start, 1);
                }
                if stamp > 1 {
                    item.record(now.saturating_sub(stamp), 1);
                }
            }
            self.stamps[value as usize].store(0, Ordering::Release);
            taken += 1;
        }
        self.taken.fetch_add(taken, Ordering::Relaxed);
        (operation, item)
    }
}

fn relax(vain: &mut u32) {
    *vain += 1;
    if vain.is_multiple_of(PATIENCE) {
        std::thread::yield_now();
    } else {
        std::hint::spin_loop();
    }
}
