//! The arithmetic of the `ledger` policy: from what the lanes did in a window to what they may do
//! in the next. Pure: no clock, no memory but its own estimates.
//!
//! *Capacity* is how much device time a second of time holds, in the unit that is charged, so
//! errors of the cost model do not matter to it. It is learned under saturation only: lanes that
//! have credit and always I/O in flight mean that the device is the limit, and what was done is the
//! capacity; lanes that wait for credit while nobody leaves any mean that it may be more, so it is
//! probed upwards. Nothing done with I/O in flight means nothing is known; a late tick teaches
//! nothing.
//!
//! *Donation*: a lane that did not want more is granted what it used and a margin; the rest goes to
//! who wants it. *Snap-back*: a lane that needs more than that goes into debt, up to a part of its
//! fair share, and from the next tick on its demand is unlimited.
//!
//! *In flight*: the device works on at most [`Config::inflight_ns`] of requests, each lane's part
//! by its share, so that a small lane does not queue behind a flood. With more active lanes than
//! requests fit in, one request each would be round-robin, so the cap is lifted then.
//!
//! # Invariants
//!
//! - The grants of a window sum up to the capacity times its length at most.
//! - A lane carries over a quarter of a window's grant at most; debt is carried whole.

use super::Nanos;
use super::share::{Claim, max_min};

/// What the coordinator goes by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

/// Totals that a lane reports beyond this part of a window's capacity are not believed.
const BELIEF_MAX: u64 = 64;

/// What a lane did in the window that is over.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Look {
    /// At least 1.
    pub weight: u32,
    /// Device time of requests that went.
    pub spent_ns: u64,
    /// Device time of requests that were answered.
    pub done_ns: u64,
    /// Requests that went.
    pub requests: u64,
    /// Device time in flight now.
    pub inflight_ns: u64,
    /// What the lane was granted ...
    pub grant_ns: u64,
    /// ... and could still spend: debt if negative.
    pub left_ns: i64,
    /// It had to wait for credit.
    pub short_of_credit: bool,
    /// It had to wait for room in flight.
    pub short_of_room: bool,
    /// It had nothing in flight at some time.
    pub idled: bool,
    /// It did something in the last second, or wanted to.
    pub active: bool,
    /// Least device time that it is to have in a window, if it wants it.
    pub floor_ns: u64,
    /// What it spent in a window on average; kept for the lane by whoever keeps the lane.
    pub spent_mean_ns: f64,
    /// What a request of its costs on average; as above.
    pub request_mean_ns: f64,
}

impl Look {
    fn wants_more(&self) -> bool {
        self.short_of_credit || self.short_of_room
    }

    fn is_active(&self) -> bool {
        self.spent_ns > 0 || self.inflight_ns > 0 || self.wants_more()
    }
}

/// What a lane may do in the next window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Device time carried over: debt if negative.
    pub balance_ns: i64,
    /// Device time granted on top.
    pub grant_ns: u64,
    /// What the lane's weight alone would give it.
    pub fair_ns: u64,
    /// What it may spend in this window whatever its balance.
    pub debt_ns: u64,
    /// Most device time in flight.
    pub inflight_ns_max: u64,
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
    /// The one lane that did anything always had I/O in flight.
    steady: bool,
}

/// The plan of a device.
#[derive(Clone, Debug)]
pub struct Planner {
    config: Config,
    /// Device time per time.
    capacity: f64,
    done_mean: f64,
    probe: f64,
    request_mean_ns: f64,
}

impl Planner {
    /// A planner of a device that is thought to have a capacity of 1.
    pub fn new(config: Config) -> Self {
        let config = Config { slice_count: config.slice_count.max(1), ..config };
        Planner { config, capacity: 1.0, done_mean: 1.0, probe: PROBE_MIN, request_mean_ns: 0.0 }
    }

    /// What it goes by.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The capacity as estimated: device time per time, 1 when the cost model is right.
    pub fn capacity(&self) -> f64 {
        self.capacity
    }

    /// Starts from an estimate, as by an earlier coordinator of the device.
    pub fn set_capacity(&mut self, capacity: f64) {
        if capacity.is_finite() && capacity > 0.0 {
            self.capacity = capacity.clamp(1e-3, 1e6);
            self.done_mean = self.capacity;
        }
    }

    /// The most that a lane can have spent in a window of this length: more is a lie.
    pub fn believable_ns(&self, elapsed_ns: Nanos) -> u64 {
        let most = self.capacity * elapsed_ns.max(self.config.tick_ns) as f64;
        (most as u64).saturating_mul(BELIEF_MAX)
    }

