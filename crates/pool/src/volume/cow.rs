//! Copy-on-write on hosts whose file systems cannot share blocks.
//!
//! A writable volume that is copied is *frozen*: its file gets another name and stays as it is, and
//! under its own name comes an empty overlay on it. The names are exchanged atomically; before, the
//! sidecar of the volume knows the nonces of both files (see [`super::stack`]), so at every moment
//! it is right about whichever file has the name.

use std::fs;
use std::path::{Path, PathBuf};

use polylane_block::file::Files;
use polylane_block::image::Draft;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::open::failure;
use super::sidecar::{self, OverlayRef, Sidecar};
use super::stack::{Shape, beside, make_top};
use crate::failure::{Failure, Result};

/// Who exchanges the two names.
pub(super) trait Exchange {
    /// Gives the volume's file the name `base`, and `top`, which has that name, the volume's.
    ///
    /// # Errors
    /// It is not done; or nobody knows.
    fn exchange(&self, from: &Path, base: &Path, top: &Files) -> Result<()>;
}

/// Of a volume that nobody else has open.
pub(super) struct Closed;

impl Exchange for Closed {
    fn exchange(&self, from: &Path, base: &Path, _top: &Files) -> Result<()> {
        renameat_with(CWD, from, CWD, base, RenameFlags::EXCHANGE)
            .map_err(|error| Failure::path(from, "exchange it for its overlay", error))
    }
}

/// Keeps the present state of a writable volume as `to`.
pub(super) fn snapshot(from: &Path, shape: &Shape, to: &Path, by: &dyn Exchange) -> Result<()> {
    freeze(from, shape, to, false, by).map(drop)
}

/// Makes the volume `to` of another, or of a snapshot.
pub(super) fn clone(from: &Path, shape: Shape, to: &Path, by: &dyn Exchange) -> Result<()> {
    if fs::symlink_metadata(to).is_ok() {
        return Err(failure(to, exists()));
    }
    shape.refuse_depth(from)?;
    let (parent, size) = (&shape.sidecar, shape.size);
    let (base, id) = match parent.snapshot {
        true => (absolute(from)?, parent.id.clone()),
        false => {
            let mut name = from.file_name().unwrap_or_default().to_os_string();
            name.push(format!(".base-{}", &Sidecar::fresh_id()?[..8]));
            let base = from.with_file_name(name);
            let id = freeze(from, &shape, &base, true, by)?;
            (absolute(&base)?, id)
        }
    };
    let mut base_sidecar = Sidecar::load(&base)?;
    base_sidecar.children.push(absolute(to)?);
    base_sidecar.store(&base)?;
    let reference = refer(&base, to, id)?;
    let draft = Draft::new(to, 0).map_err(|error| failure(to, error))?;
    make_top(draft.file(), size, &reference.nonce)
        .map_err(|error| Failure::path(to, "lay it out", error))?;
    let sidecar = Sidecar {
        parent: Some(parent.id.clone()),
        formatted: parent.formatted.clone(),
        weight: parent.weight,
        overlays: vec![reference],
        ..Sidecar::new()?
    };
    sidecar.store(to)?;
    draft.publish().map(drop).map_err(|error| {
        let _ = fs::remove_file(sidecar::path_of(to));
        failure(to, error)
    })
}

