//! The measurement that most figures share: one load in several places by several numbers of
//! tenants, places interleaved within every repeat.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::histogram::Summary;
use crate::place::{Ground, Place, Script, Tenant, together};
use crate::report::Report;
use crate::worker::{Length, Outcome};
use crate::{Options, progress};

/// What a tenant does.
pub enum Work {
    /// One of the worker's loads.
    Load(&'static str, Length),
    /// A script with its arguments.
    Script(Script, Vec<String>),
}

impl Work {
    fn name(&self) -> &'static str {
        match self {
            Work::Load(name, _) => name,
            Work::Script(script, _) => script.name,
        }
    }

    /// Starts it as tenant number `index`.
    ///
    /// # Errors
    /// As [`Tenant::start`].
    pub fn start(&self, place: Place, shared: &Path, index: usize) -> Result<Tenant> {
        match self {
            Work::Load(name, length) => Tenant::start(place, shared, name, index, *length),
            Work::Script(script, args) => Tenant::script(place, shared, script, index, args),
        }
    }
}

/// A load and what is counted of it.
pub struct Sweep {
    /// The load.
    pub work: Work,
    /// How many of the report's units one operation is.
    pub per_op: f64,
    /// How many tenants work at a time, one point after the other.
    pub tenants: Vec<usize>,
}

/// What most figures count to: 16 tenants, or fewer points for a look.
pub fn up_to_16(options: &Options) -> Vec<usize> {
    options.points(if options.quick { &[1, 16] } else { &[1, 2, 4, 8, 16] })
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
        let names: Vec<_> = places.iter().map(|place| place.name()).collect();
        let chosen = options.chosen(&names)?.into_iter().map(|which| places[which]);
        let ready = available(ground, &chosen.collect::<Vec<_>>(), report);
        report.baseline = ready.first().map(|(place, _)| place.name()).unwrap_or_default();
        if options.repeats() == 1 {
            self.warm_up(ground, &ready)?;
        }
        for repeat in 0..options.repeats() {
            for count in &self.tenants {
                for (place, shared) in &ready {
                    let (load, name) = (self.work.name(), place.name());
                    progress(&format!("{load} {name} × {count}, repeat {}", repeat + 1));
                    let tenants = self.start(*place, shared, *count)?;
                    let before = ground.cpu_seconds(*place);
                    let outcomes = together(tenants)?;
                    let beside = ground.cpu_seconds(*place) - before;
                    self.record(report, (*place, &name), *count, (&outcomes, beside));
                    ground.tidy(*place, shared)?;
                }
            }
        }
        Ok(())
    }

    /// Starts the tenants and waits until all are ready. On a cluster they get ready side by side:
    /// what they put there before takes most of the time, and shares no disk of this host.
    fn start(&self, place: Place, shared: &Path, count: usize) -> Result<Vec<Tenant>> {
        let start = |index| self.work.start(place, shared, index);
        if !matches!(place, Place::Ceph(..)) {
            return (0..count).map(start).collect();
        }
        std::thread::scope(|scope| {
            let begin = |index| scope.spawn(move || start(index));
            let each: Vec<_> = (0..count).map(begin).collect();
            each.into_iter()
                .map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    }

    /// Lets one tenant work in each place for nothing: where there are no further repeats, the
    /// first place, which is the baseline, would pay for memory that the machine never used before.
    fn warm_up(&self, ground: &Ground, ready: &[(Place, PathBuf)]) -> Result<()> {
        for (place, shared) in ready {
            progress(&format!("{} {}, warming up", self.work.name(), place.name()));
            together(vec![self.work.start(*place, shared, 0)?])?;
            ground.tidy(*place, shared)?;
        }
        Ok(())
    }

    /// `beside`: CPU time that was spent for the tenants, but not below their processes.
    fn record(
        &self,
        report: &mut Report,
        (place, system): (Place, &str),
        count: usize,
        (outcomes, beside): (&[Outcome], f64),
    ) {
        let total = outcomes.iter().map(Outcome::rate).sum::<f64>() * self.per_op;
        let mean = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).sum::<f64>() / count as f64;
        let p50 = mean(|outcome| outcome.latency.p50_ns) / 1000.0;
        let p99 = mean(|outcome| outcome.latency.p99_ns) / 1000.0;
        let of_each = outcomes.iter().map(|outcome| outcome.latency.p99_ns / 1000.0);
        let worst = of_each.fold(0.0, f64::max);
        let mut extra = vec![("each", total / count as f64)];
        // Scripts do not know both.
        let latencies = [("p50_us", p50), ("p99_us", p99), ("p99_worst_us", worst)];
        extra.extend(latencies.into_iter().filter(|(_, us)| *us > 0.0));
        let kinds = by_kind(outcomes);
        extra.extend(kinds.iter().map(|(name, us)| (name.as_str(), *us)));
        if let Place::Ceph(..) = place {
            let ops: u64 = outcomes.iter().map(|outcome| outcome.ops).sum();
            let spent = outcomes.iter().map(|outcome| outcome.cpu_seconds).sum::<f64>() + beside;
            extra.push(("cpu_us", spent * 1e6 / ops.max(1) as f64));
        }
        if outcomes.iter().any(|outcome| outcome.settle_seconds > 0.0) {
            let ops: u64 = outcomes.iter().map(|outcome| outcome.ops).sum();
            let until = |outcome: &Outcome| outcome.seconds + outcome.settle_seconds;
            let longest = outcomes.iter().map(until).fold(0.0, f64::max);
            extra.push(("until_durable", ops as f64 * self.per_op / longest));
        }
        report.add(system, &count.to_string(), total, &extra);
    }
}

/// For each kind of operation that the tenants tell apart, the mean of their p50 and p99 in µs.
fn by_kind(outcomes: &[Outcome]) -> Vec<(String, f64)> {
    let names: BTreeSet<_> = outcomes.iter().flat_map(|outcome| outcome.kinds.keys()).collect();
    let mut values = Vec::new();
    for name in names {
        let of = || outcomes.iter().filter_map(|outcome| outcome.kinds.get(name));
        let mean = |ns: fn(&Summary) -> f64| of().map(ns).sum::<f64>() / of().count() as f64;
        values.push((format!("{name}_p50_us"), mean(|kind| kind.p50_ns) / 1000.0));
        values.push((format!("{name}_p99_us"), mean(|kind| kind.p99_ns) / 1000.0));
    }
    values
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
