//! The cases in which shares are known to go wrong, by name, and the policies to try on them.

use super::cost::CostModel;
use super::fixed::{Static, Ungoverned};
use super::ledger::{Config, Ledger};
use super::model::{Device, MILLISECOND, Outcome, SECOND, Scenario, Tenant, io, run};
use super::wdt::Wdt;
use super::{Kind, Nanos};

/// The weights of the paper.
pub const WEIGHTS: [u32; 4] = [1000, 500, 250, 100];

/// A policy by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyName {
    /// Everything goes.
    None,
    /// The paper's ST.
    Static,
    /// WDT as published.
    Wdt,
    /// The default.
    Ledger,
}

impl PolicyName {
    /// All of them.
    pub const ALL: [PolicyName; 4] =
        [PolicyName::None, PolicyName::Static, PolicyName::Wdt, PolicyName::Ledger];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            PolicyName::None => "none",
            PolicyName::Static => "static",
            PolicyName::Wdt => "wdt",
            PolicyName::Ledger => "ledger",
        }
    }
}

/// A scenario with what is looked at.
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// What happens.
    pub scenario: Scenario,
    /// The span that fairness and throughput are taken from.
    pub span: (Nanos, Nanos),
    /// A change after which shares settle anew.
    pub event: Option<Nanos>,
    /// The small tenant whose latency counts.
    pub small: Option<usize>,
    /// Every tenant with a backlog could use its share.
    pub fair: bool,
}

impl Case {
    fn new(name: &'static str, tenants: Vec<Tenant>, seconds: u64) -> Self {
        let scenario = Scenario {
            device: Device::default(),
            tenants,
            weights: Vec::new(),
            late_ns: (0, 0),
            cpu_ns: (0, 0),
            until: seconds * SECOND,
            bucket_ns: 25 * MILLISECOND,
            seed: 1,
        };
        let span = (SECOND, seconds * SECOND);
        Case { name, scenario, span, event: None, small: None, fair: true }
    }

    fn with_event(mut self, event: Nanos) -> Self {
        self.event = Some(event);
        self
    }

    /// Runs it under a policy.
    pub fn run(&self, policy: PolicyName) -> Outcome {
        let cost = self.scenario.device.cost;
        match policy {
            PolicyName::None => run(&self.scenario, Ungoverned::default()),
            PolicyName::Static => {
                let (read, write) = nominal_bandwidths(&cost);
                run(&self.scenario, Static::new(read, write))
            }
            PolicyName::Wdt => run(&self.scenario, Wdt::new(bandwidth(&cost, Kind::Read))),
            PolicyName::Ledger => run(&self.scenario, Ledger::new(cost, Config::default())),
        }
    }

    /// The weights at the end.
    pub fn weights(&self) -> Vec<u32> {
        let mut weights: Vec<u32> = self.scenario.tenants.iter().map(|t| t.weight).collect();
        self.scenario.weights.iter().for_each(|(_, tenant, weight)| weights[*tenant] = *weight);
        weights
    }
}

/// Bytes per second of random 4 KiB reads and writes: what the limits of ST and WDT start from.
pub fn nominal_bandwidths(cost: &CostModel) -> (u64, u64) {
    (bandwidth(cost, Kind::Read), bandwidth(cost, Kind::Write))
}

/// Bytes per second of random 4 KiB requests of a kind.
fn bandwidth(cost: &CostModel, kind: Kind) -> u64 {
    4096 * SECOND / cost.cost_ns(&io(kind, 4096))
}

fn four(depth: u32) -> Vec<Tenant> {
    WEIGHTS.iter().map(|weight| Tenant::reader(*weight, depth)).collect()
}

/// Fig. 9's tenants: random 4 KiB, 90, 80, 70 and 60 per cent of it reads.
pub fn fig9() -> Vec<Tenant> {
    let mix =
        |percent| vec![(percent, io(Kind::Read, 4096)), (100 - percent, io(Kind::Write, 4096))];
    let tenant =
        |(weight, percent): (&u32, u64)| Tenant::reader(*weight, 96).with_mix(mix(percent));
    WEIGHTS.iter().zip([90, 80, 70, 60]).map(tenant).collect()
}

