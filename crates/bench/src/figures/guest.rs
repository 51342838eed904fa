//! A volume that is attached to this host, with one of the kernel's file systems on it: a guest
//! without a machine around it.
//!
//! Everything goes when it is dropped: unmounted, then detached.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::tools::{path, polylane};

/// An attached volume, mounted once it has a file system.
pub(super) struct Guest {
    /// The volume's file.
    pub(super) volume: PathBuf,
    /// The block device.
    pub(super) device: String,
    /// Where its file system is mounted.
    pub(super) mount: PathBuf,
    mounted: bool,
}

impl Guest {
    /// Makes a volume of `size` and attaches it. `cache`: options of `volume create`, `attach`: of
    /// `attach`.
    ///
    /// # Errors
    /// The host has no loop devices or no FUSE.
    pub(super) fn new(
        dir: &Path,
        name: &str,
        size: &str,
        cache: &[&str],
        attach: &[&str],
    ) -> Result<Guest> {
        let (volume, mount) = (dir.join(format!("{name}.img")), dir.join(name));
        fs::create_dir(&mount)?;
        let create = ["volume", "create", "--size", size, "--fs", "none"];
        let name = [path(&volume)?];
        polylane(&[&create[..], cache, &name].concat())?;
        let attach = [&["attach", "--via", "loop"][..], attach, &name].concat();
        let device = polylane(&attach)?.trim().to_string();
        Ok(Guest { volume, device, mount, mounted: false })
    }

    /// Makes a file system by `tool` and mounts it.
    ///
    /// # Errors
    /// The tool is missing, the kernel has no such file system.
    pub(super) fn format(&mut self, tool: &str, words: &[&str], mount: &[&str]) -> Result<()> {
        let device = [self.device.as_str()];
        command(tool, &[words, &device[..]].concat())?;
        let at = [self.mount.to_str().context("a name")?];
        command("mount", &[mount, &device[..], &at[..]].concat())?;
        self.mounted = true;
        Ok(())
    }

    /// Ends it in good order; the volume's file stays.
    ///
    /// # Errors
    /// It is in use, or not everything could be written back.
    pub(super) fn end(mut self) -> Result<()> {
        if std::mem::take(&mut self.mounted) {
            command("umount", &[self.mount.to_str().context("a name")?])?;
        }
        let detached = polylane(&["detach", path(&self.volume)?]);
        for _ in 0..100 {
            // A keeper whose device is gone ends by itself, and may not answer any more.
            if detached.is_ok() || self.stats().is_err() {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        detached.map(drop)
    }

    /// What its engine counted.
    ///
    /// # Errors
    /// It does not answer.
    pub(super) fn stats(&self) -> Result<serde_json::Value> {
        let listed = polylane(&["attach", "--list", "--json"])?;
        let listed: Vec<serde_json::Value> = serde_json::from_str(&listed)?;
        let own = |one: &serde_json::Value| one["device"].as_str() == Some(&self.device);
        let found = listed.into_iter().find(own).context("it is not listed")?;
        Ok(found["stats"]["engine"].clone())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if self.mounted {
            let _ = Command::new("umount").arg(&self.mount).status();
        }
        // Detached already by `end`, as a rule.
        let _ = path(&self.volume).and_then(|volume| polylane(&["detach", volume]));
    }
}

/// Runs a tool; what it printed.
///
/// # Errors
/// It is missing, or what it said.
pub(super) fn command(tool: &str, words: &[&str]) -> Result<String> {
    let output = Command::new(tool).args(words).output().with_context(|| format!("run {tool}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{tool}: {}", said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a tool is installed.
pub(super) fn has(tool: &str) -> bool {
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&dirs).any(|dir| dir.join(tool).is_file())
}
