//! Growing an image of a cluster, with the ext4 on it.
//!
//! The programs of e2fsprogs need a device: the image is attached for as long as they run.

use std::fs::File;
use std::path::Path;

use polylane_volume as volume;
use polylane_volume::SetOptions;

use super::{AttachOptions, hold, record, resize};
use crate::ceph::ClusterOptions;
use crate::failure::{Failure, Result};
use crate::rbd::{self, ImagePlace};
use crate::share::{Policy, Wanted};

/// Grows an image that nobody uses, and the ext4 on it; or an attached one, whose file system its
/// user grows.
///
/// # Errors
/// It would shrink, is in use by a lane or from another host, its file system has errors, or this
/// host makes no block device of it; the cluster's.
pub fn resize_image(place: &ImagePlace, size: u64, options: &ClusterOptions) -> Result<()> {
    let (size, path) = (volume::size_of_new(Some(size))?, place.path());
    let is_attached = record::all(&record::dir()?).iter().any(|record| record.is(&path));
    let has_ext4 = rbd::grow(place, (size, is_attached), options)?;
    if is_attached {
        return resize(&path, size).map(drop);
    }
    match has_ext4 {
        true => grow_file_system(&path, options),
        false => Ok(()),
    }
}

fn grow_file_system(path: &Path, options: &ClusterOptions) -> Result<()> {
    let held = hold(&AttachOptions {
        volume: path.to_path_buf(),
        cluster: options.clone(),
        via: None,
        socket: None,
        passthrough: false,
        cache: SetOptions::default(),
        record: None,
        wanted: Wanted::default(),
        qos: Policy::None,
    })?;
    let device = File::options().read(true).write(true).open(held.device());
    let device = device.map_err(|error| Failure::path(held.device(), "open it", error))?;
    let grown = volume::grow_ext4(path, &device);
    drop(device);
    grown.and(held.end())
}
