//! From a closed transaction to a durable one.
//!
//! ```text
//!  log's lock held        not held                                     held
//!  ───────────────        ────────                                     ────
//!  body ──► log,          flush; the transaction before is durable;    versions wait for their
//!  place of the commit    commit block, FUA; freed blocks are          homes, freed blocks are
//!  block                  discarded, where that is wanted              free; all are told
//!
//!  place of both          body and commit block, FUA                   the same
//! ```
//!
//! While one transaction is in the middle column by two writes (`form`), the next may be in the
//! first. One that the medium has no room for is *grounded*, with all behind it: they are written
//! anew, in their order.

use std::sync::atomic::Ordering;

use polylane_base::sync::MutexGuard;
use polylane_sys::buffer::Buffer;

use super::form::Form;
use super::log::{Closed, Flying, Log};
use super::turns::Writer;
use super::{Client, Freed, Journal, Tid};
use crate::error::{Error, Result};
use crate::format::DeviceBlock;
use crate::format::journal::TransactionSum;
use crate::trace::Part;

impl Journal {
    /// Brings a closed transaction into the log and has it committed, or keeps it for another try.
    /// Returns the log. `again`: it is one that had no room before, and goes to the front.
    pub(super) fn take_off<'a>(
        &'a self,
        mut log: MutexGuard<'a, Log>,
        client: &dyn Client,
        closed: Closed,
        again: bool,
    ) -> Result<MutexGuard<'a, Log>> {
        if self.unlogged {
            return self.bring_home(log, client, closed, again);
        }
        if let Err(why) = self.prepare(&mut log, &closed) {
            if why.is_no_space() {
                log.stall(closed, again);
            }
            return Err(why);
        }
        let form = self.form(&log, &closed);
        self.forms.count(form);
        match form {
            Form::OneWrite => self.write_at_once(log, client, closed, form),
            _ => self.write_in_order(log, client, (closed, form), again),
        }
    }

    /// Writes a transaction and its commit block together.
    fn write_at_once<'a>(
        &'a self,
        mut log: MutexGuard<'a, Log>,
        client: &dyn Client,
        mut closed: Closed,
        form: Form,
    ) -> Result<MutexGuard<'a, Log>> {
        let (tid, start, freed) = (closed.tid, log.head, closed.freed.clone());
        let mut body = self.lay_out(&log, &mut closed);
        let commit = self.commit_block(&mut log, client, tid, body.sum);
        body.blocks.push(commit);
        let runs = self.place(&mut log, std::mem::take(&mut body.blocks));
        log.flying.push_back(Flying { closed, start, alone: true, why: form.name() });
        let writer = self.board();
        drop(log);
        let (blocks, written) = match self.is_stopped() {
            true => (Vec::new(), Err(Error::Stopped)),
            false => {
                let (blocks, written) = self.io.write_all_durable(runs);
                (blocks, written.map_err(Error::from))
            }
        };
        drop(writer);
        body.blocks = blocks;
        let copies = body.into_copies(self.io.block_bytes());
        self.end_flight(client, tid, &freed, (written, Some(copies)))
    }

    /// Writes a transaction's body, and, when it is durable, its commit block.
    fn write_in_order<'a>(
        &'a self,
        mut log: MutexGuard<'a, Log>,
        client: &dyn Client,
        (mut closed, form): (Closed, Form),
        again: bool,
    ) -> Result<MutexGuard<'a, Log>> {
        let (tid, start, freed) = (closed.tid, log.head, closed.freed.clone());
        let mut body = self.lay_out(&log, &mut closed);
        let (sum, written) = (body.sum, self.write_body(&mut log, &mut body));
        closed.copies = body.into_copies(self.io.block_bytes());
        if let Err(why) = written {
            if why.is_no_space() {
                log.head = start;
                log.stall(closed, again);
            }
            return Err(why);
        }
        let block = self.commit_block(&mut log, client, tid, sum);
        let place = self.map.device_block(log.head);
        log.advance(1);
        let before = log.last_flying();
        log.flying.push_back(Flying { closed, start, alone: false, why: form.name() });
        let writer = self.board();
        drop(log);
        let written = self.write_commit(before, writer, place, block);
        self.end_flight(client, tid, &freed, (written, None))
    }

    /// The block that ends transaction `tid`, of which `sum` is the checksum.
    fn commit_block(
        &self,
        log: &mut Log,
        client: &dyn Client,
        tid: Tid,
        sum: TransactionSum,
    ) -> Buffer {
        let mut block = Buffer::zeroed(self.io.block_bytes());
        let time = log.commit_time(client.now());
        log.codec.put_commit(&mut block, tid.sequence(), time, sum);
        block
    }

    /// A transaction's commit block was `written`, or was not; `copies`: its own, where they were
    /// written with it. Returns the log.
    fn end_flight<'a>(
        &'a self,
        client: &dyn Client,
        tid: Tid,
        freed: &[Freed],
        (written, copies): (Result<()>, Option<Vec<Buffer>>),
    ) -> Result<MutexGuard<'a, Log>> {
        let mut given = Vec::new();
        if written.is_ok() && !self.is_stopped() && !freed.is_empty() && client.gives_back() {
            given = self.log.lock().settled_part(tid, freed);
            client.discard(&given);
        }
        let mut log = self.log.lock();
        // The rest of what was freed takes room as before.
        given.iter().for_each(|run| log.homes.lose(*run));
        copies.into_iter().for_each(|copies| log.give_back(copies));
        match written {
            Ok(()) => {
                // Nothing goes home once the journal has stopped; replay finds what was written.
                self.check()?;
                self.land(&mut log, client);
            }
            Err(why) => {
                if why.is_no_space() && log.ground(tid) {
                    self.tell_grounded();
                }
                return Err(why);
            }
        }
        Ok(log)
    }

    /// Makes the body durable, and then, once the transaction before is, the commit block.
    fn write_commit(
        &self,
        before: Option<Tid>,
        writer: Writer<'_>,
        place: DeviceBlock,
        block: Buffer,
    ) -> Result<()> {
        self.io.flush()?;
        if let Some(before) = before {
            self.wait_until(before, writer.grounded)?;
        }
        self.check()?;
        self.io.write_durable(place, block)?;
        Ok(())
    }

    /// The first of those on their way has committed.
    fn land(&self, log: &mut Log, client: &dyn Client) {
        let Some(Flying { closed, why, .. }) = log.flying.pop_front() else { return };
        let (tid, bytes) = (closed.tid, closed.blocks.len() * self.io.block_bytes());
        self.trace.note((Part::Commit, why), bytes as u64, closed.began);
        match log.is_homing(&closed.freed) {
            true => log.held.extend(&closed.freed),
            false => self.release_freed(client, &closed.freed),
        }
        self.release_held(log, client);
        log.retire(closed);
        self.tell_committed(tid);
        self.ask_for_checkpoint(log);
    }

    /// Lets blocks that committed transactions freed be used again.
    pub(super) fn release_freed(&self, client: &dyn Client, freed: &[Freed]) {
        client.release(freed);
        let freed: u64 = freed.iter().map(|run| u64::from(run.count)).sum();
        self.freeing.fetch_sub(freed, Ordering::AcqRel);
    }
}
