//! Media of which the host knows nothing.

use crate::device::Error;
use crate::file::Totals;
use crate::medium::Medium;

/// A medium that is none of the host's: an image in a cluster.
pub trait Remote: Medium {
    /// What was done.
    fn totals(&self) -> Totals;

    /// Whether a failure stopped it.
    fn is_stopped(&self) -> bool;

    /// Takes a new size over.
    ///
    /// # Errors
    /// Those of the cluster.
    fn grow(&self) -> Result<(), Error>;
}
