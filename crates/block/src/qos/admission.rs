//! What asks whether a request may go now.

use super::{Io, Nanos, Verdict};

/// Decides when a request of a volume may go; handed to its engine.
pub trait Admission: Send + Sync {
    /// Whether it may go now; if so it is charged, and completed later.
    fn admit(&self, now: Nanos, io: &Io) -> Verdict;

    /// A request that went is done.
    fn complete(&self, now: Nanos, io: &Io);
}
