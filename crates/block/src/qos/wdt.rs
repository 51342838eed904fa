//! WDT as published: "Weight-based Dynamic Throttling" (Ahn, La, Kim, HotStorage'16).
//!
//! Credits are sectors, reads and writes alike. Every throttling window (100 ms) lane `k` has a
//! budget `B` and what it left over, `R`; a request goes while the used credit `U < B + R`. Every
//! update window (1 s) the total changes by the demand predicted for the heaviest lane:
//!
//! ```text
//! B'max = (Mean(CPM) + Std(CPM) * probit(0.8)) * 100 ms
//! TotalCredit *= B'max / Bmax              B[k] = TotalCredit * w[k] / sum(w)
//! ```
//!
//! What the paper leaves open, and the choice made:
//!
//! - *CPM*, "the I/O service rate in credits per millisecond": over the time until the credits ran
//!   out. Over the whole window the total could never grow: a saturated lane would always show `B`.
//! - *Cumulative distribution*: over all windows since the lane was added.
//! - *Which lanes*: all that exist; "I/O-active" is not defined.
//! - *Residual credit*: no cap is stated, so there is none.
//! - *TotalCredit at the start*: given; the device's nominal rate is the natural value.
//! - *No demand*: a total of 0 would stay 0 whatever is demanded later, and no lane could ever do
//!   anything. So the total has a least value, of which each lane has its part.

use super::{Io, Nanos, Policy, Verdict};

/// The throttling window.
pub const WINDOW_NS: Nanos = 100_000_000;

/// Throttling windows in an update window.
pub const UPDATE_WINDOW_COUNT: u64 = 10;

/// The percentile of the demand that is provided for.
pub const PERCENTILE: f64 = 0.8;

/// The total never falls below this part of what it was at the start, ...
const TOTAL_PART_MIN: f64 = 1.0 / 128.0;

/// ... nor below this many credits for each lane: a page in each window.
const CREDITS_MIN: f64 = 8.0;

/// The total is never more credits than this: far more than any device has, and a number that
/// rounds to one.
const TOTAL_MAX: f64 = 1e15;

/// Credits in a request.
const SECTOR_BYTES: u64 = 512;

/// Running mean and deviation (Welford).
#[derive(Clone, Copy, Default)]
struct Statistics {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Statistics {
    fn record(&mut self, value: f64) {
        self.count += 1.0;
        let delta = value - self.mean;
        self.mean += delta / self.count;
        self.squares += delta * (value - self.mean);
    }

    fn deviation(&self) -> f64 {
        if self.count > 0.0 { (self.squares / self.count).sqrt() } else { 0.0 }
    }
}

/// What a lane used in a window.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Use {
    /// Credits.
    pub credits: f64,
    /// Time until they ran out, or the whole window; at least 1.
    pub active_ns: Nanos,
}

#[derive(Clone, Copy, Default)]
struct Lane {
    weight: u32,
    budget: f64,
    used: f64,
    residual: f64,
    /// When in the window the credits ran out.
    exhausted: Option<Nanos>,
    cpm: Statistics,
}

/// The policy.
pub struct Wdt {
    lanes: Vec<Lane>,
    total_credit: f64,
    total_min: f64,
    probit: f64,
    window_start: Nanos,
    windows: u64,
}

impl Wdt {
    /// Starts with the credits of a device of so many bytes per second.
    pub fn new(bytes_per_s: u64) -> Self {
        Wdt::with_percentile(bytes_per_s, PERCENTILE)
    }

    /// The same with another percentile of the demand, between 0 and 1.
    pub fn with_percentile(bytes_per_s: u64, percentile: f64) -> Self {
        let seconds = WINDOW_NS as f64 / 1e9;
        let total_credit = bytes_per_s as f64 / SECTOR_BYTES as f64 * seconds;
        Wdt {
            lanes: Vec::new(),
            total_credit,
            total_min: total_credit * TOTAL_PART_MIN,
            probit: probit(percentile),
            window_start: 0,
            windows: 0,
        }
    }

    /// Credits that all lanes get in a window.
    pub fn total_credit(&self) -> f64 {
        self.total_credit
    }

    /// Adds a lane, the last.
    pub fn add(&mut self, weight: u32) {
        self.lanes.push(Lane { weight: weight.max(1), ..Lane::default() });
        self.distribute();
    }

    /// Takes a lane away; those after it move up.
    pub fn remove(&mut self, lane: usize) {
        self.lanes.remove(lane);
        self.distribute();
    }

    /// Changes a weight, from the next update window on, as budgets do.
    pub fn set(&mut self, lane: usize, weight: u32) {
        self.lanes[lane].weight = weight.max(1);
    }

    /// Credits that a lane gets in a window.
    pub fn budget(&self, lane: usize) -> f64 {
        self.lanes[lane].budget
    }

    fn distribute(&mut self) {
        let sum: f64 = self.lanes.iter().map(|lane| f64::from(lane.weight)).sum();
        for lane in &mut self.lanes {
            lane.budget = self.total_credit * f64::from(lane.weight) / sum;
        }
    }

    fn end_window(&mut self, end: Nanos) {
        let start = self.window_start;
        let used = |lane: &Lane| Use {
            credits: lane.used,
            active_ns: lane.exhausted.unwrap_or(end).saturating_sub(start).max(1),
        };
        let uses: Vec<Use> = self.lanes.iter().map(used).collect();
        self.window_start = end;
        self.close_window(&uses);
    }

