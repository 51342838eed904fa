//! Budgets of the policies that go by weight alone, `static` and `wdt`, in random sets of lanes:
//! what they are in sum, that they are bounded and grow with the weight, and that every lane that
//! asks is let go in the end. And what it costs to ask.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use polylane_base::rng::Rng;
use polylane_block::qos::board::{Board, Device, Limits, Rule};
use polylane_block::qos::fixed::Static;
use polylane_block::qos::lane::Lane;
use polylane_block::qos::page::{Private, Terms, Words};
use polylane_block::qos::wdt::{self, Wdt};
use polylane_block::qos::{Io, Kind, Nanos, Policy, Verdict};

/// Random sets of lanes that each property is held against.
const SETS: usize = 300;

/// As `static` limits and `wdt` throttles.
const WINDOW_NS: Nanos = wdt::WINDOW_NS;

/// One to 40 lanes, now and then very unlike.
fn weights(rng: &mut Rng) -> Vec<u32> {
    let most = [10, 1_000, 10_000][rng.below(3) as usize];
    (0..1 + rng.below(40)).map(|_| 1 + rng.below(most) as u32).collect()
}

fn fixed(rates: [u64; 2], weights: &[u32]) -> Static {
    let mut policy = Static::new(rates[0], rates[1]);
    weights.iter().for_each(|weight| _ = policy.add_lane(*weight));
    policy
}

/// Its limits of a window, for reads and for writes.
fn limits(policy: &Static, lanes: usize) -> [Vec<u64>; 2] {
    let of = |lane| policy.limit(lane);
    [
        (0..lanes).map(|lane| of(lane).read).collect(),
        (0..lanes).map(|lane| of(lane).write).collect(),
    ]
}

/// Parts of a whole: they are all of it but for rounding, none is nothing, and a lane that is as
/// heavy as another has as much.
fn assert_parts(parts: &[u64], whole: u64, weights: &[u32]) {
    let (sum, lanes) = (parts.iter().sum::<u64>(), parts.len() as u64);
    assert!(sum <= whole + lanes && sum + lanes >= whole, "{sum} of {whole}: {weights:?}");
    for (part, weight) in parts.iter().zip(weights) {
        assert!((1..=whole.max(1)).contains(part), "{part} of {whole}: {weights:?}");
        for (other, against) in parts.iter().zip(weights) {
            assert!(weight < against || part >= other, "{parts:?}: {weights:?}");
        }
    }
}

#[test]
fn limits_of_static_are_parts_of_the_device() {
    let mut rng = Rng::new(11);
    for _ in 0..SETS {
        let mut weights = weights(&mut rng);
        let most = 1 << (10 + rng.below(24));
        let rates = [0, 1].map(|_| 10 + rng.below(most));
        let before = limits(&fixed(rates, &weights), weights.len());
        for (parts, rate) in before.iter().zip(rates) {
            assert_parts(parts, rate / 10, &weights);
        }
        // A lane that is made heavier has no less, and no other has more.
        let lane = rng.below(weights.len() as u64) as usize;
        weights[lane] += rng.below(10_000) as u32;
        let after = limits(&fixed(rates, &weights), weights.len());
        for (before, after) in before.iter().zip(&after) {
            for (index, (before, after)) in before.iter().zip(after).enumerate() {
                let grows = if index == lane { after >= before } else { after <= before };
                assert!(grows, "lane {index}: {before}, then {after}: {weights:?}");
            }
        }
    }
}

