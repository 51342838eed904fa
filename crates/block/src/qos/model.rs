//! A device and its tenants, simulated: what a policy does, repeatably and without a device.
//!
//! The device serves requests in order of arrival, by one unit or by several that each take their
//! number times a request's true cost, and answers a fixed time after the service: throughput is
//! limited by the cost, latency has a floor, and whoever floods the queue delays everybody. It may
//! stall, tenants and the policy may wake up late, and threads may have to wait for a CPU. A seed
//! repeats a run exactly.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use polylane_base::rng::Rng;

use super::cost::CostModel;
use super::depth::AtDevice;
use super::{Io, Kind, Nanos, Policy, Verdict};

/// A second.
pub const SECOND: Nanos = 1_000_000_000;

/// A millisecond.
pub const MILLISECOND: Nanos = 1_000_000;

/// What a tenant asks for.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Its weight at the start.
    pub weight: u32,
    /// Requests it keeps outstanding while it is active.
    pub depth: u32,
    /// Its requests, by turns of the dice: this many times in a hundred, this request.
    pub mix: Vec<(u64, Io)>,
    /// Pause between the end of a request and the next one, in nanoseconds, on average.
    pub think_ns: u64,
    /// Time that its thread needs for a request that may go, in nanoseconds. The device gets those
    /// of a batch together, when the thread is through with all of them; what is answered in the
    /// meantime makes the next batch.
    pub prepare_ns: u64,
    /// When it is active: from, until.
    pub active: Vec<(Nanos, Nanos)>,
}

impl Tenant {
    /// Always active, without pauses, random 4 KiB reads.
    pub fn reader(weight: u32, depth: u32) -> Self {
        let io = Io { kind: Kind::Read, bytes: 4096, sequential: false };
        let active = vec![(0, Nanos::MAX)];
        Tenant { weight, depth, mix: vec![(100, io)], think_ns: 0, prepare_ns: 0, active }
    }

    /// The same with other requests.
    pub fn with_mix(self, mix: Vec<(u64, Io)>) -> Self {
        Tenant { mix, ..self }
    }

    /// The same, active at these times only.
    pub fn active_in(self, active: Vec<(Nanos, Nanos)>) -> Self {
        Tenant { active, ..self }
    }

    /// The same with pauses.
    pub fn thinking(self, think_ns: u64) -> Self {
        Tenant { think_ns, ..self }
    }

    /// The same with time of its thread for each request.
    pub fn preparing(self, prepare_ns: u64) -> Self {
        Tenant { prepare_ns, ..self }
    }

    fn is_active(&self, now: Nanos) -> bool {
        self.active.iter().any(|(from, until)| (*from..*until).contains(&now))
    }
}

/// A request of 4 KiB pages.
pub fn io(kind: Kind, bytes: u64) -> Io {
    Io { kind, bytes, sequential: false }
}

/// A device.
#[derive(Clone, Debug)]
pub struct Device {
    /// True costs.
    pub cost: CostModel,
    /// Time from the end of the service to the answer.
    pub latency_ns: Nanos,
    /// From then on, the costs are this many per cent of `cost`.
    pub pace: Vec<(Nanos, u64)>,
    /// Each cost is off by up to this many per cent.
    pub noise_percent: u64,
    /// Requests served at a time, each so many times longer.
    pub units: u64,
    /// How often it stops to serve, and for how long; zeroes for never.
    pub stalls: (Nanos, Nanos),
}

impl Default for Device {
    fn default() -> Self {
        let cost = CostModel::default();
        Device {
            cost,
            latency_ns: 100_000,
            pace: vec![(0, 100)],
            noise_percent: 0,
            units: 1,
            stalls: (0, 0),
        }
    }
}

impl Device {
    /// When a service that could start now does.
    fn after_stall(&self, now: Nanos) -> Nanos {
        let (every, length) = self.stalls;
        match now.checked_rem(every) {
            Some(into) if now >= every && into < length => now - into + length,
            _ => now,
        }
    }
}

