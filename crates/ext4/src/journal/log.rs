//! The log area: where it begins and ends, what waits in it for its way home.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Instant;

use polylane_base::Time;
use polylane_base::sync::Arc;
use polylane_sys::buffer::Buffer;
use rustc_hash::{FxHashMap, FxHashSet};

use super::homes::Homes;
use super::{Freed, Tid};
use crate::cache::MetaBlock;
use crate::format::DeviceBlock;
use crate::format::journal::{Codec, JournalSuperblock};

/// A transaction that takes no more changes, with copies of its blocks as they were at the close.
pub(super) struct Closed {
    pub(super) tid: Tid,
    pub(super) blocks: Vec<Arc<MetaBlock>>,
    /// The content of each.
    pub(super) copies: Vec<Buffer>,
    pub(super) freed: Vec<Freed>,
    pub(super) revoked: Vec<DeviceBlock>,
    /// When it was closed.
    pub(super) began: Instant,
}

impl Closed {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.revoked.is_empty()
    }
}

/// A transaction that goes to the log, and is not told durable yet.
pub(super) struct Flying {
    pub(super) closed: Closed,
    /// Where its body begins.
    pub(super) start: u32,
    /// Nothing may be written behind it before it is durable.
    pub(super) alone: bool,
    /// The name of its form.
    pub(super) why: &'static str,
}

/// A committed version that its home does not have yet.
pub(super) struct Pending {
    pub(super) data: Buffer,
    pub(super) block: Arc<MetaBlock>,
}

/// The log area, owned by whoever commits or checkpoints.
pub(super) struct Log {
    pub(super) superblock: JournalSuperblock,
    pub(super) codec: Codec,
    pub(super) head: u32,
    pub(super) tail: u32,
    /// The last committed transaction, if the log holds any.
    pub(super) last: Option<Tid>,
    pub(super) pending: FxHashMap<DeviceBlock, Pending>,
    /// Homes that a checkpoint writes to without the log's lock.
    pub(super) homing: BTreeSet<DeviceBlock>,
    /// Those of them whose versions nobody wants any more.
    pub(super) revoked_since: FxHashSet<DeviceBlock>,
    /// Blocks that a committed transaction freed, some of them homes of such a checkpoint.
    pub(super) held: Vec<Freed>,
    /// Transactions on their way, the next to be committed first. The thread that leads a commit
    /// puts its transaction here and, without the log's lock, flushes and writes the commit block.
    pub(super) flying: VecDeque<Flying>,
    /// Closed transactions that the medium had no room for: the next ones to be committed.
    pub(super) stalled: VecDeque<Closed>,
    /// Log blocks in use from which on the log is emptied without need. Rises when the medium has
    /// no room for that, so that not every commit tries again.
    pub(super) checkpoint_at: u32,
    /// Blocks before this one take room on the medium; see `backing.rs`.
    pub(super) backed: u32,
    /// Blocks before this one were written, or looked at by who writes zeros; those from here to
    /// `backed` may only be reserved. Not before the head, and not behind `backed`.
    pub(super) zeroed: u32,
    /// Homes that take room.
    pub(super) homes: Homes,
    /// The log's end has been written since it was opened: all of it has room on the medium.
    pub(super) lapped: bool,
    /// Buffers of a block to copy into.
    pub(super) spare: Vec<Buffer>,
    /// The latest time that a commit block bears: recovery takes an earlier one for a relic.
    newest: (u64, u32),
}

/// Spare buffers that are kept: what a busy lane copies between two checkpoints.
const SPARE_MAX: usize = 512;

impl Log {
    /// A log without transactions.
    pub(super) fn empty(superblock: JournalSuperblock) -> Log {
        let first = superblock.first();
        Log {
            codec: superblock.codec(),
            superblock,
            head: first,
            tail: first,
            last: None,
            pending: FxHashMap::default(),
            homing: BTreeSet::new(),
            revoked_since: FxHashSet::default(),
            held: Vec::new(),
            flying: VecDeque::new(),
            stalled: VecDeque::new(),
            checkpoint_at: 0,
            backed: first,
            zeroed: first,
            homes: Homes::default(),
            lapped: false,
            spare: Vec::new(),
            newest: (0, 0),
        }
    }

    pub(super) fn size(&self) -> u32 {
        self.superblock.end() - self.superblock.first()
    }

    /// Keeps a transaction for which there was no room, for another try. `again`: it had none
    /// before, and goes to the front.
    pub(super) fn stall(&mut self, closed: Closed, again: bool) {
        if again {
            self.stalled.push_front(closed);
        } else {
            self.stalled.push_back(closed);
        }
    }

