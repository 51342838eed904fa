//! Copy-on-write on hosts whose file systems cannot share blocks.
//!
//! A writable volume that is copied is *frozen*: its file gets another name and stays as it is, and
//! under its own name comes an empty overlay on it. The names are exchanged atomically; before, the
//! sidecar of the volume knows the nonces of both files (see [`stack`](crate::stack)), so at every
//! moment it is right about whichever file has the name; and the sidecar of the base knows the
//! overlay that has its name until then. Every step is durable before the next; what a power cut
//! left of one that was not the last is cleared up by the next copy
//! (`chain::tidy`).

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use polylane_base::shown::Shown;
use polylane_block::file::Files;
use polylane_block::image::{self, Draft};
use rustix::fs::{CWD, RenameFlags, fstat, renameat_with};

use crate::chain::{adopt, announce, bases_of, erase, toward};
use crate::failure::{Failure, Result};
use crate::host::{absolute, failure, refuse_links};
use crate::make::introduce;
use crate::sidecar::trailer::make_top;
use crate::sidecar::{OverlayRef, Sidecar, known, locate};
use crate::stack::Shape;

/// Digits of a base's file name behind the name of its first volume.
const BASE_DIGITS: usize = 8;

/// Who exchanges the two names.
pub trait Exchange {
    /// Gives the volume's file the name `base`, and `top`, which has that name, the volume's;
    /// durably, before anybody writes to `top`.
    ///
    /// # Errors
    /// It is not done; or nobody knows.
    fn exchange(&self, from: &Path, base: &Path, top: &Files) -> Result<()>;
}

/// Of a volume that nobody else has open.
pub(crate) struct Closed;

impl Exchange for Closed {
    fn exchange(&self, from: &Path, base: &Path, _top: &Files) -> Result<()> {
        renameat_with(CWD, from, CWD, base, RenameFlags::EXCHANGE)
            .map_err(|error| Failure::path(from, "exchange it for its overlay", error))?;
        sync_both(from, base)
    }
}

/// Makes the names in the directories of both durable.
pub fn sync_both(one: &Path, other: &Path) -> Result<()> {
    image::sync_names(one).map_err(|error| failure(one, error))?;
    match one.parent() == other.parent() {
        true => Ok(()),
        false => image::sync_names(other).map_err(|error| failure(other, error)),
    }
}

/// Keeps the present state of a writable volume as `to`.
pub(crate) fn snapshot(from: &Path, shape: &Shape, to: &Path, by: &dyn Exchange) -> Result<()> {
    freeze(from, shape, to, false, by).map(drop)
}

/// Makes the volume `to` of another, or of a snapshot.
pub(crate) fn clone(from: &Path, shape: Shape, to: &Path, by: &dyn Exchange) -> Result<()> {
    if fs::symlink_metadata(to).is_ok() {
        return Err(failure(to, exists()));
    }
    shape.refuse_depth(from)?;
    let (parent, size) = (&shape.sidecar, shape.size);
    let (base, id) = match parent.snapshot {
        true => (absolute(from)?, parent.id.clone()),
        false => {
            let mut name = from.file_name().unwrap_or_default().to_os_string();
            name.push(format!(".base-{}", &Sidecar::fresh_id()?[..BASE_DIGITS]));
            let base = from.with_file_name(name);
            let id = freeze(from, &shape, &base, true, by)?;
            (absolute(&base)?, id)
        }
    };
    announce(&base, to)?;
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
    introduce(draft, to, &sidecar)?;
    adopt(&base, None, Some(to)).map(drop)
}

/// Refuses a block device, whose name is not ours to give to an overlay.
fn refuse_device(path: &Path) -> Result<()> {
    let is_file = fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    match is_file {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{}: a block device has no snapshots or clones here: write it to a file first, with \
             'polylane volume export'",
            path.display()
        ))),
    }
}

/// Refuses a snapshot on another file system than its volume: the two exchange their names.
fn refuse_elsewhere(from: &Path, base: &Path, draft: impl AsFd) -> Result<()> {
    let own = fs::metadata(from).map_err(|error| Failure::path(from, "look at it", error))?;
    let there = fstat(draft).map_err(|error| Failure::path(base, "look at it", error))?;
    match own.dev() == there.st_dev {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{}: on another file system than {}: snapshots lie beside their volume: use \
             'polylane volume clone'",
            Shown::new(base),
            Shown::new(from)
        ))),
    }
}