    /// Learns from the window that is over and shares the next one; in the order of `lanes`.
    pub fn plan(&mut self, elapsed_ns: Nanos, lanes: &mut [Look]) -> Vec<Share> {
        self.request_mean(lanes);
        let window = look_back(lanes);
        self.learn(&window, elapsed_ns);
        let budget_ns = (self.capacity * self.config.tick_ns as f64) as u64;
        let weights = active_weight(lanes);
        let fair: Vec<u64> = lanes.iter().map(|lane| fair_ns(lane, budget_ns, weights)).collect();
        let claims: Vec<Claim> =
            lanes.iter_mut().zip(&fair).map(|(lane, fair)| claim(lane, *fair)).collect();
        let grants = share(budget_ns, lanes, &claims);
        self.shares(lanes, &fair, &grants)
    }

    fn request_mean(&mut self, lanes: &mut [Look]) {
        for lane in lanes.iter_mut().filter(|lane| lane.requests > 0) {
            let mean = lane.spent_ns as f64 / lane.requests as f64;
            lane.request_mean_ns += (mean - lane.request_mean_ns) / AVERAGE_WINDOWS;
        }
        let (spent, requests) = lanes.iter().fold((0.0, 0.0), |(spent, requests), lane| {
            (spent + lane.spent_ns as f64, requests + lane.requests as f64)
        });
        if requests > 0.0 {
            let weight = (requests / 1024.0_f64).min(1.0);
            self.request_mean_ns += (spent / requests - self.request_mean_ns) * weight;
        }
    }

