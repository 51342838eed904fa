//! What is known of a device: costs of its requests, how much of them it takes in flight.

use polylane_block::qos::board::Device;

/// A device's profile.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Profile {
    /// For the board.
    pub(crate) device: Device,
}

impl Profile {
    /// The profile of the device whose lanes meet there.
    pub(crate) fn of(_meeting: &super::Meeting) -> Profile {
        Profile::default()
    }
}
