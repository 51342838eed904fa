//! Fair shares between processes: lanes of one host device and the coordinator that they find.
//!
//! ```text
//!  pool A: supervisor ── member ──┐                        ┌── candidate ── keeper of pool A
//!             │ page, link        ├─ socket ─ coordinator ─┤   (holds the lock: it coordinates)
//!          service: governor      │                        ├── candidate ── keeper of pool B
//!  pool B: supervisor ── member ──┘                        └── … wait for its end
//! ```
//!
//! Every pool with a volume has a *candidate* in its keeper, a process outside of the tenant's
//! control groups. The candidate that holds the lock beside the socket coordinates the device; the
//! others wait for its end and race for the lock then, so no daemon is needed and a coordinator
//! that is killed is replaced within milliseconds. Its lanes see the end of their connection and
//! join again; until then they go on at their fair share.
//!
//! A lane lasts as long as its connection, which supervisor and service hold both: a service that
//! is started again goes on with the same page, an orphaned one keeps its share while it flushes.
//!
//! | file in the run-time directory | what |
//! |---|---|
//! | `shares-MAJOR-MINOR.socket` | where the coordinator of that device listens |
//! | `shares-MAJOR-MINOR.holder` | locked by it |

pub(crate) mod coordinator;
mod cost_file;
pub(crate) mod costs;
pub(crate) mod member;
pub(crate) mod profile;
pub(crate) mod report;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

pub use polylane_block::qos::board::WEIGHTS;
use polylane_block::qos::board::{Limits, Rule};
use polylane_block::qos::depth::Counted;
use rustix::fs::FileType;
use serde::{Deserialize, Serialize};

use crate::bound;
use crate::failure::{Failure, Result};

/// The weight of a lane that asks for none.
pub const WEIGHT_DEFAULT: u32 = 100;

/// Largest message in bytes; a list of a thousand lanes is the longest.
pub(crate) const MESSAGE_BYTES_MAX: usize = 200 << 10;

/// How lanes of a device share it, as `--qos` names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Everything goes.
    None,
    /// Limits by weight.
    Static,
    /// WDT as published.
    Wdt,
    /// The same with one lock for all lanes.
    WdtSharedLock,
    /// Device time, short windows, donation.
    #[default]
    Ledger,
}

impl Policy {
    /// All, in the order of `--help`.
    pub const ALL: [Policy; 5] =
        [Policy::None, Policy::Static, Policy::Wdt, Policy::WdtSharedLock, Policy::Ledger];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        self.rule().map_or("none", Rule::name)
    }

    /// The policy of this name.
    pub fn named(name: &str) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// What the coordinator goes by; `None` for none.
    pub(crate) fn rule(self) -> Option<Rule> {
        match self {
            Policy::None => None,
            Policy::Static => Some(Rule::Static),
            Policy::Wdt => Some(Rule::Wdt),
            Policy::WdtSharedLock => Some(Rule::WdtSharedLock),
            Policy::Ledger => Some(Rule::Ledger),
        }
    }
}

/// What a lane is to have. Rates are per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Wanted {
    /// 1 to 10000; `None`: 100, or in a change as it is.
    pub weight: Option<u32>,
    /// Most requests; 0 lifts the limit, here and below.
    pub iops_max: Option<u64>,
    /// Least requests, if it wants them.
    pub iops_min: Option<u64>,
    /// Most bytes.
    pub bw_max: Option<u64>,
    /// Least bytes, if it wants them.
    pub bw_min: Option<u64>,
    /// Microseconds that 99 per cent of requests are to stay below.
    pub latency_target_us: Option<u64>,
}

impl Wanted {
    /// This with a change made to it.
    pub(crate) fn changed(self, change: Wanted) -> Wanted {
        Wanted {
            weight: change.weight.or(self.weight),
            iops_max: change.iops_max.or(self.iops_max),
            iops_min: change.iops_min.or(self.iops_min),
            bw_max: change.bw_max.or(self.bw_max),
            bw_min: change.bw_min.or(self.bw_min),
            latency_target_us: change.latency_target_us.or(self.latency_target_us),
        }
    }

    /// Why nobody can have all of this under a policy; one line that begins with the option.
    pub fn contradiction(self, policy: Policy) -> Option<String> {
        let some = |value: Option<u64>| value.filter(|value| *value > 0);
        let pairs = [
            (self.iops_min, self.iops_max, ["--min-iops", "--max-iops"]),
            (self.bw_min, self.bw_max, ["--min-bandwidth", "--max-bandwidth"]),
        ];
        for (least, most, names) in pairs {
            if let Some((least, most)) = some(least).zip(some(most)).filter(|(l, m)| l > m) {
                let [least_name, most_name] = names;
                return Some(format!("{least_name} {least}: is more than {most_name} {most}"));
            }
        }
        // The first of them only the ledger plans for.
        const PLANNED: usize = 3;
        let named = [
            (some(self.latency_target_us), "--latency"),
            (some(self.iops_min), "--min-iops"),
            (some(self.bw_min), "--min-bandwidth"),
            (some(self.iops_max), "--max-iops"),
            (some(self.bw_max), "--max-bandwidth"),
            (self.weight.map(u64::from), "--weight"),
        ];
        // Without a policy there is no lane.
        let in_vain = match policy {
            Policy::Ledger => &[][..],
            Policy::Static | Policy::Wdt | Policy::WdtSharedLock => &named[..PLANNED],
            Policy::None => &named[..],
        };
        let (_, name) = in_vain.iter().find(|(value, _)| value.is_some())?;
        Some(format!("{name}: has no effect with --qos {}", policy.name()))
    }

