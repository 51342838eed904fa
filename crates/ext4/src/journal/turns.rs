//! Who waits for which transaction on its way, and who goes next.
//!
//! Waking a thread costs as much as a small write to a fast medium, so none is woken for nothing.
//!
//! ```text
//!  N goes to the log    the first that wants N+1 leads it: it waits for N, and is woken first
//!                       other threads that want N+1 wait for N+1
//!                       those that want N wait for N
//! ```
//!
//! # Invariants
//!
//! - Of the threads that want the running transaction, and may not follow the one on its way, one
//!   leads: it commits it, or gives the lead up, and then all look again.
//! - Waiters for a transaction are told when it has committed; when transactions were called back,
//!   a lead was given up or the journal stopped all are.

use std::sync::atomic::Ordering;

use polylane_base::sync::MutexGuard;

use super::log::Log;
use super::{Client, Journal, Progress, Teller, Tid};
use crate::error::Result;

/// Counts a thread that is about to write without the log's lock.
pub(super) struct Writer<'a> {
    journal: &'a Journal,
    /// How often transactions had been called back when it began.
    pub(super) grounded: u64,
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        let mut progress = self.journal.progress.lock();
        progress.writers -= 1;
        if progress.writers == 0 && progress.draining {
            self.journal.drained.notify_all();
        }
    }
}

/// The lead of a transaction. Dropped before that has committed, it is given up.
pub(super) struct Lead<'a> {
    journal: &'a Journal,
    tid: Tid,
    /// The last transaction that was led before. Between it and this one there may be some that
    /// no thread leads, closed by a commit of all: the leader of this one commits them as well.
    former: Tid,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut progress = self.journal.progress.lock();
        if !progress.committed.reached(self.tid) {
            progress.led = Tid(progress.led.0.min(self.former.0));
            progress.given_up += 1;
            self.journal.tell_all(&progress);
        }
    }
}

/// The lead of a transaction that is to be committed by [`Journal::keep`]. The thread that has the
/// lead waits for no lock until then: others that have locks may wait for the transaction.
#[must_use = "who leads a transaction commits it"]
pub struct Promise {
    tid: Tid,
    former: Tid,
}

/// Which of both condition variables is a transaction's: two are on their way at most.
fn of(tid: Tid) -> usize {
    (tid.0 % 2) as usize
}

