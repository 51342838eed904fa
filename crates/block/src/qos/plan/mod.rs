//! The arithmetic of the `ledger` policy: from what the lanes did in a window to what they may do
//! in the next. Pure: no clock, no memory but its own estimates.
//!
//! *Accounts.* Every lane has one, in device time. A window's deposits are the capacity times the
//! window, by weight among the active lanes; what went is taken off. What a lane leaves beyond a
//! cap is donated to the lanes that want more, so nothing is granted twice and nothing is lost; an
//! account that is full is the snap-back of the lane that left it. Debt is carried whole.
//!
//! *Work first.* While at most one lane wants more than it does, nobody is held back for credit.
//!
//! *Capacity* is how much device time a second of time holds, in the unit that is charged, so
//! errors of the cost model do not matter to it. It is learned only while lanes keep the device
//! busy: it goes up while lanes wait for credit, a little above the best of late, until somebody is
//! *hurt* by it; then it is what was done and a little less. A late tick teaches nothing.
//!
//! *The queue at the device* shows in the time that requests stay there, of which lanes take
//! samples, against the time they take when hardly anything else is in flight.
//! That one is found by *trials*: for a few windows every ten seconds each lane has one request in
//! flight. A lane that leaves credit, and gets less than its weight gives it, while its requests
//! stay long may be hurt: what it leaves is not donated then, or those who hurt it would live on
//! it. Its requests may also stay long because its thread waits for a CPU, or it may have no more
//! to ask for. So it is believed for a moment only: if it does not get more while the others get
//! less, it is content, and the rest of the device goes to the others.
//!
//! *In flight.* Beside lanes that want little, the others have no more in flight, by their shares,
//! than keeps the device busy, so that a small lane does not queue behind a flood. How much that is
//! is found by trying: half as much again as by Little's law at first, then more while more is done
//! for it, and less while no less is done.
//! With more active lanes than requests fit in, that would be round-robin, so it is lifted then.
//!
//! # Invariants
//!
//! - The deposits of a window sum up to the capacity times its length at most; what is granted
//!   beyond a deposit was deposited to another lane in the window before.
//! - A lane carries over [`CARRY_IDLE`] deposits at most, or [`CARRY_WAITING`] if it had to wait;
//!   debt is carried whole.

mod accounts;
mod hurt;
mod memory;
mod room;
mod water;

pub use accounts::Share;
use accounts::{Scene, deposits, settle, weights};
use memory::{AVERAGE_WINDOWS, Seems, Trial};
pub use memory::{LookBack, Memory};
use room::Room;
use water::{LowWater, Seen};

use super::Nanos;
use super::share::{Claim, max_min};

/// What the coordinator goes by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The window.
    pub tick_ns: Nanos,
    /// Parts of the window in which its grant is released, so that it is not used up at once.
    pub slice_count: u64,
    /// Latency of a small request alone, in nanoseconds, until it has been measured.
    pub base_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config { tick_ns: 5_000_000, slice_count: 10, base_ns: 110_000 }
    }
}

/// What requests take alone goes up by so much from trial to trial at most: it may have been
/// measured beside whatever else the disk did.
const BASE_GAIN_MAX: f64 = 1.25;

/// While somebody leaves credit because of a queue, the capacity is a little less than what is
/// done, so that the queue drains and credit counts; but not less than this part of the best of
/// late.
const DRAIN: f64 = 0.97;
const DRAIN_MAX: f64 = 0.8;

/// Beside lanes whose accounts are empty it does not fall below this part of the most that was done
/// in the last one or two times so many windows: that less is done may be for want of credit alone,
/// since a lane that says that it is hurt may lie.
const FALL_MAX: f64 = 0.45;
const LONG_WINDOWS: u32 = 2000;

/// What is done is averaged over so many windows, to tell whether the device is used.
const USED_WINDOWS: u32 = 200;

/// With a queue and nobody hurt by it, the capacity goes up by less, at most so many times the best
/// of late. Requests may only seem to wait at the device, where it is their thread that waits for
/// a CPU: without going up, what is done would be taken for less and less.
const CREEP: f64 = 0.003;
const CREEP_MAX: f64 = 1.05;

