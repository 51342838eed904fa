//! What commands on volumes ask of the processes that serve them.
//!
//! Points upward, for one reason: a volume in use is changed by the process that has it open, and
//! which processes those are, and how they are spoken to, is the business of attachments and pools.

use std::path::Path;

use crate::cow::Exchange;
use crate::failure::Result;

/// The processes of this user that serve volumes.
pub trait Holders {
    /// Makes a volume stand still, if one of them has it.
    ///
    /// # Errors
    /// It cannot be made to, or stands still for somebody else.
    fn freeze(&self, volume: &Path) -> Result<Freeze>;

    /// Has the process that serves a volume, if one does, go over to the files of its bases that
    /// there are now.
    ///
    /// # Errors
    /// It does not; the host's.
    fn rebase(&self, volume: &Path) -> Result<()>;

    /// Grows an attached volume, if this is one: its file, and the device under its user. `None`:
    /// it is not attached.
    ///
    /// # Errors
    /// It would shrink, or is on other volumes.
    fn resize(&self, volume: &Path, size: u64) -> Result<Option<()>>;
}

/// What became of a volume that was to stand still.
pub enum Freeze {
    /// It does.
    Still(Box<dyn Still>),
    /// The process that had it ended over it.
    Ended,
    /// No process of this user has it.
    Nobody,
}

/// A volume that stands still. It goes on when this is dropped.
pub trait Still: Exchange {
    /// Lets it go on. An error: it had gone on before.
    ///
    /// # Errors
    /// See above.
    fn thaw(&self, volume: &Path) -> Result<()>;

    /// Whether the process that serves it has ended, or another one serves it since.
    fn has_ended(&self) -> bool;
}
