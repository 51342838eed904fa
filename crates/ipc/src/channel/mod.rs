//! A channel: mailboxes and request queues in one shared region, between one client process and the
//! service.
//!
//! [`client`] is the end in the tenant's process, [`service`] the other one, [`mailbox`] the
//! protocol between them, [`claim`] who of the service serves what.

pub mod claim;
pub mod client;
mod doorbells;
pub mod mailbox;
pub mod service;

use polylane_sys::Region;
use polylane_sys::copy::Method;

use crate::layout::{Geometry, Layout, QueueKind};
use crate::memory::Mapped;
use crate::queue::RequestQueue;
use crate::queue::doorbell::Doorbell;
use crate::queue::lap_ring::LapRing;
use crate::queue::rcqb::Rcqb;

/// The number of a mailbox of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct MailboxIndex(pub u32);

/// How a channel moves large payloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyPlan {
    /// Copy method for payloads of [`CopyPlan::PIPELINE_BYTES_MIN`] and more; smaller ones go by
    /// SMC.
    pub method: Method,
    /// Bytes per step of the two-stage pipeline.
    pub chunk_bytes: u32,
}

impl CopyPlan {
    /// Payloads from here on are overlapped: the sender fills while the receiver empties.
    pub const PIPELINE_BYTES_MIN: usize = 32 << 10;

    /// The method for a piece of a payload of `total` bytes.
    #[inline]
    pub fn method_for(&self, total: usize) -> Method {
        if total >= Self::PIPELINE_BYTES_MIN { self.method } else { Method::Smc }
    }
}

impl Default for CopyPlan {
    fn default() -> Self {
        CopyPlan { method: Method::Smc, chunk_bytes: 16 << 10 }
    }
}

/// Calls `with` with the request queue of a core group.
#[inline]
fn with_queue<R>(
    region: &Region,
    layout: &Layout,
    geometry: &Geometry,
    group: usize,
    with: impl FnOnce(&dyn RequestQueue) -> R,
) -> R {
    let memory = Mapped::new(region, layout.queue(group));
    match geometry.queue {
        QueueKind::Mailbox => with(&Doorbell::new(memory, geometry.mailbox_count as usize)),
        QueueKind::Rcqb => with(&Rcqb::new(memory, layout.ring_slots)),
        QueueKind::LapRing => with(&LapRing::new(memory, layout.ring_slots)),
    }
}
