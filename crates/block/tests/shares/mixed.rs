//! Two lanes whose requests are as unlike as can be, on the simulated device: threads that make
//! batches of small requests beside large ones, then sizes, depths, kinds and weights at random.
//!
//! Weights say nothing where a lane cannot use its part. Whether it can is found by a policy that
//! holds each lane to its part and leaves the rest of the device unused: both want more if each
//! then uses its part up.

use polylane_base::rng::Rng;
use polylane_block::qos::cost::CostModel;
use polylane_block::qos::fixed::Ungoverned;
use polylane_block::qos::ledger::{Config, Ledger};
use polylane_block::qos::model::{Device, MILLISECOND, Outcome, SECOND, Scenario, Tenant, io, run};
use polylane_block::qos::{Io, Kind, Nanos, Policy, Verdict};

/// Shares are taken from here on: they have settled.
const FROM: u64 = 2 * SECOND;
const UNTIL: u64 = 8 * SECOND;

/// A part may be so far from the one that is due, in parts of the whole.
const ERROR_MAX: f64 = 0.05;

/// A lane that wants less than its weight gives it does so much of what it does alone.
const KEPT: f64 = 0.9;

fn scenario(device: &Device, tenants: Vec<Tenant>, seed: u64) -> Scenario {
    Scenario {
        device: device.clone(),
        tenants,
        weights: Vec::new(),
        late_ns: (0, 0),
        cpu_ns: (0, 0),
        until: UNTIL,
        bucket_ns: 100 * MILLISECOND,
        seed,
    }
}

fn done(outcome: &Outcome, tenant: usize) -> f64 {
    outcome.device_ns(tenant, FROM, UNTIL) as f64 / (UNTIL - FROM) as f64
}

/// The part of what both do that the first has, the one that is due to it, and what the first does
/// of what it does alone.
fn beside(device: &Device, tenants: &[Tenant; 2], seed: u64) -> (f64, f64, f64) {
    let alone = [0, 1].map(|index: usize| {
        let one = scenario(device, vec![tenants[index].clone()], seed);
        done(&run(&one, Ungoverned::default()), 0)
    });
    let both = scenario(device, tenants.to_vec(), seed);
    let outcome = run(&both, Ledger::new(device.cost, Config::default()));
    let got = [done(&outcome, 0), done(&outcome, 1)];
    let [first, second] = [0, 1].map(|index: usize| f64::from(tenants[index].weight));
    let all = got[0] + got[1];
    let due = (all * first / (first + second)).min(alone[0]).max(all - alone[1]);
    (got[0] / all, due / all, got[0] / alone[0])
}

#[test]
fn small_requests_beside_large_ones_have_their_part() {
    let both = |bytes| vec![(50, io(Kind::Read, bytes)), (50, io(Kind::Write, bytes))];
    for (units, latency_ns, prepare_ns) in
        [(1, 100_000, 0), (8, 50_000, 0), (8, 50_000, 18_000), (8, 50_000, 25_000), (32, 50_000, 0)]
    {
        let device = Device { units, latency_ns, ..Device::default() };
        let small = Tenant::reader(1000, 64).with_mix(both(4 << 10)).preparing(prepare_ns);
        let large = Tenant::reader(100, 8).with_mix(both(256 << 10)).preparing(prepare_ns);
        let (part, due, kept) = beside(&device, &[small, large], 1);
        let what = format!("{units} units, {prepare_ns} ns each: {part} of {due}, kept {kept}");
        assert!(part >= due - ERROR_MAX || kept >= KEPT, "{what}");
    }
}

/// Each lane has its part of the device and no more, whatever the other does.
struct Parts {
    cost: CostModel,
    weights: Vec<f64>,
    /// Device time that each may spend, and when that was so.
    left: Vec<(f64, Nanos)>,
}

/// The device is never quite full, or its queue would grow.
const OF_DEVICE: f64 = 0.98;

/// Device time that a lane may save up, as time.
const SAVED_NS: f64 = 2e6;

impl Parts {
    fn new(cost: CostModel) -> Parts {
        Parts { cost, weights: Vec::new(), left: Vec::new() }
    }

    fn part(&self, lane: usize) -> f64 {
        OF_DEVICE * self.weights[lane] / self.weights.iter().sum::<f64>()
    }
}

impl Policy for Parts {
    fn add_lane(&mut self, weight: u32) -> usize {
        self.weights.push(weight.into());
        self.left.push((0.0, 0));
        self.weights.len() - 1
    }

    fn set_weight(&mut self, lane: usize, weight: u32) {
        self.weights[lane] = weight.into();
    }

    fn admit(&mut self, now: Nanos, lane: usize, io: &Io) -> Verdict {
        let part = self.part(lane);
        let (left, at) = &mut self.left[lane];
        *left = (*left + (now - *at) as f64 * part).min(SAVED_NS * part);
        *at = now;
        if *left < 0.0 {
            return Verdict::Wait(now + (-*left / part) as Nanos + 1);
        }
        *left -= self.cost.cost_ns(io) as f64;
        Verdict::Go
    }

    fn complete(&mut self, _: Nanos, _: usize, _: &Io) {}

    fn tick(&mut self, _: Nanos) {}

    fn next_tick(&self) -> Nanos {
        Nanos::MAX
    }
}

/// Pairs of lanes that are tried.
const PAIRS: u64 = 60;

/// A lane that does so much of its part while the other has its own, and no more, wants more.
const WANTS: f64 = 0.98;

/// Whether each of them could do more than its part beside the other one's.
fn both_want_more(device: &Device, tenants: &[Tenant; 2], seed: u64) -> bool {
    let parts = Parts::new(device.cost);
    let outcome = run(&scenario(device, tenants.to_vec(), seed), parts);
    let all: f64 = tenants.iter().map(|tenant| f64::from(tenant.weight)).sum();
    (0..2).all(|lane| {
        let part = OF_DEVICE * f64::from(tenants[lane].weight) / all;
        done(&outcome, lane) >= WANTS * part
    })
}

#[test]
fn charged_parts_follow_the_weights_whatever_the_requests_are() {
    let mut rng = Rng::new(5);
    let (mut wrong, mut counts) = (Vec::new(), [0; 2]);
    for seed in 0..PAIRS {
        let units = *rng.pick(&[1, 8]);
        let device = Device { units, ..Device::default() };
        let weights = *rng.pick(&[[1000, 100], [100, 1000]]);
        let tenants = weights.map(|weight| {
            let kind = *rng.pick(&[Kind::Read, Kind::Write, Kind::Discard]);
            let bytes = 4096 << rng.below(9);
            let depth = 1 << rng.below(7);
            let prepare_ns = *rng.pick(&[0, 5_000, 15_000]);
            let tenant = Tenant::reader(weight, depth).with_mix(vec![(100, io(kind, bytes))]);
            tenant.preparing(prepare_ns)
        });
        let both = both_want_more(&device, &tenants, seed);
        counts[usize::from(both)] += 1;
        let (part, due, kept) = beside(&device, &tenants, seed);
        let what = |tenant: &Tenant| format!("{:?} x {}", tenant.mix[0].1, tenant.depth);
        let [first, second] = [what(&tenants[0]), what(&tenants[1])];
        let line = format!(
            "{seed}: {units}, {weights:?}, {first}, {second}: {part:.3} of {due:.3}, {kept:.3}"
        );
        let by_weight = f64::from(weights[0]) / 1100.0;
        if both && (part - by_weight).abs() > ERROR_MAX {
            wrong.push(line);
        }
    }
    assert!(counts[1] >= PAIRS / 2, "pairs in which both want more: {counts:?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
