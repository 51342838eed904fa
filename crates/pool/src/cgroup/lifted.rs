//! What lifts limits of a pool that it had once, in its groups.

use std::fs;
use std::path::PathBuf;

use super::{Host, Limits, V2Parent, WEIGHT_DEFAULT, weight_settings};

/// A file of a limit that was not asked for, with what lifts it, in version 1 and version 2.
pub(super) struct Unlimited {
    pub(super) controller: &'static str,
    pub(super) files: [(&'static str, String); 2],
}

/// The group in which a pool had CPUs of its own once, with what lifts that.
pub(super) fn cpus(
    host: &Host,
    parent: Option<&V2Parent>,
    group: &str,
) -> Option<(PathBuf, String)> {
    const FILE: &str = "cpuset.cpus";
    let (dir, all) = match host.v1_dir("cpuset") {
        // A group has to have some in version 1.
        Some(dir) => (dir.join(group), fs::read_to_string(dir.join(FILE)).ok()?),
        None => (parent?.dir.join(group), "\n".to_string()),
    };
    dir.join(FILE).exists().then_some((dir, all))
}

/// What lifts those limits that were not asked for, in groups that may have them from before.
pub(super) fn unlimited(limits: &Limits) -> Vec<Unlimited> {
    let mut found = Vec::new();
    let mut add = |controller, files| found.push(Unlimited { controller, files });
    if limits.memory.is_none() {
        let files = [("memory.limit_in_bytes", "-1"), ("memory.max", "max")];
        add("memory", files.map(|(file, value)| (file, value.to_string())));
    }
    if limits.pids.is_none() {
        add("pids", [("pids.max", "max".to_string()), ("pids.max", "max".to_string())]);
    }
    if limits.weight.is_none() {
        add("cpu", weight_settings(WEIGHT_DEFAULT));
    }
    found
}
