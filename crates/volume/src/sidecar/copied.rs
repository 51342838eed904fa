//! Copy-on-write volumes that were copied, or moved to another disk, without their sidecars: what
//! they are on is known by the nonce in their files.
//!
//! A nonce is in one file, in the sidecar of that, and in this user's record of it. A file that
//! has the nonce of another is a copy of that one.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use polylane_block::image;

use super::trailer::{has_label, nonce_of};
use super::{OverlayRef, Sidecar, known, locate, path_of};
use crate::host::absolute;
use crate::trust::{self, Author};

/// The sidecar of a volume that has none, whose file is a copy of another volume's: of that one's
/// sidecar what holds of both.
///
/// Not where other users may have put the file there: a copy of a file of somebody else's would
/// have its base, too. Nor of a file without a label, of the first format: the guest of a raw disk
/// with a file system may write the same at its end.
pub(super) fn of(volume: &Path, author: Author) -> Option<Sidecar> {
    if author != Author::Caller || !trust::is_caller_s(volume) {
        return None;
    }
    let (file, _) = trust::open_beside(volume).ok()??;
    if !has_label(&file) {
        return None;
    }
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use polylane_block::overlay::{Format, Layout};

    use super::*;
    use crate::sidecar::damage::refuse_damage;
    use crate::sidecar::trailer::{TRAILER_BYTES, make_top};

    const BYTES: u64 = 1 << 20;

    /// An overlay at `volume`, with its sidecar, on a base of this name.
    fn overlay(volume: &Path, base: &str, was_at: Option<PathBuf>) -> Sidecar {
        let (nonce, base_id) = (Sidecar::fresh_id().unwrap(), Sidecar::fresh_id().unwrap());
        make_top(&fs::File::create_new(volume).unwrap().into(), BYTES, &nonce).unwrap();
        let overlays = vec![OverlayRef { nonce, base: base.into(), base_id, was_at }];
        let sidecar = Sidecar { overlays, ..Sidecar::new().unwrap() };
        sidecar.store(volume).unwrap();
        sidecar
    }

    /// A guest that learned a nonce writes a trailer of the first format at the end of its disk,
    /// whose first blocks its file system has.
    #[test]
    fn a_disk_that_ends_as_a_copy_of_the_first_format_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let its = overlay(&at("other"), "base", None);
        let other = fs::File::open(at("other")).unwrap();
        let mut trailer = [0; TRAILER_BYTES];
        let end = other.metadata().unwrap().len();
        other.read_exact_at(&mut trailer, end - TRAILER_BYTES as u64).unwrap();
        trailer[0x38] = 0;
        let disk = fs::File::create_new(at("disk")).unwrap();
        let total = Layout::new(Format::V1, BYTES / 512).unwrap().total() * 512;
        disk.write_all_at(&trailer, total).unwrap();
        let disk = fs::File::open(at("disk")).unwrap();
        assert_eq!(nonce_of(&disk).as_ref(), Some(&its.overlays[0].nonce));
        let found = Sidecar::load(&at("disk")).unwrap();
        assert_eq!(found.overlays, []);
        let line = refuse_damage(&at("disk"), &disk, &found).expect_err("refused").line;
        assert!(line.contains("without its sidecar"), "{line}");
        // A copy of the file is one still.
        fs::copy(at("other"), at("copy")).unwrap();
        let copy = Sidecar::load(&at("copy")).unwrap();
        assert_eq!(copy.overlays[0].nonce, its.overlays[0].nonce);
    }

    #[test]
    fn a_base_without_sidecar_that_a_copy_of_its_own_overlay_took_the_name_of_is_looked_at_once() {
        let dir = tempfile::tempdir().unwrap();
        known::keep_in(Some(dir.path().join("known")));
        let at = |name: &str| dir.path().join(name);
        ["a", "b"].iter().for_each(|name| fs::create_dir(at(name)).unwrap());
        // One that the base may be as well, so that ids are looked at.
        fs::write(at("a/base"), "other").unwrap();
        let its = overlay(&at("a/top"), "../b/base", None);
        fs::copy(at("a/top"), at("b/base")).unwrap();
        assert_eq!(Sidecar::load(&at("b/base")).unwrap().id, its.id);
        assert_eq!(locate(&at("a/top"), &its.overlays[0]), at("a/../b/base"));
        known::keep_in(None);
    }
}
