//! Lanes' accounts: what a window deposits, and what is carried into the next one.

use super::{CARRY_IDLE, CARRY_WAITING, Claim, LookBack, max_min};

/// What a lane may do in the next window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Share {
    /// Device time carried over: debt if negative.
    pub balance_ns: i64,
    /// What its weight, or its minimum, gives it of this window.
    pub deposit_ns: u64,
    /// Device time granted on top of the balance: the deposit and what others donated.
    pub grant_ns: u64,
    /// What it may spend in this window whatever its balance.
    pub debt_ns: u64,
    /// Most device time in flight.
    pub inflight_ns_max: u64,
    /// It is not held back for credit.
    pub free: bool,
}

/// What a window shows as a whole.
#[derive(Clone, Copy, Default)]
pub(super) struct Scene {
    pub(super) done_ns: u64,
    pub(super) inflight: bool,
    /// Lanes that want more than they do.
    pub(super) greedy: usize,
    /// One that wants little is among them.
    pub(super) modest: bool,
    pub(super) short_of_credit: bool,
    /// All that want more wait for credit: no lane can be hurt.
    pub(super) all_short: bool,
    /// Some lane waits for room in flight, and leaves credit.
    pub(super) roomy: bool,
    pub(super) queued: bool,
    /// Some lane leaves credit because of the queue.
    pub(super) hurt: bool,
}

/// A lane that spent less than this part of its fair share goes into debt rather than wait.
const DEBT_PART: u64 = 4;

/// The sum of their weights.
pub(super) fn weights(lanes: &[LookBack]) -> f64 {
    lanes.iter().map(|lane| f64::from(lane.weight.max(1))).sum()
}

/// By weight, minima first; minima are cut in proportion when they exceed the budget.
pub(super) fn deposits(budget_ns: u64, lanes: &[LookBack]) -> Vec<u64> {
    let floor = |lane: &LookBack| if lane.wants_more() { lane.floor_ns } else { 0 };
    let claims: Vec<Claim> =
        lanes.iter().map(|lane| Claim { weight: lane.weight.max(1), demand: u64::MAX }).collect();
    let fair = max_min(budget_ns, &claims);
    let mut floors: Vec<u64> = lanes.iter().map(floor).collect();
    if floors.iter().zip(&fair).all(|(floor, fair)| floor <= fair) {
        return fair;
    }
    let sum: u128 = floors.iter().map(|floor| u128::from(*floor)).sum();
    if sum > u128::from(budget_ns) {
        let cut = |floor: u64| (u128::from(floor) * u128::from(budget_ns) / sum) as u64;
        floors.iter_mut().for_each(|floor| *floor = cut(*floor));
    }
    // Those whose weight gives them less than their minimum have it; the rest is shared by weight
    // among the others. A lane whose share falls short of its minimum by that joins them.
    let mut fixed: Vec<bool> = floors.iter().zip(&fair).map(|(floor, fair)| floor > fair).collect();
    loop {
        let kept: u64 =
            floors.iter().zip(&fixed).map(|(floor, is)| if *is { *floor } else { 0 }).sum();
        let rest: Vec<Claim> = claims
            .iter()
            .zip(&fixed)
            .map(|(claim, is)| Claim { demand: if *is { 0 } else { u64::MAX }, ..*claim })
            .collect();
        let rest = max_min(budget_ns - kept.min(budget_ns), &rest);
        let short = (0..lanes.len()).find(|&lane| !fixed[lane] && rest[lane] < floors[lane]);
        match short {
            Some(lane) => fixed[lane] = true,
            None => {
                let both = floors.iter().zip(&rest).zip(&fixed);
                return both.map(|((floor, rest), is)| if *is { *floor } else { *rest }).collect();
            }
        }
    }
}

/// A lane's account for the next window, and what it leaves beyond its cap.
pub(super) fn settle(lane: &LookBack, deposit_ns: u64) -> (Share, u64) {
    let deposits = if lane.wants_more() { CARRY_WAITING } else { CARRY_IDLE };
    let cap = i64::try_from(deposit_ns.saturating_mul(deposits)).unwrap_or(i64::MAX);
    let over = lane.left_ns.saturating_sub(cap).max(0) as u64;
    let share = Share {
        balance_ns: lane.left_ns.min(cap),
        deposit_ns,
        grant_ns: deposit_ns,
        debt_ns: if lane.wants_more() { 0 } else { deposit_ns / DEBT_PART },
        ..Share::default()
    };
    (share, over)
}
