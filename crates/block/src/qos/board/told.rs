//! What a board is told: how lanes share, what each is to have, what is known of the device.

use std::ops::RangeInclusive;

use super::Seat;
use crate::qos::cost::CostModel;
use crate::qos::page::{Words, ahead};
use crate::qos::plan::Config;

/// How lanes share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Rule {
    /// Limits of read and of write bandwidth, by weight (the WDT paper's ST).
    Static,
    /// WDT as published.
    Wdt,
    /// The same with one lock for all lanes (the paper's WDT-).
    WdtSharedLock,
    /// Device time, short windows, donation.
    #[default]
    Ledger,
}

impl Rule {
    /// All of them.
    pub const ALL: [Rule; 4] = [Rule::Static, Rule::Wdt, Rule::WdtSharedLock, Rule::Ledger];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Static => "static",
            Rule::Wdt => "wdt",
            Rule::WdtSharedLock => "wdt-shared-lock",
            Rule::Ledger => "ledger",
        }
    }
}

/// Weights that a lane can have.
pub const WEIGHTS: RangeInclusive<u32> = 1..=10_000;

/// What a person may set for a lane. Rates are per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// One of [`WEIGHTS`].
    pub weight: u32,
    /// Most requests.
    pub requests_max: Option<u64>,
    /// Requests that it is to have at least, if it wants them.
    pub requests_min: Option<u64>,
    /// Most bytes.
    pub bytes_max: Option<u64>,
    /// Bytes that it is to have at least, if it wants them.
    pub bytes_min: Option<u64>,
    /// Latency that 99 per cent of its requests are to stay below, in nanoseconds.
    pub latency_ns: Option<u64>,
}

impl Limits {
    /// The same, with a weight that a lane can have.
    pub(super) fn bounded(self) -> Limits {
        Limits { weight: self.weight.clamp(*WEIGHTS.start(), *WEIGHTS.end()), ..self }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            weight: 100,
            requests_max: None,
            requests_min: None,
            bytes_max: None,
            bytes_min: None,
            latency_ns: None,
        }
    }
}

impl Limits {
    /// Its part by weight of what all of these weights may do in a second, for a window of
    /// `static`. A byte lets a request go each window; none would be none for ever.
    pub(super) fn part_of_window(&self, per_s: u64, weights: u64) -> u64 {
        let whole = u128::from(per_s) * u128::from(self.weight);
        ((whole / u128::from(weights.max(1)) / 10) as u64).max(1)
    }
}

impl<W: Words> Seat<W> {
    /// The lane did as much as a person lets it do.
    pub(super) fn is_limited(&self) -> bool {
        let (terms, seen) = (&self.terms, &self.seen);
        let reached = |most: Option<u64>, total| most.is_some_and(|most| ahead(most, total) <= 0);
        let set = (self.limits.requests_max, self.limits.bytes_max);
        set.0.is_some() && reached(terms.requests_max, seen.requests)
            || set.1.is_some() && reached(terms.bytes_max, seen.bytes())
    }
}

/// A device, as its coordinator knows it.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Device {
    /// What requests cost.
    pub cost: CostModel,
    /// How the ledger plans.
    pub config: Config,
    /// Device time per time, where it is known.
    pub capacity: Option<f64>,
}
