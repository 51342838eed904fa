//! `polylane volume` where the volume is an image of a Ceph cluster.

use std::path::Path;

use polylane_base::shown::escape_control;
use polylane_base::size::ByteSize;
use polylane_pool::attach;
use polylane_pool::ceph::ClusterOptions;
use polylane_pool::failure::{Failure, Result};
use polylane_pool::rbd::{self, ImageInfo, ImagePlace};
use polylane_volume::{MediumKind, SetOptions};

use crate::args::{ClusterArgs, JsonArgs};
use crate::cli::{FileSystemKind, VolumeCreateArgs};
use crate::print::{content, print, print_json};

/// An image, and how its cluster is reached.
pub(crate) struct Image {
    place: ImagePlace,
    options: ClusterOptions,
}

/// The image that a volume's name means; `None`: it is a file.
///
/// # Errors
/// It is a file, and options of a cluster are given.
pub(crate) fn image(volume: &Path, cluster: &ClusterArgs) -> Result<Option<Image>> {
    match ImagePlace::named(volume)? {
        Some(place) => Ok(Some(Image { place, options: cluster.clone().options()? })),
        None => cluster.refuse(&volume.display()).map(|()| None),
    }
}

/// Refuses an image where a command needs a file of the host; `instead` says what to do.
pub(crate) fn refuse(volume: &Path, instead: &str) -> Result<()> {
    match ImagePlace::named(volume)? {
        None => Ok(()),
        Some(place) => Err(Failure::usage(format!("{place}: not of an image: {instead}"))),
    }
}

impl Image {
    pub(crate) fn create(&self, arguments: &VolumeCreateArgs) -> Result<()> {
        let kept = SetOptions { weight: arguments.weight, ..arguments.cache.clone().options()? };
        let of_files = [
            (arguments.thick, "--thick: the cluster sets no space aside for an image"),
            (
                MediumKind::named(&arguments.medium) == Some(MediumKind::Bypass),
                "--medium bypass: an image is on no disk of the host",
            ),
            (
                kept != SetOptions::default(),
                "--weight, --cache and their like: an image keeps none: give them to 'run', \
                 'mount' or 'attach'",
            ),
        ];
        if let Some((_, why)) = of_files.into_iter().find(|(given, _)| *given) {
            return Err(Failure::usage(why));
        }
        let ext4 = arguments.fs == FileSystemKind::Ext4;
        rbd::create(&self.place, arguments.size.map(|size| size.0), ext4, &self.options)
    }

    pub(crate) fn info(&self, json: &JsonArgs) -> Result<()> {
        let info = rbd::info(&self.place, &self.options)?;
        match json.json {
            true => print_json(&info),
            false => print(&describe(&info)),
        }
    }

    pub(crate) fn remove(&self) -> Result<()> {
        rbd::remove(&self.place, &self.options)
    }

    pub(crate) fn resize(&self, size: u64) -> Result<()> {
        attach::resize_image(&self.place, size, &self.options)
    }

    pub(crate) fn snapshot(&self, to: &Path) -> Result<()> {
        rbd::snapshot(&self.place, &self.other(to)?, &self.options)
    }

    pub(crate) fn clone_to(&self, to: &Path) -> Result<()> {
        rbd::clone(&self.place, &self.other(to)?, &self.options)
    }

    /// Another image or snapshot of the cluster.
    fn other(&self, to: &Path) -> Result<ImagePlace> {
        ImagePlace::named(to)?.ok_or_else(|| {
            Failure::usage(format!(
                "{}: is a file, and {} an image: name another image or snapshot",
                to.display(),
                self.place
            ))
        })
    }
}

/// The images of a pool, if `dir` names one: `rbd:[USER@]POOL`.
pub(crate) fn list(dir: &Path, cluster: &ClusterArgs) -> Result<Option<Vec<ImageInfo>>> {
    let Some((user, pool)) = rbd::pool_named(dir) else { return Ok(None) };
    rbd::list((&user, &pool), &cluster.clone().options()?).map(Some)
}

/// A line of the table of volumes.
pub(crate) fn row(info: &ImageInfo) -> String {
    let usage = if info.used_by.is_some() { "in use" } else { "-" };
    format!(
        "{:>10} {:>10} {:>10} {:>10}  {usage:<6} {}\n",
        ByteSize(info.size_bytes).to_string(),
        info.allocated_bytes.map_or("-".to_string(), |bytes| ByteSize(bytes).to_string()),
        "-",
        "-",
        escape_control(&info.path)
    )
}

fn describe(info: &ImageInfo) -> String {
    let snapshots = info.snapshots.join(", ");
    let lines = [
        ("volume", Some(info.path.clone())),
        ("size", Some(ByteSize(info.size_bytes).to_string())),
        ("allocated", info.allocated_bytes.map(|bytes| ByteSize(bytes).to_string())),
        ("file system", Some(content(info.content).to_string())),
        ("in use by", info.used_by.clone()),
        ("features", Some(info.features.join(", "))),
        ("snapshots", Some(snapshots).filter(|names| !names.is_empty())),
    ];
    let known = lines.into_iter().filter_map(|(name, value)| Some((name, value?)));
    known.map(|(name, value)| format!("{name:<12} {}\n", escape_control(&value))).collect()
}
