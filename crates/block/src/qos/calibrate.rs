//! What a device's requests cost, measured: for each kind the rate of random pages, of large
//! random requests and of pages one after the other, with many in flight.
//!
//! ```text
//! page_ns       = (time of 128 KiB − time of 4 KiB) / 31
//! random_ns     = time of a random 4 KiB − page_ns
//! sequential_ns = time of a 4 KiB that continues the last − page_ns, at most random_ns
//! ```
//!
//! The time of a request is the inverse of the rate, so a device that serves many at a time has a
//! capacity of 1 by these costs. Each shape is measured in turns with the others, and its best turn
//! counts: whatever else the disk or the CPUs do for a moment would make one shape dearer than it
//! is, and a page of large requests cheaper. A discard and a flush cost what a random page written
//! does: how long they keep others waiting differs too much from one to the next to be measured in
//! a moment.

use std::sync::Arc;
use std::time::Duration;

use polylane_base::rng::Rng;
use polylane_sys::buffer::Buffer;

use super::Nanos;
use super::cost::{CostModel, Line, PAGE_BYTES};
use super::governed::monotonic_ns;
use crate::device::{
    BlockDevice, Channel, Completion, Error, Op, Request, SECTOR_BYTES, Sector, Submitted,
};

/// Pages of a large request.
const LARGE_PAGES: u64 = 32;

/// Requests in flight.
const DEPTH: usize = 32;

/// Turns in which each shape is measured.
const TURNS: u32 = 4;

/// Bytes that the device must have.
pub const BYTES_MIN: u64 = 16 << 20;

/// What was measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Measured {
    /// The costs.
    pub cost: CostModel,
    /// Requests that it took.
    pub requests: u64,
}

/// Measures the costs on a device whose content does not matter: it is read **and written**. Takes
/// six times `each`, four times as long if the device is slow, and what is in flight after that.
///
/// # Errors
/// A request fails; [`Error::OutOfRange`] for a device that is smaller than [`BYTES_MIN`].
pub fn measure(device: &Arc<dyn BlockDevice>, each: Duration) -> Result<Measured, Error> {
    measure_by(device, each, &monotonic_ns)
}

/// [`measure`] by another clock.
fn measure_by(
    device: &Arc<dyn BlockDevice>,
    each: Duration,
    clock: &dyn Fn() -> Nanos,
) -> Result<Measured, Error> {
    if device.sector_count() * (SECTOR_BYTES as u64) < BYTES_MIN {
        return Err(Error::OutOfRange);
    }
    let mut requests = 0;
    // By direction: a random page, a large request, a page that continues the last.
    let mut best = [[f64::INFINITY; 3]; 2];
    for _ in 0..TURNS {
        for (op, best) in [Op::Read, Op::Write { fua: false }].into_iter().zip(&mut best) {
            let shapes = [(1, true), (LARGE_PAGES, true), (1, false)];
            for ((pages, random), best) in shapes.into_iter().zip(best) {
                let probe = Probe { op, pages, random };
                let (ns, sent) = probe.time_ns(device, each, clock)?;
                requests += sent;
                *best = best.min(ns);
            }
        }
    }
    let [read, write] = best.map(|[small, large, next]| solve(small, large, next));
    let page = write.random_ns + write.page_ns;
    Ok(Measured { cost: CostModel { read, write, discard_ns: page, flush_ns: page }, requests })
}

/// The coefficients that give these times of a random page, a large request and a page that
/// continues another.
fn solve(small_ns: f64, large_ns: f64, next_ns: f64) -> Line {
    let page = ((large_ns - small_ns) / (LARGE_PAGES - 1) as f64).clamp(0.0, small_ns);
    let random = small_ns - page;
    let sequential = (next_ns - page).clamp(0.0, random);
    let [sequential_ns, random_ns, page_ns] =
        [sequential, random, page].map(|ns| ns.round().max(1.0) as u64);
    Line { sequential_ns, random_ns, page_ns }
}

/// Requests of one shape.
struct Probe {
    op: Op,
    pages: u64,
    random: bool,
}

