//! How long to look for the other side before sleeping: the rule that both ends of a channel
//! follow.
//!
//! A look costs 10 to 40 ns, so the largest budget is about what waking a sleeper on another CPU
//! costs, on both sides. Budgets grow while looking pays off or would have, and shrink while it is
//! in vain.
//!
//! Looking is free while the CPU has nothing else to do. Where threads wait for it each look is
//! taken from one of them, most likely from the very thread that is to answer. So who has looked
//! for long gives way now and then, which tells whether anybody waited: then it sleeps instead.

use std::time::Duration;

/// Looks before a first sleep, and at most: about 60 to 100 us, as long as nobody waits for the
/// CPU. An fsync of a file in memory, with all that was streamed before, is over by then.
pub const BUDGET_MAX: u32 = 2500;
/// Looks when looking was in vain of late.
pub const BUDGET_MIN: u32 = 32;
/// A sleep that was over so soon was not worth it: waking up took most of it.
pub const SHORT_SLEEP: Duration = Duration::from_micros(100);
/// After so many sleeps a full budget is tried.
pub const PROBE_PERIOD: u32 = 64;

/// Looks of a client between two times to give way: whoever runs at the time has answered most
/// requests by then.
pub const CLIENT_PATIENCE: u32 = 512;
/// The same of a worker: its client has had the time for a little work of its own. More of it keeps
/// pairs of client and worker on their CPUs for longer, which is good for throughput where tenants
/// are many, and bad for the latency of each.
pub const WORKER_PATIENCE: u32 = 256;

/// How looking in vain ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// Others waited for the CPU.
    Crowded,
    /// It took less than [`SHORT_SLEEP`].
    Short,
    /// It took longer.
    Long,
}

impl Sleep {
    /// A sleep of that length, which began because others waited for the CPU or not.
    pub fn new(took: Duration, crowded: bool) -> Sleep {
        match crowded {
            true => Sleep::Crowded,
            false if took < SHORT_SLEEP => Sleep::Short,
            false => Sleep::Long,
        }
    }
}

/// The budget after looking paid off.
#[inline]
pub fn after_find(budget: u32) -> u32 {
    (budget + budget / 4).min(BUDGET_MAX)
}

/// The budget after the `number`-th sleep: a short one shows that a little more looking would have
/// paid off, a long one that it was in vain. A thread that slept for others' sake has learnt
/// nothing of that.
pub fn after_sleep(budget: u32, number: u32, sleep: Sleep) -> u32 {
    match sleep {
        Sleep::Crowded => budget,
        Sleep::Short => (budget * 2).min(BUDGET_MAX),
        Sleep::Long if number.is_multiple_of(PROBE_PERIOD) => BUDGET_MAX,
        Sleep::Long => (budget - budget / 8).max(BUDGET_MIN),
    }
}
