//! Programs that figures run, and files that they lay out.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use polylane_sys::procstat::{self, ProcessStat, TICKS_PER_SECOND};
use serde_json::Value;

/// The path as text, for command lines.
///
/// # Errors
/// It is not UTF-8.
pub fn path(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))
}

/// Runs a tool quietly and returns what it printed.
///
/// # Errors
/// It is missing or failed; its own words are in the error.
pub fn command(tool: &str, args: &[&str]) -> Result<String> {
    let done = Command::new(tool).args(args).stdin(Stdio::null()).output();
    let done = done.with_context(|| format!("run {tool}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("{tool} failed: {}", said.lines().next().unwrap_or("no message").trim());
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Runs this program; what it printed.
///
/// # Errors
/// It failed; its own words.
pub(crate) fn polylane(words: &[impl AsRef<OsStr>]) -> Result<String> {
    let program = std::env::current_exe().context("own path")?;
    let done = Command::new(program).args(words).stdin(Stdio::null()).output();
    let done = done.context("run polylane")?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// What gives a program the fast way into the lane at a path: its environment, and the directory
/// with the lane's socket and library.
///
/// # Errors
/// There is no such lane, or no fast way into it.
pub(crate) fn fast_way(at: &Path) -> Result<(Vec<(String, String)>, PathBuf)> {
    let told: Value = serde_json::from_str(&polylane(&["env", "--json", path(at)?])?)?;
    let all = told["environment"].as_object().context("no fast way into the lane")?;
    let pair = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.into()));
    let run = told["run"].as_str().context("env names no run directory")?;
    Ok((all.iter().filter_map(pair).collect(), PathBuf::from(run)))
}

/// CPU time of a process, its descendants, and those of these that were waited for, in seconds; by
/// the kernel's ticks of 10 ms.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut ticks: BTreeMap<u32, u64> = BTreeMap::new();
    for pid in procstat::pids() {
        // One that has ended in between has none.
        let Some(stat) = ProcessStat::of(pid) else { continue };
        children.entry(stat.parent).or_default().push(pid);
        ticks.insert(pid, stat.own_ticks.iter().chain(&stat.children_ticks).sum());
    }
    let (mut left, mut sum) = (vec![pid], 0);
    while let Some(pid) = left.pop() {
        sum += ticks.get(&pid).copied().unwrap_or(0);
        left.extend(children.remove(&pid).into_iter().flatten());
    }
    sum as f64 / TICKS_PER_SECOND as f64
}

/// Writes the first `span` bytes of a file, so that no request changes its map.
pub(crate) fn fill(path: &Path, span: u64) -> Result<()> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path);
    let file = file.with_context(|| format!("create {}", path.display()))?;
    let data = vec![0x5a; 1 << 20];
    for at in (0..span).step_by(data.len()) {
        file.write_all_at(&data, at)?;
    }
    Ok(file.sync_all()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_spent_is_told() {
        let before = cpu_seconds(std::process::id());
        let mut sum = 0_u64;
        while cpu_seconds(std::process::id()) < before + 0.02 {
            sum = (0..100_000_u64).fold(sum, |sum, it| sum.wrapping_mul(31) ^ it);
        }
        assert!(cpu_seconds(0) >= 0.0, "{sum}");
    }
}