#[test]
fn nobody_starves_under_static_and_nobody_passes_their_limit() {
    let mut rng = Rng::new(12);
    for _ in 0..SETS {
        let weights = weights(&mut rng);
        let mut policy = fixed([10 + rng.below(100_000_000), 1_000_000], &weights);
        let kind = if rng.below(2) == 0 { Kind::Read } else { Kind::Write };
        for window in 0..3 {
            for lane in 0..weights.len() {
                let io = Io { kind, bytes: 4096 << rng.below(8), sequential: false };
                let limit = match kind {
                    Kind::Read => policy.limit(lane).read,
                    _ => policy.limit(lane).write,
                };
                let (now, mut went) = (window * WINDOW_NS + rng.below(WINDOW_NS), 0);
                while policy.admit(now, lane, &io) == Verdict::Go {
                    went += io.bytes;
                }
                let least = limit.max(1);
                assert!(
                    (least..limit + io.bytes).contains(&went),
                    "{went} of {limit}: {weights:?}"
                );
                let wait = Verdict::Wait((window + 1) * WINDOW_NS);
                assert_eq!(policy.admit(now, lane, &io), wait);
            }
        }
    }
}

#[test]
fn budgets_of_wdt_are_parts_of_its_credit_whatever_was_used() {
    let mut rng = Rng::new(13);
    for _ in 0..SETS {
        let mut weights = weights(&mut rng);
        let mut wdt = Wdt::new(1_000 + rng.below(1 << 32));
        weights.iter().for_each(|weight| wdt.add(*weight));
        for step in 1..=40_u64 {
            let used = |lane: usize, rng: &mut Rng| wdt::Use {
                credits: wdt.budget(lane) * rng.below(1000) as f64 / 500.0,
                active_ns: 1 + rng.below(WINDOW_NS),
            };
            let uses: Vec<wdt::Use> = (0..weights.len()).map(|lane| used(lane, &mut rng)).collect();
            wdt.close_window(&uses);
            if step.is_multiple_of(7) {
                weights.push(1 + rng.below(10_000) as u32);
                wdt.add(weights[weights.len() - 1]);
            } else if step.is_multiple_of(11) && weights.len() > 1 {
                let lane = rng.below(weights.len() as u64) as usize;
                weights.remove(lane);
                wdt.remove(lane);
            }
            let total = wdt.total_credit();
            assert!(total.is_finite() && total >= 0.0, "{total}");
            let parts: Vec<f64> = (0..weights.len()).map(|lane| wdt.budget(lane)).collect();
            let sum: f64 = parts.iter().sum();
            assert!((sum - total).abs() <= total * 1e-9, "{sum} of {total}");
            for (part, weight) in parts.iter().zip(&weights) {
                assert!((0.0..=total * (1.0 + 1e-9)).contains(part), "{part} of {total}");
                for (other, against) in parts.iter().zip(&weights) {
                    assert!(weight < against || part >= other, "{parts:?}: {weights:?}");
                }
            }
        }
    }
}

/// As long as the heaviest lane wants all that it may have; where it does not the credit goes down
/// to nothing, as published.
#[test]
fn nobody_starves_under_wdt_while_all_want_more() {
    let mut rng = Rng::new(14);
    for _ in 0..SETS / 10 {
        let weights = weights(&mut rng);
        let mut wdt = Wdt::new(1_000_000 + rng.below(50_000_000));
        weights.iter().for_each(|weight| wdt.add(*weight));
        let sectors: Vec<u64> = weights.iter().map(|_| 8 << rng.below(6)).collect();
        let (mut budgets, mut used) = (vec![0.0; weights.len()], vec![0.0; weights.len()]);
        for window in 0..25 {
            let begin = window * WINDOW_NS;
            wdt.tick(begin);
            assert!(wdt.total_credit().is_finite() && wdt.total_credit() >= 1.0);
            // The credits of all last for half of a window or longer.
            let now = begin + WINDOW_NS / 2 + rng.below(WINDOW_NS / 2);
            for (lane, sectors) in sectors.iter().enumerate() {
                let io = Io { kind: Kind::Read, bytes: sectors * 512, sequential: false };
                budgets[lane] += wdt.budget(lane);
                while wdt.admit(now, lane, &io) == Verdict::Go {
                    used[lane] += *sectors as f64;
                }
                let ahead = used[lane] - budgets[lane];
                let room = -1e-6..*sectors as f64 + 1e-6;
                assert!(room.contains(&ahead), "{ahead} sectors ahead: {weights:?}");
            }
        }
        let least = used.iter().copied().fold(f64::INFINITY, f64::min);
        assert!(least > 0.0, "{used:?}: {weights:?}");
    }
}

