//! Trees over read-only ones: lanes, the kernel's overlayfs, fuse-overlayfs, and a plain copy to
//! compare with. All are mounted in the bench's own mount namespace.

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::Options;
use crate::ceph::{CephFuse, Cluster, Layers};
use crate::tools::{command, fast_way, path, polylane};

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
    /// The same in a cache that writes back (`--file-cache`).
    Cached,
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
            Way::Cached => "cached",
        }
    }

    /// Of these the ones that were asked for.
    ///
    /// # Errors
    /// One was asked for that is not among them.
    pub(crate) fn chosen(all: &[Way], options: &Options) -> Result<Vec<Way>> {
        let names: Vec<String> = all.iter().map(|way| way.name().to_string()).collect();
        Ok(options.chosen(&names)?.into_iter().map(|at| all[at]).collect())
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
    environment: Vec<(String, String)>,
    /// What shows the lowers and the upper to a peer, of a union on CephFS.
    client: Option<CephFuse>,
    /// Where the upper is seen, of such a union.
    upper: Option<PathBuf>,
}

/// What unions are put over: directories of this host, or of a Ceph file system, on which the
/// uppers are then as well.
pub(crate) enum Ground {
    /// Directories of this host.
    Host,
    /// Directories below that of these layers.
    Ceph(Layers),
}

impl Ground {
    /// The one that the options name.
    ///
    /// # Errors
    /// The cluster does not answer, or ceph-fuse is missing.
    pub(crate) fn of(options: &Options) -> Result<Ground> {
        match options.ceph_conf {
            None => Ok(Ground::Host),
            Some(_) => Ok(Ground::Ceph(Layers::new(Cluster::of(options)?)?)),
        }
    }

    /// Those ways that there are here.
    pub(crate) fn ways(&self, all: &[Way]) -> Vec<Way> {
        let has = |way: &&Way| match self {
            Ground::Host => true,
            // The kernel puts no upper on FUSE.
            Ground::Ceph(_) => matches!(way, Way::FuseOverlayfs | Way::LaneFuse | Way::Lane),
        };
        all.iter().filter(has).copied().collect()
    }

    /// A new directory for the files of a lower.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn lower(&self) -> Result<tempfile::TempDir> {
        let made = match self {
            Ground::Host => tempfile::tempdir(),
            Ground::Ceph(layers) => tempfile::tempdir_in(layers.at()),
        };
        made.context("directory of a lower")
    }

    /// Puts a new empty tree over lowers, the uppermost first, which [`lower`](Self::lower) made.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub(crate) fn mount(&self, way: Way, lowers: &[PathBuf]) -> Result<Union> {
        match self {
            Ground::Host => Union::mount(way, lowers),
            Ground::Ceph(layers) => Union::mount_ceph(way, lowers, layers),
        }
    }

    /// Has what was written to lowers be on their file system.
    pub(crate) fn settle(&self) {
        rustix::fs::sync();
    }
}

