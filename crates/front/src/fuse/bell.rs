//! How the threads beside a session's readers are asked for, each once there is work for it.

use std::io;
use std::os::fd::OwnedFd;

use polylane_base::sync::Arc;
use polylane_base::sync::atomic::{AtomicU8, Ordering};
use polylane_sys::event::{self, eventfd};

use super::reply::Device;
use crate::lane::notifier::{Kernel, Level, Work};

/// A thread beside the readers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Helper {
    /// Has the kernel drop pages of slots.
    Slots,
    /// Has it drop pages of files' own nodes.
    Own,
    Names,
    States,
    Deferred,
    Fills,
}

impl Helper {
    pub(super) const ALL: [Helper; 6] = [
        Helper::Slots,
        Helper::Own,
        Helper::Names,
        Helper::States,
        Helper::Deferred,
        Helper::Fills,
    ];

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// Rings for each of them once and for good.
pub(super) struct Bell {
    wanted: AtomicU8,
    event: OwnedFd,
}

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        let event = eventfd().map_err(|error| io::Error::from_raw_os_error(error.0))?;
        Ok(Bell { wanted: AtomicU8::new(0), event })
    }

    pub(super) fn ring(&self, helper: Helper) {
        if !self.wants(helper)
            && self.wanted.fetch_or(helper.bit(), Ordering::AcqRel) & helper.bit() == 0
        {
            event::notify(&self.event);
        }
    }

    pub(super) fn wants(&self, helper: Helper) -> bool {
        self.wanted.load(Ordering::Acquire) & helper.bit() != 0
    }

    /// Readable once it rings.
    pub(super) fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// It was heard.
    pub(super) fn heard(&self) {
        event::drain(&self.event);
    }
}

/// The kernel, to the notifier.
pub(super) struct Told {
    device: Device,
    bell: Arc<Bell>,
}

impl Told {
    pub(super) fn new(device: Device, bell: Arc<Bell>) -> Told {
        Told { device, bell }
    }
}

impl Kernel for Told {
    fn grow(&self, node_id: u64, size: u64) {
        self.device.grow(node_id, size);
    }

    fn comes(&self, work: Work) {
        self.bell.ring(match work {
            Work::Pages(Level::Slots) => Helper::Slots,
            Work::Pages(Level::Own) => Helper::Own,
            Work::Names => Helper::Names,
            Work::States => Helper::States,
        });
    }
}