/// The best of late is the most that was done in the last one or two times so many windows.
const BEST_WINDOWS: u32 = 12;

/// A lane that gets this part of what its weight gives it of all that is done is not hurt.
const DEPRIVED: f64 = 0.98;

/// The capacity changes by at most so much in a window while there is a queue.
const CUT_MAX: f64 = 0.9;
const GAIN_MAX: f64 = 1.05;

/// Steps up: so many of the smallest, then each twice the last.
const PROBE_MIN: f64 = 0.01;
const PROBE_MAX: f64 = 0.16;
const PROBES_SMALL: u32 = 8;

/// The capacity is at most this much above what was measured while lanes waited.
const RUNAWAY_MAX: f64 = 1.25;

/// A lane that wants no more than it does carries over at most so many deposits.
pub const CARRY_IDLE: u64 = 1;

/// One that wants more, and woke up late perhaps, carries over at most so many.
pub const CARRY_WAITING: u64 = 4;

/// What is in flight beside lanes that want little, as a multiple of what keeps the device busy.
const ROOM: f64 = 1.5;

/// That is reckoned for so many times what is done, and is where it begins.
const ROOM_RATE: f64 = 1.05;

/// Requests per window of a lane that wants little and is looked after.
const MODEST_MIN: f64 = 0.02;

/// A window in which lanes had I/O in flight and less than this part of the capacity was done is a
/// stall: nothing was there to be deposited.
const STALL_MAX: f64 = 0.5;

/// Time between two trials, and the least when a queue does not go away: the latencies alone may
/// be others than they were.
const TRIAL_EVERY_NS: Nanos = 10_000_000_000;
const TRIAL_AGAIN_NS: Nanos = 1_000_000_000;

/// Windows with a queue in a row after which that is tried.
const QUEUED_WINDOWS_MAX: u32 = 60;

/// Windows of a trial, and what each lane has to show in it.
const TRIAL_WINDOWS_MAX: u32 = 40;
const TRIAL_WINDOWS_MIN: u32 = 2;
const TRIAL_REQUESTS_MIN: u64 = 4;

/// Active lanes per tick: with more the windows are longer, so many times at most. Each lane's part
/// of a short window would be less than a request.
const LANES_PER_TICK: usize = 250;
const STRETCH_MAX: u64 = 4;

/// Totals that a lane reports beyond this part of a window's capacity are not believed.
const BELIEF_MAX: u64 = 64;

/// The plan of a device.
#[derive(Clone, Debug)]
pub struct Planner {
    config: Config,
    /// The window when few lanes are active.
    tick_ns: Nanos,
    /// Device time per time.
    capacity: f64,
    done_mean: f64,
    /// The same over more windows.
    done_long: f64,
    used_windows: u32,
    probe: f64,
    probes: u32,
    /// The most that was done, in the present and in the last span of time.
    best: [f64; 2],
    best_windows: u32,
    /// The same over more time.
    best_long: [f64; 2],
    long_windows: u32,
    room: Room,
    water: LowWater,
    /// What a request of all lanes' costs on average.
    request_ns: f64,
    /// Latency alone, on average over the lanes of the last trial.
    base_ns: f64,
    /// Windows of the present trial.
    trial: Option<u32>,
    /// Lanes of the last plan.
    lane_count: usize,
    since_trial_ns: Nanos,
    queued_windows: u32,
}

impl Planner {
    /// A planner of a device that is thought to have a capacity of 1.
    pub fn new(config: Config) -> Self {
        Planner {
            config: Config { slice_count: config.slice_count.max(1), ..config },
            tick_ns: config.tick_ns,
            capacity: 1.0,
            done_mean: 1.0,
            done_long: 1.0,
            used_windows: 0,
            probe: PROBE_MIN,
            probes: 0,
            best: [1.0; 2],
            best_windows: 0,
            best_long: [1.0; 2],
            long_windows: 0,
            room: Room::default(),
            water: LowWater::default(),
            request_ns: 0.0,
            base_ns: config.base_ns.max(1) as f64,
            trial: None,
            lane_count: 0,
            since_trial_ns: Nanos::MAX,
            queued_windows: 0,
        }
    }