/// What lanes are told over their pages.
#[test]
fn what_pages_say_is_in_sum_what_the_device_has() {
    let mut rng = Rng::new(15);
    for _ in 0..SETS {
        let (weights, device) = (weights(&mut rng), Device::default());
        let terms = |rule| -> Vec<Terms> {
            let mut board = Board::new(rule, device, 0);
            let pages: Vec<Arc<Private>> = weights.iter().map(|_| Arc::default()).collect();
            for (page, weight) in pages.iter().zip(&weights) {
                board.join(page.clone(), Limits { weight: *weight, ..Limits::default() }, 0);
            }
            board.tick(board.next_tick(), None);
            pages.iter().map(|page| Terms::read(&**page).expect("a whole line")).collect()
        };
        let told = terms(Rule::Static);
        let reads: Vec<u64> = told.iter().filter_map(|terms| terms.read_bytes_max).collect();
        let writes: Vec<u64> = told.iter().filter_map(|terms| terms.written_bytes_max).collect();
        assert_parts(&reads, device.cost.read_bandwidth() / 10, &weights);
        assert_parts(&writes, device.cost.write_bandwidth() / 10, &weights);
        let granted: Vec<u64> = terms(Rule::Wdt).iter().map(|terms| terms.grant).collect();
        assert_parts(&granted, device.cost.read_bandwidth() / 10 / 512, &weights);
    }
}

/// A lane's page that lets it load, store and add, and ask the kernel for nothing.
struct Silent(Arc<Private>);

impl Words for Silent {
    fn load(&self, word: usize, order: Ordering) -> u64 {
        self.0.load(word, order)
    }

    fn store(&self, word: usize, value: u64, order: Ordering) {
        self.0.store(word, value, order);
    }

    fn add(&self, word: usize, value: u64, order: Ordering) -> u64 {
        self.0.add(word, value, order)
    }

    fn exchange(&self, word: usize, current: u64, new: u64, order: Ordering) -> bool {
        self.0.exchange(word, current, new, order)
    }

    fn bell(&self) -> u32 {
        panic!("a lane that is not held back listens for its bell")
    }

    fn ring(&self) {
        panic!("a lane that is not held back wakes somebody")
    }

    fn sleep(&self, _: u32, _: Duration) {
        panic!("a lane that is not held back sleeps")
    }

    fn fence(&self) {
        panic!("a lane that is not held back waits for its stores")
    }
}

/// Beside others that want nothing, a lane asks the clock once a window, and the kernel for nothing
/// at all.
#[test]
fn requests_that_are_not_held_back_cost_no_system_call() {
    const WINDOWS: u64 = 200;
    const REQUESTS: u64 = 500;
    let mut board = Board::new(Rule::Ledger, Device::default(), 0);
    let page: Arc<Private> = Arc::default();
    board.join(page.clone(), Limits { weight: 5, ..Limits::default() }, 0);
    board.join(Arc::default(), Limits { weight: 500, ..Limits::default() }, 0);
    let lane = Lane::new(Silent(page), None);
    let io = Io { kind: Kind::Read, bytes: 4096, sequential: false };
    let mut looks = 0;
    for window in 0..WINDOWS {
        let now = board.next_tick();
        board.tick(now, None);
        for number in 0..REQUESTS {
            let verdict = lane.admit(&io, || {
                looks += 1;
                now + 1
            });
            // At first it is not known that it is the only one.
            assert!(verdict == Verdict::Go || window < 2, "window {window}, request {number}");
            if verdict == Verdict::Go {
                lane.complete(lane.cost(&io));
            }
        }
    }
    let most = 2 * WINDOWS + 2 * REQUESTS;
    assert!((1..=most).contains(&looks), "{looks} looks at the clock, {most} at most");
}