/// A run: who, on what, for how long.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The device.
    pub device: Device,
    /// The tenants.
    pub tenants: Vec<Tenant>,
    /// Changes of weight: when, whose, what.
    pub weights: Vec<(Nanos, usize, u32)>,
    /// How late a tenant that waits for its turn wakes up, and how late the policy's tick comes,
    /// on average, in nanoseconds.
    pub late_ns: (Nanos, Nanos),
    /// How long a tenant's thread has a CPU at a time, and how long it has none after that, on
    /// average, in nanoseconds; zeroes: it always has one.
    pub cpu_ns: (Nanos, Nanos),
    /// The end.
    pub until: Nanos,
    /// Length of a bucket of the result.
    pub bucket_ns: Nanos,
    /// Repeats the run.
    pub seed: u64,
}

/// What one tenant got in one bucket.
#[derive(Clone, Copy, Default, Debug)]
pub struct Cell {
    /// Device time by the nominal costs.
    pub device_ns: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// It had a request waiting or in flight all the time.
    pub backlogged: bool,
}

/// What happened.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// By bucket, then by tenant.
    pub buckets: Vec<Vec<Cell>>,
    /// Latencies from the moment a tenant has a request to its answer, by tenant, as they came.
    pub latencies_ns: Vec<Vec<u32>>,
    /// Length of a bucket.
    pub bucket_ns: Nanos,
    /// The longest that a tenant with a request waiting got nothing done, by tenant.
    pub starved_ns: Vec<Nanos>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// A tenant becomes active or stops.
    Turn(usize),
    /// A tenant has a request.
    Arrival(usize),
    /// A request is answered: whose, which of its mix, when it arrived.
    Answer(usize, usize, Nanos),
    /// A tenant may ask the policy again.
    Retry(usize),
    /// A tenant's batch goes to the device.
    Submit(usize),
    /// The policy's tick.
    Tick,
    /// A change of weight: which.
    Weight(usize),
}

/// A tenant's requests in the run.
#[derive(Clone, Default)]
struct State {
    /// Arrived, not gone to the device: when, which.
    waiting: std::collections::VecDeque<(Nanos, usize)>,
    outstanding: u32,
    /// Let go by the policy, not at the device yet: when they arrived, which.
    batch: Vec<(Nanos, usize)>,
    retry_at: Nanos,
    last_answer: Nanos,
    /// It has a CPU: from, until.
    on_cpu: (Nanos, Nanos),
}

struct Run<'a, P> {
    scenario: &'a Scenario,
    policy: P,
    states: Vec<State>,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    sequence: u64,
    /// When each unit of the device is free.
    units: BinaryHeap<Reverse<Nanos>>,
    /// When the device answers what it has.
    at_device: BinaryHeap<Reverse<Nanos>>,
    /// Requests that it has answered.
    done: u64,
    rng: Rng,
    outcome: Outcome,
}

/// Runs a scenario under a policy.
pub fn run(scenario: &Scenario, policy: impl Policy) -> Outcome {
    let count = scenario.tenants.len();
    let bucket_count = scenario.until.div_ceil(scenario.bucket_ns) as usize;
    let blank = Cell { backlogged: true, ..Cell::default() };
    let mut run = Run {
        scenario,
        policy,
        states: vec![State::default(); count],
        events: BinaryHeap::new(),
        sequence: 0,
        units: vec![Reverse(0); scenario.device.units.max(1) as usize].into(),
        at_device: BinaryHeap::new(),
        done: 0,
        rng: Rng::new(scenario.seed),
        outcome: Outcome {
            buckets: vec![vec![blank; count]; bucket_count],
            latencies_ns: vec![Vec::new(); count],
            bucket_ns: scenario.bucket_ns,
            starved_ns: vec![0; count],
        },
    };
    run.prepare();
    while let Some(Reverse((now, _, event))) = run.events.pop() {
        if now >= scenario.until {
            break;
        }
        run.step(now, event);
    }
    run.outcome
}