    /// What it goes by; the window is that of the last plan.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The capacity as estimated: device time per time, 1 when the cost model is right.
    pub fn capacity(&self) -> f64 {
        self.capacity
    }

    /// Latency of a request alone as measured, in nanoseconds, on average over the lanes.
    pub fn base_ns(&self) -> u64 {
        self.base_ns as u64
    }

    /// With fewer requests than this at the device whoever has one may go; 0 when that is not
    /// known, or not wanted.
    pub fn low_water(&self) -> u64 {
        // In a trial there is to be little at the device.
        if self.trial.is_some() { 0 } else { self.water.requests() }
    }

    /// What a request at the device costs on average, in nanoseconds of device time; 0 when that is
    /// not known.
    pub fn request_ns(&self) -> u64 {
        self.request_ns as u64
    }

    /// Starts from an estimate, as by an earlier coordinator of the device.
    pub fn set_capacity(&mut self, capacity: f64) {
        if capacity.is_finite() && capacity > 0.0 {
            self.capacity = capacity.clamp(1e-3, 1e6);
            (self.done_mean, self.done_long) = (self.capacity, self.capacity);
            (self.best, self.best_long) = ([self.capacity; 2], [self.capacity; 2]);
        }
    }

    /// The most that a lane can have spent in a window of this length: more is a lie.
    pub fn believable_ns(&self, elapsed_ns: Nanos) -> u64 {
        let most = self.capacity * elapsed_ns.max(self.config.tick_ns) as f64;
        (most as u64).saturating_mul(BELIEF_MAX)
    }

    /// Learns from the window that is over and shares the next one; in the order of `lanes`, whose
    /// memories are brought up to date.
    pub fn plan(
        &mut self,
        elapsed_ns: Nanos,
        depth: Option<u64>,
        lanes: &mut [LookBack],
    ) -> Vec<Share> {
        let late = elapsed_ns > 2 * self.config.tick_ns;
        for lane in &mut *lanes {
            let seen = *lane;
            lane.memory.look(&seen, elapsed_ns);
        }
        self.find_small(lanes);
        self.see_depth(depth, lanes);
        self.since_trial_ns = self.since_trial_ns.saturating_add(elapsed_ns);
        self.take_back(lanes, elapsed_ns);
        // What was found of one holds beside these others. To see first what it loses takes longer
        // than to believe it.
        let changed = std::mem::replace(&mut self.lane_count, lanes.len()) != lanes.len();
        if changed {
            lanes.iter_mut().for_each(|lane| lane.memory.forget_hurt());
        }
        if self.trial.is_none() && !late {
            let weights = weights(lanes);
            let all = lanes.iter().map(|lane| lane.memory.done).sum();
            for lane in &mut *lanes {
                let fair = self.fair(lane, weights);
                lane.memory.deprived = lane.memory.done < DEPRIVED * fair;
                let asks = changed || lane.memory.deprived;
                let seems = if asks { self.seems_hurt(lane) } else { Seems::Not };
                lane.memory.doubt(seems, all, f64::from(lane.weight.max(1)) / weights);
            }
        }
        if self.trial.is_some() {
            self.go_on_trying(lanes, late);
        } else if late {
            self.learn_late(lanes, elapsed_ns);
        } else {
            let scene = self.scene(lanes);
            self.learn(&scene, elapsed_ns);
            self.try_at_times(&scene, lanes);
        }
        let stretch = lanes.len().div_ceil(LANES_PER_TICK) as u64;
        self.config.tick_ns = self.tick_ns * stretch.clamp(1, STRETCH_MAX);
        self.shares(lanes)
    }

    /// Which lanes would not use their part if they could.
    fn find_small(&self, lanes: &mut [LookBack]) {
        let weights = weights(lanes);
        for lane in lanes {
            let (fair, base_ns) = (self.fair(lane, weights), self.base_of(lane));
            lane.memory.measure(fair, base_ns);
        }
    }

    /// A lane's part by weight of what is done.
    fn fair(&self, lane: &LookBack, weights: f64) -> f64 {
        self.done_mean * f64::from(lane.weight.max(1)) / weights
    }

