//! Two lanes whose requests are as unlike as can be, on the simulated device: threads that make
//! batches of small requests beside large ones. With sizes, depths, kinds and weights at random
//! what is charged does not follow the weights for every pair yet: that test is ignored.

use polylane_base::rng::Rng;
use polylane_block::qos::Kind;
use polylane_block::qos::fixed::Ungoverned;
use polylane_block::qos::ledger::{Config, Ledger};
use polylane_block::qos::model::{Device, MILLISECOND, Outcome, SECOND, Scenario, Tenant, io, run};

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

#[test]
#[ignore = "does not hold for every pair yet: docs/design/qos.md, Limits"]
fn charged_parts_follow_the_weights_whatever_the_requests_are() {
    let mut rng = Rng::new(5);
    let mut wrong = Vec::new();
    for seed in 0..24 {
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
        // A known limit (docs/design/qos.md): what a discard takes alone is measured behind a large
        // request of the other's.
        let hidden = |one: &Tenant, other: &Tenant| {
            let (mine, theirs) = (one.mix[0].1, other.mix[0].1);
            mine.kind == Kind::Discard && one.depth <= 8 && theirs.bytes > 128 << 10
        };
        if hidden(&tenants[0], &tenants[1]) || hidden(&tenants[1], &tenants[0]) {
            continue;
        }
        let (part, due, kept) = beside(&device, &tenants, seed);
        let what = |tenant: &Tenant| format!("{:?} x {}", tenant.mix[0].1, tenant.depth);
        let [first, second] = [what(&tenants[0]), what(&tenants[1])];
        let line = format!(
            "{seed}: {units}, {weights:?}, {first}, {second}: {part:.3} of {due:.3}, {kept:.3}"
        );
        if (part - due).abs() > ERROR_MAX {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
