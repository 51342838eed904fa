//! The seam below the engine: raw bytes, and the space that they take.
//!
//! A medium is a device ([`BlockDevice`]) whose owner can be asked where its sectors lie and told
//! to make room for them. Reads, writes and flushes go through its channels; the functions here
//! block, and are called by translation threads only.
//!
//! | medium | bytes | space |
//! |---|---|---|
//! | a file, [`crate::file`] | io_uring or calls, O_DIRECT or page cache | FIEMAP, fallocate |
//! | RAM, [`crate::ram`] | memory | its chunks |
//! | an image in a cluster, [`crate::remote`] | librbd | the cluster's, not told |
//! | the test kit's `SimDisk` | memory, recorded, with faults | a set of blocks, limited |

use std::ops::Range;

use crate::device::{BlockDevice, Error, Sector};

/// What a run of sectors is to the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    /// It takes no space and reads as zeros.
    Hole,
    /// It has its space and reads as zeros; the first write of it still changes the map.
    Reserved,
    /// It has its space and its content: writes move nothing.
    Written,
}

/// Sectors of a medium that lie in one piece on the device under it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// Which.
    pub sectors: Range<u64>,
    /// What they are.
    pub space: Space,
    /// The first one's place on the device under the medium, if the medium tells.
    pub place: Option<Sector>,
}

/// Raw bytes under a volume. See the [module](self).
pub trait Medium: BlockDevice {
    /// The runs that cover `range`, in order, holes too. Writes that have completed are seen.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where nothing is known about space.
    fn runs(&self, range: Range<u64>) -> Result<Vec<Run>, Error>;

    /// Makes holes [`Space::Written`]: space, with zeros in it. Nobody else changes the range
    /// meanwhile. A failure may leave any part of it done.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Unsupported`], those of the medium.
    fn allocate(&self, range: Range<u64>) -> Result<(), Error>;

    /// Bytes that the host has left for this medium; `None` where it does not say.
    fn free_bytes(&self) -> Option<u64>;
}
