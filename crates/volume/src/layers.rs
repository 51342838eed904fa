//! Where a volume lies on its host, file by file: its own first, then base below base.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use polylane_sys::extents::{self, HostExtent};

use super::host::SECTOR_BYTES;
use super::places::resolve;
use super::sidecar::{Sidecar, damage, trailer};
use super::stack::{self, DEPTH_MAX};
use super::{bypass, info, trust};
use crate::failure::{Failure, Result};
use crate::superblock::START_BYTES;

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

/// Where the file of a copy-on-write volume has bytes of the tenant's.
fn own_extents(file: &File, size: u64) -> polylane_base::Result<Vec<HostExtent>> {
    let Some(layout) = trailer::layout_of(file) else { return cut(file, 0..size, 0) };
    let [head, at] = [layout.head, layout.head_start()].map(|sectors| sectors * SECTOR_BYTES);
    let mut extents = cut(file, at..at + head.min(size), 0)?;
    extents.append(&mut cut(file, head..size, head)?);
    Ok(extents)
}

/// The extents of a part of a file, which is the tenant's from byte `first` on.
fn cut(file: &File, part: Range<u64>, first: u64) -> polylane_base::Result<Vec<HostExtent>> {
    let mut extents = extents::within(file, part.clone())?;
    for extent in &mut extents {
        let skipped = part.start.saturating_sub(extent.offset);
        let end = extent.offset.saturating_add(extent.length).min(part.end);
        extent.offset += skipped;
        extent.physical += skipped;
        extent.length = end.saturating_sub(extent.offset);
        extent.offset = extent.offset - part.start + first;
    }
    Ok(extents)
}

/// Where a volume lies on its host.
///
/// # Errors
/// `EOPNOTSUPP` where the host cannot tell.
pub fn map(path: &Path) -> Result<Vec<Layer>> {
    let mut path = resolve(path)?;
    let mut sidecar = Sidecar::load(&path)?;
    if let Some(its) = &sidecar.bypass {
        let extents = bypass::glance(&path, its, START_BYTES)?.extents;
        return Ok(vec![Layer { file: path, is_base: false, extents }]);
    }
    let mut layers = Vec::new();
    let mut file = info::open_to_look(&path)?;
    while layers.len() <= DEPTH_MAX {
        let below = trailer::reference(&file, &sidecar);
        if below.is_none() {
            damage::refuse_damage(&path, &file, &sidecar)?;
        }
        let extents = match &below {
            // All of a raw file is the tenant's.
            None => cut(&file, 0..u64::MAX, 0),
            Some((_, size)) => own_extents(&file, *size),
        };
        let extents = extents.map_err(|errno| Failure::path(&path, "map it", errno))?;
        layers.push(Layer { file: path.clone(), is_base: !layers.is_empty(), extents });
        let Some((overlay, _)) = below else { return Ok(layers) };
        let owner = trust::owner_of(&file);
        (path, file) = stack::open_base((&path, &sidecar, owner), &overlay)?;
        sidecar = Sidecar::load(&path)?;
    }
    Err(Failure::failed(format!("{}: too many bases", path.display())))
}