    fn learn(&mut self, window: &Window, elapsed_ns: Nanos) {
        let late = elapsed_ns > 2 * self.config.tick_ns;
        let stalled = window.done_ns == 0 && window.inflight;
        let saturated = window.short_of_credit || window.device_bound;
        if late || stalled || !saturated && !window.steady {
            return;
        }
        let measured = window.done_ns as f64 / elapsed_ns.max(1) as f64;
        self.done_mean += (measured - self.done_mean) / AVERAGE_WINDOWS;
        if !saturated {
            // Alone and not limited: the device can do so much at least.
            self.capacity = self.capacity.max(self.done_mean);
            return;
        }
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

    fn shares(&self, lanes: &[Look], fair: &[u64], grants: &[u64]) -> Vec<Share> {
        let granted: u64 = grants.iter().sum::<u64>().max(1);
        let active = lanes.iter().filter(|lane| lane.is_active()).count() as f64;
        let inflight_ns = self.config.inflight_ns as f64 * self.capacity.max(1.0);
        let crowded = active * self.request_mean_ns > inflight_ns;
        let share = |((lane, &fair_ns), &grant_ns): ((&Look, &u64), &u64)| {
            let part = inflight_ns * grant_ns.max(fair_ns) as f64 / granted as f64;
            // Room for two of its requests whatever its share.
            let room = part.max(lane.request_mean_ns + 1.0);
            Share {
                balance_ns: lane.left_ns.min((grant_ns / CARRY_PART) as i64),
                grant_ns,
                fair_ns,
                debt_ns: fair_ns / DEBT_PART,
                inflight_ns_max: if crowded { u64::MAX } else { room as u64 },
            }
        };
        lanes.iter().zip(fair).zip(grants).map(share).collect()
    }
}

fn look_back(lanes: &[Look]) -> Window {
    let mut window = Window { steady: true, ..Window::default() };
    for lane in lanes {
        window.done_ns += lane.done_ns;
        window.budget_ns += lane.grant_ns;
        window.inflight |= lane.inflight_ns > 0;
        window.short_of_credit |= lane.short_of_credit;
        let busy = lane.inflight_ns > 0 && !lane.idled;
        let device_bound = !lane.short_of_credit && (busy || lane.short_of_room);
        window.device_bound |= device_bound && lane.spent_ns > 0 && lane.grant_ns > 0;
        window.steady &= busy || !lane.is_active();
        if device_bound {
            window.left_over_ns += lane.left_ns.max(0);
        }
    }
    window
}

fn active_weight(lanes: &[Look]) -> u64 {
    let active = lanes.iter().filter(|lane| lane.is_active());
    active.map(|lane| u64::from(lane.weight)).sum()
}

/// A lane's part of the budget by its weight among those that are active, as if it were one.
fn fair_ns(lane: &Look, budget_ns: u64, weights: u64) -> u64 {
    let others = weights - if lane.is_active() { u64::from(lane.weight) } else { 0 };
    let all = u128::from(others) + u128::from(lane.weight.max(1));
    (u128::from(budget_ns) * u128::from(lane.weight.max(1)) / all) as u64
}

/// What a lane asks for: all it can get, or what it used and a margin.
fn claim(lane: &mut Look, fair_ns: u64) -> Claim {
    let spent = lane.spent_ns as f64;
    lane.spent_mean_ns += (spent - lane.spent_mean_ns) / AVERAGE_WINDOWS;
    let used = 1.25 * spent.max(lane.spent_mean_ns);
    let demand = match (lane.wants_more(), lane.is_active()) {
        (true, _) => u64::MAX,
        (false, true) => (used as u64).saturating_add(fair_ns / 50),
        (false, false) => used as u64,
    };
    Claim { weight: lane.weight.max(1), demand }
}

/// Floors first, cut in proportion when they exceed the budget; the rest by weighted max-min.
fn share(budget_ns: u64, lanes: &[Look], claims: &[Claim]) -> Vec<u64> {
    let floor = |(lane, claim): (&Look, &Claim)| lane.floor_ns.min(claim.demand);
    let mut floors: Vec<u64> = lanes.iter().zip(claims).map(floor).collect();
    let sum: u128 = floors.iter().map(|floor| u128::from(*floor)).sum();
    if sum == 0 {
        return max_min(budget_ns, claims);
    }
    if sum > u128::from(budget_ns) {
        let cut = |floor: u64| (u128::from(floor) * u128::from(budget_ns) / sum) as u64;
        floors.iter_mut().for_each(|floor| *floor = cut(*floor));
    }
    let left = budget_ns - floors.iter().sum::<u64>();
    let rest = |(claim, floor): (&Claim, &u64)| Claim {
        weight: claim.weight,
        demand: claim.demand.saturating_sub(*floor),
    };
    let rest: Vec<Claim> = claims.iter().zip(&floors).map(rest).collect();
    max_min(left, &rest).iter().zip(&floors).map(|(more, floor)| more + floor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every small case: sums, floors, carry and debt.
    #[test]
    fn grants_hold_their_bounds_in_every_small_case() {
        let lefts = [-5_000_000, -1, 0, 1, 400_000, 5_000_000];
        for (left, weights) in lefts.into_iter().flat_map(|l| (1..=4).map(move |w| (l, w))) {
            for flags in 0..64_u32 {
                for floor_ns in [0, 1, 3_000_000, u64::MAX] {
                    check(left, weights, flags, floor_ns);
                }
            }
        }
    }

    fn check(left_ns: i64, weight: u32, flags: u32, floor_ns: u64) {
        let lane = |short, idled, floor_ns| Look {
            weight,
            spent_ns: if idled { 0 } else { 1_000_000 },
            done_ns: 900_000,
            requests: 100,
            grant_ns: 1_250_000,
            left_ns,
            short_of_credit: short,
            short_of_room: flags & 32 != 0,
            idled,
            inflight_ns: u64::from(!idled) * 100_000,
            floor_ns,
            ..Look::default()
        };
        let mut planner = Planner::new(Config::default());
        let mut lanes = [
            lane(flags & 1 != 0, flags & 2 != 0, floor_ns),
            lane(flags & 4 != 0, flags & 8 != 0, 0),
            lane(flags & 16 != 0, false, floor_ns / 2),
        ];
        let shares = planner.plan(5_000_000, &mut lanes);
        let budget = (planner.capacity() * 5_000_000.0) as u64;
        assert!(shares.iter().map(|share| share.grant_ns).sum::<u64>() <= budget);
        assert!((0.5..2.0).contains(&planner.capacity()));
        for (share, lane) in shares.iter().zip(&lanes) {
            assert!(share.balance_ns <= (share.grant_ns / CARRY_PART) as i64, "carry");
            assert!(left_ns >= 0 || share.balance_ns == left_ns, "debt is carried whole");
            assert!(share.debt_ns <= share.fair_ns && share.fair_ns <= budget);
            let floor = lane.floor_ns.min(budget / 4);
            assert!(!lane.wants_more() || share.grant_ns >= floor, "{share:?} {lane:?}");
        }
    }

    #[test]
    fn a_stall_and_a_late_tick_teach_nothing() {
        let stuck = Look {
            weight: 1,
            inflight_ns: 1,
            short_of_credit: true,
            grant_ns: 5_000_000,
            ..Look::default()
        };
        let mut planner = Planner::new(Config::default());
        planner.plan(5_000_000, &mut [stuck]);
        assert_eq!(planner.capacity(), 1.0);
        let slow = Look { done_ns: 1_000, ..stuck };
        planner.plan(11_000_000, &mut [slow]);
        assert_eq!(planner.capacity(), 1.0);
    }
}
