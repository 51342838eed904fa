//! Programs that figures run, and files that they lay out.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

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

/// CPU time of a process, its descendants, and those of these that were waited for, in seconds; by
/// the kernel's ticks of 10 ms.
pub(crate) fn cpu_seconds(pid: u32) -> f64 {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let mut ticks: BTreeMap<u32, u64> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // One that has ended in between has none.
        let text = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some((parent, spent)) = parent_and_ticks(&text) else { continue };
        children.entry(parent).or_default().push(pid);
        ticks.insert(pid, spent);
    }
    let (mut left, mut sum) = (vec![pid], 0);
    while let Some(pid) = left.pop() {
        sum += ticks.get(&pid).copied().unwrap_or(0);
        left.extend(children.remove(&pid).into_iter().flatten());
    }
    sum as f64 / 100.0
}

/// A process's parent, and its ticks with those of children that it waited for, by its line of
/// `/proc/PID/stat`.
fn parent_and_ticks(line: &str) -> Option<(u32, u64)> {
    // Behind the program's name, which may hold anything: the parent is the second field, and the
    // 12th to 15th are user and system time, and the same of children.
    let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let spent = (11..15).map(number).sum::<Option<u64>>()?;
    Some((fields.get(1)?.parse().ok()?, spent))
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
    fn ticks_are_told_of_any_name() {
        let line = "42 (a) b) S 7 42 42 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 1 0 5 6 7";
        assert_eq!(parent_and_ticks(line), Some((7, 124)));
        for wrong in ["", "42 (a", "42 (a) S 7 1 2", "42 (a) S x 42 42 0 -1 4 1 2 3 4 1 2 3 4"] {
            assert_eq!(parent_and_ticks(wrong), None, "{wrong}");
        }
        let before = cpu_seconds(std::process::id());
        let mut sum = 0_u64;
        while cpu_seconds(std::process::id()) < before + 0.02 {
            sum = (0..100_000_u64).fold(sum, |sum, it| sum.wrapping_mul(31) ^ it);
        }
        assert!(cpu_seconds(0) >= 0.0, "{sum}");
    }
}