/// Gives the file of a volume the name `base`, as it is, and puts an overlay on it in its place.
/// The id of the base.
fn freeze(
    from: &Path,
    shape: &Shape,
    base: &Path,
    implicit: bool,
    by: &dyn Exchange,
) -> Result<String> {
    shape.refuse_depth(from)?;
    let mut own = shape.sidecar.clone();
    let id = Sidecar::fresh_id()?;
    let reference = refer(base, from, id.clone())?;
    let draft = Draft::new(base, 0).map_err(|error| failure(base, error))?;
    make_top(draft.file(), shape.size, &reference.nonce)
        .map_err(|error| Failure::path(base, "lay it out", error))?;
    let mut overlays = own.overlays.clone();
    for overlay in &mut overlays {
        overlay.base = toward(&absolute(&beside(from, &overlay.base))?, base)?;
    }
    let frozen = Sidecar {
        bypass: None,
        id: id.clone(),
        parent: Some(own.id.clone()),
        formatted: own.formatted.clone(),
        snapshot: true,
        weight: own.weight,
        cache: own.cache,
        translation: own.translation.clone(),
        journals: own.journals.clone(),
        overlays,
        children: vec![absolute(from)?],
        implicit,
    };
    frozen.store(base)?;
    let top = draft.publish().map_err(|error| failure(base, error))?;
    own.overlays.push(reference.clone());
    own.store(from)?;
    if let Err(failure) = by.exchange(from, base, &top)
        && !names(from, &top)
    {
        own.overlays.pop();
        let _ = own.store(from);
        let _ = fs::remove_file(base);
        let _ = fs::remove_file(sidecar::path_of(base));
        return Err(failure);
    }
    let below = own.overlays.iter().rev().skip(1).map(|old| beside(from, &old.base));
    for below in below.collect::<Vec<_>>() {
        adopt(&below, &absolute(from)?, Some(absolute(base)?))?;
    }
    own.overlays = vec![reference];
    own.store(from)?;
    Ok(id)
}

/// Whether the path names this file.
fn names(path: &Path, file: &Files) -> bool {
    let numbers = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    let (named, held) = (rustix::fs::stat(path), rustix::fs::fstat(&file.plain));
    matches!((named, held), (Ok(named), Ok(held)) if numbers(named) == numbers(held))
}

/// Volumes that are still on this one.
pub(super) fn children(path: &Path) -> Result<Vec<PathBuf>> {
    let own = Sidecar::load(path)?;
    let is_on = |child: &PathBuf| {
        child.exists()
            && Sidecar::load(child)
                .is_ok_and(|other| other.overlays.iter().any(|o| o.base_id == own.id))
    };
    Ok(own.children.iter().filter(|child| is_on(child)).cloned().collect())
}

/// A volume is not on its bases any more: those that were made for it alone go too.
pub(super) fn leave(volume: &Path, sidecar: &Sidecar) -> Result<()> {
    for overlay in &sidecar.overlays {
        let base = beside(volume, &overlay.base);
        if !base.exists() {
            continue;
        }
        adopt(&base, &absolute(volume)?, None)?;
        let own = Sidecar::load(&base)?;
        if own.implicit && children(&base)?.is_empty() {
            fs::remove_file(&base).map_err(|error| Failure::path(&base, "remove it", error))?;
            let _ = fs::remove_file(sidecar::path_of(&base));
            leave(&base, &own)?;
        }
    }
    Ok(())
}

/// Replaces a child of a base, or takes it out.
fn adopt(base: &Path, old: &Path, new: Option<PathBuf>) -> Result<()> {
    let mut sidecar = Sidecar::load(base)?;
    sidecar.children.retain(|child| child != old);
    sidecar.children.extend(new);
    sidecar.store(base)
}

fn refer(base: &Path, volume: &Path, base_id: String) -> Result<OverlayRef> {
    Ok(OverlayRef { nonce: Sidecar::fresh_id()?, base: toward(&absolute(base)?, volume)?, base_id })
}

/// `base` as seen from the directory of `volume`: its name alone in the same directory, so that
/// the directory can be moved.
fn toward(base: &Path, volume: &Path) -> Result<PathBuf> {
    let same = absolute(volume)?.parent() == base.parent();
    Ok(base.file_name().filter(|_| same).map_or_else(|| base.to_path_buf(), PathBuf::from))
}

/// The path without symbolic links in its directory.
pub(super) fn absolute(path: &Path) -> Result<PathBuf> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let dir = dir.canonicalize().map_err(|error| Failure::path(dir, "find it", error))?;
    Ok(dir.join(path.file_name().unwrap_or_default()))
}

fn exists() -> polylane_block::image::ImageError {
    polylane_block::image::ImageError::Host("create it", polylane_base::Errno::EEXIST)
}
