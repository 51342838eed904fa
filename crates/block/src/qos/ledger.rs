//! The default policy: lanes spend device time, a coordinator grants it every few milliseconds.
//!
//! ```text
//! lane:         admit  cost <= what is granted and not spent?  room in flight?   ─► go, charged
//! coordinator:  tick   who wanted more, who left over, what was done
//!                      ─► capacity ─► weighted max-min over demand ─► grants for the next window
//! ```
//!
//! *Capacity* is how much device time a second of time holds, in the unit that is charged, so
//! errors of the cost model do not matter to it. It is learned under saturation only: lanes that
//! have credit and always I/O in flight mean that the device is the limit, and what was done is the
//! capacity; lanes that wait for credit while nobody leaves any mean that it may be more, so it is
//! probed upwards. Nothing done with I/O in flight means nothing is known; a late tick teaches
//! nothing.
//!
//! *Donation*: a lane that did not want more is granted what it used and a margin; the rest goes to
//! who wants it. *Snap-back*: a lane below its fair share may draw on what nobody was granted
//! before the next tick, and its demand is unlimited from the next tick on.
//!
//! *In flight*: the device works on at most [`Config::inflight_ns`] of requests, each lane's part
//! by its share, so that a small lane does not queue behind a flood. With more active lanes than
//! requests fit in, one request each would be round-robin, so the cap is lifted then.
//!
//! # Invariants
//!
//! - The grants of a window sum up to the capacity times its length at most.
//! - A lane carries over a quarter of a window's grant at most; debt is carried whole.
//! - A lane that owes nothing and has nothing in flight may always start one request.

use super::cost::CostModel;
use super::share::{Claim, max_min};
use super::{Io, Nanos, Policy, Verdict};

/// What the coordinator goes by.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The window.
    pub tick_ns: Nanos,
    /// Parts of the window in which its grant is released, so that it is not used up at once.
    pub slice_count: u64,
    /// Device time of requests in flight: one and a half times the latency of a small read.
    pub inflight_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config { tick_ns: 5_000_000, slice_count: 5, inflight_ns: 160_000 }
    }
}

/// Over what the capacity is averaged, in windows.
const AVERAGE_WINDOWS: f64 = 4.0;

/// What is granted above the measured capacity, lest the device idle at the end of a window.
const HEADROOM: f64 = 1.02;

/// Credit that device-bound lanes leave, as part of the budget, before the capacity is cut.
const LEFT_OVER_MAX: f64 = 0.01;

/// The first step up, and the largest; steps double while lanes wait for credit.
const PROBE_MIN: f64 = 0.01;
const PROBE_MAX: f64 = 0.16;

/// The capacity is at most this much above what was measured while lanes waited.
const RUNAWAY_MAX: f64 = 1.2;

/// A lane carries over at most a grant divided by this. A change of shares shows as soon as what
/// was carried over is spent.
const CARRY_PART: u64 = 4;

/// A lane that spent less than this part of its fair share goes into debt rather than wait.
const DEBT_PART: u64 = 4;

/// Requests that a lane may have in flight whatever its share.
const INFLIGHT_COUNT_MIN: u32 = 2;

#[derive(Clone, Copy, Default, Debug)]
struct Lane {
    weight: u32,
    /// Device time granted and not spent when the window began: debt if negative.
    balance_ns: i64,
    grant_ns: u64,
    /// The part of the grant that each slice releases; the last one releases all.
    slice_ns: u64,
    /// What the lane's weight alone would give it in this window.
    fair_ns: u64,
    drawn_ns: u64,
    spent_ns: u64,
    done_ns: u64,
    spent_mean_ns: f64,
    inflight_ns: u64,
    inflight_count: u32,
    inflight_ns_max: u64,
    /// Since the tick: it had to wait for credit, or for room in flight; it had nothing in flight.
    short_of_credit: bool,
    short_of_room: bool,
    idled: bool,
}

impl Lane {
    fn wants_more(&self) -> bool {
        self.short_of_credit || self.short_of_room
    }

    fn is_active(&self) -> bool {
        self.spent_ns > 0 || self.inflight_count > 0 || self.wants_more()
    }

    /// What may be spent when this much of the window's grant is released.
    fn available_ns(&self, released_ns: u64) -> i64 {
        self.balance_ns + (released_ns + self.drawn_ns) as i64 - self.spent_ns as i64
    }

    /// What is left at the end of the window: debt if negative.
    fn left_ns(&self) -> i64 {
        self.available_ns(self.grant_ns)
    }

