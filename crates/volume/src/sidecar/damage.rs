//! Files that are no whole copy-on-write volumes, and no disks either.

use std::os::fd::AsFd;
use std::path::Path;

use super::trailer::{Trailer, has_label, is_cut_short, is_stub};
use super::{Sidecar, copied, path_of};
use crate::failure::{Failure, Result};

/// Refuses a file that is a copy-on-write volume's without being whole: its trailer is damaged or
/// cut off, its sidecar was left behind. Taken for a raw one, it would show its tenant holes in
/// place of the base's blocks. So would a copy that was cut short.
///
/// Where the sidecar says that the volume is raw, its end is its guest's, who may write a trailer.
pub(crate) fn refuse_damage(path: &Path, file: impl AsFd, sidecar: &Sidecar) -> Result<()> {
    if is_cut_short(&file, sidecar) {
        let path = path.display();
        return Err(Failure::failed(format!(
            "{path}: its making was cut short: remove it with 'polylane volume rm {path}', and \
             make it again"
        )));
    }
    let trailer = Trailer::read(&file);
    let Some(overlay) = sidecar.overlays.first() else {
        return match sidecar.id.is_empty() {
            true => refuse_lost(path, &file, trailer),
            false => refuse_exchanged(path, &file),
        };
    };
    let base = overlay.base.display();
    if trailer.is_some_and(|trailer| trailer.was_one(sidecar)) {
        return Err(Failure::failed(format!(
            "{}: its trailer is damaged, or its sidecar: it was a copy on '{base}'",
            path.display()
        )));
    }
    match sidecar.raw {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{}: was cut, or replaced: it was a copy on '{base}', and its trailer is missing: \
             restore it; if the file is a whole disk by itself, remove {}",
            path.display(),
            path_of(path).display()
        ))),
    }
}

/// Refuses a copy-on-write volume that took the name, and so the sidecar, of a raw one. A guest
/// that writes the end of its volume knows no nonce of another.
fn refuse_exchanged(path: &Path, file: impl AsFd) -> Result<()> {
    match copied::is_known(path, file) {
        false => Ok(()),
        true => Err(Failure::failed(format!(
            "{}: is a copy-on-write volume that took the name of another volume: {} is not its \
             own: give it its own, or remove that one",
            path.display(),
            path_of(path).display()
        ))),
    }
}

/// Refuses a file that is not whole without the sidecar that it has lost.
fn refuse_lost(path: &Path, file: impl AsFd, trailer: Option<Trailer>) -> Result<()> {
    let kind = match trailer {
        Some(trailer) if trailer.is_right() => "copy-on-write",
        _ if is_stub(&file) => "bypass",
        _ if has_label(&file) => {
            return Err(Failure::failed(format!(
                "{}: was a copy-on-write volume, and its end is missing: copy it again, whole",
                path.display()
            )));
        }
        _ => return Ok(()),
    };
    Err(Failure::failed(format!(
        "{}: is a {kind} volume without its sidecar: put that beside it again, as {}; a copy is \
         made with 'polylane volume clone', not with cp",
        path.display(),
        path_of(path).display()
    )))
}
