//! Trees over read-only ones: lanes, the kernel's overlayfs, fuse-overlayfs, and a plain copy to
//! compare with. All are mounted in the bench's own mount namespace.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::tools::{command, path};

/// How trees are put over each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Not at all: the lowers are copied.
    Plain,
    /// The kernel's overlayfs as it comes.
    Overlayfs,
    /// The same with `metacopy=on`.
    Metacopy,
    /// The program of that name.
    FuseOverlayfs,
    /// A lane on a volume of its own, through FUSE.
    LaneFuse,
    /// The same with the library.
    Lane,
}

impl Way {
    /// Its name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::Plain => "plain",
            Way::Overlayfs => "overlayfs",
            Way::Metacopy => "overlayfs, metacopy",
            Way::FuseOverlayfs => "fuse-overlayfs",
            Way::LaneFuse => "lane (FUSE)",
            Way::Lane => "lane",
        }
    }

    /// Those that this host has.
    pub(crate) fn available(all: &[Way], notes: &mut Vec<String>) -> Vec<Way> {
        let lacks = |way: &Way| {
            *way == Way::FuseOverlayfs && command("fuse-overlayfs", &["--version"]).is_err()
        };
        let (missing, found): (Vec<Way>, Vec<Way>) = all.iter().partition(|way| lacks(way));
        notes.extend(missing.iter().map(|way| format!("{}: not on this host", way.name())));
        found
    }
}

/// A mounted tree. Dropped, it is unmounted, and what was written to it is gone.
pub(crate) struct Union {
    way: Way,
    /// Upper, work directory, volume and mount point.
    dir: tempfile::TempDir,
    program: PathBuf,
    environment: Vec<(String, String)>,
}

impl Union {
    /// Puts a new empty tree over `lowers`, the uppermost first.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub(crate) fn mount(way: Way, lowers: &[PathBuf]) -> Result<Union> {
        let dir = tempfile::tempdir().context("directory of a union")?;
        for name in ["at", "upper", "work"] {
            fs::create_dir(dir.path().join(name)).context("directory of a union")?;
        }
        let program = std::env::current_exe().context("own path")?;
        let mut union = Union { way, dir, program, environment: Vec::new() };
        match way {
            Way::Plain => union.copy(lowers)?,
            Way::Overlayfs | Way::Metacopy | Way::FuseOverlayfs => union.mount_peer(lowers)?,
            Way::LaneFuse | Way::Lane => union.mount_lane(lowers)?,
        }
        Ok(union)
    }

    /// Where the tree is.
    pub(crate) fn at(&self) -> PathBuf {
        self.dir.path().join("at")
    }

    /// A program that works on the tree, in it.
    pub(crate) fn program(&self, name: &str, args: &[&str]) -> Command {
        let mut program = Command::new(name);
        program.args(args).current_dir(self.at()).stdin(Stdio::null());
        program.envs(self.environment.iter().map(|(name, value)| (name, value)));
        program
    }

    /// A program of the tree that has it as its root file system.
    pub(crate) fn program_in_root(&self, name: &str, args: &[&str]) -> Command {
        let mut program = Command::new("chroot");
        program.arg(self.at()).arg(name).args(args).stdin(Stdio::null());
        if self.way == Way::Lane {
            // chroot itself finds no such library, and says so.
            program.env("LD_PRELOAD", "/.polylane/$LIB/libpolylane.so");
            program.env("POLYLANE_MOUNT", "/").stderr(Stdio::null());
        }
        program
    }

    /// Bytes that what was changed takes on the host's file system.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn changed_bytes(&self) -> Result<u64> {
        rustix::fs::sync();
        match self.way {
            Way::Plain => bytes_below(&self.at()),
            Way::Overlayfs | Way::Metacopy | Way::FuseOverlayfs => {
                bytes_below(&self.dir.path().join("upper"))
            }
            Way::LaneFuse | Way::Lane => Ok(fs::metadata(self.volume())?.blocks() * 512),
        }
    }

    fn volume(&self) -> PathBuf {
        self.dir.path().join("upper.img")
    }

    fn copy(&self, lowers: &[PathBuf]) -> Result<()> {
        let at = self.at();
        for lower in lowers.iter().rev() {
            let from = lower.join(".");
            command("cp", &["-a", path(&from)?, path(&at)?])?;
        }
        Ok(())
    }

    fn mount_peer(&self, lowers: &[PathBuf]) -> Result<()> {
        let lowers = lowers.iter().map(|lower| path(lower)).collect::<Result<Vec<_>>>()?.join(":");
        let (upper, work, at) =
            (self.dir.path().join("upper"), self.dir.path().join("work"), self.at());
        let dirs = format!("lowerdir={lowers},upperdir={},workdir={}", path(&upper)?, path(&work)?);
        let overlay = |options: &str| {
            command("mount", &["-t", "overlay", "overlay", "-o", options, path(&at)?])
        };
        match self.way {
            Way::Metacopy => overlay(&format!("{dirs},metacopy=on"))?,
            Way::FuseOverlayfs => command("fuse-overlayfs", &["-o", &dirs, path(&at)?])?,
            _ => overlay(&dirs)?,
        };
        Ok(())
    }

    fn mount_lane(&mut self, lowers: &[PathBuf]) -> Result<()> {
        let mut words: Vec<OsString> = vec!["mount".into(), "--size".into(), "20G".into()];
        for lower in lowers {
            words.extend(["--lower".into(), lower.into()]);
        }
        let mut source = OsString::from("volume:");
        source.push(self.volume());
        words.extend([source, self.at().into()]);
        let done = Command::new(&self.program).args(words).stdin(Stdio::null()).output();
        let done = done.context("run polylane")?;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(done.status.success(), "{}", said.lines().next().unwrap_or("mount failed"));
        if self.way == Way::Lane {
            let told = command(path(&self.program)?, &["env", "--json", path(&self.at())?])?;
            let told: serde_json::Value = serde_json::from_str(&told).context("polylane env")?;
            let all = told["environment"].as_object().context("no fast way into the lane")?;
            let pair = |(name, value): (&String, &serde_json::Value)| {
                Some((name.clone(), value.as_str()?.to_string()))
            };
            self.environment = all.iter().filter_map(pair).collect();
        }
        Ok(())
    }
}

impl Drop for Union {
    fn drop(&mut self) {
        let at = self.at();
        let Ok(at) = path(&at) else { return };
        let done = match self.way {
            Way::Plain => Ok(String::new()),
            Way::Overlayfs | Way::Metacopy => command("umount", &[at]),
            // It unmounts when its process is told so; what it has written need not be kept.
            Way::FuseOverlayfs => command("umount", &["-l", at]),
            Way::LaneFuse | Way::Lane => {
                path(&self.program).and_then(|program| command(program, &["umount", at]))
            }
        };
        if let Err(error) = done {
            eprintln!("polylane: bench: unions: {error:#}");
        }
    }
}

/// Bytes that the files below a directory take.
fn bytes_below(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            bytes += metadata.blocks() * 512;
            if metadata.is_dir() {
                dirs.push(entry.path());
            }
        }
    }
    Ok(bytes)
}