    /// The window is over and this is the next one's grant: what is left over, to a limit, or owed.
    fn settle(&mut self, grant_ns: u64, slice_count: u64) {
        let left = self.left_ns();
        self.balance_ns = left.min((grant_ns / CARRY_PART) as i64);
        self.grant_ns = grant_ns;
        self.slice_ns = grant_ns / slice_count;
        (self.drawn_ns, self.spent_ns, self.done_ns) = (0, 0, 0);
        (self.short_of_credit, self.short_of_room) = (false, false);
        self.idled = self.inflight_count == 0;
    }
}

/// What a window taught, summed over its lanes.
#[derive(Default)]
struct Window {
    done_ns: u64,
    budget_ns: u64,
    /// Credit left by lanes that the device held up.
    left_over_ns: i64,
    inflight: bool,
    short_of_credit: bool,
    device_bound: bool,
}

/// The policy.
pub struct Ledger {
    cost: CostModel,
    config: Config,
    lanes: Vec<Lane>,
    /// Device time per time.
    capacity: f64,
    done_mean: f64,
    probe: f64,
    request_mean_ns: f64,
    pool_ns: u64,
    window_start: Nanos,
    /// Slices of the window whose part of the grants is released, and when the next one's is.
    slices_released: u64,
    slice_end: Nanos,
    slice_length_ns: Nanos,
}

impl Ledger {
    /// A ledger of a device with these costs, by which it has a capacity of 1.
    pub fn new(cost: CostModel, config: Config) -> Self {
        let config = Config { slice_count: config.slice_count.max(1), ..config };
        Ledger {
            cost,
            config,
            lanes: Vec::new(),
            capacity: 1.0,
            done_mean: 1.0,
            probe: PROBE_MIN,
            request_mean_ns: 0.0,
            pool_ns: 0,
            window_start: 0,
            slices_released: 0,
            slice_end: 0,
            slice_length_ns: (config.tick_ns / config.slice_count.max(1)).max(1),
        }
    }

    /// The capacity as estimated: device time per time, 1 when the cost model is right.
    pub fn capacity(&self) -> f64 {
        self.capacity
    }

    /// Device time granted to each lane in this window.
    pub fn grants(&self) -> Vec<u64> {
        self.lanes.iter().map(|lane| lane.grant_ns).collect()
    }

    fn look_back(&self) -> Window {
        let mut window = Window::default();
        for lane in &self.lanes {
            window.done_ns += lane.done_ns;
            window.budget_ns += lane.grant_ns;
            window.inflight |= lane.inflight_count > 0;
            window.short_of_credit |= lane.short_of_credit;
            let device_bound = !lane.short_of_credit && (!lane.idled || lane.short_of_room);
            window.device_bound |= device_bound && lane.spent_ns > 0;
            if device_bound {
                window.left_over_ns += lane.left_ns().max(0);
            }
        }
        window
    }

    fn learn(&mut self, window: &Window, elapsed_ns: Nanos) {
        let late = elapsed_ns > 2 * self.config.tick_ns;
        let stalled = window.done_ns == 0 && window.inflight;
        let saturated = window.short_of_credit || window.device_bound;
        if late || stalled || !saturated {
            return;
        }
        let measured = window.done_ns as f64 / elapsed_ns as f64;
        self.done_mean += (measured - self.done_mean) / AVERAGE_WINDOWS;
        let budget = window.budget_ns.max(1) as f64;
        if window.left_over_ns as f64 > LEFT_OVER_MAX * budget {
            let found = self.done_mean * HEADROOM;
            self.capacity = found.max(0.8 * self.capacity).min(1.05 * self.capacity);
            self.probe = PROBE_MIN;
        } else if window.short_of_credit {
            self.capacity *= 1.0 + self.probe;
            self.probe = (2.0 * self.probe).min(PROBE_MAX);
        }
        self.capacity = self.capacity.min(RUNAWAY_MAX * self.done_mean.max(measured)).max(1e-3);
    }

    /// What each lane asks for: all it can get, or what it used and a margin.
    fn claims(&mut self, budget_ns: u64) -> Vec<Claim> {
        let active = self.lanes.iter().filter(|lane| lane.is_active());
        let weights: u64 = active.map(|lane| u64::from(lane.weight)).sum();
        let claim = |lane: &mut Lane| {
            let spent = lane.spent_ns as f64;
            lane.spent_mean_ns += (spent - lane.spent_mean_ns) / AVERAGE_WINDOWS;
            let others = weights - if lane.is_active() { u64::from(lane.weight) } else { 0 };
            let all = u128::from(others + u64::from(lane.weight));
            lane.fair_ns = (u128::from(budget_ns) * u128::from(lane.weight) / all) as u64;
            let used = 1.25 * spent.max(lane.spent_mean_ns);
            let demand = match (lane.wants_more(), lane.is_active()) {
                (true, _) => u64::MAX,
                (false, true) => (used as u64).saturating_add(lane.fair_ns / 50),
                (false, false) => used as u64,
            };
            Claim { weight: lane.weight, demand }
        };
        self.lanes.iter_mut().map(claim).collect()
    }

