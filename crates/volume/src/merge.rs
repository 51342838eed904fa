//! Removing a snapshot that another snapshot is on: the two become one (decision 0053).
//!
//! ```text
//! before  v ─► … ─► above ─► removed ─► below        after  v ─► … ─► above ─► below
//!
//! DOWN   the blocks of `above` go to the file of `removed`, which takes the name `above`
//! UP     the blocks of `removed` that `above` lacks go to the file of `above`
//! ```
//!
//! The way that has less to copy is taken; down where `removed` is raw.
//!
//! # Invariants
//!
//! - Both files have stopped changing before, so the volumes above show the same bytes meanwhile,
//!   by the files as they were and as they become: down changes blocks alone that `above` hides, up
//!   adds blocks that are the same as below. A cut at any moment leaves that as it is.
//! - `removed` can be read as a volume of its own until the first block is copied: its sidecar says
//!   `removing` before, durably, and it is refused as such from then on.
//! - The file that loses its name never changes again: a process that has it open goes on over it.
//!
//! # Locking
//!
//! Both files have the lock of [`image::open_to_merge`] to the end: one merge at a time of each,
//! and none of a snapshot that is being copied or read.

use std::fs;
use std::path::{Path, PathBuf};

use polylane_base::Errno;
use polylane_base::sync::Arc;
use polylane_block::BlockDevice;
use polylane_block::file::{FileDevice, Files, Way};
use polylane_block::image;
use polylane_block::overlay::Overlay;

use super::cache::CacheSpec;
use super::chain::{self, Child};
use super::cow;
use super::fold::{Effort, Fold, Onto};
use super::host::{absolute, failure, refuse_full, refuse_links};
use super::progress::Progress;
use super::sidecar::{OverlayRef, Sidecar, beside, locate};
use super::stack::Stack;
use super::trust::Author;
use crate::failure::{Failure, Result, say};
use crate::holders::Holders;
use crate::sidecar::known;
use crate::sidecar::trailer::{format_of, reference};

/// The snapshot on this one with which it can become one; `None`: it is no snapshot, there is none,
/// or several volumes are on it, or one that changes, or other users decide what lies beside them.
pub(crate) fn neighbour(path: &Path, own: &Sidecar) -> Option<PathBuf> {
    if !own.snapshot || own.author != Author::Caller || own.bypass.is_some() {
        return None;
    }
    let children = chain::children(path, own);
    let [Child::There(above)] = &children[..] else { return None };
    let its = Sidecar::load(above).ok()?;
    (its.snapshot && its.author == Author::Caller).then(|| above.clone())
}

/// Ends the removal of a snapshot that was cut short when all its blocks were in the one above.
/// `rest` removes what belonged to it.
///
/// # Errors
/// Somebody reads it; the host's.
pub(crate) fn end(path: &Path, rest: impl FnOnce() -> Result<()>) -> Result<()> {
    let _files = image::open_to_merge(path).map_err(|error| failure(path, error))?;
    known::forget_at(path);
    fs::remove_file(path).map_err(|error| Failure::path(path, "remove it", error))?;
    image::sync_names(path).map_err(|error| failure(path, error))?;
    rest()
}

/// The file of a removed snapshot has the name of the one above: has the sidecar of that know.
///
/// # Errors
/// Somebody reads it; the host's.
pub(crate) fn settle(path: &Path, own: &Sidecar) -> Result<()> {
    for above in own.children.iter().map(|child| beside(path, child)) {
        if fs::symlink_metadata(&above).is_err() {
            continue;
        }
        let files = image::open_to_merge(&above).map_err(|error| failure(&above, error))?;
        let mut sidecar = Sidecar::load(&above)?;
        if sidecar.snapshot {
            chain::tidy(&above, &files.plain, &mut sidecar)?;
            note_again(&above, &sidecar);
        }
    }
    Ok(())
}

/// One of the two snapshots.
struct Part {
    path: PathBuf,
    own: Files,
    below: Vec<Files>,
    sidecar: Sidecar,
}

