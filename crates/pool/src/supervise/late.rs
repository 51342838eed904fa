//! When a supervisor has waited long enough.

use std::time::{Duration, Instant};

/// How long COMMAND may take to end after a signal that asks it to.
pub(crate) const TERMINATION_TIME_MAX: Duration = Duration::from_secs(5);

/// How long the tenant's killed processes may take to end. A process is stuck only in a request
/// that the service, or another file system, does not answer.
pub(crate) const KILLED_TIME_MAX: Duration = Duration::from_secs(30);

/// When what is too late.
pub(super) type Deadline = Option<(Instant, Late)>;

/// What a deadline was for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Late {
    /// COMMAND was asked to end.
    Termination,
    /// The tenant's processes were killed.
    Killed,
    /// The init syncs the lane.
    Synced,
}

impl Late {
    /// From now on.
    pub(super) fn after(self, time: Duration) -> Deadline {
        Some((Instant::now() + time, self))
    }
}