    pub(super) fn used(&self) -> u32 {
        (self.head + self.size() - self.tail) % self.size()
    }

    /// The last transaction on its way.
    pub(super) fn last_flying(&self) -> Option<Tid> {
        self.flying.back().map(|flying| flying.closed.tid)
    }

    /// Calls transaction `tid` and those after it back: their places in the log are free again, and
    /// they are the next ones to be written. False when somebody did that already.
    pub(super) fn ground(&mut self, tid: Tid) -> bool {
        let found = self.flying.iter().position(|flying| flying.closed.tid == tid);
        let Some(at) = found else { return false };
        self.head = self.flying[at].start;
        for flying in self.flying.drain(at..).rev() {
            self.stalled.push_front(flying.closed);
        }
        true
    }

    /// Moves the head on.
    pub(super) fn advance(&mut self, count: u32) {
        let (first, size) = (self.superblock.first(), self.size());
        self.lapped |= self.head - first + count >= size;
        self.head = first + (self.head - first + count) % size;
    }

    /// The time for the next commit block: `now`, or that of the one before where the clock was set
    /// back.
    pub(super) fn commit_time(&mut self, now: Time) -> (u64, u32) {
        self.newest = self.newest.max((now.sec.max(0) as u64, now.nsec));
        self.newest
    }

    /// Gives the transaction that goes to the log alone its copies back.
    pub(super) fn give_back(&mut self, copies: Vec<Buffer>) {
        if let Some(flying) = self.flying.back_mut().filter(|flying| flying.alone) {
            flying.closed.copies = copies;
        }
    }

    /// The block before `index`.
    pub(super) fn before(&self, index: u32) -> u32 {
        let (first, size) = (self.superblock.first(), self.size());
        first + (index - first + size - 1) % size
    }

    /// The transaction is durable: its versions wait for their homes, and what it revoked waits no
    /// longer.
    pub(super) fn retire(&mut self, closed: Closed) {
        self.drop_revoked(&closed.revoked);
        self.last = Some(closed.tid);
        for (block, data) in closed.blocks.into_iter().zip(closed.copies) {
            block.closed_in.fetch_sub(1, Ordering::AcqRel);
            let older = self.pending.insert(block.home, Pending { data, block });
            self.keep(older.map(|older| older.data));
        }
    }

    /// What a durable transaction revoked waits no longer for its way home.
    fn drop_revoked(&mut self, revoked: &[DeviceBlock]) {
        for home in revoked {
            if let Some(pending) = self.pending.remove(home) {
                pending.block.home_is_old.store(false, Ordering::Release);
            }
            if self.homing.contains(home) {
                self.revoked_since.insert(*home);
            }
        }
    }

    /// What transaction `tid`, which is durable, freed and nothing is written to any more: not what
    /// a checkpoint under way writes to, and no later one writes what `tid` revoked.
    pub(super) fn settled_part(&mut self, tid: Tid, freed: &[Freed]) -> Vec<Freed> {
        if let Some(at) = self.flying.iter().position(|flying| flying.closed.tid == tid) {
            let revoked = std::mem::take(&mut self.flying[at].closed.revoked);
            self.drop_revoked(&revoked);
            self.flying[at].closed.revoked = revoked;
        }
        let mut parts = Vec::new();
        for run in freed {
            let (mut at, end) = (run.start.0, run.start.0 + u64::from(run.count));
            let homing = self.homing.range(run.start..DeviceBlock(end)).map(|home| home.0);
            for stop in homing.chain([end]) {
                if stop > at {
                    parts.push(Freed { start: DeviceBlock(at), count: (stop - at) as u32 });
                }
                at = stop + 1;
            }
        }
        parts
    }

    /// Whether a checkpoint under way writes to one of these blocks.
    pub(super) fn is_homing(&self, freed: &[Freed]) -> bool {
        let end = |run: &Freed| DeviceBlock(run.start.0 + u64::from(run.count));
        freed.iter().any(|run| self.homing.range(run.start..end(run)).next().is_some())
    }

    /// A version did not get home: it waits on, unless a newer one does or nobody wants it.
    pub(super) fn put_back(&mut self, old: Pending) {
        let home = old.block.home;
        if !self.revoked_since.contains(&home) {
            self.pending.entry(home).or_insert(old);
        }
    }

    /// Keeps buffers to copy into.
    pub(super) fn keep(&mut self, buffers: impl IntoIterator<Item = Buffer>) {
        let room = SPARE_MAX.saturating_sub(self.spare.len());
        self.spare.extend(buffers.into_iter().take(room));
    }
}