impl Part {
    fn open(path: &Path) -> Result<Part> {
        let own = image::open_to_merge(path).map_err(|error| failure(path, error))?;
        let Stack { files, mut sidecar, .. } = Stack::whole(path, own)?;
        let mut files = files.into_iter();
        let own = files.next().ok_or_else(|| changed(path))?;
        refuse_links(path)?;
        chain::tidy(path, &own.plain, &mut sidecar)?;
        Ok(Part { path: path.to_path_buf(), own, below: files.collect(), sidecar })
    }

    fn file(&self) -> Result<Arc<FileDevice>> {
        let again = || -> std::io::Result<Files> {
            let Files { io, plain, lock } = &self.own;
            Ok(Files { io: io.try_clone()?, plain: plain.try_clone()?, lock: lock.try_clone()? })
        };
        let failed = |error| Failure::path(&self.path, "open it again", error);
        FileDevice::open(again().map_err(failed)?, Way::Ring).map_err(|error| failed(error.into()))
    }

    /// It as a device on `base`.
    fn over(&self, base: Arc<dyn BlockDevice>) -> Result<Arc<Overlay>> {
        let overlay = Overlay::open(base, self.file()?, format_of(&self.own.plain));
        overlay.map_err(|error| Failure::path(&self.path, "read its map", Errno::from(error)))
    }

    fn stat(&self) -> Result<rustix::fs::Stat> {
        rustix::fs::fstat(&self.own.plain)
            .map_err(|error| Failure::path(&self.path, "look at it", error))
    }
}

fn changed(path: &Path) -> Failure {
    Failure::failed(format!("{}: has just been changed by another command", path.display()))
}

/// Removes a snapshot that `above` alone is on. `rest` removes what belonged to it once its name
/// has gone.
///
/// # Errors
/// One of the two is being read or copied, the host is full; the host's. What was begun goes on
/// when it is done again.
pub(crate) fn remove(
    path: &Path,
    above: &Path,
    holders: &dyn Holders,
    rest: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let (removed, upper) = (Part::open(path)?, Part::open(above)?);
    // Both are locked: no command can put another snapshot on either now.
    if neighbour(path, &removed.sidecar).as_deref() != Some(above) {
        return Err(changed(path));
    }
    let plan = Plan::of(removed, upper)?;
    plan.refuse_full()?;
    Sidecar::change(path, |sidecar| sidecar.removing = true)?;
    let in_use = image::user_of(&plan.upper.own.lock);
    let in_use = in_use.map_err(|error| failure(above, error))?.is_some();
    let progress = Progress::new("merging", path, plan.effort.bytes);
    plan.fold.run(plan.effort, in_use, &progress).map_err(|error| {
        let why = Failure::path(path, "merge it with the snapshot on it", Errno::from(error));
        Failure::failed(format!("{why}: 'polylane volume rm {}' goes on", path.display()))
    })?;
    drop(progress);
    match plan.fold.onto {
        Onto::Above(_) => plan.name_up()?,
        Onto::Raw(_) | Onto::Below(_) => plan.name_down()?,
    }
    rest()?;
    if in_use {
        tell_all_above(above, holders);
    }
    Ok(())
}

/// What is going to be done.
struct Plan {
    removed: Part,
    upper: Part,
    fold: Fold,
    effort: Effort,
}

impl Plan {
    fn of(mut removed: Part, upper: Part) -> Result<Plan> {
        let place = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let found = upper.below.first().map(|files| rustix::fs::fstat(&files.plain));
        let found = found.and_then(std::result::Result::ok).map(place);
        if found != Some(place(removed.stat()?)) {
            return Err(changed(&removed.path));
        }
        let same_host = removed.stat()?.st_dev == upper.stat()?.st_dev;
        let below = std::mem::take(&mut removed.below);
        let (down, up) = match Stack::below(below, Way::Ring, CacheSpec::default())? {
            None => {
                let file = removed.file()?;
                let from = upper.over(file.clone())?;
                (Fold { from, onto: Onto::Raw(file) }, None)
            }
            Some(base) => {
                let lower = removed.over(base)?;
                let from = upper.over(lower.clone())?;
                let up = Fold { from: lower.clone(), onto: Onto::Above(from.clone()) };
                (Fold { from, onto: Onto::Below(lower) }, Some(up))
            }
        };
        let down = same_host.then(|| (down.effort(), down));
        let up = up.map(|up| (up.effort(), up));
        let ways = down.into_iter().chain(up);
        let Some((effort, fold)) = ways.min_by_key(|(effort, _)| effort.bytes) else {
            return Err(Failure::failed(format!(
                "{}: is the base of {}, which lies on another file system, and so cannot become \
                 one file with it",
                removed.path.display(),
                upper.path.display()
            )));
        };
        Ok(Plan { removed, upper, fold, effort })
    }