/// Table 1's tenants: sizes that average to the paper's, reads and writes in its proportion.
pub fn table1() -> Vec<Tenant> {
    let mix = |reads: u64, small: u64, large: u64, larges: u64| {
        let writes = 100 - reads;
        let part = |kind, all: u64| {
            [(all - all * larges / 100, io(kind, small)), (all * larges / 100, io(kind, large))]
        };
        [part(Kind::Read, reads), part(Kind::Write, writes)].concat()
    };
    // Exchange 9.3 KB, 0.34:1; MSNMeta 5.0 KB, 1.94:1; MSNFS 5.1 KB, 1.67:1; Finance 2.7 KB,
    // 0.87:1.
    let mixes = [
        mix(25, 4096, 16384, 43),
        mix(66, 4096, 8192, 22),
        mix(63, 4096, 8192, 25),
        mix(47, 2048, 4096, 35),
    ];
    let tenant = |(weight, mix): (&u32, _)| Tenant::reader(*weight, 384).with_mix(mix);
    WEIGHTS.iter().zip(mixes).map(tenant).collect()
}

/// All cases.
pub fn all() -> Vec<Case> {
    vec![
        Case::new("all-saturate", four(64), 10),
        Case::new("fig9-mix", fig9(), 10),
        heaviest_light(),
        heaviest_idle(),
        returns(),
        joins(),
        weight_changes(),
        device_halves(),
        mixed_sizes(),
        bully(),
        fifty_of_a_thousand(),
        noisy(),
        parallel(),
        few_requests(),
        late_wakes(),
        stalls(),
        parallel_bully(),
        busy_host(),
        starved_host(),
    ]
}

/// The heaviest tenant wants a twentieth of the device.
pub fn heaviest_light() -> Case {
    let mut tenants = four(64);
    // One request of 10 µs every 200 µs, 110 µs of which it takes.
    tenants[0] = Tenant::reader(WEIGHTS[0], 1).thinking(90_000);
    Case::new("heaviest-wants-5%", tenants, 10)
}

/// The heaviest tenant is idle from the third second on.
pub fn heaviest_idle() -> Case {
    let mut tenants = four(64);
    tenants[0] = Tenant::reader(WEIGHTS[0], 64).active_in(vec![(0, 3 * SECOND)]);
    let case = Case::new("heaviest-idle", tenants, 13).with_event(3 * SECOND);
    Case { span: (3 * SECOND, 13 * SECOND), ..case }
}

/// The second tenant comes back after 30 seconds.
pub fn returns() -> Case {
    let mut tenants = four(64);
    tenants[1] =
        Tenant::reader(WEIGHTS[1], 64).active_in(vec![(0, SECOND), (31 * SECOND, 41 * SECOND)]);
    let case = Case::new("return-after-30s", tenants, 41).with_event(31 * SECOND);
    Case { span: (31 * SECOND, 41 * SECOND), ..case }
}

/// The heaviest tenant comes when the others have filled the device.
pub fn joins() -> Case {
    let mut tenants = four(64);
    tenants[0] = Tenant::reader(WEIGHTS[0], 64).active_in(vec![(2 * SECOND, Nanos::MAX)]);
    let case = Case::new("heaviest-joins", tenants, 7).with_event(2 * SECOND);
    Case { span: (2 * SECOND, 7 * SECOND), ..case }
}

/// The weights turn round.
pub fn weight_changes() -> Case {
    let mut case = Case::new("weights-change", four(64), 7).with_event(2 * SECOND);
    let turned = WEIGHTS.iter().rev().enumerate();
    case.scenario.weights = turned.map(|(tenant, weight)| (2 * SECOND, tenant, *weight)).collect();
    Case { span: (2 * SECOND, 7 * SECOND), ..case }
}

/// The device takes twice the time for 5 seconds.
pub fn device_halves() -> Case {
    let mut case = Case::new("device-halves", four(64), 10).with_event(2 * SECOND);
    case.scenario.device.pace = vec![(0, 100), (2 * SECOND, 200), (7 * SECOND, 100)];
    case
}

/// Equal weights; 4 KiB reads, 64 KiB reads, 4 KiB writes.
pub fn mixed_sizes() -> Case {
    let mixes = [io(Kind::Read, 4096), io(Kind::Read, 65536), io(Kind::Write, 4096)];
    let tenant = |io| Tenant::reader(100, 64).with_mix(vec![(100, io)]);
    Case::new("mixed-sizes", mixes.into_iter().map(tenant).collect(), 10)
}

/// A tenant with one small read at a time beside one that floods the device.
pub fn bully() -> Case {
    let small = Tenant::reader(100, 1).thinking(5_000_000);
    let flood = Tenant::reader(100, 256);
    let case = Case::new("bully", vec![small, flood.clone(), flood.clone(), flood], 10);
    Case { small: Some(0), ..case }
}

/// A thousand tenants of which fifty do anything; the first and heaviest is idle.
pub fn fifty_of_a_thousand() -> Case {
    let tenant = |index: u32| {
        let tenant = Tenant::reader(if index == 0 { 1000 } else { 100 }, 8);
        if index % 20 == 7 { tenant } else { tenant.active_in(Vec::new()) }
    };
    Case::new("50-of-1000", (0..1000).map(tenant).collect(), 6)
}

