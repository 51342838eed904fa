//! One connection of a client process: who the client is, its shared memory, what it is served by.
//!
//! # Invariants
//!
//! - Who the client is was fixed when it connected; nothing it says later changes it.

use polylane_base::record;
use polylane_base::sync::Arc;
use polylane_ipc::ServiceChannel;
use polylane_ipc::message::{Reply, Status};
use polylane_sys::notice::Notice;
use polylane_vfs::handover::{Answered, RequestId, Turn};
use polylane_vfs::{Cred, Node, OpCtx, Origin};
use zerocopy::little_endian::U64;

use super::process::Process;
use super::stats::Stats;
use crate::lane::slots::SessionSlots;
use crate::lane::{Attached, Lane};

/// In the first word of an request: no request of the kernel's has it.
const OF_CLIENT: u64 = 1 << 63;

/// See the head of this file. Thread-safe: nothing in it changes but by its own means.
pub(super) struct Connection {
    /// The session's number, unique in this service process.
    pub(super) id: u64,
    /// The client process's own secret: with it go the turns of its requests.
    pub(super) key: u64,
    /// Who the client is.
    pub(super) cred: Cred,
    /// Its process.
    pub(super) process: Arc<Process>,
    /// Its process's number as the lane's tenant sees it: F_GETLK of others tells it.
    pub(super) shown: u32,
    /// What it sees of the lane, unless it sees all of it as the tenant does.
    pub(super) attachment: Option<Arc<Attached>>,
    /// Tells of what was mounted in the lane since the session began, where its process sees it.
    pub(super) mounts: Option<Arc<Notice>>,
    /// Numbers of processes are others to it than to the tenant.
    pub(super) other_numbers: bool,
    /// Those of users and groups are, and so is what its capabilities are for: what names owners or
    /// is refused is left to the kernel.
    pub(super) other_owners: bool,
    /// The shared memory.
    pub(super) channel: ServiceChannel,
    /// The kernel descriptors it opened ahead.
    pub(super) slots: Arc<SessionSlots>,
    /// What it is a connection to.
    pub(super) lane: Arc<Lane>,
    /// Where requests are counted that a worker did not finish.
    pub(super) stats: Arc<Stats>,
}

impl Connection {
    /// What is done for the client is done with this, and the turn of its request.
    pub(super) fn ctx(&self) -> OpCtx<'_> {
        let attachment = self.attachment.as_deref().map(|attached| &attached.bounds);
        OpCtx { attachment, ..OpCtx::new(Origin::Library { session: self.id }, &self.cred) }
    }

    /// The root of what it sees.
    pub(super) fn root(&self) -> Node {
        match &self.attachment {
            Some(attached) => attached.root.clone(),
            None => self.lane.vfs.root(),
        }
    }

    /// Whether what changes the lane is left to the kernel, which refuses it.
    pub(super) fn is_read_only(&self) -> bool {
        self.attachment.as_ref().is_some_and(|attached| attached.bounds.read_only)
    }

    /// Whether its paths may lead elsewhere by now, or to what may not be written to: they are left
    /// to the kernel, whether or not the client minds what it is told.
    pub(super) fn has_other_mounts(&self) -> bool {
        self.mounts.as_ref().is_some_and(|mounts| mounts.is_changed())
    }

    /// The turn of a request that is to be done once; or what a former service was
    /// about to answer it, and what to drop when that is sent.
    pub(super) fn turn(&self, turn: u32) -> Result<Option<Turn>, (Vec<u8>, Answered)> {
        let Some(handover) = self.lane.handover.as_ref().filter(|_| turn != 0) else {
            return Ok(None);
        };
        let request = RequestId(self.key | OF_CLIENT, turn.into());
        handover.turns.recall(request).map_or_else(|| Ok(Some(handover.turns.begin(request))), Err)
    }
}

polylane_base::record! {
    /// A reply as a service leaves it to the next one.
    pub(super) struct AnswerRecord: 16 {
        0x00 count: U64,
        /// The first one.
        0x08 value: U64,
    }
}

/// A reply as it is recorded: its count, and its first value.
pub(super) fn to_answer(reply: &Reply) -> AnswerRecord {
    let count = if let Status::Done(count) = reply.status { count } else { 0 };
    AnswerRecord { count: count.into(), value: reply.value[0].into() }
}

/// What [`to_answer`] recorded.
pub(super) fn from_answer(bytes: &[u8]) -> Reply {
    let (count, value) = record::get::<AnswerRecord>(bytes, 0)
        .map_or((0, 0), |answer| (answer.count.get(), answer.value.get()));
    let mut reply = Reply::new(Status::Done(count));
    reply.value[0] = value;
    reply
}