    /// Looks at how many requests the device has.
    fn see_depth(&mut self, depth: Option<u64>, lanes: &[LookBack]) {
        // Each lane's requests by Little's law, as long as those alone stay: large ones longer.
        let (mut busy, mut busy_ns) = (0.0, 0.0);
        for lane in lanes {
            let count = lane.memory.rate * self.base_of(lane);
            busy += count;
            busy_ns += count * lane.memory.request_ns;
        }
        self.request_ns = if busy > 0.0 { busy_ns / busy } else { 0.0 };
        if self.trial.is_none() {
            let seen = Seen {
                held: lanes.iter().any(LookBack::waits),
                small: lanes.iter().any(LookBack::is_small),
                hurt: lanes.iter().any(|lane| self.is_hurt(lane)),
            };
            self.water.see(depth, busy, seen);
        }
    }

    /// From a window that was longer than it should be: what was done in it can be done.
    fn learn_late(&mut self, lanes: &[LookBack], elapsed_ns: Nanos) {
        let done: u64 = lanes.iter().fold(0, |sum, lane| sum.saturating_add(lane.done_ns));
        let measured = done as f64 / elapsed_ns.max(1) as f64;
        self.capacity = self.capacity.max(measured.min(RUNAWAY_MAX * self.best()));
    }

    /// After a stall: what was deposited meanwhile was not there. To spend it later would be to
    /// share the device by depth of queues until it is spent. A lane that wants no more keeps the
    /// one deposit that it may carry, or its next request would wait for a window.
    fn take_back(&self, lanes: &mut [LookBack], elapsed_ns: Nanos) {
        let most = self.capacity * elapsed_ns as f64;
        let done: f64 = lanes.iter().map(|lane| lane.done_ns as f64).sum();
        let stalled = lanes.iter().any(|lane| lane.inflight_ns > 0) && done < STALL_MAX * most;
        // Where a lane spends its grant and is answered, the device does not stall, whatever
        // another lane says that it has there.
        let moves = |lane: &LookBack| {
            lane.short_of_credit && lane.grant_ns > 0 && lane.done_ns >= lane.grant_ns / 2
        };
        if !stalled || self.trial.is_some() || lanes.iter().any(moves) {
            return;
        }
        let part = (1.0 - done / most) * elapsed_ns as f64 / self.config.tick_ns.max(1) as f64;
        for lane in lanes.iter_mut().filter(|lane| lane.left_ns > 0 && lane.wants_more()) {
            let fictional = (lane.grant_ns as f64 * part) as i64;
            lane.left_ns = lane.left_ns.saturating_sub(fictional).max(0);
        }
    }

    fn scene(&self, lanes: &[LookBack]) -> Scene {
        let mut scene = Scene { all_short: true, ..Scene::default() };
        for lane in lanes {
            scene.all_short &= lane.short_of_credit || !lane.wants_more();
            scene.done_ns = scene.done_ns.saturating_add(lane.done_ns);
            scene.inflight |= lane.inflight_ns > 0;
            scene.greedy += usize::from(lane.memory.wanted_more());
            let requests = lane.memory.rate * self.config.tick_ns as f64;
            scene.modest |= !lane.wants_more() && requests > MODEST_MIN;
            scene.modest |= self.is_crowded_out(lane);
            scene.short_of_credit |= lane.short_of_credit;
            scene.roomy |= lane.short_of_room && lane.leaves_credit() && !self.water.is_below();
            scene.queued |= self.is_queued(lane);
            scene.hurt |= self.keeps_all(lane) && self.is_queued(lane);
        }
        scene
    }