    fn share(&mut self, claims: &[Claim], budget_ns: u64) {
        let grants = max_min(budget_ns, claims);
        let granted: u64 = grants.iter().sum();
        self.pool_ns = budget_ns - granted;
        let active = self.lanes.iter().filter(|lane| lane.is_active()).count() as f64;
        let crowded = active * self.request_mean_ns > self.config.inflight_ns as f64;
        for (lane, grant_ns) in self.lanes.iter_mut().zip(grants) {
            lane.settle(grant_ns, self.config.slice_count);
            let part = u128::from(self.config.inflight_ns) * u128::from(grant_ns.max(lane.fair_ns));
            let part = (part / u128::from(granted.max(1))) as u64;
            lane.inflight_ns_max = if crowded { u64::MAX } else { part };
        }
    }

    /// Moves on to the slice of the window that `now` lies in; there is one division per slice.
    fn enter_slice(&mut self, now: Nanos) {
        if now < self.slice_end {
            return;
        }
        let slice = now.saturating_sub(self.window_start) / self.slice_length_ns;
        self.slices_released = (slice + 1).min(self.config.slice_count);
        self.slice_end = self.window_start + self.slices_released * self.slice_length_ns;
    }

    /// A lane below its fair share takes what nobody was granted. Far below it, it goes into debt:
    /// a lane that does little is not to wait for the next window.
    fn draw(&mut self, lane: usize, cost_ns: u64) -> bool {
        let this = &mut self.lanes[lane];
        let spent = this.spent_ns.saturating_add(cost_ns);
        if spent <= this.fair_ns && self.pool_ns >= cost_ns {
            self.pool_ns -= cost_ns;
            this.drawn_ns += cost_ns;
            return true;
        }
        spent <= this.fair_ns / DEBT_PART
    }
}

impl Policy for Ledger {
    fn add_lane(&mut self, weight: u32) -> usize {
        let weight = weight.max(1);
        self.lanes.push(Lane {
            weight,
            inflight_ns_max: self.config.inflight_ns,
            ..Lane::default()
        });
        self.lanes.len() - 1
    }

    fn set_weight(&mut self, lane: usize, weight: u32) {
        self.lanes[lane].weight = weight.max(1);
    }

    fn admit(&mut self, now: Nanos, lane: usize, io: &Io) -> Verdict {
        let cost_ns = self.cost.cost_ns(io);
        self.enter_slice(now);
        // Later than now even if the coordinator is late.
        let next = self.slice_end.max(now + self.slice_length_ns);
        let last = self.slices_released == self.config.slice_count;
        let this = &mut self.lanes[lane];
        let released = if last { this.grant_ns } else { this.slice_ns * self.slices_released };
        let room = this.inflight_ns < this.inflight_ns_max;
        if !room && this.inflight_count >= INFLIGHT_COUNT_MIN {
            this.short_of_room = true;
            return Verdict::Wait(next);
        }
        let available = this.available_ns(released);
        let may_start = available >= 0 && this.inflight_count == 0;
        if available <= 0 && !may_start && !self.draw(lane, cost_ns) {
            self.lanes[lane].short_of_credit = true;
            return Verdict::Wait(next);
        }
        let this = &mut self.lanes[lane];
        this.spent_ns += cost_ns;
        this.inflight_ns += cost_ns;
        this.inflight_count += 1;
        Verdict::Go
    }

    fn complete(&mut self, _now: Nanos, lane: usize, io: &Io) {
        let cost_ns = self.cost.cost_ns(io);
        let this = &mut self.lanes[lane];
        this.done_ns += cost_ns;
        this.inflight_ns = this.inflight_ns.saturating_sub(cost_ns);
        this.inflight_count = this.inflight_count.saturating_sub(1);
        this.idled |= this.inflight_count == 0;
        self.request_mean_ns += (cost_ns as f64 - self.request_mean_ns) / 1024.0;
    }

    fn tick(&mut self, now: Nanos) {
        let elapsed_ns = now.saturating_sub(self.window_start);
        if elapsed_ns < self.config.tick_ns {
            return;
        }
        let window = self.look_back();
        self.learn(&window, elapsed_ns);
        let budget_ns = (self.capacity * self.config.tick_ns as f64) as u64;
        let claims = self.claims(budget_ns);
        self.share(&claims, budget_ns);
        self.window_start = now;
        (self.slices_released, self.slice_end) = (0, now);
    }

    fn next_tick(&self) -> Nanos {
        self.window_start + self.config.tick_ns
    }
}
