//! Policies on the simulated device, and the arithmetic of sharing.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use polylane_base::rng::Rng;
use polylane_block::qos::board::Limits;
use polylane_block::qos::cost::CostModel;
use polylane_block::qos::depth::{AtDevice, Depth};
use polylane_block::qos::lane::Lane;
use polylane_block::qos::ledger::{Config, Ledger};
use polylane_block::qos::model::{Device, SECOND, Scenario, Tenant, io, run};
use polylane_block::qos::page::{Private, Terms, Words, lane};
use polylane_block::qos::scenarios::{self, Case, Findings, PolicyName};
use polylane_block::qos::share::{Claim, max_min};
use polylane_block::qos::{Io, Kind, Nanos, Policy, Verdict};

fn findings(case: &Case, policy: PolicyName) -> Findings {
    Findings::of(case, &case.run(policy))
}

fn claims(rng: &mut Rng) -> Vec<Claim> {
    let claim = |rng: &mut Rng| {
        let demand = match rng.below(4) {
            0 => u64::MAX,
            1 => 0,
            _ => rng.below(2_000_000),
        };
        Claim { weight: 1 + rng.below(10_000) as u32, demand }
    };
    (0..rng.below(40)).map(|_| claim(rng)).collect()
}

#[test]
fn shares_are_weighted_max_min() {
    let mut rng = Rng::new(1);
    for _ in 0..2_000 {
        let (budget, claims) = (rng.below(10_000_000), claims(&mut rng));
        let shares = max_min(budget, &claims);
        let sum: u64 = shares.iter().sum();
        assert!(sum <= budget, "{claims:?}");
        let demand = claims.iter().fold(0_u64, |sum, claim| sum.saturating_add(claim.demand));
        let least = budget.min(demand).saturating_sub(claims.len() as u64);
        assert!(sum >= least, "work is conserved: {sum} of {budget}, {claims:?}");
        for (share, claim) in shares.iter().zip(&claims) {
            assert!(*share <= claim.demand);
            // Who is not content has no less for their weight than anybody else, but for rounding.
            if share < &claim.demand {
                for (other, against) in shares.iter().zip(&claims) {
                    let mine = (share + 2 + claims.len() as u64) as f64 / f64::from(claim.weight);
                    assert!(
                        mine + 1e-9 >= *other as f64 / f64::from(against.weight) - 2.0,
                        "{claims:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn asking_for_more_never_gives_less() {
    let mut rng = Rng::new(2);
    for _ in 0..1_000 {
        let (budget, mut claims) = (rng.below(10_000_000), claims(&mut rng));
        if claims.is_empty() {
            continue;
        }
        let lane = rng.below(claims.len() as u64) as usize;
        let before = max_min(budget, &claims)[lane];
        claims[lane].demand = claims[lane].demand.saturating_add(rng.below(1_000_000));
        assert!(max_min(budget, &claims)[lane] + 1 >= before, "{claims:?}");
        assert!(max_min(budget + 1_000, &claims)[lane] + 1 >= before, "{claims:?}");
    }
}

#[test]
fn the_ledger_meets_its_goals_in_every_case() {
    let mut missed = Vec::new();
    for case in scenarios::all() {
        let (found, free) =
            (findings(&case, PolicyName::Ledger), findings(&case, PolicyName::None));
        let changing = case.event.is_some();
        let settle_ms = if case.name == "device-halves" { 500.0 } else { 50.0 };
        let goals = [
            !case.fair || found.jain >= 0.99,
            !case.fair || found.jain_worst >= 0.95,
            changing || !case.fair || found.max_min_error <= 0.05,
            found.throughput >= 0.95 * free.throughput,
            !changing || found.settle_ms <= settle_ms,
        ];
        if goals.contains(&false) {
            missed.push(format!("{}: {goals:?}, {found:?}, ungoverned {free:?}", case.name));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn a_small_tenant_beside_a_flood_keeps_its_latency() {
    keeps_its_latency(&scenarios::bully(), scenarios::bully());
    keeps_its_latency(&scenarios::parallel_bully(), scenarios::parallel_bully());
}

fn keeps_its_latency(case: &Case, mut alone: Case) {
    alone.scenario.tenants.truncate(1);
    let (beside, alone) = (case.run(PolicyName::Ledger), alone.run(PolicyName::None));
    for (part, factor) in [(0.99, 2), (0.999, 3)] {
        let (beside, alone) = (beside.latency_ns(0, part), alone.latency_ns(0, part));
        assert!(beside <= factor * alone, "{part}: {beside} ns, alone {alone} ns");
    }
    let flooded = case.run(PolicyName::None).latency_ns(0, 0.99);
    assert!(flooded > 10 * beside.latency_ns(0, 0.99), "the case shows something");
}

#[test]
fn a_thousand_tenants_are_fair() {
    let found = findings(&scenarios::thousand(), PolicyName::Ledger);
    assert!(found.jain >= 0.99 && found.throughput >= 0.95, "{found:?}");
}

#[test]
fn wdt_fails_where_it_is_known_to() {
    let light = findings(&scenarios::heaviest_light(), PolicyName::Wdt);
    assert!((0.05..0.15).contains(&light.throughput), "slaved to the heaviest: {light:?}");
    let idle = findings(&scenarios::heaviest_idle(), PolicyName::Wdt);
    assert!(idle.throughput < 0.6, "{idle:?}");
    let back = findings(&scenarios::returns(), PolicyName::Wdt);
    assert!(back.jain < 0.96, "residual credit of 30 s: {back:?}");
    let sizes = findings(&scenarios::mixed_sizes(), PolicyName::Wdt);
    assert!(sizes.jain < 0.8, "sectors are not device time: {sizes:?}");
    let all = &scenarios::all()[0];
    assert!(findings(all, PolicyName::Wdt).jain > 0.999, "and works where all saturate");
}

#[test]
fn static_limits_waste_what_others_could_use() {
    let idle = findings(&scenarios::heaviest_idle(), PolicyName::Static);
    assert!(idle.throughput < 0.5, "{idle:?}");
    let mix = findings(&scenarios::all()[1], PolicyName::Static);
    assert!(mix.jain < 0.95, "reads and writes apart: {mix:?}");
}

#[test]
fn nobody_starves_under_the_ledger() {
    let mut rng = Rng::new(3);
    for seed in 0..20 {
        let tenant = |rng: &mut Rng| {
            let kind = *rng.pick(&[Kind::Read, Kind::Write]);
            let mix = vec![(70, io(kind, 4096)), (30, io(Kind::Read, 4096 << rng.below(5)))];
            let tenant = Tenant::reader(1 + rng.below(1000) as u32, 1 + rng.below(64) as u32);
            tenant.with_mix(mix).thinking(rng.below(3) * 500_000)
        };
        let tenants: Vec<Tenant> = (0..2 + rng.below(12)).map(|_| tenant(&mut rng)).collect();
        let count = tenants.len();
        let (device, bucket_ns) = (Device::default(), SECOND / 10);
        let scenario = Scenario {
            device,
            tenants,
            weights: vec![],
            late_ns: (0, 0),
            cpu_ns: (0, 0),
            until: SECOND,
            bucket_ns,
            seed,
        };
        let outcome = run(&scenario, Ledger::new(scenario.device.cost, Config::default()));
        for tenant in 0..count {
            assert!(!outcome.latencies_ns[tenant].is_empty(), "seed {seed}, tenant {tenant}");
        }
        // A tenant of weight 1 beside thousands gets one request in many windows, but gets it.
        assert!(outcome.starved_ns.iter().all(|ns| *ns < SECOND), "{:?}", outcome.starved_ns);
    }
}

#[test]
fn grants_never_exceed_the_capacity_and_a_run_repeats() {
    let mut ledger = Ledger::new(CostModel::default(), Config::default());
    let lanes: Vec<usize> = (0..9).map(|lane| ledger.add_lane(1 + lane * lane * 50)).collect();
    let (mut rng, mut now): (Rng, Nanos) = (Rng::new(4), 0);
    let mut inflight = Vec::new();
    for _ in 0..40_000 {
        now += rng.below(20_000);
        let lane = *rng.pick(&lanes);
        let request = io(*rng.pick(&[Kind::Read, Kind::Write, Kind::Discard, Kind::Flush]), 8192);
        if ledger.admit(now, lane, &request) == Verdict::Go {
            inflight.push((lane, request));
        }
        if inflight.len() > 4 && rng.percent(60) {
            let (lane, request) = inflight.swap_remove(rng.below(inflight.len() as u64) as usize);
            ledger.complete(now, lane, &request);
        }
        if now >= ledger.next_tick() {
            ledger.tick(now);
            // What is donated was deposited in the window before, and not spent.
            let budget = ledger.capacity() * Config::default().tick_ns as f64;
            let granted: u64 = ledger.grants().iter().sum();
            assert!(granted as f64 <= 2.0 * budget + 1.0, "{granted} of {budget}");
        }
    }
    let case = scenarios::noisy();
    let twice = [case.run(PolicyName::Ledger), case.run(PolicyName::Ledger)];
    assert_eq!(twice[0].latencies_ns, twice[1].latencies_ns);
}

#[test]
fn a_late_coordinator_learns_nothing() {
    let mut ledger = Ledger::new(CostModel::default(), Config::default());
    let lane = ledger.add_lane(100);
    let other = ledger.add_lane(100);
    let request = io(Kind::Read, 4096);
    // A lane alone is not limited, so there are two.
    for tick in 1..=20 {
        let now = tick * 5_000_000 - 1;
        for lane in [lane, other] {
            for _ in 0..1_000 {
                if ledger.admit(now, lane, &request) != Verdict::Go {
                    break;
                }
                ledger.complete(now, lane, &request);
            }
        }
        ledger.tick(tick * 5_000_000);
    }
    let before = ledger.capacity();
    ledger.admit(110_000_000, lane, &request);
    ledger.tick(300_000_000);
    assert_eq!(ledger.capacity(), before, "after 200 ms without a tick");
    ledger.tick(305_000_000);
    assert_eq!(ledger.capacity(), before, "in flight and nothing done: not known");
}

/// A device that has as many requests as is said, and counts who asks.
#[derive(Debug, Default)]
struct Said {
    requests: AtomicU64,
    done: AtomicU64,
    looks: AtomicU64,
}

impl Depth for Said {
    fn look(&self) -> Option<AtDevice> {
        self.looks.fetch_add(1, Relaxed);
        Some(AtDevice { requests: self.requests.load(Relaxed), done: self.done.load(Relaxed) })
    }
}

/// Requests that go at once to a device that has so many, without any of them being answered.
fn burst(lane: &Lane<Arc<Private>>, device: &Said, requests: u64) -> u64 {
    device.requests.store(requests, Relaxed);
    let goes = |_: &u32| {
        let goes = lane.admit(&io(Kind::Read, 4096), || 1_000) == Verdict::Go;
        device.requests.fetch_add(u64::from(goes), Relaxed);
        goes
    };
    (0..1000).take_while(goes).count() as u64
}

#[test]
fn who_would_wait_goes_where_the_device_has_little_to_do() {
    let (page, device) = (Arc::new(Private::default()), Arc::new(Said::default()));
    CostModel::default().store(&page);
    // A grant of ten requests, all of it used, and room for none.
    let all = Terms {
        tick: 5_000_000,
        slices: 1,
        grant: 100_000,
        low_water: 16,
        stale_at: u64::MAX,
        start: 1_000,
        ..Terms::default()
    };
    let lane = Lane::new(page.clone(), None).with_depth(Some(device.clone()));
    all.publish(&page);
    let asked = &device.looks;
    // One may start, as without a look: nothing of it is in flight.
    assert_eq!((burst(&lane, &device, 16), asked.load(Relaxed)), (1, 1), "the device is busy");
    assert_eq!(burst(&lane, &device, 12), 4, "what the device is short of, and no more");
    assert_eq!(asked.load(Relaxed), 3, "one look for all of them, and one in vain");
    // The more it owes, the less there must be.
    let went: Vec<u64> = (0..60).map(|_| burst(&lane, &device, 0)).collect();
    assert!(went.windows(2).all(|two| two[1] <= two[0]), "{went:?}");
    assert_eq!((went[0] > 8, went.last()), (true, Some(&0)), "which is not idle for being empty");
    assert_eq!(page.load(lane::SPENT, Relaxed), 10_000 * (5 + went.iter().sum::<u64>()), "charged");
    // Without low water there is no look.
    let looks = asked.load(Relaxed);
    Terms { low_water: 0, ..all }.publish(&page);
    assert_eq!((burst(&lane, &device, 0), asked.load(Relaxed)), (0, looks));
    // A limit that a person set holds whatever the device has.
    Terms { requests_max: Some(0), ..all }.publish(&page);
    assert_eq!((burst(&lane, &device, 0), asked.load(Relaxed)), (0, looks));
}

/// A lane that owes much goes to a device that does nothing for a slice, and to no other; and what
/// it may add is counted in cost, not in requests.
#[test]
fn who_owes_much_goes_where_the_device_does_nothing_for_a_slice() {
    let (page, device) = (Arc::new(Private::default()), Arc::new(Said::default()));
    CostModel::default().store(&page);
    let all = Terms {
        tick: 5_000_000,
        slices: 10,
        grant: 100_000,
        low_water: 16,
        request_cost: 10_000,
        stale_at: u64::MAX,
        ..Terms::default()
    };
    let lane = Lane::new(page.clone(), None).with_depth(Some(device.clone()));
    all.publish(&page);
    let large = io(Kind::Read, 256 << 10);
    let goes = |now: Nanos| lane.admit(&large, || now) == Verdict::Go;
    // Of 16 small ones the device has none: two large ones are as much, and more than is owed.
    let went = (0..100).take_while(|_| goes(1)).count();
    assert!((2..=5).contains(&went), "{went}");
    page.add(lane::SPENT, 1_000_000, Relaxed);
    assert!(!goes(1_000) && !goes(400_000), "not at the first look, nor soon after it");
    assert!(goes(600_000) && !goes(700_000), "one, a slice later");
    device.done.store(1, Relaxed);
    assert!(!goes(1_300_000), "it did something in between");
    device.requests.store(1, Relaxed);
    assert!(!goes(1_900_000) && !goes(2_500_000), "it has something");
}

/// Many lanes, of which few do anything: one more that begins is noticed in the next window.
#[test]
fn a_lane_among_many_is_noticed_at_once() {
    let mut ledger = Ledger::new(CostModel::default(), Config::default());
    let lanes: Vec<usize> = (0..200).map(|_| ledger.add_lane(100)).collect();
    let (request, mut now) = (io(Kind::Read, 4096), 0);
    let mut window = |ledger: &mut Ledger, busy: &[usize]| {
        for lane in busy {
            // A lane that is not limited would go on for ever.
            let goes = |_: &u32| ledger.admit(now, *lane, &request) == Verdict::Go;
            let count = (0..500).take_while(goes).count();
            (0..count).for_each(|_| ledger.complete(now, *lane, &request));
        }
        now = ledger.next_tick();
        ledger.tick(now);
    };
    (0..300).for_each(|_| window(&mut ledger, &lanes[..2]));
    for late in [7, 77, 123, 198] {
        assert_eq!(ledger.grants()[late], 0);
        window(&mut ledger, &[lanes[0], lanes[1], late]);
        assert!(ledger.grants()[late] > 0, "lane {late}");
    }
}

#[test]
fn wrong_costs_keep_what_is_charged_fair() {
    // Writes truly take three times what they are charged.
    let mut case = Case { ..scenarios::mixed_sizes() };
    case.scenario.device.cost.write.random_ns *= 3;
    let charged = CostModel::default();
    let outcome = run(&case.scenario, Ledger::new(charged, Config::default()));
    let got: Vec<u64> = [4096, 65536, 4096]
        .iter()
        .zip([Kind::Read, Kind::Read, Kind::Write])
        .enumerate()
        .map(|(tenant, (bytes, kind))| {
            outcome.latencies_ns[tenant].len() as u64 * charged.cost_ns(&io(kind, *bytes))
        })
        .collect();
    let (least, most) = (got.iter().min().expect("three"), got.iter().max().expect("three"));
    assert!(*most as f64 <= 1.1 * *least as f64, "{got:?}");
}

#[test]
fn a_slow_limit_holds() {
    let mut ledger = Ledger::new(CostModel::default(), Config::default());
    let lane = ledger.add_lane(100);
    ledger.set_limits(lane, Limits { requests_max: Some(20), ..Limits::default() });
    let (request, mut went) = (io(Kind::Read, 4096), 0);
    for tick in 0..2_000_u64 {
        let now = tick * 1_000_000;
        if now >= ledger.next_tick() {
            ledger.tick(now);
        }
        while tick > 100 && ledger.admit(now, lane, &request) == Verdict::Go {
            ledger.complete(now, lane, &request);
            went += 1;
        }
    }
    assert!((34..=42).contains(&went), "{went} requests in 1.9 s at 20 per second");
}

#[test]
fn the_ledger_looks_seldom_while_nobody_does_anything_and_at_once_when_somebody_does() {
    let mut ledger = Ledger::new(CostModel::default(), Config::default());
    let lane = ledger.add_lane(1);
    let mut now = 0;
    let look = |ledger: &mut Ledger, now: &mut Nanos| {
        let pause = ledger.next_tick() - *now;
        *now += pause;
        ledger.tick(*now);
        pause
    };
    while now < 10 * SECOND {
        let pause = look(&mut ledger, &mut now);
        assert!(now < 8 * SECOND || pause == SECOND / 10, "{pause} at {now}");
    }
    // It goes at once: what it was told before is still good.
    let read = io(Kind::Read, 4096);
    assert_eq!(ledger.admit(now + 1, lane, &read), Verdict::Go);
    ledger.complete(now + 2, lane, &read);
    assert_eq!(look(&mut ledger, &mut now), SECOND / 10);
    assert_eq!(look(&mut ledger, &mut now), SECOND / 200);
}

/// A ledger that is watched, with limits that somebody changes.
struct Watched {
    ledger: Ledger,
    /// When, whose, what.
    changes: Vec<(Nanos, usize, Limits)>,
    /// How often the first lane had to wait in its own queue.
    waits: Rc<Cell<u64>>,
}

impl Policy for Watched {
    fn add_lane(&mut self, weight: u32) -> usize {
        self.ledger.add_lane(weight)
    }

    fn set_weight(&mut self, lane: usize, weight: u32) {
        self.ledger.set_weight(lane, weight);
    }

    fn admit(&mut self, now: Nanos, lane: usize, io: &Io) -> Verdict {
        let verdict = self.ledger.admit(now, lane, io);
        let waits = lane == 0 && verdict != Verdict::Go;
        self.waits.set(self.waits.get() + u64::from(waits));
        verdict
    }

    fn at_device(&mut self, now: AtDevice) {
        self.ledger.at_device(now);
    }

    fn complete(&mut self, now: Nanos, lane: usize, io: &Io) {
        self.ledger.complete(now, lane, io);
    }

    fn tick(&mut self, now: Nanos) {
        let (due, later) = self.changes.drain(..).partition(|(when, ..)| *when <= now);
        self.changes = later;
        let due: Vec<(Nanos, usize, Limits)> = due;
        due.into_iter().for_each(|(_, lane, limits)| self.ledger.set_limits(lane, limits));
        self.ledger.tick(now);
    }

    fn next_tick(&self) -> Nanos {
        self.ledger.next_tick()
    }
}

/// What a small tenant's p99 is beside floods of this request, in nanoseconds, and how often it
/// waited in its own queue.
fn beside_floods(mut case: Case, think_ns: Nanos, flood: Io) -> (Nanos, u64) {
    case.scenario.tenants[0].think_ns = think_ns;
    case.scenario.tenants[1..].iter_mut().for_each(|tenant| tenant.mix = vec![(100, flood)]);
    let waits = Rc::new(Cell::new(0));
    let ledger = Ledger::new(case.scenario.device.cost, Config::default());
    let outcome =
        run(&case.scenario, Watched { ledger, changes: Vec::new(), waits: waits.clone() });
    assert!(outcome.throughput(SECOND, case.scenario.until) >= 0.95, "the floods go on");
    (outcome.latency_ns(0, 0.99), waits.get())
}

/// Whatever a flood does, who asks for less than their part goes as soon as they ask, and waits at
/// the device for little more than what is in service there. With the shorter pause the tenant
/// would always have one at a device that is flooded, and wants no more for all that.
#[test]
fn a_small_tenant_never_waits_in_its_own_queue() {
    let (small, large) = (io(Kind::Read, 4096), io(Kind::Write, 128 << 10));
    // With 32 units a large one is in service for 4.6 ms.
    let cases = [
        (scenarios::bully(), small, 200_000),
        (scenarios::bully(), large, 900_000),
        (scenarios::parallel_bully(), small, 680_000),
        (scenarios::parallel_bully(), large, 4_700_000),
    ];
    for (case, flood, most) in cases {
        for think_ns in [1_000_000, 5_000_000] {
            let case = Case { scenario: case.scenario.clone(), ..case };
            let (p99, waits) = beside_floods(case, think_ns, flood);
            assert!(p99 <= most, "{p99} ns beside {flood:?}");
            assert_eq!(waits, 0, "beside {flood:?}");
        }
    }
}

/// A light lane beside a heavy one on a device that does 100 000 requests of 4 KiB a second:
/// minima of the light one, then maxima of the heavy one, each for two seconds.
#[test]
fn limits_of_lanes_hold_as_they_change() {
    const PAGES_10K: Option<u64> = Some(10_000 * 4096);
    let light = Limits { weight: 1, ..Limits::default() };
    let heavy = Limits { weight: 100, ..Limits::default() };
    let changes = vec![
        (2, 0, Limits { requests_min: Some(20_000), ..light }),
        (4, 0, Limits { bytes_min: PAGES_10K, ..light }),
        (6, 0, light),
        (6, 1, Limits { requests_max: Some(30_000), ..heavy }),
        (8, 1, Limits { bytes_max: PAGES_10K, ..heavy }),
    ];
    let changes = changes.into_iter().map(|(at, lane, limits)| (at * SECOND, lane, limits));
    let mut scenario = scenarios::all()[0].scenario.clone();
    scenario.tenants = vec![Tenant::reader(1, 32), Tenant::reader(100, 32)];
    scenario.until = 10 * SECOND;
    let ledger = Ledger::new(CostModel::default(), Config::default());
    let outcome =
        run(&scenario, Watched { ledger, changes: changes.collect(), waits: Rc::default() });
    let rate = |lane: usize, second: u64| {
        let (from, until) = (second * SECOND + SECOND / 2, (second + 2) * SECOND);
        outcome.device_ns(lane, from, until) * SECOND / (until - from) / 10_000
    };
    let found: Vec<_> = (0..5).map(|step| [rate(0, 2 * step), rate(1, 2 * step)]).collect();
    let within = |found: u64, least: u64, most: u64| (least..=most).contains(&found);
    assert!(within(found[0][0], 500, 2_500), "by weight: {found:?}");
    assert!(within(found[1][0], 19_000, 26_000), "a minimum of requests: {found:?}");
    assert!(within(found[2][0], 9_500, 16_000), "a minimum of bytes: {found:?}");
    assert!(within(found[3][1], 28_500, 31_000), "a maximum of requests: {found:?}");
    assert!(found[3][0] > 60_000, "the light one has the rest: {found:?}");
    assert!(within(found[4][1], 9_500, 10_500), "a maximum of bytes: {found:?}");
    assert!(found[4][0] > 80_000, "the light one has the rest: {found:?}");
}