impl Probe {
    /// Device time of a request in one turn, in nanoseconds, and how many were sent. A turn lasts
    /// a quarter of `each`, and on until as many are answered as are in flight, `each` at most.
    fn time_ns(
        &self,
        device: &Arc<dyn BlockDevice>,
        each: Duration,
        clock: &dyn Fn() -> Nanos,
    ) -> Result<(f64, u64), Error> {
        let mut channel = device.clone().channel();
        let pieces = device.sector_count() * SECTOR_BYTES as u64 / self.bytes();
        let mut rng = Rng::new(pieces);
        let mut spare: Vec<Buffer> =
            (0..DEPTH).map(|_| Buffer::copy_of(&vec![0x5a; self.bytes() as usize])).collect();
        let (begin, mut sent, mut done) = (clock(), 0, Vec::new());
        let elapsed = || clock().saturating_sub(begin);
        let mut answered = 0;
        let goes_on = |answered: u64| {
            let ns = u128::from(elapsed());
            ns < (each / TURNS).as_nanos() || answered < DEPTH as u64 && ns < each.as_nanos()
        };
        while goes_on(answered) {
            while let Some(buffer) = spare.pop() {
                let piece = if self.random { rng.below(pieces) } else { sent % pieces };
                done.extend(self.send(&mut *channel, piece, buffer)?);
                sent += 1;
            }
            answered += collect(&mut *channel, &mut done, &mut spare)?;
        }
        let ns = elapsed() as f64;
        let counted = answered.max(1);
        while answered < sent {
            answered += collect(&mut *channel, &mut done, &mut spare)?;
        }
        Ok((ns / counted as f64, sent))
    }

    fn bytes(&self) -> u64 {
        self.pages * PAGE_BYTES
    }

    fn send(
        &self,
        channel: &mut dyn Channel,
        piece: u64,
        buffer: Buffer,
    ) -> Result<Option<Completion>, Error> {
        let sector = Sector(piece * self.bytes() / SECTOR_BYTES as u64);
        match channel.submit(Request::with_data(self.op, sector, vec![buffer], 0)) {
            Submitted::Done(completion) => Ok(Some(completion)),
            Submitted::Pending => Ok(None),
            Submitted::Busy(request) => {
                drop(request.complete(Err(Error::Unsupported)));
                Err(Error::Unsupported)
            }
        }
    }
}