impl<P: Policy> Run<'_, P> {
    fn prepare(&mut self) {
        let scenario = self.scenario;
        for (index, tenant) in scenario.tenants.iter().enumerate() {
            self.policy.add_lane(tenant.weight);
            for (from, until) in &tenant.active {
                self.at(*from, Event::Turn(index));
                self.at(*until, Event::Turn(index));
            }
            self.mark_idle_buckets(index, tenant);
        }
        for (index, (when, ..)) in scenario.weights.iter().enumerate() {
            self.at(*when, Event::Weight(index));
        }
        let tick = self.policy.next_tick();
        self.at(tick, Event::Tick);
    }

    /// A bucket in which a tenant is not active all the time is not one of backlog.
    fn mark_idle_buckets(&mut self, index: usize, tenant: &Tenant) {
        let bucket_ns = self.scenario.bucket_ns;
        let busy = |bucket: u64| {
            let (from, until) = (bucket * bucket_ns, (bucket + 1) * bucket_ns);
            tenant.active.iter().any(|(start, end)| *start <= from && until <= *end)
        };
        for (bucket, cells) in self.outcome.buckets.iter_mut().enumerate() {
            cells[index].backlogged = busy(bucket as u64) && tenant.think_ns == 0;
        }
    }

    fn at(&mut self, when: Nanos, event: Event) {
        if when < self.scenario.until {
            self.sequence += 1;
            self.events.push(Reverse((when, self.sequence, event)));
        }
    }

    fn step(&mut self, now: Nanos, event: Event) {
        if let Event::Arrival(tenant) | Event::Answer(tenant, ..) | Event::Retry(tenant) = event {
            let from = self.on_cpu(now, tenant);
            if from > now {
                if event == Event::Retry(tenant) && self.states[tenant].retry_at == now {
                    self.states[tenant].retry_at = from;
                }
                return self.at(from, event);
            }
        }
        match event {
            Event::Turn(tenant) => self.turn(now, tenant),
            Event::Arrival(tenant) => self.arrive(now, tenant),
            Event::Answer(tenant, which, since) => self.answer(now, tenant, which, since),
            // Another one has been scheduled since, if the times differ.
            Event::Retry(tenant) if self.states[tenant].retry_at == now => self.pump(now, tenant),
            Event::Retry(_) => {}
            Event::Submit(tenant) => {
                for (since, which) in std::mem::take(&mut self.states[tenant].batch) {
                    self.serve(now, tenant, which, since);
                }
                self.pump(now, tenant);
            }
            Event::Tick => {
                self.tell(now);
                self.policy.tick(now);
                let next = self.policy.next_tick().max(now + 1);
                let late = self.late(self.scenario.late_ns.1);
                self.at(next + late, Event::Tick);
                (0..self.states.len()).for_each(|tenant| self.wake(now, tenant));
            }
            Event::Weight(index) => {
                let (_, tenant, weight) = self.scenario.weights[index];
                self.policy.set_weight(tenant, weight);
            }
        }
    }

    /// Lets a tenant look again as soon as it has a CPU.
    fn wake(&mut self, now: Nanos, tenant: usize) {
        let from = self.on_cpu(now, tenant);
        if from <= now {
            return self.pump(now, tenant);
        }
        self.states[tenant].retry_at = from;
        self.at(from, Event::Retry(tenant));
    }

    /// When a tenant has a CPU next, from `now` on; not asked about the past.
    fn on_cpu(&mut self, now: Nanos, tenant: usize) -> Nanos {
        let (on_ns, off_ns) = self.scenario.cpu_ns;
        if on_ns == 0 {
            return now;
        }
        while self.states[tenant].on_cpu.1 <= now {
            let from = self.states[tenant].on_cpu.1 + self.late(off_ns);
            self.states[tenant].on_cpu = (from, from + on_ns);
        }
        now.max(self.states[tenant].on_cpu.0)
    }

    /// Says what the device has now.
    fn tell(&mut self, now: Nanos) {
        while self.at_device.peek().is_some_and(|Reverse(until)| *until <= now) {
            self.at_device.pop();
            self.done += 1;
        }
        let requests = self.at_device.len() as u64;
        self.policy.at_device(AtDevice { requests, done: self.done });
    }

    /// Exponentially distributed around a mean.
    fn late(&mut self, mean_ns: Nanos) -> Nanos {
        if mean_ns == 0 {
            return 0;
        }
        let part = (self.rng.below(1 << 20) + 1) as f64 / f64::from(1 << 20);
        (-part.ln() * mean_ns as f64) as Nanos
    }

    fn turn(&mut self, now: Nanos, tenant: usize) {
        let wanted = &self.scenario.tenants[tenant];
        if wanted.is_active(now) {
            self.states[tenant].last_answer = now;
            let missing = wanted.depth.saturating_sub(self.states[tenant].outstanding);
            (0..missing).for_each(|_| self.at(now, Event::Arrival(tenant)));
        }
    }

    fn arrive(&mut self, now: Nanos, tenant: usize) {
        let wanted = &self.scenario.tenants[tenant];
        if !wanted.is_active(now) || self.states[tenant].outstanding >= wanted.depth {
            return;
        }
        let mut dice = self.rng.below(100);
        let which = wanted.mix.iter().position(|(percent, _)| match dice.checked_sub(*percent) {
            Some(rest) => {
                dice = rest;
                false
            }
            None => true,
        });
        let state = &mut self.states[tenant];
        state.outstanding += 1;
        state.waiting.push_back((now, which.unwrap_or(0)));
        self.pump(now, tenant);
    }

    /// Sends what the policy lets go.
    fn pump(&mut self, now: Nanos, tenant: usize) {
        if !self.states[tenant].batch.is_empty() {
            return;
        }
        self.admit_all(now, tenant);
        let prepare_ns = self.scenario.tenants[tenant].prepare_ns;
        let count = self.states[tenant].batch.len() as u64;
        if count > 0 {
            self.at(now + count * prepare_ns, Event::Submit(tenant));
        }
    }

    fn admit_all(&mut self, now: Nanos, tenant: usize) {
        while let Some((since, which)) = self.states[tenant].waiting.front().copied() {
            let io = self.scenario.tenants[tenant].mix[which].1;
            self.tell(now);
            match self.policy.admit(now, tenant, &io) {
                Verdict::Go => {
                    self.states[tenant].waiting.pop_front();
                    match self.scenario.tenants[tenant].prepare_ns {
                        0 => self.serve(now, tenant, which, since),
                        _ => self.states[tenant].batch.push((since, which)),
                    }
                }
                Verdict::Wait(until) => {
                    let late = self.late(self.scenario.late_ns.0);
                    let state = &mut self.states[tenant];
                    if state.retry_at <= now {
                        state.retry_at = until.max(now + 1) + late;
                        let when = state.retry_at;
                        self.at(when, Event::Retry(tenant));
                    }
                    return;
                }
            }
        }
    }

    fn serve(&mut self, now: Nanos, tenant: usize, which: usize, since: Nanos) {
        let device = &self.scenario.device;
        let Reverse(free) = self.units.pop().unwrap_or_default();
        let start = device.after_stall(free.max(now));
        let pace = device.pace.iter().rev().find(|(from, _)| *from <= start).map_or(100, |p| p.1);
        let noise = match device.noise_percent {
            0 => 100,
            percent => 100 - percent + self.rng.below(2 * percent + 1),
        };
        let cost = device.cost.cost_ns(&self.scenario.tenants[tenant].mix[which].1);
        let end = start + (device.units.max(1) * cost * pace * noise / 10_000).max(1);
        self.units.push(Reverse(end));
        let answer = end + device.latency_ns;
        self.at_device.push(Reverse(answer));
        self.at(answer, Event::Answer(tenant, which, since));
    }

    fn answer(&mut self, now: Nanos, tenant: usize, which: usize, since: Nanos) {
        let wanted = &self.scenario.tenants[tenant];
        let io = wanted.mix[which].1;
        self.policy.complete(now, tenant, &io);
        let cell = &mut self.outcome.buckets[(now / self.scenario.bucket_ns) as usize][tenant];
        cell.device_ns += self.scenario.device.cost.cost_ns(&io);
        match io.kind {
            Kind::Read => cell.read_bytes += io.bytes,
            _ => cell.write_bytes += io.bytes,
        }
        let latency = (now - since).min(u64::from(u32::MAX)) as u32;
        self.outcome.latencies_ns[tenant].push(latency);
        let state = &mut self.states[tenant];
        let starved = now - state.last_answer.max(since.min(now));
        let worst = &mut self.outcome.starved_ns[tenant];
        *worst = (*worst).max(starved);
        state.last_answer = now;
        state.outstanding -= 1;
        let think = match wanted.think_ns {
            0 => 0,
            mean => mean / 2 + self.rng.below(mean),
        };
        self.at(now + think, Event::Arrival(tenant));
        self.pump(now, tenant);
    }
}

