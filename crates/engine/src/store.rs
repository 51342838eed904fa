//! Containers whose files are on a Ceph file system: the layers of their images and what they
//! change, side by side in one directory, which any host may use.
//!
//! ```text
//! PATH/images/          a store of images, as in a state directory
//! PATH/containers/ID/   what a container changes
//! ```
//!
//! A command that changes the directory mounts it in the container's own for as long as that takes.
//! A container that runs has its layers and its branch from there: its lane is one client of the
//! cluster.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use polylane_image::{Image, Store};
use polylane_pool::ceph::CephPlace;
use polylane_pool::failure::{Failure, Result};
use polylane_pool::lasting;
use polylane_sys::removal;

use crate::lane;
use crate::place::{Lock, Place};
use crate::record::{Record, below, changes_of};

/// The file that is there once the store may have something of the container's: one that could not
/// be mounted has not.
const STORED: &str = "stored";

/// Gives the container what it needs in its store: the layers of its image, which are copied there
/// where they are not yet, and a branch. The layers as sources of a lane, the uppermost first.
///
/// # Errors
/// The cluster cannot be reached, or refuses.
pub(crate) fn add(
    (place, lock): (&Place, &Lock),
    (record, at): (&Record, &CephPlace),
    (host, image): (&Store, &Image),
) -> Result<Vec<String>> {
    within((place, lock), (record, at), |root| {
        place.write(STORED, &())?;
        let store = Store::in_state(root);
        let image = host.copy_to(image, &store).map_err(failed)?;
        store.hold(&image, &record.id).map_err(failed)?;
        let branch = root.join(changes_of(&record.id));
        let make = |dir: &Path, is_new: bool| {
            let made = fs::DirBuilder::new().recursive(!is_new).mode(0o700).create(dir);
            made.map_err(|error| Failure::path(dir, "make it", error))
        };
        make(branch.parent().unwrap_or(root), false)?;
        make(&branch, true)?;
        let source = |layer: &PathBuf| layer.strip_prefix(root).map(|path| below(at, path));
        let layers = store.lowers(&image);
        let sources = layers.iter().map(source).collect::<std::result::Result<Vec<_>, _>>();
        let sources = sources.map_err(|_| Failure::failed(format!("ceph:{at}: no such layer")))?;
        Ok(sources.iter().map(|place| format!("ceph:{place}")).collect())
    })
}

/// Whether its store may have something of the container's.
pub(crate) fn has_parts_of(place: &Place, record: &Record) -> bool {
    record.store.is_some() && place.file(STORED).exists()
}

/// Takes away what the container has in its store. Its image's layers stay.
///
/// # Errors
/// The cluster cannot be reached, or refuses: a further try goes on.
pub(crate) fn remove((place, lock): (&Place, &Lock), record: &Record) -> Result<()> {
    let Some(at) = record.store.as_ref().filter(|_| has_parts_of(place, record)) else {
        return Ok(());
    };
    within((place, lock), (record, at), |root| {
        let branch = root.join(changes_of(&record.id));
        removal::remove_tree(&branch)
            .map_err(|error| Failure::path(&branch, "remove it", error))?;
        Store::in_state(root).release(&record.id).map_err(failed)
    })
}

/// Does something with the store's directory, which is mounted meanwhile.
fn within<T>(
    (place, lock): (&Place, &Lock),
    (record, at): (&Record, &CephPlace),
    work: impl FnOnce(&Path) -> Result<T>,
) -> Result<T> {
    let root = place.store();
    place.make_dir("store")?;
    lane::mount_one(
        (record.pool.as_deref(), lock),
        [&record.cluster.options()[..], &["--no-preload".into()]].concat(),
        format!("ceph:{at}").as_ref(),
        &root,
    )?;
    let done = work(&root);
    // What is durable when it ends is what counts.
    let ended = lasting::umount_all(&root, false);
    match done {
        Ok(done) => ended.map(|()| done).map_err(|stays| stays.failure),
        Err(failure) => {
            let _ = ended.or_else(|_| lasting::umount_all(&root, true));
            Err(failure)
        }
    }
}

fn failed(error: polylane_image::Error) -> Failure {
    Failure::failed(error.to_string())
}
