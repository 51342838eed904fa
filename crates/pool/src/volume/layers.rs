//! Where a volume lies on its host, file by file: its own first, then base below base.

use std::path::{Path, PathBuf};

use polylane_sys::extents::{self, HostExtent};

use super::open::resolve;
use super::sidecar::Sidecar;
use super::stack::{self, DEPTH_MAX};
use super::{bypass, info};
use crate::failure::{Failure, Result};

/// One file of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layer {
    /// The file.
    pub file: PathBuf,
    /// Below the volume's own.
    pub is_base: bool,
    /// Where it has bytes of the tenant's, the map and the trailer left out. Those of a base may be
    /// hidden by what is above it.
    pub extents: Vec<HostExtent>,
}

/// In how many pieces something lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragmentation {
    /// Pieces.
    pub extent_count: u64,
    /// Their mean length in bytes; 0 without any.
    pub mean_extent_bytes: u64,
}

impl Fragmentation {
    /// That of some layers together.
    pub fn of(layers: &[Layer]) -> Fragmentation {
        let lengths = layers.iter().flat_map(|layer| &layer.extents).map(|extent| extent.length);
        let (count, bytes) = lengths.fold((0, 0), |(count, bytes), more| (count + 1, bytes + more));
        Fragmentation { extent_count: count, mean_extent_bytes: bytes / count.max(1) }
    }
}

/// Where a volume lies on its host.
///
/// # Errors
/// `EOPNOTSUPP` where the host cannot tell.
pub fn map(path: &Path) -> Result<Vec<Layer>> {
    let mut path = resolve(path)?;
    let mut sidecar = Sidecar::load(&path)?;
    if let Some(its) = &sidecar.bypass {
        let extents = bypass::glance(&path, its, info::START_BYTES)?.extents;
        return Ok(vec![Layer { file: path, is_base: false, extents }]);
    }
    let mut layers = Vec::new();
    while layers.len() <= DEPTH_MAX {
        let file = info::open(&path)?;
        let below = stack::reference(&file, &sidecar);
        if below.is_none() {
            stack::refuse_damage(&path, &file, &sidecar)?;
        }
        // All of a raw file is the tenant's.
        let size = below.as_ref().map_or(u64::MAX, |(_, size)| *size);
        let mut extents = extents::within(&file, 0..size)
            .map_err(|errno| Failure::path(&path, "map it", errno))?;
        for extent in &mut extents {
            extent.length = extent.length.min(size.saturating_sub(extent.offset));
        }
        layers.push(Layer { file: path.clone(), is_base: !layers.is_empty(), extents });
        let Some((overlay, _)) = below else { return Ok(layers) };
        path = stack::beside(&path, &overlay.base);
        sidecar = Sidecar::load(&path)?;
    }
    Err(Failure::failed(format!("{}: too many bases", path.display())))
}