    pub(crate) fn limits(self) -> Limits {
        let some = |value: Option<u64>| value.filter(|value| *value > 0);
        Limits {
            weight: self.weight.unwrap_or(WEIGHT_DEFAULT),
            requests_max: some(self.iops_max),
            requests_min: some(self.iops_min),
            bytes_max: some(self.bw_max),
            bytes_min: some(self.bw_min),
            latency_ns: some(self.latency_target_us).map(|us| us.saturating_mul(1000)),
        }
    }
}

/// What the coordinator is asked.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum ToCoordinator {
    /// A lane on this connection, for as long as it lasts.
    Join {
        /// Its pool.
        pool: String,
        /// What it is to have.
        wanted: Wanted,
        /// How lanes are to share.
        policy: Policy,
    },
    /// The process of a pool's lane is in the control group whose directory comes with it.
    Watch {
        /// The pool.
        pool: String,
    },
    /// Change what the lanes of a pool are to have.
    Set {
        /// The pool.
        pool: String,
        /// What changes.
        change: Wanted,
    },
}

/// What the coordinator says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum FromCoordinator {
    /// The lane's page comes with it; then, for `wdt-shared-lock`, the page with the lock, and
    /// otherwise the kernel's count of the device's requests, where there is one.
    Joined,
    /// What the lane on this connection is to have was changed.
    Changed(Wanted),
    /// The kernel holds the process of the lane on this connection to its share, or no longer does.
    Bound(bool),
    /// So many lanes were changed, or are watched.
    Done(usize),
    /// Why not.
    Refused(String),
}

/// Where the lanes of a device meet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Meeting {
    dir: PathBuf,
    /// Its number: major, minor.
    device: (u32, u32),
}

impl Meeting {
    /// The meeting place of the device that `file` is on, in a run-time directory.
    pub(crate) fn of(dir: &Path, file: impl AsFd) -> Result<Meeting> {
        let stat = rustix::fs::fstat(file)
            .map_err(|error| Failure::because("volume", "find its device", error))?;
        let device = match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => stat.st_rdev,
            _ => stat.st_dev,
        };
        let device = whole_disk(rustix::fs::major(device), rustix::fs::minor(device));
        Ok(Meeting { dir: dir.to_path_buf(), device })
    }

    /// The device, for people and file names.
    pub(crate) fn name(&self) -> String {
        format!("{}-{}", self.device.0, self.device.1)
    }

    /// What the kernel counts of the device's requests, where it does.
    pub(crate) fn depth(&self) -> Option<Counted> {
        Counted::of(self.device.0, self.device.1)
    }

    /// The device's number: major, minor.
    pub(crate) fn number(&self) -> bound::Number {
        self.device
    }

    fn dir(&self) -> &Path {
        &self.dir
    }

    fn socket(&self) -> PathBuf {
        self.dir.join(format!("shares-{}.socket", self.name()))
    }

    fn holder(&self) -> PathBuf {
        self.dir.join(format!("shares-{}.holder", self.name()))
    }
}

/// The disk that a partition is of; anything else is itself.
fn whole_disk(major: u32, minor: u32) -> (u32, u32) {
    let dir = format!("/sys/dev/block/{major}:{minor}");
    let disk = || {
        std::fs::metadata(format!("{dir}/partition")).ok()?;
        let text = std::fs::read_to_string(format!("{dir}/../dev")).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    disk().unwrap_or((major, minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_can_have_is_named() {
        let said = |wanted: Wanted, policy| wanted.contradiction(policy).unwrap_or_default();
        let least = Wanted { iops_min: Some(9), iops_max: Some(8), ..Wanted::default() };
        assert_eq!(said(least, Policy::Ledger), "--min-iops 9: is more than --max-iops 8");
        let least = Wanted { bw_min: Some(2), bw_max: Some(1), ..Wanted::default() };
        assert_eq!(
            said(least, Policy::Ledger),
            "--min-bandwidth 2: is more than --max-bandwidth 1"
        );
        // 0 lifts, and equal is not more.
        for (iops_min, iops_max) in [(9, 0), (0, 8), (8, 8)] {
            let (iops_min, iops_max) = (Some(iops_min), Some(iops_max));
            let fits = Wanted { iops_min, iops_max, ..Wanted::default() };
            assert_eq!(fits.contradiction(Policy::Ledger), None);
        }
        let latency = Wanted { latency_target_us: Some(1), ..Wanted::default() };
        assert_eq!(latency.contradiction(Policy::Ledger), None);
        for policy in [Policy::Static, Policy::Wdt, Policy::WdtSharedLock, Policy::None] {
            let line = format!("--latency: has no effect with --qos {}", policy.name());
            assert_eq!(said(latency, policy), line);
        }
        let weight = Wanted { weight: Some(7), ..Wanted::default() };
        assert_eq!(weight.contradiction(Policy::Wdt), None);
        assert_eq!(said(weight, Policy::None), "--weight: has no effect with --qos none");
        assert_eq!(Wanted::default().contradiction(Policy::None), None);
    }
}