    fn refuse_full(&self) -> Result<()> {
        let grows = match self.fold.onto {
            Onto::Above(_) => &self.upper.path,
            Onto::Raw(_) | Onto::Below(_) => &self.removed.path,
        };
        match self.effort.room {
            0 => Ok(()),
            bytes => refuse_full(grows, bytes),
        }
    }

    /// What the removed one is on, as the one above is to name it, and where that is.
    fn base(&self) -> Result<Option<(OverlayRef, PathBuf)>> {
        let Some((overlay, _)) = reference(&self.removed.own.plain, &self.removed.sidecar) else {
            return Ok(None);
        };
        let base = absolute(&locate(&self.removed.path, &overlay))?;
        let named = chain::toward(&base, &self.upper.path)?;
        Ok(Some((OverlayRef { base: named, was_at: Some(base.clone()), ..overlay }, base)))
    }

    /// The file of the removed one takes the name of the one above.
    fn name_down(&self) -> Result<()> {
        let (removed, above) = (&self.removed.path, &self.upper.path);
        let base = self.base()?;
        if let Some((_, below)) = &base {
            chain::announce(below, above)?;
        }
        Sidecar::change(above, |sidecar| match &base {
            Some((overlay, _)) => sidecar.overlays.push(overlay.clone()),
            None => sidecar.raw = true,
        })?;
        cow::belong_alike(above, &self.removed.own.plain)?;
        known::forget(&self.upper.own.plain);
        fs::rename(removed, above)
            .map_err(|error| Failure::path(removed, "give it the name of the one on it", error))?;
        cow::sync_both(above, removed)?;
        let stored = Sidecar::change(above, |sidecar| {
            sidecar.overlays = base.iter().map(|(overlay, _)| overlay.clone()).collect();
            sidecar.raw = false;
        })?;
        if let Some((_, below)) = &base {
            chain::adopt(below, Some(removed), Some(above))?;
        }
        note_again(above, &stored);
        Ok(())
    }

    /// The one above is on what the removed one was on, and the removed one goes.
    fn name_up(&self) -> Result<()> {
        let (removed, above) = (&self.removed.path, &self.upper.path);
        let (Some((below_ref, below)), Some((own, _))) =
            (self.base()?, reference(&self.upper.own.plain, &self.upper.sidecar))
        else {
            return Err(changed(removed));
        };
        chain::announce(&below, above)?;
        let overlay = OverlayRef { nonce: own.nonce, ..below_ref };
        Sidecar::change(above, |sidecar| sidecar.overlays = vec![overlay])?;
        chain::adopt(&below, None, Some(above))?;
        known::forget(&self.removed.own.plain);
        fs::remove_file(removed).map_err(|error| Failure::path(removed, "remove it", error))?;
        image::sync_names(removed).map_err(|error| failure(removed, error))
    }
}

/// A volume has another file, or another base: the records of what is on it say so.
fn note_again(volume: &Path, sidecar: &Sidecar) {
    known::note(volume, sidecar);
    for child in chain::children(volume, sidecar) {
        if let Child::There(child) = child
            && let Ok(its) = Sidecar::load(&child)
        {
            known::note(&child, &its);
        }
    }
}

/// Has the volumes that are in use above this snapshot go over to the files that there are now.
/// One that does not goes on over the former ones, whose space comes back when it ends.
fn tell_all_above(snapshot: &Path, holders: &dyn Holders) {
    let Ok(own) = Sidecar::load(snapshot) else { return };
    for child in chain::children(snapshot, &own) {
        let Child::There(child) = child else { continue };
        match Sidecar::load(&child) {
            Ok(its) if its.snapshot => tell_all_above(&child, holders),
            _ => {
                if let Err(failure) = holders.rebase(&child) {
                    say(format_args!(
                        "{failure}: it goes on over the former files, whose space comes back when \
                         that ends"
                    ));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