    fn learn(&mut self, scene: &Scene, elapsed_ns: Nanos) {
        let stalled = scene.done_ns == 0 && scene.inflight;
        if stalled || scene.greedy == 0 {
            return;
        }
        let measured = scene.done_ns as f64 / elapsed_ns.max(1) as f64;
        self.done_mean += (measured - self.done_mean) / AVERAGE_WINDOWS;
        self.used_windows = USED_WINDOWS.min(self.used_windows + 1);
        self.done_long += (measured - self.done_long) / f64::from(self.used_windows);
        self.keep_best();
        let (best, before) = (self.best(), self.capacity);
        if scene.roomy {
            self.room.see(measured);
        }
        if scene.hurt || scene.roomy {
            let found = (self.done_mean * DRAIN).max(DRAIN_MAX * best);
            self.capacity = found.clamp(CUT_MAX * self.capacity, GAIN_MAX * self.capacity);
            (self.probe, self.probes) = (PROBE_MIN, 0);
            self.queued_windows += u32::from(scene.hurt);
        } else {
            self.queued_windows = 0;
            match (scene.short_of_credit, scene.queued) {
                (true, true) if !scene.all_short => self.capacity *= 1.0 + CREEP,
                (true, true) => self.capacity *= 1.0 + PROBE_MIN,
                (true, false) => self.probe(),
                (false, _) => {}
            }
            // What was done can be done.
            self.capacity = self.capacity.max(self.done_mean);
        }
        let most = match scene.queued && !scene.all_short {
            true => CREEP_MAX * best,
            false => RUNAWAY_MAX * best.max(measured),
        };
        self.capacity = self.capacity.min(most).max(1e-3);
        if scene.short_of_credit {
            let least = FALL_MAX * self.best_long[0].max(self.best_long[1]);
            self.capacity = self.capacity.max(before.min(least));
        }
    }

    fn best(&self) -> f64 {
        self.best[0].max(self.best[1])
    }

    fn keep_best(&mut self) {
        self.best_windows += 1;
        if self.best_windows >= BEST_WINDOWS {
            self.best_windows = 0;
            self.best = [self.done_mean, self.best[0]];
        }
        self.best[0] = self.best[0].max(self.done_mean);
        self.long_windows += 1;
        if self.long_windows >= LONG_WINDOWS {
            self.long_windows = 0;
            self.best_long = [self.done_mean, self.best_long[0]];
        }
        self.best_long[0] = self.best_long[0].max(self.done_mean);
    }

    fn probe(&mut self) {
        self.capacity *= 1.0 + self.probe;
        self.probes = self.probes.saturating_add(1);
        if self.probes > PROBES_SMALL {
            self.probe = (2.0 * self.probe).min(PROBE_MAX);
        }
    }

    /// Begins a trial when it is time, lanes are in each other's way and one keeps the device busy.
    fn try_at_times(&mut self, scene: &Scene, lanes: &mut [LookBack]) {
        let contended = scene.greedy > 1 || scene.greedy == 1 && scene.modest;
        let puzzled = self.queued_windows > QUEUED_WINDOWS_MAX;
        let due = self.since_trial_ns >= TRIAL_EVERY_NS
            || puzzled && self.since_trial_ns >= TRIAL_AGAIN_NS;
        if contended && due {
            self.trial = Some(0);
            self.queued_windows = 0;
            lanes.iter_mut().for_each(|lane| lane.memory.trial = Trial::default());
        }
    }

    fn go_on_trying(&mut self, lanes: &mut [LookBack], late: bool) {
        let windows = self.trial.unwrap_or(0) + 1;
        self.trial = Some(windows);
        let mut done = true;
        for lane in &mut *lanes {
            let drained = (lane.inflight_ns as f64) < 1.5 * lane.memory.request_ns;
            let trial = &mut lane.memory.trial;
            // The window in which it begins still has the queue.
            if windows > 1 && drained && !late && lane.done_ns > 0 && lane.inflight_ns > 0 {
                trial.windows += 1;
                trial.requests += lane.requests;
                trial.stayed.0 += lane.stayed_ns;
                trial.stayed.1 += lane.stayed;
            }
            let shown = trial.windows >= TRIAL_WINDOWS_MIN && trial.requests >= TRIAL_REQUESTS_MIN;
            done &= shown || lane.inflight_ns == 0;
        }
        if windows < TRIAL_WINDOWS_MIN || !done && windows < TRIAL_WINDOWS_MAX {
            return;
        }
        let (mut sum, mut count) = (0.0, 0.0);
        for lane in &mut *lanes {
            let Memory { trial, base_ns, .. } = &mut lane.memory;
            if trial.stayed.1 > 0 {
                let found = trial.stayed.0 as f64 / trial.stayed.1 as f64;
                let most = if *base_ns > 0.0 { BASE_GAIN_MAX * *base_ns } else { f64::INFINITY };
                *base_ns = found.min(most);
                (sum, count) = (sum + *base_ns, count + 1.0);
            }
            // Averages of a time with one request in flight say nothing about what comes.
            (lane.memory.rate, lane.memory.stayed) = (0.0, (0.0, 0.0));
        }
        if count > 0.0 {
            // Room is for as many requests as before.
            self.room.ns *= sum / count / self.base_ns;
            self.base_ns = sum / count;
        }
        (self.trial, self.since_trial_ns) = (None, 0);
    }

