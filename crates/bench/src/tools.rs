//! Programs that figures run, and files that they lay out.

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
