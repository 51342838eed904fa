//! Copy-on-write volumes that were copied, or moved to another disk, without their sidecars: what
//! they are on is known by the nonce in their files.
//!
//! A nonce is in one file, in the sidecar of that, and in this user's record of it. Whoever has it
//! in another file has a copy of that one.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use polylane_block::image;

use super::trailer::nonce_of;
use super::{OverlayRef, Sidecar, known, locate, path_of};
use crate::host::absolute;
use crate::trust::{self, Author};

/// The sidecar of a volume that has none, whose file is a copy of another volume's: of that one's
/// sidecar what holds of both.
///
/// Not where other users may have put the file there: a copy of a file of somebody else's would
/// have its base, too.
pub(super) fn of(volume: &Path, author: Author) -> Option<Sidecar> {
    if author != Author::Caller || !trust::is_caller_s(volume) {
        return None;
    }
    let (file, _) = trust::open_beside(volume).ok()??;
    let (original, sidecar, mut overlay) = origin(volume, &nonce_of(&file)?)?;
    // Seen from the original; the copy finds it there, unless it was moved along.
    overlay.was_at = absolute(&locate(&original, &overlay)).ok().or(overlay.was_at);
    let Sidecar { id, parent, snapshot, weight, cache, translation, .. } = sidecar;
    let overlays = vec![overlay];
    Some(Sidecar {
        id,
        parent,
        snapshot,
        weight,
        cache,
        translation,
        overlays,
        ..Sidecar::default()
    })
}

/// Whether a file is a copy-on-write volume of which something is known beside it or to this user.
pub(super) fn is_known(volume: &Path, file: impl AsFd) -> bool {
    nonce_of(file).is_some_and(|nonce| origin(volume, &nonce).is_some())
}

/// A volume whose file has that nonce, or had: one in the directory of `volume`, or one that this
/// user has a record of.
fn origin(volume: &Path, nonce: &str) -> Option<(PathBuf, Sidecar, OverlayRef)> {
    let has_it =
        |sidecar: &Sidecar| sidecar.overlays.iter().find(|overlay| overlay.nonce == nonce).cloned();
    let beside = others_beside(volume).filter_map(|other| {
        let sidecar = Sidecar::load(&other).ok()?;
        let overlay = has_it(&sidecar)?;
        (sidecar.author == Author::Caller).then_some((other, sidecar, overlay))
    });
    let known = known::all().filter_map(|record| {
        let overlay = has_it(&record.sidecar)?;
        Some((record.volume, record.sidecar, overlay))
    });
    beside.chain(known).next()
}

/// Volumes with sidecars in the same directory.
fn others_beside(volume: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(image::directory_of(volume)).into_iter().flatten().flatten();
    let own = path_of(volume);
    entries.filter_map(move |entry| {
        let name = PathBuf::from(entry.file_name());
        let is_sidecar = name.extension().is_some_and(|extension| extension == "polylane");
        let other = own.with_file_name(name.file_stem()?);
        (is_sidecar && path_of(&other) != own).then_some(other)
    })
}