impl Journal {
    /// Counts this thread as one that writes without the log's lock. Call with it.
    pub(super) fn board(&self) -> Writer<'_> {
        let mut progress = self.progress.lock();
        progress.writers += 1;
        Writer { journal: self, grounded: progress.grounded }
    }

    /// Tells that a transaction has committed. Call with the log's lock: commits are told in their
    /// order.
    pub(super) fn tell_committed(&self, tid: Tid) {
        let mut progress = self.progress.lock();
        progress.committed = tid;
        let (next, those) = (progress.in_turn > 0, progress.watching[of(tid)] > 0);
        drop(progress);
        // First the thread that leads the next one: the medium has nothing to do until then.
        if next {
            self.turn.notify_all();
        }
        if those {
            self.landed[of(tid)].notify_all();
        }
    }

    /// Tells that transactions were called back.
    pub(super) fn tell_grounded(&self) {
        let mut progress = self.progress.lock();
        progress.grounded += 1;
        self.tell_all(&progress);
    }

    /// Wakes all who wait for transactions. `_locked`: none is between its look and its sleep.
    pub(super) fn tell_all(&self, _locked: &Progress) {
        self.turn.notify_all();
        self.landed.iter().for_each(|landed| landed.notify_all());
    }

    /// Takes the lead of the running transaction `tid`. `Err`: another has it, and leads had been
    /// given up so often.
    pub(super) fn lead(&self, tid: Tid) -> std::result::Result<Lead<'_>, u64> {
        let mut progress = self.progress.lock();
        if progress.led.reached(tid) {
            return Err(progress.given_up);
        }
        let former = std::mem::replace(&mut progress.led, tid);
        Ok(Lead { journal: self, tid, former })
    }

    /// Takes the lead of the running transaction, if that is `tid` and no thread has it.
    pub fn promise(&self, tid: Tid) -> Option<Promise> {
        let mut progress = self.progress.lock();
        let free = !progress.led.reached(tid) && self.current() == tid && !self.is_stopped();
        free.then(|| Promise { tid, former: std::mem::replace(&mut progress.led, tid) })
    }

    /// Commits what was promised, and tells those that left theirs to it. Call without locks.
    ///
    /// # Errors
    /// Those of [`Journal::commit_up_to`].
    pub fn keep(&self, Promise { tid, former }: Promise, client: &dyn Client) -> Result<()> {
        let lead = Lead { journal: self, tid, former };
        self.commit_and_tell((tid, Some(lead)), client, Teller::Here)
    }

    /// Gives the log's lock back and waits until `tid`, which is on its way, has committed.
    pub(super) fn wait_for_landing(&self, log: MutexGuard<'_, Log>, tid: Tid) -> Result<()> {
        let progress = self.progress.lock();
        let grounded = progress.grounded;
        drop(log);
        self.wait(progress, tid, (grounded, None))
    }

    /// The same for one that another leads, or until a lead was given up since that had happened
    /// `given_up` times.
    pub(super) fn wait_for_leader(
        &self,
        log: MutexGuard<'_, Log>,
        tid: Tid,
        given_up: u64,
    ) -> Result<()> {
        let progress = self.progress.lock();
        let grounded = progress.grounded;
        drop(log);
        self.wait(progress, tid, (grounded, Some(given_up)))
    }

    /// Gives the log's lock back and waits until `obstacle`, which is on its way, has committed: it
    /// is this thread's turn then.
    pub(super) fn wait_for_turn(&self, log: MutexGuard<'_, Log>, obstacle: Tid) -> Result<()> {
        let grounded = self.progress.lock().grounded;
        drop(log);
        self.wait_until(obstacle, grounded)
    }

    /// Waits until `tid` has committed, to go on with the next one. `ENOSPC` when transactions were
    /// called back since they had been `grounded` times.
    pub(super) fn wait_until(&self, tid: Tid, grounded: u64) -> Result<()> {
        let mut progress = self.progress.lock();
        while !self.is_over(&progress, tid, grounded)? {
            progress.in_turn += 1;
            progress = self.turn.wait(progress);
            progress.in_turn -= 1;
        }
        Ok(())
    }

    fn wait<'a>(
        &'a self,
        mut progress: MutexGuard<'a, Progress>,
        tid: Tid,
        (grounded, given_up): (u64, Option<u64>),
    ) -> Result<()> {
        let still = |progress: &Progress| given_up.is_none_or(|then| progress.given_up == then);
        while !self.is_over(&progress, tid, grounded)? && still(&progress) {
            progress.watching[of(tid)] += 1;
            progress = self.landed[of(tid)].wait(progress);
            progress.watching[of(tid)] -= 1;
        }
        Ok(())
    }

    /// Whether `tid` has committed.
    fn is_over(&self, progress: &Progress, tid: Tid, grounded: u64) -> Result<bool> {
        if progress.committed.reached(tid) {
            return Ok(true);
        }
        self.check()?;
        match progress.grounded == grounded {
            true => Ok(false),
            false => Err(polylane_block::Error::NoSpace.into()),
        }
    }

    /// The log, with no transaction on its way.
    pub(super) fn landed_log(&self) -> Result<MutexGuard<'_, Log>> {
        loop {
            self.check()?;
            let log = self.log.lock();
            let Some(last) = log.last_flying() else { return Ok(log) };
            self.wait_for_turn(log, last)?;
        }
    }

    /// Waits for those who write without the log's lock. Call with it, when the journal has
    /// stopped: then none waits for another, and none begins.
    pub(super) fn wait_for_writers(&self) {
        debug_assert!(self.stopped.load(Ordering::Acquire), "writers begin");
        let mut progress = self.progress.lock();
        progress.draining = true;
        while progress.writers > 0 {
            progress = self.drained.wait(progress);
        }
    }
}
