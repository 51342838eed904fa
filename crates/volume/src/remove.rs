//! Removing volumes.

use std::path::Path;

use polylane_base::Errno;
use polylane_block::image::{self, ImageError};

use super::chain::{self, Child};
use super::change::raw_name;
use super::host::failure;
use super::places::resolve;
use super::sidecar::{self, Making, Sidecar, known};
use super::{bypass, info, merge};
use crate::failure::{Failure, Result};
use crate::holders::Holders;

/// Removes a volume that no process has open, and its sidecar. A snapshot on which one other
/// snapshot is, and nothing else, becomes one file with that, also while volumes above are in use.
///
/// A link to a volume may have been made for another purpose, and would lead nowhere: the volume is
/// removed by its own name alone.
///
/// A file that nothing says to be a volume is removed by `force` alone, and so is one whose sidecar
/// cannot be read: what is on it is not known then, and bases made for it alone stay.
///
/// # Errors
/// It is in use, the base of others, or cannot be removed.
pub fn remove(path: &Path, force: bool, holders: &dyn Holders) -> Result<()> {
    let file = resolve(path)?;
    if file != path {
        return Err(Failure::failed(format!(
            "{}: is a symbolic link: remove the volume by its name, {}",
            path.display(),
            file.display()
        )));
    }
    let own = match Sidecar::load(path) {
        Err(failure) if !force => {
            return Err(Failure {
                line: format!("{failure}; 'polylane volume rm --force' removes the file without"),
                ..failure
            });
        }
        loaded => loaded.unwrap_or_default(),
    };
    if let Some(above) = merge::neighbour(path, &own) {
        return merge::remove(path, &above, holders, || remove_rest(path, &own));
    }
    match image::open(path) {
        Err(ImageError::Host(_, Errno::ENOENT)) if sidecar::path_of(path).exists() => {
            return clear_up(path);
        }
        // Those who have it open have it as a base, in which nothing changes any more.
        Err(ImageError::InUse(_)) if own.removing && chain::children(path, &own).is_empty() => {
            return merge::end(path, || remove_rest(path, &own));
        }
        Err(error @ ImageError::InUse(_)) => {
            // As a base, it is in use wherever one of them is.
            refuse_base(path, &own, force)?;
            return Err(failure(path, error));
        }
        opened => {
            let _files = opened.map_err(|error| failure(path, error))?;
            if !force && !info::is_named_a_volume(path) {
                return Err(Failure::failed(format!(
                    "{}: nothing says that it is a volume: it has no sidecar, and its name does \
                     not end in .img: 'polylane volume rm --force' removes it",
                    path.display()
                )));
            }
            refuse_base(path, &own, force)?;
            remove_file(path, &own)?;
        }
    }
    remove_rest(path, &own)
}

/// Removes the file of a volume that no process has open, and nothing that belongs to it, for one
/// whose directory is removed as a whole.
///
/// # Errors
/// It is in use, or cannot be removed.
pub fn remove_unused(path: &Path) -> Result<()> {
    let _held = image::open(path).map_err(|error| failure(path, error))?;
    std::fs::remove_file(path).map_err(|error| Failure::path(path, "remove it", error))
}

/// Ends a removal, or undoes the making of a bypass volume, that was cut short.
fn clear_up(path: &Path) -> Result<()> {
    let _held = Making::hold(path)?;
    // The command that was making it until now has made it.
    if std::fs::symlink_metadata(path).is_ok() {
        return Err(Failure::failed(format!("{}: has just been made", path.display())));
    }
    let own = Sidecar::load(path).unwrap_or_default();
    if own.removing {
        merge::settle(path, &own)?;
    }
    if let Some(its) = &own.bypass {
        bypass::remove(path, its)?;
    }
    remove_rest(path, &own)
}

/// Removes what belonged to a volume that has gone.
fn remove_rest(path: &Path, own: &Sidecar) -> Result<()> {
    chain::leave(path, own)?;
    // What a change of its form left that was cut short.
    sidecar::remove_if_there(&raw_name(path))?;
    Sidecar::remove(path)?;
    image::sync_names(path).map_err(|error| failure(path, error))
}

/// Refuses to remove a volume that others are on. `force`: only one that others are on that can be
/// found.
fn refuse_base(path: &Path, own: &Sidecar, force: bool) -> Result<()> {
    let children = chain::children(path, own);
    let there = children.iter().find(|child| matches!(child, Child::There(_)));
    match there.or(children.first().filter(|_| !force)) {
        Some(Child::There(child)) => {
            Err(Failure::failed(format!("{}: is the base of {}", path.display(), child.display())))
        }
        Some(Child::Missing(child)) => Err(Failure::failed(format!(
            "{0}: is the base of {1}, which is not there now: if that is gone for good, 'polylane \
             volume rm --force {0}' removes its base",
            path.display(),
            child.display()
        ))),
        None => Ok(()),
    }
}

/// Removes what a volume's name stands for; its sidecar and its bases are needed until that is
/// certain.
fn remove_file(path: &Path, own: &Sidecar) -> Result<()> {
    known::forget_at(path);
    // Whether its chunks can be removed is seen before its name goes.
    let chunks = own.bypass.as_ref().map(|its| bypass::Removal::begin(path, its)).transpose()?;
    std::fs::remove_file(path).map_err(|error| Failure::path(path, "remove it", error))?;
    image::sync_names(path).map_err(|error| failure(path, error))?;
    chunks.map_or(Ok(()), bypass::Removal::end)
}