impl Outcome {
    /// Device time given out in the buckets of a span, as part of the span.
    pub fn throughput(&self, from: Nanos, until: Nanos) -> f64 {
        let cells = self.span(from, until).iter().flatten();
        cells.map(|cell| cell.device_ns).sum::<u64>() as f64 / (until - from) as f64
    }

    /// Device time of a tenant in a span.
    pub fn device_ns(&self, tenant: usize, from: Nanos, until: Nanos) -> u64 {
        self.span(from, until).iter().map(|cells| cells[tenant].device_ns).sum()
    }

    /// The latency that this part of a tenant's requests stays below, in nanoseconds.
    pub fn latency_ns(&self, tenant: usize, part: f64) -> u64 {
        let mut sorted = self.latencies_ns[tenant].clone();
        sorted.sort_unstable();
        let rank = (sorted.len() as f64 * part) as usize;
        sorted.get(rank.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0).into()
    }

    fn span(&self, from: Nanos, until: Nanos) -> &[Vec<Cell>] {
        let bucket = |time: Nanos| ((time / self.bucket_ns) as usize).min(self.buckets.len());
        &self.buckets[bucket(from)..bucket(until)]
    }

    /// Weighted Jain index in a span, over tenants that had a backlog all the time; `None` for
    /// less than two.
    pub fn jain(&self, weights: &[u32], from: Nanos, until: Nanos) -> Option<f64> {
        let rates: Vec<f64> = self.backlogged(weights, from, until).map(|(x, w)| x / w).collect();
        let (sum, squares) = rates.iter().fold((0.0, 0.0), |(s, q), r| (s + r, q + r * r));
        (rates.len() >= 2 && squares > 0.0).then(|| sum * sum / (rates.len() as f64 * squares))
    }

