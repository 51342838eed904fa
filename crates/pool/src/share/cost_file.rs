//! The file of a device's costs.

use polylane_block::qos::board::Device;
use polylane_block::qos::cost::{CostModel, Line};
use polylane_block::qos::plan::Config;
use serde::{Deserialize, Serialize};

/// The file. Times in nanoseconds of device time.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Given {
    read: Option<GivenLine>,
    write: Option<GivenLine>,
    discard_ns: Option<u64>,
    flush_ns: Option<u64>,
    /// Latency of a small request alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    base_ns: Option<u64>,
    /// Device time per time.
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<f64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenLine {
    sequential_ns: u64,
    random_ns: u64,
    page_ns: u64,
}

/// Nothing costs more than this: ten seconds.
const COST_NS_MAX: u64 = 10_000_000_000;

/// What the text of a file says.
pub(super) fn parse(text: &str) -> serde_json::Result<Device> {
    serde_json::from_str::<Given>(text).map(|given| given.device())
}

/// Costs as the text of a file.
pub(super) fn text(cost: &CostModel) -> String {
    let line = |line: Line| {
        let Line { sequential_ns, random_ns, page_ns } = line;
        Some(GivenLine { sequential_ns, random_ns, page_ns })
    };
    let given = Given {
        read: line(cost.read),
        write: line(cost.write),
        discard_ns: Some(cost.discard_ns),
        flush_ns: Some(cost.flush_ns),
        ..Given::default()
    };
    // Numbers and names only: it cannot fail.
    serde_json::to_string_pretty(&given).unwrap_or_default()
}

impl Given {
    fn device(&self) -> Device {
        let (cost, config) = (CostModel::default(), Config::default());
        let ns = |given: Option<u64>, default: u64| given.unwrap_or(default).min(COST_NS_MAX);
        let line = |given: &Option<GivenLine>, default: Line| match given {
            None => default,
            Some(line) => Line {
                sequential_ns: line.sequential_ns.min(COST_NS_MAX),
                random_ns: line.random_ns.min(COST_NS_MAX),
                page_ns: line.page_ns.min(COST_NS_MAX),
            },
        };
        Device {
            cost: CostModel {
                read: line(&self.read, cost.read),
                write: line(&self.write, cost.write),
                discard_ns: ns(self.discard_ns, cost.discard_ns),
                flush_ns: ns(self.flush_ns, cost.flush_ns),
            },
            config: Config { base_ns: ns(self.base_ns, config.base_ns), ..config },
            capacity: self.capacity,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_counts_and_the_rest_is_the_default() {
        let text = r#"{"read": {"sequential_ns": 1, "random_ns": 2, "page_ns": 3}, "flush_ns": 7}"#;
        let device = parse(text).expect("JSON");
        assert_eq!(device.cost.read, Line { sequential_ns: 1, random_ns: 2, page_ns: 3 });
        assert_eq!((device.cost.flush_ns, device.cost.write), (7, CostModel::default().write));
        assert!(parse(r#"{"raed": 1}"#).is_err());
        let huge = format!(r#"{{"discard_ns": {}}}"#, u64::MAX);
        let device = parse(&huge).expect("JSON");
        assert_eq!(device.cost.discard_ns, COST_NS_MAX);
    }
}
