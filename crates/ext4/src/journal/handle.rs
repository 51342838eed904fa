//! Handles: who changes metadata, and which.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use polylane_base::sync::{Arc, RwLockWriteGuard};
use polylane_sys::buffer::Buffer;
use polylane_vfs::OpCtx;

use super::gate::{Pass, Slot};
use super::{Changes, Freed, Journal, REVOKES_PER_BLOCK, Tid};
use crate::cache::{BlockCache, MetaBlock};
use crate::format::{DeviceBlock, GroupIndex};

/// The right to change metadata, as part of the running transaction. Must not be held across a wait
/// for anything but device reads of metadata.
pub struct Handle<'a> {
    pub(super) journal: &'a Journal,
    pub(super) slot: &'a Slot<Changes>,
    /// `None` for the one that seals a transaction: there the gate is shut.
    pub(super) _pass: Option<Pass<'a, Changes>>,
    pub(super) tid: Tid,
    /// Who makes the changes, on whose behalf.
    pub(super) ctx: OpCtx<'a>,
    /// Blocks that it may still change of those it was promised.
    pub(super) credits: Cell<usize>,
    /// Changed something and not complete yet.
    pub(super) open: Cell<bool>,
}

impl<'a> Handle<'a> {
    /// Who makes the changes, on whose behalf.
    pub fn ctx(&self) -> &OpCtx<'a> {
        &self.ctx
    }

    /// The transaction this handle is part of.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Ends the handle: the change is whole.
    pub fn complete(self) {
        self.open.set(false);
    }

    /// Opens a block for change.
    pub fn modify<'b>(&self, block: &'b Arc<MetaBlock>) -> RwLockWriteGuard<'b, Buffer> {
        self.open.set(true);
        if block.dirty_in.load(Ordering::Acquire) != self.tid.0
            && block.dirty_in.swap(self.tid.0, Ordering::AcqRel) != self.tid.0
        {
            match self.credits.get().checked_sub(1) {
                Some(left) => self.credits.set(left),
                None => self.journal.grow(1),
            }
            self.slot.changes.lock().blocks.push(block.clone());
        }
        block.data.write()
    }

    /// Notes that bitmaps or counters of `group` changed, once in a transaction.
    pub fn touch_group(&self, group: GroupIndex) {
        self.slot.changes.lock().groups.push(group);
        self.journal.grow(1);
    }

    /// Changes a block of a file, which the log then holds: `bytes` are all of it. For the holder
    /// of the file's cell, who was promised a credit for it.
    pub fn log_data(&self, home: DeviceBlock, bytes: &[u8]) {
        let block = self.journal.logged.enter(home, bytes.len());
        self.modify(&block).copy_from_slice(bytes);
    }

    /// Frees data blocks: the allocator gets them back when the transaction has committed. Versions
    /// of them in the log must not be replayed any more.
    pub fn free(&self, start: DeviceBlock, count: u32) {
        self.journal.freeing.fetch_add(count.into(), Ordering::AcqRel);
        self.slot.changes.lock().freed.push(Freed { start, count });
        self.revoke(self.journal.logged.take(start, count));
    }

    fn revoke(&self, homes: impl IntoIterator<Item = DeviceBlock>) {
        let mut changes = self.slot.changes.lock();
        let before = changes.revoked.len() / REVOKES_PER_BLOCK;
        changes.revoked.extend(homes);
        let more = changes.revoked.len() / REVOKES_PER_BLOCK - before;
        drop(changes);
        self.journal.grow(more);
    }

    /// Frees metadata blocks: older versions of them in the log must not be replayed any more.
    pub fn free_metadata(&self, cache: &BlockCache, start: DeviceBlock, count: u32) {
        let homes = (start.0..start.0 + u64::from(count)).map(DeviceBlock);
        self.revoke(homes.clone());
        self.free(start, count);
        homes.for_each(|home| cache.forget(home));
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if self.open.get() {
            self.journal.stop(None);
        }
        self.journal.return_credits(self.slot, self.credits.get());
    }
}
