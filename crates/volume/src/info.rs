//! What is to be known about a volume, without changing it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use polylane_block::image;
use polylane_sys::extents::{self, HostExtent};
use serde::Serialize;

use super::bypass;
use super::cache::CacheSpec;
use super::host::{failure, holder_text};
use super::places::{resolve, volumes_dir};
use super::sidecar::{self, Sidecar, beside, locate};
use super::space::{self, Space};
use super::stack::{self, DEPTH_MAX};
use super::translation::Translation;
use super::trust;
use crate::failure::{Failure, Result, say};
use crate::path_text;
use crate::sidecar::{damage, trailer};
use crate::superblock::{START_BYTES, Superblock};

/// The file system on a volume, by a glance at its superblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    /// An ext4, closed cleanly.
    Ext4Clean,
    /// An ext4 in use, or whose journal must be replayed.
    Ext4NeedsReplay,
    /// An ext4 with errors; to be checked.
    Ext4Errors,
    /// No ext4.
    None,
}

/// What is to be known about a volume. Sizes in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Info {
    /// Its file.
    #[serde(with = "path_text::one")]
    pub path: PathBuf,
    /// Its id; empty for a file that polylane did not make.
    pub id: String,
    /// As the tenant sees it.
    pub size_bytes: u64,
    /// What the host has set aside for it, its own metadata included.
    pub allocated_bytes: u64,
    /// What of its size holds data, its own or a base's.
    pub mapped_bytes: u64,
    /// What of `mapped_bytes` lies in its bases.
    pub base_bytes: u64,
    /// What of `mapped_bytes` other files have too: its bases, or by the host's file system.
    /// `None` where the host cannot tell.
    pub shared_bytes: Option<u64>,
    /// What of `allocated_bytes` was written, its map included; `None` where the host cannot tell.
    pub written_bytes: Option<u64>,
    /// Set aside and never written.
    pub reserved_bytes: Option<u64>,
    /// Pieces on the host.
    pub extent_count: Option<u64>,
    /// The file system.
    pub content: Content,
    /// Who has it open.
    pub used_by: Option<String>,
    /// Id of what it was copied from.
    pub parent: Option<String>,
    /// The file that a copy-on-write volume is on.
    #[serde(with = "path_text::maybe")]
    pub base: Option<PathBuf>,
    /// The pool file that its bytes are in, of a bypass volume.
    #[serde(with = "path_text::maybe")]
    pub pool: Option<PathBuf>,
    /// Never opened for writing.
    pub snapshot: bool,
    /// Share of a pool on it.
    pub weight: Option<u32>,
    /// How it is cached by whoever is told nothing else.
    pub cache: Option<CacheSpec>,
    /// How it is translated by whoever is told nothing else.
    pub translation: Translation,
}

/// Looks at a volume. One that is in use may change meanwhile.
///
/// # Errors
/// It is no volume or cannot be read.
pub fn info(named: &Path) -> Result<Info> {
    let path = &resolve(named)?;
    let file = open_to_look(path)?;
    let stat = file.metadata().map_err(|error| Failure::path(path, "look at it", error))?;
    let bypass = Sidecar::load(path)?.bypass;
    // A user who may not open the pool file is told what the sidecar says.
    let glance = bypass.as_ref().and_then(|its| bypass::glance(path, its, START_BYTES).ok());
    let extents = match (&bypass, &glance) {
        (None, _) => extents::of(&file).ok(),
        (Some(_), glance) => glance.as_ref().map(|glance| glance.extents.clone()),
    };
    let sum = |wanted: fn(&HostExtent) -> bool| {
        let found = extents.as_ref()?;
        Some(found.iter().filter(|extent| wanted(extent)).map(|extent| extent.length).sum())
    };
    let holder = image::user_of(&file).map_err(|error| failure(path, error))?;
    let sidecar = Sidecar::load(path)?;
    let below = trailer::reference(&file, &sidecar);
    if below.is_none() {
        damage::refuse_damage(path, &file, &sidecar)?;
    }
    let space = match &bypass {
        Some(its) => bypass_space(its.size, extents.as_deref()),
        None => space::measure(path, &file, &sidecar)?,
    };
    Ok(Info {
        path: named.to_path_buf(),
        id: sidecar.id.clone(),
        size_bytes: match &bypass {
            Some(its) => its.size,
            None => below.as_ref().map_or(stat.size(), |(_, size)| *size),
        },
        allocated_bytes: glance.as_ref().map_or(stat.blocks() * 512, |glance| glance.allocated),
        mapped_bytes: space.mapped,
        base_bytes: space.in_bases,
        shared_bytes: space.shared,
        written_bytes: sum(|extent| !extent.unwritten),
        reserved_bytes: sum(|extent| extent.unwritten),
        extent_count: extents.as_ref().map(|found| found.len() as u64),
        content: match &glance {
            Some(glance) => content_of(&glance.start),
            None => content_below(path, &file, &sidecar),
        },
        used_by: holder.map(|holder| holder_text(path, holder.as_ref())),
        parent: sidecar.parent,
        base: below.map(|(overlay, _)| locate(path, &overlay)),
        pool: bypass.map(|its| beside(path, &its.pool)),
        snapshot: sidecar.snapshot,
        weight: sidecar.weight,
        cache: sidecar.cache,
        translation: sidecar.translation,
    })
}