impl Union {
    /// Puts a new empty tree over `lowers`, the uppermost first.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub(crate) fn mount(way: Way, lowers: &[PathBuf]) -> Result<Union> {
        Union::mount_in(way, lowers, None)
    }

    /// The same; a lane is one of that pool's, by the service that has `lowers` already.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub(crate) fn mount_in(way: Way, lowers: &[PathBuf], pool: Option<&str>) -> Result<Union> {
        let dir = tempfile::tempdir().context("directory of a union")?;
        for name in ["at", "upper", "work"] {
            fs::create_dir(dir.path().join(name)).context("directory of a union")?;
        }
        let mut union = Union::new(way, dir);
        match way {
            Way::Plain => union.copy(lowers)?,
            Way::Overlayfs | Way::Metacopy | Way::FuseOverlayfs => {
                let dirs = (union.dir.path().join("upper"), union.dir.path().join("work"));
                union.mount_peer(lowers, dirs)?;
            }
            Way::LaneFuse | Way::Lane | Way::Cached => {
                let mut words: Vec<OsString> = vec!["mount".into(), "--size".into(), "20G".into()];
                if let Some(pool) = pool {
                    words.extend(["--pool".into(), pool.into(), "--share".into()]);
                }
                if way == Way::Cached {
                    words.extend(["--file-cache".into(), "writeback".into()]);
                }
                for lower in lowers {
                    words.extend(["--lower".into(), lower.into()]);
                }
                let mut source = OsString::from("volume:");
                source.push(union.volume());
                words.extend([source, union.at().into()]);
                union.mount_lane(words)?;
            }
        }
        Ok(union)
    }

    fn new(way: Way, dir: tempfile::TempDir) -> Union {
        Union { way, dir, environment: Vec::new(), client: None, upper: None }
    }

    /// The same on a Ceph file system, by a client of this tree's own.
    fn mount_ceph(way: Way, lowers: &[PathBuf], layers: &Layers) -> Result<Union> {
        let dir = tempfile::tempdir().context("directory of a union")?;
        for name in ["at", "ceph"] {
            fs::create_dir(dir.path().join(name)).context("directory of a union")?;
        }
        // Others could show themselves files of the lowers by it.
        let mut own = tempfile::Builder::new();
        own.permissions(Permissions::from_mode(0o700));
        let own = own.tempdir_in(layers.at()).context("directory of an upper")?.keep();
        for name in ["upper", "work"] {
            let mut made = fs::DirBuilder::new();
            made.mode(0o700).create(own.join(name)).context("directory of an upper")?;
        }
        let below = |path: &Path| -> Result<PathBuf> {
            Ok(path.strip_prefix(layers.at()).context("a layer is elsewhere")?.to_path_buf())
        };
        let mut union = Union::new(way, dir);
        union.upper = Some(own.clone());
        let lowers = lowers.iter().map(|lower| below(lower)).collect::<Result<Vec<_>>>()?;
        let upper = below(&own.join("upper"))?;
        if way == Way::FuseOverlayfs {
            let client = union.dir.path().join("ceph");
            union.client = Some(layers.show(client.clone())?);
            let lowers: Vec<_> = lowers.iter().map(|lower| client.join(lower)).collect();
            let dirs = (client.join(&upper), client.join(below(&own.join("work"))?));
            union.mount_peer(&lowers, dirs)?;
        } else {
            let mut words: Vec<OsString> = vec!["mount".into(), "--ceph-conf".into()];
            words.push(layers.conf().into());
            for lower in &lowers {
                words.extend(["--lower".into(), layers.source(path(lower)?).into()]);
            }
            words.extend([layers.source(path(&upper)?).into(), union.at().into()]);
            union.mount_lane(words)?;
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
        if matches!(self.way, Way::Lane | Way::Cached) {
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
        if let Some(upper) = &self.upper {
            return bytes_below(upper);
        }
        match self.way {
            Way::Plain => bytes_below(&self.at()),
            Way::Overlayfs | Way::Metacopy | Way::FuseOverlayfs => {
                bytes_below(&self.dir.path().join("upper"))
            }
            Way::LaneFuse | Way::Lane | Way::Cached => {
                Ok(fs::metadata(self.volume())?.blocks() * 512)
            }
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

    fn mount_peer(&self, lowers: &[PathBuf], (upper, work): (PathBuf, PathBuf)) -> Result<()> {
        let lowers = lowers.iter().map(|lower| path(lower)).collect::<Result<Vec<_>>>()?.join(":");
        let at = self.at();
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

    /// `words`: what `polylane` is told.
    fn mount_lane(&mut self, words: Vec<OsString>) -> Result<()> {
        polylane(&words)?;
        if matches!(self.way, Way::Lane | Way::Cached) {
            (self.environment, _) = fast_way(&self.at())?;
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
            Way::LaneFuse | Way::Lane | Way::Cached => polylane(&["umount", at]),
        };
        if let Err(error) = done {
            eprintln!("polylane: bench: unions: {error:#}");
        }
        drop(self.client.take());
        if let Some(upper) = &self.upper
            && let Err(error) = fs::remove_dir_all(upper)
        {
            eprintln!("polylane: bench: unions: remove {}: {error}", upper.display());
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