    /// Ends a throttling window in which the lanes, in their order, used so much.
    pub fn close_window(&mut self, uses: &[Use]) {
        for (lane, used) in self.lanes.iter_mut().zip(uses) {
            lane.cpm.record(used.credits / (used.active_ns.max(1) as f64 / 1e6));
            lane.residual += lane.budget - used.credits;
            (lane.used, lane.exhausted) = (0.0, None);
        }
        self.windows += 1;
        if self.windows.is_multiple_of(UPDATE_WINDOW_COUNT) {
            self.update();
        }
    }

    fn update(&mut self) {
        // The first of equals, so that the choice does not change from window to window.
        let heaviest = self.lanes.iter().rev().max_by_key(|lane| lane.weight);
        let Some(heaviest) = heaviest.filter(|lane| lane.budget > 0.0) else { return };
        let cpm = heaviest.cpm.mean + heaviest.cpm.deviation() * self.probit;
        let demand = cpm.max(0.0) * (WINDOW_NS as f64 / 1e6);
        let total = self.total_credit * demand / heaviest.budget;
        let least = self.total_min.max(CREDITS_MIN * self.lanes.len() as f64);
        // What is not a number is no demand.
        self.total_credit = total.max(least).min(TOTAL_MAX);
        self.distribute();
    }
}

impl Policy for Wdt {
    fn add_lane(&mut self, weight: u32) -> usize {
        self.add(weight);
        self.lanes.len() - 1
    }

    fn set_weight(&mut self, lane: usize, weight: u32) {
        self.set(lane, weight);
    }

    fn admit(&mut self, now: Nanos, lane: usize, io: &Io) -> Verdict {
        let lane = &mut self.lanes[lane];
        if lane.used >= lane.budget + lane.residual {
            lane.exhausted.get_or_insert(now);
            return Verdict::Wait(self.window_start + WINDOW_NS);
        }
        lane.used += io.bytes.div_ceil(SECTOR_BYTES) as f64;
        Verdict::Go
    }

    fn complete(&mut self, _now: Nanos, _lane: usize, _io: &Io) {}

    fn tick(&mut self, now: Nanos) {
        while now >= self.window_start + WINDOW_NS {
            self.end_window(self.window_start + WINDOW_NS);
        }
    }

    fn next_tick(&self) -> Nanos {
        self.window_start + WINDOW_NS
    }
}

/// The quantile of the standard normal distribution, by bisection of its distribution function;
/// the argument is held between 0.001 and 0.999.
fn probit(p: f64) -> f64 {
    let p = p.clamp(0.001, 0.999);
    let (mut low, mut high) = (-4.0, 4.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if normal(middle) < p { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

/// The standard normal distribution function (Abramowitz and Stegun 26.2.17, error below 1e-7).
fn normal(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let series = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let sum = series.iter().rev().fold(0.0, |sum, factor| (sum + factor) * t);
    let tail = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt() * sum;
    if x >= 0.0 { 1.0 - tail } else { tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_demand_leaves_a_part_that_grows_again() {
        let mut wdt = Wdt::new(100_000_000);
        let start = wdt.total_credit();
        wdt.add(3);
        let idle = Use { credits: 0.0, active_ns: WINDOW_NS };
        (0..100).for_each(|_| wdt.close_window(&[idle]));
        assert!(wdt.total_credit() >= start / 200.0 && wdt.budget(0) == wdt.total_credit());
        for _ in 0..400 {
            // Its credit is gone after a tenth of the window.
            wdt.close_window(&[Use { credits: wdt.budget(0), active_ns: WINDOW_NS / 10 }]);
        }
        assert!(wdt.total_credit() > start / 2.0, "{} of {start}", wdt.total_credit());
        wdt.close_window(&[Use { credits: f64::NAN, active_ns: 0 }]);
        (0..20).for_each(|_| wdt.close_window(&[idle]));
        assert!(wdt.total_credit() > 0.0 && wdt.total_credit().is_finite());
    }

    #[test]
    fn probit_is_the_normal_quantile() {
        for (p, quantile) in [(0.5, 0.0), (0.8, 0.841_621), (0.975, 1.959_964), (0.2, -0.841_621)] {
            assert!((probit(p) - quantile).abs() < 1e-4, "{p}: {}", probit(p));
        }
    }

    #[test]
    fn a_window_follows_the_paper() {
        // 1 MB/s: 195.3 sectors a window; weights 3 and 1.
        let mut wdt = Wdt::new(1_000_000);
        let lanes = [wdt.add_lane(3), wdt.add_lane(1)];
        let io = Io { kind: super::super::Kind::Read, bytes: 51_200, sequential: false };
        // 100 sectors each: the second goes because U = 100 < 146.5, the third waits.
        let goes: Vec<Verdict> = (0..3).map(|_| wdt.admit(10, lanes[0], &io)).collect();
        assert_eq!(goes, [Verdict::Go, Verdict::Go, Verdict::Wait(WINDOW_NS)]);
        wdt.tick(WINDOW_NS);
        // Overdrawn by 53.5, so only one goes in the next window.
        let goes: Vec<Verdict> = (0..2).map(|_| wdt.admit(WINDOW_NS, lanes[0], &io)).collect();
        assert_eq!(goes, [Verdict::Go, Verdict::Wait(2 * WINDOW_NS)]);
    }

    #[test]
    fn a_light_heaviest_lane_starves_the_device() {
        let mut wdt = Wdt::new(100_000_000);
        let heavy = wdt.add_lane(10);
        wdt.add_lane(1);
        let (before, io) = (
            wdt.total_credit(),
            Io { kind: super::super::Kind::Read, bytes: 4096, sequential: false },
        );
        for window in 0..10 {
            wdt.admit(window * WINDOW_NS, heavy, &io);
            wdt.tick((window + 1) * WINDOW_NS);
        }
        assert!(wdt.total_credit() < before / 100.0);
    }
}
