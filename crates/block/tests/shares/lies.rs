//! Lanes that lie in their pages: what the honest ones beside them may do.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use polylane_base::rng::Rng;
use polylane_block::qos::Nanos;
use polylane_block::qos::board::{Board, Device, Limits, Rule};
use polylane_block::qos::page::{Private, Words, lane, terms};

const TICK: Nanos = 5_000_000;

/// The honest lane has at least so much of what its weight gives it, over five seconds, beside one
/// that says the same in every window; and beside one that seems to get more and less in turns.
const KEPT: f64 = 0.9;
const KEPT_IN_TURNS: f64 = 0.5;

/// What a lane does to its page in a window.
type Lie = fn(&Private, &mut Rng);

/// Lies, each as it is told in every window.
const LIES: [(&str, Lie); 6] = [
    ("none", |_, _| {}),
    ("short of room", |page, _| says(page, lane::CROWDED_IN)),
    ("short of credit", |page, _| says(page, lane::SHORT_IN)),
    ("slow requests", |page, _| slow(page)),
    ("all of it", |page, _| {
        slow(page);
        says(page, lane::CROWDED_IN);
        says(page, lane::SHORT_IN);
    }),
    ("any numbers", |page, rng| {
        for word in 0..11 {
            page.store(word, rng.below(u64::MAX) >> rng.below(60), Relaxed);
        }
        if rng.below(2) == 0 {
            says(page, lane::CROWDED_IN);
        }
    }),
];

/// Lies of a lane that says now this, now that.
const LIES_IN_TURNS: [(&str, Lie); 2] = [
    ("more and less", |page, rng| {
        slow(page);
        let more = if rng.below(40) < 20 { 300_000 } else { 1_000 };
        page.add(lane::SPENT, more, Relaxed);
        page.add(lane::DONE, more, Relaxed);
    }),
    ("slow now and then", |page, rng| {
        if rng.below(3) == 0 {
            slow(page);
        }
    }),
];

/// This happened in the present window.
fn says(page: &Private, word: usize) {
    page.store(word, page.load(terms::SEQUENCE, Relaxed), Relaxed);
    page.store(lane::SPENT, page.load(lane::SPENT, Relaxed).max(1), Relaxed);
}

/// A request that stayed for half a second.
fn slow(page: &Private) {
    let spent = page.load(lane::SPENT, Relaxed);
    page.store(lane::DONE, spent, Relaxed);
    page.store(lane::SPENT, spent + 1_000, Relaxed);
    page.add(lane::REQUESTS, 1, Relaxed);
    page.add(lane::STAYED, 1, Relaxed);
    page.add(lane::STAYED_NS, 500_000_000, Relaxed);
}

/// What an honest lane that always wants more does in a window, in a device of its own: a window's
/// time at most.
fn work(page: &Private, now: Nanos) -> u64 {
    let spent = page.load(lane::SPENT, Relaxed);
    let free = page.load(terms::FLAGS, Relaxed) & 5 != 0;
    let released = page.load(terms::BASE, Relaxed).wrapping_add(page.load(terms::GRANT, Relaxed));
    let left = (released.wrapping_sub(spent) as i64).max(0) as u64;
    let did = if free { TICK } else { left.min(TICK) };
    let begins = if spent == 0 { 400_000 } else { 0 };
    page.add(lane::SPENT, did + begins, Relaxed);
    page.add(lane::DONE, did, Relaxed);
    page.add(lane::REQUESTS, did / 10_000, Relaxed);
    page.add(lane::STAYED, did / 80_000, Relaxed);
    page.add(lane::STAYED_NS, did / 80_000 * 300_000, Relaxed);
    if did < TICK {
        page.store(lane::SHORT_SINCE, now, Relaxed);
        page.store(lane::SHORT_IN, page.load(terms::SEQUENCE, Relaxed), Relaxed);
    }
    did
}

/// What the honest lane of weight 100 has of its part in each five seconds beside a liar.
fn parts(lie: Lie, weight: u32, depth: Option<u64>) -> Vec<f64> {
    let mut rng = Rng::new(7);
    let mut board = Board::new(Rule::Ledger, Device::default(), 0);
    let [honest, liar] = [(); 2].map(|()| Arc::new(Private::default()));
    board.join(honest.clone(), Limits::default(), 0);
    board.join(liar.clone(), Limits { weight, ..Limits::default() }, 0);
    let due = 100.0 / (100.0 + f64::from(weight)) * TICK as f64;
    let mut did = Vec::new();
    for window in 1..=6_000 {
        did.push(work(&honest, window * TICK));
        lie(&liar, &mut rng);
        board.tick(window * TICK, depth);
    }
    let spans = did.chunks(1_000).map(|span| span.iter().sum::<u64>() as f64 / span.len() as f64);
    spans.map(|mean| mean / due).collect()
}

#[test]
fn an_honest_lane_keeps_its_part_whatever_another_says() {
    for (name, lie) in LIES {
        for (weight, depth) in [(100, None), (100, Some(32)), (1000, Some(32)), (10, None)] {
            let parts = parts(lie, weight, depth);
            let what = format!("{name}, weight {weight}, depth {depth:?}: {parts:.3?}");
            assert!(parts.iter().all(|part| *part >= KEPT), "{what}");
        }
    }
}

#[test]
fn an_honest_lane_keeps_half_of_its_part_beside_one_that_says_now_this_now_that() {
    for (name, lie) in LIES_IN_TURNS {
        for (weight, depth) in [(100, None), (100, Some(32)), (10, None)] {
            let parts = parts(lie, weight, depth);
            let what = format!("{name}, weight {weight}, depth {depth:?}: {parts:.3?}");
            assert!(parts.iter().all(|part| *part >= KEPT_IN_TURNS), "{what}");
        }
    }
}
