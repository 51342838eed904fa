//! What an attachment is on: a volume's file, opened alone, or an image of a cluster.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polylane_base::sync::thread;
use polylane_volume::cache::{CacheSpec, StoreKind};
use polylane_volume::stack::Stack;
use polylane_volume::translation::Translation;
use polylane_volume::{self as volume, Links};

use super::{AttachOptions, Via, arm, record};
use crate::build::Handed;
use crate::ceph;
use crate::failure::{Failure, Result};
use crate::names::PoolName;
use crate::rbd::{self, ImagePlace, ImageSpec};
use crate::share::Policy;

/// How long the kernel may take to close the files of a mount that is gone.
const LET_GO_TIME_MAX: Duration = Duration::from_secs(10);

/// What an attachment is on, and what is known of it.
pub(super) struct Opened {
    /// The volume's file, absolute, or the image's name.
    pub(super) path: PathBuf,
    pub(super) handed: Handed,
    pub(super) cache: CacheSpec,
    pub(super) translation: Translation,
    pub(super) journals: Vec<(u64, u64)>,
    /// Its id in its pool file, of a bypass volume.
    pub(super) bypass: Option<String>,
    pub(super) image: Option<ImageSpec>,
}

impl Opened {
    /// A volume's file, opened alone.
    pub(super) fn file(options: &AttachOptions, via: Via, dir: &Path) -> Result<Opened> {
        let path = volume::expect(&options.volume, Links::ToTheirs, "open it")?.path;
        let cleared = clear_stale(dir, &path)?;
        volume::refuse_snapshot(&path)?;
        let stack = open_volume(&path, cleared)?;
        if !via.is_kernels() {
            volume::distrust(&path)?;
        }
        Ok(Opened {
            cache: options.cache.change(stack.sidecar.cache.unwrap_or_default()),
            translation: options.cache.translation.over(stack.sidecar.translation.clone()),
            journals: stack.sidecar.journals.clone(),
            bypass: stack.sidecar.bypass.as_ref().map(|bypass| bypass.id.clone()),
            handed: Handed::volume(stack)?,
            image: None,
            path,
        })
    }

    /// An image of a cluster, whose client is the engine.
    pub(super) fn image(place: &ImagePlace, options: &AttachOptions, dir: &Path) -> Result<Opened> {
        let refused = [
            (options.passthrough, "--passthrough: the kernel has no file of an image"),
            (options.cache.store == Some(StoreKind::Host), "--cache-store host: of files alone"),
            (
                options.qos != Policy::None,
                "--qos, --weight and limits: lanes share devices of the host, which an image is \
                 not on",
            ),
        ];
        if let Some((_, why)) = refused.into_iter().find(|(given, _)| *given) {
            return Err(Failure::usage(format!("{place}: {why}")));
        }
        let path = place.path();
        clear_stale(dir, &path)?;
        Ok(Opened {
            handed: Handed {
                ceph: Some(ceph::open_files(&place.user, &options.cluster)?),
                ..Handed::default()
            },
            cache: rbd::cache_of(&options.cache),
            translation: Translation::default(),
            journals: Vec::new(),
            bypass: None,
            image: Some(ImageSpec::new(place, &options.cluster, "an attachment")),
            path,
        })
    }
}

/// Opens a volume. Where an attachment was just cleared away, the kernel may take a moment to let
/// go of it.
fn open_volume(path: &Path, cleared: bool) -> Result<Stack> {
    let start = Instant::now();
    loop {
        match Stack::open(path) {
            Err(_) if cleared && start.elapsed() < LET_GO_TIME_MAX => {
                thread::sleep(Duration::from_millis(10));
            }
            opened => return opened,
        }
    }
}

/// Clears up after an attachment of this volume whose keeper was killed; whether there was one.
fn clear_stale(dir: &Path, volume: &Path) -> Result<bool> {
    let mut cleared = false;
    for record in record::all(dir).iter().filter(|record| record.volume == volume) {
        if let Ok(Some(lock)) = PoolName::take_over(dir, &record.id) {
            arm::disengage(record)?;
            arm::forget(record);
            record.remove(dir, &lock);
            cleared = true;
        }
    }
    Ok(cleared)
}
