//! From a closed transaction to a durable one.
//!
//! ```text
//!  log's lock held        not held                                     held
//!  ───────────────        ────────                                     ────
//!  body ──► log,          flush; the transaction before is durable;    versions wait for their
//!  place of the commit    commit block, FUA; freed blocks are          homes, freed blocks are
//!  block                  discarded, where that is wanted              free; all are told
//! ```
//!
//! While one transaction is in the middle column, the next may be in the first. One that the medium
//! has no room for is *grounded*, with all behind it: they are written anew, in their order.

use std::sync::atomic::Ordering;

use polylane_base::sync::MutexGuard;
use polylane_sys::buffer::Buffer;

use super::log::{Closed, Flying, Log};
use super::{Client, Journal, Progress, Tid};
use crate::error::Result;
use crate::format::DeviceBlock;

/// Counts a thread that is about to write without the log's lock.
struct Writer<'a>(&'a Journal);

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        let mut progress = self.0.progress.lock();
        progress.writers -= 1;
        self.0.tell(&progress);
    }
}

impl Journal {
    /// Brings a closed transaction into the log and has it committed, or keeps it for another try.
    /// Returns the log. `again`: it is one that had no room before, and goes to the front.
    pub(super) fn take_off<'a>(
        &'a self,
        mut log: MutexGuard<'a, Log>,
        client: &dyn Client,
        mut closed: Closed,
        again: bool,
    ) -> Result<MutexGuard<'a, Log>> {
        if self.unlogged {
            return self.bring_home(log, client, closed, again);
        }
        let tid = closed.tid;
        let prepared = self.prepare(&mut log, &closed);
        let start = log.head;
        if let Err(why) = prepared.and_then(|()| self.write_body(&mut log, &mut closed)) {
            if why.is_no_space() {
                log.head = start;
                log.stall(closed, again);
            }
            return Err(why);
        }
        let mut block = Buffer::zeroed(self.io.block_bytes());
        let now = client.now();
        log.codec.put_commit(&mut block, tid.sequence(), now.sec.max(0) as u64, now.nsec);
        let place = self.map.device_block(log.head);
        log.advance(1);
        let (before, freed) = (log.last_flying(), closed.freed.clone());
        log.flying.push_back(Flying { closed, start });
        let grounded = self.board();
        drop(log);
        let written = self.write_commit(before, grounded, place, block);
        if written.is_ok() && !self.is_stopped() {
            client.discard(&freed);
        }
        let mut log = self.log.lock();
        match written {
            Ok(()) => {
                // Nothing goes home once the journal has stopped; replay finds what was written.
                self.check()?;
                self.land(&mut log, client)?;
            }
            Err(why) => {
                if why.is_no_space() && log.ground(tid) {
                    let mut progress = self.progress.lock();
                    progress.grounded += 1;
                    self.tell(&progress);
                }
                return Err(why);
            }
        }
        Ok(log)
    }

    /// Counts this thread as one that writes without the log's lock. Call with it. How often
    /// transactions have been called back.
    fn board(&self) -> u64 {
        let mut progress = self.progress.lock();
        progress.writers += 1;
        progress.grounded
    }

    /// Makes the body durable, and then, once the transaction before is, the commit block.
    fn write_commit(
        &self,
        before: Option<Tid>,
        grounded: u64,
        place: DeviceBlock,
        block: Buffer,
    ) -> Result<()> {
        let _writer = Writer(self);
        self.io.flush()?;
        if let Some(before) = before {
            self.wait_until(before, grounded)?;
        }
        self.check()?;
        self.io.write_durable(place, block)?;
        Ok(())
    }

    /// The first of those on their way has committed.
    fn land(&self, log: &mut Log, client: &dyn Client) -> Result<()> {
        let Some(Flying { closed, .. }) = log.flying.pop_front() else { return Ok(()) };
        let tid = closed.tid;
        self.release_freed(client, &closed);
        log.retire(closed);
        self.tell_committed(tid);
        self.checkpoint_early(log)
    }

    /// Lets the blocks that a committed transaction freed be used again.
    pub(super) fn release_freed(&self, client: &dyn Client, closed: &Closed) {
        client.release(&closed.freed);
        let freed: u64 = closed.freed.iter().map(|run| u64::from(run.count)).sum();
        self.freeing.fetch_sub(freed, Ordering::AcqRel);
    }

    /// Tells that a transaction has committed. Call with the log's lock: commits are told in their
    /// order.
    pub(super) fn tell_committed(&self, tid: Tid) {
        let mut progress = self.progress.lock();
        progress.committed = tid;
        self.tell(&progress);
    }

    /// Wakes those who wait for transactions on their way, if there are any.
    pub(super) fn tell(&self, progress: &Progress) {
        if progress.watching > 0 {
            self.landed.notify_all();
        }
    }

    /// Waits for the next [`tell`](Journal::tell).
    fn watch<'a>(&self, mut progress: MutexGuard<'a, Progress>) -> MutexGuard<'a, Progress> {
        progress.watching += 1;
        progress = self.landed.wait(progress);
        progress.watching -= 1;
        progress
    }

    /// Gives the log's lock back and waits until `tid`, which is on its way, has committed.
    pub(super) fn wait_for_landing(&self, log: MutexGuard<'_, Log>, tid: Tid) -> Result<()> {
        let grounded = self.progress.lock().grounded;
        drop(log);
        self.wait_until(tid, grounded)
    }

    /// Waits until `tid` has committed. `ENOSPC` when transactions were called back since they had
    /// been `grounded` times.
    fn wait_until(&self, tid: Tid, grounded: u64) -> Result<()> {
        let mut progress = self.progress.lock();
        loop {
            if progress.committed.reached(tid) {
                return Ok(());
            }
            self.check()?;
            if progress.grounded != grounded {
                return Err(polylane_block::Error::NoSpace.into());
            }
            progress = self.watch(progress);
        }
    }

    /// The log, with no transaction on its way.
    pub(super) fn landed_log(&self) -> Result<MutexGuard<'_, Log>> {
        loop {
            self.check()?;
            let log = self.log.lock();
            let Some(last) = log.last_flying() else { return Ok(log) };
            self.wait_for_landing(log, last)?;
        }
    }

    /// Waits for those who write without the log's lock. Call with it, when the journal has
    /// stopped: then none waits for another, and none begins.
    pub(super) fn wait_for_writers(&self) {
        let mut progress = self.progress.lock();
        while progress.writers > 0 {
            progress = self.watch(progress);
        }
    }
}