/// A new top of that size for the volume `from`, to become `base`.
fn draft_beside(from: &Path, base: &Path, size: u64, nonce: &str) -> Result<Draft> {
    let draft = Draft::new(base, 0).map_err(|error| failure(base, error))?;
    refuse_elsewhere(from, base, draft.file())?;
    make_top(draft.file(), size, nonce)
        .map_err(|error| Failure::path(base, "lay it out", error))?;
    belong_alike(from, draft.file())?;
    Ok(draft)
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
    refuse_device(from)?;
    refuse_links(from)?;
    let mut own = shape.sidecar.clone();
    let id = Sidecar::fresh_id()?;
    let reference = refer(base, from, id.clone())?;
    let draft = draft_beside(from, base, shape.size, &reference.nonce)?;
    let below = bases_of(from, &own)?;
    let mut overlays = own.overlays.clone();
    for overlay in &mut overlays {
        let lower = absolute(&locate(from, overlay))?;
        (overlay.base, overlay.was_at) = (toward(&lower, base)?, Some(lower));
    }
    let frozen = Sidecar {
        id: id.clone(),
        parent: Some(own.id.clone()),
        formatted: own.formatted.clone(),
        snapshot: true,
        weight: own.weight,
        cache: own.cache,
        translation: own.translation.clone(),
        journals: own.journals.clone(),
        overlays,
        children: vec![toward(&absolute(from)?, base)?],
        implicit,
        awaits: Some(reference.nonce.clone()),
        author: own.author,
        ..Sidecar::default()
    };
    own.overlays.push(reference.clone());
    own.raw = shape.depth == 0;
    let mut published = false;
    let exchanged = own.store(from).and_then(|()| {
        // Kept to the end: its lock is on it.
        let top = introduce(draft, base, &frozen)?;
        published = true;
        for below in &below {
            adopt(below, None, Some(base))?;
        }
        let exchanged = by.exchange(from, base, &top);
        exchanged.or_else(|failure| if names(from, &top) { Ok(()) } else { Err(failure) })
    });
    if let Err(failure) = exchanged {
        own.overlays.pop();
        own.raw = false;
        let _ = own.store(from);
        // Not what somebody else has given that name meanwhile.
        if published {
            let _ = erase(base);
        }
        return Err(failure);
    }
    (own.overlays, own.raw) = (vec![reference], false);
    own.store(from)?;
    known::note(base, &frozen);
    for below in &below {
        adopt(below, Some(from), None)?;
    }
    Ok(id)
}

/// Gives a file that takes a volume's place the volume's owner and mode.
pub(crate) fn belong_alike(volume: &Path, file: &OwnedFd) -> Result<()> {
    let stat = rustix::fs::stat(volume);
    let stat = stat.map_err(|error| Failure::path(volume, "look at it", error))?;
    let failed = |error| Failure::path(volume, "give its new file the same owner", error);
    let own = rustix::fs::fstat(file).map_err(failed)?;
    if (own.st_uid, own.st_gid) != (stat.st_uid, stat.st_gid) {
        let (uid, gid) =
            (rustix::fs::Uid::from_raw(stat.st_uid), rustix::fs::Gid::from_raw(stat.st_gid));
        let given = rustix::fs::fchown(file, Some(uid), Some(gid));
        // A caller that may write to another user's volume need not be able to give files away.
        if given.is_err() {
            return Ok(());
        }
    }
    let mode = rustix::fs::Mode::from_raw_mode(stat.st_mode & 0o777);
    rustix::fs::fchmod(file, mode).map_err(failed)
}

/// Whether the path names this file.
pub(crate) fn names(path: &Path, file: &Files) -> bool {
    let numbers = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
    let (named, held) = (rustix::fs::stat(path), rustix::fs::fstat(&file.plain));
    matches!((named, held), (Ok(named), Ok(held)) if numbers(named) == numbers(held))
}

fn refer(base: &Path, volume: &Path, base_id: String) -> Result<OverlayRef> {
    let at = absolute(base)?;
    let (nonce, base) = (Sidecar::fresh_id()?, toward(&at, volume)?);
    Ok(OverlayRef { nonce, base, base_id, was_at: Some(at) })
}

fn exists() -> polylane_block::image::ImageError {
    polylane_block::image::ImageError::Host("create it", polylane_base::Errno::EEXIST)
}
