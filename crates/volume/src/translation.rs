//! Where a volume's translation works, and how far it looks ahead.

use std::fmt;

use polylane_base::size::ByteSize;
use polylane_block::engine::Options;
use polylane_block::map::UnitOptions;
use serde::{Deserialize, Serialize};

use crate::cpus::CpuList;

/// Least of `--prefetch`, in bytes: a chunk of the map.
pub const PREFETCH_BYTES_MIN: u64 = 1 << 20;

/// How a volume is translated, as sidecars and specifications keep it. What is absent is as the
/// engine has it by default.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Translation {
    /// The CPUs that the threads are bound to; absent: wherever the scheduler likes.
    pub cpus: Option<CpuList>,
    /// Bytes of the volume that one look at the host's map takes in.
    pub prefetch_bytes: Option<u64>,
}

impl Translation {
    /// This, and what it leaves open from another.
    pub fn over(&self, other: Translation) -> Translation {
        Translation {
            cpus: self.cpus.clone().or(other.cpus),
            prefetch_bytes: self.prefetch_bytes.or(other.prefetch_bytes),
        }
    }

    pub(crate) fn unit(&self) -> UnitOptions {
        let cpus = self.cpus.iter().flat_map(|list| list.as_slice());
        let cpus = cpus.filter_map(|&cpu| u32::try_from(cpu).ok()).collect();
        UnitOptions { cpus, ..UnitOptions::default() }
    }

    pub(crate) fn engine(&self) -> Options {
        let defaults = Options::default();
        let prefetch_bytes = self.prefetch_bytes.unwrap_or(defaults.prefetch_bytes);
        Options { prefetch_bytes: prefetch_bytes.max(PREFETCH_BYTES_MIN), ..defaults }
    }

    /// As JSON, with what holds where nothing was said.
    pub(crate) fn describe(&self) -> serde_json::Value {
        serde_json::json!({
            "cpus": self.cpus.as_ref().map(CpuList::to_string),
            "prefetch_bytes": self.engine().prefetch_bytes,
        })
    }
}

impl fmt::Display for Translation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cpus {
            Some(cpus) => write!(f, "on CPUs {cpus}, ")?,
            None => f.write_str("on any CPU, ")?,
        }
        write!(f, "prefetch {}", ByteSize(self.engine().prefetch_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_goes_before_what_is_kept() {
        let kept = Translation { cpus: "0-1".parse().ok(), prefetch_bytes: Some(8 << 20) };
        let said = Translation { cpus: "1".parse().ok(), prefetch_bytes: None };
        let both = said.over(kept.clone());
        assert_eq!(both.to_string(), "on CPUs 1, prefetch 8 MiB");
        assert_eq!((both.unit().cpus, both.engine().prefetch_bytes), (vec![1], 8 << 20));
        assert_eq!(Translation::default().over(kept.clone()), kept);
        assert_eq!(Translation::default().describe()["prefetch_bytes"], 64 << 20);
        assert_eq!(Translation::default().unit(), UnitOptions::default());
    }
}
