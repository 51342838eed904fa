//! What an engine is told.

use polylane_front::fuse::Params;
use polylane_volume::cache::CacheSpec;
use polylane_volume::translation::Translation;
use serde::{Deserialize, Serialize};

use super::{Via, ublk};
use crate::rbd::ImageSpec;

/// What an engine is told. Descriptors come beside it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct EngineSpec {
    /// The front end.
    pub(super) via: Via,
    /// What clients may call the device.
    pub(super) name: String,
    /// Engines of this attachment before this one.
    pub(super) incarnation: u16,
    /// The attachment's.
    pub(super) id: String,
    /// What FUSE_INIT agreed on, of a mount.
    pub(super) fuse: Option<Params>,
    /// The kernel reads and writes the volume's file itself; its number at the mount.
    pub(super) backing: Option<u32>,
    /// The device that it serves, of the ublk driver.
    pub(super) ublk: Option<ublk::Device>,
    /// How the volume is cached.
    pub(super) cache: CacheSpec,
    /// How it is translated.
    pub(super) translation: Translation,
    /// Its id in its pool file, of a bypass volume.
    pub(super) bypass: Option<String>,
    /// The image of a cluster that it is.
    #[serde(default)]
    pub(super) image: Option<ImageSpec>,
    /// Its requests are charged to a lane, which is told of later.
    pub(super) shared: bool,
    /// What is known of the guest's journals: first byte and end.
    pub(super) journals: Vec<(u64, u64)>,
}
