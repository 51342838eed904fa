//! What is known of a device: costs of its requests, their latency, how much of them it does.
//!
//! `devices/MAJOR-MINOR.json` in the state directory gives it, for devices that the defaults are
//! wrong for; whatever is not in it is the default.

use polylane_block::qos::board::Device;
use polylane_block::qos::cost::{CostModel, Line};
use polylane_block::qos::plan::Config;
use serde::Deserialize;

use super::Meeting;
use crate::failure::say;
use crate::volume;

/// A device's profile.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Profile {
    /// For the board.
    pub(crate) device: Device,
}

/// The file. Times in nanoseconds of device time.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Given {
    read: Option<GivenLine>,
    write: Option<GivenLine>,
    discard_ns: Option<u64>,
    flush_ns: Option<u64>,
    /// Latency of a small request alone.
    base_ns: Option<u64>,
    /// Device time per time.
    capacity: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenLine {
    sequential_ns: u64,
    random_ns: u64,
    page_ns: u64,
}

/// Nothing costs more than this: ten seconds.
const COST_NS_MAX: u64 = 10_000_000_000;

impl Profile {
    /// The profile of the device whose lanes meet there.
    pub(crate) fn of(meeting: &Meeting) -> Profile {
        let Ok(dir) = volume::state_dir() else { return Profile::default() };
        let path = dir.join("devices").join(format!("{}.json", meeting.name()));
        let Ok(text) = std::fs::read_to_string(&path) else { return Profile::default() };
        match serde_json::from_str::<Given>(&text) {
            Ok(given) => given.profile(),
            Err(error) => {
                say(format_args!("{}: {error}: going by the defaults", path.display()));
                Profile::default()
            }
        }
    }
}

impl Given {
    fn profile(&self) -> Profile {
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
        Profile {
            device: Device {
                cost: CostModel {
                    read: line(&self.read, cost.read),
                    write: line(&self.write, cost.write),
                    discard_ns: ns(self.discard_ns, cost.discard_ns),
                    flush_ns: ns(self.flush_ns, cost.flush_ns),
                },
                config: Config { base_ns: ns(self.base_ns, config.base_ns), ..config },
                capacity: self.capacity,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_counts_and_the_rest_is_the_default() {
        let text = r#"{"read": {"sequential_ns": 1, "random_ns": 2, "page_ns": 3}, "flush_ns": 7}"#;
        let device = serde_json::from_str::<Given>(text).expect("JSON").profile().device;
        assert_eq!(device.cost.read, Line { sequential_ns: 1, random_ns: 2, page_ns: 3 });
        assert_eq!((device.cost.flush_ns, device.cost.write), (7, CostModel::default().write));
        assert!(serde_json::from_str::<Given>(r#"{"raed": 1}"#).is_err());
        let huge = format!(r#"{{"discard_ns": {}}}"#, u64::MAX);
        let device = serde_json::from_str::<Given>(&huge).expect("JSON").profile().device;
        assert_eq!(device.cost.discard_ns, COST_NS_MAX);
    }
}
