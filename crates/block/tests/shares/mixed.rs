//! Two lanes whose requests are as unlike as can be, on the simulated device: threads that make
//! batches of small requests beside large ones, then sizes, depths, kinds and weights at random.
//!
//! A lane wants more than it gets if it does clearly more alone. Wherever both do, each has its
//! part, but for a few pairs (docs/design/qos.md, Limits).

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

/// A lane that does so much of what it does alone wants no more.
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

/// What two lanes do beside each other: of what both do, and of what each does alone.
#[derive(Clone, Copy, Debug)]
struct Beside {
    part: [f64; 2],
    kept: [f64; 2],
}

impl Beside {
    fn of(device: &Device, tenants: &[Tenant; 2], seed: u64) -> Beside {
        let alone = [0, 1].map(|index: usize| {
            let one = scenario(device, vec![tenants[index].clone()], seed);
            done(&run(&one, Ungoverned::default()), 0)
        });
        let both = scenario(device, tenants.to_vec(), seed);
        let outcome = run(&both, Ledger::new(device.cost, Config::default()));
        let got = [done(&outcome, 0), done(&outcome, 1)];
        let all = got[0] + got[1];
        Beside {
            part: got.map(|got| got / all),
            kept: [0, 1].map(|index: usize| got[index] / alone[index]),
        }
    }

    /// Whether a lane has what its weight gives it, or as good as all that it does alone.
    fn is_right(&self, weights: [u32; 2], lane: usize) -> bool {
        let due = f64::from(weights[lane]) / f64::from(weights[0] + weights[1]);
        self.part[lane] >= due - ERROR_MAX || self.kept[lane] >= KEPT
    }
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
        let found = Beside::of(&device, &[small, large], 1);
        let right = found.is_right([1000, 100], 0);
        assert!(right, "{units} units, {prepare_ns} ns each: {found:?}");
    }
}

/// Pairs of lanes that are tried, and of how many of them one is known to be otherwise
/// (docs/design/qos.md, Limits).
const PAIRS: u64 = 60;
const OTHERWISE: u64 = 8;

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
        let found = Beside::of(&device, &tenants, seed);
        let both = found.kept.iter().all(|kept| *kept < KEPT);
        counts[usize::from(both)] += 1;
        let what = |tenant: &Tenant| {
            format!("{:?} x {}, {} ns each", tenant.mix[0].1, tenant.depth, tenant.prepare_ns)
        };
        let [first, second] = [what(&tenants[0]), what(&tenants[1])];
        if !(0..2).all(|lane| found.is_right(weights, lane)) {
            wrong.push(format!("{seed}: {units}, {weights:?}, {first}, {second}: {found:.3?}"));
        }
    }
    assert!(wrong.len() as u64 <= PAIRS / OTHERWISE, "{wrong:#?}");
    assert!(counts[1] >= PAIRS / 3, "pairs in which both want more: {counts:?}");
}
