//! Control groups that an OCI runtime makes, and leaves with processes of its own in them where it
//! is killed.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::cgroup::{self, Plan};

/// Where a runtime makes groups called `name`, whatever it has made of them: below those of a pool
/// that it is started in, and of this process where the pool has none; else at the top of each
/// hierarchy.
pub(crate) fn places(pool: Option<&Plan>, name: &str) -> Vec<PathBuf> {
    let above = match pool {
        None => cgroup::hierarchies(true),
        Some(plan) => [plan.dirs(), cgroup::hierarchies(false)].concat(),
    };
    let mut dirs: Vec<PathBuf> = above.into_iter().map(|dir| dir.join(name)).collect();
    dirs.sort();
    dirs.dedup();
    dirs
}

/// Ends whatever is in groups, and removes them with those below; those that are gone are no error.
pub(crate) fn end(dirs: &[PathBuf]) {
    let mut all = Vec::new();
    let mut left: Vec<PathBuf> = dirs.iter().filter(|dir| dir.is_dir()).cloned().collect();
    while let Some(dir) = left.pop() {
        let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
        let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        left.extend(entries.filter(is_dir).map(|entry| entry.path()));
        all.push(dir);
    }
    all.iter().for_each(|dir| kill(dir));
    // Those below others come last.
    all.reverse();
    cgroup::remove(&all);
}

fn kill(group: &Path) {
    // What is frozen does not end.
    let _ = fs::write(group.join("freezer.state"), "THAWED");
    let _ = fs::write(group.join("cgroup.freeze"), "0");
    let processes = || fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for pid in processes().lines().filter_map(|line| line.parse().ok().and_then(Pid::from_raw)) {
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        // The number may have become another's before it was opened.
        if processes().lines().any(|line| line.parse() == Ok(pid.as_raw_nonzero().get())) {
            let _ = pidfd_send_signal(&process, Signal::KILL);
        }
    }
}
