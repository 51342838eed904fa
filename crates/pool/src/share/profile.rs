//! What is known of a device: costs of its requests, their latency, how much of them it does.
//!
//! | file in the state directory | what |
//! |---|---|
//! | `devices/MAJOR-MINOR.json` | given by a person; what is not in it is the default |
//! | `devices/MAJOR-MINOR.measured.json` | [measured](super::costs), where none is given |

use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use polylane_block::qos::board::Device;
use polylane_block::qos::cost::{CostModel, Line};
use polylane_block::qos::plan::Config;
use polylane_volume as volume;
use serde::{Deserialize, Serialize};

use super::Meeting;
use super::costs::{Measuring, Scratch};
use crate::failure::say;

/// A device's profile.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Profile {
    /// For the board.
    pub(crate) device: Device,
    /// Costs are neither given nor measured: where they can be.
    scratch: Option<Scratch>,
}

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

impl Profile {
    /// The profile of the device whose lanes meet there; one of them is in `volume`.
    pub(crate) fn of(meeting: &Meeting, volume: impl AsFd) -> Profile {
        let Ok(state) = volume::state_dir() else { return Profile::default() };
        let file = |end: &str| state.join("devices").join(format!("{}{end}", meeting.name()));
        let measured = file(".measured.json");
        if let Some(device) = read(&file(".json")).or_else(|| read(&measured)) {
            return Profile { device, scratch: None };
        }
        let scratch = dir_of(volume).map(|dir| Scratch { dir, result: measured });
        Profile { device: Device::default(), scratch }
    }

    /// This, or what has been measured since.
    pub(crate) fn latest(&self) -> Profile {
        let device = self.scratch.as_ref().and_then(|scratch| read(&scratch.result));
        device.map_or_else(|| self.clone(), |device| Profile { device, scratch: None })
    }

    /// Has the costs measured where they are not known.
    pub(crate) fn measuring(&self, meeting: &Meeting) -> Option<Measuring> {
        Measuring::start(self.scratch.clone()?, meeting.number())
    }
}

/// What a file says, if there is one that can be read.
fn read(path: &Path) -> Option<Device> {
    let text = std::fs::read_to_string(path).ok()?;
    let device = parse(&text);
    if let Err(error) = &device {
        say(format_args!("{}: {error}: going by the defaults", path.display()));
    }
    Some(device.unwrap_or_default())
}

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

/// The directory of an open file. A block device has none that is on it.
fn dir_of(file: impl AsFd) -> Option<PathBuf> {
    let stat = rustix::fs::fstat(&file).ok()?;
    if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
        return None;
    }
    let link = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    std::fs::read_link(link).ok()?.parent().map(Path::to_path_buf)
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

    #[test]
    fn what_was_measured_counts_from_then_on() {
        let dir = tempfile::tempdir().expect("tempdir");
        let result = dir.path().join("measured.json");
        let scratch = Scratch { dir: dir.path().to_path_buf(), result: result.clone() };
        let unknown = Profile { device: Device::default(), scratch: Some(scratch) };
        assert_eq!(unknown.latest(), unknown);
        let cost = CostModel { flush_ns: 77, ..CostModel::default() };
        std::fs::write(&result, text(&cost)).expect("write");
        let known = unknown.latest();
        assert_eq!((known.device.cost, &known.scratch), (cost, &None));
        assert_eq!(known.latest(), known);
        let file = std::fs::File::open(&result).expect("open");
        assert_eq!(dir_of(&file).as_deref(), dir.path().canonicalize().ok().as_deref());
    }
}