/// A bypass volume's chunks are its own. Where nobody may look, all of it counts.
fn bypass_space(size: u64, extents: Option<&[HostExtent]>) -> Space {
    let within = |extent: &HostExtent| size.saturating_sub(extent.offset).min(extent.length);
    let mapped = extents.map_or(size, |extents| extents.iter().map(within).sum());
    Space { mapped, in_bases: 0, shared: Some(0) }
}

/// All volumes of directories, by name; without any, of the state directory. Volumes are files that
/// end in `.img` or have a sidecar. What cannot be looked at is told on standard error; beside them
/// comes whether they are all.
///
/// # Errors
/// A directory cannot be read. The state directory need not exist.
pub fn list(dirs: &[PathBuf]) -> Result<(Vec<Info>, bool)> {
    let state = volumes_dir();
    let (dirs, may_miss) = match dirs {
        [] => (vec![state?], true),
        dirs => (dirs.to_vec(), false),
    };
    let (mut found, mut all) = (Vec::new(), true);
    for dir in dirs {
        let entries = match fs::read_dir(&dir) {
            Err(error) if may_miss && error.kind() == std::io::ErrorKind::NotFound => continue,
            entries => entries.map_err(|error| Failure::path(&dir, "list it", error))?,
        };
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.retain(|path| path.is_file() && is_named_a_volume(path));
        paths.sort();
        for path in paths {
            match info(&path) {
                Ok(info) => found.push(info),
                Err(failure) => {
                    say(failure);
                    all = false;
                }
            }
        }
    }
    Ok((found, all))
}

/// Whether a file says that it is a volume: by its name, or by a sidecar.
pub(crate) fn is_named_a_volume(path: &Path) -> bool {
    let named = path.extension().is_some_and(|extension| extension == "img");
    named || sidecar::path_of(path).exists()
}

/// Opens a volume for reading.
///
/// # Errors
/// It cannot be opened, or is no regular file.
pub fn open_to_look(path: &Path) -> Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|error| Failure::path(path, "open it", error))?;
    let stat = file.metadata().map_err(|error| Failure::path(path, "look at it", error))?;
    match stat.is_file() {
        true => Ok(file),
        false => Err(Failure::failed(format!("{}: not a regular file", path.display()))),
    }
}

/// What is on a volume: its own first block's word, or that of the nearest base that has it.
fn content_below(path: &Path, file: &fs::File, sidecar: &Sidecar) -> Content {
    let Ok(mut file) = file.try_clone() else { return Content::None };
    let (mut path, mut sidecar) = (path.to_path_buf(), sidecar.clone());
    for _ in 0..=DEPTH_MAX {
        let Some((overlay, _)) = trailer::reference(&file, &sidecar) else { return content(&file) };
        if let Some(start) = trailer::first_block(&file) {
            return judge(superblock(&file, start));
        }
        let owner = trust::owner_of(&file);
        let below = stack::open_base((&path, &sidecar, owner), &overlay);
        let Ok((base, below)) = below else { break };
        let Ok(its) = Sidecar::load(&base) else { break };
        (path, file, sidecar) = (base, below, its);
    }
    Content::None
}

/// What is on an open volume that is raw.
pub(crate) fn content(file: &fs::File) -> Content {
    judge(superblock(file, 0))
}

/// What is on a disk with this start, of [`START_BYTES`].
pub fn content_of(start: &[u8]) -> Content {
    judge(Superblock::of(start))
}

/// The superblock of a disk that begins at byte `start` of a file that can be read.
fn superblock(file: &fs::File, start: u64) -> Option<Superblock> {
    Superblock::read(file, start).ok().flatten()
}

fn judge(found: Option<Superblock>) -> Content {
    match found {
        None => Content::None,
        Some(superblock) if superblock.has_errors() => Content::Ext4Errors,
        Some(superblock) if superblock.needs_replay() => Content::Ext4NeedsReplay,
        Some(_) => Content::Ext4Clean,
    }
}

/// Whether the journal of an ext4 must be replayed, whatever else is wrong with it.
pub(crate) fn needs_replay(file: &fs::File) -> bool {
    superblock(file, 0).is_some_and(|superblock| superblock.needs_replay())
}
