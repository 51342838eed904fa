//! `qos-scenarios`: every policy in the cases in which shares go wrong, on the simulated device.

use anyhow::Result;
use polylane_block::qos::scenarios::{self, Findings, PolicyName};

use crate::report::{Better, Report};
use crate::{Options, progress};

/// Simulates all cases under all policies.
///
/// # Errors
/// None.
pub fn run(options: &Options) -> Result<Report> {
    let title = "weighted Jain index per second, median (1 is fair), simulated device";
    let mut report = Report::new("qos-scenarios", title, "case", "Jain", Better::Higher);
    report.baseline = "none".into();
    let seeds = if options.quick { 1 } else { options.repeats() };
    for seed in 0..seeds {
        let mut cases = scenarios::all();
        cases.push(scenarios::thousand());
        for mut case in cases {
            case.scenario.seed = seed as u64 + 1;
            for policy in PolicyName::ALL {
                progress(&format!("qos-scenarios {} {}", case.name, policy.name()));
                let found = Findings::of(&case, &case.run(policy));
                let known = [
                    ("jain_worst", found.jain_worst),
                    ("max_min_error", found.max_min_error),
                    ("p99_us", found.p99_us),
                    ("settle_ms", found.settle_ms),
                    ("throughput", found.throughput),
                ];
                let known = known.into_iter().filter(|(_, value)| value.is_finite());
                report.add(policy.name(), case.name, found.jain, &known.collect::<Vec<_>>());
            }
        }
    }
    report.notes.push(
        "throughput: device time given out, as part of the time; settle_ms: after the change, \
         until shares are within 5 % of the weights (–: never, or no change); max_min_error: \
         of device time over the span; p99_us: of the small tenant; a sample per seed"
            .into(),
    );
    Ok(report)
}