/// Costs are off by up to 40 per cent, each time anew.
pub fn noisy() -> Case {
    let mut case = Case::new("noisy", four(64), 10);
    case.scenario.device.noise_percent = 40;
    case
}

fn with_units(mut case: Case, units: u64) -> Case {
    (case.scenario.device.units, case.scenario.device.latency_ns) = (units, 20_000);
    case
}

/// A device that has to have 34 requests in flight to be busy.
pub fn parallel() -> Case {
    with_units(Case::new("parallel-units", four(64), 10), 32)
}

/// On that device, the heaviest never has more than 4 requests, an eighth of it.
pub fn few_requests() -> Case {
    let mut tenants = four(64);
    tenants[0].depth = 4;
    Case { fair: false, ..with_units(Case::new("heaviest-has-4", tenants, 10), 32) }
}

/// Tenants wake up 300 µs late on average, the policy 2 ms.
pub fn late_wakes() -> Case {
    let mut case = Case::new("late-wakes", four(64), 10);
    case.scenario.late_ns = (300_000, 2_000_000);
    case
}

/// The device does nothing for 10 ms every 200 ms, as when it collects garbage.
pub fn stalls() -> Case {
    let mut case = Case::new("stalls", four(64), 10);
    case.scenario.device.stalls = (200 * MILLISECOND, 10 * MILLISECOND);
    case
}

/// A small tenant beside floods, on the device with many units.
pub fn parallel_bully() -> Case {
    Case { name: "parallel-bully", ..with_units(bully(), 32) }
}

/// Beside busy CPUs: tenants' threads have one two thirds of the time, and the policy's tick comes
/// 6 ms late on average.
pub fn busy_host() -> Case {
    let mut case = Case::new("busy-host", four(64), 10);
    case.scenario.cpu_ns = (2_000_000, 1_000_000);
    case.scenario.late_ns = (100_000, 6_000_000);
    case
}

/// Beside busier ones: a quarter of the time, so that the heaviest cannot use its share.
pub fn starved_host() -> Case {
    let mut case = Case::new("starved-host", four(64), 10);
    case.scenario.cpu_ns = (3_000_000, 9_000_000);
    case.scenario.late_ns = (100_000, 6_000_000);
    Case { fair: false, ..case }
}

/// A thousand tenants, all active.
pub fn thousand() -> Case {
    Case::new("1000-active", (0..1000).map(|_| Tenant::reader(100, 4)).collect(), 6)
}

/// What a case showed.
#[derive(Clone, Copy, Debug)]
pub struct Findings {
    /// Weighted Jain index per second: median and worst; NaN without two backlogged tenants.
    pub jain: f64,
    /// The worst second.
    pub jain_worst: f64,
    /// Largest relative distance from a fair part over the span.
    pub max_min_error: f64,
    /// Part of the time that the device worked, by the nominal costs.
    pub throughput: f64,
    /// Time to settle after the event, in milliseconds; infinite for never.
    pub settle_ms: f64,
    /// The small tenant's latency in microseconds that 99 per cent of requests stay below.
    pub p99_us: f64,
}

impl Findings {
    /// What an outcome of a case shows.
    pub fn of(case: &Case, outcome: &Outcome) -> Self {
        let (weights, (from, until)) = (case.weights(), case.span);
        let seconds = (from / SECOND..until / SECOND).map(|s| (s * SECOND, (s + 1) * SECOND));
        let mut jains: Vec<f64> =
            seconds.filter_map(|(from, until)| outcome.jain(&weights, from, until)).collect();
        jains.sort_by(f64::total_cmp);
        let settle = |event| match outcome.settles_ns(&weights, event, 0.05) {
            Some(ns) => ns as f64 / MILLISECOND as f64,
            None => f64::INFINITY,
        };
        let p99 = |tenant| outcome.latency_ns(tenant, 0.99) as f64 / 1000.0;
        if !case.fair {
            jains.clear();
        }
        let error = outcome.max_min_error(&weights, from, until).filter(|_| case.fair);
        Findings {
            jain: jains.get(jains.len() / 2).copied().unwrap_or(f64::NAN),
            jain_worst: jains.first().copied().unwrap_or(f64::NAN),
            max_min_error: error.unwrap_or(f64::NAN),
            throughput: outcome.throughput(from, until),
            settle_ms: case.event.map_or(f64::NAN, settle),
            p99_us: case.small.map_or(f64::NAN, p99),
        }
    }
}