    fn shares(&mut self, lanes: &[LookBack]) -> Vec<Share> {
        if self.trial.is_some() {
            return lanes.iter().map(|lane| self.on_trial(lane, lanes)).collect();
        }
        let scene = self.scene(lanes);
        let budget_ns = (self.capacity * self.config.tick_ns as f64) as u64;
        let deposits = deposits(budget_ns, lanes);
        let (mut donated, mut takers) = (0_u64, Vec::with_capacity(lanes.len()));
        let mut shares: Vec<Share> = lanes
            .iter()
            .zip(&deposits)
            .map(|(lane, deposit)| {
                let (share, over) = settle(lane, *deposit);
                donated = donated.saturating_add(if self.keeps_all(lane) { 0 } else { over });
                // A lane whose account is full while the device has little to do has more than it
                // can spend.
                let takes = lane.wants_more() && (over == 0 || !self.water.is_below());
                let demand = if takes { u64::MAX } else { 0 };
                takers.push(Claim { weight: lane.weight.max(1), demand });
                Share { free: scene.greedy <= 1 && lane.wants_more(), ..share }
            })
            .collect();
        let taken = max_min(donated.min(budget_ns), &takers);
        for (share, taken) in shares.iter_mut().zip(taken) {
            share.grant_ns += taken;
        }
        self.give_room(&scene, lanes, &mut shares);
        shares
    }

    /// One request in flight for each lane, and no accounts.
    fn on_trial(&self, lane: &LookBack, lanes: &[LookBack]) -> Share {
        let budget_ns = (self.capacity * self.config.tick_ns as f64) as u64;
        let weights: u64 = lanes.iter().map(|lane| u64::from(lane.weight.max(1))).sum();
        let weight = u64::from(lane.weight.max(1));
        let fair = (u128::from(budget_ns) * u128::from(weight) / u128::from(weights.max(1))) as u64;
        let inflight_ns_max = if lane.wants_more() { 1 } else { u64::MAX };
        Share { deposit_ns: fair, grant_ns: fair, inflight_ns_max, free: true, ..Share::default() }
    }

