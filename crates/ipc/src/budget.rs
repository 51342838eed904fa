//! How long to look for the other side before sleeping: the rule that both ends of a channel
//! follow.
//!
//! A look costs 10 to 40 ns, so the largest budget is about what waking a sleeper on another CPU
//! costs. Budgets grow while looking pays off or would have, and shrink while it is in vain.

use std::time::Duration;

/// Looks before a first sleep, and at most.
pub const BUDGET_MAX: u32 = 1000;
/// Looks when looking was in vain of late.
pub const BUDGET_MIN: u32 = 32;
/// A sleep that was over so soon was not worth it: waking up took most of it.
pub const SHORT_SLEEP: Duration = Duration::from_micros(100);
/// After so many sleeps a full budget is tried.
pub const PROBE_PERIOD: u32 = 64;

/// The budget after looking paid off.
#[inline]
pub fn after_find(budget: u32) -> u32 {
    (budget + budget / 4).min(BUDGET_MAX)
}

/// The budget after the `sleeps`-th sleep: a `short` one shows that a little more looking would
/// have paid off, a long one that it was in vain.
pub fn after_sleep(budget: u32, sleeps: u32, short: bool) -> u32 {
    match short {
        true => (budget * 2).min(BUDGET_MAX),
        false if sleeps.is_multiple_of(PROBE_PERIOD) => BUDGET_MAX,
        false => (budget - budget / 8).max(BUDGET_MIN),
    }
}
