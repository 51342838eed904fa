//! Which volumes are on which: bases and what is on them, kept right in the sidecars of both.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use polylane_block::image;

use crate::failure::{Failure, Result, say};
use crate::host::{absolute, failure};
use crate::sidecar::damage::refuse_damage;
use crate::sidecar::trailer::{is_cut_short, reference};
use crate::sidecar::{self, OverlayRef, Sidecar, beside, known, locate};
use crate::stack::check_base;
use crate::trust;

/// The base that a volume names; `None`: it is not there.
///
/// # Errors
/// Others than the volume's owner may have named it.
pub(crate) fn base_of(
    volume: &Path,
    sidecar: &Sidecar,
    overlay: &OverlayRef,
) -> Result<Option<PathBuf>> {
    let base = locate(volume, overlay);
    let Some((file, _)) = trust::open_beside(&base)? else { return Ok(None) };
    let owner = trust::open_beside(volume).ok().flatten().map(|(_, stat)| stat.st_uid);
    check_base((volume, sidecar, owner), &base, file)?;
    Ok(Some(base))
}

/// The bases that a volume names and that are there. See [`base_of`].
pub(crate) fn bases_of(volume: &Path, sidecar: &Sidecar) -> Result<Vec<PathBuf>> {
    let found = sidecar.overlays.iter().map(|overlay| base_of(volume, sidecar, overlay));
    Ok(found.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Clears up what a copy, or becoming one file, left that was cut short: the sidecar of a volume
/// names the base alone that its file is on.
pub(crate) fn tidy(volume: &Path, file: impl AsFd, sidecar: &mut Sidecar) -> Result<()> {
    let now = reference(file, sidecar).map(|(overlay, _)| overlay);
    let is_now = |overlay: &OverlayRef| Some(overlay) == now.as_ref();
    let (kept, left): (Vec<_>, _) = sidecar.overlays.drain(..).partition(is_now);
    sidecar.overlays = kept;
    let was_raw = std::mem::take(&mut sidecar.raw);
    if left.is_empty() && !was_raw {
        return Ok(());
    }
    for overlay in &left {
        let Some(base) = base_of(volume, sidecar, overlay)? else { continue };
        let Ok(Some((file, _))) = trust::open_beside(&base) else { continue };
        let its = Sidecar::load(&base)?;
        if its.awaits.as_ref() == Some(&overlay.nonce) && is_cut_short(&file, &its) {
            erase(&base)?;
        }
    }
    leave(volume, &Sidecar { overlays: left, ..sidecar.clone() })?;
    sidecar.store(volume)
}

/// Removes a volume's file, if there is one, and its sidecar when that is certain to be gone; both
/// durably.
pub(crate) fn erase(volume: &Path) -> Result<()> {
    erase_with(volume, || Ok(()))
}

/// The same, with something to be done as long as the sidecar tells of it.
fn erase_with(volume: &Path, before: impl FnOnce() -> Result<()>) -> Result<()> {
    let sync = || image::sync_names(volume).map_err(|error| failure(volume, error));
    known::forget_at(volume);
    sidecar::remove_if_there(volume)?;
    sync()?;
    before()?;
    Sidecar::remove(volume)?;
    sync()
}

/// A volume that is on a base, or may be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Child {
    /// It is there, and on it.
    There(PathBuf),
    /// It was there, and is not: removed or moved by hand, or its disk is not mounted.
    Missing(PathBuf),
}

impl Child {
    /// Where it is or was.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Child::There(path) | Child::Missing(path) => path,
        }
    }
}

/// Volumes that are on the one with this sidecar, or may be: those that it knows, those beside it
/// that say so, those that this user's state directory knows.
pub(crate) fn children(base: &Path, own: &Sidecar) -> Vec<Child> {
    if own.id.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut add = |child: Option<Child>| {
        let Some(child) = child else { return };
        // The records have whole paths.
        let at = |child: &Child| absolute(child.path()).unwrap_or_else(|_| child.path().into());
        if !found.iter().any(|it: &Child| at(it) == at(&child)) {
            found.push(child);
        }
    };
    for child in &own.children {
        let was = beside(base, child);
        let moved = child.file_name().map(|name| base.with_file_name(name));
        let there = [Some(was.clone()), moved].into_iter().flatten().find(|path| is_there(path));
        add(match there {
            Some(path) => is_on(&path, &own.id).then_some(Child::There(path)),
            None => Some(Child::Missing(was)),
        });
    }
    for copy in &own.making {
        let copy = beside(base, copy);
        add((is_there(&copy) && is_on(&copy, &own.id)).then_some(Child::There(copy)));
    }
    for path in beside_that_are_on(base, &own.id) {
        add(Some(Child::There(path)));
    }
    for (path, has_name) in known::on_base(&own.id) {
        match has_name {
            true => add(is_on(&path, &own.id).then_some(Child::There(path))),
            false => add(Some(Child::Missing(path))),
        }
    }
    found
}

/// As [`children`], without a volume whose own removal or making was cut short: it is there no
/// more, and yet in the base's list.
fn children_beside(volume: &Path, base: &Path, own: &Sidecar) -> Result<Vec<Child>> {
    let at = absolute(volume)?;
    let mut found = children(base, own);
    found.retain(|child| absolute(child.path()).map_or(true, |child| child != at));
    Ok(found)
}

fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// The volumes in the directory of a base whose sidecars name it.
fn beside_that_are_on(base: &Path, base_id: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(image::directory_of(base)).into_iter().flatten().flatten();
    let volumes = entries.filter_map(|entry| {
        let name = entry.file_name();
        let volume = Path::new(&name).file_stem().filter(|_| {
            Path::new(&name).extension().is_some_and(|extension| extension == "polylane")
        })?;
        Some(base.with_file_name(volume))
    });
    let names = |volume: &PathBuf| {
        Sidecar::load(volume)
            .is_ok_and(|its| its.overlays.iter().any(|overlay| overlay.base_id == base_id))
    };
    volumes.filter(|volume| is_there(volume) && names(volume) && is_on(volume, base_id)).collect()
}

/// Whether a volume is on the base with this id. One that cannot be read may be.
fn is_on(child: &Path, base_id: &str) -> bool {
    let file = match trust::open_beside(child) {
        Ok(Some((file, _))) => file,
        Ok(None) => return false,
        Err(_) => return true,
    };
    let Ok(sidecar) = Sidecar::load(child) else { return true };
    match reference(&file, &sidecar) {
        Some((overlay, _)) => overlay.base_id == base_id,
        None if is_cut_short(&file, &sidecar) => false,
        None => refuse_damage(child, &file, &sidecar).is_err(),
    }
}

/// A volume is not on the bases of this sidecar any more: those that were made for it alone go too.
/// A base on which there may be others, which cannot be looked at, stays, and that is said.
pub(crate) fn leave(volume: &Path, own: &Sidecar) -> Result<()> {
    for overlay in &own.overlays {
        let (base, its) = match base_of(volume, own, overlay)? {
            Some(base) => {
                let its = adopt(&base, Some(volume), None)?;
                (base, its)
            }
            None => match half_gone(&locate(volume, overlay), overlay)? {
                Some(its) => (locate(volume, overlay), its),
                None => continue,
            },
        };
        if !its.implicit {
            continue;
        }
        match children_beside(volume, &base, &its)?.first() {
            // What it is on is known from its sidecar alone, and that from the volume's.
            None => erase_with(&base, || leave(&base, &its))?,
            Some(Child::There(_)) => {}
            Some(Child::Missing(child)) => say(format_args!(
                "{0}: stays, since {1} was made on it and is not there: 'polylane volume rm \
                 --force {0}' removes it",
                base.display(),
                child.display()
            )),
        }
    }
    Ok(())
}

/// The sidecar of a base whose file has gone or was never there: a removal or a copy was cut short.
fn half_gone(base: &Path, overlay: &OverlayRef) -> Result<Option<Sidecar>> {
    if !sidecar::path_of(base).exists() {
        // Nor was that stored whole.
        return Sidecar::remove(base).map(|()| None);
    }
    let own = Sidecar::load(base)?;
    Ok((own.id == overlay.base_id).then_some(own))
}

/// Refuses a name whose file has gone, when its sidecar alone tells of what else belonged to it.
pub(crate) fn refuse_half_gone(volume: &Path) -> Result<()> {
    let Ok(own) = Sidecar::load(volume) else { return Ok(()) };
    let is_mine = |its: &Sidecar, overlay: &OverlayRef| its.id == overlay.base_id && its.implicit;
    let alone = |overlay: &OverlayRef| {
        let base = locate(volume, overlay);
        let none_beside =
            |its: &Sidecar| children_beside(volume, &base, its).is_ok_and(|it| it.is_empty());
        Sidecar::load(&base).is_ok_and(|its| is_mine(&its, overlay) && none_beside(&its))
    };
    match own.bypass.is_some() || own.overlays.iter().any(alone) {
        false => Ok(()),
        true => Err(Failure::failed(format!(
            "{}: a volume of this name was being made or removed, and that was cut short: \
             'polylane volume rm {}' clears up what is left of it",
            volume.display(),
            volume.display()
        ))),
    }
}

/// Takes a child of a base out, and a new one in. Those that are there and on it no more go, too: a
/// change that was cut short may have left them in the list.
pub(crate) fn adopt(base: &Path, old: Option<&Path>, new: Option<&Path>) -> Result<Sidecar> {
    let at = absolute(base)?;
    let old = old.map(absolute).transpose()?;
    let new = new.map(|new| toward(&absolute(new)?, base)).transpose()?;
    Sidecar::change(base, |sidecar| {
        if let Some(old) = old {
            sidecar.children.retain(|child| {
                let was = beside(&at, child);
                // The whole directory may have been moved since.
                let moved = !is_there(&was) && child.file_name() == old.file_name();
                was != old && !(moved && old.parent() == at.parent())
            });
        }
        let id = sidecar.id.clone();
        sidecar.children.retain(|child| {
            let child = beside(&at, child);
            !is_there(&child) || is_on(&child, &id)
        });
        if let Some(new) = new {
            sidecar.making.retain(|copy| *copy != new);
            sidecar.children.retain(|child| *child != new);
            sidecar.children.push(new);
        }
    })
}

/// Has a base know of a copy before that is there: the base is not removed from under it.
pub(crate) fn announce(base: &Path, copy: &Path) -> Result<()> {
    let copy = toward(&absolute(copy)?, base)?;
    let announced = Sidecar::change(base, |sidecar| {
        sidecar.making.retain(|other| *other != copy && is_there(&beside(base, other)));
        sidecar.making.push(copy);
    });
    announced.map(drop)
}

/// `base` as seen from the directory of `volume`: its name alone in the same directory, so that
/// the directory can be moved.
pub(crate) fn toward(base: &Path, volume: &Path) -> Result<PathBuf> {
    let same = absolute(volume)?.parent() == base.parent();
    Ok(base.file_name().filter(|_| same).map_or_else(|| base.to_path_buf(), PathBuf::from))
}