    /// Room in flight, when somebody is there who wants little.
    fn give_room(&mut self, scene: &Scene, lanes: &[LookBack], shares: &mut [Share]) {
        let requests: f64 =
            lanes.iter().filter(|lane| lane.wants_more()).map(|lane| lane.memory.request_ns).sum();
        let crowded = requests > ROOM * self.base_ns * self.capacity;
        // By what is done: the capacity may be on its way up.
        let all = self.capacity.min(ROOM_RATE * self.done_mean);
        if scene.modest && scene.greedy > 0 && self.room.ns == 0.0 {
            self.room.ns = ROOM * self.base_ns * all;
        }
        let granted = self.capacity * self.config.tick_ns.max(1) as f64;
        for (lane, share) in lanes.iter().zip(shares) {
            let part = if share.free { 1.0 } else { share.grant_ns as f64 / granted };
            let room = self.room.ns * part * self.base_of(lane) / self.base_ns;
            // For two of its requests whatever its share.
            let room = room.max(lane.memory.request_ns + 1.0) as u64;
            let unlimited = crowded || !scene.modest || self.is_crowded_out(lane);
            share.inflight_ns_max = if unlimited { u64::MAX } else { room };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: u64 = 5_000_000;

    /// Every small case: sums, minima, carry and debt.
    #[test]
    fn accounts_hold_their_bounds_in_every_small_case() {
        let lefts = [-5_000_000, -1, 0, 1, 400_000, 50_000_000];
        for (left, weight) in lefts.into_iter().flat_map(|l| (1..=4).map(move |w| (l, w))) {
            for flags in (0..64_u32).step_by(if cfg!(miri) { 31 } else { 1 }) {
                for floor_ns in [0, 1, 3_000_000, u64::MAX] {
                    check(left, weight, flags, floor_ns);
                }
            }
        }
    }

    fn check(left_ns: i64, weight: u32, flags: u32, floor_ns: u64) {
        let lane = |credit, room, floor_ns| LookBack {
            weight,
            spent_ns: 1_000_000,
            done_ns: 900_000,
            requests: 100,
            left_ns,
            short_of_credit: flags & credit != 0,
            short_of_room: flags & room != 0,
            inflight_ns: u64::from(flags & 32 != 0) * 100_000,
            floor_ns,
            ..LookBack::default()
        };
        let mut planner = Planner::new(Config::default());
        planner.since_trial_ns = 0;
        let mut lanes = [lane(1, 2, floor_ns), lane(4, 8, 0), lane(16, 64, floor_ns / 2)];
        let shares = planner.plan(TICK, None, &mut lanes);
        let budget = (planner.capacity() * TICK as f64) as u64;
        let deposits: u64 = shares.iter().map(|share| share.deposit_ns).sum();
        let granted: u64 = shares.iter().map(|share| share.grant_ns).sum();
        let left_over: u64 = lanes
            .iter()
            .zip(&shares)
            .map(|(lane, share)| (lane.left_ns - share.balance_ns).max(0) as u64)
            .sum();
        assert!(deposits <= budget, "{shares:?}");
        assert!(granted - deposits <= left_over.min(budget), "only what was left is donated");
        assert!((0.5..2.0).contains(&planner.capacity()));
        for (share, lane) in shares.iter().zip(&lanes) {
            let carried = share.balance_ns.max(0) as u64;
            assert!(carried <= CARRY_WAITING * share.deposit_ns, "carry: {share:?}");
            assert!(left_ns >= 0 || share.balance_ns == left_ns, "debt is carried whole");
            assert!(share.debt_ns <= share.deposit_ns && share.grant_ns >= share.deposit_ns);
            let takes = lane.wants_more();
            assert!(takes || share.grant_ns == share.deposit_ns, "who wants no more takes none");
            let floor = lane.floor_ns.min(budget / 4);
            assert!(!lane.wants_more() || share.deposit_ns >= floor, "{share:?} {lane:?}");
        }
    }

    #[test]
    fn a_stall_and_a_late_tick_teach_nothing() {
        let stuck =
            LookBack { weight: 1, inflight_ns: 1, short_of_credit: true, ..LookBack::default() };
        let mut planner = Planner::new(Config::default());
        planner.plan(TICK, None, &mut [stuck]);
        assert_eq!(planner.capacity(), 1.0);
        let slow = LookBack { done_ns: 1_000, ..stuck };
        planner.plan(2 * TICK + 1, None, &mut [slow]);
        assert_eq!(planner.capacity(), 1.0);
    }

    /// Two lanes, the first with nothing to do; what the account of the first does not hold goes
    /// to the second, and comes back at once.
    #[test]
    fn what_is_left_is_donated_and_snaps_back() {
        let idle = LookBack { weight: 3, left_ns: 7_000_000, ..LookBack::default() };
        let waits = LookBack {
            weight: 1,
            spent_ns: 1_250_000,
            done_ns: 1_250_000,
            requests: 125,
            short_of_credit: true,
            ..LookBack::default()
        };
        let busy = LookBack { short_of_credit: true, ..waits };
        let mut planner = Planner::new(Config::default());
        planner.since_trial_ns = 0;
        let shares = planner.plan(TICK, None, &mut [idle, waits, busy]);
        assert!(shares[0].balance_ns as u64 >= shares[0].deposit_ns, "the first may come back");
        let donated: u64 = shares[1..].iter().map(|share| share.grant_ns - share.deposit_ns).sum();
        let over = (7_000_000 - shares[0].balance_ns) as u64;
        assert!(donated + 2 >= over && donated <= over, "{donated} of {over}");
        assert!(shares.iter().all(|share| !share.free), "two lanes want more");
        let shares = planner.plan(TICK, None, &mut [idle, waits]);
        assert!(shares[1].free && !shares[0].free, "one that wants more is not held back");
    }

    #[test]
    fn a_trial_finds_what_a_request_takes_alone() {
        let mut planner = Planner::new(Config::default());
        let mut lanes = [LookBack { weight: 1, ..LookBack::default() }; 2];
        // A flood first, with 1 ms at the device.
        let flood = |lane: &mut LookBack| {
            (lane.spent_ns, lane.done_ns, lane.requests) = (2_500_000, 2_500_000, 250);
            (lane.inflight_ns, lane.short_of_credit) = (500_000, true);
            (lane.stayed_ns, lane.stayed) = (250_000_000, 250);
        };
        lanes.iter_mut().for_each(flood);
        let shares = planner.plan(TICK, None, &mut lanes);
        assert!(shares.iter().all(|share| share.inflight_ns_max == 1 && share.free), "a trial");
        // One request at a time, each takes 110 µs: 45 in a window.
        let mut windows = 0;
        while planner.trial.is_some() {
            windows += 1;
            assert!(windows < 10, "it ends");
            for lane in &mut lanes {
                (lane.spent_ns, lane.done_ns, lane.requests) = (454_545, 454_545, 45);
                (lane.inflight_ns, lane.short_of_credit, lane.short_of_room) =
                    (10_100, false, true);
                (lane.stayed_ns, lane.stayed) = (4_950_000, 45);
            }
            planner.plan(TICK, None, &mut lanes);
        }
        assert!((105_000..118_000).contains(&planner.base_ns()), "{}", planner.base_ns());
        // With the flood back, its queue is seen, and the capacity is what was done.
        let before = planner.capacity();
        for _ in 0..20 {
            lanes.iter_mut().for_each(flood);
            planner.plan(TICK, None, &mut lanes);
        }
        assert!(planner.is_queued(&lanes[0]));
        let most = RUNAWAY_MAX * before.max(1.0);
        assert!(planner.capacity() <= most && planner.capacity() > 0.95, "nobody is hurt");
    }

    /// A reader that pauses for a millisecond, beside floods that make it wait for ten; one of the
    /// same that never pauses and could use more than its part.
    #[test]
    fn who_asks_for_less_than_its_part_is_small_however_long_it_waits() {
        let flood = LookBack {
            weight: 1,
            spent_ns: 1_600_000,
            done_ns: 1_600_000,
            requests: 160,
            inflight_ns: 640_000,
            short_of_room: true,
            left_ns: 5_000_000,
            grant_ns: 1_000_000,
            stayed_ns: 1_600_000_000,
            stayed: 160,
            ..LookBack::default()
        };
        let reader = LookBack {
            weight: 1,
            spent_ns: 10_000,
            done_ns: 10_000,
            requests: 1,
            inflight_ns: 10_000,
            left_ns: 1_000_000,
            grant_ns: 1_000_000,
            stayed_ns: 4_500_000,
            stayed: 1,
            ..LookBack::default()
        };
        let greedy = LookBack { spent_ns: 200_000, done_ns: 200_000, ..reader };
        for (lane, small) in [(reader, true), (greedy, false)] {
            let mut planner = Planner::new(Config::default());
            planner.since_trial_ns = 0;
            let mut lanes = [lane, flood, flood, flood];
            for _ in 0..40 {
                planner.plan(TICK, None, &mut lanes);
            }
            assert!(lanes[0].memory.is_busy(), "it always has one there");
            assert_eq!((lanes[0].memory.small, lanes[0].wants_more()), (small, !small));
            let shares = planner.plan(TICK, None, &mut lanes);
            let held = shares[1].inflight_ns_max < u64::MAX;
            assert_eq!(held, small, "the floods have room for what keeps the device busy");
        }
    }

    #[test]
    fn a_stall_takes_nothing_back_from_who_wants_no_more() {
        let mut planner = Planner::new(Config::default());
        planner.since_trial_ns = 0;
        let rests =
            LookBack { weight: 1, left_ns: 800_000, grant_ns: 1_000_000, ..LookBack::default() };
        let stuck = LookBack { inflight_ns: 1, short_of_credit: true, ..rests };
        let shares = planner.plan(TICK, None, &mut [rests, stuck]);
        assert_eq!((shares[0].balance_ns, shares[1].balance_ns), (800_000, 0));
    }
}