    /// How far the worst-off tenant is from its part of what the backlogged ones got, as a part.
    pub fn max_min_error(&self, weights: &[u32], from: Nanos, until: Nanos) -> Option<f64> {
        let pairs: Vec<(f64, f64)> = self.backlogged(weights, from, until).collect();
        let (all, weight) = pairs.iter().fold((0.0, 0.0), |(a, b), (x, w)| (a + x, b + w));
        let errors = pairs.iter().map(|(x, w)| ((x / all) / (w / weight) - 1.0).abs());
        (pairs.len() >= 2 && all > 0.0).then(|| errors.fold(0.0, f64::max))
    }

    fn backlogged(
        &self,
        weights: &[u32],
        from: Nanos,
        until: Nanos,
    ) -> impl Iterator<Item = (f64, f64)> {
        let span = self.span(from, until);
        (0..weights.len()).filter_map(move |tenant| {
            let always = span.iter().all(|cells| cells[tenant].backlogged);
            let got: u64 = span.iter().map(|cells| cells[tenant].device_ns).sum();
            always.then_some((got as f64, f64::from(weights[tenant])))
        })
    }

    /// Time from `event` until the buckets show shares within `error` of the weights, two in a
    /// row; `None` if they never do.
    pub fn settles_ns(&self, weights: &[u32], event: Nanos, error: f64) -> Option<Nanos> {
        let fair = |bucket: u64| {
            let from = event + bucket * self.bucket_ns;
            let found = self.max_min_error(weights, from, from + self.bucket_ns);
            found.is_some_and(|found| found <= error)
        };
        let count = (self.buckets.len() as u64).saturating_sub(event / self.bucket_ns + 1);
        let settled = (0..count).find(|bucket| fair(*bucket) && fair(bucket + 1))?;
        Some(settled * self.bucket_ns)
    }
}
