//! The measurement that most figures share: one load in several places by 1 to 16 tenants, places
//! interleaved within every repeat.

use std::path::PathBuf;

use anyhow::Result;

use crate::place::{Ground, Place, Tenant, together};
use crate::report::Report;
use crate::worker::{Length, Outcome};
use crate::{Options, progress};

/// A load and how much of it.
pub struct Sweep {
    /// Its name among the worker's loads.
    pub load: &'static str,
    /// How long a tenant works.
    pub length: Length,
    /// How many of the report's units one operation is.
    pub per_op: f64,
}

impl Sweep {
    /// Adds the total throughput of all tenants over places and tenant counts to `report`, with
    /// each tenant's mean share, latencies and, where the load looks at it, the throughput until
    /// everything was durable. The first place that is ready is the baseline.
    ///
    /// # Errors
    /// Not root, or a tenant failed.
    pub fn measure(
        &self,
        options: &Options,
        ground: &Ground,
        places: &[Place],
        report: &mut Report,
    ) -> Result<()> {
        let tenants: &[usize] = if options.quick { &[1, 16] } else { &[1, 2, 4, 8, 16] };
        let ready = available(ground, places, report);
        report.baseline = ready.first().map(|(place, _)| place.name()).unwrap_or_default();
        for repeat in 0..options.repeats() {
            for count in tenants {
                for (place, shared) in &ready {
                    let (load, name) = (self.load, place.name());
                    progress(&format!("{load} {name} × {count}, repeat {}", repeat + 1));
                    let start = |index| Tenant::start(*place, shared, load, index, self.length);
                    let outcomes = together((0..*count).map(start).collect::<Result<_>>()?)?;
                    self.record(report, &name, *count, &outcomes);
                    ground.tidy(*place, shared)?;
                }
            }
        }
        Ok(())
    }

    fn record(&self, report: &mut Report, system: &str, count: usize, outcomes: &[Outcome]) {
        let total = outcomes.iter().map(Outcome::rate).sum::<f64>() * self.per_op;
        let mean = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).sum::<f64>() / count as f64;
        let mut extra = vec![
            ("each", total / count as f64),
            ("p50_us", mean(|outcome| outcome.latency.p50_ns) / 1000.0),
            ("p99_us", mean(|outcome| outcome.latency.p99_ns) / 1000.0),
        ];
        if outcomes.iter().any(|outcome| outcome.settle_seconds > 0.0) {
            let ops: u64 = outcomes.iter().map(|outcome| outcome.ops).sum();
            let until = |outcome: &Outcome| outcome.seconds + outcome.settle_seconds;
            let longest = outcomes.iter().map(until).fold(0.0, f64::max);
            extra.push(("until_durable", ops as f64 * self.per_op / longest));
        }
        report.add(system, &count.to_string(), total, &extra);
    }
}

/// The places that this host can provide, with their shared directories; the others become notes.
pub fn available(ground: &Ground, places: &[Place], report: &mut Report) -> Vec<(Place, PathBuf)> {
    let mut ready = Vec::new();
    for place in places {
        match ground.prepare(*place) {
            Ok(shared) => ready.push((*place, shared)),
            Err(error) => report.notes.push(format!("{} left out: {error:#}", place.name())),
        }
    }
    ready
}
