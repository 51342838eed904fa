//! What is known of a device: costs of its requests, their latency, how much of them it does.
//!
//! | file in the state directory | what |
//! |---|---|
//! | `devices/MAJOR-MINOR.json` | given by a person; what is not in it is the default |
//! | `devices/MAJOR-MINOR.measured.json` | [measured](super::costs), where none is given |

use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use polylane_block::qos::board::Device;
use polylane_volume as volume;

use super::Meeting;
use super::cost_file;
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
    let device = cost_file::parse(&text);
    if let Err(error) = &device {
        say(format_args!("{}: {error}: going by the defaults", path.display()));
    }
    Some(device.unwrap_or_default())
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

#[cfg(test)]
mod tests {
    use polylane_block::qos::cost::CostModel;

    use super::*;

    #[test]
    fn what_was_measured_counts_from_then_on() {
        let dir = tempfile::tempdir().expect("tempdir");
        let result = dir.path().join("measured.json");
        let scratch = Scratch { dir: dir.path().to_path_buf(), result: result.clone() };
        let unknown = Profile { device: Device::default(), scratch: Some(scratch) };
        assert_eq!(unknown.latest(), unknown);
        let cost = CostModel { flush_ns: 77, ..CostModel::default() };
        std::fs::write(&result, cost_file::text(&cost)).expect("write");
        let known = unknown.latest();
        assert_eq!((known.device.cost, &known.scratch), (cost, &None));
        assert_eq!(known.latest(), known);
        let file = std::fs::File::open(&result).expect("open");
        assert_eq!(dir_of(&file).as_deref(), dir.path().canonicalize().ok().as_deref());
    }
}
