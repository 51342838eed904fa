//! The guest's memory: regions that the frontend shared, mapped; and where its addresses lie.
//!
//! A frontend names rings by addresses of its own process, descriptors name data by addresses of
//! the guest. Both are looked up in the regions, so neither reaches anything else.

use std::fs::File;

use polylane_base::sync::Arc;
use vhost::vhost_user::message::{VhostUserMemoryRegion, VhostUserSingleMemoryRegion};
use vhost::vhost_user::{Error, Result};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap};

/// The mapped memory, as rings use it.
pub(super) type Mapped = GuestMemoryMmap<()>;

/// Regions, at most.
pub(super) const REGIONS_MAX: u64 = 32;

#[derive(Clone)]
struct Region {
    guest: u64,
    size: u64,
    frontend: u64,
    mapped: Arc<GuestRegionMmap<()>>,
}

/// All regions.
#[derive(Clone, Default)]
pub(super) struct Memory {
    regions: Vec<Region>,
}

impl Memory {
    /// Maps one more region.
    ///
    /// # Errors
    /// It reaches past its file, overlaps another, or cannot be mapped; there are too many.
    pub(super) fn add(&mut self, region: &VhostUserMemoryRegion, file: File) -> Result<()> {
        let size = usize::try_from(region.memory_size).map_err(|_| Error::InvalidParam)?;
        if self.regions.len() as u64 >= REGIONS_MAX {
            return Err(Error::InvalidParam);
        }
        let file = FileOffset::new(file, region.mmap_offset);
        let guest = GuestAddress(region.guest_phys_addr);
        let mapped = GuestRegionMmap::from_range(guest, size, Some(file));
        let mapped =
            mapped.map_err(|error| Error::ReqHandlerError(std::io::Error::other(error)))?;
        let mut regions = self.regions.clone();
        regions.push(Region {
            guest: region.guest_phys_addr,
            size: region.memory_size,
            frontend: region.user_addr,
            mapped: Arc::new(mapped),
        });
        regions.sort_by_key(|region| region.guest);
        let grown = Memory { regions };
        grown.map()?;
        *self = grown;
        Ok(())
    }

    /// Forgets a region.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn remove(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let same = |known: &Region| {
            known.guest == region.guest_phys_addr
                && known.size == region.memory_size
                && known.frontend == region.user_addr
        };
        let at = self.regions.iter().position(same).ok_or(Error::InvalidParam)?;
        self.regions.remove(at);
        Ok(())
    }

    /// The memory as one thing.
    ///
    /// # Errors
    /// There is none yet, or regions overlap.
    pub(super) fn map(&self) -> Result<Mapped> {
        let regions = self.regions.iter().map(|region| region.mapped.clone()).collect();
        Mapped::from_arc_regions(regions).map_err(|_| Error::InvalidParam)
    }

    /// The guest's address for one of the frontend's.
    ///
    /// # Errors
    /// It is in no region.
    pub(super) fn guest_address(&self, frontend: u64) -> Result<GuestAddress> {
        let found = self.regions.iter().find_map(|region| {
            let offset = frontend.checked_sub(region.frontend)?;
            (offset < region.size).then(|| GuestAddress(region.guest + offset))
        });
        found.ok_or(Error::InvalidParam)
    }
}
