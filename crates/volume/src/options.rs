//! What commands ask of a volume, and what it is known to be.

use std::fmt;
use std::path::PathBuf;

use polylane_block::cache::{Mode, StoreKind};

use crate::cache::CacheSpec;
use crate::sidecar::Sidecar;
use crate::translation::Translation;

/// How a volume is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MediumKind {
    /// A file of its own, through the host's file system.
    #[default]
    File,
    /// Chunks of a pool file, past the host's file system.
    Bypass,
}

impl MediumKind {
    /// Both.
    pub const ALL: [MediumKind; 2] = [MediumKind::File, MediumKind::Bypass];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            MediumKind::File => "file",
            MediumKind::Bypass => "bypass",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<MediumKind> {
        MediumKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for MediumKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What `volume create` was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CreateOptions {
    /// The volume's file.
    pub path: PathBuf,
    /// Its size in bytes; 10 GiB when absent.
    pub size: Option<u64>,
    /// Put an ext4 on it.
    pub ext4: bool,
    /// Reserve all of its space on the host.
    pub thick: bool,
    /// How it is reached.
    pub medium: MediumKind,
    /// Share of pools on it, 1 to 10000.
    pub weight: Option<u32>,
    /// How it is cached.
    pub cache: SetOptions,
}

/// What `volume set` was asked for: what is absent stays as it is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SetOptions {
    /// Share of pools on it, 1 to 10000.
    pub weight: Option<u32>,
    /// How it is cached.
    pub mode: Option<Mode>,
    /// Where cached blocks lie.
    pub store: Option<StoreKind>,
    /// Memory in bytes of a cache of its own.
    pub cache_bytes: Option<u64>,
    /// How it is translated.
    pub translation: Translation,
}

impl SetOptions {
    /// Changes a cache's specification.
    pub fn change(&self, cache: CacheSpec) -> CacheSpec {
        CacheSpec {
            mode: self.mode.unwrap_or(cache.mode),
            store: self.store.unwrap_or(cache.store),
            bytes: self.cache_bytes.or(cache.bytes),
        }
    }

    /// Changes what a sidecar says.
    pub(crate) fn apply(&self, sidecar: &mut Sidecar) {
        sidecar.weight = self.weight.or(sidecar.weight);
        let cache = self.change(sidecar.cache.unwrap_or_default());
        sidecar.cache = (cache != CacheSpec::default()).then_some(cache);
        sidecar.translation = self.translation.over(sidecar.translation.clone());
    }
}

/// What is known of a lane's source: by its volume's sidecar, of its use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kept {
    /// Share of a pool on it.
    pub weight: Option<u32>,
    /// How it is cached.
    pub cache: CacheSpec,
    /// How it is translated.
    pub translation: Translation,
    /// Its id in its pool file, of a bypass volume.
    pub bypass: Option<String>,
    /// It was made just now, and is empty: all that will be in it is made by COMMAND.
    pub is_new: bool,
}

/// What a volume is to be: a new one is made so, an existing one must be so already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// Bytes.
    pub size: Option<u64>,
    /// How it is reached.
    pub medium: Option<MediumKind>,
}
