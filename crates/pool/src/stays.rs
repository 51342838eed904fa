//! Why a lane stays mounted that was to be unmounted.

use polylane_base::Errno;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// The kind of it: what a program may decide by. The line is for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Cause {
    /// Something is open on it, or mounted in it; what was written is durable.
    InUse,
    /// Another mount is a path of the same lane.
    Shared,
    /// It has been starting for too long: there is nothing of it to be written.
    Starting,
    /// Another command unmounts it now.
    Changing,
    /// It is not mounted there any more.
    Gone,
    /// Its supervisor is dead; the next look clears the lane.
    Dead,
    /// Its supervisor does not answer.
    Silent,
    /// Not everything could be written back, or nothing is known of it.
    #[serde(other)]
    Failed,
}

impl Cause {
    /// By an error of the kernel's, once everything was written back.
    pub(crate) fn of(why: Errno) -> Cause {
        match why {
            Errno::EBUSY => Cause::InUse,
            Errno::ENOENT => Cause::Gone,
            _ => Cause::Failed,
        }
    }

    /// It is what others do there now: another try may succeed. After any other failure it may
    /// succeed as well, and hide it: the kernel tells once what could not be written back.
    pub(crate) fn is_by_others(self) -> bool {
        match self {
            Cause::InUse | Cause::Changing | Cause::Gone | Cause::Dead | Cause::Silent => true,
            Cause::Shared | Cause::Starting | Cause::Failed => false,
        }
    }

    /// Whether there is nothing of the lane that could not be written back, so that a lazy unmount
    /// loses nothing. One of a lane that is shared would take the other paths away.
    pub(crate) fn loses_nothing(self) -> bool {
        matches!(self, Cause::InUse | Cause::Starting)
    }
}

/// That it stays, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stays {
    /// The line for people.
    pub failure: Failure,
    /// What a program may decide by.
    pub cause: Cause,
}

impl Stays {
    pub(crate) fn new(cause: Cause, failure: Failure) -> Stays {
        Stays { failure, cause }
    }
}

impl From<Failure> for Stays {
    fn from(failure: Failure) -> Stays {
        Stays::new(Cause::Failed, failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A supervisor may be of a later version than the command.
    #[test]
    fn a_cause_of_a_later_version_is_a_failure() {
        let of = |text: &str| serde_json::from_str::<Cause>(text).expect("a cause");
        assert_eq!(of("\"Later\""), Cause::Failed);
        assert_eq!(of("\"InUse\""), Cause::InUse);
    }
}