/// Takes answers in; how many.
fn collect(
    channel: &mut dyn Channel,
    done: &mut Vec<Completion>,
    spare: &mut Vec<Buffer>,
) -> Result<u64, Error> {
    channel.poll(done);
    if done.is_empty() {
        channel.park();
        channel.poll(done);
    }
    let count = done.len() as u64;
    for completion in done.drain(..) {
        completion.result?;
        spare.extend(completion.data);
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use polylane_base::Errno;

    use super::*;
    use crate::qos::{Io, Kind};

    /// A device that serves one request after the other at what the model says, by a clock of its
    /// own: it goes on when somebody waits.
    struct Simulated {
        truth: CostModel,
        now: AtomicU64,
        /// Until then a request takes five times as long.
        slow_until: Nanos,
        /// Requests after this many fail.
        good: u64,
    }

    struct SimulatedChannel {
        device: Arc<Simulated>,
        /// When the device is done with each.
        waiting: Vec<(Nanos, Completion)>,
        busy_until: Nanos,
        ends: [u64; 2],
        count: u64,
    }

    impl BlockDevice for Simulated {
        fn sector_count(&self) -> u64 {
            BYTES_MIN / SECTOR_BYTES as u64
        }

        fn channel(self: Arc<Self>) -> Box<dyn Channel> {
            let ends = [u64::MAX; 2];
            Box::new(SimulatedChannel {
                device: self,
                waiting: Vec::new(),
                busy_until: 0,
                ends,
                count: 0,
            })
        }
    }

    impl Channel for SimulatedChannel {
        fn submit(&mut self, request: Request) -> Submitted {
            let kind = if request.op == Op::Read { Kind::Read } else { Kind::Write };
            let end = &mut self.ends[usize::from(kind == Kind::Write)];
            let sequential = *end == request.sector.0;
            *end = request.sector.0 + request.count;
            let io = Io { kind, bytes: request.count * SECTOR_BYTES as u64, sequential };
            let begin = self.busy_until.max(self.device.now.load(Ordering::Relaxed));
            let times = if begin < self.device.slow_until { 5 } else { 1 };
            self.busy_until = begin + times * self.device.truth.cost_ns(&io);
            self.count += 1;
            let good = self.count <= self.device.good;
            let result = if good { Ok(()) } else { Err(Error::Medium(Errno::EIO)) };
            self.waiting.push((self.busy_until, request.complete(result)));
            Submitted::Pending
        }

        fn poll(&mut self, done: &mut Vec<Completion>) {
            let now = self.device.now.load(Ordering::Relaxed);
            let ready = self.waiting.iter().take_while(|(at, _)| *at <= now).count();
            done.extend(self.waiting.drain(..ready).map(|(_, completion)| completion));
        }

        fn park(&mut self) {
            if let Some((at, _)) = self.waiting.first() {
                self.device.now.fetch_max(*at, Ordering::Relaxed);
            }
        }
    }

    fn measured(truth: CostModel, good: u64) -> Result<Measured, Error> {
        measured_beside(truth, good, 0)
    }

    fn measured_beside(truth: CostModel, good: u64, slow_until: Nanos) -> Result<Measured, Error> {
        let device = Arc::new(Simulated { truth, now: AtomicU64::new(0), slow_until, good });
        let clock = || device.now.load(Ordering::Relaxed);
        let seen: Arc<dyn BlockDevice> = device.clone();
        measure_by(&seen, Duration::from_millis(80), &clock)
    }

    fn near(found: u64, truth: u64) -> bool {
        found.abs_diff(truth) <= 200 + truth / 20
    }

    #[test]
    fn the_costs_of_a_simulated_device_are_found() {
        let slow = Line { sequential_ns: 90_000, random_ns: 800_000, page_ns: 20_000 };
        let disk = CostModel { read: slow, write: slow, discard_ns: 0, flush_ns: 0 };
        for truth in [CostModel::default(), disk] {
            let found = measured(truth, u64::MAX).expect("measured").cost;
            for (found, truth) in [(found.read, truth.read), (found.write, truth.write)] {
                assert!(near(found.sequential_ns, truth.sequential_ns), "{found:?}: {truth:?}");
                assert!(near(found.random_ns, truth.random_ns), "{found:?}: {truth:?}");
                assert!(near(found.page_ns, truth.page_ns), "{found:?}: {truth:?}");
            }
        }
    }

    /// The disk is busy for as long as the first shapes are measured, or some more.
    #[test]
    fn what_disturbs_the_disk_for_a_moment_makes_no_shape_dearer() {
        let truth = CostModel::default();
        for slow_ms in [1, 20, 90, 250] {
            let found = measured_beside(truth, u64::MAX, slow_ms * 1_000_000).expect("measured");
            for (found, truth) in [(found.cost.read, truth.read), (found.cost.write, truth.write)] {
                assert!(near(found.random_ns, truth.random_ns), "{slow_ms} ms: {found:?}");
                assert!(near(found.page_ns, truth.page_ns), "{slow_ms} ms: {found:?}");
            }
        }
    }

    #[test]
    fn a_device_that_fails_or_is_too_small_has_no_costs() {
        assert_eq!(measured(CostModel::default(), 500), Err(Error::Medium(Errno::EIO)));
        let requests = measured(CostModel::default(), u64::MAX).expect("measured").requests;
        assert!(requests > 10_000, "{requests}");
        let small: Arc<dyn BlockDevice> = Arc::new(crate::ram::RamDevice::new(64));
        let each = Duration::from_millis(1);
        assert_eq!(measure(&small, each), Err(Error::OutOfRange));
    }

    #[test]
    fn what_is_solved_gives_the_times_back() {
        let truth = CostModel::default();
        for (line, kind) in [(truth.read, Kind::Read), (truth.write, Kind::Write)] {
            let time = |pages: u64, sequential| {
                truth.cost_ns(&Io { kind, bytes: pages * PAGE_BYTES, sequential }) as f64
            };
            let found = solve(time(1, false), time(LARGE_PAGES, false), time(1, true));
            assert_eq!(found, line);
        }
    }

    #[test]
    fn nonsense_is_solved_to_something_that_can_be_charged() {
        // Large requests faster than small ones; sequential ones slower than random ones.
        for times in [(100.0, 10.0, 1e9), (0.0, 0.0, 0.0), (10.0, 1e12, 5.0)] {
            let line = solve(times.0, times.1, times.2);
            assert!(line.page_ns >= 1 && line.random_ns >= line.sequential_ns, "{line:?}");
        }
    }
}
